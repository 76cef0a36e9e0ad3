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
//! All of the record is written in [`publish`](crate::Device::publish). A chain that was taken after
//! the last one is available still: the next device finds it in the ring. So chains are marked in
//! order, and used entries are held back until then.
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
use crate::in_order::InOrder;
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
    /// The key of a chain.
    fn key(token: &Token) -> u16;
    /// The token of a chain that has `key`.
    fn token(token: Token, key: u16) -> Token;
}

/// How completed chains wait for the publication.
#[derive(Debug)]
pub(crate) enum Order<R> {
    /// For their turn.
    InOrder(InOrder),
    /// For the record.
    Recorded(Box<Recorded<R>>),
}

impl<R: Record> Order<R> {
    #[inline]
    pub(crate) fn take(&mut self, token: Token, writable: bool) -> Token {
        match self {
            Order::InOrder(order) => {
                order.take(&token, writable);
                token
            }
            Order::Recorded(chains) => chains.take(token, writable),
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, token: &Token, len: u32) {
        match self {
            Order::InOrder(order) => order.complete(token, len),
            Order::Recorded(chains) => chains.complete(token, len),
        }
    }

    /// Chains to be taken again.
    #[inline]
    pub(crate) fn again(&self) -> usize {
        if let Order::Recorded(chains) = self { chains.again.len() } else { 0 }
    }
}

/// What a device with a record knows of a chain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    pub(crate) id: u16,
    pub(crate) slots: u16,
    /// Whether there are writable buffers.
    pub(crate) writable: bool,
    /// Bytes written, if the chain is complete.
    done: Option<u32>,
}

/// A chain that was taken since the last publication.
#[derive(Debug, Clone, Copy)]
struct Taken {
    key: u16,
    /// A device before this one has marked it.
    again: bool,
}

/// A chain that is used.
#[derive(Debug)]
pub(crate) struct UsedChain {
    pub(crate) key: u16,
    pub(crate) known: Known,
    pub(crate) len: u32,
}

/// The chains of a device that has a record.
#[derive(Debug)]
pub(crate) struct Recorded<R> {
    pub(crate) record: R,
    /// By key.
    known: Box<[Known]>,
    taken: Vec<Taken>,
    /// The keys of those that are outstanding, oldest first, if they are used in that order.
    in_order: Option<VecDeque<u16>>,
    /// The keys of those that are complete, if they are used in any order.
    completed: VecDeque<u16>,
    /// The keys of those that are to be taken again, oldest first.
    again: VecDeque<u16>,
}

impl<R: Record> Recorded<R> {
    /// The chains of a queue of `size`, of which some are to be taken `again`.
    pub(crate) fn new(record: R, size: u16, in_order: bool, again: VecDeque<u16>) -> Recorded<R> {
        let size = usize::from(size);
        Recorded {
            record,
            known: vec![Known::default(); size].into(),
            taken: Vec::with_capacity(size),
            in_order: in_order.then(|| VecDeque::with_capacity(size)),
            completed: VecDeque::with_capacity(size),
            again,
        }
    }

    fn note(&mut self, key: u16, token: &Token, writable: bool, again: bool) {
        if let Some(known) = self.known.get_mut(usize::from(key)) {
            *known = Known { id: token.id(), slots: token.slots(), writable, done: None };
        }
        self.taken.push(Taken { key, again });
        if let Some(order) = &mut self.in_order {
            order.push_back(key);
        }
    }

    #[inline(never)]
    fn take(&mut self, token: Token, writable: bool) -> Token {
        let key = self.record.enter(&token);
        self.note(key, &token, writable, false);
        R::token(token, key)
    }

    /// The key of the next chain to be taken again.
    pub(crate) fn next_again(&self) -> Option<u16> {
        self.again.front().copied()
    }

    /// Takes that chain.
    pub(crate) fn take_again(&mut self, token: Token, writable: bool) -> Token {
        let Some(key) = self.again.pop_front() else { return token };
        self.note(key, &token, writable, true);
        R::token(token, key)
    }

    /// Gives back the chain that was taken last. Returns whether it is to be taken again; `None` if
    /// it is another chain's token.
    pub(crate) fn untake(&mut self, token: &Token) -> Option<bool> {
        let last = self.taken.pop_if(|taken| taken.key == R::key(token))?;
        if let Some(order) = &mut self.in_order {
            order.pop_back();
        }
        if last.again {
            self.again.push_front(last.key);
        } else {
            self.record.leave(last.key);
        }
        Some(last.again)
    }

    #[inline(never)]
    fn complete(&mut self, token: &Token, len: u32) {
        let key = R::key(token);
        if let Some(known) = self.known.get_mut(usize::from(key)) {
            known.done = Some(len);
            if self.in_order.is_none() {
                self.completed.push_back(key);
            }
        }
    }

    /// Descriptors of the chains that are to be marked.
    pub(crate) fn new_slots(&self) -> u16 {
        let new = self.taken.iter().filter(|taken| !taken.again);
        new.filter_map(|taken| self.known.get(usize::from(taken.key))).map(|known| known.slots).sum()
    }

    /// Calls `mark` for each chain that was taken since the last time, and that no device marked.
    pub(crate) fn mark_taken(&mut self, mut mark: impl FnMut(&mut R, u16, &Known)) {
        let Recorded { record, known, taken, .. } = self;
        for Taken { key, again } in taken.drain(..) {
            if let Some(known) = known.get(usize::from(key)).filter(|_| !again) {
                mark(record, key, known);
            }
        }
    }

    /// The next chain that is used.
    pub(crate) fn next_used(&mut self) -> Option<UsedChain> {
        let key = *self.in_order.as_ref().unwrap_or(&self.completed).front()?;
        let known = self.known.get_mut(usize::from(key))?;
        let len = known.done.take()?;
        let known = *known;
        self.in_order.as_mut().unwrap_or(&mut self.completed).pop_front();
        Some(UsedChain { key, known, len })
    }
}
