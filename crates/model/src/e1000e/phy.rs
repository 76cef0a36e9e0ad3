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

pub(crate) const BMCR: usize = 0;
const BMCR_RESET: u16 = 1 << 15;
pub(crate) const BMCR_LOOPBACK: u16 = 1 << 14;
const BMCR_POWER_DOWN: u16 = 1 << 11;
const BMCR_RESTART: u16 = 1 << 9;
const BMSR: usize = 1;
const BMSR_LINK: u16 = 1 << 2;
const BMSR_AN_DONE: u16 = 1 << 5;

/// The effect of a PHY register access on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Nothing.
    None,
    /// Autonegotiation restarts.
    Restart,
}

#[derive(Debug)]
pub(crate) struct Phy {
    registers: [u16; 32],
    link: bool,
}

impl Phy {
    pub(crate) fn new() -> Phy {
        let mut registers = [0; 32];
        // The BM PHY of an 82574 after reset: autonegotiation on, all abilities advertised.
        for (at, value) in [
            (BMCR, 0x1140),
            (BMSR, 0x7949),
            (2, 0x0141),
            (3, 0x0cb1),
            (4, 0x0de1),
            (5, 0xc1e1),
            (9, 0x0e00),
            (10, 0x3c00),
            (15, 0x3000),
        ] {
            registers[at] = value;
        }
        Phy { registers, link: false }
    }

    pub(crate) fn set_link(&mut self, up: bool) {
        self.link = up;
    }

    pub(crate) fn powered(&self) -> bool {
        self.registers[BMCR] & BMCR_POWER_DOWN == 0
    }

    pub(crate) fn loopback(&self) -> bool {
        self.registers[BMCR] & BMCR_LOOPBACK != 0
    }

    fn read(&self, at: usize) -> u16 {
        match at {
            BMSR if self.link => self.registers[BMSR] | BMSR_LINK | BMSR_AN_DONE,
            _ => self.registers.get(at).copied().unwrap_or(0),
        }
    }

    fn write(&mut self, at: usize, value: u16) -> LinkEvent {
        if at == BMCR && value & BMCR_RESET != 0 {
            let link = self.link;
            *self = Phy { link, ..Phy::new() };
            return LinkEvent::Restart;
        }
        // Status and identifiers are read-only.
        if let Some(register) = self.registers.get_mut(at).filter(|_| !(BMSR..=3).contains(&at) && at != 10) {
            *register = if at == BMCR { value & !BMCR_RESTART } else { value };
        }
        let restart = at == BMCR && value & (BMCR_RESTART | BMCR_POWER_DOWN) != 0;
        if restart { LinkEvent::Restart } else { LinkEvent::None }
    }

    /// A write of MDIC; returns the value that MDIC reads as afterwards.
    pub(crate) fn mdic(&mut self, value: u32) -> (u32, LinkEvent) {
        let (at, operation) = ((value >> 16 & 31) as usize, value & (MDIC_READ | MDIC_WRITE));
        let rest = value & 0x07ff_0000 & !MDIC_READ & !MDIC_WRITE | operation;
        if value >> 21 & 31 != ADDRESS || operation == 0 || operation == MDIC_READ | MDIC_WRITE {
            return (rest | value & 0xffff | MDIC_READY | MDIC_ERROR, LinkEvent::None);
        }
        if operation == MDIC_READ {
            return (rest | u32::from(self.read(at)) | MDIC_READY, LinkEvent::None);
        }
        let event = self.write(at, value as u16);
        (rest | value & 0xffff | MDIC_READY, event)
    }
}

/// The NVM of a device with this address: 64 words with the sum 0xbaba.
pub(crate) fn nvm(mac: [u8; 6]) -> [u16; 64] {
    let mut words = [0u16; 64];
    for (word, bytes) in words.iter_mut().zip(mac.as_chunks::<2>().0) {
        *word = u16::from_le_bytes(*bytes);
    }
    words[0x0b] = 0x10d3;
    words[0x0d] = 0x10d3;
    words[0x0e] = 0x8086;
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

    fn read(phy: &mut Phy, at: u32) -> u32 {
        phy.mdic(MDIC_READ | ADDRESS << 21 | at << 16).0
    }

    #[test]
    fn the_nvm_sums_to_baba_and_begins_with_the_address() {
        let nvm = nvm([0x52, 0x54, 0, 1, 2, 3]);
        assert_eq!(nvm.iter().fold(0u16, |s, w| s.wrapping_add(*w)), 0xbaba);
        assert_eq!(nvm[..3], [0x5452, 0x0100, 0x0302]);
        assert_eq!(eerd(&nvm, 1 << 2 | 1), 0x0100_0000 | 1 << 2 | 2);
    }

    #[test]
    fn a_read_of_the_nvm_past_its_end_returns_ones() {
        assert_eq!(eerd(&nvm([0; 6]), 64 << 2 | 1) >> 16, 0xffff);
    }

    #[test]
    fn the_phy_reports_its_identifier_and_the_link() {
        let mut phy = Phy::new();
        assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
        assert_eq!(read(&mut phy, 1) & u32::from(BMSR_LINK), 0);
        phy.set_link(true);
        assert_eq!(read(&mut phy, 1) & 0xffff, 0x796d);
        assert!(read(&mut phy, 1) & MDIC_READY != 0);
    }

    #[test]
    fn a_phy_at_another_address_is_an_error() {
        let (value, _) = Phy::new().mdic(MDIC_READ | 2 << 21 | 2 << 16);
        assert!(value & MDIC_ERROR != 0 && value & MDIC_READY != 0);
    }

    #[test]
    fn restarting_autonegotiation_is_reported_and_clears_itself() {
        let mut phy = Phy::new();
        let (_, event) = phy.mdic(MDIC_WRITE | ADDRESS << 21 | 0x1340);
        assert_eq!(event, LinkEvent::Restart);
        assert_eq!(read(&mut phy, 0) & 0xffff, 0x1140);
    }

    #[test]
    fn identifiers_are_read_only() {
        let mut phy = Phy::new();
        phy.mdic(MDIC_WRITE | ADDRESS << 21 | 2 << 16 | 0xdead);
        assert_eq!(read(&mut phy, 2) & 0xffff, 0x0141);
    }

    #[test]
    fn a_phy_reset_restores_its_registers() {
        let mut phy = Phy::new();
        phy.mdic(MDIC_WRITE | ADDRESS << 21 | 4 << 16 | 0x0001);
        assert_eq!(phy.mdic(MDIC_WRITE | ADDRESS << 21 | 0x8000).1, LinkEvent::Restart);
        assert_eq!(read(&mut phy, 4) & 0xffff, 0x0de1);
    }
}
