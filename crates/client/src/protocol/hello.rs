//! What an application says first.

use super::{CHUNK, Fields, HEADER, MAGIC, MAX_CHUNKS, MAX_RULES, Malformed, RING, Sizes, VERSION};

/// What an application asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Bytes of the memory, a multiple of the chunk size if chunks are aligned.
    pub umem: u64,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Whether chunks may be anywhere in the memory, and of a size that is no power of two.
    pub unaligned: bool,
    /// Bytes that stay free in front of a received frame.
    pub headroom: u32,
    /// Whether a received packet may come in several pieces; if not, one that does not fit in a chunk is dropped.
    pub pieces: bool,
    /// Whether it takes what is not finished: super-packets, in up to [`MAX_SUPER_PIECES`](super::MAX_SUPER_PIECES) pieces, and partial
    /// checksums. A [virtio-net header](super::HEADER) tells then what is to be done; others get finished frames.
    pub offloads: bool,
    /// Whether to wait and to kick by one descriptor that behaves as an AF_XDP socket's.
    pub one_descriptor: bool,
    /// Whether descriptors that can't be are counted, as AF_XDP does, rather than the end of the session.
    pub lenient: bool,
    /// Sizes of the rings.
    pub rings: Sizes,
    /// Bytes of chunks that may be on their way at a time, 0 for the datapath's default: no more is taken from the TX ring until some
    /// have come back.
    pub budget: u64,
    /// A session of which this one shares the memory, 0 for none. The memory is handed over again, as proof; all that is said of it must
    /// be the same.
    pub share: u64,
    /// Bytes in front of a sent frame that are metadata, where its descriptor says that there is some: 0 for none,
    /// [`HEADER`](super::HEADER) for a virtio-net header, else a multiple of 8 from 16 to 248 (`tx_metadata_len` of AF_XDP).
    pub tx_metadata: u32,
    /// Whether it may send super-packets, that others cut. Wants virtio-net headers.
    pub segmentation: bool,
    /// The queue of the port that the session is to live on; `None` for the one with the fewest.
    pub queue: Option<u16>,
    /// Which received packets the application wants, a match a line as in the rules of the datapath (`udp dport 53`), or
    /// `default` for those that nobody else wants. Empty for none.
    pub rules: String,
}

/// Packets may come in pieces.
const PIECES: u32 = 1;
/// Chunks may be anywhere.
const UNALIGNED: u32 = 2;
/// Super-packets and partial checksums.
const OFFLOADS: u32 = 4;
/// Super-packets may be sent.
const SEGMENTATION: u32 = 1 << 3;
/// A socket instead of an eventfd.
const ONE_DESCRIPTOR: u32 = 1 << 4;
/// Descriptors that can't be are counted.
const LENIENT: u32 = 1 << 5;
/// Any queue.
const ANY: u32 = u32::MAX;

impl Default for Hello {
    /// 1024 entries a ring, chunks of 2048 bytes, packets in pieces, no rules; and no memory, which must be said.
    fn default() -> Hello {
        Hello {
            umem: 0,
            chunk: 2048,
            unaligned: false,
            headroom: 0,
            pieces: true,
            offloads: false,
            one_descriptor: false,
            lenient: false,
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
    /// Bytes in front of the rules.
    const FIXED: usize = 80;
    /// Bytes of the longest message.
    pub const LONGEST: usize = Hello::FIXED + MAX_RULES;

    /// Checks every number against its rule.
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

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Hello::FIXED + self.rules.len());
        out.extend_from_slice(&MAGIC.to_le_bytes());
        let flag = |on: bool, flag| if on { flag } else { 0 };
        let flags = flag(self.pieces, PIECES)
            | flag(self.unaligned, UNALIGNED)
            | flag(self.offloads, OFFLOADS)
            | flag(self.segmentation, SEGMENTATION)
            | flag(self.one_descriptor, ONE_DESCRIPTOR)
            | flag(self.lenient, LENIENT);
        [VERSION, flags].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        [self.umem, self.budget].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        let [fill, completion, rx, tx] = self.rings.each();
        let (len, queue) = (self.rules.len() as u32, self.queue.map_or(ANY, u32::from));
        let words = [self.chunk, self.headroom, fill, completion, rx, tx, len, queue];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&self.share.to_le_bytes());
        out.extend_from_slice(&u64::from(self.tx_metadata).to_le_bytes());
        out.extend_from_slice(self.rules.as_bytes());
        out
    }

    /// Reads what was sent.
    ///
    /// # Errors
    /// [`Malformed`]; what is returned has been [checked](Hello::check).
    pub fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
        let mut fields = Fields(bytes);
        if fields.u64()? != MAGIC {
            return Err(Malformed::Magic);
        }
        let (version, flags) = (fields.u32()?, fields.u32()?);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if flags & !(PIECES | UNALIGNED | OFFLOADS | SEGMENTATION | ONE_DESCRIPTOR | LENIENT) != 0 {
            return Err(Malformed::Flags(flags));
        }
        let (umem, budget) = (fields.u64()?, fields.u64()?);
        let (chunk, headroom) = (fields.u32()?, fields.u32()?);
        let rings = Sizes { fill: fields.u32()?, completion: fields.u32()?, rx: fields.u32()?, tx: fields.u32()? };
        let (len, queue, share) = (fields.u32()?, fields.u32()?, fields.u64()?);
        // What does not fit breaks the rule in any case.
        let tx_metadata = u32::try_from(fields.u64()?).unwrap_or(u32::MAX);
        if fields.0.len() != len as usize {
            return Err(Malformed::Length);
        }
        let rules = std::str::from_utf8(fields.0).map_err(|_| Malformed::Text)?.to_owned();
        let queue = match queue {
            ANY => None,
            queue => Some(u16::try_from(queue).map_err(|_| Malformed::Value {
                what: "queue",
                value: queue.into(),
                rule: "at most 65535",
            })?),
        };
        let (pieces, unaligned) = (flags & PIECES != 0, flags & UNALIGNED != 0);
        let (offloads, one_descriptor) = (flags & OFFLOADS != 0, flags & ONE_DESCRIPTOR != 0);
        let lenient = flags & LENIENT != 0;
        let hello = Hello {
            umem,
            chunk,
            unaligned,
            headroom,
            pieces,
            offloads,
            one_descriptor,
            lenient,
            rings,
            budget,
            share,
            tx_metadata,
            segmentation: flags & SEGMENTATION != 0,
            queue,
            rules,
        };
        hello.check()?;
        Ok(hello)
    }
}
