//! The floor: each job for this one kind of packet, without rules, reasons, limits and counters.
//!
//! What is left is what no engine can leave out: to find the flow of a packet, to see that its
//! header is the next one, to predict the one after it, to chain the packet. Packets, and the step
//! that chains them, are towpath-packet's on both sides.

use crate::mix::{ETHERNET, HEADER};
use crate::sum::Avx2;
use crate::{PAYLOAD, Side};
use towpath_packet::{Batch, Packet};
use towpath_wire::checksum::{VALID, add, sum};

pub const SLOTS: usize = 1 << 12;
/// Offset of identification, fragment word, TTL, protocol and checksum of IPv4.
const IP: usize = 18;
const SEQUENCE: usize = 38;
/// Offset of TCP's checksum.
const CHECKSUM: usize = 50;
/// Offset of the addresses of IPv4: they, TCP's length and protocol are the pseudo-header.
const ADDRESSES: usize = ETHERNET + 12;
/// Fragments that still fit: an aggregate of 45 packets is the largest.
const FITS: usize = 44;
/// Packets that are prefetched ahead.
const AHEAD: usize = 8;
/// Adds 1 to the identification and subtracts 1 from the checksum.
const STEP: u64 = (1 << 48) - 1;

/// A hash of addresses and ports.
#[inline(always)]
pub fn hash(header: &[u8; HEADER]) -> usize {
    let word = |at: usize| u64::from_ne_bytes(*header[at..].first_chunk().unwrap_or(&[0; 8]));
    let product = u128::from(word(26) ^ 0xe703_7ed1_a0b4_28db) * u128::from(word(30) ^ 0xa076_1d64_78bd_642f);
    ((product >> 64) as u64 ^ product as u64) as usize
}

pub fn slot(header: &[u8; HEADER]) -> usize {
    hash(header) % SLOTS
}

struct Flow {
    held: Option<Packet>,
    predicted: [u8; HEADER],
    /// The sum of the pseudo-header and of those fields of TCP's header that do not change.
    constant: u16,
}

/// The sum of those that change: sequence number and checksum.
#[inline(always)]
pub fn changing(header: &[u8; HEADER]) -> u16 {
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    add(add(word(SEQUENCE), word(SEQUENCE + 2)), word(CHECKSUM))
}

/// The sum of the pseudo-header and of TCP's header.
pub fn constant(header: &[u8; HEADER]) -> u16 {
    let pseudo = (6 + HEADER - ETHERNET - 20 + PAYLOAD) as u16;
    add(add(sum(&header[ADDRESSES..]), pseudo), !changing(header))
}

/// Predicts the header after this one.
#[inline(always)]
pub fn predict(predicted: &mut [u8; HEADER], header: &[u8; HEADER]) {
    let ip = u64::from_be_bytes(*header[IP..].first_chunk().unwrap_or(&[0; 8]));
    let sequence = u32::from_be_bytes(*header[SEQUENCE..].first_chunk().unwrap_or(&[0; 4]));
    predicted[IP..IP + 8].copy_from_slice(&ip.wrapping_add(STEP).to_be_bytes());
    predicted[SEQUENCE..SEQUENCE + 4].copy_from_slice(&sequence.wrapping_add(PAYLOAD as u32).to_be_bytes());
}

/// Whether two headers differ in the checksum only.
#[inline(always)]
pub fn same(a: &[u8; HEADER], b: &[u8; HEADER]) -> bool {
    a[..32] == b[..32]
        && a[CHECKSUM - 32..CHECKSUM] == b[CHECKSUM - 32..CHECKSUM]
        && a[CHECKSUM + 2..] == b[CHECKSUM + 2..]
}

/// Merges. `VERIFY`: checksums are not trusted, and the payload is summed. `FAR`: the headers are
/// in no cache.
pub struct Merge<const VERIFY: bool, const FAR: bool> {
    flows: Box<[Flow; SLOTS]>,
    open: Vec<u16>,
    avx2: Avx2,
}

impl<const VERIFY: bool, const FAR: bool> Merge<VERIFY, FAR> {
    pub fn new() -> Self {
        let flows: Vec<Flow> = (0..SLOTS).map(|_| Flow { held: None, predicted: [0; HEADER], constant: 0 }).collect();
        let avx2 = Avx2::new().expect("a processor with AVX2");
        Merge { flows: flows.try_into().ok().expect("as many"), open: Vec::with_capacity(SLOTS), avx2 }
    }

    /// Whether the packet's checksum is right, if it is in question.
    #[inline(always)]
    fn is_right(avx2: Avx2, constant: u16, packet: &Packet, header: &[u8; HEADER]) -> bool {
        if !VERIFY {
            return true;
        }
        let Some(payload) = packet.linear()[HEADER..].first_chunk() else { return false };
        add(add(constant, changing(header)), avx2.sum(payload)) == VALID
    }

    #[cold]
    #[inline(never)]
    fn open(&mut self, slot: usize, packet: Packet, out: &mut Vec<Packet>) {
        let flow = &mut self.flows[slot];
        if let Some(&header) = packet.linear().first_chunk() {
            if VERIFY {
                flow.constant = constant(&header);
                if !Self::is_right(self.avx2, flow.constant, &packet, &header) {
                    return out.push(packet);
                }
            }
            flow.predicted = header;
            predict(&mut flow.predicted, &header);
        }
        match flow.held.replace(packet) {
            Some(other) => out.push(other),
            None => self.open.push(slot as u16),
        }
    }
}

impl<const VERIFY: bool, const FAR: bool, const N: usize> Side<N> for Merge<VERIFY, FAR> {
    #[inline]
    fn push(&mut self, burst: &mut Batch<N>, out: &mut Vec<Packet>) {
        if FAR {
            burst.iter().take(AHEAD).for_each(Packet::prefetch_data);
        }
        while !burst.is_empty() {
            if FAR {
                burst.iter().skip(AHEAD).take(AHEAD).for_each(Packet::prefetch_data);
            }
            for packet in burst.drain_front(if FAR { AHEAD } else { N }) {
                let Some(header) = packet.linear().first_chunk() else { continue };
                let slot = slot(header);
                let flow = &mut self.flows[slot];
                if packet.len() == HEADER + PAYLOAD
                    && let Some(held) = &mut flow.held
                    && same(&flow.predicted, header)
                    && held.frags() < FITS
                    && Self::is_right(self.avx2, flow.constant, &packet, header)
                {
                    predict(&mut flow.predicted, header);
                    if let Err(packet) = held.append_from(packet, HEADER) {
                        out.push(packet);
                    }
                } else {
                    self.open(slot, packet, out);
                }
            }
        }
        for slot in self.open.drain(..) {
            out.extend(self.flows[usize::from(slot)].held.take());
        }
    }
}

/// Looks for two packets of one flow in a burst that has none.
pub struct Look {
    /// The number of the burst in which a slot was last seen.
    seen: Box<[u32; SLOTS]>,
    burst: u32,
}

impl Look {
    pub fn new() -> Look {
        Look { seen: Box::new([0; SLOTS]), burst: 0 }
    }
}

impl Side for Look {
    #[inline]
    fn push(&mut self, burst: &mut Batch, _out: &mut Vec<Packet>) {
        self.burst += 1;
        let mut pairs = 0;
        for packet in burst.iter() {
            let Some(header) = packet.linear().first_chunk() else { continue };
            let before = std::mem::replace(&mut self.seen[slot(header)], self.burst);
            pairs += usize::from(before == self.burst);
        }
        std::hint::black_box(pairs);
    }
}
