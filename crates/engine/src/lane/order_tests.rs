//! Order of flows through real workers and lanes: routes, GRO, egresses that send asynchronously,
//! and a table that changes all the time.

use super::*;
use crate::gro_stage::tests::{Kind, frame};
use crate::gro_stage::{GroMode, GroStageConfig};
use crate::route::{Route, RouteConfig};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use towpath_packet::port::TxQueue;
use towpath_packet::{Backing, Batch, Direction, Packet, Pool, PoolConfig};

const FLOWS: usize = 16;
const ROUNDS: u32 = 3000;
const SIZE: u32 = 40;

/// The wire behind all lanes: the next sequence number of each flow.
type Wire = Mutex<[u32; FLOWS]>;

/// Sends some of its packets at every `reclaim`, and never all of them while more arrive.
struct Egress<'a> {
    wire: &'a Wire,
    taken: VecDeque<Packet>,
    looks: usize,
    merged: u64,
    counters: Arc<Counters>,
}

impl Egress<'_> {
    fn leave(&mut self, n: usize) {
        for packet in self.taken.drain(..n) {
            let head = packet.linear();
            let (flow, seq) = (usize::from(head[29]), u32::from_be_bytes([head[38], head[39], head[40], head[41]]));
            let bytes = packet.len() as u32 - 54;
            self.merged += u64::from(bytes > SIZE);
            let next = &mut self.wire.lock().unwrap()[flow];
            assert_eq!(*next, seq, "flow {flow}");
            *next += bytes;
        }
    }
}

impl TxQueue for Egress<'_> {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len().min(100 - self.taken.len());
        self.taken.extend(batch.drain_front(n));
        n
    }

    fn reclaim(&mut self) -> usize {
        self.looks += 1;
        // Slow, so that packets are pending most of the time.
        let n = if self.looks.is_multiple_of(4) { self.taken.len().div_ceil(2) } else { 0 };
        self.leave(n);
        n
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

fn storm(hold: Duration) {
    let pool = PoolConfig::default().capacity(8192).chunk(256).backing(Backing::Anonymous);
    let pool = Pool::new(pool).unwrap();
    let table = Arc::new(LaneTable::new(2).unwrap());
    let made = connect(&LaneConfig { ring: 64, ..Default::default() }, &table, 1).unwrap();
    let wire: Wire = Mutex::new([0; FLOWS]);
    let end = Instant::now() + Duration::from_secs(300);
    let mut steer = made.steers.into_iter().next().unwrap();
    let mut moves = 0;
    std::thread::scope(|s| {
        let gro = GroStageConfig { mode: GroMode::On, hold, ..Default::default() };
        let lanes: Vec<_> = made
            .lanes
            .into_iter()
            .map(|rx| {
                let counters = Arc::default();
                let egress = Egress { wire: &wire, taken: VecDeque::new(), looks: 0, merged: 0, counters };
                let config = RouteConfig { internal: true, egress_wait: Duration::MAX, ..Default::default() };
                let cache = pool.cache(Direction::Tx).unwrap();
                let mut route = Route::new(rx, egress, cache, config).with_gro(&gro);
                s.spawn(move || {
                    while route.ended().is_none() || route.is_draining() {
                        assert!(Instant::now() < end, "stuck");
                        if route.turn(false) == 0 {
                            std::thread::yield_now();
                        }
                    }
                    route.tx_mut().merged
                })
            })
            .collect();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut random = 1u32;
        for round in 0..ROUNDS {
            let mut batch = Batch::new();
            for n in 0..FLOWS {
                let bytes = frame(Kind::Tcp4, n as u8, round as u16, round * SIZE, &[1; SIZE as usize]);
                batch.push(Packet::copy_from(&mut cache, &bytes).unwrap()).unwrap();
            }
            while !batch.is_empty() {
                assert!(Instant::now() < end, "the worker is stuck");
                if steer.tx(&mut batch) == 0 {
                    std::thread::yield_now();
                }
                steer.reclaim();
                steer.kick();
            }
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if round % 16 == 0 {
                for bucket in 0..BUCKETS {
                    let lane = ((random >> (bucket % 31)) & 1) as u8;
                    moves += usize::from(table.lane(bucket) != lane);
                    table.set(bucket, lane);
                }
            }
        }
        while steer.pending() > 0 {
            assert!(Instant::now() < end, "the worker is stuck");
            steer.reclaim();
            std::thread::yield_now();
        }
        steer.close().unwrap();
        let merged: u64 = lanes.into_iter().map(|lane| lane.join().unwrap()).sum();
        assert!(merged > 0 && moves > 1000, "{merged} merged, {moves} moves");
    });
    assert_eq!(wire.into_inner().unwrap(), [ROUNDS * SIZE; FLOWS]);
}

#[test]
fn flows_that_move_under_load_stay_in_order_through_gro_and_slow_egresses() {
    storm(Duration::ZERO);
}

#[test]
fn flows_that_move_under_load_stay_in_order_while_aggregates_are_held_across_bursts() {
    storm(Duration::from_micros(200));
}
