//! The record of a packed queue: a copy of each descriptor of the chains in flight, because used
//! descriptors are written over those of other chains.
//!
//! ```text
//!   header  features u64, version u16, desc_num u16, free_head u16, old_free_head u16,
//!           used_idx u16, old_used_idx u16, used_wrap_counter u8, old_used_wrap_counter u8,
//!           padding
//!   entry   inflight u8, padding, next u16, last u16, num u16, counter u64,
//!           id u16, flags u16, len u32, addr u64
//!
//!   chain   head ─► entry ─► last      the first `num` entries of the free list, as it was
//!   free    free_head ─► … ─► desc_num (the end)
//!
//!   take      counter, inflight = 1, num, last │ copies │ free_head │ old_free_head
//!   publish   each chain in front of the free list: free_head │ used_idx, used_wrap_counter
//!             │ flags in the ring │ inflight = 0 for each │ old_free_head │ the other old_…
//! ```
//!
//! A step has begun and not ended if `free_head` is not `old_free_head`. If the descriptor at
//! `old_used_idx` is used, the driver has got the chains back, and the step is finished. If not, it
//! is taken back. Used descriptors behind that one may be in the ring by then, which the driver
//! would take for chains that it got back: the device makes them available again.

use super::{InFlightRecord, Record, SIZE_AT, VERSION, VERSION_AT};
use crate::area::RingWords;
use crate::chain::Token;
use crate::error::QueueError;
use crate::layout::{Desc, Format};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Bytes of the header, and of an entry.
const HEADER: usize = 32;
const ENTRY: usize = 32;
/// 16-bit words of the header.
const FREE_HEAD: usize = 6;
const OLD_FREE_HEAD: usize = 7;
const USED_IDX: usize = 8;
const OLD_USED_IDX: usize = 9;
/// The wrap counter in the low byte, the old one in the high byte.
const WRAP_COUNTERS: usize = 10;

const DAMAGED: QueueError = QueueError::Record("its lists contradict each other");

pub(super) fn bytes(size: u16) -> usize {
    HEADER + ENTRY * usize::from(size)
}

/// The first 16-bit word of an entry; others are counted from it.
fn inflight(key: u16) -> usize {
    (HEADER + ENTRY * usize::from(key)) / 2
}

fn next(key: u16) -> usize {
    inflight(key) + 1
}

fn last(key: u16) -> usize {
    inflight(key) + 2
}

fn num(key: u16) -> usize {
    inflight(key) + 3
}

fn id(key: u16) -> usize {
    inflight(key) + 8
}

fn flags(key: u16) -> usize {
    inflight(key) + 9
}

fn len(key: u16) -> usize {
    inflight(key) / 2 + 5
}

/// The first 64-bit word of an entry's counter, and of its address.
fn counter(key: u16) -> usize {
    inflight(key) / 4 + 1
}

fn addr(key: u16) -> usize {
    inflight(key) / 4 + 3
}

/// An index of the ring, and the wrap counter there.
pub(crate) type PackedPosition = (u16, bool);

/// What is in the record of a device before this one.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Where the next used descriptor is written.
    pub(crate) used: PackedPosition,
    /// The keys of the chains to be taken again, oldest first.
    pub(crate) again: VecDeque<u16>,
}

/// A device's own copy of an entry's state.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    next: u16,
    /// Of the first entry of a chain: the last one, and how many there are.
    last: u16,
    num: u16,
}

/// The record, whose keys are the first entries of chains.
#[derive(Debug)]
pub(crate) struct PackedRecord<W> {
    words: W,
    size: u16,
    counter: u64,
    /// Ahead of those in the record by the chains that were taken and not published.
    entries: Box<[Entry]>,
    free: u16,
    used: PackedPosition,
    /// The keys of chains that are used, until they are unmarked.
    batch: Vec<u16>,
    /// The descriptors of chains to be taken again, by entry.
    copies: Box<[Desc]>,
}

