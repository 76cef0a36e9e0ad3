//! The entries: their states, the packets that wait, and what makes room.

use super::{Key, NeighbourConfig, Outcome, Solicitation};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;
use towpath_packet::Packet;
use towpath_wire::ethernet::Mac;

/// Solicitations for the kernel that may wait.
const MAX_SOLICITATIONS: usize = 4096;

/// What is known of a neighbour's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It is asked for; packets wait.
    Incomplete,
    /// It was confirmed.
    Reachable,
    /// It may be wrong; the next packet decides whether it is asked for.
    Stale,
    /// It is used, and asked for soon.
    Delay,
    /// It is used, and asked for.
    Probe,
    /// There was no answer.
    Failed,
    /// It was configured.
    Permanent,
    /// The kernel has it.
    Kernel,
}

impl State {
    /// Its name, as `ip neighbour` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            State::Incomplete => "incomplete",
            State::Reachable => "reachable",
            State::Stale => "stale",
            State::Delay => "delay",
            State::Probe => "probe",
            State::Failed => "failed",
            State::Permanent => "permanent",
            State::Kernel => "kernel",
        }
    }
}

/// What is known of a neighbour, and the packets that wait for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) mac: Mac,
    /// When the state changes by itself.
    pub(super) due: Option<Instant>,
    /// Requests that were sent in this state (Linux: `neigh->probes`).
    pub(super) probes: u8,
    pub(super) used: Instant,
    /// When the address was last set: ARP may not change it again within a second.
    pub(super) updated: Instant,
    pub(super) waiting: VecDeque<Packet>,
}

/// All entries, and what is left to others.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<Key, Entry>,
    pub(super) queued: usize,
    /// Solicitations for the kernel.
    pub(super) solicitations: Vec<Solicitation>,
    /// Left for a worker.
    pub(super) pending: Outcome,
    /// The earliest time at which an entry changes; may be too early.
    pub(super) next_due: Option<Instant>,
    pub(super) collected: Option<Instant>,
}

impl Entry {
    pub(super) fn new(state: State, mac: Mac, now: Instant) -> Entry {
        Entry { state, mac, due: None, probes: 0, used: now, updated: now, waiting: VecDeque::new() }
    }
}

impl Table {
    pub(super) fn wake_at(&mut self, due: Instant) {
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
    }

    /// Keeps a packet until its neighbour's address is found.
    pub(super) fn wait(&mut self, key: Key, packet: &mut Option<Packet>, config: &NeighbourConfig, out: &mut Outcome) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(packet) = packet.take() else { return };
        if entry.waiting.len() >= config.queue
            && let Some(oldest) = entry.waiting.pop_front()
        {
            self.queued -= 1;
            out.overflown.push(oldest);
        }
        if self.queued >= config.queued {
            out.overflown.push(packet);
        } else {
            self.queued += 1;
            entry.waiting.push_back(packet);
        }
    }

    pub(super) fn ask_kernel(&mut self, solicitation: Solicitation) {
        if self.solicitations.len() < MAX_SOLICITATIONS && !self.solicitations.contains(&solicitation) {
            self.solicitations.push(solicitation);
        }
    }

    pub(super) fn remove(&mut self, key: Key, out: &mut Outcome) {
        if let Some(entry) = self.entries.remove(&key) {
            self.queued -= entry.waiting.len();
            out.failed.extend(entry.waiting.into_iter().map(|packet| (key, packet)));
        }
    }

    /// Makes room: removes the entry that was not used for the longest time, and that no packet
    /// waits for. Returns whether there was one.
    pub(super) fn evict(&mut self) -> bool {
        let may = |entry: &Entry| matches!(entry.state, State::Failed | State::Stale | State::Reachable);
        // Some of them, not all: a full set must not cost a walk over it per packet.
        let oldest = self.entries.iter().take(64).filter(|(_, entry)| may(entry)).min_by_key(|(_, entry)| entry.used);
        let oldest = oldest.map(|(key, _)| *key);
        oldest.is_some_and(|key| self.entries.remove(&key).is_some())
    }
}
