//! The unit's registers (VT-d §11.4) and capabilities.
//!
//! Some registers are 64 bits wide. Their halves are accessed lower first; the write of the upper
//! half takes effect. 32-bit registers must never be accessed in pairs: QEMU aborts.

use crate::mmio::{Mmio, Reg};

pub(super) const VER: Reg = Reg(0x00);
const CAP: Reg = Reg(0x08);
const ECAP: Reg = Reg(0x10);
pub(super) const GCMD: Reg = Reg(0x18);
pub(super) const GSTS: Reg = Reg(0x1c);
pub(super) const RTADDR: Reg = Reg(0x20);
pub(super) const FSTS: Reg = Reg(0x34);
pub(super) const FECTL: Reg = Reg(0x38);
pub(super) const IQT: Reg = Reg(0x88);
pub(super) const IQA: Reg = Reg(0x90);

/// GCMD and GSTS: translation enable, set root table pointer, queued invalidation enable.
pub(super) const TE: u32 = 1 << 31;
pub(super) const SRTP: u32 = 1 << 30;
pub(super) const QIE: u32 = 1 << 26;
/// The GSTS bits that a command must repeat; the others are one-shot (§11.4.4.1).
pub(super) const PERSISTENT: u32 = 0x96ff_ffff;

/// FECTL: fault events raise no interrupt.
pub(super) const FECTL_MASKED: u32 = 1 << 31;

/// FSTS: fault record overflow, pending fault; the errors of the invalidation queue.
pub(super) const PFO: u32 = 1 << 0;
pub(super) const PPF: u32 = 1 << 1;
pub(super) const QUEUE_ERRORS: u32 = 0x70;

/// The used length of a unit's registers: fault records may lie anywhere in the page.
pub(super) const LEN: usize = 0x1000;

/// A requester on PCI: bus, device and function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub u16);

impl SourceId {
    /// Of a bus, a device (0 to 31) and a function (0 to 7).
    pub const fn new(bus: u8, device: u8, function: u8) -> SourceId {
        SourceId((bus as u16) << 8 | ((device & 31) as u16) << 3 | (function & 7) as u16)
    }
}

impl std::fmt::Display for SourceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.0 >> 8, self.0 >> 3 & 31, self.0 & 7)
    }
}

/// The capabilities of a unit (§11.4.2, §11.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Address width: 39 bits with three table levels, 48 with four.
    pub address_bits: u8,
    /// The number of domain ids.
    pub domains: u32,
    /// Whether 2 MiB pages can be mapped.
    pub pages_2m: bool,
    /// Whether 1 GiB pages can be mapped.
    pub pages_1g: bool,
    /// Whether single pages can be invalidated; otherwise only whole domains.
    pub page_selective: bool,
    /// The maximum of pages in one page-selective invalidation, as a power of two.
    pub max_mask: u8,
    /// Whether absent entries are cached too, so that mapping needs an invalidation (emulated
    /// units).
    pub caching_mode: bool,
    /// The byte offset of the first fault record.
    pub(super) fault_records: u32,
    /// The number of fault records.
    pub(super) fault_record_count: u32,
}

impl Capabilities {
    /// Reads the capability registers.
    ///
    /// # Errors
    /// A capability that the driver needs and the unit lacks, or the reverse.
    pub(super) fn read<M: Mmio>(bar: &M) -> Result<Capabilities, String> {
        match VER.read(bar) {
            0 | u32::MAX => return Err("there is no remapping unit at this address".to_owned()),
            version if version >> 4 == 0 => return Err(format!("version register is {version:#x}")),
            _ => {}
        }
        Capabilities::decode(bar.r64(CAP.at()), bar.r64(ECAP.at()))
    }

    fn decode(cap: u64, ecap: u64) -> Result<Capabilities, String> {
        let bit = |word: u64, n: u32| word >> n & 1 == 1;
        if bit(cap, 4) {
            return Err("needs its write buffers flushed by command (CAP.RWBF), which is not supported".to_owned());
        }
        if !bit(ecap, 1) {
            return Err("has no queued invalidation (ECAP.QI), which is needed".to_owned());
        }
        let address_bits = match (bit(cap, 8 + 2), bit(cap, 8 + 1)) {
            (true, _) => 48,
            (false, true) => 39,
            _ => return Err(format!("supports tables of neither 3 nor 4 levels (CAP.SAGAW = {:#x})", cap >> 8 & 0x1f)),
        };
        let fault_records = (cap >> 24 & 0x3ff) as u32 * 16;
        let fault_record_count = (cap >> 40 & 0xff) as u32 + 1;
        if fault_records as usize + fault_record_count as usize * 16 > LEN {
            return Err("has its fault records outside of its registers".to_owned());
        }
        Ok(Capabilities {
            address_bits,
            domains: 1 << (4 + 2 * (cap as u32 & 7)).min(16),
            pages_2m: bit(cap, 34),
            pages_1g: bit(cap, 35),
            page_selective: bit(cap, 39),
            max_mask: (cap >> 48 & 0x3f) as u8,
            caching_mode: bit(cap, 7),
            fault_records,
            fault_record_count,
        })
    }

    /// The number of table levels.
    pub(super) fn levels(&self) -> u32 {
        (u32::from(self.address_bits) - 12) / 9
    }

    /// The address width field of a context entry (§9.3, AW).
    pub(super) fn width(&self) -> u64 {
        u64::from(self.levels()) - 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECAP_QEMU: u64 = 0xf0_0f4a;

    #[test]
    fn the_registers_of_qemus_unit_are_decoded() {
        let narrow = Capabilities::decode(0xd2_008c_2226_0206, ECAP_QEMU).unwrap();
        assert_eq!((narrow.address_bits, narrow.levels(), narrow.width()), (39, 3, 1));
        assert_eq!((narrow.domains, narrow.fault_records, narrow.fault_record_count), (1 << 16, 0x220, 1));
        assert!(narrow.pages_2m && narrow.pages_1g && narrow.page_selective && !narrow.caching_mode);
        assert_eq!(narrow.max_mask, 18);
        let wide = Capabilities::decode(0xd2_008c_222f_0686, ECAP_QEMU).unwrap();
        assert_eq!((wide.address_bits, wide.levels(), wide.width(), wide.caching_mode), (48, 4, 2, true));
    }

    #[test]
    fn missing_capabilities_are_named() {
        let refused = |cap, ecap| Capabilities::decode(cap, ecap).unwrap_err();
        assert!(refused(0xd2_008c_2226_0206, 0).contains("QI"));
        assert!(refused(0xd2_008c_2226_0006, ECAP_QEMU).contains("SAGAW"));
        assert!(refused(0xd2_008c_2226_0216, ECAP_QEMU).contains("RWBF"));
        assert!(refused(0xd2_ff8c_ff26_0206, ECAP_QEMU).contains("fault records"));
    }
}
