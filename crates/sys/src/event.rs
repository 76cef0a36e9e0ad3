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

impl EventFd {
    /// The eventfd that another process sent, made non-blocking. That process can make it blocking
    /// again at any moment ([`Signaller`](crate::Signaller), [`relieve`](EventFd::relieve)).
    ///
    /// No file system is asked about a descriptor of anything else, and nothing waits for one.
    ///
    /// # Errors
    /// The descriptor, if it is of anything else.
    pub fn from_peer(fd: OwnedFd) -> Result<EventFd, OwnedFd> {
        let zero = 0u64.to_ne_bytes();
        // SAFETY: statx is plain data; all zeroes are a value.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        let how = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // SAFETY: the path is an empty string, and the structure lives across the call.
        let found = unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), how, libc::STATX_TYPE, &mut stat) };
        // Eventfds and their like are the only files without a type.
        let anonymous = found == 0 && u32::from(stat.stx_mode) & libc::S_IFMT == 0;
        // SAFETY: no pointers, and eight bytes that live across the call. A sum with zero changes
        // no counter; other files without a type refuse it.
        let is_counter = anonymous
            && unsafe {
                libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) == 0
                    && libc::write(fd.as_raw_fd(), zero.as_ptr().cast(), zero.len()) == 8
            };
        if is_counter { Ok(EventFd(fd)) } else { Err(fd) }
    }

    /// Another handle of the same counter.
    ///
    /// # Errors
    /// No descriptor left.
    pub fn try_clone(&self) -> io::Result<EventFd> {
        self.0.try_clone().map(EventFd)
    }

    /// Lets a thread go on that a full counter holds in [`signal`](EventFd::signal): a process that
    /// shares the counter may have made it blocking and full. Returns whether it was full.
    pub fn relieve(&self) -> bool {
        if crate::poll::is_writable(self.as_fd()) {
            return false;
        }
        // SAFETY: no pointers.
        unsafe { libc::fcntl(self.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        // If the other process was faster, the counter is not empty: the read does not block.
        self.take();
        true
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
impl EventFd {
    /// Does what another process can do to it.
    pub(crate) fn fill_and_block(&self) {
        let full = (u64::MAX - 1).to_ne_bytes();
        // SAFETY: no pointers, and eight bytes that live across the call.
        unsafe {
            assert_eq!(libc::write(self.fd(), full.as_ptr().cast(), 8), 8);
            assert_eq!(libc::fcntl(self.fd(), libc::F_SETFL, 0), 0);
        }
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
    fn only_an_eventfd_is_taken_for_one_and_its_count_stays() {
        let event = EventFd::new().unwrap();
        event.signal();
        let sent: OwnedFd = event.try_clone().unwrap().into();
        assert_eq!(EventFd::from_peer(sent).unwrap().take(), 1);
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let [socket, _other] = crate::seqpacket::pair().unwrap();
        let timer = crate::Timer::new().unwrap();
        // SAFETY: the timer is open.
        let timer = unsafe { BorrowedFd::borrow_raw(timer.fd()) }.try_clone_to_owned().unwrap();
        let others = [file, socket, timer];
        for other in others {
            assert!(EventFd::from_peer(other).is_err());
        }
    }

    #[test]
    fn a_thread_that_a_full_counter_holds_goes_on_once_it_is_relieved() {
        let event = EventFd::new().unwrap();
        event.fill_and_block();
        std::thread::scope(|scope| {
            let held = scope.spawn(|| event.signal());
            while !held.is_finished() {
                event.relieve();
                std::thread::yield_now();
            }
        });
        assert!(!event.relieve());
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
