//! CPPI5 host descriptors (K3 manuals, "Host Packet Descriptor"), 128 bytes apart.
//!
//! ```text
//!  00 info0 │ info1 │ info2 │ tags     10 next             18 buffer
//!  20 buffer length │ original length  28 original buffer  30 EPIB, 16 B  40 PS words, 16 B
//! ```
//!
//! The driver rewrites every word that the device reads, each time: a recycled descriptor carries
//! nothing over from the packet before. PS word 2 matters most: a value left there makes the switch
//! patch a checksum into the frame.

use super::soc::Soc;
use towpath_bus::{Coherent, Dma, Domain, Iova, MapError};
use towpath_wire::ethernet;

/// Bytes from one descriptor to the next.
pub(super) const DESC_SIZE: usize = 128;
/// 32-bit words that the device fetches: 48 bytes, EPIB, PS words and 16 bytes of software data.
pub(super) const FETCH_WORDS: u16 = 24;

const HOST: u32 = 1 << 30;
const EPIB: u32 = 1 << 29;
const PS_WORDS: u32 = 4 << 22;
const LENGTH: u32 = 0x3f_ffff;
/// Default transmit flow, in info1.
const TX_FLOW: u32 = 0x3fff;
/// CPSW's packet type, in info2.
const PACKET_TYPE: u32 = 7 << 27;
const ADDRESS: u64 = (1 << 48) - 1;

/// The descriptors of one channel or flow: memory of its own, one owner.
#[derive(Debug)]
pub(super) struct Descriptors {
    memory: Coherent,
    count: u16,
    tag: u64,
}

/// A buffer as a descriptor names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferPtr {
    pub(super) iova: Iova,
    pub(super) len: u32,
}

/// The packet fields of a transmit packet descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxPacketInfo {
    pub(super) len: u32,
    /// MAC port, 1 and up.
    pub(super) port: u8,
    pub(super) return_ring: u16,
    /// PS word 2: the checksum to insert; 0 for none.
    pub(super) checksum: u32,
}

/// The buffer fields of a receive descriptor, as the device wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RxBufferDesc {
    pub(super) len: usize,
    /// Address of the next descriptor of the frame; 0 in the last one.
    pub(super) next: u64,
}

/// A receive packet descriptor as the device wrote it: read once, and untrusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RxPacketDesc {
    /// Bytes of the frame.
    pub(super) len: usize,
    /// The first buffer.
    pub(super) buffer: RxBufferDesc,
    pub(super) port: u8,
    /// Error code of the frame; 0 for none.
    pub(super) error: u8,
    /// PS word 2: the result of the checksum check.
    pub(super) checksum: u32,
}

impl RxPacketDesc {
    /// Whether the switch reports no error, and the frame is not shorter than an Ethernet header.
    pub(super) fn is_good(&self) -> bool {
        self.error == 0 && self.len >= ethernet::HEADER_LEN
    }

    /// Whether the switch checked the TCP or UDP checksum of a whole datagram and found it correct.
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
        let memory = Coherent::new(domain, usize::from(count) * DESC_SIZE)?;
        Ok(Descriptors { memory, count, tag: u64::from(soc.asel) << 48 })
    }

    /// An address with the address space tag, for the device.
    #[inline]
    fn tagged(&self, iova: Iova) -> u64 {
        iova.get() & ADDRESS | self.tag
    }

    /// The ring element of descriptor `index`.
    #[inline]
    pub(super) fn element(&self, index: u16) -> u64 {
        self.tagged(self.memory.iova().add(usize::from(index) * DESC_SIZE))
    }

    /// The descriptor that a ring element of the device names; `None` if it names none.
    #[inline]
    pub(super) fn index(&self, element: u64) -> Option<u16> {
        let offset = (element & ADDRESS).checked_sub(self.memory.iova().get())?;
        let index = offset / DESC_SIZE as u64;
        (offset.is_multiple_of(DESC_SIZE as u64) && index < u64::from(self.count)).then_some(index as u16)
    }

    #[inline]
    fn store(&self, index: u16, pair: usize, low: u32, high: u32) {
        self.memory.store64(usize::from(index) * DESC_SIZE + 8 * pair, u64::from(low) | u64::from(high) << 32);
    }

    /// Writes buffer and original buffer, which are the same, and the next descriptor.
    #[inline]
    fn store_buffer(&self, index: u16, buffer: BufferPtr, next: Option<u16>) {
        let base = usize::from(index) * DESC_SIZE;
        let pointer = self.tagged(buffer.iova);
        self.memory.store64(base + 0x10, next.map_or(0, |next| self.element(next)));
        self.memory.store64(base + 0x18, pointer);
        self.store(index, 4, buffer.len, buffer.len);
        self.memory.store64(base + 0x28, pointer);
    }

    /// Writes the packet descriptor of a packet to transmit: its first descriptor.
    #[inline]
    pub(super) fn write_packet(&self, index: u16, info: TxPacketInfo, buffer: BufferPtr, next: Option<u16>) {
        self.store(index, 0, HOST | EPIB | PS_WORDS | info.len & LENGTH, TX_FLOW);
        self.store(index, 1, PACKET_TYPE | u32::from(info.return_ring), u32::from(info.port));
        self.store_buffer(index, buffer, next);
        self.store(index, 8, 0, 0);
        self.store(index, 9, info.checksum, 0);
    }

    /// Writes a buffer descriptor of a packet to transmit: a further descriptor.
    #[inline]
    pub(super) fn write_buffer(&self, index: u16, buffer: BufferPtr, next: Option<u16>) {
        self.store(index, 0, HOST, 0);
        self.store(index, 1, 0, 0);
        self.store_buffer(index, buffer, next);
    }

    /// Writes a free receive descriptor with its buffer and the next one of its chain.
    #[inline]
    pub(super) fn write_free(&self, index: u16, buffer: BufferPtr, return_ring: u16, next: Option<u16>) {
        self.store(index, 0, HOST | EPIB | PS_WORDS, 0);
        self.store(index, 1, u32::from(return_ring), 0);
        self.store_buffer(index, buffer, next);
    }

    /// Reads the buffer fields that the device wrote.
    #[inline]
    pub(super) fn read_buffer(&self, index: u16) -> RxBufferDesc {
        let base = usize::from(index) * DESC_SIZE;
        let len = (self.memory.load32(base + 0x20) & 0xfff_ffff) as usize;
        RxBufferDesc { len, next: self.memory.load64(base + 0x10) & ADDRESS }
    }

    /// Reads a receive packet descriptor that the device wrote.
    #[inline]
    pub(super) fn read(&self, index: u16) -> RxPacketDesc {
        let base = usize::from(index) * DESC_SIZE;
        let (info, tags) = (self.memory.load64(base), self.memory.load64(base + 8));
        let (info0, info1) = (info as u32, (info >> 32) as u32);
        // PS words follow the EPIB, if its bit is set.
        let ps = if info0 & EPIB != 0 { 0x40 } else { 0x30 };
        let has_ps = info0 >> 22 & 0x3f >= 3;
        RxPacketDesc {
            len: (info0 & LENGTH) as usize,
            buffer: self.read_buffer(index),
            port: (tags >> 48) as u8,
            error: (info1 >> 28) as u8,
            checksum: if has_ps { self.memory.load32(base + ps + 8) } else { 0 },
        }
    }
}
