//! Eventfd: a counter that wakes a sleeper (`eventfd(2)`).

use super::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A counter whose descriptor is readable while it is not zero. Calls on it do not block.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A counter at zero.
    ///
    /// # Errors
    /// The error of `eventfd(2)`: no descriptor left.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: eventfd takes no pointer.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor's number.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes live across the call. It fails only for a full counter, which is
        // readable.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Returns the count and sets it to zero: the descriptor is no longer readable.
    pub fn take(&self) -> u64 {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes live across the call. It fails only for a counter at zero.
        match unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) } {
            8 => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Sets the count to zero.
    pub fn clear(&self) {
        self.take();
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The eventfd of another process. Calls on it block if that process made it blocking.
impl From<OwnedFd> for EventFd {
    fn from(fd: OwnedFd) -> EventFd {
        EventFd(fd)
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> OwnedFd {
        event.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{PollSet, is_readable};
    use std::time::{Duration, Instant};

    #[test]
    fn a_signal_ends_the_wait_and_stays_until_it_is_cleared() {
        let event = EventFd::new().unwrap();
        let mut set = PollSet::default();
        set.readable(event.fd());
        event.signal();
        let start = Instant::now();
        set.wait(Duration::from_secs(60));
        set.wait(Duration::from_secs(60));
        event.clear();
        set.wait(Duration::from_millis(1));
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn taking_the_count_returns_every_signal_since_the_last_time() {
        let event = EventFd::new().unwrap();
        event.signal();
        event.signal();
        assert!(is_readable(event.as_fd()));
        assert_eq!((event.take(), event.take()), (2, 0));
        assert!(!is_readable(event.as_fd()));
    }
}
