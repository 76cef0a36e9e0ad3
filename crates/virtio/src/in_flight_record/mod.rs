//! Chains in flight, in memory that outlives the device (vhost-user, "Inflight I/O tracking").
//!
//! A device that is killed leaves chains that it took and did not use. If chains are used in any
//! order, the index of the ring is not enough to find them. They are in the record, in memory that
//! the front end keeps: the next device takes them again, in the order of their availability.
//!
//! ```text
//!   take ─► key, in memory of the device's own ─► complete ─► publish
//!                                                             │ mark what was taken
//!                                                             │ link what is used
//!                                                             │ the store that the driver waits for
//!                                                             │ unmark what is used
//! ```
//!
//! All of the record is written in [`publish`](crate::Device::publish). A chain that was taken
//! after the last one is available still: the next device finds it in the ring. So chains are
//! marked in order, and used entries are held back until then.
//!
//! **A killed process** has executed its stores up to some point. `Release` keeps them in the order
//! of the program. Each order of steps below leaves, at every point, a record from which the chains
//! that the driver has not got back are known.
//!
//! **Trust.** The other side may write anything into the record. A device reads it once, when it is
//! made, and never again. A record that contradicts itself, or its queue, makes no device
//! ([`QueueError::Record`]).
//!
//! | file | |
//! |---|---|
//! | `mod` | [`InFlightRecord`]; chains of a device that has one |
//! | `split`, `packed` | the record of one format: its words, their order, recovery |

pub(crate) mod packed;
pub(crate) mod split;

use crate::area::{Area, RingWords};
use crate::chain::Token;
use crate::error::QueueError;
use crate::in_order::UsedBatch;
use crate::layout::Format;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Records of queues begin at multiples of so many bytes, as those of other back ends.
const ALIGNMENT: usize = 64;
/// The only version; zero is that of a record which no device has written.
const VERSION: u16 = 1;
/// 16-bit words of both formats: the version, and the number of descriptors.
const VERSION_AT: usize = 4;
const SIZE_AT: usize = 5;

/// The record of one queue. All of it is zero before the first device.
#[derive(Debug, Clone)]
pub struct InFlightRecord<W = Area>(W);

impl<W: RingWords> InFlightRecord<W> {
    /// The record in these words, [`bytes`](InFlightRecord::bytes) of them.
    pub fn new(words: W) -> InFlightRecord<W> {
        InFlightRecord(words)
    }

    /// Bytes of the record of a queue of `size` descriptors, a multiple of 64.
    pub fn bytes(format: Format, size: u16) -> usize {
        let bytes = match format {
            Format::Split => split::bytes(size),
            Format::Packed => packed::bytes(size),
        };
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// Forgets all: the next device begins at the base that it is given. For a queue that was
    /// stopped, with nothing in flight.
    pub fn clear(&self) {
        self.0.store16(VERSION_AT, 0, Release);
    }

    /// The words, if they suffice for a queue of `size`, and whether a device wrote them.
    fn open(self, format: Format, size: u16) -> Result<(W, bool), QueueError> {
        let InFlightRecord(words) = self;
        let (needed, actual) = (InFlightRecord::<W>::bytes(format, size), words.bytes(8));
        if actual < needed {
            return Err(QueueError::Area { name: "in-flight", width: 8, needed, actual });
        }
        match (words.load16(VERSION_AT, Acquire), words.load16(SIZE_AT, Acquire)) {
            (0, _) => Ok((words, false)),
            (VERSION, of) if of == size => Ok((words, true)),
            (VERSION, _) => Err(QueueError::Record("it is of a queue of another size")),
            _ => Err(QueueError::Record("its version is not known")),
        }
    }
}

/// The record of one format, as a device writes it.
pub(crate) trait Record {
    /// A key of a chain that is taken, below the size of the queue.
    fn enter(&mut self, token: &Token) -> u16;
    /// The chain that was entered last is not taken.
    fn leave(&mut self, key: u16);
}

/// A chain that was taken since the last publication.
#[derive(Debug, Clone, Copy)]
struct Taken {
    key: u16,
    id: u16,
    /// Descriptors of the ring.
    slots: u16,
    /// A device before this one has marked it.
    again: bool,
}

/// The chains of a device that has a record. Their tokens have their keys in place of positions.
#[derive(Debug)]
pub(crate) struct Recorded<R> {
    pub(crate) record: R,
    /// Whether chains are used in the order of their availability.
    in_order: bool,
    taken: Vec<Taken>,
    /// The keys of those that are outstanding, oldest first.
    outstanding: VecDeque<u16>,
    /// By key: the chains that are complete and not used.
    completed: Box<[Option<UsedBatch>]>,
    /// The keys of those that are to be taken again, oldest first.
    again: VecDeque<u16>,
}

impl<R: Record> Recorded<R> {
    /// The chains of a queue of `size`, of which some are to be taken `again`.
    pub(crate) fn new(record: R, size: u16, in_order: bool, again: VecDeque<u16>) -> Recorded<R> {
        let (taken, outstanding) = (Vec::with_capacity(size.into()), VecDeque::with_capacity(size.into()));
        let completed = (0..size).map(|_| None).collect();
        Recorded { record, in_order, taken, outstanding, completed, again }
    }