impl<W: RingWords> PackedRecord<W> {
    /// The record of a queue of `size` that begins at `begin`, if no device has written it. Else
    /// also what is in it; `is_used` looks whether the descriptor at a position is used, or was.
    ///
    /// # Errors
    /// [`QueueError`] for a record of another queue, or one that contradicts itself.
    pub(crate) fn recover(
        record: InFlightRecord<W>,
        size: u16,
        begin: PackedPosition,
        is_used: impl Fn(PackedPosition) -> bool,
    ) -> Result<(PackedRecord<W>, Option<Recovered>), QueueError> {
        let (words, written) = record.open(Format::Packed, size)?;
        let entries = (1..=size).map(|next| Entry { next, ..Entry::default() }).collect();
        let (batch, copies) = (Vec::with_capacity(size.into()), Box::default());
        let mut new = PackedRecord { words, size, counter: 0, entries, free: 0, used: begin, batch, copies };
        if !written {
            new.begin();
            return Ok((new, None));
        }
        new.finish_or_take_back(is_used)?;
        let again = new.read_lists()?;
        let used = new.used;
        Ok((new, Some(Recovered { used, again })))
    }

    fn begin(&self) {
        for key in 0..self.size {
            self.store(inflight(key), 0);
            self.store(next(key), key + 1);
        }
        self.store(FREE_HEAD, 0);
        self.store(USED_IDX, self.used.0);
        self.store(SIZE_AT, self.size);
        self.end_step();
        // Last: until then, it is a record that no device has written.
        self.store(VERSION_AT, VERSION);
    }

    fn load(&self, word: usize) -> u16 {
        self.words.load16(word, Acquire)
    }

    fn store(&self, word: usize, value: u16) {
        self.words.store16(word, value, Release);
    }

    fn store_wraps(&self, wrap: bool, old: bool) {
        self.store(WRAP_COUNTERS, u16::from(wrap) | u16::from(old) << 8);
    }

    /// What is now becomes what is old; the free head first, which ends the step.
    fn end_step(&self) {
        self.store(OLD_FREE_HEAD, self.free);
        self.store(OLD_USED_IDX, self.used.0);
        self.store_wraps(self.used.1, self.used.1);
    }

    /// Ends the step in which the device before this one was killed.
    fn finish_or_take_back(&mut self, is_used: impl Fn(PackedPosition) -> bool) -> Result<(), QueueError> {
        let (free, old_free, wraps) = (self.load(FREE_HEAD), self.load(OLD_FREE_HEAD), self.load(WRAP_COUNTERS));
        let used = (self.load(USED_IDX), wraps as u8 != 0);
        let old_used = (self.load(OLD_USED_IDX), wraps >> 8 != 0);
        if used.0 >= self.size || old_used.0 >= self.size {
            return Err(QueueError::Record("its used index is beyond the ring"));
        }
        if free == old_free || is_used(old_used) {
            (self.free, self.used) = (free, used);
            self.end_step();
        } else {
            (self.free, self.used) = (old_free, old_used);
            self.store(USED_IDX, old_used.0);
            self.store_wraps(old_used.1, old_used.1);
            self.store(FREE_HEAD, old_free);
        }
        Ok(())
    }

    /// Reads the lists, each entry of which must be in one. Returns the chains in flight.
    fn read_lists(&mut self) -> Result<VecDeque<u16>, QueueError> {
        let read = |key| Entry { next: self.load(next(key)), last: key, num: self.load(num(key)) };
        let mut entries: Box<[Entry]> = (0..self.size).map(read).collect();
        let mut marked: Vec<bool> = (0..self.size).map(|key| self.load(inflight(key)) as u8 != 0).collect();
        let mut seen = vec![false; self.size.into()];
        let mut visit = |key: u16| {
            let first = seen.get_mut(usize::from(key)).filter(|seen| !**seen).map(|seen| *seen = true);
            first.ok_or(DAMAGED)
        };
        let next_of = |key: u16| entries.get(usize::from(key)).map_or(self.size, |entry| entry.next);
        let (mut at, mut visited) = (self.free, 0);
        while at < self.size {
            visit(at)?;
            visited += 1;
            if let Some(is_marked) = marked.get_mut(usize::from(at)) {
                *is_marked = false;
            }
            self.store(inflight(at), 0);
            at = next_of(at);
        }
        let marked = (0..self.size).zip(marked).filter_map(|(key, is_marked)| is_marked.then_some(key));
        let mut chains: Vec<(u64, u16, u16)> = Vec::new();
        for key in marked {
            let (mut at, mut last) = (key, key);
            for _ in 0..entries.get(usize::from(key)).map_or(0, |entry| entry.num.max(1)) {
                visit(at)?;
                visited += 1;
                (last, at) = (at, next_of(at));
            }
            chains.push((self.words.load64(counter(key), Acquire), key, last));
        }
        if visited != self.size {
            return Err(DAMAGED);
        }
        for (_, key, last) in &chains {
            if let Some(entry) = entries.get_mut(usize::from(*key)) {
                (entry.last, entry.num) = (*last, entry.num.max(1));
            }
        }
        self.copies = (0..self.size).map(|key| self.read_copy(key)).collect();
        self.entries = entries;
        chains.sort_unstable();
        self.counter = chains.last().map_or(0, |(counter, ..)| counter.wrapping_add(1));
        Ok(chains.into_iter().map(|(_, key, _)| key).collect())
    }

