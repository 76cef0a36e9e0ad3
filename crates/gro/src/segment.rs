//! The packets that the engine coalesces, and the sink of the result.

use core::hint::black_box;

use towpath_wire::checksum;
use towpath_wire::offload::Checksum;

use crate::offload::Offload;

/// Whether packets of this type are handles: a word or two.
pub(crate) const fn is_handle<S>() -> bool {
    size_of::<S>() <= 2 * size_of::<usize>()
}

/// A packet to which the payload of the next packet in its flow can be appended.
///
/// A handle to a chain of buffers appends by chaining: no byte moves. A linear buffer appends by
/// copying ([`crate::Linear`]). The engine never looks further into a packet than
/// [`head`](Self::head) reaches, except to verify a checksum.
pub trait Segment: Sized {
    /// The contiguous bytes that the packet begins with.
    ///
    /// They should hold all headers. If they are only a part of the packet and end inside the
    /// headers, the packet's flow is unknown: it passes unmerged, and to keep order everything held
    /// leaves before it.
    fn head(&self) -> &[u8];

    /// As [`head`](Self::head), to write the headers of an aggregate.
    fn head_mut(&mut self) -> &mut [u8];

    /// The length of the packet, in bytes.
    fn packet_len(&self) -> usize;

    /// The metadata of an incoming packet.
    fn offload(&self) -> Offload;

    /// Stores the metadata of the aggregate. Not called for a packet that merged with nothing: it
    /// leaves unchanged.
    fn set_offload(&mut self, offload: Offload);

    /// A VLAN tag that came beside the packet: TPID in the high half, TCI in the low one; 0 for
    /// none. Packets with different tags are of different flows.
    #[inline]
    fn vlan(&self) -> u32 {
        0
    }

    /// Whether the packet is no super-packet, has no tag beside it, and its checksum is verified.
    /// Override it if that is one comparison.
    #[inline]
    fn is_ordinary(&self) -> bool {
        let offload = self.offload();
        offload.checksum == Checksum::Verified && offload.gso.is_none() && self.vlan() == 0
    }

    /// The ones'-complement sum of the packet's bytes from `from`, which is in the head, to its
    /// end. Override it if the packet is scattered.
    #[inline]
    fn sum(&self, from: usize) -> u16 {
        checksum::sum(self.head().get(from..).unwrap_or_default())
    }

    /// Appends the bytes of `other` from `skip`, which is in its head, to its end.
    ///
    /// With `verify`, the bytes are unverified: they are right if their sum, added to `verify`
    /// ([`checksum::add`]), is [`checksum::VALID`]; otherwise nothing is appended. An
    /// implementation that copies can sum in the same pass; others can use [`sum`](Self::sum).
    fn append(&mut self, other: Self, skip: usize, verify: Option<u16>) -> Appended<Self>;

    /// Prefetches the first cache lines of the packet, some packets before it is pushed. The
    /// default reads the first byte; an implementation with a prefetch instruction is better.
    #[inline]
    fn prefetch(&self) {
        black_box(self.head().first().copied());
    }

    /// Prefetches the rest of the packet, if appending reads it to verify or to copy. Called after
    /// [`prefetch`](Self::prefetch) while most packets merge.
    #[inline]
    fn prefetch_payload(&self) {}
}

/// The result of [`Segment::append`].
#[derive(Debug)]
pub enum Appended<S> {
    /// The packet is part of the aggregate.
    Chained,
    /// The packet's bytes are part of the aggregate; its buffer is returned.
    Copied(S),
    /// There is no room for it.
    Full(S),
    /// Its checksum is wrong.
    Corrupt(S),
}

/// The destination of packets, and of buffers that are spent.
///
/// A pair of closures is a sink: `(|packet| send(packet), |spent| pool.push(spent))`. The second
/// one is `drop` where buffers have no pool:
///
/// ```
/// use towpath_gro::{Gro, GroConfig, Linear, Offload, Segment};
///
/// let mut gro = Gro::new(GroConfig::default());
/// let mut left = Vec::new();
/// let burst = [Linear::new(vec![0; 2048], 60, Offload::default())];
/// gro.push_and_flush(burst, &mut (|packet: Linear<_>| left.push(packet.packet_len()), drop));
/// assert_eq!(left, [60]);
/// ```
pub trait Sink<S> {
    /// Takes a packet or super-packet that leaves.
    fn packet(&mut self, packet: S);

    /// Takes the buffer of a packet whose bytes were copied into another: to use it again, or to
    /// drop it. An engine over linear buffers spends most of those that it is given.
    fn recycle(&mut self, spent: S);
}

impl<S, P: FnMut(S), R: FnMut(S)> Sink<S> for (P, R) {
    #[inline]
    fn packet(&mut self, packet: S) {
        (self.0)(packet);
    }

    #[inline]
    fn recycle(&mut self, spent: S) {
        (self.1)(spent);
    }
}
