//! Datagrams that wait to be sent.
//!
//! ```text
//!   memory      │ a0 │ b0 │ a1 │ a2 │ b1 │         in the order of `push`
//!   runs        a: a0 ─► a1 ─► a2                  one message each, if the kernel segments it
//!               b: b0 ─► b1
//! ```
//!
//! A run is datagrams of one size to one destination, the last of which may be shorter. Datagrams
//! to the same destination keep their order: only its latest run grows.

use std::ops::Range;
use towpath_sys::udp::{Path, SEGMENTED, SEGMENTS};

/// Most bytes of a datagram: what the length field of an IP packet can say. Headers count, too, so
/// the kernel refuses the last few.
const LONGEST: usize = 65_535;

/// Runs among which one with a datagram's destination is looked for.
const LOOK_BACK: usize = 8;

/// Why a datagram is not in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The queue is full until all of it is sent.
    #[error("the queue is full: flush it, or raise queue_bytes or queue_datagrams")]
    Full,
    /// No datagram is that long.
    #[error("a datagram has at most {LONGEST} bytes")]
    TooLong,
}

#[derive(Debug)]
struct Datagram {
    at: usize,
    len: usize,
    /// The next one of its run.
    next: usize,
}

/// Datagrams of one message.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) path: Path,
    /// The size of all datagrams but the last.
    pub(crate) segment: usize,
    /// Datagrams that are not sent yet.
    pub(crate) count: usize,
    /// They are sent one by one.
    pub(crate) singly: bool,
    bytes: usize,
    first: usize,
    last: usize,
    /// The last datagram is shorter: the run is complete.
    complete: bool,
}

#[derive(Debug)]
pub(crate) struct Queue {
    memory: Box<[u8]>,
    used: usize,
    datagrams: Vec<Datagram>,
    most: usize,
    runs: Vec<Run>,
    /// The first run that is not sent.
    front: usize,
    pending: usize,
}

impl Queue {
    pub(crate) fn new(datagrams: usize, bytes: usize) -> Queue {
        let most = datagrams.clamp(1, usize::from(u16::MAX));
        Queue {
            memory: vec![0; bytes.max(LONGEST)].into(),
            used: 0,
            datagrams: Vec::with_capacity(most),
            most,
            runs: Vec::with_capacity(most),
            front: 0,
            pending: 0,
        }
    }

    /// Appends what `write` leaves in the buffer of `room` bytes that it gets: its length, or
    /// nothing. Returns whether there was anything.
    pub(crate) fn push(
        &mut self,
        path: &Path,
        room: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<bool, PushError> {
        if room > LONGEST {
            return Err(PushError::TooLong);
        }
        let free = self.memory.get_mut(self.used..self.used + room).filter(|_| self.datagrams.len() < self.most);
        let Some(len) = write(free.ok_or(PushError::Full)?) else { return Ok(false) };
        let len = len.min(room);
        let at = self.datagrams.len();
        self.datagrams.push(Datagram { at: self.used, len, next: usize::MAX });
        self.used += len;
        self.pending += 1;
        let latest = self.runs[self.front..].iter_mut().rev().take(LOOK_BACK).find(|run| run.path == *path);
        match latest.filter(|run| run.takes(len)) {
            Some(run) => {
                self.datagrams[run.last].next = at;
                run.last = at;
                run.count += 1;
                run.bytes += len;
                run.complete = len < run.segment;
            }
            None => self.runs.push(Run {
                path: *path,
                segment: len,
                count: 1,
                singly: false,
                bytes: len,
                first: at,
                last: at,
                complete: false,
            }),
        }
        Ok(true)
    }

    /// Datagrams that are not sent.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// The bytes of all datagrams.
    pub(crate) fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// The runs that are not sent, in order.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs[self.front..]
    }

    /// The first run that is not sent.
    pub(crate) fn front(&mut self) -> Option<&mut Run> {
        self.runs.get_mut(self.front)
    }

