//! The tag at the beginning of a payload: the flow and the packet's number; with
//! `stamp=time` also the trial and the time.

/// Bytes of a tag.
pub(super) const LEN: usize = 10;
/// Bytes of a tag with trial and time.
pub(super) const TIMED_LEN: usize = 20;

/// Offset of the number.
pub(super) const NUMBER: usize = 6;
/// Offset of the trial; the time is behind it.
pub(super) const TRIAL: usize = 10;

/// The first bytes of a tag.
const MAGIC: [u8; 2] = *b"tp";
/// The first bytes of a tag with trial and time.
const TIMED_MAGIC: [u8; 2] = *b"tt";

/// ```text
///   0        2                 6                 10         12                    20
///   │ "tp"   │ flow            │ number          │                                      big-endian
///   │ "tt"   │ flow            │ number          │ trial    │ time                 │
/// ```
/// Every field has an even offset, so that it can be added to a checksum. With segmentation each
/// segment begins with a tag. The time is `CLOCK_MONOTONIC` in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) flow: u32,
    /// Counts the packets of the flow from 0, modulo 2^32; in a trial from its beginning.
    pub(super) number: u32,
}

/// The second half of a tag with a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stamp {
    pub(super) trial: u16,
    pub(super) time: u64,
}

impl Tag {
    /// Writes the tag to the first [`LEN`] bytes; does nothing if there are fewer.
    pub(super) fn write(self, bytes: &mut [u8]) {
        self.write_with(bytes, MAGIC);
    }

    /// Writes a tag that a [`Stamp`] follows, as [`write`](Tag::write).
    pub(super) fn write_timed(self, bytes: &mut [u8]) {
        self.write_with(bytes, TIMED_MAGIC);
    }

    fn write_with(self, bytes: &mut [u8], magic: [u8; 2]) {
        if let Some(bytes) = bytes.first_chunk_mut::<LEN>() {
            bytes[..2].copy_from_slice(&magic);
            bytes[2..NUMBER].copy_from_slice(&self.flow.to_be_bytes());
            bytes[NUMBER..].copy_from_slice(&self.number.to_be_bytes());
        }
    }

    /// Parses a tag of either kind.
    pub(super) fn read(bytes: &[u8; LEN]) -> Option<Tag> {
        let [a, b, f @ .., n3, n2, n1, n0] = *bytes;
        let tag = Tag { flow: u32::from_be_bytes(f), number: u32::from_be_bytes([n3, n2, n1, n0]) };
        ([MAGIC, TIMED_MAGIC].contains(&[a, b])).then_some(tag)
    }
}

impl Stamp {
    /// The bytes behind [`TRIAL`].
    #[inline]
    pub(super) fn bytes(self) -> [u8; TIMED_LEN - TRIAL] {
        let mut bytes = [0; TIMED_LEN - TRIAL];
        bytes[..2].copy_from_slice(&self.trial.to_be_bytes());
        bytes[2..].copy_from_slice(&self.time.to_be_bytes());
        bytes
    }

    /// Its partial sum.
    #[inline]
    pub(super) fn sum(self) -> u32 {
        words((self.time >> 32) as u32) + words(self.time as u32) + u32::from(self.trial)
    }

    /// The stamp of a tag; `None` for one without it.
    pub(super) fn read(tag: &[u8; TIMED_LEN]) -> Option<Stamp> {
        let [a, b, _, _, _, _, _, _, _, _, t1, t0, time @ ..] = *tag;
        ([a, b] == TIMED_MAGIC).then_some(Stamp { trial: u16::from_be_bytes([t1, t0]), time: u64::from_be_bytes(time) })
    }
}

/// The partial sum of a 32-bit number at an even offset.
#[inline]
pub(super) fn words(number: u32) -> u32 {
    (number >> 16) + (number & 0xffff)
}

/// A partial sum folded to 16 bits (RFC 1071 section 4.1).
#[inline]
pub(super) fn fold(sum: u32) -> u16 {
    // The upper half of the result is the sum of both halves, with the carry of the lower half's.
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_wire::checksum;

    #[test]
    fn a_tag_is_parsed_as_it_was_written_and_other_bytes_are_none() {
        let (tag, mut bytes) = (Tag { flow: 0x0102_0304, number: 0xfffe_fdfc }, [0; LEN]);
        assert_eq!(Tag::read(&bytes), None);
        tag.write(&mut bytes);
        assert_eq!(Tag::read(&bytes), Some(tag));
        assert_eq!(checksum::sum(&bytes), fold(0x7470 + words(tag.flow) + words(tag.number)));
    }

    #[test]
    fn a_stamp_follows_a_tag_of_its_kind_only_and_its_sum_is_that_of_its_bytes() {
        let (tag, stamp) = (Tag { flow: 7, number: 8 }, Stamp { trial: 0xfedc, time: 0x0123_4567_89ab_cdef });
        let mut bytes = [0; TIMED_LEN];
        bytes[TRIAL..].copy_from_slice(&stamp.bytes());
        tag.write(&mut bytes);
        assert_eq!(Stamp::read(&bytes), None);
        tag.write_timed(&mut bytes);
        assert_eq!(Stamp::read(&bytes), Some(stamp));
        assert_eq!(Tag::read(bytes.first_chunk().unwrap()), Some(tag));
        assert_eq!(checksum::sum(&bytes[TRIAL..]), fold(stamp.sum()));
    }
}
