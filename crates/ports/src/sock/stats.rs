//! Statistics: events for the operator, statistics for each application, a log of
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
    /// A kick with file descriptors.
    Files,
}

impl Fault {
    /// The name of its counter.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Fault::Counter => "bad-counter",
            Fault::Descriptor => "bad-descriptor",
            Fault::Chunk => "bad-chunk",
            Fault::Files => "kick-with-files",
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
    pub(super) files: AtomicU64,
    /// Invalid descriptors that sessions with `skip_invalid` lost.
    pub(super) skipped: AtomicU64,
    /// Descriptors of sessions that ended before they could be taken.
    pub(super) unsent: AtomicU64,
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
            Fault::Files => &self.files,
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
            (Fault::Files.name(), &self.files),
            ("descriptors-skipped", &self.skipped),
            ("descriptors-unsent", &self.unsent),
            ("frame-length", &self.too_long),
            ("spoofed", &self.spoofed),
            ("copies", &self.copies),
            ("copied-bytes", &self.copied_bytes),
        ];
        each.into_iter().map(|(name, n)| (name, n.load(Ordering::Relaxed))).collect()
    }
}

/// The statistics of a session, which the log reads. Each statistic is written by one half alone.
#[derive(Debug, Default)]
pub(super) struct SessionCounts([AtomicU64; Statistic::ENTRIES as usize]);

impl SessionCounts {
    /// What became of packets and descriptors that were not sent or not delivered: ", tx_too_long
    /// 3"; empty if there are none.
    fn losses(&self) -> String {
        let of = |which: &Statistic| (which.name(), self.0[*which as usize].load(Ordering::Relaxed));
        // An empty TX ring loses nothing.
        let counted = Statistic::ALL.iter().filter(|which| **which != Statistic::TxRingEmptyDescs).map(of);
        counted.filter(|(_, n)| *n > 0).map(|(name, n)| format!(", {name} {n}")).collect()
    }
}

/// The statistics that one half of a session counts, and shows to its application.
///
/// The counts are kept here. The application may overwrite the words that it is shown, and these
/// are never read back.
#[derive(Debug)]
pub(super) struct SessionStats {
    shown: Mapped<u64>,
    counts: Arc<SessionCounts>,
}

impl SessionStats {
    pub(super) fn new(shown: Mapped<u64>, counts: Arc<SessionCounts>) -> SessionStats {
        SessionStats { shown, counts }
    }

    #[inline]
    pub(super) fn add(&mut self, statistic: Statistic, n: u64) {
        let count = &self.counts.0[statistic as usize];
        // There is no other writer of this one.
        let n = count.load(Ordering::Relaxed).wrapping_add(n);
        count.store(n, Ordering::Relaxed);
        self.shown.write(statistic as u32, n);
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
    counts: Arc<SessionCounts>,
}

/// The last sessions of a port: their processes, how they ended, and what they lost.
#[derive(Debug, Default)]
pub(super) struct SessionLog(Mutex<VecDeque<SessionRecord>>);

impl SessionLog {
    pub(super) fn opened(&self, id: u64, peer: Peer, queue: u16, counts: Arc<SessionCounts>) {
        let mut log = self.lock();
        if log.len() == LOG_LEN {
            log.pop_front();
        }
        log.push_back(SessionRecord { id, peer, queue, end: None, counts });
    }

    pub(super) fn closed(&self, id: u64, why: &'static str) {
        if let Some(record) = self.lock().iter_mut().find(|record| record.id == id) {
            record.end = Some(why);
        }
    }

    /// A line for each session.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |SessionRecord { id, peer: Peer { pid, uid, .. }, queue, end, counts }: &SessionRecord| {
            let (end, losses) = (end.unwrap_or("here"), counts.losses());
            format!("session {id}: pid {pid}, uid {uid}, queue {queue}: {end}{losses}")
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
            let counts = SessionCounts::default();
            counts.0[Statistic::TxTooLong as usize].store(id / 70 * 3, Ordering::Relaxed);
            counts.0[Statistic::TxRingEmptyDescs as usize].store(5, Ordering::Relaxed);
            log.opened(id, Peer { pid: 100 + id as i32, uid: 7, gid: 8 }, 1, Arc::new(counts));
        }
        log.closed(3, "left");
        log.closed(70, "bad-chunk");
        let lines = log.lines();
        assert_eq!(lines.len(), 64);
        assert_eq!(lines[0], "session 7: pid 107, uid 7, queue 1: here");
        assert_eq!(lines[63], "session 70: pid 170, uid 7, queue 1: bad-chunk, tx_too_long 3");
    }
}
