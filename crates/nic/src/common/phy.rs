//! A copper PHY behind its management bus (IEEE 802.3-2018 clauses 22 and 28, annex 28B): power,
//! what is advertised, autonegotiation, and the pause frames on which both ends agreed.
//!
//! ```text
//!   power_up ── the driver's settings for its chip ── advertise ── restart ── … link: pause
//! ```
//!
//! [`Mdio`] is the bus: each MAC has its own way to it, and its own rules of access. Only
//! registers of clause 22 are used here. Settings of one kind of PHY lie in its driver.

/// Control, status, both halves of the identifier, the abilities of both ends (§22.2.4).
const BMCR: u8 = 0;
const BMCR_RESET: u16 = 1 << 15;
const BMCR_NEGOTIATE: u16 = 1 << 12;
const BMCR_POWER_DOWN: u16 = 1 << 11;
const BMCR_RESTART: u16 = 1 << 9;
const BMSR: u8 = 1;
const BMSR_NEGOTIATED: u16 = 1 << 5;
const BMSR_LINK: u16 = 1 << 2;
const IDENTIFIER: [u8; 2] = [2, 3];
const ADVERTISED: u8 = 4;
/// 10 and 100 Mb/s, in half and full duplex.
const SPEEDS: u16 = 0x01e0;
const PAUSE: u16 = 1 << 10;
const ASYMMETRIC: u16 = 1 << 11;
const PARTNER: u8 = 5;
/// The advertisement of 1000BASE-T (§40.5.1.1).
const ADVERTISED_1000: u8 = 9;
const FULL_1000: u16 = 1 << 9;
const HALF_1000: u16 = 1 << 8;
/// The abilities of a partner of 1000BASE-T: two bits above those of the advertisement.
const PARTNER_1000: u8 = 10;
const PARTNER_1000_SHIFT: u32 = 2;

/// Why a register of a PHY could not be accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MdioError {
    /// Another user holds the bus.
    #[error("the management firmware of the device holds its PHY")]
    Held,
    /// The transaction did not end, or failed.
    #[error("the PHY of the device does not answer")]
    Silent,
}

/// The management bus of one PHY.
pub(crate) trait Mdio {
    /// Reads a register, 0 to 31.
    fn read(&mut self, register: u8) -> Result<u16, MdioError>;
    /// Writes a register, 0 to 31.
    fn write(&mut self, register: u8, value: u16) -> Result<(), MdioError>;

    /// Clears and sets bits of a register.
    fn change(&mut self, register: u8, clear: u16, set: u16) -> Result<(), MdioError> {
        let was = self.read(register)?;
        self.write(register, was & !clear | set)
    }
}

/// The pause frames that a port asks for (IEEE 802.3 annex 31B): while a receiver is full, its
/// sender waits. Both ends must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowControl {
    /// None.
    Off,
    /// The port waits if its partner asks for it.
    Rx,
    /// The port asks its partner to wait.
    Tx,
    /// Both.
    #[default]
    Full,
}

/// The pause frames that are in use on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PauseFrames {
    /// The port waits if its partner asks for it.
    pub(crate) rx: bool,
    /// The port asks its partner to wait.
    pub(crate) tx: bool,
}

/// Manufacturer, model and revision: registers 2 and 3.
pub(crate) fn identifier(bus: &mut impl Mdio) -> Result<u32, MdioError> {
    let [high, low] = IDENTIFIER;
    Ok(u32::from(bus.read(high)?) << 16 | u32::from(bus.read(low)?))
}

/// Switches the power on. The settings of a PHY survive without power.
pub(crate) fn power_up(bus: &mut impl Mdio) -> Result<(), MdioError> {
    bus.change(BMCR, BMCR_POWER_DOWN, 0)
}

/// Switches the power off: the partner sees no link.
pub(crate) fn power_down(bus: &mut impl Mdio) -> Result<(), MdioError> {
    bus.change(BMCR, 0, BMCR_POWER_DOWN)
}

/// Starts a reset that lets changed settings take effect. It ends by itself, within 0.5 s.
pub(crate) fn soft_reset(bus: &mut impl Mdio) -> Result<(), MdioError> {
    bus.change(BMCR, 0, BMCR_RESET)
}

