//! A guest in the same process: its memory, and the driver's sides of its rings.
//!
//! | module | what |
//! |---|---|
//! | `ring`, `rings` | start, stop and change of one ring, and of many; sleep and wake-up |
//! | `rx`, `tx` | frames of a guest as packets; packets in a guest's buffers |
//! | `connections`, `requests` | connections that come again; answers and refusals |
//! | `in_flight_record` | records of chains in flight |
//! | `hostile` | front ends that break the protocol |
//! | `no_alloc` | the queues allocate nothing |
//! | `front_end` | a started port, and a front end that keeps to the protocol |

mod connections;
mod front_end;
mod hostile;
mod in_flight_record;
mod no_alloc;
mod requests;
mod ring;
mod rings;
mod rx;
mod tx;

use super::events::RingEvents;
use super::ring::{RingSetup, RingSlot, Way};
use super::{VhostRx, VhostTx};
use crate::random::Random;
use std::sync::Arc;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Direction, Packet, Pool, PoolConfig, Region, UntrustedMem};
use towpath_sys::EventFd;
use towpath_virtio::{AddressSpace, Area, Areas, Base, Driver, Features, Format, Layout, Regions, Segment, Tables};
use towpath_wire::virtio_net::feature;

const INDIRECT: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
const IN_ORDER: u64 = 1 << 35;
const SIZE: u16 = 64;
/// Descriptors of an indirect table.
const TABLE: u16 = 48;

/// Rings and tables, then buffers that go on in the next region without a gap.
const LOW: u64 = 0x1_0000_0000;
const LOW_LEN: u64 = 0x8_0000;
const BUFFERS: u64 = LOW + 0x4_0000;
/// The end of the second region.
const HIGH_END: u64 = LOW + LOW_LEN + 0x80_0000;
const FAR: u64 = 0x9_0000_0000;
const FAR_LEN: u64 = 0x80_0000;

/// All kinds of rings, by format and features.
fn kinds() -> Vec<(Format, u64)> {
    let mut kinds = Vec::new();
    for format in [Format::Split, Format::Packed] {
        for bits in 0..8 {
            let one = |bit: u64, feature| if bits >> bit & 1 != 0 { feature } else { 0 };
            let packed = if format == Format::Packed { feature::RING_PACKED } else { 0 };
            let features = one(0, INDIRECT) | one(1, EVENT_IDX) | one(2, IN_ORDER);
            kinds.push((format, features | packed | feature::VERSION_1));
        }
    }
    kinds
}

/// A guest with one ring, and the queue behind it.
struct Guest {
    driver: Driver,
    memory: Regions,
    format: Format,
    features: u64,
    slot: Arc<RingSlot>,
    pool: Pool,
    events: Arc<RingEvents>,
    kick: EventFd,
    call: EventFd,
    err: EventFd,
    random: Random,
    /// Where the next buffer lies.
    at: u64,
    kicks: u64,
}

fn another(event: &EventFd) -> EventFd {
    use std::os::fd::AsFd;
    event.as_fd().try_clone_to_owned().unwrap().into()
}

impl Guest {
    fn new(way: Way, format: Format, features: u64) -> Guest {
        let region = |len| UntrustedMem::new(Region::new(len as usize, Backing::Memfd).unwrap());
        let mut memory = Regions::new();
        let low = region(LOW_LEN);
        memory.add(LOW, LOW_LEN, low.clone(), 0).unwrap();
        memory.add(LOW + LOW_LEN, HIGH_END - LOW - LOW_LEN, region(HIGH_END - LOW - LOW_LEN + 4096), 4096).unwrap();
        memory.add(FAR, FAR_LEN, region(FAR_LEN), 0).unwrap();
        let (areas, layout) = (areas(&low, format), Layout::new(format, SIZE).unwrap());
        let mut driver = Driver::new(format, areas, SIZE, Features::from_bits(features)).unwrap();
        if features & INDIRECT != 0 {
            let at = layout.bytes.next_multiple_of(4096);
            let words = Area::new(&low, at, Tables::<Area>::bytes(SIZE, TABLE)).unwrap();
            driver.set_tables(Tables::new(words, LOW + at as u64, TABLE)).unwrap();
        }
        let events = Arc::default();
        let event = || EventFd::new().unwrap();
        let guest = Guest {
            driver,
            memory,
            format,
            features,
            slot: RingSlot::new(way, &events, None).unwrap(),
            pool: Pool::new(PoolConfig::default().capacity(4096)).unwrap(),
            events,
            kick: event(),
            call: event(),
            err: event(),
            random: Random::new(7),
            at: BUFFERS,
            kicks: 0,
        };
        guest.start(Base::start(format));
        guest
    }

