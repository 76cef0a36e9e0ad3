//! A packet in the caller's small buffers, as the engine coalesces it.
//!
//! ```text
//!   first: [ … | headers | payload ]   then: [ … | payload ] ─► [ … | payload ] ─►
//!              └ start                             └ start: behind the headers
//! ```
//!
//! Appending links a buffer; no byte moves. Each buffer lies in a node that is taken from a free
//! list and returned to it, so nothing is allocated after as many nodes were made as buffers are
//! held at a time.

use std::fmt;
use std::ops::Range;
use towpath_gro::{Appended, Offload, Segment};
use towpath_sys::uio::{IoVec, Pieces};
use towpath_wire::checksum;

/// Most buffers of one aggregate: far below what `writev(2)` takes (`IOV_MAX`, 1024).
pub const MAX_BUFFERS: usize = 256;

/// A packet in one of the caller's buffers, or an aggregate of several.
///
/// `B` is any owned buffer: `Vec<u8>`, `Box<[u8]>`, `BytesMut`, a handle of a pool.
pub struct Chain<B>(Box<Node<B>>);

struct Node<B> {
    /// `None` only in the free list.
    buffer: Option<B>,
    start: u32,
    len: u32,
    /// Bytes of all buffers.
    total: u32,
    buffers: u16,
    /// Segments that have been written of a packet that is cut.
    written: u16,
    offload: Offload,
    /// The further buffers: the last one first until the aggregate is complete, then in order.
    next: Option<Box<Node<B>>>,
}

impl<B: AsRef<[u8]>> Node<B> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        let range = self.start as usize..self.start as usize + self.len as usize;
        self.buffer.as_ref().and_then(|buffer| buffer.as_ref().get(range)).unwrap_or_default()
    }
}

impl<B: AsRef<[u8]>> Chain<B> {
    /// The bytes of the packet, buffer by buffer.
    pub fn buffers(&self) -> Buffers<'_, B> {
        Buffers(Some(&self.0))
    }

    /// Copies the packet to the beginning of `to`; returns its length. `None` if `to` is shorter.
    pub fn copy_to(&self, to: &mut [u8]) -> Option<usize> {
        let mut rest = to.get_mut(..self.len())?;
        for bytes in self.buffers() {
            let (now, later) = rest.split_at_mut_checked(bytes.len())?;
            now.copy_from_slice(bytes);
            rest = later;
        }
        Some(self.len())
    }

    /// The length of the packet, in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a packet has headers")]
    pub fn len(&self) -> usize {
        self.0.total as usize
    }

    pub(crate) fn written(&self) -> u16 {
        self.0.written
    }

    pub(crate) fn set_written(&mut self, segments: u16) {
        self.0.written = segments;
    }
}

/// The bytes of a [`Chain`].
pub struct Buffers<'a, B>(Option<&'a Node<B>>);

impl<B> Clone for Buffers<'_, B> {
    fn clone(&self) -> Self {
        Buffers(self.0)
    }
}

impl<'a, B: AsRef<[u8]>> Iterator for Buffers<'a, B> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let node = self.0?;
        self.0 = node.next.as_deref();
        Some(node.bytes())
    }
}

impl<B: AsRef<[u8]>> Pieces for Chain<B> {
    #[inline]
    fn count(&self) -> usize {
        self.0.buffers.into()
    }

    #[inline]
    fn pieces(&self) -> impl Iterator<Item = IoVec<'_>> {
        self.buffers().map(IoVec::new)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Segment for Chain<B> {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.bytes()
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let range = self.0.start as usize..self.0.start as usize + self.0.len as usize;
        self.0.buffer.as_mut().and_then(|buffer| buffer.as_mut().get_mut(range)).unwrap_or_default()
    }

    #[inline]
    fn packet_len(&self) -> usize {
        self.0.total as usize
    }

    #[inline]
    fn offload(&self) -> Offload {
        self.0.offload
    }

    /// The aggregate is complete: its buffers are put in order.
    fn set_offload(&mut self, offload: Offload) {
        self.0.offload = offload;
        let (mut last_first, mut in_order) = (self.0.next.take(), None);
        while let Some(mut node) = last_first {
            last_first = std::mem::replace(&mut node.next, in_order);
            in_order = Some(node);
        }
        self.0.next = in_order;
    }

