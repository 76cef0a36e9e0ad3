//! A session: what its halves share, its rings, and the list of sessions of a queue.

use super::limits::{RingPages, Share};
use super::notify::{PollFd, PortShared, Unusable};
use super::stats::{Fault, PortEvents};
use super::umem::AppUmem;
use crate::closing::AppSocket;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_client::protocol::{Rings, Sizes, Statistic};
use towpath_packet::notify::{Notifier, publish};
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer, RingMemory};
use towpath_packet::{Backing, ExtBufOwner, Region, UntrustedMem, spsc};
use towpath_sys::seqpacket;

/// How an application and the datapath wake each other.
#[derive(Debug)]
pub(super) enum Wakeup {
    /// The application writes an eventfd, the datapath sends a byte on the connection.
    Event(OwnedFd),
    /// Both use one descriptor that behaves as an AF_XDP socket.
    PollFd(PollFd),
}

impl Wakeup {
    /// The descriptor that wakes the datapath.
    pub(super) fn datapath_end(&self) -> BorrowedFd<'_> {
        match self {
            Wakeup::Event(event) => event.as_fd(),
            Wakeup::PollFd(poll_fd) => poll_fd.datapath_end(),
        }
    }

    /// The descriptor of the application.
    pub(super) fn app_end(&self) -> BorrowedFd<'_> {
        match self {
            Wakeup::Event(event) => event.as_fd(),
            Wakeup::PollFd(poll_fd) => poll_fd.app_end(),
        }
    }
}

/// A session. It lives as long as one of its halves, the server thread's record of it, or a page of
/// its memory in flight.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) connection: Arc<AppSocket>,
    pub(super) umem: Arc<AppUmem>,
    /// A second view of the RX ring, for its flag and its counters.
    pub(super) rx_ring: Mapped<Desc>,
    pub(super) wakeup: Wakeup,
    pub(super) closed: AtomicBool,
    /// The application broke the protocol: nothing more is taken out of its rings.
    pub(super) broken: AtomicBool,
    /// Wakes the queue that writes completions.
    pub(super) notifier: Arc<Notifier>,
    pub(super) events: Arc<PortEvents>,
    /// The user of the application.
    pub(super) user: u32,
    /// What the session has of its user's account.
    pub(super) _share: Share,
    /// The memory of the rings.
    pub(super) rings: Option<RingPages>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(rings) = self.rings.take() {
            self.events.ended_rings.add(rings);
        }
    }
}

impl Session {
    /// Wakes the application if it sleeps, after entries of the RX ring were submitted.
    #[inline]
    pub(super) fn notify_rx(&self) {
        match self.poll_fd() {
            Some(poll_fd) => poll_fd.notify(),
            None => self.notify_completions(),
        }
    }

    /// Wakes the application if it sleeps, after entries of the COMPLETION ring were submitted. An
    /// AF_XDP socket does not become readable by them.
    #[inline]
    pub(super) fn notify_completions(&self) {
        if self.poll_fd().is_none() && self.rx_ring.needs_wakeup() && !seqpacket::wake(self.connection.as_fd()) {
            self.end("shut");
        }
    }

    pub(super) fn poll_fd(&self) -> Option<&PollFd> {
        match &self.wakeup {
            Wakeup::Event(_) => None,
            Wakeup::PollFd(poll_fd) => Some(poll_fd),
        }
    }

    /// Makes the [`PollFd`] reflect the RX ring, and drops kicks. Returns whether the application
    /// has entries to take.
    pub(super) fn sync_poll_fd(&self) -> Result<bool, Unusable> {
        let (producer, consumer) = (self.rx_ring.producer(), self.rx_ring.consumer());
        // Relaxed: the fences of `PollFd` order what matters.
        let has_entries = || producer.load(Ordering::Relaxed) != consumer.load(Ordering::Relaxed);
        let Some(poll_fd) = self.poll_fd() else { return Ok(false) };
        poll_fd.drain_kicks()?;
        poll_fd.sync(has_entries)
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the session.
    pub(super) fn close(&self, why: &'static str) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            if let Some(poll_fd) = self.poll_fd() {
                seqpacket::shutdown(poll_fd.datapath_end());
            }
            // A session that is counted has its line in the log.
            self.events.log.closed(self.id, why);
            self.events.ended.fetch_add(1, Ordering::Relaxed);
            self.events.change();
        }
        publish();
        self.notifier.notify();
    }

    /// Ends the session of an application that broke the protocol, and closes its connection.
    #[cold]
    pub(super) fn fail(&self, fault: Fault) {
        self.events.count(fault);
        // Relaxed: `close` publishes it, or `change` if the session was closed before.
        self.broken.store(true, Ordering::Relaxed);
        self.end(fault.name());
        self.events.change();
    }

    /// Ends the session, and closes its connection.
    #[cold]
    pub(super) fn end(&self, why: &'static str) {
        self.close(why);
        // The server thread, which sees the end of the connection, would log another reason.
        seqpacket::shutdown(self.connection.as_fd());
    }
}

