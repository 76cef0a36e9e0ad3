//! The protocol between an application and a datapath: the messages at the beginning, and what both
//! sides then do with rings and memory.
//!
//! This module describes; it holds what both sides need. An application writes a [`Hello`]
//! ([`Hello::encode`]) and reads an [`Answer`] ([`Answer::decode`]). The datapath's halves, which
//! read the one and write the other, are `towpath_ports::sock`'s own.
//! [`Session::open`](crate::Session::open) is the application's side of the handshake.
//!
//! | file | |
//! |---|---|
//! | `mod` | the rules of rings and memory, and their layout |
//! | `hello`, `answer` | [`Hello`]; [`Answer`]: a [`Welcome`] or a refusal |
//! | `statistics` | what the datapath counts for a session |
//!
//! ```text
//!   application                                        datapath, at PATH (UNIX, SOCK_SEQPACKET)
//!       │── Hello, rules as text, descriptor of the memory ───►│
//!       │◄── Welcome, descriptors of the rings and the kick ───│      or a Refusal, and the end
//!       │                                                      │
//!       │── kick (eventfd), only if the TX ring asks for it ──►│
//!       │◄── one byte, only if the RX ring asks for it ────────│
//!       │                                                      │
//!       │── Goodbye, one byte ────────────────────────────────►│      an application that ends in order
//!       │                                                      │
//!       └── either side closes the connection: the session is over
//! ```
//!
//! Every message is one record with its descriptors (`SCM_RIGHTS`), with integers in little endian.
//! The memory is a memfd that is sealed against shrinking, and of which all pages exist. The rings
//! lie in one memfd of the datapath, each as AF_XDP lays them out ([`Layout`]).
//!
//! **Chunks.** The memory is an array of chunks of equal size. A chunk belongs to the application
//! until its descriptor is in the TX ring or its address in the FILL ring, and again once it has
//! come back by the COMPLETION or the RX ring. A descriptor lies inside of one chunk. A packet may
//! be several descriptors, all but the last [continued](towpath_packet::xsk_ring::Desc::CONTINUED).
//! A received frame begins [`headroom`](Hello::headroom) bytes into its chunk. COMPLETION returns
//! addresses as they were sent.
//!
//! **Unaligned chunks** begin anywhere. Addresses have an offset in their upper 16 bits, as those
//! of AF_XDP with `XDP_UMEM_UNALIGNED_CHUNK_FLAG` ([`Address`]). FILL takes the beginning of a
//! chunk; RX returns it with the offset of the frame. A descriptor is no longer than a chunk. Only
//! the application knows the chunks, so the datapath cannot notice one that is handed over twice;
//! that affects no other application.
//!
//! **Shared memory.** A session may use the memory of another one, by its number. The chunks belong
//! to all of these sessions together: one may receive a chunk and another one send it. Sessions of
//! the same memory with the same rules are one receiver: a packet goes to the session whose queue
//! of the port it comes through, or else to the first session.
//!
//! **Budget.** A chunk in flight is charged to the session that sent it: all of it if chunks are
//! aligned, the bytes that were sent if not.
//!
//! **Offloads on receipt.** An application that [asks for them](Hello::offloads) gets super-packets
//! whole, and packets whose checksum is partial or was verified. The descriptor of the first piece
//! then has [`METADATA`](towpath_packet::xsk_ring::Desc::METADATA) in its options. The ten bytes in
//! front of the piece, in its headroom, are a virtio-net header, as TUN/TAP and AF_PACKET have it:
//! kind and size of the segments, start and place of the checksum.
//!
//! **Metadata of sent frames** ([`Hello::tx_metadata`]): a first descriptor with
//! [`METADATA`](towpath_packet::xsk_ring::Desc::METADATA) has that many bytes of metadata in front
//! of its frame, in the same chunk. A device does what they ask for, or the datapath.
//!
//! * [`HEADER`] bytes are a virtio-net header, as in front of received packets, so that a received
//!   packet may be sent as it is. It asks for a checksum (`VIRTIO_NET_HDR_F_NEEDS_CSUM`; the field
//!   holds the sum over the pseudo-header). In a session that declared it ([`Hello::segmentation`])
//!   it may ask for segmentation: a super-packet, in up to [`MAX_SUPER_PIECES`] pieces, becomes at
//!   most [`MAX_SEGMENTS`] segments, none of them longer than the port sends. Its headers must be
//!   those of `gso_type`, outside of tunnels, within the first [`MAX_SUPER_HEADERS`] bytes, its
//!   checksum partial. `VIRTIO_NET_HDR_F_DATA_VALID` is allowed and ignored: the datapath does not
//!   trust an application's checksum. `hdr_len` is ignored too.
//! * More bytes are AF_XDP's metadata: 64 bits of flags, of which [`REQUEST_CHECKSUM`] is known,
//!   then 16 bits with the start of the sum, from the first byte of the packet, and 16 with the
//!   place of its field from there.
//!
//! **Waking.** `XDP_RING_NEED_WAKEUP` in the TX ring's flags: the datapath sleeps, and the
//! application writes to the kick after it has submitted descriptors. The same bit in the RX ring's
//! flags, which the application sets and which is set at first: the datapath sends a byte when
//! there are new entries in the RX or COMPLETION ring. It is a byte on the connection, not an
//! eventfd, because the datapath must never block on an application, and the application decides
//! whether a write to a shared eventfd blocks. [`towpath_packet::notify`] shows why no wake-up is
//! lost.
//!
//! **One descriptor,** for programs that were written for AF_XDP ([`Hello::one_descriptor`]): in
//! place of the kick the application gets a socket that behaves as an AF_XDP socket. An empty
//! record that is sent to it is a kick. It is readable as long as the RX ring has entries (with a
//! delay of at most a millisecond after they were taken, once the datapath sleeps), and an
//! application that reads from it loses nothing. It is not writable as long as the datapath has
//! left the TX ring more than half full. The RX ring's flag then has no meaning.
//!
//! **End of a session.** Besides a closed connection, these end a session: a counter that is ahead
//! of its ring; a descriptor that is empty, leaves its chunk or has unknown options; metadata that
//! is not true of its packet; a chunk that the datapath already has; any message after the first.
//!
//! **Sessions that skip invalid descriptors,** for programs that were written for AF_XDP
//! ([`Hello::skip_invalid`]), lose the descriptor and continue. An invalid descriptor is counted
//! and completed unsent, and so are the pieces in front of it; the next descriptor begins a packet.
//! An invalid entry of the FILL ring is counted and skipped. Chunks are not tracked: one that is
//! handed over twice is used twice.
//!
//! **Statistics** ([`Rings::statistics`]) are counted by the datapath, which writes its counts and
//! never reads them back: an application that overwrites them deceives only itself. They count what
//! became of its packets, by reason, and stay readable after the end of the session. A completion
//! does not tell whether a frame was sent: the datapath has completed it unsent if one of the
//! counters `tx_…` but [`tx_ring_empty_descs`](Statistics::tx_ring_empty_descs) has grown.

