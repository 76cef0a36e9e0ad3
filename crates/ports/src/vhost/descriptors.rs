//! Descriptors of a front end: each is taken for what it must be, or closed where nothing waits.
//!
//! A descriptor can be of any file, also of one whose close, or any question about it, blocks for
//! as long as the front end likes. Memory and eventfds are recognized without a question to a file
//! system, and their close does not block. Everything else is closed by a process of its own
//! ([`Closer`]).

use crate::closing::Closer;
use std::os::fd::{AsFd, OwnedFd};
use std::vec::IntoIter;
use towpath_sys::{EventFd, memfd, seqpacket, stream};

/// Why descriptors are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum DescriptorError {
    #[error("{0} descriptors too many")]
    Surplus(usize),
    #[error("a descriptor is missing")]
    Missing,
    #[error("the descriptor is not of a memfd, nor of a file of tmpfs or hugetlbfs")]
    NotMemory,
    #[error("the descriptor is not of an eventfd")]
    NotEvent,
}

/// The descriptors of one message. Those that are not taken are closed on drop.
#[derive(Debug)]
pub(super) struct Descriptors<'a> {
    fds: IntoIter<OwnedFd>,
    closer: &'a Closer,
}

impl<'a> Descriptors<'a> {
    pub(super) fn new(fds: Vec<OwnedFd>, closer: &'a Closer) -> Descriptors<'a> {
        Descriptors { fds: fds.into_iter(), closer }
    }

    /// Checks their number.
    pub(super) fn exactly(&self, expected: usize) -> Result<(), DescriptorError> {
        match self.fds.len().checked_sub(expected) {
            Some(0) => Ok(()),
            Some(surplus) => Err(DescriptorError::Surplus(surplus)),
            None => Err(DescriptorError::Missing),
        }
    }

    /// The next one, of a file in memory.
    pub(super) fn memory(&mut self) -> Result<OwnedFd, DescriptorError> {
        let fd = self.fds.next().ok_or(DescriptorError::Missing)?;
        if memfd::seals(fd.as_fd()).is_ok() {
            return Ok(fd);
        }
        self.closer.close(fd);
        Err(DescriptorError::NotMemory)
    }

    /// The only one, of an eventfd, if there must be one.
    pub(super) fn event(&mut self, expected: bool) -> Result<Option<EventFd>, DescriptorError> {
        self.exactly(usize::from(expected))?;
        let Some(fd) = self.fds.next() else { return Ok(None) };
        EventFd::from_peer(fd).map(Some).map_err(|fd| {
            self.closer.close(fd);
            DescriptorError::NotEvent
        })
    }
}

impl Drop for Descriptors<'_> {
    fn drop(&mut self) {
        for fd in self.fds.by_ref() {
            if memfd::seals(fd.as_fd()).is_err()
                && let Err(fd) = EventFd::from_peer(fd)
            {
                self.closer.close(fd);
            }
        }
    }
}

/// Closes a connection, and the descriptors that are queued in it.
pub(super) fn hang_up(socket: OwnedFd, fds: Vec<OwnedFd>, closer: &Closer) {
    drop(Descriptors::new(fds, closer));
    // What is queued from here on is all that comes.
    seqpacket::shutdown(socket.as_fd());
    let mut bytes = [0; 4096];
    while let Ok(got) = stream::receive(socket.as_fd(), &mut bytes) {
        drop(Descriptors::new(got.fds, closer));
        if got.len == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_testing::sealed_memory;

    #[test]
    fn a_descriptor_is_taken_for_what_it_is_and_for_nothing_else() {
        let closer = Closer::default();
        let event = || OwnedFd::from(EventFd::new().unwrap());
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let of = |fds: Vec<OwnedFd>| Descriptors::new(fds, &closer);
        assert!(of(vec![sealed_memory(4096)]).memory().is_ok());
        assert_eq!(of(vec![event()]).memory().unwrap_err(), DescriptorError::NotMemory);
        assert_eq!(of(vec![]).memory().unwrap_err(), DescriptorError::Missing);
        assert!(of(vec![event()]).event(true).unwrap().is_some());
        assert!(of(vec![]).event(false).unwrap().is_none());
        assert_eq!(of(vec![file()]).event(true).unwrap_err(), DescriptorError::NotEvent);
        assert_eq!(of(vec![sealed_memory(1)]).event(true).unwrap_err(), DescriptorError::NotEvent);
        assert_eq!(of(vec![event()]).event(false).unwrap_err(), DescriptorError::Surplus(1));
        assert_eq!(of(vec![event(), event(), event()]).event(true).unwrap_err(), DescriptorError::Surplus(2));
        assert_eq!(of(vec![]).event(true).unwrap_err(), DescriptorError::Missing);
    }
}
