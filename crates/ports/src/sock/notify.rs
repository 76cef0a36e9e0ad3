//! Wake-ups between queues, the server thread and applications.
//!
//! | sleeper | woken by | last look |
//! |---|---|---|
//! | a receive queue | [`QueueWaker`] | pages that came back, closed sessions |
//! | the server thread | [`PortShared::wake_server`] | removed halves of sessions |
//! | an application with an eventfd | a byte, if the RX ring's flag asks for it | both rings |
//! | an application in `poll` | [`PollFd`] | its RX ring |
//!
//! The server thread's eventfd is written at every wake-up and needs no flag. The other pairs
//! follow the pattern of [`towpath_packet::notify`], which shows why no wake-up is lost.

use super::stats::PortEvents;
use crate::closing::{AppSocket, Closer};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_packet::Notifier;
use towpath_packet::notify::{before_last_look, publish};
use towpath_sys::poll::{is_readable, is_shut};
use towpath_sys::seqpacket::{self, Drained};
use towpath_sys::{Epoll, EventFd, Timer};

/// Wakes a receive queue: an epoll over a notifier, a timer and the kicks.
#[derive(Debug, Clone)]
pub(super) struct QueueWaker {
    /// Notified by threads of the port.
    pub(super) notifier: Arc<Notifier>,
    /// The notifier, the timer, and the kick of every application of the queue.
    pub(super) epoll: Arc<Epoll>,
    /// Set for the next [`PollFd::sync`], or the next look for a buffer.
    pub(super) timer: Arc<Timer>,
}

impl QueueWaker {
    fn new() -> std::io::Result<QueueWaker> {
        let (notifier, epoll, timer) = (Arc::new(Notifier::new()?), Arc::new(Epoll::new()?), Arc::new(Timer::new()?));
        epoll.add(notifier.fd(), false)?;
        epoll.add(timer.fd(), true)?;
        Ok(QueueWaker { notifier, epoll, timer })
    }
}

/// What the queues of a port and its server thread share.
#[derive(Debug)]
pub(super) struct PortShared {
    /// One for each receive queue.
    pub(super) wakers: Vec<QueueWaker>,
    /// The maximum number of sessions.
    pub(super) sessions: usize,
    pub(super) events: Arc<PortEvents>,
    pub(super) closer: Arc<Closer>,
    /// Wakes the server thread.
    server: EventFd,
    stop: AtomicBool,
}

impl PortShared {
    pub(super) fn new(queues: u16, sessions: u16, events: Arc<PortEvents>) -> std::io::Result<PortShared> {
        let wakers = (0..queues).map(|_| QueueWaker::new()).collect::<Result<_, _>>()?;
        let (sessions, server) = (sessions.into(), EventFd::new()?);
        Ok(PortShared { wakers, sessions, events, closer: Arc::default(), server, stop: AtomicBool::new(false) })
    }

    /// Wakes the server thread: it stops, or frees removed halves of sessions.
    pub(super) fn wake_server(&self) {
        self.server.signal();
    }

    /// Stops the server thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_server();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Readable while a wake-up of the server thread is pending.
    pub(super) fn server_fd(&self) -> RawFd {
        self.server.fd()
    }

    /// The server thread is awake.
    pub(super) fn clear_server(&self) {
        self.server.clear();
    }
}

/// The time after which [`PollFd::sync`] runs again while an RX ring has entries, and a session
/// without a buffer looks for one again.
pub(super) const RESYNC: Duration = Duration::from_millis(1);

