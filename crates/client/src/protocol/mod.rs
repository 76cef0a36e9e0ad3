//! What a datapath and an application say to each other, before rings and memory speak for themselves.
//!
//! ```text
//!   application                                        datapath, listening at PATH (UNIX, SOCK_SEQPACKET)
//!       │── Hello, rules in words, descriptor of the memory ──►│
//!       │◄── Welcome, descriptors of the rings and the kick ───│      or a Refusal, and the end
//!       │                                                      │
//!       │── kick (eventfd), only if the TX ring asks for it ──►│
//!       │◄── one byte, only if the RX ring asks for it ────────│
//!       │                                                      │
//!       └── either side closes the connection: the session is over
//! ```
//!
//! Every message is one record with its descriptors (`SCM_RIGHTS`), integers in little endian. The memory is a memfd that is sealed
//! against shrinking. The rings lie in one memfd that the datapath made, each as AF_XDP lays them out
//! ([`Layout`]).
//!
//! **Chunks.** The memory is an array of chunks of equal size. A chunk belongs to the application until its descriptor is in the
//! TX ring or its address in the FILL ring, and again once it has come back by the COMPLETION or the RX ring. A descriptor
//! lies inside of one chunk; a packet may be several descriptors, all but the last [continued](towpath_packet::xsk_ring::Desc::CONTINUED).
//! A received frame begins [`headroom`](Hello::headroom) bytes into its chunk. COMPLETION gives addresses back as they were sent.
//!
//! **Unaligned chunks** begin anywhere, and addresses have an offset in their upper 16 bits, as those of AF_XDP with
//! `XDP_UMEM_UNALIGNED_CHUNK_FLAG` do ([`Address`]). FILL takes where a chunk begins; RX gives that back with the offset of the frame. A
//! descriptor is no longer than a chunk. Nobody but the application knows which chunks there are, so nobody notices one that is
//! handed over twice: it harms nobody else.
//!
//! **Shared memory.** A session may use the memory of another, by its number; chunks belong to all of them together, and may be
//! received by one and sent by another. Sessions of the same memory with the same rules are one receiver: a packet goes to the one that lives
//! on the queue of the port that it comes through, or else to the first.
//!
//! **Budget.** A chunk on its way is charged to the session that sent it: all of it if chunks are aligned, the bytes that were sent if not.
//!
//! **What is not finished.** An application that [asks for it](Hello::offloads) gets super-packets whole, and packets whose checksum is
//! partial or was verified. The descriptor of the first piece has [`METADATA`](towpath_packet::xsk_ring::Desc::METADATA) in its options
//! then, and the ten bytes in front of the piece, in its headroom, are a virtio-net header, as TUN/TAP and AF_PACKET have it: kind and
//! size of the segments, where the checksum begins and lies.
//!
//! **Metadata of sent frames** ([`Hello::tx_metadata`]): a first descriptor with
//! [`METADATA`](towpath_packet::xsk_ring::Desc::METADATA) has so many bytes of metadata in front of its frame, in the same chunk. What they
//! ask for a device does, or the datapath.
//!
//! * [`HEADER`] bytes are a virtio-net header, as in front of received packets, so that what was received may be sent as it is. It asks for
//!   a checksum (`VIRTIO_NET_HDR_F_NEEDS_CSUM`; the field has the sum over the pseudo-header), and, in a session that said
//!   so ([`Hello::segmentation`]), for segmentation: a super-packet, in up to [`MAX_SUPER_PIECES`] pieces, that is cut into at most
//!   [`MAX_SEGMENTS`], none of them longer than the port sends. Its headers must be those of what `gso_type` names, outside of tunnels,
//!   within the first [`MAX_SUPER_HEADERS`] bytes, its checksum partial. `VIRTIO_NET_HDR_F_DATA_VALID` is allowed and means nothing:
//!   nobody takes the application's word for a checksum. `hdr_len` is a hint that nobody needs.
//! * More bytes are AF_XDP's metadata: 64 bits of flags, of which [`REQUEST_CHECKSUM`] is known, then 16 bits of where the sum begins, from
//!   the first byte of the packet, and 16 of where its field lies from there.
//!
//! **Waking.** `XDP_RING_NEED_WAKEUP` in the TX ring's flags: the datapath sleeps; the application writes to the kick after it has
//! published descriptors. The same bit in the RX ring's flags, which the application sets, and which is set at first: the datapath sends
//! a byte when there are new entries in the RX or COMPLETION ring. A byte on the connection, not an eventfd, because the datapath must
//! never wait for an application, and whether a write to a shared eventfd waits is for the application to say.
//!
//! **One descriptor,** for programs that were written for AF_XDP ([`Hello::one_descriptor`]): instead of the kick the application gets a
//! socket that behaves as an AF_XDP socket does. An empty record that is sent to it is a kick; it is readable as long as the RX ring has
//! entries, which the datapath sees to (when it has come to rest, within a millisecond after they were taken), and an application
//! that reads from it loses nothing. It is not writable as long as the datapath has left more in the TX ring than half of what it holds. The RX ring's flag has no meaning then.
//!
//! **What ends a session,** besides closing the connection: a counter that is ahead of its ring, a descriptor that is empty, leaves its
//! chunk or has options that do not exist, metadata that is not true of its packet, a chunk that the datapath has already, and any message
//! after the first.
//!
//! **Lenient sessions,** for programs that were written for AF_XDP ([`Hello::lenient`]), lose what they did wrong and go on: a descriptor that can't
//! be is counted and completed unsent, and so are the pieces in front of it; the next descriptor begins a packet. An entry of the FILL
//! ring that can't be is counted and skipped. Chunks are not watched: one that is handed over twice is used twice.
//!
//! **Statistics** ([`Rings::statistics`]) are counted by the datapath, which writes what it has counted and reads nothing back: who overwrites
//! them deceives nobody else.

