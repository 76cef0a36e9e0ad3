//! The headers of a TCP/IPv4 frame, with or without a VLAN tag, are found.

use crate::{BURST, Turns};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use towpath_wire::dissect::Flags;
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport};
use towpath_wire::ip::{mapped, protocol};
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{Dissected, FlowKey, LinkKind, dissect};

const VLAN: u16 = 0x8100;
const IPV4: u16 = 0x0800;

/// One side of the job.
pub trait Dissect {
    fn dissect(frame: &[u8]) -> Dissected;
}

/// The dissector.
pub struct Ours;

impl Dissect for Ours {
    #[inline(always)]
    fn dissect(frame: &[u8]) -> Dissected {
        dissect(frame, LinkKind::Ethernet)
    }
}

/// Frames of this one kind, whole, without IP options. The offsets are constants.
pub struct Floor<const TAGS: usize>;

impl<const TAGS: usize> Floor<TAGS> {
    const L3: usize = 14 + 4 * TAGS;

    #[inline(always)]
    fn find(frame: &[u8]) -> Option<Dissected> {
        // The headers with a tag, without TCP's last fields.
        let head: &[u8; 52] = frame.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let l3 = Self::L3;
        let tag = if TAGS > 0 { Tag { tpid: VLAN, tci: Tci(word(14)) } } else { Tag::default() };
        if TAGS > 0 && word(12) != VLAN || word(l3 - 2) != IPV4 || head[l3] != 0x45 || word(l3 + 6) & 0x3fff != 0 {
            return None;
        }
        let (end, header) = (l3 + usize::from(word(l3 + 2)), usize::from(head[l3 + 32] >> 4) * 4);
        if head[l3 + 9] != protocol::TCP || header < 20 || l3 + 20 + header > end || end > frame.len() {
            return None;
        }
        let address = |at: usize| mapped([head[at], head[at + 1], head[at + 2], head[at + 3]].into());
        let (src, dst) = (address(l3 + 12), address(l3 + 16));
        let (src_port, dst_port) = (word(l3 + 20), word(l3 + 22));
        let padded = if end < frame.len() { Flags::PADDED } else { Flags::default() };
        Some(Dissected {
            flow: FlowKey { src, dst, src_port, dst_port, protocol: protocol::TCP },
            tags: [tag, Tag::default()],
            ethertype: IPV4,
            l3: l3 as u16,
            l4: l3 as u16 + 20,
            payload: (l3 + 20 + header) as u16,
            end: end as u32,
            flags: Flags::IPV4 | Flags::PORTS | padded,
            tcp_flags: head[l3 + 33],
            ..Dissected::default()
        })
    }
}

impl<const TAGS: usize> Dissect for Floor<TAGS> {
    #[inline(always)]
    fn dissect(frame: &[u8]) -> Dissected {
        Self::find(frame).unwrap_or_default()
    }
}

/// Dissects a burst of frames.
pub struct Frames<D> {
    frames: Vec<Vec<u8>>,
    found: Vec<Dissected>,
    sum: u64,
    how: std::marker::PhantomData<D>,
}

impl<D: Dissect> Frames<D> {
    pub fn new(tags: usize) -> Frames<D> {
        let frame = |n: u16| {
            let tag = if tags > 0 { Tag { tpid: VLAN, tci: Tci(n) } } else { Tag::default() };
            let link = Some(Link { tags: [tag, Tag::default()], ..Link::default() });
            let tcp = Tcp { src_port: 1000 + n, dst_port: 443, flags: 0x10, ..Tcp::default() };
            let ip = Ip::v4([10, 0, 0, n as u8], [10, 0, 1, 2]);
            let headers = Headers { link, network: Network::Ip(ip, Transport::Tcp(tcp)) };
            let mut frame = vec![0; headers.len() + 64];
            headers.write(&mut frame, Checksums::Complete).expect("a frame of legal length");
            frame
        };
        let frames = (0..BURST as u16).map(frame).collect();
        Frames { frames, found: vec![Dissected::default(); BURST], sum: 0, how: std::marker::PhantomData }
    }
}

impl<D: Dissect> Turns for Frames<D> {
    #[inline]
    fn turn(&mut self) -> usize {
        for (frame, found) in self.frames.iter().zip(&mut self.found) {
            *found = D::dissect(black_box(frame));
        }
        self.found.len()
    }

    fn leave(&mut self) {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", self.found).hash(&mut hasher);
        self.sum = self.sum.wrapping_add(hasher.finish());
    }

    fn result(&mut self) -> u64 {
        self.sum
    }
}
