//! Epoll: many descriptors to wait for as one (`epoll(7)`).

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

/// A set of descriptors; its own descriptor is readable while one of them is.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// The error of `epoll_create1(2)`: no descriptor left.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: epoll_create1 takes no pointer.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The set's own descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds a descriptor. It counts while it is readable, or, if `edge`, once for each write to it.
    ///
    /// # Errors
    /// The error of `epoll_ctl(2)`.
    pub fn add(&self, fd: RawFd, edge: bool) -> io::Result<()> {
        self.add_tagged(fd, edge, 0)
    }

    /// The same, with a tag for [`take`](Epoll::take).
    ///
    /// # Errors
    /// The error of `epoll_ctl(2)`.
    pub fn add_tagged(&self, fd: RawFd, edge: bool, tag: u64) -> io::Result<()> {
        let events = (libc::EPOLLIN | if edge { libc::EPOLLET } else { 0 }) as u32;
        let mut event = libc::epoll_event { events, u64: tag };
        // SAFETY: the event lives across the call.
        check(unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
    }

    /// Adds a descriptor that counts once for each time at which it may have become writable.
    ///
    /// # Errors
    /// The error of `epoll_ctl(2)`.
    pub fn add_writable_edge(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLOUT | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: the event lives across the call.
        check(unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
    }

    /// Removes a descriptor, also one that other processes still hold.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: the call reads no event. It fails only for a descriptor that is not in the set.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, null_mut()) };
    }

    /// Discards the events up to now.
    pub fn drain(&self) {
        self.take();
    }

    /// Discards the events up to now, 64 at most; returns the bits of their tags, combined.
    pub fn take(&self) -> u64 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the array lives across the call and has the length that is given; the call does
        // not wait.
        let count = unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), events.len() as libc::c_int, 0) };
        events.iter().take(usize::try_from(count).unwrap_or(0)).fold(0, |tags, event| tags | event.u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventFd;

    #[test]
    fn the_tags_of_descriptors_that_were_signalled_are_taken_once() {
        let (epoll, events) = (Epoll::new().unwrap(), [(); 3].map(|()| EventFd::new().unwrap()));
        for (tag, event) in [1, 2, 4].into_iter().zip(&events) {
            epoll.add_tagged(event.fd(), true, tag).unwrap();
        }
        assert_eq!(epoll.take(), 0);
        events[0].signal();
        events[2].signal();
        assert_eq!((epoll.take(), epoll.take()), (5, 0));
        events[0].signal();
        assert_eq!(epoll.take(), 1, "each write counts, though none was read");
    }
}
