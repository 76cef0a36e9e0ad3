//! What coalescing costs, in nanoseconds per packet: only the engine is timed.
//!
//! ```text
//! gro_ops                                        the whole table
//! gro_ops chain trusted hot 8 64 1 [rounds]      one line of it: output, checksum, caches, flows,
//!                                                burst, bursts between flushes
//! ```
//!
//! The mix is that of the DPDK and tun-rs comparison: TCP over IPv4 with timestamps, 1448 bytes of
//! payload, identifications counting up, flows in turn. `chain` mimics a packet library: an 8-byte
//! handle to a line of metadata followed by a 2 KiB buffer; appending touches metadata only. `copy`
//! is [`Linear`]. `cold` walks through 144 MB of buffers, so that headers come from DRAM.

use std::hint::black_box;
use std::time::{Duration, Instant};

use towpath_gro::{Appended, Checksum, Config, Gro, Linear, Offload, Segment, Sink};
use towpath_wire::checksum::{self, VALID};

const PAYLOAD: usize = 1448;
const HEADER: usize = 14 + 20 + 32;

/// A packet as the engine is given it, and how to make it that again.
trait Sample: Segment {
    fn new(bytes: &[u8]) -> Self;
    fn reset(&mut self, header: &[u8; HEADER], trusted: bool);
    /// Gives back the packets chained to this one.
    fn unchain(self, to: &mut Vec<Self>);
    fn position(&self) -> usize;
    fn set_position(&mut self, position: usize);
}

/// Metadata in its own line, then the buffer.
#[repr(C, align(64))]
struct Slot {
    chained: Option<Chained>,
    len: u32,
    linear: u16,
    offset: u16,
    position: u32,
    offload: Offload,
    data: Data,
}

#[repr(C, align(64))]
struct Data([u8; 2048]);

/// The packet chained last, which knows the one before it.
struct Chained(Box<Slot>);

struct Handle(Box<Slot>);

impl Segment for Handle {
    #[inline]
    fn head(&self) -> &[u8] {
        let (at, n) = (usize::from(self.0.offset), usize::from(self.0.linear));
        self.0.data.0.get(at..at + n).unwrap_or_default()
    }
    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        let (at, n) = (usize::from(self.0.offset), usize::from(self.0.linear));
        self.0.data.0.get_mut(at..at + n).unwrap_or_default()
    }
    #[inline]
    fn packet_len(&self) -> usize {
        self.0.len as usize
    }
    #[inline]
    fn offload(&self) -> Offload {
        self.0.offload
    }
    #[inline]
    fn set_offload(&mut self, offload: Offload) {
        self.0.offload = offload;
    }
    #[inline(always)]
    fn append(&mut self, mut other: Self, skip: usize, verify: Option<u16>) -> Appended<Self> {
        if let Some(rest) = verify
            && checksum::add(rest, other.sum(skip)) != VALID
        {
            return Appended::Corrupt(other);
        }
        other.0.offset += skip as u16;
        other.0.linear -= skip as u16;
        other.0.len -= skip as u32;
        self.0.len += other.0.len;
        other.0.chained = self.0.chained.take();
        self.0.chained = Some(Chained(other.0));
        Appended::Chained
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn prefetch(&self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let slot: *const Slot = &raw const *self.0;
        // SAFETY: a prefetch does not access memory, and the addresses are inside the slot.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(slot.cast());
            _mm_prefetch::<_MM_HINT_T0>(slot.cast::<i8>().add(128));
            _mm_prefetch::<_MM_HINT_T0>(slot.cast::<i8>().add(192));
        }
    }
}

impl Sample for Handle {
    fn new(bytes: &[u8]) -> Self {
        let mut data = Data([0; 2048]);
        data.0[128 - 64..128 - 64 + bytes.len()].copy_from_slice(bytes);
        let slot = Slot { chained: None, len: 0, linear: 0, offset: 0, position: 0, offload: Offload::default(), data };
        Self(Box::new(slot))
    }
    fn reset(&mut self, header: &[u8; HEADER], trusted: bool) {
        self.0.len = (HEADER + PAYLOAD) as u32;
        self.0.linear = self.0.len as u16;
        self.0.offset = 64;
        self.0.offload = offload(trusted);
        self.head_mut()[..HEADER].copy_from_slice(header);
    }
    fn unchain(mut self, to: &mut Vec<Self>) {
        let mut next = self.0.chained.take();
        to.push(self);
        while let Some(Chained(mut slot)) = next {
            next = slot.chained.take();
            to.push(Self(slot));
        }
    }
    fn position(&self) -> usize {
        self.0.position as usize
    }
    fn set_position(&mut self, position: usize) {
        self.0.position = position as u32;
    }
}