mod answer;

mod hello;
mod statistics;

pub use answer::{Answer, Code, Refusal, Welcome};
pub use hello::Hello;
pub use statistics::{Statistic, Statistics};

use towpath_packet::xsk_ring::Layout;
use towpath_wire::virtio_net::VnetHeader;

/// `"TWPSOCK1"`, the first bytes of a [`Hello`] and of an answer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TWPSOCK1");
/// Version of all that is described here.
pub const VERSION: u32 = 1;
/// Longest text of rules, in bytes.
pub const MAX_RULES: usize = 4096;
/// Pieces that a packet may have.
pub const MAX_PIECES: usize = 18;
/// Pieces that a super-packet may have; one that would be received in more comes as segments.
pub const MAX_SUPER_PIECES: usize = 64;
/// Segments that a sent super-packet may ask for, as many as Linux cuts one of UDP into (`UDP_MAX_SEGMENTS`).
pub const MAX_SEGMENTS: usize = 128;
/// Bytes of headers that a sent super-packet may have.
pub const MAX_SUPER_HEADERS: usize = 256;
/// Bytes of the virtio-net header (`struct virtio_net_hdr`, virtio 1.2 §5.1.6, in the machine's byte order) in front of a packet that is
/// not finished.
pub const HEADER: usize = VnetHeader::LEN;
/// Flag in the metadata of a sent frame: a checksum is to be completed (`XDP_TXMD_FLAGS_CHECKSUM`).
pub const REQUEST_CHECKSUM: u64 = 2;
/// Chunk sizes in bytes; powers of two, if chunks are aligned.
pub const CHUNK: std::ops::RangeInclusive<u32> = 256..=32768;
/// Ring sizes in entries, powers of two.
pub const RING: std::ops::RangeInclusive<u32> = 2..=32768;
/// Chunks that the memory may have.
pub const MAX_CHUNKS: u64 = 1 << 20;

/// Entries of the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Chunks to receive into.
    pub fill: u32,
    /// Chunks that were sent.
    pub completion: u32,
    /// Frames that were received.
    pub rx: u32,
    /// Frames to send.
    pub tx: u32,
}

impl Sizes {
    /// The same size for all.
    pub const fn all(size: u32) -> Sizes {
        Sizes { fill: size, completion: size, rx: size, tx: size }
    }

    fn each(self) -> [u32; 4] {
        [self.fill, self.completion, self.rx, self.tx]
    }
}

/// An address of [unaligned](Hello::unaligned) chunks: where the chunk begins in the lower 48 bits, the offset in it above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// First byte of the chunk.
    pub base: u64,
    /// From there to the frame.
    pub offset: u16,
}

impl Address {
    /// Where the offset begins (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
    const SHIFT: u32 = 48;

    /// Takes an address apart.
    #[inline]
    pub const fn of(word: u64) -> Address {
        Address { base: word & ((1 << Address::SHIFT) - 1), offset: (word >> Address::SHIFT) as u16 }
    }

    /// The address as it stands in a ring.
    #[inline]
    pub const fn word(self) -> u64 {
        (self.base & ((1 << Address::SHIFT) - 1)) | ((self.offset as u64) << Address::SHIFT)
    }

    /// First byte of the frame.
    #[inline]
    pub const fn at(self) -> u64 {
        self.base + self.offset as u64
    }
}

/// Where the rings lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings {
    /// RX.
    pub rx: Layout,
    /// TX.
    pub tx: Layout,
    /// FILL.
    pub fill: Layout,
    /// COMPLETION.
    pub completion: Layout,
    /// Not a ring, but laid out as one of [`Statistic::ENTRIES`] entries, which are the session's [`Statistics`]: the datapath writes them.
    pub statistics: Layout,
}

impl Rings {
    /// One behind the other; returns how many bytes they need. FILL and COMPLETION come first, so that where they lie does not depend
    /// on the other two, which a program of AF_XDP's chooses later.
    pub const fn lay_out(sizes: &Sizes) -> (Rings, u64) {
        let fill = Layout::at(0);
        let completion_at = Layout::bytes(sizes.fill, 1);
        let rx_at = completion_at + Layout::bytes(sizes.completion, 1);
        let tx_at = rx_at + Layout::bytes(sizes.rx, 2);
        let statistics_at = tx_at + Layout::bytes(sizes.tx, 2);
        let end = statistics_at + Layout::bytes(Statistic::ENTRIES, 1);
        let (rx, tx, completion) = (Layout::at(rx_at), Layout::at(tx_at), Layout::at(completion_at));
        (Rings { rx, tx, fill, completion, statistics: Layout::at(statistics_at) }, end)
    }
}

/// Why a message can't be read, or what breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not a message of this protocol.
    #[error("not a message of this protocol")]
    Magic,
    /// It is of another version.
    #[error("version {0}, not {VERSION}")]
    Version(u32),
    /// It is shorter or longer than it says.
    #[error("a length that cannot be")]
    Length,
    /// Flags that this version does not know.
    #[error("unknown flags {0:#x}")]
    Flags(u32),
    /// Rules that are no text.
    #[error("rules that are no text")]
    Text,
    /// A number out of its range.
    #[error("{what} = {value}: must be {rule}")]
    Value {
        /// Which.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// Integers from the front of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*first)
    }
    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
