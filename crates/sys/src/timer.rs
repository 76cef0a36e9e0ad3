//! Timerfd: a moment to wait for beside other descriptors (`timerfd_create(2)`).

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

/// A timer whose descriptor is readable once its time has passed.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// The error of `timerfd_create(2)`: no descriptor left.
    pub fn new() -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: timerfd_create takes no pointer.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor's number.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes the descriptor readable after `after`; replaces the previous setting.
    pub fn set(&self, after: Duration) {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = libc::timespec { tv_sec: after.as_secs() as _, tv_nsec: after.subsec_nanos().into() };
        let time = libc::itimerspec { it_interval: never, it_value };
        // SAFETY: the time lives across the call; null stands for the old time, which is not read.
        unsafe { libc::timerfd_settime(self.fd(), 0, &time, null_mut()) };
    }
}
