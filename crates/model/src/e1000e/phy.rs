//! NVM and PHY, behind EERD and MDIC.

use super::regs::*;

const EERD_START: u32 = 1;
const EERD_DONE: u32 = 2;
const MDIC_WRITE: u32 = 1 << 26;
const MDIC_READ: u32 = 2 << 26;
const MDIC_READY: u32 = 1 << 28;
pub(crate) const MDIC_INTERRUPT: u32 = 1 << 29;
const MDIC_ERROR: u32 = 1 << 30;
/// The PHY's address on the MDIO bus.
const ADDRESS: u32 = 1;

/// Registers of IEEE 802.3 clause 22.
const BMCR: usize = 0;
const BMCR_RESET: u16 = 1 << 15;
const BMCR_LOOPBACK: u16 = 1 << 14;
const BMCR_NEGOTIATE: u16 = 1 << 12;
const BMCR_POWER_DOWN: u16 = 1 << 11;
const BMCR_RESTART: u16 = 1 << 9;
const BMSR: usize = 1;
const BMSR_LINK: u16 = 1 << 2;
const BMSR_AN_DONE: u16 = 1 << 5;
const PARTNER: usize = 5;
/// The partner takes and sends pause frames (annex 28B).
const PARTNER_PAUSE: u16 = 1 << 10;
/// Selects the page of registers 16 to 31, except of itself.
const PAGE: usize = 22;
/// A page that firmware was at last; the driver's registers lie in page 0.
const FIRMWARES_PAGE: u16 = 769;

/// The state in which the driver finds the PHY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PhyStart {
    /// Powered down, as Linux's driver leaves it. It negotiates after it was powered up and
    /// autonegotiation was restarted.
    #[default]
    PoweredDown,
    /// Powered up and negotiating, as after power-on.
    Ready,
    /// It does not answer until the MAC resets it (CTRL.PHY_RST).
    Hung,
}

/// The effect of a PHY register access on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Nothing.
    None,
    /// Autonegotiation restarts, or the link is lost.
    Restart,
}

#[derive(Debug)]
pub(crate) struct Phy {
    registers: [u16; 32],
    /// The page of registers 16 to 31.
    page: u16,
    link: bool,
    /// The link was lost since BMSR was read (the bit is latched low).
    lost: bool,
    /// What the partner heard in the last negotiation: register 4 as it was then.
    advertised: u16,
    /// Autonegotiation was started since power was switched on.
    negotiates: bool,
    hung: bool,
    /// The word of the last transaction, which MDIC shows from its second read on.
    pending: Option<u32>,
}

impl Phy {
    pub(crate) fn new(start: PhyStart, partner_pause: bool) -> Phy {
        let mut registers = [0; 32];
        // The BM PHY of an 82574 after reset: autonegotiation on, all abilities advertised.
        for (at, value) in [
            (BMCR, 0x1140),
            (BMSR, 0x7949),
            (2, 0x0141),
            (3, 0x0cb1),
            (4, 0x0de1),
            (PARTNER, 0xc1e1),
            (9, 0x0e00),
            (10, 0x3c00),
            (15, 0x3000),
            (16, 0x3360),
        ] {
            registers[at] = value;
        }
        if start == PhyStart::PoweredDown {
            registers[BMCR] |= BMCR_POWER_DOWN;
        }
        let mut phy = Phy {
            registers,
            page: FIRMWARES_PAGE,
            link: false,
            lost: false,
            advertised: 0x0de1,
            negotiates: start == PhyStart::Ready,
            hung: start == PhyStart::Hung,
            pending: None,
        };
        phy.set_partner_pause(partner_pause);
        phy
    }

    pub(crate) fn set_partner_pause(&mut self, pause: bool) {
        let word = &mut self.registers[PARTNER];
        *word = *word & !PARTNER_PAUSE | if pause { PARTNER_PAUSE } else { 0 };
    }

    pub(crate) fn set_link(&mut self, up: bool) {
        self.lost |= self.link && !up;
        self.link = up;
    }

    /// Whether the PHY lets a link come up.
    pub(crate) fn wants_link(&self) -> bool {
        self.negotiates && self.registers[BMCR] & BMCR_POWER_DOWN == 0
    }

    pub(crate) fn loopback(&self) -> bool {
        self.registers[BMCR] & BMCR_LOOPBACK != 0
    }

    /// The abilities that the partner knows of.
    pub(crate) fn advertised(&self) -> u16 {
        self.advertised
    }

    pub(crate) fn register(&self, at: usize) -> u16 {
        self.registers.get(at).copied().unwrap_or(0)
    }

