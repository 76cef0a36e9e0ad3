//! Neighbours: the Ethernet addresses of next hops, found and kept
//! ([RFC 826](https://www.rfc-editor.org/rfc/rfc826),
//! [RFC 4861](https://www.rfc-editor.org/rfc/rfc4861) section 7.3).
//!
//! ```text
//!            packet                     answer                    30 s               packet
//!   (none) ─────────► INCOMPLETE ─────────────────► REACHABLE ────────► STALE ─────────────► DELAY
//!                      │ 3 solicitations, 1 s apart    ▲    ▲  solicited   ▲   5 s             │
//!                      ▼                               │    └── answer ────┼──────────────── PROBE
//!                    FAILED: "host unreachable"        └───────────────────┘  3 times, then FAILED
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Neighbours`]: lookups, messages, timers |
//! | `table` | [`State`]; the entries and their limits, waiting packets |
//! | `config` | [`NeighbourConfig`]: times and limits |
//! | `cache` | a worker's own copies of them |
//! | `message` | ARP and neighbour discovery: read and written |
//!
//! All workers share one set, behind a lock. A worker looks an address up once, and keeps the
//! answer until its time is over or the set's generation changes, which one load per burst shows:
//! so no packet of an established flow takes the lock.
//!
//! Only packets of the router make entries, and solicitations to the router itself: a station that
//! is not spoken with can't fill the set. An answer that was not asked for changes an entry as RFC
//! 4861 section 7.2.5 and Linux say.
//!
//! Beside a kernel that finds neighbours itself ([`Resolver::Kernel`]) entries are
//! [set](Neighbours::set) and [removed](Neighbours::remove) by what mirrors it, and solicitations
//! are [handed to it](Neighbours::take_solicitations).

mod cache;
mod config;
mod message;
mod table;

pub(super) use cache::NeighbourCache;
pub use config::{NeighbourConfig, Resolver};
pub(super) use message::MAX_MESSAGE;
pub use message::{Discovery, Heard};
pub use table::State;

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{Entry, Table};
use towpath_packet::Packet;
use towpath_sys::EventFd;
use towpath_wire::ethernet::Mac;

/// A neighbour: the interface that it is behind, and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The number of the interface.
    pub port: u16,
    /// The address.
    pub address: IpAddr,
}

/// A neighbour, to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Neighbour {
    /// Interface and address.
    pub key: Key,
    /// Its Ethernet address; none while it is asked for.
    pub mac: Option<Mac>,
    /// What is known of it.
    pub state: State,
}

/// A solicitation to send: who has this address?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Solicitation {
    /// The neighbour.
    pub key: Key,
    /// Its last address: the solicitation goes to it alone.
    pub to: Option<Mac>,
}

/// The answer to a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The address, and until when it need not be looked up again.
    Mac(Mac, Instant),
    /// It is asked for: the packet waits.
    Waits,
    /// It does not answer.
    Failed,
    /// There is no room for another entry.
    Full,
}

/// What comes out of the set besides answers.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Solicitations to be sent.
    pub solicitations: Vec<Solicitation>,
    /// Packets that have waited, with the address that was found.
    pub found: Vec<(Key, Mac, Packet)>,
    /// Packets whose neighbour does not answer.
    pub failed: Vec<(Key, Packet)>,
    /// Packets that left a queue for newer ones.
    pub overflown: Vec<Packet>,
}

impl Outcome {
    fn append(&mut self, other: &mut Outcome) {
        self.solicitations.append(&mut other.solicitations);
        self.found.append(&mut other.found);
        self.failed.append(&mut other.failed);
        self.overflown.append(&mut other.overflown);
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.solicitations.is_empty() && self.found.is_empty() && self.failed.is_empty() && self.overflown.is_empty()
    }
}

/// The neighbours of a router, shared by its workers.
#[derive(Debug)]
pub struct Neighbours {
    config: NeighbourConfig,
    table: Mutex<Table>,
    generation: AtomicU64,
    /// Packets that were found or failed on a thread that runs no hub.
    event: EventFd,
    has_pending: AtomicBool,
}

/// Time in which ARP may not change an address again (Linux: `locktime`).
const LOCK: Duration = Duration::from_secs(1);
/// Time between two looks for unused entries.
const COLLECT: Duration = Duration::from_secs(5);

impl Neighbours {
    /// An empty set.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left for an eventfd.
    pub fn new(config: NeighbourConfig) -> io::Result<Neighbours> {
        let (event, has_pending) = (EventFd::new()?, AtomicBool::new(false));
        Ok(Neighbours { config, table: Mutex::default(), generation: AtomicU64::new(1), event, has_pending })
    }

    /// Becomes readable when a worker has packets to send, or to give up.
    pub fn fd(&self) -> RawFd {
        self.event.fd()
    }

    /// When a state changes by itself next.
    pub fn next_due(&self) -> Option<Instant> {
        self.lock().next_due
    }

    /// Leaves what came out of [`set`](Neighbours::set) or [`remove`](Neighbours::remove) to a
    /// worker.
    pub fn leave(&self, mut outcome: Outcome) {
        if outcome.is_empty() {
            return;
        }
        self.lock().pending.append(&mut outcome);
        self.has_pending.store(true, Ordering::Release);
        self.event.signal();
    }

    /// Times and limits.
    pub fn config(&self) -> &NeighbourConfig {
        &self.config
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was remembered of an earlier generation is not valid any more.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The address of a neighbour that a packet is to be sent to. The packet is taken if it
    /// [waits](Found::Waits).
    pub fn lookup(&self, key: Key, packet: &mut Option<Packet>, now: Instant, out: &mut Outcome) -> Found {
        let mut table = self.lock();
        let table = &mut *table;
        if !table.entries.contains_key(&key) {
            if table.entries.len() >= self.config.limit && !table.evict() {
                return Found::Full;
            }
            table.entries.insert(key, Entry::new(State::Failed, Mac::default(), now));
        }
        let Some(entry) = table.entries.get_mut(&key) else { return Found::Full };
        entry.used = now;
        match entry.state {
            State::Permanent => return Found::Mac(entry.mac, now + self.config.reachable),
            State::Kernel => {
                // It is confirmed by the kernel, which does not see our packets.
                table.ask_kernel(Solicitation { key, to: None });
                let until = now + self.config.reachable;
                return table.entries.get(&key).map_or(Found::Full, |entry| Found::Mac(entry.mac, until));
            }
            State::Reachable => return Found::Mac(entry.mac, entry.due.unwrap_or(now)),
            State::Stale => {
                (entry.state, entry.due) = (State::Delay, Some(now + self.config.delay));
                let (mac, until) = (entry.mac, now + self.config.delay);
                table.wake_at(until);
                return Found::Mac(mac, until);
            }
            State::Delay | State::Probe => {
                let until = entry.due.unwrap_or(now);
                return Found::Mac(entry.mac, until);
            }
            State::Failed => {
                if entry.due.is_some_and(|due| now < due) {
                    return Found::Failed;
                }
                (entry.state, entry.probes) = (State::Incomplete, 1);
                entry.due = Some(now + self.config.retransmit);
                self.solicit(table, Solicitation { key, to: None }, out);
                table.wake_at(now + self.config.retransmit);
            }
            State::Incomplete => {}
        }
        table.wait(key, packet, &self.config, out);
        Found::Waits
    }

    fn solicit(&self, table: &mut Table, solicitation: Solicitation, out: &mut Outcome) {
        match self.config.resolver {
            Resolver::Own => out.solicitations.push(solicitation),
            Resolver::Kernel => table.ask_kernel(solicitation),
        }
    }

    /// Solicitations for the kernel, each once; see [`Resolver::Kernel`].
    pub fn take_solicitations(&self) -> Vec<Solicitation> {
        std::mem::take(&mut self.lock().solicitations)
    }

    /// What a message says of a neighbour, by the rules of its protocol.
    pub fn hear(&self, heard: &Heard, now: Instant, out: &mut Outcome) {
        let mut table = self.lock();
        let table = &mut *table;
        let key = heard.key;
        if !table.entries.contains_key(&key) {
            let has_room = table.entries.len() < self.config.limit || table.evict();
            if !heard.creates || heard.mac.is_none() || !has_room {
                return;
            }
            table.entries.insert(key, Entry::new(State::Failed, Mac::default(), now));
        }
        let Some(entry) = table.entries.get_mut(&key) else { return };
        if matches!(entry.state, State::Permanent | State::Kernel) {
            return;
        }
        let was_known = !matches!(entry.state, State::Incomplete | State::Failed);
        let differs = heard.mac.is_some_and(|mac| mac != entry.mac);
        let Some(mac) = heard.mac.or(was_known.then_some(entry.mac)) else { return };
        let overrides =
            if heard.is_arp { now.duration_since(entry.updated) >= LOCK || heard.overrides } else { heard.overrides };
        if was_known && differs && !overrides {
            // Another station claims the address: it is asked for before it is believed.
            if entry.state == State::Reachable && !heard.is_arp {
                (entry.state, entry.due) = (State::Stale, None);
                self.changed();
            }
            return;
        }
        let changed = !was_known || differs;
        if heard.solicited {
            (entry.state, entry.due) = (State::Reachable, Some(now + self.config.reachable));
            table.next_due = table.next_due.map(|due| due.min(now + self.config.reachable)).or(entry.due);
        } else if changed {
            (entry.state, entry.due) = (State::Stale, None);
        }
        entry.probes = 0;
        if changed {
            (entry.mac, entry.updated) = (mac, now);
            let n = entry.waiting.len();
            out.found.extend(entry.waiting.drain(..).map(|packet| (key, mac, packet)));
            table.queued -= n;
            if was_known {
                self.changed();
            }
        }
    }

    /// Sets an address: a configured one, or one that the kernel has.
    pub fn set(&self, key: Key, mac: Mac, state: State, now: Instant, out: &mut Outcome) {
        let mut table = self.lock();
        let table = &mut *table;
        if !table.entries.contains_key(&key) && table.entries.len() >= self.config.limit && !table.evict() {
            return;
        }
        let entry = table.entries.entry(key).or_insert_with(|| Entry::new(state, mac, now));
        let differs = entry.mac != mac && !matches!(entry.state, State::Incomplete | State::Failed);
        (entry.state, entry.mac, entry.due, entry.probes) = (state, mac, None, 0);
        let n = entry.waiting.len();
        out.found.extend(entry.waiting.drain(..).map(|packet| (key, mac, packet)));
        table.queued -= n;
        if differs {
            self.changed();
        }
    }

    /// Removes an address that was [set](Neighbours::set).
    pub fn remove(&self, key: Key, out: &mut Outcome) {
        let mut table = self.lock();
        let is_set = table.entries.get(&key).is_some_and(|e| matches!(e.state, State::Permanent | State::Kernel));
        if is_set {
            table.remove(key, out);
            self.changed();
        }
    }

    /// Removes the neighbours that `which` chooses; packets that wait for them fail.
    pub fn remove_where(&self, which: impl Fn(&Key, State) -> bool, out: &mut Outcome) {
        let mut table = self.lock();
        let keys: Vec<Key> = table.entries.iter().filter(|(key, e)| which(key, e.state)).map(|(key, _)| *key).collect();
        if !keys.is_empty() {
            keys.into_iter().for_each(|key| table.remove(key, out));
            self.changed();
        }
    }

    /// Lets time pass. Cheap if nothing is due; a lock that is taken leaves it to the next call.
    pub fn tick(&self, now: Instant, out: &mut Outcome) {
        if self.has_pending.swap(false, Ordering::Acquire) {
            self.event.clear();
            out.append(&mut self.lock().pending);
        }
        let Ok(mut table) = self.table.try_lock() else { return };
        let table = &mut *table;
        if table.next_due.is_some_and(|due| due <= now) {
            self.run_timers(table, now, out);
        }
        if table.collected.is_none_or(|collected| now.duration_since(collected) >= COLLECT) {
            table.collected = Some(now);
            let unused = self.config.unused;
            let before = table.entries.len();
            table.entries.retain(|_, entry| {
                let is_held = matches!(entry.state, State::Permanent | State::Kernel | State::Incomplete);
                is_held || now.saturating_duration_since(entry.used) < unused
            });
            if table.entries.len() != before {
                self.changed();
            }
        }
    }

    #[cold]
    fn run_timers(&self, table: &mut Table, now: Instant, out: &mut Outcome) {
        let config = &self.config;
        let (mut next, mut solicitations, mut has_changed) = (None, Vec::new(), false);
        for (key, entry) in &mut table.entries {
            let Some(due) = entry.due else { continue };
            if due <= now {
                match entry.state {
                    State::Reachable => (entry.state, entry.due) = (State::Stale, None),
                    State::Delay => {
                        (entry.state, entry.probes) = (State::Probe, 1);
                        entry.due = Some(now + config.retransmit);
                        solicitations.push(Solicitation { key: *key, to: Some(entry.mac) });
                    }
                    State::Incomplete | State::Probe if entry.probes < config.solicitations => {
                        let to = (entry.state == State::Probe).then_some(entry.mac);
                        entry.probes += 1;
                        entry.due = Some(now + config.retransmit);
                        solicitations.push(Solicitation { key: *key, to });
                    }
                    State::Incomplete | State::Probe => {
                        has_changed |= entry.state == State::Probe;
                        (entry.state, entry.due) = (State::Failed, Some(now + config.hold_down));
                        table.queued -= entry.waiting.len();
                        out.failed.extend(entry.waiting.drain(..).map(|packet| (*key, packet)));
                    }
                    _ => entry.due = None,
                }
            }
            // A neighbour that failed is looked at by the next packet.
            if entry.state != State::Failed
                && let Some(due) = entry.due
            {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
            }
        }
        table.next_due = next;
        for solicitation in solicitations {
            self.solicit(table, solicitation, out);
        }
        if has_changed {
            self.changed();
        }
    }

    /// All neighbours, sorted. The set is locked while they are copied: lookups wait for that.
    pub fn list(&self) -> Vec<Neighbour> {
        let show = |(key, entry): (&Key, &Entry)| {
            let known = !matches!(entry.state, State::Incomplete | State::Failed);
            Neighbour { key: *key, mac: known.then_some(entry.mac), state: entry.state }
        };
        let mut all: Vec<Neighbour> = self.lock().entries.iter().map(show).collect();
        all.sort_unstable_by_key(|neighbour| neighbour.key);
        all
    }

    /// Takes all waiting packets: the router ends.
    pub fn take_waiting(&self) -> Vec<Packet> {
        let mut table = self.lock();
        table.queued = 0;
        let Outcome { found, failed, overflown, .. } = std::mem::take(&mut table.pending);
        let waiting = table.entries.values_mut().flat_map(|entry| entry.waiting.drain(..));
        let all = waiting.chain(found.into_iter().map(|(_, _, packet)| packet));
        all.chain(failed.into_iter().map(|(_, packet)| packet)).chain(overflown).collect()
    }
}

#[cfg(test)]
mod tests;
