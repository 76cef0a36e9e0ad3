//! Waiting for descriptors (`poll(2)`, `ppoll(2)`).

use crate::{check_len, retry};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// Descriptors to wait for; keeps its memory between waits.
#[derive(Default)]
pub struct PollSet(Vec<libc::pollfd>);

impl PollSet {
    /// An empty set that holds `n` descriptors without allocating.
    pub fn with_capacity(n: usize) -> PollSet {
        PollSet(Vec::with_capacity(n))
    }

    /// Removes all descriptors.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a descriptor to be waited for until it is readable.
    pub fn readable(&mut self, fd: RawFd) {
        self.0.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    }

    /// Adds a descriptor to be waited for until it is writable.
    pub fn writable(&mut self, fd: RawFd) {
        self.0.push(libc::pollfd { fd, events: libc::POLLOUT, revents: 0 });
    }

    /// Waits until a descriptor is ready or the time is over. An interruption counts as ready.
    pub fn wait(&mut self, at_most: Duration) {
        let _ = ppoll(&mut self.0, Some(at_most));
    }
}

/// Waits until `fd` is readable or closed at its other end, at most for `time` (`None`: no limit).
/// Returns whether it is. A signal does not end the wait.
///
/// # Errors
/// The error of `ppoll(2)`.
pub fn wait_readable(fd: BorrowedFd<'_>, time: Option<Duration>) -> io::Result<bool> {
    wait(fd, libc::POLLIN, time)
}

/// Waits until `fd` is writable or closed at its other end, as [`wait_readable`].
///
/// # Errors
/// The error of `ppoll(2)`.
pub fn wait_writable(fd: BorrowedFd<'_>, time: Option<Duration>) -> io::Result<bool> {
    wait(fd, libc::POLLOUT, time)
}

fn wait(fd: BorrowedFd<'_>, events: libc::c_short, time: Option<Duration>) -> io::Result<bool> {
    // A time that no clock reaches is no limit.
    let deadline = time.and_then(|time| Instant::now().checked_add(time));
    let mut set = [libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }];
    retry(|| ppoll(&mut set, deadline.map(|end| end.saturating_duration_since(Instant::now())))).map(|ready| ready > 0)
}

/// Whether `fd` is readable now, or closed at its other end.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    wait_readable(fd, Some(Duration::ZERO)).unwrap_or(false)
}

/// Whether `fd` is writable now, or closed at its other end.
pub fn is_writable(fd: BorrowedFd<'_>) -> bool {
    wait(fd, libc::POLLOUT, Some(Duration::ZERO)).unwrap_or(false)
}

/// Whether the peer has shut the connection of `fd` down, or closed it: no more bytes come than are
/// queued.
pub fn is_shut(fd: BorrowedFd<'_>) -> bool {
    let mut set = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    ppoll(&mut set, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

fn ppoll(set: &mut [libc::pollfd], time: Option<Duration>) -> io::Result<usize> {
    let time = time.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let at = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time live across the call, and the length is that of the array.
    let ready = unsafe { libc::ppoll(set.as_mut_ptr(), set.len() as _, at, std::ptr::null()) };
    check_len(ready as libc::ssize_t)
}