/// [`Linear`], with room for a whole aggregate, and a number.
struct Copied(Linear<Box<[u8]>>, usize);

impl Segment for Copied {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.head()
    }
    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        self.0.head_mut()
    }
    #[inline]
    fn packet_len(&self) -> usize {
        self.0.packet_len()
    }
    #[inline]
    fn offload(&self) -> Offload {
        self.0.offload()
    }
    #[inline]
    fn set_offload(&mut self, offload: Offload) {
        self.0.set_offload(offload);
    }
    #[inline]
    fn append(&mut self, other: Self, skip: usize, verify: Option<u16>) -> Appended<Self> {
        let position = other.1;
        match self.0.append(other.0, skip, verify) {
            Appended::Chained => Appended::Chained,
            Appended::Copied(rest) => Appended::Copied(Self(rest, position)),
            Appended::Full(other) => Appended::Full(Self(other, position)),
            Appended::Corrupt(other) => Appended::Corrupt(Self(other, position)),
        }
    }
}

impl Sample for Copied {
    fn new(bytes: &[u8]) -> Self {
        let mut buffer = vec![0; 65_535 + 14].into_boxed_slice();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Self(Linear::new(buffer, bytes.len(), Offload::default()), 0)
    }
    fn reset(&mut self, header: &[u8; HEADER], trusted: bool) {
        let empty = Linear::new(Box::default(), 0, Offload::default());
        let mut buffer = std::mem::replace(&mut self.0, empty).into_buffer();
        buffer[..HEADER].copy_from_slice(header);
        self.0 = Linear::new(buffer, HEADER + PAYLOAD, offload(trusted));
    }
    fn unchain(self, to: &mut Vec<Self>) {
        to.push(self);
    }
    fn position(&self) -> usize {
        self.1
    }
    fn set_position(&mut self, position: usize) {
        self.1 = position;
    }
}

fn offload(trusted: bool) -> Offload {
    let checksum = if trusted { Checksum::Verified } else { Checksum::Unverified };
    Offload { checksum, gso: None }
}

/// What leaves, in the order it leaves.
struct Out<'a, S> {
    packets: &'a mut Vec<S>,
    spent: &'a mut Vec<S>,
}

impl<S> Sink<S> for Out<'_, S> {
    #[inline]
    fn packet(&mut self, packet: S) {
        self.packets.push(packet);
    }
    #[inline]
    fn spent(&mut self, spent: S) {
        self.spent.push(spent);
    }
}

