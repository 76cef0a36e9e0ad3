//! What the engine coalesces, and where it puts the result.

use core::hint::black_box;

use towpath_wire::checksum;

use crate::offload::Offload;

/// A packet that can take in the payload of the packet that follows it in its flow.
///
/// A handle to a chain of buffers appends by chaining: no byte moves. A linear buffer appends by
/// copying ([`crate::Linear`]). The engine never looks further into a packet than
/// [`head`](Self::head) reaches, except to verify a checksum.
pub trait Segment: Sized {
    /// The contiguous bytes that the packet begins with.
    ///
    /// They should hold all headers. If they are only a part of the packet and end inside the
    /// headers, the packet's flow cannot be told: it passes unmerged, and to keep order everything
    /// held leaves before it.
    fn head(&self) -> &[u8];

    /// As [`head`](Self::head), to write the headers of an aggregate.
    fn head_mut(&mut self) -> &mut [u8];

    /// The length of the packet, in bytes.
    fn packet_len(&self) -> usize;

    /// What is known about the packet when it comes in.
    fn offload(&self) -> Offload;

    /// Stores what is to be said about the aggregate. Not called for a packet that merged with
    /// nothing: it leaves as it came.
    fn set_offload(&mut self, offload: Offload);

    /// A VLAN tag that came beside the packet: TPID in the high half, TCI in the low one; 0 for none.
    /// Packets with different tags are of different flows.
    #[inline]
    fn vlan(&self) -> u32 {
        0
    }

    /// The ones'-complement sum of the packet's bytes from `from`, which is in the head, to its end.
    /// To be overridden where the packet is scattered.
    #[inline]
    fn sum(&self, from: usize) -> u16 {
        checksum::sum(self.head().get(from..).unwrap_or_default())
    }

    /// Appends the bytes of `other` from `skip`, which is in its head, to its end.
    ///
    /// With `verify`, the bytes are unverified: they are right if their sum, added to `verify`
    /// ([`checksum::add`]), is [`checksum::VALID`]; otherwise nothing is appended. An implementation
    /// that copies sums while it does so; the others can use [`sum`](Self::sum).
    fn append(&mut self, other: Self, skip: usize, verify: Option<u16>) -> Appended<Self>;

    /// Brings the first cache lines of the packet near, some packets before it is pushed. The
    /// default touches the head; one with access to a prefetch instruction does better with it.
    #[inline]
    fn prefetch(&self) {
        black_box(self.head().first().copied());
    }

    /// Brings the rest of the packet near, if appending it will read it: to verify or to copy it. Called
    /// after [`prefetch`](Self::prefetch) while most packets merge.
    #[inline]
    fn prefetch_payload(&self) {}
}

/// What became of a packet that was to be appended.
#[derive(Debug)]
pub enum Appended<S> {
    /// It is part of the aggregate.
    Chained,
    /// Its bytes are part of the aggregate; this is the empty rest.
    Copied(S),
    /// There is no room for it.
    Full(S),
    /// Its checksum is wrong.
    Corrupt(S),
}

/// Where packets go. Closures that take a packet are sinks.
pub trait Sink<S> {
    /// A packet or super-packet that leaves.
    fn packet(&mut self, packet: S);

    /// A packet whose bytes left in another, for those who recycle buffers.
    #[inline]
    fn recycle(&mut self, spent: S) {
        drop(spent);
    }
}

impl<S, F: FnMut(S)> Sink<S> for F {
    #[inline]
    fn packet(&mut self, packet: S) {
        self(packet);
    }
}
