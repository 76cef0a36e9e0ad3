//! What towpath-gro costs.
//!
//!     towpath chain|copy trusted|verified FLOWS PAYLOAD BURST POOL HOLD PACKETS
//!
//! `chain` merges packets of towpath-packet, the counterpart of DPDK's mbufs, as the datapath does. `copy` merges byte
//! buffers of IP packets, as a VPN with a TUN does, and as tun-rs.

use gro_engines::measure::{Arguments, Engine, run};
use gro_engines::mix::{ETHERNET, HEADER, Header};
use std::collections::VecDeque;
use towpath_gro::{Appended, Checksum, Config, Gro, Linear, Link, Offload, Segment, Sink};
use towpath_packet::{Backing, Cache, Csum, Direction, Gso, GsoKind, MAX_FRAGS, Packet, Pool, PoolConfig};
use towpath_wire::checksum;

/// A packet, as the engine sees it.
struct Chain(Packet);

impl Segment for Chain {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.linear()
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        self.0.linear_mut()
    }

    #[inline]
    fn packet_len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn offload(&self) -> Offload {
        let checksum = match self.0.csum() {
            Csum::Unknown => Checksum::Unverified,
            Csum::Verified => Checksum::Verified,
            Csum::Partial { start, offset } => Checksum::Partial { start, offset: u16::from(offset) },
        };
        Offload { checksum, gso: None }
    }

    #[inline]
    fn set_offload(&mut self, offload: Offload) {
        self.0.set_csum(match offload.checksum {
            Checksum::Unverified => Csum::Unknown,
            Checksum::Verified => Csum::Verified,
            Checksum::Partial { start, offset } => Csum::Partial { start, offset: offset as u8 },
        });
        self.0.set_gso(offload.gso.map(|gso| Gso {
            kind: match gso.kind {
                towpath_gro::GsoKind::Tcp4 => GsoKind::Tcp4,
                towpath_gro::GsoKind::Tcp6 => GsoKind::Tcp6,
                towpath_gro::GsoKind::Udp => GsoKind::Udp,
            },
            ecn: gso.ecn,
            size: gso.size,
            segs: gso.segs,
            hdr_len: gso.header_len,
        }));
    }

    #[inline]
    fn append(&mut self, mut other: Chain, skip: usize, verify: Option<u16>) -> Appended<Chain> {
        if let Some(rest) = verify
            && checksum::add(rest, other.sum(skip)) != checksum::VALID
        {
            return Appended::Corrupt(other);
        }
        if self.0.frags() + other.0.frags() + 1 > MAX_FRAGS || !other.0.pull_front(skip) {
            return Appended::Full(other);
        }
        match self.0.append(other.0) {
            Ok(()) => Appended::Chained,
            Err(back) => Appended::Full(Chain(back)),
        }
    }

    #[inline]
    fn prefetch(&self) {
        self.0.prefetch_data();
    }
}

struct Chains {
    gro: Gro<Chain>,
    cache: Cache,
    burst: Vec<Chain>,
    out: Vec<Packet>,
    /// What left lately: freed so late that, as with the others, the buffers of `pool` bursts take turns.
    away: VecDeque<Vec<Packet>>,
    len: usize,
    csum: Csum,
}

impl Chains {
    fn new(arguments: &Arguments, trusted: bool, mix: &[Vec<u8>]) -> Chains {
        let round = arguments.burst * arguments.hold;
        let config = PoolConfig { capacity: mix.len() + round + 1024, ..PoolConfig::default() };
        // Pages of 4 KiB, as DPDK has with --no-huge.
        let pool = Pool::new(PoolConfig { backing: Backing::Anonymous, ..config }).expect("memory");
        let mut cache = pool.cache(Direction::Rx).expect("a cache");
        // The payload of all packets is the same: every buffer of the pool is given it once.
        let all: Vec<Packet> = std::iter::from_fn(|| Packet::copy_from(&mut cache, &mix[0])).collect();
        all.into_iter().for_each(|packet| cache.free(packet));
        Chains {
            gro: Gro::new(Config::default()),
            cache,
            burst: Vec::with_capacity(arguments.burst),
            out: Vec::with_capacity(round),
            away: (0..arguments.pool).map(|_| Vec::with_capacity(round)).collect(),
            len: HEADER + arguments.payload,
            csum: if trusted { Csum::Verified } else { Csum::Unknown },
        }
    }
}

impl Engine for Chains {
    fn prepare(&mut self, headers: &[Header], _burst: usize) {
        for header in headers {
            let mut packet = self.cache.alloc().expect("the pool is large enough");
            let bytes = packet.push_back(self.len).expect("a chunk is large enough");
            bytes[..HEADER].copy_from_slice(header);
            packet.set_csum(self.csum);
            self.burst.push(Chain(packet));
        }
    }