fn packet(flow: u32, index: u32) -> Vec<u8> {
    let mut b = vec![0; HEADER + PAYLOAD];
    b[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip = &mut b[14..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((HEADER - 14 + PAYLOAD) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&((flow * 977 + index) as u16).to_be_bytes());
    (ip[6], ip[8], ip[9]) = (0x40, 64, 6);
    ip[12..16].copy_from_slice(&(0x0a00_0001 + (flow & 3)).to_be_bytes());
    ip[16..20].copy_from_slice(&0x0a01_0001u32.to_be_bytes());
    let check = checksum::finish(checksum::sum(&ip[..20]));
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let addresses = checksum::sum(&ip[12..20]);
    let tcp = &mut ip[20..];
    tcp[..2].copy_from_slice(&(10_000 + flow as u16).to_be_bytes());
    tcp[2..4].copy_from_slice(&5201u16.to_be_bytes());
    let seq = 0x1000_0000u32.wrapping_add(flow * 7919).wrapping_add(index * PAYLOAD as u32);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&(0x2222_2222 + flow).to_be_bytes());
    (tcp[12], tcp[13]) = (0x80, 0x10);
    tcp[14..16].copy_from_slice(&501u16.to_be_bytes());
    tcp[20..32].copy_from_slice(&[1, 1, 8, 10, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    for (i, b) in tcp[32..].iter_mut().enumerate() {
        *b = (i as u32 * 7 + flow + index) as u8;
    }
    let pseudo = checksum::add(addresses, 6 + tcp.len() as u16);
    let check = checksum::finish(checksum::add(pseudo, checksum::sum(tcp)));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    b
}

#[derive(Clone, Copy)]
struct Run {
    copy: bool,
    trusted: bool,
    cold: bool,
    flows: usize,
    burst: usize,
    /// Bursts between flushes.
    hold: usize,
    rounds: usize,
}

/// Nanoseconds per packet, and packets per packet that left.
fn measure<S: Sample>(run: Run) -> (f64, f64) {
    let round = run.burst * run.hold;
    let total = if run.cold { 65_536 } else { 256.max(round) }.next_multiple_of(round);
    // A flow's sequence goes on within a round and begins anew with the next.
    let mut pool: Vec<Option<S>> = vec![];
    let mut headers: Vec<[u8; HEADER]> = vec![];
    for g in 0..total {
        let (flow, index) = ((g % round) % run.flows, (g % round) / run.flows);
        let base = if run.hold == 1 { (g / round * run.burst) % run.flows } else { 0 };
        let bytes = packet(((flow + base) % run.flows) as u32, index as u32);
        headers.push(*bytes.first_chunk().unwrap_or(&[0; HEADER]));
        let mut sample = S::new(&bytes);
        sample.set_position(g);
        sample.reset(&headers[g], run.trusted);
        pool.push(Some(sample));
    }
    let mut gro = Gro::new(Config::default());
    let (mut packets, mut spent, mut back) = (Vec::with_capacity(round), Vec::with_capacity(round), vec![]);
    let mut burst = Vec::with_capacity(run.burst);
    let nothing: Duration = (0..1000).map(|_| Instant::now().elapsed()).min().unwrap_or_default();
    let (mut time, mut pushed, mut left) = (Duration::ZERO, 0, 0);
    let mut at = 0;
    for r in 0..run.rounds {
        for b in 0..run.hold {
            for place in &mut pool[at..at + run.burst] {
                if let Some(sample) = place.take() {
                    if !run.cold {
                        black_box(sample.head()[0]);
                        black_box(sample.head()[HEADER - 1]);
                    }
                    burst.push(sample);
                }
            }
            at += run.burst;
            let mut out = Out { packets: &mut packets, spent: &mut spent };
            let start = Instant::now();
            gro.push_batch(burst.drain(..), 0, &mut out);
            if b + 1 == run.hold {
                gro.flush_all(&mut out);
            }
            time += start.elapsed().saturating_sub(nothing);
            pushed += run.burst;
        }
        if r >= run.rounds / 10 {
            left += packets.len();
        } else {
            (time, pushed) = (Duration::ZERO, 0);
        }
        packets.drain(..).for_each(|p| p.unchain(&mut back));
        back.append(&mut spent);
        // In the order of memory, and all of it changed here: nothing of it remains in the caches.
        for mut sample in back.drain(..) {
            let position = sample.position();
            sample.reset(&headers[position], run.trusted);
            pool[position] = Some(sample);
        }
        at %= total;
    }
    (time.as_nanos() as f64 / pushed as f64, pushed as f64 / left as f64)
}

fn line(mut run: Run) {
    let round = run.burst * run.hold;
    if run.rounds == 0 {
        run.rounds = (if run.cold { 400_000 } else { 1_000_000 } / round).max(3);
    }
    let mut results: Vec<(f64, f64)> =
        (0..3).map(|_| if run.copy { measure::<Copied>(run) } else { measure::<Handle>(run) }).collect();
    results.sort_by(|a, b| a.0.total_cmp(&b.0));
    let word = |on, yes: &'static str, no: &'static str| if on { yes } else { no };
    println!(
        "{:6} {:9} {:5} {:5} flows  burst {:4}  flush every {:4}:  {:6.1} ns/packet  {:5.1} in/out",
        word(run.copy, "copy", "chain"),
        word(run.trusted, "trusted", "verified"),
        word(run.cold, "cold", "hot"),
        run.flows,
        run.burst,
        run.hold,
        results[1].0,
        results[1].1
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |n: usize| arguments.get(n).map_or("", String::as_str);
    let number = |n: usize, default| word(n).parse().unwrap_or(default);
    if !arguments.is_empty() {
        return line(Run {
            copy: word(0) == "copy",
            trusted: word(1) == "trusted",
            cold: word(2) == "cold",
            flows: number(3, 8),
            burst: number(4, 64),
            hold: number(5, 1),
            rounds: number(6, 0),
        });
    }
    let base = Run { copy: false, trusted: true, cold: false, flows: 1, burst: 64, hold: 1, rounds: 0 };
    for (flows, hold) in [(1, 1), (8, 1), (64, 1), (512, 1), (2000, 1), (64, 8), (512, 64), (2000, 250)] {
        line(Run { flows, hold, ..base });
    }
    for burst in [32, 256] {
        for flows in [1, 8, 64, 512] {
            line(Run { flows, burst, ..base });
        }
    }
    for (flows, burst) in [(8, 64), (8, 256), (64, 64)] {
        line(Run { cold: true, flows, burst, ..base });
    }
    for flows in [1, 8] {
        line(Run { trusted: false, flows, ..base });
    }
    for trusted in [true, false] {
        line(Run { copy: true, trusted, flows: 8, ..base });
    }
}