/// A descriptor that behaves as an AF_XDP socket's in `poll`, for programs that were written for
/// one.
///
/// ```text
///   program      app end ◄────────────────────► datapath end     datapath
///                sendto(fd, NULL, 0): an empty record ──► wakes the queue that sleeps
///                poll(fd, POLLIN)   ◄── one record, as long as the RX ring has entries
///                poll(fd, POLLOUT)      a large record to itself ──► while TX is over half full
/// ```
///
/// An AF_XDP program takes entries out of its RX ring without a system call, and expects `poll` to
/// reflect that. The datapath therefore holds both ends. It sends a record to the program when the
/// RX ring gets its first entry, and reads the record back at the program's end when the ring is
/// empty. While packets flow the record stays where it is: there is no system call, and `poll` may
/// report packets that the program has already taken.
///
/// `POLLOUT` reflects what the datapath saw when it last took from the TX ring and left entries
/// there, or when the queue went to sleep. The datapath sends a large record from the program's end
/// to itself. That record uses so much of the send buffer that the end is not writable.
///
/// A queue that goes to sleep calls [`sync`](PollFd::sync), and again after [`RESYNC`] as long as
/// there are entries. A record that the program has read (`recvfrom` with no room) is sent again.
///
/// A kick carries no descriptors. The datapath's end refuses them. On a kernel that cannot, the
/// datapath looks at each kick before it takes it, and leaves one with descriptors in the queue:
/// the session ends, and the socket is closed [where that may block](super::closing).
#[derive(Debug)]
pub(super) struct PollFd {
    datapath_end: AppSocket,
    app_end: OwnedFd,
    /// A record was sent to the program, and the datapath has not read it back.
    readable: AtomicBool,
    /// The send buffer of the program's end is filled. Only the queue of the session changes it.
    tx_full: AtomicBool,
}

impl PollFd {
    pub(super) fn new(closer: Arc<Closer>) -> std::io::Result<PollFd> {
        let [datapath_end, app_end] = seqpacket::pair()?;
        let datapath_end = AppSocket::new(datapath_end, closer);
        datapath_end.refuse_descriptors()?;
        seqpacket::set_send_buffer(app_end.as_fd())?;
        let (readable, tx_full) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(PollFd { datapath_end, app_end, readable, tx_full })
    }

    /// Readable when the program kicks.
    pub(super) fn datapath_end(&self) -> BorrowedFd<'_> {
        self.datapath_end.as_fd()
    }

    /// The descriptor of the program.
    pub(super) fn app_end(&self) -> BorrowedFd<'_> {
        self.app_end.as_fd()
    }

    /// Makes the program's end readable, after entries of the RX ring were submitted.
    #[inline]
    pub(super) fn notify(&self) {
        publish();
        if !self.readable.load(Ordering::Relaxed) {
            self.send_record();
        }
    }

    #[cold]
    fn send_record(&self) {
        self.readable.store(true, Ordering::Relaxed);
        seqpacket::wake(self.datapath_end());
    }

    /// Makes the program's end readable if the RX ring has entries, else unreadable. Returns
    /// whether it has entries.
    ///
    /// # Errors
    /// [`Unusable::Shut`]
    pub(super) fn sync(&self, has_entries: impl Fn() -> bool) -> Result<bool, Unusable> {
        if !has_entries() {
            if !self.readable.swap(false, Ordering::Relaxed) {
                return Ok(false);
            }
            // Only this process sends to the program's end.
            Unusable::check(seqpacket::drain(self.app_end(), true))?;
            // The producer of a new entry finds the flag cleared and sends a record, perhaps before
            // `drain`, or the entry is seen here.
            before_last_look();
            if !has_entries() {
                return Ok(false);
            }
        }
        if !is_readable(self.app_end()) {
            self.send_record();
        }
        Ok(true)
    }

    /// Whether the program's end is not writable.
    #[inline]
    pub(super) fn is_tx_full(&self) -> bool {
        self.tx_full.load(Ordering::Relaxed)
    }

    /// Makes the program's end writable, or not.
    pub(super) fn set_tx_full(&self, full: bool) {
        if self.tx_full.swap(full, Ordering::Relaxed) == full {
            return;
        }
        if full {
            seqpacket::fill_send_buffer(self.app_end());
        } else {
            // The next `drain_kicks` finds the same.
            seqpacket::drain(self.datapath_end(), self.datapath_end.refuses());
        }
    }

    /// Drops the kicks so far, at most 64: only later ones wake. While the TX ring is full the
    /// large record must stay, so nothing is dropped; later kicks wake nevertheless.
    ///
    /// # Errors
    /// [`Unusable`], after which it must not be called again.
    pub(super) fn drain_kicks(&self) -> Result<(), Unusable> {
        if self.is_tx_full() {
            return if is_shut(self.datapath_end()) { Err(Unusable::Shut) } else { Ok(()) };
        }
        Unusable::check(seqpacket::drain(self.datapath_end(), self.datapath_end.refuses()))
    }
}

