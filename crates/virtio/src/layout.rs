//! The layout of a queue's words, in both formats.
//!
//! ```text
//!   split (2.7)                                         packed (2.8)
//!   desc    N × { addr u64, len u32,                      N × { addr u64, len u32,
//!                 flags u16, next u16 }                         id u16, flags u16 }
//!   driver  flags u16, idx u16, ring u16 × N, used_event  off_wrap u16, flags u16
//!   device  flags u16, idx u16, { id u32, len u32 } × N,  off_wrap u16, flags u16
//!           avail_event u16
//! ```
//!
//! A descriptor is two words of 64 bits. The second one is loaded and stored at once: an aligned
//! 64-bit access is single on the machines that this crate is for. So the flags of a packed
//! descriptor never come without the length and the id that were written before them.

use crate::error::QueueError;

/// Marks a descriptor as continued by the next one (`VIRTQ_DESC_F_NEXT`).
pub(crate) const NEXT: u16 = 1;
/// Marks a buffer as written by the device (`VIRTQ_DESC_F_WRITE`).
pub(crate) const WRITE: u16 = 2;
/// Marks a descriptor as the address of a table of descriptors (`VIRTQ_DESC_F_INDIRECT`).
pub(crate) const INDIRECT: u16 = 4;
/// Packed: equals the driver's wrap counter if the descriptor is available.
pub(crate) const AVAIL: u16 = 1 << 7;
/// Packed: equals the device's wrap counter if the descriptor is used.
pub(crate) const USED: u16 = 1 << 15;

/// Most descriptors of a queue (virtio 1.2, 2.7 and 2.8.10.1).
pub const MAX_SIZE: u16 = 1 << 15;
/// Bytes of a descriptor.
pub(crate) const DESC: usize = 16;

/// A descriptor, read once or about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Desc {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    /// Split: the next descriptor. Packed: the id of the buffer.
    pub(crate) link: u16,
}

impl Desc {
    #[inline]
    pub(crate) fn from_split([addr, rest]: [u64; 2]) -> Desc {
        Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, link: (rest >> 48) as u16 }
    }

    #[inline]
    pub(crate) fn from_packed([addr, rest]: [u64; 2]) -> Desc {
        Desc { addr, len: rest as u32, flags: (rest >> 48) as u16, link: (rest >> 32) as u16 }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The second word of a split descriptor.
#[inline]
pub(crate) fn split_word(len: u32, flags: u16, next: u16) -> u64 {
    u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48
}

/// The second word of a packed descriptor.
#[inline]
pub(crate) fn packed_word(len: u32, id: u16, flags: u16) -> u64 {
    u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48
}

/// The format of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A descriptor table and two rings of indices (virtio 1.2, 2.7).
    Split,
    /// One ring of descriptors (virtio 1.2, 2.8), `VIRTIO_F_RING_PACKED`.
    Packed,
}

impl Format {
    /// Checks the number of descriptors of a queue.
    ///
    /// # Errors
    /// [`QueueError::Size`] unless it is 1 to [`MAX_SIZE`], and a power of two for a split queue.
    pub fn check_size(self, size: u16) -> Result<(), QueueError> {
        let fits = (1..=MAX_SIZE).contains(&size) && (self == Format::Packed || size.is_power_of_two());
        if fits { Ok(()) } else { Err(QueueError::Size { format: self, size }) }
    }

    /// Lengths of descriptor, driver and device area, in bytes. Those of a split queue include the
    /// event indices, which are accessed only with `VIRTIO_F_EVENT_IDX`.
    pub fn lengths(self, size: u16) -> [usize; 3] {
        let size = usize::from(size);
        match self {
            Format::Split => [DESC * size, 6 + 2 * size, 6 + 8 * size],
            Format::Packed => [DESC * size, 4, 4],
        }
    }
}

/// The areas of a queue one behind the other, for a driver that allocates them: what different
/// sides write lies in different cache lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// Offset of the descriptor area.
    pub desc: usize,
    /// Offset of the driver area.
    pub driver: usize,
    /// Offset of the device area.
    pub device: usize,
    /// Bytes of the descriptor area.
    pub desc_len: usize,
    /// Bytes of the driver area.
    pub driver_len: usize,
    /// Bytes of the device area.
    pub device_len: usize,
    /// Bytes in all, whole cache lines.
    pub bytes: usize,
}

impl Layout {
    /// The layout of a queue of `size` descriptors.
    ///
    /// # Errors
    /// [`QueueError::Size`] as for [`Format::check_size`].
    pub fn new(format: Format, size: u16) -> Result<Layout, QueueError> {
        format.check_size(size)?;
        let [desc_len, driver_len, device_len] = format.lengths(size);
        let line = |end: usize| end.next_multiple_of(128);
        let driver = line(desc_len);
        // A used element has eight bytes, and the first one comes behind a head of four. The head
        // ends a line of its own, so that no element is on two lines, or pages: of one on two pages
        // QEMU before 9.0 writes the length to another address, if an IOMMU translates.
        let head = if format == Format::Split { 128 - 4 } else { 0 };
        let device = line(driver + driver_len) + head;
        let bytes = line(device + device_len);
        Ok(Layout { desc: 0, driver, device, desc_len, driver_len, device_len, bytes })
    }
}

/// What both sides agreed on (virtio 1.2, 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Features {
    /// Descriptors may lead to tables of descriptors (`VIRTIO_F_INDIRECT_DESC`, bit 28).
    pub indirect: bool,
    /// Notifications are requested by position instead of by a flag (`VIRTIO_F_EVENT_IDX`, bit 29).
    pub event_idx: bool,
    /// The device uses chains in the order in which they were made available
    /// (`VIRTIO_F_IN_ORDER`, bit 35).
    pub in_order: bool,
}

impl Features {
    /// The features of the ring among the bits that were negotiated.
    pub fn from_bits(bits: u64) -> Features {
        let has = |bit: u32| bits >> bit & 1 != 0;
        Features { indirect: has(28), event_idx: has(29), in_order: has(35) }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn no_used_element_lies_on_two_lines_and_no_line_is_written_by_both_sides() {
        for size in (0..=15).map(|bits| 1 << bits) {
            let Layout { driver, driver_len, device, device_len, bytes, .. } =
                Layout::new(Format::Split, size).unwrap();
            assert_eq!((device % 4, (device + 4) % 64), (0, 0), "{size}");
            assert!((driver + driver_len).div_ceil(128) <= device / 128 && device + device_len <= bytes, "{size}");
        }
    }
}
