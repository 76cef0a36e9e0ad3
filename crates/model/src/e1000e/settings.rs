//! What the driver configured, decoded once per change.

use super::filter::Filter;
use super::registers::Registers;
use super::regs::*;
use super::rss::Rss;

/// How receive descriptors and buffers look: latched when RCTL.EN is set, as the datasheet forbids changing it afterwards (82574
/// datasheet §10.2.5.1, §10.2.5.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bytes of a buffer.
    pub(crate) buffer: usize,
    /// RFCTL.EXTEN: write-backs in the extended format.
    pub(crate) extended: bool,
}

impl Format {
    pub(crate) fn new(registers: &Registers) -> Format {
        let rctl = registers.get(RCTL);
        let flexible = (rctl & RCTL_FLXBUF) >> 27;
        let code = (rctl & RCTL_BSIZE) >> 16;
        let buffer = match (flexible, rctl & RCTL_BSEX != 0) {
            (0, false) => 2048 >> code,
            // Code 0 with BSEX is reserved.
            (0, true) if code == 0 => 2048,
            (0, true) => 32768 >> code,
            (kib, _) => kib as usize * 1024,
        };
        Format { buffer, extended: registers.get(RFCTL) & RFCTL_EXTEN != 0 }
    }
}

/// Everything else, in force as soon as it is written.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) rx_on: bool,
    pub(crate) tx_on: bool,
    /// Frames longer than 1522 bytes, FCS included, are received.
    pub(crate) long: bool,
    pub(crate) strip_crc: bool,
    pub(crate) loopback: bool,
    pub(crate) pad: bool,
    pub(crate) vlan: Option<u16>,
    pub(crate) rxcsum: u32,
    pub(crate) rfctl: u32,
    /// RCTL.RDMTS: the share of the ring below which RXDMT0 is raised, as a shift.
    pub(crate) low_shift: u32,
    pub(crate) filter: Filter,
    pub(crate) rss: Rss,
}

impl Settings {
    pub(crate) fn new(registers: &Registers) -> Settings {
        let (rctl, tctl, ctrl) = (registers.get(RCTL), registers.get(TCTL), registers.get(CTRL));
        Settings {
            rx_on: rctl & RCTL_EN != 0,
            tx_on: tctl & TCTL_EN != 0,
            long: rctl & RCTL_LPE != 0,
            strip_crc: rctl & RCTL_SECRC != 0,
            loopback: rctl & RCTL_LBM == 0x40,
            pad: tctl & TCTL_PSP != 0,
            vlan: (ctrl & CTRL_VME != 0).then(|| registers.get(VET) as u16),
            rxcsum: registers.get(RXCSUM),
            rfctl: registers.get(RFCTL),
            low_shift: 1 + (rctl & RCTL_RDMTS) / 0x100,
            filter: Filter::new(registers),
            rss: Rss::new(registers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_sizes_are_those_of_the_datasheet() {
        let registers = Registers::new([0; 6]);
        let size = |rctl| {
            registers.set(RCTL, rctl);
            Format::new(&registers).buffer
        };
        assert_eq!([0u32, 1, 2, 3].map(|code| size(code << 16)), [2048, 1024, 512, 256]);
        assert_eq!([1u32, 2, 3].map(|code| size(code << 16 | RCTL_BSEX)), [16384, 8192, 4096]);
        assert_eq!(size(9 << 27), 9216);
    }

    #[test]
    fn the_descriptor_format_is_that_of_exten() {
        let registers = Registers::new([0; 6]);
        let legacy = Format::new(&registers);
        registers.set(RFCTL, RFCTL_EXTEN);
        assert!(!legacy.extended && Format::new(&registers).extended);
    }
}
