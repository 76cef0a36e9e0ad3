//! Changes of an interface, as the kernel announces them (`RTNLGRP_LINK`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;
use towpath_sys::poll;
use towpath_sys::rtnl::{LinkEvents, LinkInfo};

/// Announcements of the kernel about one interface. Register the descriptor with an event loop, and
/// call [`try_next`](Changes::try_next) when it is readable, until it returns `None`.
#[derive(Debug)]
pub struct Changes {
    events: LinkEvents,
    last: Option<LinkInfo>,
}

/// The interface after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Its settings now.
    Link(LinkInfo),
    /// It was deleted, or moved to another namespace.
    Gone,
}

impl Changes {
    pub(crate) fn new(index: i32) -> io::Result<Changes> {
        Ok(Changes { events: LinkEvents::new(index)?, last: None })
    }

    /// The next change, without waiting: `None` if there is none. Announcements that repeat the
    /// previous state are left out. If the kernel had to drop some, the state is read again.
    ///
    /// # Errors
    /// The error of `recv(2)`.
    pub fn try_next(&mut self) -> io::Result<Option<Change>> {
        loop {
            match self.events.receive() {
                Ok(None) => {
                    self.last = None;
                    return Ok(Some(Change::Gone));
                }
                Ok(Some(info)) if self.last.as_ref() == Some(&info) => {}
                Ok(Some(info)) => {
                    self.last = Some(info.clone());
                    return Ok(Some(Change::Link(info)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next change, at most for `time`.
    ///
    /// # Errors
    /// As [`try_next`](Changes::try_next).
    pub fn wait(&mut self, time: Option<Duration>) -> io::Result<Option<Change>> {
        if let Some(change) = self.try_next()? {
            return Ok(Some(change));
        }
        if poll::wait_readable(self.as_fd(), time)? { self.try_next() } else { Ok(None) }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
