//! Indirect tables of a driver (virtio 1.2, 2.7.5.3 and 2.8.7): one for each chain that can be in
//! flight, in memory that the device reads.

use crate::area::{Area, RingWords};
use crate::error::QueueError;
use crate::layout::DESC;

/// Memory for one indirect table per descriptor of a queue.
#[derive(Debug)]
pub struct Tables<W = Area> {
    pub(crate) words: W,
    /// Address of the first table for the device.
    addr: u64,
    /// Descriptors of a table.
    entries: u16,
}

impl<W: RingWords> Tables<W> {
    /// Bytes of the tables of a queue of `size`, each of `entries` descriptors.
    pub fn bytes(size: u16, entries: u16) -> usize {
        usize::from(size) * usize::from(entries) * DESC
    }

    /// Tables of `entries` descriptors in `words`, which the device finds at `addr`.
    pub fn new(words: W, addr: u64, entries: u16) -> Tables<W> {
        Tables { words, addr, entries }
    }

    pub(crate) fn check(&self, size: u16) -> Result<(), QueueError> {
        let (needed, actual) = (Tables::<W>::bytes(size, self.entries), self.words.bytes(8));
        if self.entries == 0 || actual < needed {
            return Err(QueueError::Area { name: "indirect", width: 8, needed: needed.max(DESC), actual });
        }
        Ok(())
    }

    /// Whether a chain of `n` buffers goes into a table.
    #[inline]
    pub(crate) fn takes(&self, n: usize) -> bool {
        n > 1 && n <= usize::from(self.entries)
    }

    /// The first 64-bit word of table `id`, and its address for the device.
    #[inline]
    pub(crate) fn table(&self, id: u16) -> (usize, u64) {
        let at = usize::from(id) * usize::from(self.entries);
        (at * 2, self.addr.wrapping_add((at * DESC) as u64))
    }
}