    /// A reset of the whole PHY by the MAC.
    pub(crate) fn reset(&mut self) {
        let pause = self.registers[PARTNER] & PARTNER_PAUSE != 0;
        *self = Phy { link: self.link, lost: self.lost, ..Phy::new(PhyStart::Ready, pause) };
    }

    fn read(&mut self, at: usize) -> u16 {
        match at {
            BMSR if self.link && !std::mem::take(&mut self.lost) => self.registers[BMSR] | BMSR_LINK | BMSR_AN_DONE,
            BMSR if self.link => self.registers[BMSR] | BMSR_AN_DONE,
            PAGE => self.page,
            16.. if self.page != 0 => 0,
            _ => self.registers.get(at).copied().unwrap_or(0),
        }
    }

    fn write(&mut self, at: usize, value: u16) -> LinkEvent {
        match at {
            BMCR => return self.control(value),
            PAGE => self.page = value,
            // Status, identifiers, and what the partner advertises are read-only.
            BMSR..=3 | PARTNER..=8 | 10 => {}
            16.. if self.page != 0 => {}
            _ => self.registers[at & 31] = value,
        }
        LinkEvent::None
    }

    fn control(&mut self, value: u16) -> LinkEvent {
        let mut stored = value & !(BMCR_RESET | BMCR_RESTART);
        if value & BMCR_RESET != 0 {
            // Settings take effect; of the control register, power alone stays as it was.
            stored = 0x1140 | value & BMCR_POWER_DOWN;
        }
        self.registers[BMCR] = stored;
        let powered = stored & BMCR_POWER_DOWN == 0;
        let starts = value & (BMCR_RESET | BMCR_RESTART) != 0 && stored & BMCR_NEGOTIATE != 0;
        self.negotiates = powered && (self.negotiates || starts);
        if powered && starts {
            self.advertised = self.registers[4];
        }
        if starts || !powered { LinkEvent::Restart } else { LinkEvent::None }
    }

    /// A write of MDIC; returns the value that MDIC reads as at first: the transaction is under
    /// way.
    pub(crate) fn mdic(&mut self, value: u32) -> (u32, LinkEvent) {
        let (at, operation) = ((value >> 16 & 31) as usize, value & (MDIC_READ | MDIC_WRITE));
        let rest = value & 0x07ff_0000 & !MDIC_READ & !MDIC_WRITE | operation;
        let mut event = LinkEvent::None;
        let done = if self.hung {
            None
        } else if value >> 21 & 31 != ADDRESS || operation == 0 || operation == MDIC_READ | MDIC_WRITE {
            Some(rest | value & 0xffff | MDIC_READY | MDIC_ERROR)
        } else if operation == MDIC_READ {
            Some(rest | u32::from(self.read(at)) | MDIC_READY)
        } else {
            event = self.write(at, value as u16);
            Some(rest | value & 0xffff | MDIC_READY)
        };
        self.pending = done;
        (rest | value & 0xffff, event)
    }

    /// What MDIC reads as from the next read on, if a transaction has ended since the last one.
    pub(crate) fn end_of_transaction(&mut self) -> Option<u32> {
        self.pending.take()
    }
}

/// The NVM of a device with this address: 64 words with the sum 0xbaba. Word 0x0f says that the
/// chip passes frames through to a management controller.
pub(crate) fn nvm(mac: [u8; 6], manageability: bool) -> [u16; 64] {
    let mut words = [0u16; 64];
    for (word, bytes) in words.iter_mut().zip(mac.as_chunks::<2>().0) {
        *word = u16::from_le_bytes(*bytes);
    }
    words[0x0b] = 0x10d3;
    words[0x0d] = 0x10d3;
    words[0x0e] = 0x8086;
    words[0x0f] = if manageability { 0x4000 } else { 0 };
    words[0x3f] = 0xbabau16.wrapping_sub(words.iter().fold(0, |sum: u16, w| sum.wrapping_add(*w)));
    words
}

/// A write of EERD; returns the value that EERD reads as afterwards.
pub(crate) fn eerd(nvm: &[u16; 64], value: u32) -> u32 {
    if value & EERD_START == 0 {
        return value & 0xfffc;
    }
    let word = nvm.get((value >> 2 & 0x3fff) as usize).copied().unwrap_or(0xffff);
    value & 0xfffc | EERD_DONE | u32::from(word) << 16
}

