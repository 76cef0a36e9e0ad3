//! The bytes of a packet that lies in pieces, read one after another.
//!
//! ```text
//! pieces:  [ ......... ][ ..|....... ][ ......... ]
//!            read           └ next, copy, copy_and_sum
//! ```

use towpath_wire::checksum::{self, add, swap_for_odd};

/// Copies the leading bytes of a packet to `to`: returns how many, and how long the packet is.
pub(crate) fn gather<'a>(pieces: impl Iterator<Item = &'a [u8]>, to: &mut [u8]) -> (usize, usize) {
    let (mut gathered, mut len) = (0, 0);
    for piece in pieces {
        len += piece.len();
        if let Some(space) = to.get_mut(gathered..) {
            let n = space.len().min(piece.len());
            for (to, from) in space.iter_mut().zip(piece) {
                *to = *from;
            }
            gathered += n;
        }
    }
    (gathered, len)
}

/// What of the pieces has not been read.
pub(crate) struct Payload<'a, I> {
    pieces: I,
    piece: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Payload<'a, I> {
    #[inline]
    pub(crate) fn new(pieces: I) -> Self {
        Self { pieces, piece: &[] }
    }

    /// The next bytes, at most `max`; empty at the end.
    #[inline]
    pub(crate) fn next(&mut self, max: usize) -> &'a [u8] {
        while self.piece.is_empty() {
            match self.pieces.next() {
                Some(piece) => self.piece = piece,
                None => break,
            }
        }
        let (now, later) = self.piece.split_at(max.min(self.piece.len()));
        self.piece = later;
        now
    }

    /// Passes over the next `n` bytes.
    pub(crate) fn skip(&mut self, mut n: usize) {
        while n > 0 {
            let skipped = self.next(n).len();
            if skipped == 0 {
                break;
            }
            n -= skipped;
        }
    }

    /// Fills `out` with the next bytes.
    pub(crate) fn copy(&mut self, out: &mut [u8]) {
        self.each(out, |out, piece| {
            out.copy_from_slice(piece);
        });
    }

    /// Fills `out` with the next bytes, and returns their sum.
    pub(crate) fn copy_and_sum(&mut self, out: &mut [u8]) -> u16 {
        let (mut total, mut odd) = (0, false);
        self.each(out, |out, piece| {
            let piece_sum = checksum::copy(out, piece);
            total = add(total, if odd { swap_for_odd(piece_sum) } else { piece_sum });
            odd ^= piece.len() % 2 == 1;
        });
        total
    }

    #[inline]
    fn each(&mut self, mut out: &mut [u8], mut copy: impl FnMut(&mut [u8], &[u8])) {
        while !out.is_empty() {
            let piece = self.next(out.len());
            if piece.is_empty() {
                // Only if a clone of the pieces yields more than the original. Stale bytes of the
                // buffer must not leave with the packet.
                out.fill(0);
                break;
            }
            let (now, later) = out.split_at_mut(piece.len());
            copy(now, piece);
            out = later;
        }
    }
}
