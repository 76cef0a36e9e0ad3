//! The stream of a tee: blocks of pcapng as `towpath` writes them, taken apart without trust in
//! their lengths.

/// Longest block: a packet of the longest snaplen, and options.
const LONGEST: usize = 1 << 20;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Bytes in front of a block's body, and with those behind it.
const HEAD: usize = 8;
const AROUND: usize = 12;

/// Bytes of a stream that are not taken yet.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    bytes: Vec<u8>,
    at: usize,
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block<'a> {
    pub(super) kind: u32,
    /// All of it.
    pub(super) bytes: &'a [u8],
}

/// A packet's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketBlock<'a> {
    /// Nanoseconds since the epoch.
    pub(super) time: u64,
    pub(super) original: u32,
    pub(super) bytes: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

impl Blocks {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole block; `None` if more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Block<'_>>, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let (Some(kind), Some(len)) = (word(rest, 0), word(rest, 4)) else { return Ok(None) };
        let len = len as usize;
        if !(AROUND..=LONGEST).contains(&len) || !len.is_multiple_of(4) {
            return Err(format!("a block of {len} bytes: this is no stream of a tee"));
        }
        let Some(bytes) = rest.get(..len) else { return Ok(None) };
        self.at += len;
        Ok(Some(Block { kind, bytes }))
    }
}

impl<'a> Block<'a> {
    /// What is between the lengths.
    pub(super) fn body(self) -> &'a [u8] {
        self.bytes.get(HEAD..self.bytes.len() - 4).unwrap_or_default()
    }

    /// The link type and the snaplen of an interface.
    pub(super) fn interface(self) -> Option<(u32, u32)> {
        let body = self.body();
        if self.kind == INTERFACE { Some((word(body, 0)? & 0xffff, word(body, 4)?)) } else { None }
    }

    /// A packet.
    pub(super) fn packet(self) -> Option<PacketBlock<'a>> {
        if self.kind != PACKET {
            return None;
        }
        let body = self.body();
        let [high, low, captured, original] = [4, 8, 12, 16].map(|at| word(body, at));
        let bytes = body.get(20..20 + captured? as usize)?;
        Some(PacketBlock { time: u64::from(high?) << 32 | u64::from(low?), original: original?, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block with this body.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = ((AROUND + body.len()) as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    }

    #[test]
    fn blocks_are_whole_however_the_bytes_arrive() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let packet = block(PACKET, &words(&[0, 1, 2, 4, 60, 0x0403_0201]));
        let stream = [block(INTERFACE, &words(&[1, 96])), packet].concat();
        for step in [1, 7, stream.len()] {
            let (mut blocks, mut kinds) = (Blocks::default(), Vec::new());
            for bytes in stream.chunks(step) {
                blocks.push(bytes);
                while let Some(block) = blocks.next().unwrap() {
                    kinds.push(block.kind);
                    if let Some(found) = block.packet() {
                        let expected = PacketBlock { time: 1 << 32 | 2, original: 60, bytes: &[1, 2, 3, 4] };
                        assert_eq!(found, expected);
                    }
                }
            }
            assert_eq!(kinds, [INTERFACE, PACKET]);
        }
    }

    #[test]
    fn lengths_that_lie_are_refused_or_make_no_packet() {
        for len in [0u32, 11, 13, 1 << 21] {
            let mut blocks = Blocks::default();
            blocks.push(&[&PACKET.to_le_bytes()[..], &len.to_le_bytes(), &[0; 16]].concat());
            assert!(blocks.next().unwrap_err().contains(&len.to_string()));
        }
        let mut blocks = Blocks::default();
        let lie = [[0u8; 12], [255; 12]].concat();
        blocks.push(&block(PACKET, &lie));
        assert_eq!(blocks.next().unwrap().unwrap().packet(), None);
    }
}
