//! The smallest programs that do the jobs of hot paths, beside those paths, for `run` to count.
//!
//!     floor gro|anew|strangers ours|floor FLOWS BURST PACKETS
//!     floor send|stale ours|floor SIZE 64 PACKETS
//!
//! With `gro` flows go on from burst to burst, with `anew` each burst begins them anew. Both sides
//! of a job have the same packets, TCP/IPv4 with timestamps and trusted checksums, and leave the
//! same number of them: the program prints it. `measured` is what is counted. With `send` and
//! `stale` frames of so many bytes go from the generator to the e1000e driver.

mod floor;
#[path = "../../peers/gro/engines/src/mix.rs"]
#[allow(dead_code)]
mod mix;
mod ours;
mod send;

use towpath_packet::{Batch, Cache, Checksum, Direction, Packet, Pool, PoolConfig};

/// Payload bytes of each packet.
const PAYLOAD: usize = 1448;
/// Bursts after which the flows of `gro` begin again.
const ROUNDS: usize = 20;

/// One side of a job.
trait Side {
    /// Takes all packets of a burst. Those of a flow are merged, in the order they came, and all
    /// leave to `out`, or stay in the burst.
    fn push(&mut self, burst: &mut Batch, out: &mut Vec<Packet>);
}

#[inline(never)]
fn measured(side: &mut impl Side, burst: &mut Batch, out: &mut Vec<Packet>) {
    side.push(burst, out);
}

/// `rounds`: bursts in which the flows go on, before they begin again.
fn measure(mut side: impl Side, rounds: usize, flows: usize, burst: usize, packets: usize) {
    let pool = Pool::new(PoolConfig::default().capacity(4096)).expect("memory");
    let mut cache: Cache = pool.cache(Direction::Rx).expect("a cache");
    // As many bursts as give each flow a turn.
    let mix = mix::packets(flows, PAYLOAD, burst, rounds * flows.div_ceil(burst), rounds);
    let (mut batch, mut out) = (Batch::new(), Vec::with_capacity(burst));
    let mut left = 0;
    for bytes in mix.chunks(burst).cycle().take(packets / burst) {
        for bytes in bytes {
            let mut packet = Packet::copy_from(&mut cache, bytes).expect("the pool is large enough");
            packet.set_csum(Checksum::Verified);
            batch.push(packet).expect("a burst fits");
        }
        measured(&mut side, &mut batch, &mut out);
        left += out.len() + batch.len();
        batch.drain_front(burst).for_each(|packet| cache.free(packet));
        out.drain(..).for_each(|packet| cache.free(packet));
    }
    println!("{left}");
}

#[inline(never)]
fn measured_turn(sender: &mut impl send::Sender) -> usize {
    sender.turn()
}

fn measure_sender(mut sender: impl send::Sender, packets: usize) {
    let mut sent = 0;
    for _ in 0..packets / send::BURST {
        sent += measured_turn(&mut sender);
        sender.leave();
    }
    println!("{sent}");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = words.iter().skip(2).filter_map(|word| word.parse().ok()).collect();
    let names = (words.first().map_or("", |word| word), words.get(1).map_or("", |word| word));
    let &[flows, burst, packets] = numbers.as_slice() else { usage() };
    if flows == 0 || burst == 0 || burst > Batch::<64>::CAPACITY || packets < burst {
        usage();
    }
    match names {
        ("send", "ours") => measure_sender(send::Ours::new(flows, "random"), packets),
        ("stale", "ours") => measure_sender(send::Ours::new(flows, "stale"), packets),
        ("stale", "floor") => measure_sender(send::Floor::new(flows), packets),
        ("gro", "ours") => measure(ours::Engine::new(), ROUNDS, flows, burst, packets),
        ("gro", "floor") => measure(floor::Merge::new(), ROUNDS, flows, burst, packets),
        ("anew", "ours") => measure(ours::Engine::new(), 1, flows, burst, packets),
        ("anew", "floor") => measure(floor::Merge::new(), 1, flows, burst, packets),
        ("strangers", "ours") => measure(ours::Stage::new(), 1, flows, burst, packets),
        ("strangers", "floor") => measure(floor::Look::new(), 1, flows, burst, packets),
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: floor gro|anew|strangers ours|floor FLOWS BURST PACKETS        bursts of up to 64");
    std::process::exit(2);
}