    fn note(&mut self, key: u16, token: &Token, again: bool) -> Token {
        let (id, slots) = (token.id(), token.slots());
        self.taken.push(Taken { key, id, slots, again });
        self.outstanding.push_back(key);
        Token::new(id, slots, key, token.is_writable())
    }

    /// A chain was taken, for the first time.
    pub(crate) fn take(&mut self, token: &Token) -> Token {
        let key = self.record.enter(token);
        self.note(key, token, false)
    }

    /// Chains to be taken again.
    pub(crate) fn again(&self) -> usize {
        self.again.len()
    }

    /// The key of the next chain to be taken again.
    pub(crate) fn next_again(&self) -> Option<u16> {
        self.again.front().copied()
    }

    /// That chain was taken.
    pub(crate) fn take_again(&mut self, token: &Token) -> Token {
        let key = self.again.pop_front().unwrap_or_default();
        self.note(key, token, true)
    }

    /// Gives back the chain that was taken last. Returns false if it is another chain's token.
    pub(crate) fn untake(&mut self, token: &Token) -> bool {
        let Some(last) = self.taken.pop_if(|taken| taken.key == token.at()) else { return false };
        self.outstanding.pop_back();
        if last.again {
            self.again.push_front(last.key);
        } else {
            self.record.leave(last.key);
        }
        true
    }

    /// Descriptors of the chains that are to be marked.
    pub(crate) fn new_slots(&self) -> u16 {
        self.taken.iter().filter(|taken| !taken.again).map(|taken| taken.slots).sum()
    }

    /// Calls `mark` for each chain that was taken since the last time, and that no device marked,
    /// with its key, its id and its descriptors.
    pub(crate) fn mark_taken(&mut self, mut mark: impl FnMut(&mut R, u16, u16, u16)) {
        let Recorded { record, taken, .. } = self;
        taken
            .drain(..)
            .filter(|taken| !taken.again)
            .for_each(|Taken { key, id, slots, .. }| mark(record, key, id, slots));
    }

    /// A chain is complete.
    pub(crate) fn complete(&mut self, token: &Token, len: u32) {
        if let Some(place) = self.completed.get_mut(usize::from(token.at())) {
            *place = Some(UsedBatch::one(token, len));
        }
    }

    /// Calls `each` for the chains that are complete, and used by that.
    pub(crate) fn use_completed(&mut self, mut each: impl FnMut(&mut R, u16, UsedBatch)) {
        let Recorded { record, outstanding, completed, in_order, .. } = self;
        let mut stays = false;
        outstanding.retain(|&key| {
            let used =
                if stays && *in_order { None } else { completed.get_mut(usize::from(key)).and_then(Option::take) };
            stays |= used.is_none();
            used.map(|used| each(record, key, used)).is_none()
        });
    }
}