/// Advertises 10, 100 and 1000 Mb/s, the latter in full duplex only, and pause frames. It takes
/// effect with the next negotiation.
pub(crate) fn advertise(bus: &mut impl Mdio, flow_control: FlowControl) -> Result<(), MdioError> {
    let pause = match flow_control {
        FlowControl::Off => 0,
        // To wait without asking can't be expressed (table 28B-2): the rest is left out when both
        // ends are known.
        FlowControl::Rx | FlowControl::Full => PAUSE | ASYMMETRIC,
        FlowControl::Tx => ASYMMETRIC,
    };
    bus.change(ADVERTISED, PAUSE | ASYMMETRIC, SPEEDS | pause)?;
    bus.change(ADVERTISED_1000, HALF_1000, FULL_1000)
}

/// Negotiates anew. The link goes down, and comes up in 1.5 to 3 s with a partner at 1000 Mb/s.
pub(crate) fn restart(bus: &mut impl Mdio) -> Result<(), MdioError> {
    bus.change(BMCR, 0, BMCR_NEGOTIATE | BMCR_RESTART)
}

/// The pause frames on which both ends agreed (table 28B-3), for a link in full duplex; `None`
/// while the negotiation is under way.
pub(crate) fn pause(bus: &mut impl Mdio, flow_control: FlowControl) -> Result<Option<PauseFrames>, MdioError> {
    if bus.read(BMSR)? & BMSR_NEGOTIATED == 0 {
        return Ok(None);
    }
    Ok(Some(resolve(bus.read(ADVERTISED)?, bus.read(PARTNER)?, flow_control)))
}

/// Whether the power is on and negotiation enabled.
pub(crate) fn negotiates(bus: &mut impl Mdio) -> Result<bool, MdioError> {
    Ok(bus.read(BMCR)? & (BMCR_POWER_DOWN | BMCR_NEGOTIATE) == BMCR_NEGOTIATE)
}

/// Whether the link is up and was up ever since the last call: the bit is latched low
/// (§22.2.4.2.13).
pub(crate) fn link(bus: &mut impl Mdio) -> Result<bool, MdioError> {
    Ok(bus.read(BMSR)? & BMSR_LINK != 0)
}

/// Speed in Mb/s and full duplex: the best that both ends advertised (annex 28B.3); `None` while
/// the negotiation is under way, or if they have nothing in common.
pub(crate) fn mode(bus: &mut impl Mdio) -> Result<Option<(u32, bool)>, MdioError> {
    if bus.read(BMSR)? & BMSR_NEGOTIATED == 0 {
        return Ok(None);
    }
    let both = bus.read(ADVERTISED_1000)? & bus.read(PARTNER_1000)? >> PARTNER_1000_SHIFT;
    let common = bus.read(ADVERTISED)? & bus.read(PARTNER)?;
    let modes = [
        (both & FULL_1000, (1000, true)),
        (both & HALF_1000, (1000, false)),
        (common & 1 << 8, (100, true)),
        (common & 1 << 7, (100, false)),
        (common & 1 << 6, (10, true)),
        (common & 1 << 5, (10, false)),
    ];
    Ok(modes.into_iter().find(|&(has, _)| has != 0).map(|(_, mode)| mode))
}

