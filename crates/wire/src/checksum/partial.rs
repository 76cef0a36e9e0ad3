//! Partial checksums: what a stack leaves to the NIC (virtio 1.2 section 5.1.6.2, Linux
//! `CHECKSUM_PARTIAL`).
//!
//! The field holds the sum of the pseudo-header; the checksum over all from `start` to the end of
//! the packet, the field included, is to take its place.

use super::sum;
use crate::Error;

/// Completes a partial checksum in a linear frame: sums from `start` to the end and writes the
/// complement `offset` bytes after `start`. A checksum of 0 is written as `0xffff`, which means
/// the same and is what UDP needs.
///
/// `frame` must end where the packet ends: padding would be summed.
///
/// # Errors
/// [`Error::Truncated`] if `start` or the field lies outside the frame, which is left as it was.
#[inline]
pub fn complete_partial(frame: &mut [u8], start: usize, offset: usize) -> Result<(), Error> {
    let covered = frame.get_mut(start..).ok_or(Error::Truncated)?;
    let check = super::finish_udp(sum(covered));
    let field = covered.get_mut(offset..).and_then(|bytes| bytes.first_chunk_mut());
    *field.ok_or(Error::Truncated)? = check.to_be_bytes();
    Ok(())
}
