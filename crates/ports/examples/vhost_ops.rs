//! Moves bursts of frames through the queues of a vhost ring whose driver runs on the same thread.
//! Prints the time per frame in the queue, of the best burst and of the median one: their difference
//! shows the load of the machine. For instruction counts:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*measured_rx*' target/release/examples/vhost_ops rx split 64
//! valgrind --tool=callgrind --toggle-collect='*measured_tx*' target/release/examples/vhost_ops tx packed 64
//! ```
//!
//! Arguments: `rx` or `tx`; `split` or `packed`; bytes of a frame; bursts of 32; more words of
//! `mrg`, `in-order`, `two` (the header in a descriptor of its own).

use std::time::{Duration, Instant};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Packet, Pool, PoolConfig, Region, UntrustedMem};
use towpath_ports::vhost::local::LocalRing;
use towpath_ports::vhost::{VhostRx, VhostTx};
use towpath_virtio::{Areas, Driver, Features, Format, Layout, Regions, Segment};

const SIZE: u16 = 256;
const BURST: usize = 32;
/// Guest address of the memory.
const BASE: u64 = 0x1_0000_0000;
const BUFFERS: u64 = BASE + 0x1_0000;
const HEADER: u32 = 12;

struct Args {
    format: Format,
    len: u32,
    bursts: usize,
    features: u64,
    two: bool,
}

/// The guest's memory, its driver, and the ring for the queue.
struct Guest {
    driver: Driver,
    memory: UntrustedMem,
    next: u64,
}

impl Guest {
    fn new(args: &Args) -> Option<(Guest, LocalRing)> {
        let memory = UntrustedMem::new(Region::new(4 << 20, Backing::Memfd).ok()?);
        let layout = Layout::new(args.format, SIZE).ok()?;
        let areas = || Areas::new(&memory, 0, &layout);
        let driver = Driver::new(args.format, areas()?, SIZE, Features::from_bits(args.features)).ok()?;
        let mut regions = Regions::new();
        regions.add(BASE, 4 << 20, memory.clone(), 0).ok()?;
        let ring =
            LocalRing { format: args.format, size: SIZE, areas: areas()?, features: args.features, memory: regions };
        Some((Guest { driver, memory, next: 0 }, ring))
    }

    /// The next buffer of 2 KiB.
    fn buffer(&mut self) -> u64 {
        self.next = (self.next + 1) % (2 * u64::from(SIZE));
        BUFFERS + 2048 * self.next
    }

    fn take_used(&mut self) -> usize {
        std::iter::from_fn(|| self.driver.next_used().ok()?).count()
    }
}

#[inline(never)]
fn measured_rx(rx: &mut VhostRx, batch: &mut Batch) -> usize {
    rx.rx(batch)
}

#[inline(never)]
fn measured_tx(tx: &mut VhostTx, batch: &mut Batch) -> usize {
    tx.tx(batch)
}

fn receive(args: &Args, pool: &Pool, cache: &mut Cache) -> Option<Vec<Duration>> {
    let (mut guest, ring) = Guest::new(args)?;
    let mut rx = ring.rx(pool)?;
    let (mut batch, mut times) = (Batch::new(), Vec::with_capacity(args.bursts));
    for _ in 0..args.bursts {
        for _ in 0..BURST {
            let at = guest.buffer();
            // The guest writes the header and touches the frame.
            guest.memory.set((at - BASE) as usize, [0u8; HEADER as usize + 4]);
            let whole = [Segment::readable(at, HEADER + args.len)];
            let parts = [Segment::readable(at, HEADER), Segment::readable(at + u64::from(HEADER), args.len)];
            guest.driver.add(if args.two { &parts[..] } else { &whole }).ok()?;
        }
        let _ = guest.driver.publish();
        let begun = Instant::now();
        let got = measured_rx(&mut rx, &mut batch);
        times.push(begun.elapsed());
        assert_eq!(got, BURST);
        cache.free_bulk(&mut batch);
        guest.take_used();
    }
    Some(times)
}

fn transmit(args: &Args, pool: &Pool, cache: &mut Cache) -> Option<Vec<Duration>> {
    let (mut guest, ring) = Guest::new(args)?;
    let mut tx = ring.tx(pool)?;
    let (mut batch, mut times) = (Batch::new(), Vec::with_capacity(args.bursts));
    let frame = vec![0x55; args.len as usize];
    for _ in 0..args.bursts {
        for _ in 0..BURST {
            let at = guest.buffer();
            guest.driver.add(&[Segment::writable(at, 2048)]).ok()?;
            batch.push(Packet::copy_from(cache, &frame)?).ok()?;
        }
        let _ = guest.driver.publish();
        let begun = Instant::now();
        let sent = measured_tx(&mut tx, &mut batch);
        times.push(begun.elapsed());
        assert_eq!(sent, BURST);
        cache.free_bulk(&mut batch);
        guest.take_used();
    }
    Some(times)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    let number = |at: usize, default| words.get(at).and_then(|n| n.parse().ok()).unwrap_or(default);
    let bit = |word, bit: u32| u64::from(has(word)) << bit;
    let args = Args {
        format: if has("packed") { Format::Packed } else { Format::Split },
        len: number(2, 64),
        bursts: number(3, 100_000) as usize,
        features: 1 << 32 | bit("packed", 34) | bit("mrg", 15) | bit("in-order", 35),
        two: has("two"),
    };
    let Ok(pool) = Pool::new(PoolConfig::default().capacity(4096)) else { return };
    let Ok(mut cache) = pool.cache(Direction::Tx) else { return };
    let done = if has("tx") { transmit(&args, &pool, &mut cache) } else { receive(&args, &pool, &mut cache) };
    let Some(mut times) = done else { return println!("nothing moved") };
    times.sort_unstable();
    let each = |at: usize| times.get(at).map_or(0.0, |time| time.as_nanos() as f64 / BURST as f64);
    println!("{words:?}: best {:.1} ns a frame, median {:.1}", each(0), each(times.len() / 2));
}
