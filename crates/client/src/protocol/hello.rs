//! The message of an application.

use super::{CHUNK, HEADER, MAGIC, MAX_CHUNKS, MAX_RULES, Malformed, RING, Sizes, VERSION};

/// What an application asks for. The descriptor of its memory comes with it.
///
/// ```text
///   magic u64 │ version, flags u32 │ umem, budget u64
///   chunk, headroom, fill, completion, rx, tx u32
///   length of the rules u32, queue u32 │ share u64 │ tx_metadata u64 │ rules
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Bytes of the memory, a multiple of the chunk size if chunks are aligned.
    pub umem: u64,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Chunks may be anywhere in the memory, and their size need not be a power of two.
    pub unaligned: bool,
    /// Bytes that stay free in front of a received frame.
    pub headroom: u32,
    /// A received packet may come in several pieces. Else one that does not fit in a chunk is
    /// dropped.
    pub pieces: bool,
    /// The application takes super-packets, in up to [`MAX_SUPER_PIECES`](super::MAX_SUPER_PIECES)
    /// pieces, and partial checksums, described by a [virtio-net header](super::HEADER). Else it
    /// gets finished frames.
    pub offloads: bool,
    /// The application waits and kicks by one descriptor that behaves as an AF_XDP socket.
    pub one_descriptor: bool,
    /// Invalid descriptors are counted and skipped, as AF_XDP does. Else they end the session.
    pub skip_invalid: bool,
    /// Sizes of the rings.
    pub rings: Sizes,
    /// Bytes of chunks that may be in flight, 0 for the datapath's default. At the budget,
    /// descriptors stay in the TX ring.
    pub budget: u64,
    /// A session whose memory this one shares, 0 for none. The descriptor of the memory is sent
    /// again, as proof, and everything about the memory must be the same.
    pub share: u64,
    /// Bytes of metadata in front of a sent frame whose descriptor has the flag: 0 for none,
    /// [`HEADER`](super::HEADER) for a virtio-net header, else a multiple of 8 from 16 to 248
    /// (`tx_metadata_len` of AF_XDP).
    pub tx_metadata: u32,
    /// The application may send super-packets. Needs virtio-net headers.
    pub segmentation: bool,
    /// The queue of the port that the session belongs to; `None` for the one with the fewest
    /// sessions.
    pub queue: Option<u16>,
    /// The packets that the application wants: a match of the datapath's rules a line
    /// (`udp dport 53`), or `default` for those that no other application wants. Empty for none.
    pub rules: String,
}

impl Default for Hello {
    /// 1024 entries a ring, chunks of 2048 bytes, packets in pieces, no rules; and no memory, which
    /// must be set.
    fn default() -> Hello {
        Hello {
            umem: 0,
            chunk: 2048,
            unaligned: false,
            headroom: 0,
            pieces: true,
            offloads: false,
            one_descriptor: false,
            skip_invalid: false,
            rings: Sizes::all(1024),
            budget: 0,
            share: 0,
            tx_metadata: 0,
            segmentation: false,
            queue: None,
            rules: String::new(),
        }
    }
}

impl Hello {
    /// Flag of [`pieces`](Hello::pieces).
    pub const PIECES: u32 = 1;
    /// Flag of [`unaligned`](Hello::unaligned).
    pub const UNALIGNED: u32 = 1 << 1;
    /// Flag of [`offloads`](Hello::offloads).
    pub const OFFLOADS: u32 = 1 << 2;
    /// Flag of [`segmentation`](Hello::segmentation).
    pub const SEGMENTATION: u32 = 1 << 3;
    /// Flag of [`one_descriptor`](Hello::one_descriptor).
    pub const ONE_DESCRIPTOR: u32 = 1 << 4;
    /// Flag of [`skip_invalid`](Hello::skip_invalid).
    pub const SKIP_INVALID: u32 = 1 << 5;
    /// All flags of this version.
    pub const FLAGS: u32 = (1 << 6) - 1;
    /// The word for a [`queue`](Hello::queue) of `None`.
    pub const ANY_QUEUE: u32 = u32::MAX;

    /// Bytes in front of the rules.
    const FIXED: usize = 80;
    /// Bytes of the longest message.
    pub const LONGEST: usize = Hello::FIXED + MAX_RULES;

    /// Checks every number against its rule, as the datapath does.
    ///
    /// # Errors
    /// [`Malformed::Value`] names the number and the rule.
    pub fn check(&self) -> Result<(), Malformed> {
        let check = |ok: bool, what, value: u64, rule| {
            if ok { Ok(()) } else { Err(Malformed::Value { what, value, rule }) }
        };
        let chunk = u64::from(self.chunk);
        if self.unaligned {
            check(CHUNK.contains(&self.chunk), "chunk", chunk, "from 256 to 32768")?;
            check(self.umem >= chunk, "umem", self.umem, "at least a chunk")?;
        } else {
            let power = CHUNK.contains(&self.chunk) && self.chunk.is_power_of_two();
            check(power, "chunk", chunk, "a power of two from 256 to 32768")?;
            check(self.umem > 0 && self.umem.is_multiple_of(chunk), "umem", self.umem, "whole chunks, at least one")?;
        }
        let room = self.headroom <= self.chunk / 2;
        check(room, "headroom", self.headroom.into(), "at most half of a chunk")?;
        let room = !self.offloads || (self.pieces && self.headroom as usize >= HEADER);
        check(room, "headroom", self.headroom.into(), "at least 10, and packets in pieces, for what is not finished")?;
        let header = self.tx_metadata as usize == HEADER;
        let room = header || (matches!(self.tx_metadata, 0 | 16..256) && self.tx_metadata.is_multiple_of(8));
        check(room, "tx_metadata", self.tx_metadata.into(), "0, 10, or a multiple of 8 from 16 to 248")?;
        check(header || !self.segmentation, "tx_metadata", self.tx_metadata.into(), "10 to send super-packets")?;
        check(self.umem / chunk <= MAX_CHUNKS, "umem", self.umem, "at most 1048576 chunks")?;
        for size in self.rings.each() {
            let power = RING.contains(&size) && size.is_power_of_two();
            check(power, "ring", size.into(), "a power of two from 2 to 32768")?;
        }
        check(self.rules.len() <= MAX_RULES, "rules", self.rules.len() as u64, "at most 4096 bytes")
    }

    /// The bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Hello::FIXED + self.rules.len());
        out.extend_from_slice(&MAGIC.to_le_bytes());
        let flag = |on: bool, flag| if on { flag } else { 0 };
        let flags = flag(self.pieces, Hello::PIECES)
            | flag(self.unaligned, Hello::UNALIGNED)
            | flag(self.offloads, Hello::OFFLOADS)
            | flag(self.segmentation, Hello::SEGMENTATION)
            | flag(self.one_descriptor, Hello::ONE_DESCRIPTOR)
            | flag(self.skip_invalid, Hello::SKIP_INVALID);
        [VERSION, flags].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        [self.umem, self.budget].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        let [fill, completion, rx, tx] = self.rings.each();
        let (len, queue) = (self.rules.len() as u32, self.queue.map_or(Hello::ANY_QUEUE, u32::from));
        let words = [self.chunk, self.headroom, fill, completion, rx, tx, len, queue];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&self.share.to_le_bytes());
        out.extend_from_slice(&u64::from(self.tx_metadata).to_le_bytes());
        out.extend_from_slice(self.rules.as_bytes());
        out
    }
}
