//! What happens to the next packet, or in the next call: one seeded sequence of decisions for each queue.

use super::config::Config;
use crate::random::Random;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::Packet;

/// Faults that have happened, on all queues of a port.
#[derive(Debug, Default)]
pub struct Tally {
    /// Packets that disappeared.
    pub dropped: AtomicU64,
    /// Packets that came twice.
    pub duplicated: AtomicU64,
    /// Packets that were held back.
    pub reordered: AtomicU64,
    /// Packets with a wrong bit.
    pub corrupted: AtomicU64,
    /// Stalls, and times without link.
    pub episodes: AtomicU64,
}

/// How the queue is, in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    Stalled,
    Down,
    Gone,
}

/// What happens to one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Drop,
    Duplicate,
    /// Pass so many others first.
    Hold(u32),
}

/// Packets that one that is held back lets pass, at most.
const HOLD: u64 = 8;

#[derive(Debug)]
pub(super) struct Dice {
    random: Random,
    config: Config,
    mood: Mood,
    /// Calls that the mood lasts yet.
    left: u32,
    /// Packets whose fate was decided.
    packets: u64,
    tally: Arc<Tally>,
}

impl Dice {
    /// The dice of one queue; `None` in `config` is a queue without faults.
    pub(super) fn new(config: Option<&Config>, queue: u64, tally: Arc<Tally>) -> Dice {
        let config = config.copied().unwrap_or_default();
        let mut random = Random::new(config.seed);
        let random = Random::new(random.next() ^ queue);
        let mood = if config.vanish == Some(0) { Mood::Gone } else { Mood::Well };
        Dice { random, config, mood, left: 0, packets: 0, tally }
    }

    fn hit(&mut self, probability: f64) -> bool {
        // 53 bits, all that the fraction has.
        probability > 0.0 && ((self.random.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// How the queue is in the call that begins.
    pub(super) fn call(&mut self) -> Mood {
        if self.mood == Mood::Gone {
            return Mood::Gone;
        }
        if self.left > 0 {
            self.left -= 1;
            return self.mood;
        }
        let (stall, flap) = (self.config.stall, self.config.flap);
        self.mood = match (self.hit(stall), self.hit(flap)) {
            (true, _) => Mood::Stalled,
            (_, true) => Mood::Down,
            _ => Mood::Well,
        };
        if self.mood != Mood::Well {
            self.left = self.config.episode.saturating_sub(1);
            self.tally.episodes.fetch_add(1, Relaxed);
        }
        self.mood
    }

    /// How the queue was in the last call.
    pub(super) fn mood(&self) -> Mood {
        self.mood
    }

    /// Decides what happens to a packet, and spoils it if that is what happens.
    pub(super) fn fate(&mut self, packet: &mut Packet) -> Fate {
        self.packets += 1;
        if self.config.vanish.is_some_and(|most| self.packets >= most) {
            self.mood = Mood::Gone;
        }
        let Config { drop, duplicate, reorder, corrupt, .. } = self.config;
        if self.hit(drop) {
            self.tally.dropped.fetch_add(1, Relaxed);
            return Fate::Drop;
        }
        if self.hit(corrupt) {
            let bit = self.random.below(packet.linear().len() as u64 * 8);
            if let Some(byte) = packet.linear_mut().get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
                self.tally.corrupted.fetch_add(1, Relaxed);
            }
        }
        if self.hit(reorder) {
            return Fate::Hold(1 + self.random.below(HOLD) as u32);
        }
        if self.hit(duplicate) { Fate::Duplicate } else { Fate::Pass }
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }
}
