//! A frame of the generator on its way through a route into the ring of the e1000e driver.
//!
//! Both sides make the same frames: UDP/IPv4 with a tag, of 8 flows in turns, with `payload=stale`
//! behind the first 128 bytes. The device is the model, stepped between the measured turns. That
//! of the floor is a loop that reports each marked descriptor as done.

use crate::{BURST, Turns, pool};
use std::time::Duration;
use towpath_bus::DmaPolicy;
use towpath_engine::route::{Route, RouteConfig};
pub use towpath_model::e1000e::Device;
use towpath_model::e1000e::{self as model, ModelBus};
use towpath_model::wire::Wire;
use towpath_nic::e1000e::{Config, E1000e, E1000eTx, Pauses};
use towpath_packet::port::{Port, Start};
use towpath_packet::{Batch, Cache, Direction, Offloads, Packet, Pool};
use towpath_ports::generator::{self, GenRx};

/// Flows.
const FLOWS: usize = 8;
/// Descriptors of the ring, on both sides.
const RING: usize = 512;
/// Bytes in front of the payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 42;
/// Bytes of a frame that are copied from its flow's.
const HEAD: usize = 128;
/// Descriptor bits: end of packet, frame check sequence, data, extended; and the report.
const COMMAND: u64 = 0x2310_0000;
const REPORT: u64 = 1 << 27;
const DONE: u64 = 1 << 32;

/// The driver's transmit queue.
pub type Tx = E1000eTx<ModelBus>;

/// The path as it is.
pub struct Ours {
    route: Route<GenRx, Tx>,
    device: Device,
}

/// A wire with a carrier that takes every frame.
struct Sink;

impl Wire for Sink {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }

    fn receive(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }
}

/// The driver's only transmit queue, on the model of its device.
pub fn e1000e(pool: &Pool) -> (Tx, Device) {
    let mut config = Config::default();
    config.policy = DmaPolicy::Persistent;
    config.pauses = Pauses::None;
    config.stall = Duration::from_secs(60);
    let bus = model::launch(model::Config::default(), Sink).expect("a model");
    let device = bus.device();
    let port = E1000e::open(bus, "e1000e:model", config).expect("the device opens");
    let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
    (port.start(start).expect("the port starts").tx.remove(0), device)
}

impl Ours {
    pub fn new(size: usize, payload: &str) -> Ours {
        let pool = pool();
        let (tx, device) = e1000e(&pool);
        let uri = format!("gen:flows={FLOWS},size={size},payload={payload}").parse().expect("a port");
        let gen_port = generator::open(generator::Config::from_uri(&uri).expect("options")).expect("a generator");
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
        let rx = gen_port.start(start).expect("the generator starts").rx.remove(0);
        let cache = pool.cache(Direction::Tx).expect("a cache");
        Ours { route: Route::new(rx, tx, cache, RouteConfig::default()), device }
    }
}

impl Turns for Ours {
    #[inline]
    fn turn(&mut self) -> usize {
        self.route.turn(false)
    }

    fn leave(&mut self) {
        self.device.run_until_idle();
    }
}

/// A ring of descriptors in memory that is mapped once, without a doorbell. Bursts are of
/// [`BURST`] frames.
pub struct Ring {
    ring: Box<[[u64; 2]; RING]>,
    frames: Box<[Option<Packet>; RING]>,
    /// Indices that only grow.
    clean: usize,
    used: usize,
}

impl Ring {
    pub fn new() -> Ring {
        Ring { ring: Box::new([[0; 2]; RING]), frames: Box::new([const { None }; RING]), clean: 0, used: 0 }
    }

    /// Frees what the device has reported.
    #[inline(always)]
    pub fn reclaim(&mut self, cache: &mut Cache) {
        let mut sent = Batch::<BURST>::new();
        while self.clean != self.used && self.ring[(self.clean + BURST - 1) % RING][1] & DONE != 0 {
            for frame in &mut self.frames[self.clean % RING..][..BURST] {
                if let Some(packet) = frame.take() {
                    let _ = sent.push(packet);
                }
            }
            self.clean += BURST;
            cache.free_bulk(&mut sent);
        }
    }

    /// Writes the descriptor of a frame.
    #[inline(always)]
    pub fn post(&mut self, packet: Packet, address: u64, len: usize) {
        let at = self.used % RING;
        self.ring[at] = [address, COMMAND | len as u64];
        self.frames[at] = Some(packet);
        self.used += 1;
    }

    /// Asks the device to report the last frame.
    #[inline(always)]
    pub fn report(&mut self) {
        self.ring[(self.used + RING - 1) % RING][1] |= REPORT;
    }

    /// The device: reports what it was asked to.
    pub fn run(&mut self) {
        for descriptor in self.ring.iter_mut().filter(|descriptor| descriptor[1] & REPORT != 0) {
            descriptor[1] |= DONE;
        }
    }
}

/// The floor: one kind of frame, memory that is mapped once, one ring, no counters, no doorbell.
pub struct Floor {
    cache: Cache,
    batch: Batch,
    flows: Vec<Flow>,
    next: usize,
    len: usize,
    ring: Ring,
    /// Device address minus address.
    base: u64,
}

/// A flow: its frame, and the sums of what does not change.
struct Flow {
    head: [u8; HEAD],
    network_sum: u32,
    number: u32,
    id: u16,
}

impl Floor {
    pub fn new(size: usize) -> Floor {
        let flow = |port: u8| {
            let mut head = [0; HEAD];
            head[12] = 8;
            head[14..24].copy_from_slice(&[0x45, 0, 0, (size - 14) as u8, 0, 0, 0, 0, 64, 17]);
            head[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
            head[35] = port;
            let words = head[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
            Flow { head, network_sum: words.sum(), number: 0, id: 0 }
        };
        Floor {
            cache: pool().cache(Direction::Tx).expect("a cache"),
            batch: Batch::new(),
            flows: (0..FLOWS as u8).map(flow).collect(),
            next: 0,
            len: size,
            ring: Ring::new(),
            base: 1 << 40,
        }
    }
}

impl Turns for Floor {
    #[inline]
    fn turn(&mut self) -> usize {
        self.ring.reclaim(&mut self.cache);
        let n = self.cache.alloc_bulk(&mut self.batch, BURST);
        for packet in self.batch.drain_front(BURST) {
            let mut packet = packet;
            let flow = &mut self.flows[self.next];
            self.next = (self.next + 1) % FLOWS;
            let Ok(bytes) = packet.push_back(self.len) else { continue };
            let head = self.len.min(HEAD);
            bytes[..head].copy_from_slice(&flow.head[..head]);
            bytes[18..20].copy_from_slice(&flow.id.to_be_bytes());
            let sum = flow.network_sum + u32::from(flow.id);
            let sum = (sum >> 16) + (sum & 0xffff);
            let sum = !((sum >> 16) + sum) as u16;
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            bytes[HEADERS + 6..HEADERS + 10].copy_from_slice(&flow.number.to_be_bytes());
            (flow.id, flow.number) = (flow.id.wrapping_add(1), flow.number.wrapping_add(1));
            let address = self.base.wrapping_add(bytes.as_ptr().addr() as u64);
            self.ring.post(packet, address, self.len);
        }
        self.ring.report();
        n
    }

    fn leave(&mut self) {
        self.ring.run();
    }
}
