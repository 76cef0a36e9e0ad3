//! Partial checksums, which a stack leaves to the NIC to complete (virtio 1.2 section 5.1.6.2,
//! Linux `CHECKSUM_PARTIAL`).
//!
//! The field holds the sum of the pseudo-header. The checksum over all bytes from `start` to the
//! end of the packet, the field included, replaces it.

use super::sum;
use crate::Error;

/// Completes a partial checksum in a linear frame: sums from `start` to the end and writes the
/// complement `offset` bytes after `start`. A checksum of 0 is written as `0xffff`, which is
/// equivalent, and which UDP needs.
///
/// `frame` must end where the packet ends: padding would be summed.
///
/// # Errors
/// [`Error::Truncated`] if `start` or the field lies outside the frame, which is unchanged.
#[inline]
pub fn complete_partial(frame: &mut [u8], start: usize, offset: usize) -> Result<(), Error> {
    let covered = frame.get_mut(start..).ok_or(Error::Truncated)?;
    let check = super::finish_udp(sum(covered));
    let field = covered.get_mut(offset..).and_then(|bytes| bytes.first_chunk_mut());
    *field.ok_or(Error::Truncated)? = check.to_be_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_takes_the_complement_of_the_sum_from_start_to_end() {
        let mut frame = [0xaa, 0xaa, 0x00, 0x01, 0x12, 0x34, 0x00, 0x02];
        assert_eq!(complete_partial(&mut frame, 2, 2), Ok(()));
        assert_eq!(frame, [0xaa, 0xaa, 0x00, 0x01, 0xed, 0xc8, 0x00, 0x02]);
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_all_ones() {
        let mut frame = [0xff, 0xfe, 0x00, 0x01];
        assert_eq!(complete_partial(&mut frame, 0, 2), Ok(()));
        assert_eq!(frame[2..], [0xff, 0xff]);
    }

    #[test]
    fn a_field_outside_the_frame_is_refused_and_nothing_is_written() {
        for (start, offset) in [(5, 0), (4, 0), (2, 1), (0, 3), (0, usize::MAX), (usize::MAX, 0)] {
            let mut frame = [1, 2, 3, 4];
            assert_eq!(complete_partial(&mut frame, start, offset), Err(Error::Truncated));
            assert_eq!(frame, [1, 2, 3, 4], "{start} {offset}");
        }
    }
}