/// The link bit of [`STATUS`].
pub(crate) fn status_link(up: bool) -> u32 {
    if up { STATUS_LU } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Phy {
        Phy::new(PhyStart::Ready, true)
    }

    fn read(phy: &mut Phy, at: u32) -> u32 {
        let (at_once, _) = phy.mdic(MDIC_READ | ADDRESS << 21 | at << 16);
        phy.end_of_transaction().unwrap_or(at_once)
    }

    fn write(phy: &mut Phy, at: u32, value: u32) -> LinkEvent {
        phy.mdic(MDIC_WRITE | ADDRESS << 21 | at << 16 | value).1
    }

    #[test]
    fn the_nvm_sums_to_baba_and_begins_with_the_address() {
        let nvm = nvm([0x52, 0x54, 0, 1, 2, 3], false);
        assert_eq!(nvm.iter().fold(0u16, |s, w| s.wrapping_add(*w)), 0xbaba);
        assert_eq!(nvm[..3], [0x5452, 0x0100, 0x0302]);
        assert_eq!(eerd(&nvm, 1 << 2 | 1), 0x0100_0000 | 1 << 2 | 2);
    }

    #[test]
    fn a_read_of_the_nvm_past_its_end_returns_ones() {
        assert_eq!(eerd(&nvm([0; 6], false), 64 << 2 | 1) >> 16, 0xffff);
    }

    #[test]
    fn the_phy_reports_its_identifier_and_the_link() {
        let mut phy = ready();
        assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
        assert_eq!(read(&mut phy, 1) & u32::from(BMSR_LINK), 0);
        phy.set_link(true);
        assert_eq!(read(&mut phy, 1) & 0xffff, 0x796d);
        assert!(read(&mut phy, 1) & MDIC_READY != 0);
    }

    #[test]
    fn a_lost_link_is_latched_until_the_status_is_read() {
        let mut phy = ready();
        phy.set_link(true);
        phy.set_link(false);
        phy.set_link(true);
        let link = [(); 2].map(|()| read(&mut phy, 1) & u32::from(BMSR_LINK) != 0);
        assert_eq!(link, [false, true]);
    }

    #[test]
    fn a_transaction_is_under_way_until_mdic_is_read_again() {
        let mut phy = ready();
        assert_eq!(phy.mdic(MDIC_READ | ADDRESS << 21 | 2 << 16).0 & MDIC_READY, 0);
        assert!(phy.end_of_transaction().is_some_and(|word| word & MDIC_READY != 0));
        assert_eq!(phy.end_of_transaction(), None);
    }

    #[test]
    fn a_phy_at_another_address_is_an_error() {
        let mut phy = ready();
        phy.mdic(MDIC_READ | 2 << 21 | 2 << 16);
        let value = phy.end_of_transaction().unwrap();
        assert!(value & MDIC_ERROR != 0 && value & MDIC_READY != 0);
    }

    #[test]
    fn a_phy_without_power_negotiates_after_power_and_a_restart() {
        let mut phy = Phy::new(PhyStart::PoweredDown, true);
        assert_eq!(read(&mut phy, 0) & 0xffff, 0x1940);
        assert!(!phy.wants_link());
        assert_eq!(write(&mut phy, 0, 0x1140), LinkEvent::None);
        assert!(!phy.wants_link());
        assert_eq!(write(&mut phy, 0, 0x1340), LinkEvent::Restart);
        assert!(phy.wants_link());
        assert_eq!(write(&mut phy, 0, 0x1940), LinkEvent::Restart);
        assert!(!phy.wants_link());
    }

    #[test]
    fn a_phy_that_hangs_never_ends_a_transaction_until_it_is_reset() {
        let mut phy = Phy::new(PhyStart::Hung, true);
        assert_eq!(read(&mut phy, 2) & MDIC_READY, 0);
        phy.reset();
        assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
    }

    #[test]
    fn the_upper_registers_answer_in_their_page_only() {
        let mut phy = ready();
        assert_eq!(read(&mut phy, 16) & 0xffff, 0);
        write(&mut phy, 22, 0);
        assert_eq!(read(&mut phy, 16) & 0xffff, 0x3360);
    }

    #[test]
    fn restarting_autonegotiation_is_reported_and_clears_itself() {
        let mut phy = ready();
        assert_eq!(write(&mut phy, 0, 0x1340), LinkEvent::Restart);
        assert_eq!(read(&mut phy, 0) & 0xffff, 0x1140);
    }

    #[test]
    fn identifiers_and_the_partners_abilities_are_read_only() {
        let mut phy = ready();
        for at in [2, 5] {
            let before = read(&mut phy, at);
            write(&mut phy, at, 0xdead);
            assert_eq!(read(&mut phy, at), before);
        }
    }

    #[test]
    fn a_soft_reset_keeps_the_settings_and_restarts_the_negotiation() {
        let mut phy = ready();
        write(&mut phy, 4, 0x0001);
        assert_eq!(write(&mut phy, 0, 0x8000), LinkEvent::Restart);
        assert_eq!((read(&mut phy, 4) & 0xffff, read(&mut phy, 0) & 0xffff), (0x0001, 0x1140));
    }
}
