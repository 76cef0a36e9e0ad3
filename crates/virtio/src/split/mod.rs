//! The split queue (virtio 1.2, 2.7).
//!
//! ```text
//!   Descriptor Area         table of N descriptors; chains are linked by `next`
//!   Driver Area             available ring: flags, idx, ring[N] of heads, used_event
//!   Device Area             used ring:      flags, idx, ring[N] of (id, len), avail_event
//!
//!   driver: descriptors, ring[idx % N] = head │ idx (Release) │ fence │ kick wanted?
//!   device: idx (Acquire), ring[…], descriptors
//!           entries (id, len)                 │ idx (Release) │ fence │ call wanted?
//! ```
//!
//! Indices run freely modulo 2^16. Each side keeps its own in memory of its own and never reads
//! them back.

mod device;
mod driver;

pub use device::Device;
pub use driver::Driver;

use crate::area::{Areas, RingWords};
use crate::error::QueueError;
use crate::layout::{Features, Format};

/// Word 0 of driver and device area: flags. Word 1: the index. Both 16 bits.
const FLAGS: usize = 0;
const INDEX: usize = 1;

/// The 16-bit word of the available ring's entry.
#[inline]
fn avail_entry(slot: u16) -> usize {
    2 + usize::from(slot)
}

/// The 16-bit word behind the available ring: `used_event`.
#[inline]
fn used_event(size: u16) -> usize {
    2 + usize::from(size)
}

/// The 32-bit words of the used ring's entry: id, and length.
#[inline]
fn used_entry(slot: u16) -> [usize; 2] {
    let at = 1 + 2 * usize::from(slot);
    [at, at + 1]
}

/// The 16-bit word behind the used ring: `avail_event`.
#[inline]
fn avail_event(size: u16) -> usize {
    2 + 4 * usize::from(size)
}

/// The 64-bit words of a descriptor: address, and the rest.
#[inline]
fn desc(index: u16) -> [usize; 2] {
    let at = 2 * usize::from(index);
    [at, at + 1]
}

/// Whether the areas have all words of a queue of `size`.
fn check(areas: &Areas<impl RingWords>, size: u16, features: Features) -> Result<(), QueueError> {
    Format::Split.check_size(size)?;
    let event = if features.event_idx { 2 } else { 0 };
    let n = usize::from(size);
    let area = |name, area: &dyn Fn(usize) -> usize, width, needed| {
        let actual = area(width);
        if actual < needed { Err(QueueError::Area { name, width, needed, actual }) } else { Ok(()) }
    };
    area("descriptor", &|width| areas.desc.bytes(width), 8, 16 * n)?;
    area("driver", &|width| areas.driver.bytes(width), 2, 4 + 2 * n + event)?;
    area("device", &|width| areas.device.bytes(width), 4, 4 + 8 * n)?;
    area("device", &|width| areas.device.bytes(width), 2, 4 + 8 * n + event)
}
