//! The forwarding database: which port an address is behind.
//!
//! ```text
//!   (VLAN, MAC) ─► hash ─► bucket ──────────────► the next one, if it was full
//!                          one cache line
//! ```
//!
//! | file | |
//! |---|---|
//! | `fdb` | [`Fdb`]: changes of the table, its limits, ageing |
//! | `fdb/table` | [`Table`]: a burst's look at it |
//! | `fdb/bucket` | keys and values as words; a bucket, and the look into it |
//!
//! A table of fixed size for any number of threads. A lookup reads one cache line, mostly. Keys and
//! values are atomic words; a lookup takes no lock and writes nothing. A packet whose source is
//! known writes at most once per tick, when it renews the entry's time.
//!
//! **Changes.** Entries are added and removed under one mutex. A worker only tries to take it: if
//! it is taken, the address is learned from its next packet. A station that moves, and a renewed
//! time, replace the value by compare-and-swap. Removal first clears the value, then the key;
//! insertion writes the key first, then the value. A reader takes a value only if it carries the
//! hash of the key that it looks for, and if the key is still there after the value was read. A
//! slot that changes its key meanwhile is therefore a miss: the packet is flooded once.
//!
//! **Limits.** At most [`FdbConfig::max_entries`] entries, and a limit for each port. At a limit
//! new addresses are not learned, and counted: a flood of source addresses evicts no entry. The
//! hash is keyed, so that addresses that collide can't be computed outside.
//!
//! **Ageing.** [`Fdb::tick`] walks the table once per second, a part at a time, and removes entries
//! that are older than the ageing time. The walk is shared by all workers.

mod bucket;
mod table;

pub use bucket::{Key, Probe};
pub use table::Table;

use bucket::{Bucket, Found, PORT_SHIFT, PRESENT, STATIC, TAG_SHIFT, WAYS, find_in, port_of, tag_of};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ports that can be distinguished.
pub const MAX_PORTS: usize = 1024;
/// Most entries of a table.
pub const MAX_ENTRIES: usize = 1 << 24;
/// Buckets in which an entry may be: its own, and those behind it.
///
/// A table at its limit is half full: some 4 % of all entries then lie behind their own bucket, the
/// last one about ten buckets behind.
const PROBES: usize = 32;
/// Ticks of the clock of entries per second, and parts of the table that are walked per second.
const TICKS: u64 = 64;

/// Configuration of a forwarding database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FdbConfig {
    /// Most entries. The table has room for twice as many, at 16 bytes each.
    pub max_entries: usize,
    /// How long an address without a packet stays; zero: for ever.
    pub ageing: Duration,
}

impl Default for FdbConfig {
    /// 131072 entries, 300 seconds.
    fn default() -> FdbConfig {
        FdbConfig { max_entries: 1 << 17, ageing: Duration::from_secs(300) }
    }
}

/// What became of a source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It was known behind this port.
    Known,
    /// It is new.
    New,
    /// It was behind another port.
    Moved,
    /// It is not learned: a limit is reached, or its entry is static.
    Refused,
    /// Another thread changes the table now.
    Later,
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The VLAN; 0 if the bridge ignores VLANs.
    pub vlan: u16,
    /// The address.
    pub mac: [u8; 6],
    /// Number of the port that it is behind.
    pub port: usize,
    /// Time since the last packet from it.
    pub age: Duration,
    /// It was configured: it neither ages nor moves.
    pub is_static: bool,
}

/// Counters of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FdbStats {
    /// Entries now.
    pub entries: u64,
    /// Addresses that were learned.
    pub learned: u64,
    /// Times that an address appeared behind another port.
    pub moved: u64,
    /// Packets whose source was not learned, because a limit was reached.
    pub refused: u64,
    /// Entries that aged out.
    pub aged: u64,
    /// Entries that were flushed.
    pub flushed: u64,
}

struct PortCount {
    entries: AtomicU32,
    limit: AtomicU32,
}

