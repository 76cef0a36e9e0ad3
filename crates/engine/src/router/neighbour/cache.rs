//! A worker's own copies of neighbours: one slot per hash, no lock.

use super::Key;
use std::net::IpAddr;
use std::time::Instant;
use towpath_wire::ethernet::Mac;

/// Slots; neighbours that share one take turns.
const SLOTS: usize = 1024;

#[derive(Clone, Copy)]
struct Slot {
    address: u128,
    port: u16,
    is_v4: bool,
    mac: Mac,
    generation: u64,
    until: Instant,
}

/// An address that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Cached {
    pub(in super::super) mac: Mac,
}

/// One worker's memory of neighbours.
pub(in super::super) struct NeighbourCache {
    slots: Box<[Slot]>,
}

#[inline]
fn parts(key: Key) -> (u128, bool) {
    match key.address {
        IpAddr::V4(v4) => (u32::from(v4).into(), true),
        IpAddr::V6(v6) => (v6.into(), false),
    }
}

#[inline]
fn slot_of(address: u128, port: u16) -> usize {
    let folded = address as u64 ^ (address >> 64) as u64 ^ u64::from(port) << 48;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.trailing_zeros())) as usize
}

impl NeighbourCache {
    pub(in super::super) fn new() -> NeighbourCache {
        let empty =
            Slot { address: 0, port: 0, is_v4: false, mac: Mac::default(), generation: 0, until: Instant::now() };
        NeighbourCache { slots: vec![empty; SLOTS].into() }
    }

    #[inline]
    pub(in super::super) fn get(&self, key: Key, generation: u64, now: Instant) -> Option<Cached> {
        let (address, is_v4) = parts(key);
        let slot = self.slots.get(slot_of(address, key.port))?;
        let is_it = slot.address == address && slot.port == key.port && slot.is_v4 == is_v4;
        (is_it && slot.generation == generation && now < slot.until).then_some(Cached { mac: slot.mac })
    }

    pub(in super::super) fn put(&mut self, key: Key, mac: Mac, generation: u64, until: Instant) {
        let (address, is_v4) = parts(key);
        if let Some(slot) = self.slots.get_mut(slot_of(address, key.port)) {
            *slot = Slot { address, port: key.port, is_v4, mac, generation, until };
        }
    }
}
