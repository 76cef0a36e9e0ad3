//! The floor: each job for this one kind of packet, without rules, reasons, limits and counters.
//!
//! What is left is what no engine can leave out: to find the flow of a packet, to see that its
//! header is the next one, to predict the one after it, to chain the packet. Packets, and the step
//! that chains them, are towpath-packet's on both sides.

use crate::mix::HEADER;
use crate::{PAYLOAD, Side};
use towpath_packet::{Batch, Packet};

const SLOTS: usize = 1 << 12;
/// Offset of identification, fragment word, TTL, protocol and checksum of IPv4.
const IP: usize = 18;
const SEQUENCE: usize = 38;
/// Offset of TCP's checksum.
const CHECKSUM: usize = 50;
/// Fragments that still fit: an aggregate of 45 packets is the largest.
const FITS: usize = 44;
/// Adds 1 to the identification and subtracts 1 from the checksum.
const STEP: u64 = (1 << 48) - 1;

/// A hash of addresses and ports.
#[inline(always)]
pub fn hash(header: &[u8; HEADER]) -> usize {
    let word = |at: usize| u64::from_ne_bytes(*header[at..].first_chunk().unwrap_or(&[0; 8]));
    let product = u128::from(word(26) ^ 0xe703_7ed1_a0b4_28db) * u128::from(word(30) ^ 0xa076_1d64_78bd_642f);
    ((product >> 64) as u64 ^ product as u64) as usize
}

fn slot(header: &[u8; HEADER]) -> usize {
    hash(header) % SLOTS
}

struct Flow {
    held: Option<Packet>,
    predicted: [u8; HEADER],
}

/// Predicts the header after this one.
#[inline(always)]
fn predict(predicted: &mut [u8; HEADER], header: &[u8; HEADER]) {
    let ip = u64::from_be_bytes(*header[IP..].first_chunk().unwrap_or(&[0; 8]));
    let sequence = u32::from_be_bytes(*header[SEQUENCE..].first_chunk().unwrap_or(&[0; 4]));
    predicted[IP..IP + 8].copy_from_slice(&ip.wrapping_add(STEP).to_be_bytes());
    predicted[SEQUENCE..SEQUENCE + 4].copy_from_slice(&sequence.wrapping_add(PAYLOAD as u32).to_be_bytes());
}

/// Whether two headers differ in the checksum only.
#[inline(always)]
fn same(a: &[u8; HEADER], b: &[u8; HEADER]) -> bool {
    a[..32] == b[..32]
        && a[CHECKSUM - 32..CHECKSUM] == b[CHECKSUM - 32..CHECKSUM]
        && a[CHECKSUM + 2..] == b[CHECKSUM + 2..]
}

/// Merges.
pub struct Merge {
    flows: Box<[Flow; SLOTS]>,
    open: Vec<u16>,
}

impl Merge {
    pub fn new() -> Merge {
        let flows: Vec<Flow> = (0..SLOTS).map(|_| Flow { held: None, predicted: [0; HEADER] }).collect();
        Merge { flows: flows.try_into().ok().expect("as many"), open: Vec::with_capacity(SLOTS) }
    }

    #[cold]
    #[inline(never)]
    fn open(&mut self, slot: usize, packet: Packet, out: &mut Vec<Packet>) {
        let flow = &mut self.flows[slot];
        if let Some(&header) = packet.linear().first_chunk() {
            flow.predicted = header;
            predict(&mut flow.predicted, &header);
        }
        match flow.held.replace(packet) {
            Some(other) => out.push(other),
            None => self.open.push(slot as u16),
        }
    }
}

impl Side for Merge {
    #[inline]
    fn push(&mut self, burst: &mut Batch, out: &mut Vec<Packet>) {
        for packet in burst.drain_front(burst.len()) {
            let Some(header) = packet.linear().first_chunk() else { continue };
            let slot = slot(header);
            let flow = &mut self.flows[slot];
            if packet.len() == HEADER + PAYLOAD
                && let Some(held) = &mut flow.held
                && same(&flow.predicted, header)
                && held.frags() < FITS
            {
                predict(&mut flow.predicted, header);
                if let Err(packet) = held.append_from(packet, HEADER) {
                    out.push(packet);
                }
            } else {
                self.open(slot, packet, out);
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