    #[inline]
    fn append(&mut self, mut other: Self, skip: usize, verify: Option<u16>) -> Appended<Self> {
        let payload = other.head().get(skip..).unwrap_or_default();
        let len = payload.len() as u32;
        if usize::from(self.0.buffers) >= MAX_BUFFERS || other.0.next.is_some() {
            return Appended::Full(other);
        }
        if let Some(rest) = verify
            && checksum::add(rest, checksum::sum(payload)) != checksum::VALID
        {
            return Appended::Corrupt(other);
        }
        other.0.start += other.0.len - len;
        other.0.len = len;
        other.0.next = self.0.next.take();
        self.0.next = Some(other.0);
        self.0.total += len;
        self.0.buffers += 1;
        Appended::Chained
    }
}

impl<B> fmt::Debug for Chain<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { total, buffers, offload, .. } = &*self.0;
        f.debug_struct("Chain").field("len", total).field("buffers", buffers).field("offload", offload).finish()
    }
}

/// The nodes of [`Chain`]s that are not in use.
pub struct Nodes<B>(Option<Box<Node<B>>>);

impl<B> Default for Nodes<B> {
    fn default() -> Nodes<B> {
        Nodes(None)
    }
}

impl<B: AsRef<[u8]>> Nodes<B> {
    /// No nodes: they are made when they are needed.
    pub fn new() -> Nodes<B> {
        Nodes::default()
    }

    /// The bytes `packet` of `buffer` as a packet; as far as the buffer has them.
    #[inline]
    pub fn chain(&mut self, buffer: B, packet: Range<usize>, offload: Offload) -> Chain<B> {
        let bytes = buffer.as_ref().len().min(u32::MAX as usize);
        let end = packet.end.min(bytes);
        let start = packet.start.min(end);
        let len = (end - start) as u32;
        let node = Node {
            buffer: Some(buffer),
            start: start as u32,
            len,
            total: len,
            buffers: 1,
            written: 0,
            offload,
            next: None,
        };
        match self.0.take() {
            Some(mut free) => {
                self.0 = free.next.take();
                *free = node;
                Chain(free)
            }
            None => Chain(Box::new(node)),
        }
    }

    /// Takes a packet apart: its buffers go to `spent`, its nodes to the free list.
    #[inline]
    pub fn recycle(&mut self, chain: Chain<B>, spent: &mut impl FnMut(B)) {
        let mut next = Some(chain.0);
        while let Some(mut node) = next {
            next = node.next.take();
            if let Some(buffer) = node.buffer.take() {
                spent(buffer);
            }
            node.next = self.0.take();
            self.0 = Some(node);
        }
    }
}

impl<B> Drop for Nodes<B> {
    /// Frees the list node by node: it may be long.
    fn drop(&mut self) {
        while let Some(mut node) = self.0.take() {
            self.0 = node.next.take();
        }
    }
}