    fn push(&mut self, flush: bool) -> usize {
        let mut sink = |chain: Chain| self.out.push(chain.0);
        self.gro.push_batch(self.burst.drain(..), 0, &mut sink);
        if flush {
            self.gro.flush_all(&mut sink);
        }
        self.out.len()
    }

    fn settle(&mut self) -> usize {
        let mut free = self.away.pop_front().unwrap_or_default();
        free.drain(..).for_each(|packet| self.cache.free(packet));
        std::mem::swap(&mut free, &mut self.out);
        self.away.push_back(free);
        0
    }
}

/// A byte buffer with room for an aggregate, and where it belongs.
struct Copied(Linear<Box<[u8]>>, usize);

impl Segment for Copied {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.head()
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        self.0.head_mut()
    }

    #[inline]
    fn packet_len(&self) -> usize {
        self.0.packet_len()
    }

    #[inline]
    fn offload(&self) -> Offload {
        self.0.offload()
    }

    #[inline]
    fn set_offload(&mut self, offload: Offload) {
        self.0.set_offload(offload);
    }

    #[inline]
    fn append(&mut self, other: Copied, skip: usize, verify: Option<u16>) -> Appended<Copied> {
        let place = other.1;
        match self.0.append(other.0, skip, verify) {
            Appended::Chained => Appended::Chained,
            Appended::Copied(rest) => Appended::Copied(Copied(rest, place)),
            Appended::Full(other) => Appended::Full(Copied(other, place)),
            Appended::Corrupt(other) => Appended::Corrupt(Copied(other, place)),
        }
    }
}

/// What leaves, and the buffers whose bytes left in another.
struct Out {
    packets: Vec<Copied>,
    spent: Vec<Copied>,
}

impl Sink<Copied> for &mut Out {
    #[inline]
    fn packet(&mut self, packet: Copied) {
        self.packets.push(packet);
    }

    #[inline]
    fn spent(&mut self, spent: Copied) {
        self.spent.push(spent);
    }
}

struct Copies {
    gro: Gro<Copied>,
    /// Buffers of all bursts, those in the engine missing.
    buffers: Vec<Option<Box<[u8]>>>,
    burst: Vec<Copied>,
    out: Out,
    offload: Offload,
    len: usize,
}

impl Copies {
    fn new(arguments: &Arguments, trusted: bool, mix: &[Vec<u8>]) -> Copies {
        let round = arguments.burst * arguments.hold;
        let buffer = |packet: &Vec<u8>| {
            let mut buffer = vec![0; 65_535].into_boxed_slice();
            buffer[..packet.len() - ETHERNET].copy_from_slice(&packet[ETHERNET..]);
            Some(buffer)
        };
        let checksum = if trusted { Checksum::Verified } else { Checksum::Unverified };
        Copies {
            gro: Gro::new(Config { link: Link::Ip, ..Config::default() }),
            buffers: mix.iter().map(buffer).collect(),
            burst: Vec::with_capacity(arguments.burst),
            out: Out { packets: Vec::with_capacity(round), spent: Vec::with_capacity(round) },
            offload: Offload { checksum, gso: None },
            len: HEADER - ETHERNET + arguments.payload,
        }
    }
}

impl Engine for Copies {
    fn prepare(&mut self, headers: &[Header], burst: usize) {
        let first = burst * headers.len();
        for (place, header) in (first..).zip(headers) {
            let mut buffer = self.buffers[place].take().expect("the buffer came back");
            buffer[..HEADER - ETHERNET].copy_from_slice(&header[ETHERNET..]);
            self.burst.push(Copied(Linear::new(buffer, self.len, self.offload), place));
        }
    }

    fn push(&mut self, flush: bool) -> usize {
        let mut out = &mut self.out;
        self.gro.push_batch(self.burst.drain(..), 0, &mut out);
        if flush {
            self.gro.flush_all(&mut out);
        }
        self.out.packets.len()
    }

    fn settle(&mut self) -> usize {
        for Copied(linear, place) in self.out.packets.drain(..).chain(self.out.spent.drain(..)) {
            self.buffers[place] = Some(linear.into_buffer());
        }
        0
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (output, trusted, arguments) = match words.as_slice() {
        [output, checksum, rest @ ..] if matches!(checksum.as_str(), "trusted" | "verified") => {
            (output.as_str(), checksum == "trusted", Arguments::parse(rest))
        }
        _ => ("", false, None),
    };
    match (output, arguments) {
        ("chain", Some(arguments)) => run(&arguments, |mix| Chains::new(&arguments, trusted, mix)),
        ("copy", Some(arguments)) => run(&arguments, |mix| Copies::new(&arguments, trusted, mix)),
        _ => {
            eprintln!("usage: towpath chain|copy trusted|verified FLOWS PAYLOAD BURST POOL HOLD PACKETS");
            std::process::exit(2);
        }
    }
}
