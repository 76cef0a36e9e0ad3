//! The decisions: a seeded sequence for each queue, per packet and per call.

use super::config::Config;
use super::shaper::Shaper;
use crate::random::Random;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::Packet;

/// Counters of injected faults, over all queues of a port.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct FaultCounters {
    /// Packets dropped.
    pub dropped: AtomicU64,
    /// Packets duplicated.
    pub duplicated: AtomicU64,
    /// Packets reordered.
    pub reordered: AtomicU64,
    /// Packets with a wrong bit.
    pub corrupted: AtomicU64,
    /// Packets dropped because as many as `limit` waited.
    pub limited: AtomicU64,
    /// Stalls, and times without link.
    pub episodes: AtomicU64,
}

/// The state of the queue in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Ok,
    Stalled,
    Down,
    Gone,
}

/// The action for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Pass,
    Drop,
    Duplicate,
    /// Pass this number of others first.
    Hold(u32),
}

/// Most packets that pass a held one.
const HOLD: u64 = 8;

#[derive(Debug)]
pub(super) struct Injector {
    random: Random,
    config: Config,
    health: Health,
    /// Remaining calls in this state.
    left: u32,
    /// Packets that were decided on.
    packets: u64,
    faults: Arc<FaultCounters>,
}

impl Injector {
    /// The injector of one queue; `None` in `config` is a queue without faults.
    pub(super) fn new(config: Option<&Config>, queue: u64, faults: Arc<FaultCounters>) -> Injector {
        let config = config.copied().unwrap_or_default();
        let mut random = Random::new(config.seed);
        let random = Random::new(random.next() ^ queue);
        let health = if config.vanish == Some(0) { Health::Gone } else { Health::Ok };
        Injector { random, config, health, left: 0, packets: 0, faults }
    }

    fn hit(&mut self, probability: f64) -> bool {
        // 53 bits, all that the fraction has.
        probability > 0.0 && ((self.random.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// The queue of delayed packets, if there is one.
    pub(super) fn shaper(&mut self) -> Option<Shaper> {
        Shaper::new(self.config.shape, self.random.clone().next())
    }

    /// Decides on the call that begins.
    pub(super) fn begin_call(&mut self) -> Health {
        if self.health == Health::Gone {
            return Health::Gone;
        }
        if self.left > 0 {
            self.left -= 1;
            return self.health;
        }
        let (stall, flap) = (self.config.stall, self.config.flap);
        self.health = match (self.hit(stall), self.hit(flap)) {
            (true, _) => Health::Stalled,
            (_, true) => Health::Down,
            _ => Health::Ok,
        };
        if self.health != Health::Ok {
            self.left = self.config.episode.saturating_sub(1);
            self.faults.episodes.fetch_add(1, Relaxed);
        }
        self.health
    }

    /// The state of the queue in the last call.
    pub(super) fn health(&self) -> Health {
        self.health
    }

    /// Decides on a packet, and corrupts it if that is the fault.
    pub(super) fn decide(&mut self, packet: &mut Packet) -> Action {
        self.packets += 1;
        if self.config.vanish.is_some_and(|most| self.packets >= most) {
            self.health = Health::Gone;
        }
        let Config { drop, duplicate, reorder, corrupt, .. } = self.config;
        if self.hit(drop) {
            self.faults.dropped.fetch_add(1, Relaxed);
            return Action::Drop;
        }
        if self.hit(corrupt) {
            let bit = self.random.below(packet.linear().len() as u64 * 8);
            if let Some(byte) = packet.linear_mut().get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
                self.faults.corrupted.fetch_add(1, Relaxed);
            }
        }
        if self.hit(reorder) {
            return Action::Hold(1 + self.random.below(HOLD) as u32);
        }
        if self.hit(duplicate) { Action::Duplicate } else { Action::Pass }
    }

    pub(super) fn faults(&self) -> &FaultCounters {
        &self.faults
    }
}
