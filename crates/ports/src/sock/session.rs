//! What the halves of a session share, and what may be asked of it from any thread.

use super::events::{Events, Fault};
use super::line::Line;
use super::memory::Memory;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_packet::ExtBufOwner;
use towpath_packet::notify::{Notifier, publish};
use towpath_packet::xsk_ring::{Desc, Mapped, Shared};
use towpath_sys::seqpacket;

/// How an application and the datapath wake each other.
#[derive(Debug)]
pub(super) enum Waking {
    /// By an eventfd, and by a byte on the connection.
    Kick(OwnedFd),
    /// By one descriptor, as with an AF_XDP socket.
    Line(Line),
}

impl Waking {
    /// What wakes the datapath.
    pub(super) fn ours(&self) -> BorrowedFd<'_> {
        match self {
            Waking::Kick(kick) => kick.as_fd(),
            Waking::Line(line) => line.near(),
        }
    }

    /// What the application gets.
    pub(super) fn theirs(&self) -> BorrowedFd<'_> {
        match self {
            Waking::Kick(kick) => kick.as_fd(),
            Waking::Line(line) => line.far(),
        }
    }
}

/// A session, as long as anybody knows of it: its halves, the thread that made it, or a page on its way.
#[derive(Debug)]
pub(super) struct Session {
    /// Its number.
    pub(super) id: u64,
    pub(super) connection: OwnedFd,
    pub(super) memory: Arc<Memory>,
    /// The RX ring, for its flag, whether the application sleeps, and its counters.
    sleeps: Mapped<Desc>,
    waking: Waking,
    closed: AtomicBool,
    /// Wakes the queue that gives completions.
    notifier: Arc<Notifier>,
    events: Arc<Events>,
}

/// What a session is made of.
pub(super) struct Parts {
    pub(super) id: u64,
    pub(super) connection: OwnedFd,
    pub(super) memory: Arc<Memory>,
    pub(super) sleeps: Mapped<Desc>,
    pub(super) waking: Waking,
    pub(super) notifier: Arc<Notifier>,
    pub(super) events: Arc<Events>,
}

impl Session {
    pub(super) fn new(parts: Parts) -> Session {
        let Parts { id, connection, memory, sleeps, waking, notifier, events } = parts;
        Session { id, connection, memory, sleeps, waking, closed: AtomicBool::new(false), notifier, events }
    }

    /// Wakes the application, if it sleeps; after entries of the RX ring were published.
    #[inline]
    pub(super) fn tell_received(&self) {
        match self.line() {
            Some(line) => line.raise(),
            None => self.tell_completed(),
        }
    }

    /// Wakes the application, if it sleeps; after entries of the COMPLETION ring were published, for which an AF_XDP socket does not
    /// become readable.
    #[inline]
    pub(super) fn tell_completed(&self) {
        if self.line().is_none() && self.sleeps.needs_wakeup() {
            seqpacket::wake(self.connection.as_fd());
        }
    }

    /// Its line, if it has one.
    pub(super) fn line(&self) -> Option<&Line> {
        match &self.waking {
            Waking::Kick(_) => None,
            Waking::Line(line) => Some(line),
        }
    }

    /// How it and the datapath wake each other.
    pub(super) fn waking(&self) -> &Waking {
        &self.waking
    }

    /// Makes a line say what is true; returns whether its application has entries to take.
    pub(super) fn settle(&self) -> bool {
        let (producer, consumer) = (self.sleeps.producer(), self.sleeps.consumer());
        // Relaxed: what matters is ordered by the line's fences.
        let has_entries = || producer.load(Ordering::Relaxed) != consumer.load(Ordering::Relaxed);
        self.line().is_some_and(|line| line.settle(has_entries))
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The session is over.
    pub(super) fn close(&self, why: &'static str) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.events.ended.fetch_add(1, Ordering::Relaxed);
            if let Some(line) = self.line() {
                seqpacket::shut(line.near());
            }
            self.events.visitors.left(self.id, why);
            self.events.change();
        }
        publish();
        self.notifier.notify();
    }

    /// The application broke the protocol: the session is over, and it gets to know.
    #[cold]
    pub(super) fn fail(&self, fault: Fault) {
        self.events.count(fault);
        seqpacket::shut(self.connection.as_fd());
        self.close(fault.name());
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }
}

impl ExtBufOwner for Session {
    /// Whoever comes home behind others relies on the first to have rung.
    fn on_free(&self) {
        publish();
        self.notifier.notify();
    }

    /// Others may share the memory.
    fn on_free_late(&self, addr: u64) {
        self.memory.came_back(addr);
        self.events.lent.bring_home(1);
    }
}
