//! A descriptor that behaves as an AF_XDP socket's, for programs that were written for one.
//!
//! ```text
//!   program     far ◄──────────────────────────► near     datapath
//!               sendto(fd, NULL, 0): an empty record ──► wakes the queue that sleeps
//!               poll(fd, POLLIN)     ◄── one record, as long as the RX ring has entries
//!               poll(fd, POLLOUT)        a large record of ours ──► as long as the TX ring is more than half full
//! ```
//!
//! Such a program takes entries out of its RX ring without a word to anybody, and expects `poll` to know. So the datapath keeps
//! both ends: it puts a record into the line when the RX ring gets its first entry, and takes it out again, at the program's own end, when
//! it finds the ring empty. While packets flow the record stays where it is: no system call, and a program that polls then is told
//! of packets that it may have seen. (What the program finds out about room in its TX ring is likewise what the datapath saw when it last
//! took from it and had to leave something, or came to rest: a record that the datapath sends from the program's end, to itself, takes so
//! much of the buffer there that the end is not ready for writing.) When the queue comes to rest it looks ([`settle`](Line::settle)), and once more after
//! [`AGAIN`] as long as there are entries; a record that the program has read (`recvfrom` with no room) is put back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;
use towpath_sys::poll::is_readable;
use towpath_sys::seqpacket;

/// How long a program that has emptied its RX ring may find its descriptor readable.
pub(super) const AGAIN: Duration = Duration::from_millis(1);

/// Both ends.
#[derive(Debug)]
pub(super) struct Line {
    near: OwnedFd,
    far: OwnedFd,
    /// A record was put into the line, and not taken out by us.
    raised: AtomicBool,
    /// The program's end was stuffed. Only the queue that takes the program's frames changes it.
    full: AtomicBool,
}

impl Line {
    pub(super) fn new() -> std::io::Result<Line> {
        let [near, far] = seqpacket::pair()?;
        seqpacket::size_send_buffer(far.as_fd())?;
        Ok(Line { near, far, raised: AtomicBool::new(false), full: AtomicBool::new(false) })
    }

    /// Our end, to be woken by.
    pub(super) fn near(&self) -> BorrowedFd<'_> {
        self.near.as_fd()
    }

    /// The program's end.
    pub(super) fn far(&self) -> BorrowedFd<'_> {
        self.far.as_fd()
    }

    /// There are entries in the RX ring, which have been published.
    #[inline]
    pub(super) fn raise(&self) {
        // SeqCst fence: the entries are shown before the flag is read; see `settle`.
        fence(Ordering::SeqCst);
        if !self.raised.load(Ordering::Relaxed) {
            self.put();
        }
    }

    #[cold]
    fn put(&self) {
        self.raised.store(true, Ordering::Relaxed);
        seqpacket::wake(self.near());
    }

    /// Makes the program's end readable if the RX ring has entries, else unreadable; returns whether it has.
    pub(super) fn settle(&self, has_entries: impl Fn() -> bool) -> bool {
        if !has_entries() {
            if !self.raised.swap(false, Ordering::Relaxed) {
                return false;
            }
            seqpacket::forget(self.far());
            // SeqCst fence: the flag is lowered before the ring is looked at once more. Entries that came meanwhile either find it
            // lowered and raise it, perhaps before we forgot, or are seen here.
            fence(Ordering::SeqCst);
            if !has_entries() {
                return false;
            }
        }
        if !is_readable(self.far()) {
            self.put();
        }
        true
    }

    /// Whether the program's end is not ready for writing.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Makes the program's end ready for writing, or not.
    pub(super) fn set_full(&self, full: bool) {
        if self.full.swap(full, Ordering::Relaxed) == full {
            return;
        }
        if full { seqpacket::stuff(self.far()) } else { seqpacket::forget(self.near()) }
    }

    /// Forgets kicks: those that come from here on wake. As long as the program has no room nothing is forgotten; they wake just the same.
    pub(super) fn forget_kicks(&self) {
        if !self.is_full() {
            seqpacket::forget(self.near());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_end_is_readable_as_long_as_there_are_entries() {
        let line = Line::new().unwrap();
        assert!(!is_readable(line.far()) && !line.settle(|| false));
        for _ in 0..3 {
            line.raise();
            line.raise();
            assert!(is_readable(line.far()) && line.settle(|| true));
            assert!(!line.settle(|| false) && !is_readable(line.far()));
        }
    }

    #[test]
    fn a_record_that_the_program_has_read_is_put_back() {
        let line = Line::new().unwrap();
        line.raise();
        seqpacket::forget(line.far());
        line.raise();
        assert!(!is_readable(line.far()), "nobody has noticed yet");
        assert!(line.settle(|| true) && is_readable(line.far()));
    }

    #[test]
    fn entries_that_come_while_the_line_is_lowered_raise_it_again() {
        let line = Line::new().unwrap();
        line.raise();
        let looks = std::cell::Cell::new(0);
        let has_entries = || {
            looks.set(looks.get() + 1);
            looks.get() > 1
        };
        assert!(line.settle(has_entries) && is_readable(line.far()));
    }

    /// Whether an end is ready for writing.
    fn is_writable(end: BorrowedFd<'_>) -> bool {
        let mut poll = libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&end), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one descriptor lives across the call; no time is waited.
        unsafe { libc::poll(&mut poll, 1, 0) > 0 }
    }

    #[test]
    fn a_program_without_room_can_kick_and_is_told_when_there_is_some() {
        let line = Line::new().unwrap();
        let kick = || {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: no bytes are sent.
            unsafe { libc::send(std::os::fd::AsRawFd::as_raw_fd(&line.far()), std::ptr::null(), 0, flags) == 0 }
        };
        for _ in 0..3 {
            assert!(is_writable(line.far()));
            for _ in 0..2 {
                line.set_full(true);
                assert!(!is_writable(line.far()));
                line.forget_kicks();
            }
            assert!((0..50).all(|_| kick()) && !is_writable(line.far()));
            line.raise();
            assert!(is_readable(line.far()), "the other direction is as it was");
            line.set_full(false);
            assert!(is_writable(line.far()) && !is_readable(line.near()));
        }
    }

    #[test]
    fn empty_records_are_kicks_and_can_be_forgotten_however_many() {
        let line = Line::new().unwrap();
        let kick = || {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: no bytes are sent.
            unsafe { libc::send(std::os::fd::AsRawFd::as_raw_fd(&line.far()), std::ptr::null(), 0, flags) == 0 }
        };
        for _ in 0..3 {
            while kick() {}
            assert!(is_readable(line.near()));
            line.forget_kicks();
            assert!(!is_readable(line.near()));
        }
    }
}