mod answer;
mod hello;
mod statistics;

pub use answer::{Answer, Code, Refusal, Welcome};
pub use hello::Hello;
pub use statistics::{Statistic, Statistics};

use towpath_packet::xsk_ring::Layout;
use towpath_wire::ethernet;
use towpath_wire::offload::MAX_UDP_SEGMENTS;
use towpath_wire::virtio_net::VnetHeader;

/// `"TWPSOCK1"`, the first bytes of a [`Hello`] and of an [`Answer`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"TWPSOCK1");
/// Version of this description.
pub const VERSION: u32 = 1;
/// The last record of an application that ends its session in order: one byte.
pub const GOODBYE: u8 = 0xbe;
/// Longest text of rules, in bytes.
pub const MAX_RULES: usize = 4096;
/// Bytes of the shortest packet: an Ethernet header.
pub const SHORTEST: u32 = ethernet::HEADER_LEN as u32;
/// Pieces that a packet may have.
pub const MAX_PIECES: usize = 18;
/// Pieces that a super-packet may have. The datapath segments one that would be received in more.
pub const MAX_SUPER_PIECES: usize = 64;
/// Segments that a sent super-packet may ask for: Linux's maximum for UDP (`UDP_MAX_SEGMENTS`).
pub const MAX_SEGMENTS: usize = MAX_UDP_SEGMENTS;
/// Bytes of headers that a sent super-packet may have.
pub const MAX_SUPER_HEADERS: usize = 256;
/// Bytes of the virtio-net header (`struct virtio_net_hdr`, [virtio 1.2 §5.1.6], in the machine's
/// byte order) in front of a packet with offloads.
///
/// [virtio 1.2 §5.1.6]: https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html
pub const HEADER: usize = VnetHeader::LEN;
/// Flag in the metadata of a sent frame: a checksum is to be completed (`XDP_TXMD_FLAGS_CHECKSUM`).
pub const REQUEST_CHECKSUM: u64 = 2;
/// Chunk sizes in bytes; powers of two if chunks are aligned.
pub const CHUNK: std::ops::RangeInclusive<u32> = 256..=32768;
/// Ring sizes in entries; powers of two.
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

/// An address of [unaligned](Hello::unaligned) chunks: the beginning of the chunk in the lower 48
/// bits, the offset from there in the upper 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// First byte of the chunk.
    pub base: u64,
    /// From there to the frame.
    pub offset: u16,
}

impl Address {
    /// The lowest bit of the offset (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
    const SHIFT: u32 = 48;

    /// The address that a word in a ring stands for.
    #[inline]
    pub const fn of(word: u64) -> Address {
        Address { base: word & ((1 << Address::SHIFT) - 1), offset: (word >> Address::SHIFT) as u16 }
    }

    /// The word that stands for the address in a ring.
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

/// The places of the rings in their memory.
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
    /// Not a ring, but laid out as one of [`Statistic::ENTRIES`] entries: the session's
    /// [`Statistics`], which the datapath writes.
    pub statistics: Layout,
}

impl Rings {
    /// Lays out rings one behind the other. Returns their layout and the number of bytes. FILL and
    /// COMPLETION come first: their place does not depend on the sizes of the other two, which an
    /// AF_XDP program chooses later.
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

/// Why a message can't be read, or which rule it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It is not a message of this protocol.
    #[error("not a message of this protocol")]
    Magic,
    /// It is of another version.
    #[error("version {0}, not {VERSION}")]
    Version(u32),
    /// Its length is not the one that it states.
    #[error("a length that cannot be")]
    Length,
    /// It has flags that this version does not know.
    #[error("unknown flags {0:#x}")]
    Flags(u32),
    /// Its rules are not UTF-8.
    #[error("rules that are no text")]
    Text,
    /// A number is out of its range.
    #[error("{what}={value}: must be {rule}")]
    Value {
        /// Its name.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// Reads integers from the front of a message. What is left is the text at its end.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next four bytes.
    ///
    /// # Errors
    /// [`Malformed::Length`] if there are fewer.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    ///
    /// # Errors
    /// [`Malformed::Length`] if there are fewer.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