/// The table. See the [module](self).
pub struct Fdb {
    buckets: Box<[Bucket]>,
    multiplier: u64,
    shift: u32,
    max_entries: u64,
    /// Buckets behind its own in which an entry was ever put.
    displaced: AtomicUsize,
    /// In ticks; 0: entries do not age.
    ageing: AtomicU64,
    ports: Box<[PortCount]>,
    entries: AtomicU64,
    learned: AtomicU64,
    moved: AtomicU64,
    refused: AtomicU64,
    aged: AtomicU64,
    flushed: AtomicU64,
    /// Parts of the table that were walked since the start.
    walked: AtomicU64,
    writer: Mutex<()>,
    started: Instant,
}

impl Fdb {
    /// An empty table. `max_entries` is brought into the range from 1 to [`MAX_ENTRIES`].
    pub fn new(config: FdbConfig) -> Fdb {
        let max_entries = config.max_entries.clamp(1, MAX_ENTRIES);
        let buckets = (2 * max_entries).div_ceil(WAYS).next_power_of_two().max(PROBES);
        let unlimited = || PortCount { entries: AtomicU32::new(0), limit: AtomicU32::new(u32::MAX) };
        Fdb {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            multiplier: RandomState::new().hash_one(0) | 1,
            shift: 64 - buckets.trailing_zeros(),
            max_entries: max_entries as u64,
            displaced: AtomicUsize::new(0),
            ageing: AtomicU64::new(ticks(config.ageing)),
            ports: (0..MAX_PORTS).map(|_| unlimited()).collect(),
            entries: AtomicU64::new(0),
            learned: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            aged: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            walked: AtomicU64::new(0),
            writer: Mutex::new(()),
            started: Instant::now(),
        }
    }

    /// The tick of a moment: what entries are stamped with.
    #[inline]
    pub fn tick_of(&self, now: Instant) -> u32 {
        ticks(now.saturating_duration_since(self.started)) as u32
    }

