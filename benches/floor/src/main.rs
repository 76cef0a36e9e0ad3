//! The smallest programs that do the jobs of hot paths, beside those paths, for `run` to count.
//!
//!     floor gro|anew|long|memory|verified|unmatched ours|floor FLOWS BURST PACKETS
//!     floor copied ours|floor FLOWS 64 PACKETS
//!     floor send|stale ours|floor SIZE 64 PACKETS
//!     floor dissect ours|floor TAGS 64 PACKETS
//!     floor lane ours|floor LANES 64 PACKETS
//!     floor handover ours|floor 1 64 PACKETS
//!     floor page-to-memory|page-to-e1000e ours|floor 64 64 PACKETS
//!
//! | job | |
//! |---|---|
//! | `gro`, `anew` | flows that go on from burst to burst, and that each burst begins anew |
//! | `long` | as `anew`, in bursts of up to 256 |
//! | `memory` | as `anew`, with headers that are in no cache when they come |
//! | `verified` | as `gro`, with checksums that are not trusted |
//! | `copied` | the same with byte buffers, one of which gets the payloads of the others |
//! | `unmatched` | packets that merge with nothing, in the stage of a route |
//! | `send`, `stale` | frames of so many bytes go from the generator to the e1000e driver |
//! | `dissect` | headers of a TCP/IPv4 frame with so many tags, 0 or 1, are found |
//! | `lane` | packets of 8 flows go to lanes, and out of their rings |
//! | `handover` | TCP packets of the MTU are written on one core, verified and merged on another |
//! | `page-to-…` | a page of an application is sent and completed |
//!
//! Both sides of a job have the same packets and leave the same: the program prints how many, and
//! what else the job has as a result. `measured` is what is counted, and what is timed: the second
//! line is the median of all bursts, in nanoseconds a packet. It has a reading of the clock in it,
//! some 20 ns a burst. `handover` has two threads, and is only timed, as a whole.

mod copied;
mod dissect;
mod floor;
mod handover;
mod lane;
mod memory;
#[path = "../../peers/gro/engines/src/mix.rs"]
#[allow(dead_code)]
mod mix;
mod ours;
mod page;
mod send;
mod sum;

use std::time::Instant;
use towpath_packet::{Batch, Cache, Checksum, Direction, Packet, Pool, PoolConfig};

/// Packets of a burst of a job in turns.
const BURST: usize = 64;
/// Packets of a long burst.
const LONG: usize = 256;
/// Payload bytes of each packet.
const PAYLOAD: usize = 1448;
/// Bursts after which the flows of `gro` begin again.
const ROUNDS: usize = 20;

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(4096)).expect("memory")
}

/// Times of bursts, in nanoseconds.
struct Times(Vec<u64>);

impl Times {
    fn of(bursts: usize) -> Times {
        Times(Vec::with_capacity(bursts))
    }

    fn taken<T>(&mut self, burst: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = burst();
        self.0.push(began.elapsed().as_nanos() as u64);
        result
    }

    /// Writes the median, for each of `packets` packets of a burst.
    fn show(mut self, packets: usize) {
        self.0.sort_unstable();
        let median = self.0.get(self.0.len() / 2).copied().unwrap_or_default();
        println!("{:.2}", median as f64 / packets as f64);
    }
}

/// One side of a job.
trait Side<const N: usize = BURST> {
    /// Takes all packets of a burst. Those of a flow are merged, in the order they came, and all
    /// leave to `out`, or stay in the burst.
    fn push(&mut self, burst: &mut Batch<N>, out: &mut Vec<Packet>);
}

#[inline(never)]
fn measured<const N: usize>(side: &mut impl Side<N>, burst: &mut Batch<N>, out: &mut Vec<Packet>) {
    side.push(burst, out);
}

/// Where the bytes of packets are when they come.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Cache,
    Memory,
}

/// `rounds`: bursts in which the flows go on, before they begin again.
fn measure<const N: usize>(
    mut side: impl Side<N>,
    (checksum, from): (Checksum, Origin),
    rounds: usize,
    [flows, burst, packets]: [usize; 3],
) {
    let mut cache: Cache = pool().cache(Direction::Rx).expect("a cache");
    // As many bursts as give each flow a turn.
    let mix = mix::packets(flows, PAYLOAD, burst, rounds * flows.div_ceil(burst), rounds);
    let (mut batch, mut out) = (Batch::<N>::new(), Vec::with_capacity(burst));
    let (mut left, mut times) = (0, Times::of(packets / burst));
    for bytes in mix.chunks(burst).cycle().take(packets / burst) {
        for bytes in bytes {
            let mut packet = Packet::copy_from(&mut cache, bytes).expect("the pool is large enough");
            packet.set_csum(checksum);
            batch.push(packet).expect("a burst fits");
        }
        if from == Origin::Memory {
            batch.iter().for_each(|packet| memory::evict(packet.linear()));
        }
        times.taken(|| measured(&mut side, &mut batch, &mut out));
        left += out.len() + batch.len();
        batch.drain_front(burst).for_each(|packet| cache.free(packet));
        out.drain(..).for_each(|packet| cache.free(packet));
    }
    println!("{left}");
    times.show(burst);
}