impl<B> fmt::Debug for Nodes<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nodes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_gro::{Gro, GroConfig, Linear, LinkKind};
    use towpath_wire::emit::{self, Headers, Ip, Network, Tcp, Transport, Udp};
    use towpath_wire::tcp::flags::{ACK, PSH};

    #[test]
    fn an_aggregate_lists_its_buffers_in_order_and_gives_them_back() {
        let mut nodes = Nodes::new();
        let mut of = |bytes: &[u8]| nodes.chain(bytes.to_vec(), 1..bytes.len(), Offload::default());
        let mut first = of(b"_H0ab");
        for other in [of(b"_H1cd"), of(b"_H2ef")] {
            assert!(matches!(first.append(other, 2, None), Appended::Chained));
        }
        first.set_offload(Offload::default());
        assert_eq!(first.buffers().collect::<Vec<_>>(), [&b"H0ab"[..], b"cd", b"ef"]);
        let mut copy = [0; 9];
        assert_eq!((first.copy_to(&mut copy), &copy), (Some(8), b"H0abcdef\0"));
        assert_eq!(first.copy_to(&mut copy[..7]), None);
        let mut spent = Vec::new();
        nodes.recycle(first, &mut |buffer| spent.push(buffer));
        assert_eq!(spent, [b"_H0ab", b"_H1cd", b"_H2ef"]);
    }

    #[test]
    fn a_packet_whose_sum_is_wrong_is_not_appended() {
        let mut nodes = Nodes::new();
        let mut of = |bytes: &[u8]| nodes.chain(bytes.to_vec(), 0..bytes.len(), Offload::default());
        let mut first = of(b"ab");
        assert!(matches!(first.append(of(b"cd"), 0, Some(0)), Appended::Corrupt(_)));
        let right = !checksum::sum(b"cd");
        assert!(matches!(first.append(of(b"cd"), 0, Some(right)), Appended::Chained));
    }

    #[test]
    fn an_aggregate_of_as_many_buffers_as_one_call_takes_is_full() {
        let mut nodes = Nodes::new();
        let mut of = || nodes.chain([7u8; 8], 0..8, Offload::default());
        let mut first = of();
        for _ in 1..MAX_BUFFERS {
            assert!(matches!(first.append(of(), 0, None), Appended::Chained));
        }
        assert!(matches!(first.append(of(), 0, None), Appended::Full(_)));
        assert_eq!((first.count(), first.pieces().count()), (MAX_BUFFERS, MAX_BUFFERS));
    }

    #[test]
    fn a_range_beyond_the_buffer_is_cut_to_it() {
        let chain = Nodes::new().chain(vec![1, 2, 3], 2..9, Offload::default());
        assert_eq!(chain.head(), [3]);
        assert_eq!(Nodes::new().chain(vec![1, 2, 3], 5..9, Offload::default()).len(), 0);
    }

    /// Packets of three flows, TCP and UDP, most of one size, some corrupt.
    fn burst(mut random: impl FnMut() -> usize) -> Vec<Vec<u8>> {
        let mut seq = [0u32; 3];
        let packet = |_| {
            let (flow, one) = (random() % 3, random());
            let size = if one.is_multiple_of(8) { 1 + random() % 1200 } else { 1200 };
            let transport = if flow == 2 {
                Transport::Udp(Udp { src_port: 5000, dst_port: 53 })
            } else {
                let flags = if one.is_multiple_of(5) { ACK | PSH } else { ACK };
                Transport::Tcp(Tcp { src_port: 5000, dst_port: 80, seq: seq[flow], flags, ..Tcp::default() })
            };
            seq[flow] += size as u32;
            let network = Network::Ip(Ip::v4([10, 0, 0, flow as u8], [10, 0, 1, 1]), transport);
            let headers = Headers { link: None, network };
            let mut bytes = vec![one as u8; headers.len() + size];
            headers.write(&mut bytes, emit::Checksums::Complete).unwrap();
            if random().is_multiple_of(16) {
                *bytes.last_mut().unwrap() ^= 1;
            }
            bytes
        };
        (0..64).map(packet).collect()
    }

    #[test]
    fn an_aggregate_in_small_buffers_is_the_same_as_one_that_was_copied() {
        let mut state = 1u64;
        let config = || GroConfig::default().link(LinkKind::Ip).seed(7);
        let (mut chained, mut copied) = (Gro::new(config()), Gro::new(config()));
        for _ in 0..20 {
            let burst = burst(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            });
            let (mut small, mut large) = (Vec::new(), Vec::new());
            let mut nodes = Nodes::new();
            for bytes in burst {
                chained.push(
                    nodes.chain(bytes.clone(), 0..bytes.len(), Offload::default()),
                    0,
                    &mut (|p: Chain<_>| small.push((p.offload(), p.buffers().collect::<Vec<_>>().concat())), drop),
                );
                let (mut buffer, len) = (vec![0; 65535], bytes.len());
                buffer[..len].copy_from_slice(&bytes);
                copied.push(
                    Linear::new(buffer, len, Offload::default()),
                    0,
                    &mut (|p: Linear<_>| large.push((p.offload(), p.packet().to_vec())), drop),
                );
            }
            chained.flush_all(&mut (
                |p: Chain<_>| small.push((p.offload(), p.buffers().collect::<Vec<_>>().concat())),
                drop,
            ));
            copied.flush_all(&mut (|p: Linear<_>| large.push((p.offload(), p.packet().to_vec())), drop));
            assert!(small == large && small.len() < 64, "{} and {}", small.len(), large.len());
        }
        assert_eq!(chained.stats(), copied.stats());
        assert!(chained.stats().merged > 600, "{:?}", chained.stats());
    }
}
