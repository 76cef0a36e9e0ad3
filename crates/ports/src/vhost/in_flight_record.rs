//! The records of chains in flight: memory that the front end keeps for the back end after this
//! one.
//!
//! ```text
//!   GET_INFLIGHT_FD   a new file, all zero ──► front end, and mapped
//!   SET_INFLIGHT_FD   the file of before   ◄── front end, mapped
//!
//!   file   [offset … ring 0 │ ring 1 │ … ]     each of the size that its format has
//! ```
//!
//! A ring that starts with a record takes first what was in flight: the chains whose pages were out
//! in packets, and those that a killed process took and did not return. A frame that had left
//! before leaves again.

use std::os::fd::{BorrowedFd, OwnedFd};
use towpath_packet::{Backing, Region, RegionError, UntrustedMem};
use towpath_virtio::vhost_user::InFlightArea;
use towpath_virtio::{Area, Format, InFlightRecord};

/// Most bytes of a file, the offset among them.
const MAX_BYTES: u64 = 1 << 26;
/// The offset is a multiple of it: words are aligned.
const ALIGNMENT: u64 = 8;

/// Why records are refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("records of {queues} rings: the device has {rings}")]
    Queues { queues: u16, rings: usize },
    #[error("records of rings of {size} descriptors: 1 to {most} are accepted")]
    Size { size: u16, most: u16 },
    #[error("records in {size} bytes at offset {offset}: {needed} are needed, at a multiple of 8, below 64 MiB")]
    Place { size: u64, offset: u64, needed: usize },
    #[error("they can't change while a ring runs")]
    Running,
    #[error("memory: {0}")]
    Map(#[from] RegionError),
}

/// What a device has, and the format of its rings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) rings: usize,
    /// Most descriptors of a ring.
    pub(super) most: u16,
    pub(super) format: Format,
}

impl Bounds {
    /// Bytes of the records that are asked for.
    fn check(self, area: &InFlightArea) -> Result<usize, RecordError> {
        let InFlightArea { queues, queue_size: size, .. } = *area;
        let Bounds { rings, most, format } = self;
        if queues == 0 || usize::from(queues) > rings {
            return Err(RecordError::Queues { queues, rings });
        }
        if size == 0 || size > most {
            return Err(RecordError::Size { size, most });
        }
        Ok(usize::from(queues) * InFlightRecord::<Area>::bytes(format, size))
    }
}

/// The records of a device's rings.
#[derive(Debug)]
pub(super) struct Records {
    area: InFlightArea,
    memory: UntrustedMem,
}

impl Records {
    /// New ones, of as many rings and descriptors as are asked for.
    pub(super) fn create(area: InFlightArea, bounds: Bounds) -> Result<Records, RecordError> {
        let size = bounds.check(&area)?;
        let memory = UntrustedMem::new(Region::new(size, Backing::Memfd)?);
        Ok(Records { area: InFlightArea { size: size as u64, offset: 0, ..area }, memory })
    }

    /// Those in the file of a front end.
    pub(super) fn from_file(area: InFlightArea, file: OwnedFd, bounds: Bounds) -> Result<Records, RecordError> {
        let (needed, InFlightArea { size, offset, .. }) = (bounds.check(&area)?, area);
        let end = size.checked_add(offset).filter(|end| *end <= MAX_BYTES && offset.is_multiple_of(ALIGNMENT));
        let end = end.filter(|_| size >= needed as u64).ok_or(RecordError::Place { size, offset, needed })?;
        Ok(Records { area, memory: UntrustedMem::from_file(file, end as usize)? })
    }

    /// Where they lie, for the front end.
    pub(super) fn area(&self) -> InFlightArea {
        self.area
    }

    /// Their file, if it was made here.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.fd()
    }

    /// Whether the file was truncated.
    pub(super) fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// The record of a ring; `None` if there is none of it.
    pub(super) fn of(&self, ring: usize, format: Format) -> Option<InFlightRecord> {
        let bytes = InFlightRecord::<Area>::bytes(format, self.area.queue_size);
        // The area ends in the memory, and so does each record in the area.
        let at = ring.checked_mul(bytes).filter(|_| ring < self.area.queues.into())?;
        let within = at + bytes <= self.area.size as usize;
        let words = Area::new(&self.memory, self.area.offset as usize + at, bytes).filter(|_| within)?;
        Some(InFlightRecord::new(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_testing::sealed_memory;

    const BOUNDS: Bounds = Bounds { rings: 4, most: 256, format: Format::Split };

    fn area(size: u64, offset: u64, queues: u16, queue_size: u16) -> InFlightArea {
        InFlightArea { size, offset, queues, queue_size }
    }

    #[test]
    fn new_records_have_room_for_each_ring_and_for_no_more_of_them() {
        for (format, bytes) in [(Format::Split, 64 + 4096), (Format::Packed, 64 + 8192)] {
            let records = Records::create(area(9, 9, 3, 256), Bounds { format, ..BOUNDS }).unwrap();
            assert_eq!(records.area(), area(3 * bytes, 0, 3, 256));
            assert!(records.file().is_some() && !records.is_lost());
            assert!(records.of(2, format).is_some() && records.of(3, format).is_none());
            assert!(records.of(usize::MAX, format).is_none());
        }
        let split = Records::create(area(0, 0, 3, 256), BOUNDS).unwrap();
        assert!(split.of(2, Format::Packed).is_none(), "it was made for another format");
    }

    #[test]
    fn records_beyond_the_device_or_their_file_are_refused() {
        for (queues, size) in [(0, 64), (5, 64), (u16::MAX, 64), (1, 0), (1, 257), (1, u16::MAX)] {
            assert!(Records::create(area(0, 0, queues, size), BOUNDS).is_err(), "{queues} {size}");
        }
        let from = |area| Records::from_file(area, sealed_memory(1 << 16), BOUNDS);
        let bytes = 64 + 4096;
        assert!(from(area(bytes, 0, 1, 256)).is_ok() && from(area(4 * bytes, 64, 4, 256)).is_ok());
        for (size, offset) in [
            (bytes - 1, 0),
            (bytes, 4),
            (bytes, 1 << 16),
            (bytes, u64::MAX - 7),
            (u64::MAX, 8),
            (1 << 27, 0),
            (bytes, (1 << 26) - 8),
        ] {
            assert!(from(area(size, offset, 1, 256)).is_err(), "{size:#x} {offset:#x}");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Records::from_file(area(bytes, 0, 1, 256), file.into(), BOUNDS).is_err());
    }
}
