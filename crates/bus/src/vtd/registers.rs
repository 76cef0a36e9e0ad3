//! The unit's registers (VT-d §11.4) and what they say about it.
//!
//! Some are 64 bits wide: halves are accessed lower first, writing the upper one is what makes the unit act. Those of 32 bits must
//! never be accessed in pairs: QEMU ends if they are.

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
/// GSTS bits that a command must repeat: the others are one-shots (§11.4.4.1).
pub(super) const LASTING: u32 = 0x96ff_ffff;

/// FECTL: fault events raise no interrupt.
pub(super) const FECTL_MASKED: u32 = 1 << 31;

/// FSTS: fault record overflow, pending fault; what can go wrong with the invalidation queue.
pub(super) const PFO: u32 = 1 << 0;
pub(super) const PPF: u32 = 1 << 1;
pub(super) const QUEUE_ERRORS: u32 = 0x70;

/// The length of a unit's registers that is used: fault records may lie anywhere in the page.
pub(super) const LEN: usize = 0x1000;

/// What a unit can do (§11.4.2, §11.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Bits of an address that it translates: 39 with tables of three levels, 48 with four.
    pub address_bits: u8,
    /// Domain ids that there are.
    pub domains: u32,
    /// Whether 2 MiB pages can be mapped.
    pub pages_2m: bool,
    /// Whether 1 GiB pages can be mapped.
    pub pages_1g: bool,
    /// Whether single pages can be invalidated; else whole domains are.
    pub page_selective: bool,
    /// Most pages of one page-selective invalidation, as a power of two.
    pub max_mask: u8,
    /// Whether absent entries are cached too, so that mapping needs an invalidation (emulated units).
    pub caching_mode: bool,
    /// Where the fault records begin, in bytes.
    pub(super) fault_records: u32,
    /// How many of them there are.
    pub(super) fault_record_count: u32,
}

impl Capabilities {
    /// Reads them.
    ///
    /// # Errors
    /// What the unit lacks, or demands, that this driver does not serve.
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

    /// Levels of the tables.
    pub(super) fn levels(&self) -> u32 {
        (u32::from(self.address_bits) - 12) / 9
    }

    /// What a context entry says of the tables' depth (§9.3, AW).
    pub(super) fn width(&self) -> u64 {
        u64::from(self.levels()) - 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECAP_QEMU: u64 = 0xf0_0f4a;

    #[test]
    fn the_values_of_qemus_unit_are_understood() {
        let narrow = Capabilities::decode(0xd2_008c_2226_0206, ECAP_QEMU).unwrap();
        assert_eq!((narrow.address_bits, narrow.levels(), narrow.width()), (39, 3, 1));
        assert_eq!((narrow.domains, narrow.fault_records, narrow.fault_record_count), (1 << 16, 0x220, 1));
        assert!(narrow.pages_2m && narrow.pages_1g && narrow.page_selective && !narrow.caching_mode);
        assert_eq!(narrow.max_mask, 18);
        let wide = Capabilities::decode(0xd2_008c_222f_0686, ECAP_QEMU).unwrap();
        assert_eq!((wide.address_bits, wide.levels(), wide.width(), wide.caching_mode), (48, 4, 2, true));
    }

    #[test]
    fn what_a_unit_lacks_is_named() {
        let refused = |cap, ecap| Capabilities::decode(cap, ecap).unwrap_err();
        assert!(refused(0xd2_008c_2226_0206, 0).contains("QI"));
        assert!(refused(0xd2_008c_2226_0006, ECAP_QEMU).contains("SAGAW"));
        assert!(refused(0xd2_008c_2226_0216, ECAP_QEMU).contains("RWBF"));
        assert!(refused(0xd2_ff8c_ff26_0206, ECAP_QEMU).contains("fault records"));
    }
}