    /// The table as a burst looks at it.
    #[inline]
    pub fn table(&self) -> Table<'_> {
        Table { fdb: self, buckets: &self.buckets, multiplier: self.multiplier, shift: self.shift }
    }

    /// A bucket behind that of a hash.
    fn bucket(&self, hash: u64, probe: usize) -> &Bucket {
        let at = (hash >> self.shift) as usize + probe;
        &self.buckets[at & (self.buckets.len() - 1)]
    }

    /// Looks in all buckets in which the entry may be, as far as any entry was ever put.
    #[inline(never)]
    fn find(&self, probe: &Probe) -> Option<Found<'_>> {
        (0..=self.displaced.load(Relaxed)).find_map(|at| find_in(self.bucket(probe.hash, at), probe))
    }

    /// An address, a port or a time that the entry does not have.
    #[inline(never)]
    fn learn_news(&self, probe: &Probe, port: usize, tick: u32) -> Learned {
        let Some(found) = self.find(probe) else { return self.insert(probe, port, tick) };
        let is_here = found.port() == port;
        if is_here || found.value & STATIC != 0 {
            // A value that changes meanwhile is renewed by the next packet.
            let renewed = found.value & !u64::from(u32::MAX) | u64::from(tick);
            let _ = found.slot.compare_exchange(found.value, renewed, AcqRel, Relaxed);
            return if is_here { Learned::Known } else { Learned::Refused };
        }
        self.relocate(&found, port, tick)
    }

    /// The station moved to another port.
    #[cold]
    fn relocate(&self, found: &Found<'_>, port: usize, tick: u32) -> Learned {
        if !self.reserve(port) {
            self.refused.fetch_add(1, Relaxed);
            return Learned::Refused;
        }
        let tag = found.value >> TAG_SHIFT << TAG_SHIFT;
        let value = tag | PRESENT | (port as u64) << PORT_SHIFT | u64::from(tick);
        if found.slot.compare_exchange(found.value, value, AcqRel, Relaxed).is_err() {
            self.ports[port].entries.fetch_sub(1, Relaxed);
            return Learned::Later;
        }
        self.ports[found.port()].entries.fetch_sub(1, Relaxed);
        self.moved.fetch_add(1, Relaxed);
        Learned::Moved
    }

    /// Counts an entry of a port; false if the port has as many as it may.
    fn reserve(&self, port: usize) -> bool {
        let Some(PortCount { entries, limit }) = self.ports.get(port) else { return false };
        let fits = entries.fetch_add(1, Relaxed) < limit.load(Relaxed);
        if !fits {
            entries.fetch_sub(1, Relaxed);
        }
        fits
    }

    fn is_full(&self, port: usize) -> bool {
        let of = |port: &PortCount| port.entries.load(Relaxed) >= port.limit.load(Relaxed);
        self.entries.load(Relaxed) >= self.max_entries || self.ports.get(port).is_none_or(of)
    }

    #[cold]
    fn insert(&self, probe: &Probe, port: usize, tick: u32) -> Learned {
        if self.is_full(port) {
            self.refused.fetch_add(1, Relaxed);
            return Learned::Refused;
        }
        let Ok(_writer) = self.writer.try_lock() else { return Learned::Later };
        self.insert_locked(probe, port, u64::from(tick))
    }

    /// `rest`: the time, and the bit of static entries.
    fn insert_locked(&self, probe: &Probe, port: usize, rest: u64) -> Learned {
        if self.find(probe).is_some() {
            return Learned::Later;
        }
        let Probe { key, hash } = *probe;
        let free = (0..PROBES).find_map(|probe| {
            let bucket = self.bucket(hash, probe);
            let slot = bucket.keys.iter().position(|key| key.load(Relaxed) == 0)?;
            Some((probe, &bucket.keys[slot], &bucket.values[slot]))
        });
        let Some((probe, key_slot, value_slot)) = free.filter(|_| self.reserve(port)) else {
            self.refused.fetch_add(1, Relaxed);
            return Learned::Refused;
        };
        self.displaced.fetch_max(probe, Relaxed);
        key_slot.store(key.0, Relaxed);
        // A reader that sees the value sees its key.
        value_slot.store(tag_of(hash) | PRESENT | (port as u64) << PORT_SHIFT | rest, Release);
        self.entries.fetch_add(1, Relaxed);
        self.learned.fetch_add(u64::from(rest & STATIC == 0), Relaxed);
        Learned::New
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry that neither ages nor moves, or makes one of a learned one. Returns false if a
    /// limit is reached.
    pub fn add_static(&self, key: Key, port: usize) -> bool {
        let _writer = self.lock();
        self.remove_where(|found, _| found == key);
        self.insert_locked(&self.table().probe(key), port, STATIC) == Learned::New
    }

    /// Removes entries that `which` chooses by key and value; returns their number. The caller has
    /// the writer's lock.
    fn remove_where(&self, which: impl Fn(Key, u64) -> bool) -> u64 {
        self.remove_in(0..self.buckets.len(), which)
    }

    fn remove_in(&self, buckets: std::ops::Range<usize>, which: impl Fn(Key, u64) -> bool) -> u64 {
        let mut removed = 0;
        for bucket in &self.buckets[buckets] {
            for (key, slot) in bucket.keys.iter().zip(&bucket.values) {
                let found = Key(key.load(Relaxed));
                let value = slot.load(Relaxed);
                // A packet may renew or move the entry meanwhile: then it stays.
                if found.0 != 0 && which(found, value) && slot.compare_exchange(value, 0, AcqRel, Relaxed).is_ok() {
                    key.store(0, Release);
                    self.ports[port_of(value)].entries.fetch_sub(1, Relaxed);
                    removed += 1;
                }
            }
        }
        self.entries.fetch_sub(removed, Relaxed);
        removed
    }

    /// Removes the entries of a port, with its static ones if `statics`; returns their number.
    pub fn flush(&self, port: usize, statics: bool) -> u64 {
        let _writer = self.lock();
        let flushed = self.remove_where(|_, value| port_of(value) == port && (statics || value & STATIC == 0));
        self.flushed.fetch_add(flushed, Relaxed);
        flushed
    }

    /// Sets the ageing time; zero: entries do not age.
    pub fn set_ageing(&self, ageing: Duration) {
        self.ageing.store(ticks(ageing), Relaxed);
    }

    /// The ageing time; zero: entries do not age.
    pub fn ageing(&self) -> Duration {
        Duration::from_millis(self.ageing.load(Relaxed).saturating_mul(1000) / TICKS)
    }

    /// Limits the entries of a port; `None`: only the limit of the table. Entries beyond a new
    /// limit stay until they age.
    pub fn set_port_limit(&self, port: usize, limit: Option<u32>) {
        if let Some(port) = self.ports.get(port) {
            port.limit.store(limit.unwrap_or(u32::MAX), Relaxed);
        }
    }

    /// Entries of a port.
    pub fn port_entries(&self, port: usize) -> u64 {
        self.ports.get(port).map_or(0, |port| port.entries.load(Relaxed).into())
    }

    /// Walks the part of the table that is due, and removes entries that are too old. Called often,
    /// by any thread.
    #[inline]
    pub fn tick(&self, now: Instant) {
        let due = ticks(now.saturating_duration_since(self.started));
        if self.walked.load(Relaxed) < due {
            self.walk(due);
        }
    }

    #[cold]
    fn walk(&self, due: u64) {
        let Ok(_writer) = self.writer.try_lock() else { return };
        let walked = self.walked.swap(due, Relaxed);
        let ageing = self.ageing.load(Relaxed);
        if ageing == 0 || walked >= due {
            return;
        }
        let is_old = |_, value: u64| {
            value & STATIC == 0 && u64::from((due as u32).wrapping_sub(value as u32)) > ageing
            // A stamp of another thread may be a little ahead of this one's clock.
            && (due as u32).wrapping_sub(value as u32) < u32::MAX / 2
        };
        for part in (walked..due).rev().take(TICKS as usize) {
            let at = |part: u64| self.buckets.len() * part as usize / TICKS as usize;
            let part = part % TICKS;
            let aged = self.remove_in(at(part)..at(part + 1), is_old);
            self.aged.fetch_add(aged, Relaxed);
        }
    }

    /// All entries, in the order of the table.
    pub fn entries(&self) -> Vec<Entry> {
        let now = self.tick_of(Instant::now());
        let slots = self.buckets.iter().flat_map(|bucket| bucket.keys.iter().zip(&bucket.values));
        let entry = |(key, value): (&AtomicU64, &AtomicU64)| {
            let found = Key(key.load(Acquire));
            let value = value.load(Acquire);
            if value & PRESENT == 0 || key.load(Relaxed) != found.0 {
                return None;
            }
            let age = now.wrapping_sub(value as u32);
            let age = if age > u32::MAX / 2 { 0 } else { u64::from(age) };
            let is_static = value & STATIC != 0;
            let age = if is_static { Duration::ZERO } else { Duration::from_millis(age * 1000 / TICKS) };
            Some(Entry { vlan: found.vlan(), mac: found.mac(), port: port_of(value), age, is_static })
        };
        slots.filter_map(entry).collect()
    }

    /// The counters.
    pub fn stats(&self) -> FdbStats {
        FdbStats {
            entries: self.entries.load(Relaxed),
            learned: self.learned.load(Relaxed),
            moved: self.moved.load(Relaxed),
            refused: self.refused.load(Relaxed),
            aged: self.aged.load(Relaxed),
            flushed: self.flushed.load(Relaxed),
        }
    }
}

fn ticks(time: Duration) -> u64 {
    time.as_secs() * TICKS + u64::from(time.subsec_nanos()) * TICKS / 1_000_000_000
}

impl std::fmt::Debug for Fdb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fdb").field("buckets", &self.buckets.len()).field("stats", &self.stats()).finish()
    }
}

#[cfg(test)]
mod tests;
