//! The packed queue (virtio 1.2, 2.8).
//!
//! ```text
//!   Descriptor Area    ring of N descriptors, written by both sides in turn
//!   Driver Area        where the driver requests a call   (event suppression)
//!   Device Area        where the device requests a kick
//!
//!            used by the device        available
//!   ─────┬──────────────────────┬───────────────────┬──────────────
//!        │ A=1 U=1              │ A=1 U=0           │ A=0 U=0         wrap counter 1: U ≠ wrap or
//!   ─────┴──────────────────────┴───────────────────┴──────────────   A ≠ wrap is not this round's
//!        ▲ next_used (driver)   ▲ next_used,        ▲ next_avail (driver)
//!                                 next_avail (device)
//!
//!   driver: the burst's descriptors, but the first flags │ those (Release) │ fence │ kick wanted?
//!   device: used descriptors, but the first flags        │ those (Release) │ fence │ call wanted?
//! ```
//!
//! A side looks at one descriptor, the next one, and at no other before that one is its own. So a
//! burst, or a part of one, becomes visible by its first descriptor.

mod device;
mod driver;

pub use device::Device;
pub use driver::Driver;

use crate::area::{Areas, RingWords};
use crate::error::QueueError;
use crate::layout::{AVAIL, Format, USED};

/// The 32-bit word of an event area.
const EVENT: usize = 0;

/// The 64-bit words of a descriptor: address, and the rest.
#[inline]
fn desc(index: u16) -> [usize; 2] {
    let at = 2 * usize::from(index);
    [at, at + 1]
}

/// A place in the ring, and the wrap counter there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    index: u16,
    wrap: bool,
}

impl Position {
    const START: Position = Position { index: 0, wrap: true };

    /// The position `n` descriptors further, `n` being at most the size.
    #[inline]
    fn ahead(self, n: u16, size: u16) -> Position {
        let index = u32::from(self.index) + u32::from(n);
        if index >= size.into() {
            Position { index: (index - u32::from(size)) as u16, wrap: !self.wrap }
        } else {
            Position { index: index as u16, wrap: self.wrap }
        }
    }

    /// The position `n` descriptors before, `n` being at most the size.
    fn back(self, n: u16, size: u16) -> Position {
        let Position { index, wrap } = self.ahead(size - n.min(size), size);
        Position { index, wrap: !wrap }
    }

    /// Index and wrap counter as event areas and vhost-user write them: bits 14:0 and 15.
    fn encode(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    fn decode(bits: u16) -> Position {
        Position { index: bits & 0x7fff, wrap: bits >> 15 != 0 }
    }

    /// The flags of a descriptor that is available here.
    #[inline]
    fn available(self) -> u16 {
        if self.wrap { AVAIL } else { USED }
    }

    /// The flags of a descriptor that is used here.
    #[inline]
    fn used(self) -> u16 {
        if self.wrap { AVAIL | USED } else { 0 }
    }

    /// Whether a descriptor with `flags` is available here, or used.
    #[inline]
    fn is_available(self, flags: u16) -> bool {
        flags & (AVAIL | USED) == self.available()
    }

    #[inline]
    fn is_used(self, flags: u16) -> bool {
        flags & (AVAIL | USED) == self.used()
    }
}

/// The flags in the second word of a descriptor.
#[inline]
fn flags(word: u64) -> u16 {
    (word >> 48) as u16
}

/// Whether the areas have all words of a queue of `size`.
fn check(areas: &Areas<impl RingWords>, size: u16) -> Result<(), QueueError> {
    Format::Packed.check_size(size)?;
    let area = |name, actual, width, needed| {
        if actual < needed { Err(QueueError::Area { name, width, needed, actual }) } else { Ok(()) }
    };
    area("descriptor", areas.desc.bytes(8), 8, 16 * usize::from(size))?;
    area("driver", areas.driver.bytes(4), 4, 4)?;
    area("device", areas.device.bytes(4), 4, 4)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_position_passes_the_end_with_the_other_wrap_counter() {
        for size in [1u16, 3, 32_768] {
            let mut at = Position::START;
            for line in 0..4 * u32::from(size) {
                let wrap = (line / u32::from(size)).is_multiple_of(2);
                assert_eq!(at, Position { index: (line % u32::from(size)) as u16, wrap });
                assert_eq!(at.ahead(size, size), Position { index: at.index, wrap: !at.wrap });
                at = at.ahead(1, size);
            }
        }
    }
}
