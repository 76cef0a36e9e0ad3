//! CPPI5 host descriptors (K3 manuals, "Host Packet Descriptor"), 128 bytes apart.
//!
//! ```text
//!  00 info0 │ info1 │ info2 │ tags     10 next            18 buffer
//!  20 buffer length │ original length  28 original buffer 30 EPIB (16 bytes)  40 PS words (16 bytes)
//! ```
//!
//! Whatever the device reads is written anew each time: a descriptor that is used again carries nothing over from the packet before.
//! PS word 2 above all: left from before it would make the switch patch a checksum into the frame.

use super::config::Soc;
use towpath_bus::{Coherent, Dma, Domain, Iova, MapError};

/// Bytes of a slot.
pub(super) const SLOT: usize = 128;
/// Words that the device fetches: 48 bytes, EPIB, PS words and 16 bytes that it leaves alone.
pub(super) const FETCH_WORDS: u8 = 24;

const HOST: u32 = 1 << 30;
const EPIB: u32 = 1 << 29;
const PS_WORDS: u32 = 4 << 22;
const LENGTH: u32 = 0x3f_ffff;
/// Default transmit flow, in info1.
const TX_FLOW: u32 = 0x3fff;
/// CPSW's packet type, in info2.
const PACKET_TYPE: u32 = 7 << 27;
const ADDRESS: u64 = (1 << 48) - 1;

/// Descriptors of one channel or flow: its own memory, one owner.
#[derive(Debug)]
pub(super) struct Descriptors {
    memory: Coherent,
    count: u16,
    tag: u64,
}

/// A piece of a packet, as its descriptor names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) at: Iova,
    pub(super) len: u32,
}

/// What the first descriptor of a packet says of the whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxHead {
    pub(super) len: u32,
    /// MAC port, 1 and up.
    pub(super) port: u8,
    pub(super) return_ring: u16,
    /// PS word 2: where a checksum is inserted; 0 for none.
    pub(super) checksum: u32,
}

/// What the device wrote about one buffer of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) len: usize,
    /// Where the frame goes on; 0 for nowhere.
    pub(super) next: u64,
}

/// What the device wrote about a received frame; read once, nothing of it believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes of the frame.
    pub(super) len: usize,
    /// What the first buffer has of them.
    pub(super) part: Part,
    pub(super) port: u8,
    /// Code of what is wrong with the frame, 0 for nothing.
    pub(super) error: u8,
    /// PS word 2: what the switch found out about checksums.
    pub(super) checksum: u32,
}

impl Received {
    /// Whether the switch found nothing wrong with it, and it has room for an Ethernet header.
    pub(super) fn is_frame(&self) -> bool {
        self.error == 0 && self.len >= 14
    }

    /// Whether TCP's or UDP's checksum was looked at, of a whole datagram, and found right.
    pub(super) fn is_verified(&self) -> bool {
        const ERROR: u32 = 1 << 16;
        const FRAGMENT: u32 = 1 << 17;
        const IPV6_SEEN: u32 = 1 << 19;
        const IPV4_SEEN: u32 = 1 << 20;
        self.checksum & (IPV4_SEEN | IPV6_SEEN) != 0 && self.checksum & (ERROR | FRAGMENT) == 0
    }
}

impl Descriptors {
    pub(super) fn new<D: Dma>(domain: &Domain<D>, count: u16, soc: &Soc) -> Result<Descriptors, MapError> {
        let memory = Coherent::new(domain, usize::from(count) * SLOT)?;
        Ok(Descriptors { memory, count, tag: u64::from(soc.asel) << 48 })
    }

    /// A pointer for the device.
    #[inline]
    fn tagged(&self, at: Iova) -> u64 {
        at.get() & ADDRESS | self.tag
    }

    /// The ring element that is descriptor `index`.
    #[inline]
    pub(super) fn element(&self, index: u16) -> u64 {
        self.tagged(self.memory.iova().add(usize::from(index) * SLOT))
    }

    /// The descriptor that a ring element of the device's is, if it is one.
    #[inline]
    pub(super) fn index(&self, element: u64) -> Option<u16> {
        let offset = (element & ADDRESS).checked_sub(self.memory.iova().get())?;
        let index = offset / SLOT as u64;
        (offset.is_multiple_of(SLOT as u64) && index < u64::from(self.count)).then_some(index as u16)
    }

    #[inline]
    fn store(&self, index: u16, pair: usize, low: u32, high: u32) {
        self.memory.store64(usize::from(index) * SLOT + 8 * pair, u64::from(low) | u64::from(high) << 32);
    }

    /// Buffer and original buffer, the same; what comes next.
    #[inline]
    fn store_piece(&self, index: u16, piece: Piece, next: Option<u16>) {
        let base = usize::from(index) * SLOT;
        let at = self.tagged(piece.at);
        self.memory.store64(base + 0x10, next.map_or(0, |next| self.element(next)));
        self.memory.store64(base + 0x18, at);
        self.store(index, 4, piece.len, piece.len);
        self.memory.store64(base + 0x28, at);
    }

    /// The first descriptor of a packet to be sent.
    #[inline]
    pub(super) fn write_head(&self, index: u16, head: TxHead, piece: Piece, next: Option<u16>) {
        self.store(index, 0, HOST | EPIB | PS_WORDS | head.len & LENGTH, TX_FLOW);
        self.store(index, 1, PACKET_TYPE | u32::from(head.return_ring), u32::from(head.port));
        self.store_piece(index, piece, next);
        self.store(index, 8, 0, 0);
        self.store(index, 9, head.checksum, 0);
    }

    /// A further descriptor of a packet.
    #[inline]
    pub(super) fn write_piece(&self, index: u16, piece: Piece, next: Option<u16>) {
        self.store(index, 0, HOST, 0);
        self.store(index, 1, 0, 0);
        self.store_piece(index, piece, next);
    }

    /// A free descriptor with its buffer, and the one that goes on where this one ends.
    #[inline]
    pub(super) fn write_free(&self, index: u16, piece: Piece, return_ring: u16, next: Option<u16>) {
        self.store(index, 0, HOST | EPIB | PS_WORDS, 0);
        self.store(index, 1, u32::from(return_ring), 0);
        self.store_piece(index, piece, next);
    }

    /// What the device wrote about a buffer.
    #[inline]
    pub(super) fn read_part(&self, index: u16) -> Part {
        let base = usize::from(index) * SLOT;
        let len = (self.memory.load32(base + 0x20) & 0xfff_ffff) as usize;
        Part { len, next: self.memory.load64(base + 0x10) & ADDRESS }
    }

    /// What the device wrote.
    #[inline]
    pub(super) fn read(&self, index: u16) -> Received {
        let base = usize::from(index) * SLOT;
        let (info, tags) = (self.memory.load64(base), self.memory.load64(base + 8));
        let (info0, info1) = (info as u32, (info >> 32) as u32);
        // PS words follow the EPIB, where the device says that there is one.
        let ps = if info0 & EPIB != 0 { 0x40 } else { 0x30 };
        let has_ps = info0 >> 22 & 0x3f >= 3;
        Received {
            len: (info0 & LENGTH) as usize,
            part: self.read_part(index),
            port: (tags >> 48) as u8,
            error: (info1 >> 28) as u8,
            checksum: if has_ps { self.memory.load32(base + ps + 8) } else { 0 },
        }
    }
}
