//! The largest flows of a route, in fixed memory: the "space-saving" list of Metwally, Agrawal and
//! El Abbadi.
//!
//! ```text
//!   sampled packet ─► its flow is in the list ─► counted
//!                   └ it is not: it replaces the smallest one, and inherits its count as an error
//! ```
//!
//! A flow with more than 1/64 of the sampled packets is in the list. [`TopFlows`] belongs to the
//! thread of the route; [`FlowTable`] is what others read. Each entry has a sequence number, which
//! is odd while the entry is written: a reader that sees another number afterwards reads again, and
//! the writer never waits.

use crate::rules::dissect_packet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use towpath_packet::Packet;
use towpath_wire::LinkKind;
use towpath_wire::hash::FlowKey;

/// Flows of a list.
pub const MAX_FLOWS: usize = 64;
/// Words of an entry.
const WORDS: usize = 8;
/// How often a reader tries an entry that is being written.
const TRIES: usize = 8;

/// A flow, and what was counted of it: estimates from samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCount {
    /// Addresses, ports and protocol; all zero for what is not IP.
    pub key: FlowKey,
    /// The type behind all VLAN tags; 0 if there is none.
    pub ethertype: u16,
    /// Packets, at least.
    pub packets: u64,
    /// Packets, at most: with those that may have been the flow's before it was in the list.
    pub at_most: u64,
    /// Bytes of the packets.
    pub bytes: u64,
}

impl FlowCount {
    fn words(&self) -> [u64; WORDS] {
        let (src, dst) = (u128::from(self.key.src), u128::from(self.key.dst));
        let ports = u64::from(self.key.src_port) << 48 | u64::from(self.key.dst_port) << 32;
        let rest = ports | u64::from(self.ethertype) << 16 | u64::from(self.key.protocol);
        let halves = [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64];
        let [a, b, c, d] = halves;
        [a, b, c, d, rest, self.packets, self.at_most, self.bytes]
    }

    fn from_words([a, b, c, d, rest, packets, at_most, bytes]: [u64; WORDS]) -> FlowCount {
        let address = |high: u64, low: u64| (u128::from(high) << 64 | u128::from(low)).into();
        let key = FlowKey {
            src: address(a, b),
            dst: address(c, d),
            src_port: (rest >> 48) as u16,
            dst_port: (rest >> 32) as u16,
            protocol: rest as u8,
        };
        FlowCount { key, ethertype: (rest >> 16) as u16, packets, at_most, bytes }
    }
}

/// An entry as readers see it.
#[derive(Debug)]
struct Slot {
    /// Odd while the words are written.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The list as readers see it. An entry without packets is empty.
#[derive(Debug)]
pub(super) struct FlowTable([Slot; MAX_FLOWS]);

impl Default for FlowTable {
    fn default() -> FlowTable {
        FlowTable(std::array::from_fn(|_| Slot {
            sequence: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }))
    }
}

impl Slot {
    /// The only writer is the thread of the route.
    fn write(&self, words: [u64; WORDS]) {
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Relaxed);
        // A reader that sees one of the words sees the odd number as well.
        fence(Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Relaxed);
        }
        // A reader that sees the even number sees all words.
        self.sequence.store(sequence.wrapping_add(2), Release);
    }

    fn read(&self) -> Option<[u64; WORDS]> {
        for _ in 0..TRIES {
            let before = self.sequence.load(Acquire);
            let words = std::array::from_fn(|i| self.words[i].load(Relaxed));
            // The number is read behind the words.
            fence(Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Relaxed) == before {
                return Some(words);
            }
            std::hint::spin_loop();
        }
        None
    }
}

impl FlowTable {
    pub(super) fn read(&self) -> Vec<FlowCount> {
        let flows = self.0.iter().filter_map(Slot::read).map(FlowCount::from_words);
        flows.filter(|flow| flow.packets > 0).collect()
    }
}

/// The list as its writer has it.
#[derive(Debug)]
pub(super) struct TopFlows {
    len: usize,
    hashes: [u32; MAX_FLOWS],
    flows: [FlowCount; MAX_FLOWS],
}

