//! The table as a burst looks at it: lookups and what is learned, without a lock.

use super::bucket::{Bucket, Key, PORT_SHIFT, PRESENT, Probe, find_in, tag_of};
use super::{Fdb, Learned};
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::prefetch_line;

/// 2^64 by the golden ratio.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A [table](Fdb) with what every look at it needs, for the length of a burst.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    pub(super) fdb: &'a Fdb,
    pub(super) buckets: &'a [Bucket],
    pub(super) multiplier: u64,
    pub(super) shift: u32,
}

impl Table<'_> {
    /// A key with its hash: the bucket comes from the upper bits, the tag from others.
    #[inline]
    pub fn probe(&self, key: Key) -> Probe {
        // Addresses mostly count up. The products of such keys with one number are evenly spaced,
        // and some numbers put them into few buckets: the second product scatters them.
        let product = key.0.wrapping_mul(self.multiplier);
        Probe { key, hash: (product ^ product >> 32).wrapping_mul(SCATTER) }
    }

    /// The bucket of a hash. There is one, by the width of the shift.
    #[inline]
    fn bucket(&self, hash: u64) -> Option<&Bucket> {
        self.buckets.get((hash >> self.shift) as usize)
    }

    /// Prefetches the entry of a key.
    #[inline]
    pub fn prefetch(&self, probe: &Probe) {
        if let Some(bucket) = self.bucket(probe.hash) {
            prefetch_line(bucket);
        }
    }

    /// The number of the port that an address is behind.
    #[inline]
    pub fn lookup(&self, probe: &Probe) -> Option<usize> {
        match self.bucket(probe.hash).and_then(|bucket| find_in(bucket, probe)) {
            Some(found) => Some(found.port()),
            None => self.fdb.find(probe).map(|found| found.port()),
        }
    }

    /// A packet from an address came by `port` at `tick`.
    #[inline]
    pub fn learn(&self, probe: &Probe, port: usize, tick: u32) -> Learned {
        let known = tag_of(probe.hash) | PRESENT | (port as u64) << PORT_SHIFT | u64::from(tick);
        if let Some(bucket) = self.bucket(probe.hash) {
            for (at, slot) in bucket.keys.iter().zip(&bucket.values) {
                // A value that says all this needs no second look at the key.
                if at.load(Relaxed) == probe.key.0 && slot.load(Relaxed) == known {
                    return Learned::Known;
                }
            }
        }
        self.fdb.learn_news(probe, port, tick)
    }
}
