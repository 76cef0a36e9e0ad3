//! A burst of packets from a worker to the lanes of their flows, and out of the lanes' rings: the
//! work of both sides, in one thread.

use crate::{BURST, PAYLOAD, Turns, floor, mix, pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use towpath_engine::lane::{self, BUCKETS, LaneConfig, LaneRx, LaneTable, Steer};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, Cache, Direction, Packet};

/// Packets that a ring has room for.
const RING: usize = 1024;
/// Flows.
const FLOWS: usize = 8;
/// Where addresses and ports are in a packet.
const FLOW: std::ops::Range<usize> = 26..38;

/// One side of the job.
pub trait Handover {
    /// Takes the burst, and gives each lane's packets to its batch.
    fn pass(&mut self, burst: &mut Batch, lanes: &mut [Batch]);
}

/// The path as it is.
pub struct Ours {
    steer: Steer,
    lanes: Vec<LaneRx>,
}

impl Ours {
    pub fn new(lanes: usize) -> Ours {
        let table = Arc::new(LaneTable::new(lanes).expect("1 to 64 lanes"));
        let mut config = LaneConfig::default();
        config.ring = RING;
        let mut connected = lane::connect(&config, &table, 1).expect("descriptors");
        Ours { steer: connected.steers.remove(0), lanes: connected.lanes }
    }
}

impl Handover for Ours {
    #[inline]
    fn pass(&mut self, burst: &mut Batch, lanes: &mut [Batch]) {
        self.steer.tx(burst);
        self.steer.kick();
        for (lane, out) in self.lanes.iter_mut().zip(lanes) {
            lane.rx(out);
            if let Some(barrier) = lane.order_barrier()
                && barrier.begin()
            {
                barrier.passed();
            }
        }
    }
}

/// A ring whose indices are shared as those of two threads are.
struct Ring {
    slots: Box<[Option<Packet>; RING]>,
    head: AtomicUsize,
    tail: AtomicUsize,
}

/// The floor: one look-up of a table for each packet if there are several lanes, one look at each
/// ring for each burst. Buckets stay with their lanes, rings have room, lanes are awake, nothing is
/// counted.
pub struct Floor {
    table: Box<[AtomicU8; BUCKETS]>,
    rings: Vec<Ring>,
    /// The producer's indices.
    tails: Vec<usize>,
}

impl Floor {
    pub fn new(lanes: usize) -> Floor {
        let ring =
            || Ring { slots: Box::new([const { None }; RING]), head: AtomicUsize::new(0), tail: AtomicUsize::new(0) };
        let table = Box::new(std::array::from_fn(|bucket| AtomicU8::new((bucket % lanes) as u8)));
        Floor { table, rings: (0..lanes).map(|_| ring()).collect(), tails: vec![0; lanes] }
    }
}

impl Handover for Floor {
    #[inline]
    fn pass(&mut self, burst: &mut Batch, lanes: &mut [Batch]) {
        for packet in burst.drain_front(BURST) {
            let lane = match packet.linear().first_chunk() {
                Some(header) if lanes.len() > 1 => {
                    usize::from(self.table[floor::hash(header) % BUCKETS].load(Ordering::Relaxed))
                }
                _ => 0,
            };
            let (ring, tail) = (&mut self.rings[lane], &mut self.tails[lane]);
            ring.slots[*tail % RING] = Some(packet);
            *tail += 1;
        }
        for (ring, tail) in self.rings.iter().zip(&self.tails) {
            ring.tail.store(*tail, Ordering::Release);
        }
        for (ring, out) in self.rings.iter_mut().zip(lanes) {
            let tail = ring.tail.load(Ordering::Acquire);
            let mut head = ring.head.load(Ordering::Relaxed);
            while head != tail {
                if let Some(packet) = ring.slots[head % RING].take() {
                    packet.prefetch();
                    let _ = out.push(packet);
                }
                head += 1;
            }
            ring.head.store(head, Ordering::Release);
        }
    }
}

/// Bursts through a side of the job.
pub struct Passed<H> {
    side: H,
    cache: Cache,
    burst: Batch,
    lanes: Vec<Batch>,
    mix: Vec<Vec<u8>>,
    /// The lane that each flow's packets have come to.
    flows: Vec<(Vec<u8>, usize)>,
    /// Packets that came to the lane of their flow, in the order in which they were sent.
    in_order: u64,
}

impl<H: Handover> Passed<H> {
    pub fn new(side: H, lanes: usize) -> Passed<H> {
        let mut passed = Passed {
            side,
            cache: pool().cache(Direction::Rx).expect("a cache"),
            burst: Batch::new(),
            lanes: (0..lanes).map(|_| Batch::new()).collect(),
            mix: mix::packets(FLOWS, PAYLOAD, BURST, 1, 1),
            flows: Vec::new(),
            in_order: 0,
        };
        passed.fill();
        passed
    }

    fn fill(&mut self) {
        for bytes in &self.mix {
            let packet = Packet::copy_from(&mut self.cache, bytes).expect("the pool is large enough");
            self.burst.push(packet).expect("a burst fits");
        }
    }
}

impl<H: Handover> Turns for Passed<H> {
    #[inline]
    fn turn(&mut self) -> usize {
        self.side.pass(&mut self.burst, &mut self.lanes);
        self.lanes.iter().map(Batch::len).sum()
    }

    fn leave(&mut self) {
        for (lane, out) in self.lanes.iter_mut().enumerate() {
            let mut sent = self.mix.iter();
            for packet in out.as_slice() {
                let flow = packet.linear()[FLOW].to_vec();
                let known = self.flows.iter().find(|(known, _)| *known == flow).map(|&(_, lane)| lane);
                if known.is_none() {
                    self.flows.push((flow, lane));
                }
                let is_in_order = sent.any(|sent| sent == packet.linear());
                self.in_order += u64::from(is_in_order && known.is_none_or(|known| known == lane));
            }
            self.cache.free_bulk(out);
        }
        self.fill();
    }

    fn result(&mut self) -> u64 {
        self.in_order
    }
}
