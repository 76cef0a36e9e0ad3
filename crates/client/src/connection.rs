//! The connection of a session, as an application has it.

use crate::protocol::GOODBYE;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use towpath_sys::seqpacket;

/// The connection of a session, which lasts as long as it does. Dropping it ends the session with a
/// [`GOODBYE`], so that the datapath's log distinguishes an application that left from one that was
/// killed.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    pub(crate) fn new(fd: OwnedFd) -> Connection {
        Connection(fd)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Without it the log is less exact, and nothing else. It does not wait for a datapath.
        let _ = seqpacket::try_send(self.0.as_fd(), &[GOODBYE]);
    }
}