/// One side of a job that makes its packets itself.
trait Turns {
    /// Takes a burst of [`BURST`] packets through. Returns how many there were.
    fn turn(&mut self) -> usize;

    /// Not measured: what is in front of the path and behind it takes its step.
    fn leave(&mut self);

    /// What the turns had as a result, of a job that has more than packets.
    fn result(&mut self) -> u64 {
        0
    }
}

#[inline(never)]
fn measured_turn(side: &mut impl Turns) -> usize {
    side.turn()
}

fn measure_turns(mut side: impl Turns, packets: usize) {
    let (mut left, mut times) = (0, Times::of(packets / BURST));
    // The first turn that finds packets is not measured: a session becomes its queue's at a time
    // that the port's other thread has.
    while side.turn() == 0 {
        std::thread::yield_now();
    }
    side.leave();
    for _ in 0..packets / BURST {
        left += times.taken(|| measured_turn(&mut side));
        side.leave();
    }
    println!("{left} {}", side.result());
    times.show(BURST);
}

fn main() {
    use Checksum::{Unknown, Verified};
    use Origin::{Cache, Memory};
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = words.iter().skip(2).filter_map(|word| word.parse().ok()).collect();
    let names = (words.first().map_or("", |word| word), words.get(1).map_or("", |word| word));
    let &[flows, burst, packets] = numbers.as_slice() else { usage() };
    let most = if names.0 == "long" { LONG } else { BURST };
    if flows == 0 && names.0 != "dissect" || burst == 0 || burst > most || packets < burst {
        usage();
    }
    let mix = [flows, burst, packets];
    match names {
        ("send", "ours") => measure_turns(send::Ours::new(flows, "random"), packets),
        ("stale", "ours") => measure_turns(send::Ours::new(flows, "stale"), packets),
        ("stale", "floor") => measure_turns(send::Floor::new(flows), packets),
        ("dissect", "ours") => measure_turns(dissect::Frames::<dissect::Ours>::new(flows), packets),
        ("dissect", "floor") if flows == 0 => {
            measure_turns(dissect::Frames::<dissect::Floor<0>>::new(0), packets);
        }
        ("dissect", "floor") => measure_turns(dissect::Frames::<dissect::Floor<1>>::new(1), packets),
        ("lane", "ours") => measure_turns(lane::Passed::new(lane::Ours::new(flows), flows), packets),
        ("lane", "floor") => measure_turns(lane::Passed::new(lane::Floor::new(flows), flows), packets),
        ("handover", "ours") => println!("{packets}\n{:.2}", handover::ours(packets)),
        ("handover", "floor") => println!("{packets}\n{:.2}", handover::floor(packets)),
        ("page-to-memory", "ours") => measure_turns(page::Ours::to_memory(), packets),
        ("page-to-memory", "floor") => measure_turns(page::Floor::new(page::To::Memory), packets),
        ("page-to-e1000e", "ours") => measure_turns(page::Ours::to_e1000e(), packets),
        ("page-to-e1000e", "floor") => measure_turns(page::Floor::new(page::To::E1000e), packets),
        ("gro", "ours") => measure::<BURST>(ours::Engine::new(), (Verified, Cache), ROUNDS, mix),
        ("gro", "floor") => measure::<BURST>(floor::Merge::<false, false>::new(), (Verified, Cache), ROUNDS, mix),
        ("anew", "ours") => measure::<BURST>(ours::Engine::new(), (Verified, Cache), 1, mix),
        ("anew", "floor") => measure::<BURST>(floor::Merge::<false, false>::new(), (Verified, Cache), 1, mix),
        ("long", "ours") => measure::<LONG>(ours::Engine::new(), (Verified, Cache), 1, mix),
        ("long", "floor") => measure::<LONG>(floor::Merge::<false, false>::new(), (Verified, Cache), 1, mix),
        ("memory", "ours") => measure::<BURST>(ours::Engine::new(), (Verified, Memory), 1, mix),
        ("memory", "floor") => measure::<BURST>(floor::Merge::<false, true>::new(), (Verified, Memory), 1, mix),
        ("verified", "ours") => measure::<BURST>(ours::Engine::new(), (Unknown, Cache), ROUNDS, mix),
        ("verified", "floor") => measure::<BURST>(floor::Merge::<true, false>::new(), (Unknown, Cache), ROUNDS, mix),
        ("copied", "ours") => measure_turns(copied::Bursts::new(copied::Ours::new(), flows), packets),
        ("copied", "floor") => measure_turns(copied::Bursts::new(copied::Floor::new(), flows), packets),
        ("unmatched", "ours") => measure(ours::Stage::new(), (Verified, Cache), 1, mix),
        ("unmatched", "floor") => measure(floor::Look::new(), (Verified, Cache), 1, mix),
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: floor JOB ours|floor NUMBER BURST PACKETS        see the head of main.rs");
    std::process::exit(2);
}
