//! The driver's configuration, decoded at every change.

use super::filter::Filter;
use super::register_file::RegisterFile;
use super::regs::*;
use super::rss::Rss;

/// The format of receive descriptors and buffers. Latched when RCTL.EN is set, because the
/// datasheet forbids changes afterwards (82574 datasheet §10.2.5.1, §10.2.5.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// The size of a buffer in bytes.
    pub(crate) buffer: usize,
    /// RFCTL.EXTEN: extended write-back format.
    pub(crate) extended: bool,
}

impl Format {
    pub(crate) fn new(registers: &RegisterFile) -> Format {
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

/// All other settings, effective at once.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) rx_on: bool,
    pub(crate) tx_on: bool,
    /// RCTL.LPE: frames longer than 1522 bytes, FCS included, are received.
    pub(crate) long: bool,
    pub(crate) strip_crc: bool,
    pub(crate) loopback: bool,
    pub(crate) pad: bool,
    pub(crate) vlan: Option<u16>,
    pub(crate) rxcsum: u32,
    pub(crate) rfctl: u32,
    /// RCTL.RDMTS: the share of free descriptors at which RXDMT0 is raised, as a shift.
    pub(crate) low_shift: u32,
    pub(crate) filter: Filter,
    pub(crate) rss: Rss,
}

impl Settings {
    pub(crate) fn new(registers: &RegisterFile) -> Settings {
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
    fn buffer_sizes_match_the_datasheet() {
        let registers = RegisterFile::new([0; 6]);
        let size = |rctl| {
            registers.set(RCTL, rctl);
            Format::new(&registers).buffer
        };
        assert_eq!([0u32, 1, 2, 3].map(|code| size(code << 16)), [2048, 1024, 512, 256]);
        assert_eq!([1u32, 2, 3].map(|code| size(code << 16 | RCTL_BSEX)), [16384, 8192, 4096]);
        assert_eq!(size(9 << 27), 9216);
    }

    #[test]
    fn exten_selects_the_descriptor_format() {
        let registers = RegisterFile::new([0; 6]);
        let legacy = Format::new(&registers);
        registers.set(RFCTL, RFCTL_EXTEN);
        assert!(!legacy.extended && Format::new(&registers).extended);
    }
}