    fn read_copy(&self, key: u16) -> Desc {
        Desc {
            addr: self.words.load64(addr(key), Acquire),
            len: self.words.load32(len(key), Acquire),
            flags: self.load(flags(key)),
            link: self.load(id(key)),
        }
    }

    fn entry(&self, key: u16) -> Entry {
        self.entries.get(usize::from(key)).copied().unwrap_or_default()
    }

    /// Descriptors of a chain.
    pub(crate) fn slots(&self, key: u16) -> u16 {
        self.entry(key).num
    }

    /// The descriptors of a chain to be taken again.
    pub(crate) fn chain(&self, key: u16) -> impl Iterator<Item = Desc> {
        let keys = std::iter::successors(Some(key), |key| Some(self.entry(*key).next));
        keys.take(self.entry(key).num.into()).filter_map(|key| self.copies.get(usize::from(key)).copied())
    }

    /// A chain was taken, whose id and descriptors are these.
    pub(crate) fn mark(&mut self, key: u16, chain_id: u16, descs: impl Iterator<Item = Desc>) {
        self.store(num(key), self.slots(key));
        self.words.store64(counter(key), self.counter, Release);
        self.counter = self.counter.wrapping_add(1);
        self.store(inflight(key), 1);
        self.store(last(key), self.entry(key).last);
        let mut at = key;
        for desc in descs {
            self.words.store64(addr(at), desc.addr, Release);
            self.words.store32(len(at), desc.len, Release);
            self.store(flags(at), desc.flags);
            self.store(id(at), chain_id);
            at = self.entry(at).next;
        }
        self.store(FREE_HEAD, at);
        self.store(OLD_FREE_HEAD, at);
    }

    /// A chain is about to be used.
    pub(crate) fn link(&mut self, key: u16) {
        let last = self.entry(key).last;
        if let Some(entry) = self.entries.get_mut(usize::from(last)) {
            entry.next = self.free;
        }
        self.store(next(last), self.free);
        self.free = key;
        self.store(FREE_HEAD, key);
        self.batch.push(key);
    }

    /// The next used descriptor will be written at `used`.
    pub(crate) fn advance(&mut self, used: PackedPosition) {
        let old = std::mem::replace(&mut self.used, used);
        self.store(USED_IDX, used.0);
        self.store_wraps(used.1, old.1);
    }

    /// The used descriptors are in the ring.
    pub(crate) fn commit(&mut self) {
        for key in self.batch.drain(..) {
            self.words.store16(inflight(key), 0, Release);
        }
        self.end_step();
    }
}

impl<W: RingWords> Record for PackedRecord<W> {
    fn enter(&mut self, token: &Token) -> u16 {
        let key = self.free;
        let mut last = key;
        for _ in 1..token.slots() {
            last = self.entry(last).next;
        }
        self.free = self.entry(last).next;
        if let Some(entry) = self.entries.get_mut(usize::from(key)) {
            (entry.last, entry.num) = (last, token.slots());
        }
        key
    }

    fn leave(&mut self, key: u16) {
        self.free = key;
    }
}