    fn setup(&self, base: Base) -> RingSetup {
        RingSetup {
            format: self.format,
            size: SIZE,
            areas: areas(self.memory.memory(0).unwrap(), self.format),
            base,
            features: self.features,
            memory: self.memory.clone(),
            kick: Some(another(&self.kick)),
            call: Some(another(&self.call)),
            err: Some(another(&self.err)),
            log: None,
            record: None,
        }
    }

    fn start(&self, base: Base) {
        self.slot.start(self.setup(base)).unwrap();
    }

    fn rx(&self) -> VhostRx {
        VhostRx::new(self.slot.clone(), self.pool.cache(Direction::Rx).unwrap(), 3)
    }

    fn tx(&self) -> VhostTx {
        VhostTx::new(self.slot.clone(), self.pool.cache(Direction::Tx).unwrap(), u64::MAX)
    }

    /// Memory for `len` bytes that no other buffer has, until the next [`reset`](Guest::reset).
    fn buffer(&mut self, len: usize) -> u64 {
        let gap = self.random.below(40);
        let mut at = self.at + gap;
        if at < FAR && at + len as u64 > HIGH_END {
            at = FAR + gap;
        }
        self.at = at + len as u64;
        assert!(self.at <= FAR + FAR_LEN);
        at
    }

    /// All buffers may be used again.
    fn reset(&mut self) {
        self.at = [BUFFERS, LOW + LOW_LEN - 3000, FAR][self.random.below(3) as usize];
    }

    fn write(&self, mut addr: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (place, n) = self.memory.translate(addr, bytes.len() as u32, true).unwrap();
            let (now, rest) = bytes.split_at(n as usize);
            assert!(self.memory.memory(place.region).unwrap().put(place.offset, now));
            (addr, bytes) = (addr + u64::from(n), rest);
        }
    }

    fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let byte = |at| {
            let (place, _) = self.memory.translate(addr + at, 1, false).unwrap();
            let [byte] = self.memory.memory(place.region).unwrap().get::<1>(place.offset).unwrap();
            byte
        };
        (0..len as u64).map(byte).collect()
    }

    /// Adds a chain of `bytes` in `parts` pieces at random.
    fn send(&mut self, bytes: &[u8], parts: usize) -> u16 {
        let mut cuts: Vec<_> = (1..parts).map(|_| 1 + self.random.below(bytes.len() as u64 - 1) as usize).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let chain: Vec<_> = cuts
            .windows(2)
            .map(|cut| {
                let piece = &bytes[cut[0]..cut[1]];
                let addr = self.buffer(piece.len());
                self.write(addr, piece);
                Segment::readable(addr, piece.len() as u32)
            })
            .collect();
        self.driver.add(&chain).unwrap()
    }

    fn publish(&mut self) {
        if self.driver.publish() {
            self.kicks += 1;
            self.kick.signal();
        }
    }

    fn used(&mut self) -> Vec<towpath_virtio::Used> {
        std::iter::from_fn(|| self.driver.next_used().unwrap()).collect()
    }

    fn random_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }

    /// No buffer of the guest is out, and none of the pool.
    fn balances(&self) {
        let gauge = &self.events.ext_bufs;
        assert_eq!(gauge.attached(), gauge.freed());
        assert_eq!(self.pool.stats().free, 4096);
    }
}

fn areas(low: &UntrustedMem, format: Format) -> Areas {
    Areas::new(low, 0, &Layout::new(format, SIZE).unwrap()).unwrap()
}

/// A header of 12 bytes that asks for nothing, and a frame.
fn with_header(frame: &[u8]) -> Vec<u8> {
    [&[0; 12], frame].concat()
}

/// A UDP super-packet with a partial checksum, and its header: `payload` bytes for each datagram.
fn udp_super(payload: u16, datagrams: usize) -> ([u8; 12], Vec<u8>) {
    let len = 42 + usize::from(payload) * datagrams;
    let mut bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
    bytes[12..14].copy_from_slice(&[8, 0]);
    let ip = (len - 14) as u16;
    bytes[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[16..18].copy_from_slice(&ip.to_be_bytes());
    let mut sum = towpath_wire::checksum::Accumulator::new();
    sum.add_bytes(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    bytes[38..40].copy_from_slice(&(ip - 20).to_be_bytes());
    let mut header = [0; 12];
    header[..10].copy_from_slice(
        &crate::vnet::VnetHeader {
            flags: 1,
            gso_type: 5,
            hdr_len: 42,
            gso_size: payload,
            csum_start: 34,
            csum_offset: 6,
        }
        .to_le_bytes(),
    );
    (header, bytes)
}
