//! The record of a split queue: an entry for each descriptor, that of a chain's first one in use.
//!
//! ```text
//!   header  features u64, version u16, desc_num u16, last_batch_head u16, used_idx u16
//!   entry   inflight u8, padding, next u16, counter u64
//!
//!   take      counter │ inflight = 1
//!   publish   next, last_batch_head, for each │ used ring's idx │ inflight = 0 for each │ used_idx
//! ```
//!
//! A device that was killed behind the store of the used ring's index, and before that of
//! `used_idx`, has left marks on chains that the driver got back. They are the last ones of the
//! list that begins at `last_batch_head`, as many as the two indices differ by.

use super::{InFlightRecord, Record, SIZE_AT, VERSION, VERSION_AT};
use crate::area::RingWords;
use crate::chain::Token;
use crate::error::QueueError;
use crate::layout::Format;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Bytes of the header, and of an entry.
const HEADER: usize = 16;
const ENTRY: usize = 16;
/// 16-bit words of the header.
const LAST_BATCH_HEAD: usize = 6;
const USED_IDX: usize = 7;

pub(super) fn bytes(size: u16) -> usize {
    HEADER + ENTRY * usize::from(size)
}

/// Words of an entry: 16 bits, 16 bits, 64 bits.
fn inflight(key: u16) -> usize {
    (HEADER + ENTRY * usize::from(key)) / 2
}

fn next(key: u16) -> usize {
    inflight(key) + 3
}

fn counter(key: u16) -> usize {
    (HEADER + ENTRY * usize::from(key)) / 8 + 1
}

/// The record, whose keys are the first descriptors of chains.
#[derive(Debug)]
pub(crate) struct SplitRecord<W> {
    words: W,
    /// The next chain's.
    counter: u64,
    last_batch_head: u16,
    /// The keys of chains that are used, until they are unmarked.
    batch: Vec<u16>,
}

impl<W: RingWords> SplitRecord<W> {
    /// The record of a queue of `size`, whose used index is `used`, and the keys of the chains to
    /// be taken again. `None` in place of them if no device has written it.
    ///
    /// # Errors
    /// [`QueueError`] for a record of another queue, or one that contradicts it.
    pub(crate) fn recover(
        record: InFlightRecord<W>,
        size: u16,
        used: u16,
    ) -> Result<(SplitRecord<W>, Option<VecDeque<u16>>), QueueError> {
        let (words, written) = record.open(Format::Split, size)?;
        let batch = Vec::with_capacity(size.into());
        let mut new = SplitRecord { words, counter: 0, last_batch_head: 0, batch };
        if !written {
            new.begin(size, used);
            return Ok((new, None));
        }
        let mut chains = new.last_batch_unmarked(size, used)?;
        chains.sort_unstable();
        new.counter = chains.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok((new, Some(chains.into_iter().map(|(_, key)| key).collect())))
    }

    fn begin(&self, size: u16, used: u16) {
        for key in 0..size {
            self.words.store16(inflight(key), 0, Release);
        }
        self.words.store16(LAST_BATCH_HEAD, 0, Release);
        self.words.store16(USED_IDX, used, Release);
        self.words.store16(SIZE_AT, size, Release);
        // Last: until then, it is a record that no device has written.
        self.words.store16(VERSION_AT, VERSION, Release);
    }

    /// Finishes the last publication. Returns the chains that are in flight, with their counters.
    fn last_batch_unmarked(&mut self, size: u16, used: u16) -> Result<Vec<(u64, u16)>, QueueError> {
        let load = |word| self.words.load16(word, Acquire);
        let mut marked: Vec<bool> = (0..size).map(|key| load(inflight(key)) as u8 != 0).collect();
        let mut at = load(LAST_BATCH_HEAD);
        self.last_batch_head = at;
        let batch = used.wrapping_sub(load(USED_IDX));
        if batch > size {
            return Err(QueueError::Record("its used index is not that of the ring"));
        }
        for _ in 0..batch {
            let mark = marked.get_mut(usize::from(at)).ok_or(QueueError::Record("it leads to no descriptor"))?;
            *mark = false;
            self.words.store16(inflight(at), 0, Release);
            at = self.words.load16(next(at), Acquire);
        }
        self.words.store16(USED_IDX, used, Release);
        let keys = (0..size).zip(marked).filter_map(|(key, marked)| marked.then_some(key));
        Ok(keys.map(|key| (self.words.load64(counter(key), Acquire), key)).collect())
    }

    /// A chain was taken.
    pub(crate) fn mark(&mut self, key: u16) {
        self.words.store64(counter(key), self.counter, Release);
        self.counter = self.counter.wrapping_add(1);
        self.words.store16(inflight(key), 1, Release);
    }

    /// A chain is about to be used.
    pub(crate) fn link(&mut self, key: u16) {
        self.words.store16(next(key), self.last_batch_head, Release);
        self.last_batch_head = key;
        self.words.store16(LAST_BATCH_HEAD, key, Release);
        self.batch.push(key);
    }

    /// The used index was stored.
    pub(crate) fn commit(&mut self, used: u16) {
        for key in self.batch.drain(..) {
            self.words.store16(inflight(key), 0, Release);
        }
        self.words.store16(USED_IDX, used, Release);
    }
}

impl<W> Record for SplitRecord<W> {
    fn enter(&mut self, token: &Token) -> u16 {
        token.id()
    }

    fn leave(&mut self, _: u16) {}
}
