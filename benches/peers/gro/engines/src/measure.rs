//! Measures an engine in the same way as `dpdk.c` measures DPDK's.

use crate::mix::{self, HEADER, Header};
use std::time::{Duration, Instant};

/// An engine with the buffers of all bursts.
pub trait Engine {
    /// Prepares a burst, untimed: its headers are rewritten, and `payload` behind each, which may
    /// be empty. They are hot in the cache if it is pushed next.
    fn prepare(&mut self, headers: &[Header], payload: &[u8], burst: usize);

    /// Takes the burst that was prepared first, untimed: its metadata is rewritten.
    fn receive(&mut self, packets: usize);

    /// The timed section: a burst is pushed, and the last one of a round flushes the engine.
    /// Returns the packets that left, if the engine knows their number here.
    fn push(&mut self, flush: bool) -> usize;

    /// After a burst, untimed. Returns the packets that left, if the engine knows their number
    /// here.
    fn settle(&mut self) -> usize {
        0
    }
}

/// `FLOWS PAYLOAD BURST POOL HOLD PACKETS`, as for `dpdk`; and how long before the push bursts are
/// prepared.
pub struct Arguments {
    pub cold: bool,
    pub flows: usize,
    pub payload: usize,
    pub burst: usize,
    pub pool: usize,
    pub hold: usize,
    pub packets: usize,
}

impl Arguments {
    pub fn parse(words: &[&str], cold: bool) -> Option<Arguments> {
        let numbers: Vec<usize> = words.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let &[flows, payload, burst, pool, hold, packets] = numbers.as_slice() else { return None };
        let sound = flows > 0 && burst > 0 && hold > 0 && pool % hold.max(1) == 0 && packets >= 20 * burst * hold;
        sound.then_some(Arguments { cold, flows, payload, burst, pool, hold, packets })
    }

    /// Number of bursts that are prepared before the pushed one: none, or all that are not in the
    /// engine.
    pub fn ahead(&self) -> usize {
        if self.cold { self.pool - self.hold } else { 0 }
    }
}

fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it reads a counter only.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds of a tick of the time-stamp counter.
fn tick() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed() < Duration::from_millis(30) {}
    let (time, to) = (start.elapsed(), ticks());
    time.as_nanos() as f64 / (to - from) as f64
}

/// Measures the engine of `make` on the packets of the mix, and prints a line of JSON.
pub fn run<E: Engine>(arguments: &Arguments, make: impl FnOnce(&[Vec<u8>]) -> E) {
    let &Arguments { flows, payload, burst, pool, hold, packets, .. } = arguments;
    let mix = mix::packets(flows, payload, burst, pool, hold);
    let digest = mix::digest(&mix);
    let headers: Vec<Header> = mix.iter().filter_map(|packet| packet.first_chunk::<HEADER>().copied()).collect();
    let mut engine = make(&mix);
    let rewritten = if arguments.cold { mix[0][HEADER..].to_vec() } else { Vec::new() };
    drop(mix);
    let tick = tick();
    let bursts = packets / (burst * hold) * hold;
    let warm_up = bursts / 10 / hold * hold;
    let (mut spent, mut left) = (0, 0);
    let prepare = |engine: &mut E, burst_number: usize| {
        let at = burst_number % pool;
        engine.prepare(&headers[at * burst..(at + 1) * burst], &rewritten, at);
    };
    (0..arguments.ahead()).for_each(|b| prepare(&mut engine, b));
    for b in 0..bursts {
        if b == warm_up {
            (spent, left) = (0, 0);
        }
        prepare(&mut engine, b + arguments.ahead());
        engine.receive(burst);
        let start = ticks();
        left += engine.push((b + 1) % hold == 0);
        spent += ticks() - start;
        left += engine.settle();
    }
    let counted = ((bursts - warm_up) * burst) as f64;
    println!(
        r#"{{"ns":{:.3},"merged":{:.2},"mix":"{digest:016x}"}}"#,
        spent as f64 * tick / counted,
        counted / left as f64
    );
}
