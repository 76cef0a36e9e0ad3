//! All interleavings of workers and lanes, with the real queues and routes. Only the loops of the
//! threads are models: a worker's loop sleeps in the kernel.

use super::*;
use crate::route::{Route, RouteConfig};
use loom::sync::atomic::AtomicUsize;
use loom::thread::{self, JoinHandle};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Packet, Pool, PoolConfig};

const BUCKET: usize = 4;

fn pool() -> Pool {
    let config = PoolConfig::default().capacity(8).chunk(256).backing(Backing::Anonymous);
    Pool::new(config).unwrap()
}

/// A packet of the one flow; its length is its number.
fn packet(cache: &mut Cache, number: usize) -> Packet {
    let mut packet = cache.alloc().unwrap();
    packet.push_back(number).unwrap();
    packet.set_flow_hash(BUCKET as u32);
    packet
}

/// An egress that sends asynchronously: accepted packets leave at the next `reclaim`.
struct Egress {
    /// The number of the next packet, from any lane. Relaxed: only the hand-over of a flow between
    /// lanes may order it.
    next: Arc<AtomicUsize>,
    taken: Batch,
    left: Batch,
    counters: Arc<Counters>,
}

impl Egress {
    fn new(next: &Arc<AtomicUsize>) -> Egress {
        Egress { next: next.clone(), taken: Batch::new(), left: Batch::new(), counters: Arc::default() }
    }
}

impl TxQueue for Egress {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.taken.take_from(batch)
    }

    fn reclaim(&mut self) -> usize {
        for packet in self.taken.iter() {
            assert_eq!(self.next.load(Ordering::Relaxed), packet.len(), "out of order");
            self.next.store(packet.len() + 1, Ordering::Relaxed);
        }
        self.left.take_from(&mut self.taken)
    }

    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }

    fn pending(&self) -> usize {
        self.taken.len()
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Boxed: loom's stacks have no room for the copies of routes that are moved.
type Lane = Box<Route<LaneRx, Egress>>;

fn route(rx: LaneRx, pool: &Pool, next: &Arc<AtomicUsize>) -> Lane {
    let config = RouteConfig { internal: true, ..RouteConfig::default() };
    Box::new(Route::new(rx, Egress::new(next), pool.cache(Direction::Tx).unwrap(), config))
}

/// Starts a lane with the loop of a worker: register wake-ups, turn once more, sleep. The thread
/// returns the route, and the joining thread drops it: freeing buffers is not part of the model.
fn start(mut lane: Lane) -> JoinHandle<Lane> {
    thread::spawn(move || {
        let mut about_to_sleep = false;
        loop {
            let moved = lane.turn(false);
            if lane.ended().is_some() && !lane.is_draining() {
                return lane;
            }
            if moved > 0 {
                about_to_sleep = false;
            } else if about_to_sleep {
                lane.rx_mut().sleep();
                about_to_sleep = false;
            } else {
                lane.rx_mut().wake();
                about_to_sleep = true;
            }
        }
    })
}

/// Sends packets of one flow through lane 0, which has a thread, and lane 1, which shares the
/// worker's. The flow moves to the other lane before the numbers in `moves`. All packets must leave
/// in order.
fn pass(lanes: usize, packets: usize, moves: &'static [usize]) {
    towpath_sys::sync::model(move || {
        let (pool, next) = (pool(), Arc::new(AtomicUsize::new(0)));
        let table = Arc::new(LaneTable::new(lanes).unwrap());
        table.set(BUCKET, 0);
        let mut made = connect(&LaneConfig::default(), &table, 1).unwrap();
        let mut routes: Vec<_> = made.lanes.into_iter().map(|rx| route(rx, &pool, &next)).collect();
        let lane = start(routes.remove(0));
        let (mut steer, mut batch) = (made.steers.remove(0), Batch::new());
        let mut cache = pool.cache(Direction::Tx).unwrap();
        for number in 0..packets {
            if moves.contains(&number) {
                table.set(BUCKET, 1 - table.lane(BUCKET));
            }
            batch.push(packet(&mut cache, number)).unwrap();
            while steer.tx(&mut batch) == 0 {
                thread::yield_now();
            }
            steer.kick();
            for route in &mut routes {
                while route.turn(false) > 0 {}
            }
        }
        steer.close();
        let lane = lane.join().unwrap();
        assert_eq!(next.load(Ordering::Relaxed), packets);
        drop((lane, routes));
    });
}

#[test]
fn a_lane_that_sleeps_is_woken_for_every_packet_and_for_the_end() {
    pass(1, 2, &[]);
}

#[test]
fn a_flow_that_moves_to_another_lane_stays_in_order() {
    pass(2, 2, &[1]);
}

#[test]
fn a_flow_that_moves_there_and_back_stays_in_order() {
    pass(2, 3, &[1, 2]);
}
