//! The cost of towpath-gro.
//!
//!     towpath chain|copy trusted|verified hot|cold FLOWS PAYLOAD BURST POOL HOLD PACKETS
//!
//! `chain` merges packets of towpath-packet as the datapath does, the counterpart of DPDK's mbufs.
//! `copy` merges byte buffers of IP packets, as a VPN with a TUN does, and as tun-rs. `cold` has
//! headers and payloads come from beyond the caches that do not hold the frames of POOL bursts, as
//! if a device had left them there: whole frames are written that long before they are pushed (2048
//! bursts of 64 for memory). Only metadata is hot, as if a driver had just written it.

use gro_engines::measure::{Arguments, Engine, run};
use gro_engines::mix::{ETHERNET, HEADER, Header};
use std::collections::VecDeque;
use towpath_engine::gro_stage::GroPacket;
use towpath_gro::{Appended, Gro, GroConfig, Linear, LinkKind, Offload, Segment, Sink};
use towpath_packet::{Backing, Cache, Checksum, Direction, Packet, Pool, PoolConfig};

struct Chains {
    gro: Gro<GroPacket>,
    cache: Cache,
    ready: VecDeque<Packet>,
    burst: Vec<GroPacket>,
    out: Vec<Packet>,
    /// Recent output: freed so late that, as with the other engines, the buffers of `pool` bursts
    /// take turns.
    away: VecDeque<Vec<Packet>>,
    len: usize,
    csum: Checksum,
}

impl Chains {
    fn new(arguments: &Arguments, trusted: bool, mix: &[Vec<u8>]) -> Chains {
        let round = arguments.burst * arguments.hold;
        let config = PoolConfig::default().capacity(mix.len() + round + 1024);
        // Pages of 4 KiB, as DPDK has with --no-huge.
        let pool = Pool::new(config.backing(Backing::Anonymous)).expect("memory");
        let mut cache = pool.cache(Direction::Rx).expect("a cache");
        // The payload of all packets is the same: it is written to every buffer of the pool once.
        let all: Vec<Packet> = std::iter::from_fn(|| Packet::copy_from(&mut cache, &mix[0])).collect();
        all.into_iter().for_each(|packet| cache.free(packet));
        Chains {
            gro: Gro::new(GroConfig::default()),
            cache,
            ready: VecDeque::new(),
            burst: Vec::with_capacity(arguments.burst),
            out: Vec::with_capacity(round),
            away: (arguments.ahead()..arguments.pool).map(|_| Vec::with_capacity(round)).collect(),
            len: HEADER + arguments.payload,
            csum: if trusted { Checksum::Verified } else { Checksum::Unknown },
        }
    }
}

impl Engine for Chains {
    fn prepare(&mut self, headers: &[Header], payload: &[u8], _burst: usize) {
        for header in headers {
            let mut packet = self.cache.alloc().expect("the pool is large enough");
            let bytes = packet.push_back(self.len).expect("a chunk is large enough");
            bytes[..HEADER].copy_from_slice(header);
            bytes[HEADER..][..payload.len()].copy_from_slice(payload);
            self.ready.push_back(packet);
        }
    }

    fn receive(&mut self, packets: usize) {
        self.burst.extend(self.ready.drain(..packets).map(|mut packet| {
            packet.set_csum(self.csum);
            GroPacket(packet)
        }));
    }

    #[inline(never)]
    fn push(&mut self, flush: bool) -> usize {
        let mut sink = (|packet: GroPacket| self.out.push(packet.0), drop);
        match flush {
            true => self.gro.push_and_flush(self.burst.drain(..), &mut sink),
            false => self.gro.push_batch(self.burst.drain(..), 0, &mut sink),
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

/// A byte buffer with room for an aggregate, and its slot.
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

/// The output, and the buffers whose bytes were merged into another.
struct Out {
    packets: Vec<Copied>,
    recycled: Vec<Copied>,
}

impl Sink<Copied> for &mut Out {
    #[inline]
    fn packet(&mut self, packet: Copied) {
        self.packets.push(packet);
    }

    #[inline]
    fn recycle(&mut self, recycled: Copied) {
        self.recycled.push(recycled);
    }
}

struct Copies {
    gro: Gro<Copied>,
    /// Buffers of all bursts, those in the engine missing.
    buffers: Vec<Option<Box<[u8]>>>,
    /// Slots of the prepared buffers.
    ready: VecDeque<usize>,
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
        let checksum = if trusted { Checksum::Verified } else { Checksum::Unknown };
        Copies {
            gro: Gro::new(GroConfig::default().link(LinkKind::Ip)),
            buffers: mix.iter().map(buffer).collect(),
            ready: VecDeque::new(),
            burst: Vec::with_capacity(arguments.burst),
            out: Out { packets: Vec::with_capacity(round), recycled: Vec::with_capacity(round) },
            offload: Offload::new(checksum, None),
            len: HEADER - ETHERNET + arguments.payload,
        }
    }
}

impl Engine for Copies {
    fn prepare(&mut self, headers: &[Header], payload: &[u8], burst: usize) {
        let first = burst * headers.len();
        for (place, header) in (first..).zip(headers) {
            let buffer = self.buffers[place].as_mut().expect("the buffer came back");
            let (to, rest) = buffer.split_at_mut(HEADER - ETHERNET);
            to.copy_from_slice(&header[ETHERNET..]);
            rest[..payload.len()].copy_from_slice(payload);
            self.ready.push_back(place);
        }
    }

    fn receive(&mut self, packets: usize) {
        for place in self.ready.drain(..packets) {
            let buffer = self.buffers[place].take().expect("the buffer came back");
            self.burst.push(Copied(Linear::new(buffer, self.len, self.offload), place));
        }
    }

    #[inline(never)]
    fn push(&mut self, flush: bool) -> usize {
        let mut out = &mut self.out;
        match flush {
            true => self.gro.push_and_flush(self.burst.drain(..), &mut out),
            false => self.gro.push_batch(self.burst.drain(..), 0, &mut out),
        }
        self.out.packets.len()
    }

    fn settle(&mut self) -> usize {
        for Copied(linear, place) in self.out.packets.drain(..).chain(self.out.recycled.drain(..)) {
            self.buffers[place] = Some(linear.into_buffer());
        }
        0
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (output, trusted, arguments) = match words.as_slice() {
        [output, checksum @ ("trusted" | "verified"), caches @ ("hot" | "cold"), rest @ ..] => {
            (*output, *checksum == "trusted", Arguments::parse(rest, *caches == "cold"))
        }
        _ => ("", false, None),
    };
    match (output, arguments) {
        ("chain", Some(arguments)) => run(&arguments, |mix| Chains::new(&arguments, trusted, mix)),
        ("copy", Some(arguments)) => run(&arguments, |mix| Copies::new(&arguments, trusted, mix)),
        _ => {
            eprintln!("usage: towpath chain|copy trusted|verified hot|cold FLOWS PAYLOAD BURST POOL HOLD PACKETS");
            std::process::exit(2);
        }
    }
}