fn resolve(ours: u16, partner: u16, flow_control: FlowControl) -> PauseFrames {
    let has = |word: u16| (word & PAUSE != 0, word & ASYMMETRIC != 0);
    let (rx, tx) = match (has(ours), has(partner)) {
        ((true, _), (true, _)) => (true, flow_control != FlowControl::Rx),
        ((true, true), (false, true)) => (true, false),
        ((false, true), (true, true)) => (false, true),
        _ => (false, false),
    };
    PauseFrames { rx, tx }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PHY that is nothing but its registers.
    struct Registers([u16; 32]);

    impl Mdio for Registers {
        fn read(&mut self, register: u8) -> Result<u16, MdioError> {
            Ok(self.0[usize::from(register)])
        }
        fn write(&mut self, register: u8, value: u16) -> Result<(), MdioError> {
            self.0[usize::from(register)] = value;
            Ok(())
        }
    }

    #[test]
    fn what_is_advertised_keeps_the_bits_that_are_not_ours() {
        let mut phy = Registers([0; 32]);
        phy.0[4] = 0x0401;
        phy.0[9] = 0x0d00;
        advertise(&mut phy, FlowControl::Off).unwrap();
        assert_eq!((phy.0[4], phy.0[9]), (0x01e1, 0x0e00));
        advertise(&mut phy, FlowControl::Full).unwrap();
        assert_eq!(phy.0[4], 0x0de1);
        advertise(&mut phy, FlowControl::Tx).unwrap();
        assert_eq!(phy.0[4], 0x09e1);
    }

    #[test]
    fn power_comes_and_goes_and_a_restart_negotiates() {
        let mut phy = Registers([0; 32]);
        phy.0[0] = 0x1940;
        power_up(&mut phy).unwrap();
        assert_eq!(phy.0[0], 0x1140);
        restart(&mut phy).unwrap();
        assert_eq!(phy.0[0], 0x1340);
        power_down(&mut phy).unwrap();
        assert_eq!(phy.0[0], 0x1b40);
    }

    /// IEEE 802.3-2018 table 28B-3, row by row: PAUSE and ASM_DIR of this end and of the partner,
    /// then whether pause frames are taken and sent.
    #[test]
    fn pause_frames_are_resolved_by_the_table_of_the_standard() {
        let word = |pause: u16, asymmetric: u16| pause << 10 | asymmetric << 11;
        let table = [
            ((0, 0), None, (false, false)),
            ((0, 1), Some((0, 0)), (false, false)),
            ((0, 1), Some((0, 1)), (false, false)),
            ((0, 1), Some((1, 0)), (false, false)),
            ((0, 1), Some((1, 1)), (false, true)),
            ((1, 0), Some((0, 0)), (false, false)),
            ((1, 0), Some((0, 1)), (false, false)),
            ((1, 0), Some((1, 0)), (true, true)),
            ((1, 0), Some((1, 1)), (true, true)),
            ((1, 1), Some((0, 0)), (false, false)),
            ((1, 1), Some((0, 1)), (true, false)),
            ((1, 1), Some((1, 0)), (true, true)),
            ((1, 1), Some((1, 1)), (true, true)),
        ];
        for ((pause, asymmetric), partner, (rx, tx)) in table {
            let partners = partner.map_or(vec![(0, 0), (0, 1), (1, 0), (1, 1)], |partner| vec![partner]);
            for (theirs, skewed) in partners {
                let agreed = resolve(word(pause, asymmetric), word(theirs, skewed), FlowControl::Full);
                assert_eq!(agreed, PauseFrames { rx, tx }, "{pause}{asymmetric} {theirs}{skewed}");
            }
        }
        assert_eq!(resolve(0x0c00, 0x0c00, FlowControl::Rx), PauseFrames { rx: true, tx: false });
    }

    #[test]
    fn the_best_mode_that_both_ends_advertise_is_that_of_the_link() {
        for (ours, partner, mode) in [
            ((0x01e1, 0x0200), (0x41e1, 0x0800), Some((1000, true))),
            ((0x01e1, 0x0300), (0x41e1, 0x0400), Some((1000, false))),
            ((0x01e1, 0x0200), (0x41e1, 0x0400), Some((100, true))),
            ((0x01e1, 0), (0x40a1, 0x0800), Some((100, false))),
            ((0x0061, 0x0200), (0x41e1, 0), Some((10, true))),
            ((0x01e1, 0x0200), (0x4021, 0), Some((10, false))),
            ((0x0101, 0), (0x4021, 0), None),
        ] {
            let mut phy = Registers([0; 32]);
            (phy.0[4], phy.0[9]) = ours;
            (phy.0[5], phy.0[10]) = partner;
            assert_eq!(super::mode(&mut phy), Ok(None), "not negotiated");
            phy.0[1] = BMSR_NEGOTIATED;
            assert_eq!(super::mode(&mut phy), Ok(mode), "{ours:x?} {partner:x?}");
        }
    }

    #[test]
    fn nothing_is_resolved_before_the_negotiation_has_ended() {
        let mut phy = Registers([0; 32]);
        (phy.0[4], phy.0[5]) = (0x0de1, 0xc5e1);
        assert_eq!(pause(&mut phy, FlowControl::Full), Ok(None));
        phy.0[1] = BMSR_NEGOTIATED;
        assert_eq!(pause(&mut phy, FlowControl::Full), Ok(Some(PauseFrames { rx: true, tx: true })));
    }
}