    /// Where the datagrams of a run lie.
    pub(crate) fn pieces(&self, run: &Run) -> impl Iterator<Item = Range<usize>> {
        let mut next = run.first;
        (0..run.count).map(move |_| {
            let datagram = &self.datagrams[next];
            next = datagram.next;
            datagram.at..datagram.at + datagram.len
        })
    }

    /// Removes `n` datagrams of the first run; returns their bytes.
    pub(crate) fn pop(&mut self, n: usize) -> usize {
        let Some(run) = self.runs.get_mut(self.front) else { return 0 };
        let mut bytes = 0;
        for _ in 0..n.min(run.count) {
            let datagram = &self.datagrams[run.first];
            bytes += datagram.len;
            run.first = datagram.next;
            run.count -= 1;
            self.pending -= 1;
        }
        run.bytes -= bytes;
        self.front += usize::from(run.count == 0);
        if self.pending == 0 {
            self.used = 0;
            self.datagrams.clear();
            self.runs.clear();
            self.front = 0;
        }
        bytes
    }
}

impl Run {
    fn takes(&self, len: usize) -> bool {
        !self.complete && (1..=self.segment).contains(&len) && self.count < SEGMENTS && self.bytes + len <= SEGMENTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(port: u16) -> Path {
        Path::to(([192, 0, 2, 1], port).into())
    }

    fn push(queue: &mut Queue, port: u16, len: usize) {
        assert_eq!(queue.push(&path(port), len, |to| Some(to.len())), Ok(true));
    }

    fn counts(queue: &Queue) -> Vec<(u16, usize, usize)> {
        queue.runs().iter().map(|run| (run.path.peer.port(), run.segment, run.count)).collect()
    }

    #[test]
    fn datagrams_of_one_size_to_one_destination_are_one_run_and_a_shorter_one_ends_it() {
        let mut queue = Queue::new(64, 0);
        for (port, len) in [(1, 100), (2, 80), (1, 100), (2, 80), (1, 60), (1, 60), (2, 90), (1, 0), (1, 0)] {
            push(&mut queue, port, len);
        }
        assert_eq!(counts(&queue), [(1, 100, 3), (2, 80, 2), (1, 60, 1), (2, 90, 1), (1, 0, 1), (1, 0, 1)]);
        let pieces: Vec<_> = queue.pieces(&queue.runs()[0]).collect();
        assert_eq!(pieces, [0..100, 180..280, 360..420]);
    }

    #[test]
    fn a_run_has_at_most_64_datagrams_and_65000_bytes() {
        let mut queue = Queue::new(256, 1 << 20);
        (0..65).for_each(|_| push(&mut queue, 1, 10));
        (0..11).for_each(|_| push(&mut queue, 2, 6000));
        assert_eq!(counts(&queue), [(1, 10, 64), (1, 10, 1), (2, 6000, 10), (2, 6000, 1)]);
    }

    #[test]
    fn a_full_queue_says_so_and_is_empty_when_all_is_sent() {
        let mut queue = Queue::new(2, 0);
        assert_eq!(queue.push(&path(1), 70_000, |_| None), Err(PushError::TooLong));
        push(&mut queue, 1, 9);
        push(&mut queue, 1, 9);
        assert_eq!(queue.push(&path(1), 9, |_| None), Err(PushError::Full));
        assert_eq!((queue.pop(1), queue.pending()), (9, 1));
        assert_eq!(queue.push(&path(1), 9, |_| None), Err(PushError::Full));
        queue.pop(1);
        push(&mut queue, 1, 65_535);
        assert_eq!(queue.push(&path(1), 1, |_| Some(1)), Err(PushError::Full));
    }

    #[test]
    fn what_writes_nothing_leaves_nothing() {
        let mut queue = Queue::new(2, 0);
        assert_eq!(queue.push(&path(1), 9, |_| None), Ok(false));
        assert_eq!(queue.pending(), 0);
    }
}