/// Why a [`PollFd`] can't be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    /// The program has shut its end down.
    Shut,
    /// A kick has descriptors.
    Descriptors,
}

impl Unusable {
    fn check(drained: Drained) -> Result<(), Unusable> {
        match drained {
            Drained::Empty | Drained::More => Ok(()),
            Drained::Shut => Err(Unusable::Shut),
            Drained::Descriptors => Err(Unusable::Descriptors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_sys::poll::is_writable;

    /// Kicks as a program does; false if the kick is refused.
    fn kick(poll_fd: &PollFd) -> bool {
        seqpacket::send(poll_fd.app_end(), &[], &[]).is_ok()
    }

    #[test]
    fn the_programs_end_is_readable_as_long_as_there_are_entries() {
        let poll_fd = PollFd::new(Arc::default()).unwrap();
        assert!(!is_readable(poll_fd.app_end()) && !poll_fd.sync(|| false).unwrap());
        for _ in 0..3 {
            poll_fd.notify();
            poll_fd.notify();
            assert!(is_readable(poll_fd.app_end()) && poll_fd.sync(|| true).unwrap());
            assert!(!poll_fd.sync(|| false).unwrap() && !is_readable(poll_fd.app_end()));
        }
    }

    #[test]
    fn a_record_that_the_program_has_read_is_sent_again() {
        let poll_fd = PollFd::new(Arc::default()).unwrap();
        poll_fd.notify();
        seqpacket::drain(poll_fd.app_end(), true);
        poll_fd.notify();
        assert!(!is_readable(poll_fd.app_end()), "not before the next sync");
        assert!(poll_fd.sync(|| true).unwrap() && is_readable(poll_fd.app_end()));
    }

    #[test]
    fn entries_that_come_during_a_sync_make_the_end_readable_again() {
        let poll_fd = PollFd::new(Arc::default()).unwrap();
        poll_fd.notify();
        let looks = std::cell::Cell::new(0);
        let has_entries = || {
            looks.set(looks.get() + 1);
            looks.get() > 1
        };
        assert!(poll_fd.sync(has_entries).unwrap() && is_readable(poll_fd.app_end()));
    }

    #[test]
    fn a_program_whose_tx_ring_is_full_can_kick_and_sees_when_there_is_room() {
        let poll_fd = PollFd::new(Arc::default()).unwrap();
        for _ in 0..3 {
            assert!(is_writable(poll_fd.app_end()));
            for _ in 0..2 {
                poll_fd.set_tx_full(true);
                assert!(!is_writable(poll_fd.app_end()));
                poll_fd.drain_kicks().unwrap();
            }
            assert!((0..50).all(|_| kick(&poll_fd)) && !is_writable(poll_fd.app_end()));
            poll_fd.notify();
            assert!(is_readable(poll_fd.app_end()), "the other direction is not affected");
            poll_fd.set_tx_full(false);
            assert!(is_writable(poll_fd.app_end()) && !is_readable(poll_fd.datapath_end()));
        }
    }

    #[test]
    fn any_number_of_empty_records_are_kicks_and_can_be_dropped() {
        let poll_fd = PollFd::new(Arc::default()).unwrap();
        for _ in 0..3 {
            let mut kicks = std::iter::from_fn(|| kick(&poll_fd).then_some(())).count();
            assert!(kicks > 64);
            while is_readable(poll_fd.datapath_end()) {
                poll_fd.drain_kicks().unwrap();
                kicks = kicks.saturating_sub(64);
                assert_eq!(is_readable(poll_fd.datapath_end()), kicks > 0, "64 at a time");
            }
        }
    }
}
