//! Fault records (VT-d §7.2, §11.4.7).

use super::registers::{Capabilities, FSTS, PFO, PPF, SourceId};
use crate::dma::Access;
use crate::mmio::Mmio;

/// Why an access was blocked: the fault reason of VT-d table 26.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultReason(pub u8);

impl FaultReason {
    /// A write to a page that is not mapped for writing.
    pub const WRITE: FaultReason = FaultReason(5);
    /// A read from a page that is not mapped for reading.
    pub const READ: FaultReason = FaultReason(6);

    /// A description.
    pub fn name(self) -> &'static str {
        match self.0 {
            0x1 => "no root entry for the bus",
            0x2 => "no context entry for the device",
            0x3 => "context entry asks for what the unit does not support",
            0x4 => "address beyond the width of the tables",
            0x5 => "page is not mapped for writing",
            0x6 => "page is not mapped for reading",
            0x7 => "a table could not be read",
            0x8 => "the root table could not be read",
            0x9 => "the context table could not be read",
            0xa => "reserved bits set in the root entry",
            0xb => "reserved bits set in the context entry",
            0xc => "reserved bits set in a table entry",
            0xd => "kind of request that the context entry does not allow",
            0xe => "access to the interrupt addresses",
            0x20..=0x26 => "interrupt could not be remapped",
            _ => "unknown reason",
        }
    }
}

impl std::fmt::Display for FaultReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:#x})", self.name(), self.0)
    }
}

/// A blocked access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The requesting device.
    pub source: SourceId,
    /// The IOVA of the page.
    pub page: u64,
    /// [`Access::Read`] or [`Access::Write`].
    pub access: Access,
    /// The fault reason.
    pub reason: FaultReason,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tried = if self.access == Access::Read { "read" } else { "write" };
        write!(f, "device {} tried to {tried} at {:#x}: {}", self.source, self.page, self.reason)
    }
}

/// The blocked accesses since the last call. A unit keeps a few records and may drop further faults
/// of a device that has a record: one record means "at least one".
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Faults {
    /// The records.
    pub records: Vec<Fault>,
    /// Whether some were lost because all records were full.
    pub overflow: bool,
}

/// F: the record is valid. Writing it as one frees the record.
const F: u64 = 1 << 63;

/// Reads and clears the unit's records.
pub(super) fn take<M: Mmio>(bar: &M, capabilities: &Capabilities) -> Faults {
    let mut faults = Faults::default();
    // Each turn frees one record, and new faults may arrive meanwhile: at most two turns per
    // record.
    for _ in 0..2 * capabilities.fault_record_count {
        let status = FSTS.read(bar);
        if status == u32::MAX {
            break;
        }
        if status & PFO != 0 {
            faults.overflow = true;
            FSTS.write(bar, PFO);
        }
        if status & PPF == 0 {
            break;
        }
        let index = (status >> 8 & 0xff).min(capabilities.fault_record_count - 1);
        let record = (capabilities.fault_records + index * 16) as usize;
        let (low, high) = (bar.r64(record), bar.r64(record + 8));
        if high & F == 0 {
            break;
        }
        faults.records.push(Fault {
            source: SourceId(high as u16),
            page: low & !0xfff,
            access: if high >> 62 & 1 == 1 { Access::Read } else { Access::Write },
            reason: FaultReason((high >> 32) as u8),
        });
        bar.w64(record + 8, F);
    }
    faults
}
