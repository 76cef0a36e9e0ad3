//! The checksum of data that lies in several pieces.

use super::{add, finish, sum, swap_for_odd};

/// Sums pieces one after the other as if they were one run of bytes; pieces of odd length move
/// the parity of what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accumulator {
    sum: u16,
    odd: bool,
}

impl Accumulator {
    /// The checksum of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Appends bytes.
    #[inline]
    pub fn add_bytes(&mut self, data: &[u8]) {
        self.join(sum(data));
        self.odd ^= !data.len().is_multiple_of(2);
    }

    /// Appends a 16-bit number in network byte order; also the sum of an even number of bytes, for
    /// example of a pseudo-header.
    #[inline]
    pub const fn add_u16(&mut self, value: u16) {
        self.join(value);
    }

    /// Appends a 32-bit number in network byte order.
    #[inline]
    pub const fn add_u32(&mut self, value: u32) {
        self.join(super::fold32(value));
    }

    const fn join(&mut self, sum: u16) {
        self.sum = add(self.sum, if self.odd { swap_for_odd(sum) } else { sum });
    }

    /// The folded sum so far, not complemented.
    #[inline]
    #[must_use]
    pub const fn sum(&self) -> u16 {
        self.sum
    }

    /// The checksum field, see [`finish`].
    #[inline]
    #[must_use]
    pub const fn finish(&self) -> u16 {
        finish(self.sum)
    }
}