impl Default for TopFlows {
    fn default() -> TopFlows {
        let none = FlowCount { key: FlowKey::default(), ethertype: 0, packets: 0, at_most: 0, bytes: 0 };
        TopFlows { len: 0, hashes: [0; MAX_FLOWS], flows: [none; MAX_FLOWS] }
    }
}

impl TopFlows {
    /// Empties the list.
    pub(super) fn clear(&mut self, table: &FlowTable) {
        self.len = 0;
        table.0.iter().for_each(|slot| slot.write([0; WORDS]));
    }

    /// Counts a packet that stands for `weight` packets.
    pub(super) fn count(&mut self, table: &FlowTable, packet: &Packet, link: LinkKind, weight: u64) {
        let dissected = dissect_packet(packet, link);
        self.add(table, dissected.flow, dissected.ethertype, weight, weight * packet.len() as u64);
    }

    fn add(&mut self, table: &FlowTable, key: FlowKey, ethertype: u16, packets: u64, bytes: u64) {
        let hash = key.directed_hash(0) ^ u32::from(ethertype);
        let known = self.hashes.iter().zip(&self.flows).take(self.len);
        let place = known
            .enumerate()
            .find(|(_, (known, flow))| **known == hash && flow.key == key && flow.ethertype == ethertype);
        let place = match place {
            Some((place, _)) => place,
            None => {
                let (place, inherited) = if self.len < MAX_FLOWS {
                    self.len += 1;
                    (self.len - 1, 0)
                } else {
                    let smallest = self.flows.iter().enumerate().min_by_key(|(_, flow)| flow.at_most);
                    smallest.map_or((0, 0), |(place, flow)| (place, flow.at_most))
                };
                self.hashes[place] = hash;
                self.flows[place] = FlowCount { key, ethertype, packets: 0, at_most: inherited, bytes: 0 };
                place
            }
        };
        let (flow, slot) = (&mut self.flows[place], &table.0[place]);
        flow.packets += packets;
        flow.at_most += packets;
        flow.bytes += bytes;
        slot.write(flow.words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn key(n: u32) -> FlowKey {
        FlowKey { src: (u128::from(n) << 40 | 7).into(), src_port: n as u16, protocol: 17, ..FlowKey::default() }
    }

    #[test]
    fn a_flow_with_more_than_a_64th_of_the_packets_is_in_the_list_and_its_bounds_hold() {
        let (table, mut top) = (FlowTable::default(), TopFlows::default());
        let mut exact = HashMap::new();
        // Large flows between many small ones, each of which is seen once.
        for i in 0..20_000u32 {
            let flow = if i % 4 == 0 { key(i / 4 % 10) } else { key(1000 + i) };
            *exact.entry(flow).or_insert(0u64) += 1;
            top.add(&table, flow, 0x86dd, 1, 100);
        }
        let read = table.read();
        assert_eq!(read.len(), MAX_FLOWS);
        for flow in &read {
            let real = exact[&flow.key];
            assert!(flow.packets <= real && real <= flow.at_most, "{flow:?} has {real}");
            assert_eq!(flow.bytes, flow.packets * 100);
        }
        for n in 0..10 {
            assert!(read.iter().any(|flow| flow.key == key(n)), "{n} is missing");
        }
        top.clear(&table);
        assert_eq!(table.read(), []);
    }

    #[test]
    fn an_entry_survives_its_words() {
        let flow = FlowCount { key: key(77), ethertype: 0x8100, packets: 3, at_most: 9, bytes: u64::MAX };
        assert_eq!(FlowCount::from_words(flow.words()), flow);
    }

    #[test]
    fn a_reader_beside_the_writer_sees_whole_entries() {
        let table = FlowTable::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..200_000u64 {
                    table.0[0].write([n + 1; WORDS]);
                }
            });
            while !writer.is_finished() {
                if let Some(words) = table.0[0].read() {
                    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                }
            }
        });
    }
}
