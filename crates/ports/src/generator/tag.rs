//! The tag at the front of each generated payload: the flow and the packet's number.

use towpath_wire::checksum;

/// Bytes of a tag.
pub(super) const LEN: usize = 10;

/// Offset of the number.
pub(super) const NUMBER: usize = 6;

/// The first bytes of a tag.
const MAGIC: [u8; 2] = *b"tp";

/// ```text
///   0        2                 6                 10
///   │ "tp"   │ flow            │ number          │     big-endian
/// ```
/// Every field has an even offset, so that it can be added to a checksum. With segmentation each
/// segment begins with a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) flow: u32,
    /// Counts the packets of the flow from 0, modulo 2^32.
    pub(super) number: u32,
}

impl Tag {
    /// Writes the tag to the first [`LEN`] bytes; does nothing if there are fewer.
    pub(super) fn write(self, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut::<LEN>() {
            bytes[..2].copy_from_slice(&MAGIC);
            bytes[2..NUMBER].copy_from_slice(&self.flow.to_be_bytes());
            bytes[NUMBER..].copy_from_slice(&self.number.to_be_bytes());
        }
    }

    /// Parses a tag.
    pub(super) fn read(bytes: &[u8; LEN]) -> Option<Tag> {
        let [a, b, f @ .., n3, n2, n1, n0] = *bytes;
        ([a, b] == MAGIC).then_some(Tag { flow: u32::from_be_bytes(f), number: u32::from_be_bytes([n3, n2, n1, n0]) })
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
    checksum::add((sum >> 16) as u16, sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_parsed_as_it_was_written_and_other_bytes_are_none() {
        let (tag, mut bytes) = (Tag { flow: 0x0102_0304, number: 0xfffe_fdfc }, [0; LEN]);
        assert_eq!(Tag::read(&bytes), None);
        tag.write(&mut bytes);
        assert_eq!(Tag::read(&bytes), Some(tag));
        assert_eq!(checksum::sum(&bytes), fold(0x7470 + words(tag.flow) + words(tag.number)));
    }
}
