//! Memory of others in packets on their way.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many pieces of others' memory a port has put into packets, and how many of those have no user any more. Once the port and
/// whatever sent its packets have ended, the two are equal.
#[derive(Debug, Default)]
pub struct ExtBufGauge {
    taken: AtomicU64,
    home: AtomicU64,
}

impl ExtBufGauge {
    /// `n` more are on their way.
    #[inline]
    pub fn take(&self, n: u64) {
        self.taken.fetch_add(n, Relaxed);
    }

    /// The last users of `n` are done.
    #[inline]
    pub fn bring_home(&self, n: u64) {
        self.home.fetch_add(n, Relaxed);
    }

    /// Pieces that were taken until now.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Pieces on their way. Exact only once nothing moves.
    pub fn away(&self) -> u64 {
        self.taken().saturating_sub(self.home.load(Relaxed))
    }
}