impl ExtBufOwner for Session {
    /// Wakes the queue if it sleeps: the fence orders the freed page before the look at its flag.
    ///
    /// Only the first page of a run calls this: the others rely on its notification.
    fn on_free(&self) {
        publish();
        self.notifier.notify();
    }

    /// The queue is gone, but other sessions may share the memory.
    fn on_free_orphaned(&self, addr: u64) {
        self.umem.end_tx(addr);
        self.events.ext_bufs.free(1);
    }
}

/// The rings of a session, in a memfd of their own, and the datapath's ends of them.
#[derive(Debug)]
pub(super) struct SessionRings {
    pub(super) memory: UntrustedMem,
    pub(super) layout: Rings,
    pub(super) tx: Consumer<Mapped<Desc>>,
    pub(super) completion: Producer<Mapped<u64>>,
    pub(super) fill: Consumer<Mapped<u64>>,
    pub(super) rx: Producer<Mapped<Desc>>,
    /// A second view of the RX ring.
    pub(super) rx_view: Mapped<Desc>,
    /// The words of the statistics, for each half.
    pub(super) statistics: [Mapped<u64>; 2],
}

impl SessionRings {
    pub(super) fn new(sizes: &Sizes) -> io::Result<SessionRings> {
        let (layout, bytes) = Rings::lay_out(sizes);
        let memory = UntrustedMem::new(Region::new(bytes as usize, Backing::Memfd).map_err(io::Error::other)?);
        let rings = (|| {
            let tx = Mapped::new(&memory, &layout.tx, sizes.tx)?;
            let fill = Mapped::new(&memory, &layout.fill, sizes.fill)?;
            let completion = Mapped::new(&memory, &layout.completion, sizes.completion)?;
            let rx = || Mapped::new(&memory, &layout.rx, sizes.rx);
            let statistics = || Mapped::new(&memory, &layout.statistics, Statistic::ENTRIES);
            Some((tx, completion, fill, [rx()?, rx()?], [statistics()?, statistics()?]))
        })();
        let (tx, completion, fill, [rx, rx_view], statistics) = rings.ok_or(io::ErrorKind::InvalidInput)?;
        rx_view.set_needs_wakeup(true);
        tx.set_needs_wakeup(true);
        let (tx, fill) = (Consumer::new(tx), Consumer::new(fill));
        let (completion, rx) = (Producer::new(completion), Producer::new(rx));
        Ok(SessionRings { memory, layout, tx, completion, fill, rx, rx_view, statistics })
    }
}

/// What a queue has of a session.
pub(super) trait SessionHalf: Send {
    fn session(&self) -> &Session;

    /// Whether the queue has no more to do for it.
    fn is_done(&self) -> bool {
        self.session().is_closed()
    }
}

/// The sessions of a queue, in the order in which they were opened. The server thread adds them by
/// one ring, and takes them back by another one to free them.
#[derive(Debug)]
pub(super) struct SessionList<H: Send> {
    halves: Vec<H>,
    added: spsc::Consumer<H>,
    removed: spsc::Producer<H>,
    /// [`PortEvents::changes`] at the last synchronization.
    changes: u64,
}

impl<H: SessionHalf> SessionList<H> {
    /// Makes the sessions of each user neighbours in the list. Returns the user of each.
    pub(super) fn sort_by_user(&mut self) -> impl Iterator<Item = u32> {
        self.halves.sort_unstable_by_key(|half| (half.session().user, half.session().id));
        self.halves.iter().map(|half| half.session().user)
    }

    pub(super) fn new((added, removed): (spsc::Consumer<H>, spsc::Producer<H>), sessions: usize) -> SessionList<H> {
        SessionList { halves: Vec::with_capacity(sessions), added, removed, changes: 0 }
    }

    /// Adds new sessions and removes those that are done. Returns whether a session of the port
    /// changed.
    #[inline]
    pub(super) fn sync(&mut self, shared: &PortShared) -> bool {
        let changes = shared.events.changes();
        if changes == self.changes {
            return false;
        }
        self.changes = changes;
        self.update(shared);
        true
    }

    #[cold]
    fn update(&mut self, shared: &PortShared) {
        while self.halves.len() < self.halves.capacity()
            && let Some(half) = self.added.pop()
        {
            self.halves.push(half);
        }
        let mut i = 0;
        while let Some(half) = self.halves.get(i) {
            if half.is_done() {
                drop(self.removed.push(self.halves.remove(i)));
                shared.wake_server();
            } else {
                i += 1;
            }
        }
    }
}

impl<H: Send> Deref for SessionList<H> {
    type Target = [H];

    #[inline]
    fn deref(&self) -> &[H] {
        &self.halves
    }
}

impl<H: Send> DerefMut for SessionList<H> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [H] {
        &mut self.halves
    }
}
