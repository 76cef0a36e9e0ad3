//! What the port counts: events for its operator, statistics for each application, a log of
//! sessions.

use super::limits::{Account, EndedRings, Limits};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_client::protocol::Statistic;
use towpath_packet::ExtBufGauge;
use towpath_packet::xsk_ring::{Mapped, RingMemory};
use towpath_sys::seqpacket::Peer;

/// How an application broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A counter that is ahead of its ring.
    Counter,
    /// A descriptor that is empty, leaves its chunk or the memory, or has unknown options; a packet
    /// of too many pieces.
    Descriptor,
    /// A chunk that the datapath already has.
    Chunk,
}

impl Fault {
    /// The name of its counter.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Fault::Counter => "bad-counter",
            Fault::Descriptor => "bad-descriptor",
            Fault::Chunk => "bad-chunk",
        }
    }
}

/// The counters of a port, and the accounts of its users.
#[derive(Debug, Default)]
pub(super) struct PortEvents {
    pub(super) account: Arc<Account>,
    pub(super) ended_rings: EndedRings,
    pub(super) sessions: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) ended: AtomicU64,
    pub(super) counter: AtomicU64,
    pub(super) descriptor: AtomicU64,
    pub(super) chunk: AtomicU64,
    /// Invalid descriptors that sessions with `skip_invalid` lost.
    pub(super) skipped: AtomicU64,
    pub(super) too_long: AtomicU64,
    /// Frames with a source address that their user may not send from.
    pub(super) spoofed: AtomicU64,
    /// Descriptors of which bytes were copied.
    pub(super) copies: AtomicU64,
    /// Bytes that were copied.
    pub(super) copied_bytes: AtomicU64,
    /// Application pages in flight, counted once a burst.
    pub(super) ext_bufs: Arc<ExtBufGauge>,
    pub(super) log: SessionLog,
    /// The number of sessions that were opened or closed so far.
    changes: AtomicU64,
}

impl PortEvents {
    pub(super) fn new(limits: Limits) -> PortEvents {
        PortEvents { account: Arc::new(Account::new(limits)), ..PortEvents::default() }
    }

    pub(super) fn count(&self, fault: Fault) {
        let counter = match fault {
            Fault::Counter => &self.counter,
            Fault::Descriptor => &self.descriptor,
            Fault::Chunk => &self.chunk,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the queues that a session was opened or closed.
    pub(super) fn change(&self) {
        // Release: a queue that reads the number sees the change too.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A number that grows with every change.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// All counters by name.
    pub(super) fn each(&self) -> Vec<(&'static str, u64)> {
        let each = [
            ("sessions", &self.sessions),
            ("sessions-ended", &self.ended),
            ("sessions-refused", &self.refused),
            (Fault::Counter.name(), &self.counter),
            (Fault::Descriptor.name(), &self.descriptor),
            (Fault::Chunk.name(), &self.chunk),
            ("descriptors-skipped", &self.skipped),
            ("frame-length", &self.too_long),
            ("spoofed", &self.spoofed),
            ("copies", &self.copies),
            ("copied-bytes", &self.copied_bytes),
        ];
        each.into_iter().map(|(name, n)| (name, n.load(Ordering::Relaxed))).collect()
    }
}

/// The statistics that one half of a session counts, and shows to its application.
///
/// The counts are kept here. The application may overwrite the words that it is shown, and these
/// are never read back. Each statistic belongs to one half alone.
#[derive(Debug)]
pub(super) struct SessionStats {
    shown: Mapped<u64>,
    counts: [u64; Statistic::ENTRIES as usize],
}

impl SessionStats {
    pub(super) fn new(shown: Mapped<u64>) -> SessionStats {
        SessionStats { shown, counts: [0; Statistic::ENTRIES as usize] }
    }

    #[inline]
    pub(super) fn add(&mut self, statistic: Statistic, n: u64) {
        let count = &mut self.counts[statistic as usize];
        *count = count.wrapping_add(n);
        self.shown.write(statistic as u32, *count);
    }
}

/// What a queue received in one burst from all applications.
#[derive(Debug, Default)]
pub(super) struct RxTotals {
    pub(super) bytes: usize,
    pub(super) copies: u64,
    pub(super) copied_bytes: u64,
    /// Pages that were attached to packets.
    pub(super) attached: u64,
    /// Pages that came back.
    pub(super) completed: u64,
}

/// Sessions that the log holds.
const LOG_LEN: usize = 64;

#[derive(Debug)]
struct SessionRecord {
    id: u64,
    peer: Peer,
    queue: u16,
    end: Option<&'static str>,
}

/// The last sessions of a port: their processes, and how they ended.
#[derive(Debug, Default)]
pub(super) struct SessionLog(Mutex<VecDeque<SessionRecord>>);

impl SessionLog {
    pub(super) fn opened(&self, id: u64, peer: Peer, queue: u16) {
        let mut log = self.lock();
        if log.len() == LOG_LEN {
            log.pop_front();
        }
        log.push_back(SessionRecord { id, peer, queue, end: None });
    }

    pub(super) fn closed(&self, id: u64, why: &'static str) {
        if let Some(record) = self.lock().iter_mut().find(|record| record.id == id) {
            record.end = Some(why);
        }
    }

    /// A line for each session.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |SessionRecord { id, peer: Peer { pid, uid, .. }, queue, end }: &SessionRecord| {
            format!("session {id}: pid {pid}, uid {uid}, queue {queue}: {}", end.unwrap_or("here"))
        };
        self.lock().iter().map(line).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SessionRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_last_sessions_with_their_ends() {
        let log = SessionLog::default();
        for id in 1..=70 {
            log.opened(id, Peer { pid: 100 + id as i32, uid: 7, gid: 8 }, 1);
        }
        log.closed(3, "left");
        log.closed(70, "bad-chunk");
        let lines = log.lines();
        assert_eq!(lines.len(), 64);
        assert_eq!(lines[0], "session 7: pid 107, uid 7, queue 1: here");
        assert_eq!(lines[63], "session 70: pid 170, uid 7, queue 1: bad-chunk");
    }
}
