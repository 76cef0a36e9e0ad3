//! TCP packets that one core writes, and another one verifies and merges: two threads, by the
//! clock. Each line of a packet goes from the first core to the second, and back before it is
//! written again.
//!
//! Ours is the command's way with one lane: generator, ring, GRO, `null:`. The floor has the same
//! bytes to write and to sum, and nothing else to do: buffers go to the other thread through a
//! ring, and come back through a second one.

use crate::{BURST, PAYLOAD, pool, sum::Avx2};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use towpath_engine::gro_stage::{GroMode, GroStageConfig};
use towpath_engine::lane::{self, LaneConfig, LaneTable};
use towpath_engine::route::{Route, RouteConfig};
use towpath_packet::port::{Port, RxQueue, Start};
use towpath_packet::{Direction, Offloads, prefetch_line, spsc};
use towpath_ports::{generator, null};
use towpath_sys::affinity::{allowed_cores, pin};

/// Bytes of a frame in front of the payload.
const HEADERS: usize = 54;
/// Buffers of the floor: what a lane's ring has room for, and a burst for each side. It takes them
/// in turns, so that their lines have left the second-level cache when they are written again.
const BUFFERS: usize = 1024 + 2 * BURST;
/// Turns of the lane between two looks at the counter.
const TURNS: usize = 64;
/// Packets that the floor prefetches ahead, as GRO does.
const AHEAD: usize = 8;

#[repr(align(64))]
struct Buffer([u8; 2048]);

/// Nanoseconds of each of `packets` packets.
pub fn ours(packets: usize) -> f64 {
    let pool = pool();
    let start = || Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
    let cache = || pool.cache(Direction::Tx).expect("a cache");
    let uri = format!("gen:proto=tcp,flows=8,size={}", HEADERS + PAYLOAD).parse().expect("a port");
    let from = generator::open(generator::Config::from_uri(&uri).expect("options")).expect("a generator");
    let from = from.start(start()).expect("the generator starts").rx.remove(0);
    let to = null::open(null::Config::default()).expect("null").start(start()).expect("it starts").tx.remove(0);
    let table = Arc::new(LaneTable::new(1).expect("a lane"));
    let mut connected = lane::connect(&LaneConfig::default(), &table, 1).expect("descriptors");
    let mut worker = Route::new(from, connected.steers.remove(0), cache(), RouteConfig::default());
    let mut gro = GroStageConfig::default();
    gro.mode = GroMode::On;
    let lane_rx = connected.lanes.remove(0);
    let received = lane_rx.counters().clone();
    let mut lane = Route::new(lane_rx, to, cache(), RouteConfig::default()).with_gro(&gro);
    let merged = lane.counters().clone();
    let worker = move || {
        worker.turn(false);
    };
    let turn = || {
        lane.turn(false);
    };
    let took = measure(worker, turn, || received.snapshot().packets, packets);
    assert!(merged.snapshot().merged > received.snapshot().packets / 2, "packets are not merged");
    took
}

/// Nanoseconds of each of `packets` packets.
pub fn floor(packets: usize) -> f64 {
    let avx2 = Avx2::new().expect("AVX2");
    let frame: [u8; HEADERS + PAYLOAD] = std::array::from_fn(|at| at as u8);
    let expected = frame.last_chunk().map(|payload| avx2.sum(payload));
    let (mut filled, mut received) = spsc::ring::<Box<Buffer>>(BUFFERS);
    let (mut done, mut empty) = spsc::ring::<Box<Buffer>>(BUFFERS);
    for _ in 0..BUFFERS {
        let _ = done.push(Box::new(Buffer([0; 2048])));
    }
    let worker = move || {
        let n = empty.peek(BURST).min(BURST);
        let mut slots = filled.reserve(n);
        for mut buffer in empty.drain(n) {
            buffer.0[..frame.len()].copy_from_slice(&frame);
            let _ = slots.push(buffer);
        }
        slots.submit();
    };
    let mut burst = Vec::with_capacity(BURST);
    let taken = Cell::new(0);
    let lane = || {
        burst.extend(received.drain(BURST));
        let prefetch = |buffer: &Buffer| buffer.0[..frame.len()].chunks(64).for_each(|line| prefetch_line(&line[0]));
        burst.iter().take(AHEAD).for_each(|buffer| prefetch(buffer));
        for at in 0..burst.len() {
            if let Some(buffer) = burst.get(at + AHEAD) {
                prefetch(buffer);
            }
            let sum = burst[at].0[HEADERS..].first_chunk().map(|payload| avx2.sum(payload));
            assert_eq!(sum, expected, "a payload changed on its way");
        }
        taken.set(taken.get() + burst.len() as u64);
        let mut slots = done.reserve(burst.len());
        for buffer in burst.drain(..) {
            let _ = slots.push(buffer);
        }
        slots.submit();
    };
    measure(worker, lane, || taken.get(), packets)
}

/// Ends the worker, also when the lane fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets both sides run on two cores, until the lane has received so many packets.
fn measure(mut worker: impl FnMut() + Send, mut lane: impl FnMut(), received: impl Fn() -> u64, packets: usize) -> f64 {
    let cores = allowed_cores();
    assert!(cores.len() > 1, "a lane on another core takes two cores");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(cores[0]).expect("a core");
            while !stop.load(Ordering::Relaxed) {
                worker();
            }
        });
        let _stop = Stop(&stop);
        pin(cores[cores.len() - 1]).expect("a core");
        let mut take = |packets: usize| {
            let (began, before) = (Instant::now(), received());
            while received() - before < packets as u64 {
                assert!(!worker.is_finished(), "the worker has failed");
                (0..TURNS).for_each(|_| lane());
            }
            began.elapsed().as_nanos() as f64 / (received() - before) as f64
        };
        // Each buffer has come around.
        take(8 * BUFFERS);
        take(packets)
    })
}
