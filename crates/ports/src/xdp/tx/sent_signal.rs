//! A descriptor that becomes readable when the kernel has freed a sent frame, in copy mode.
//!
//! The kernel then wakes those who wait to write to the socket (`sock_wfree`), after the frame's
//! completion. The socket itself stays writable while half of its TX ring is free, so the edges
//! count: they are collected by an epoll set.
//!
//! A set that waits for them costs a wake-up for each frame, also while its owner is busy: a tenth
//! of all that a frame of 64 bytes costs. So the socket is in the set only between the moment at
//! which its queue may sleep and its next burst.

use std::cell::Cell;
use std::os::fd::RawFd;
use towpath_sys::Epoll;

/// The set of one socket.
#[derive(Debug)]
pub(in crate::xdp) struct SentSignal {
    set: Epoll,
    socket: RawFd,
    /// The socket is in the set.
    armed: Cell<bool>,
}

impl SentSignal {
    /// An empty set for `socket`, which must outlive it; `None` without a descriptor.
    pub(in crate::xdp) fn new(socket: RawFd) -> Option<SentSignal> {
        Some(SentSignal { set: Epoll::new().ok()?, socket, armed: Cell::new(false) })
    }

    /// The descriptor. Frames that are freed from now on make it readable, until the signal is
    /// disarmed. `None` if the system has no memory for it.
    pub(super) fn arm(&self) -> Option<RawFd> {
        if !self.armed.get() {
            self.set.add_writable_edge(self.socket).ok()?;
            self.armed.set(true);
        }
        // A socket that is writable counts once when it is added.
        self.set.drain();
        Some(self.set.fd())
    }

    /// Ends it, before a burst.
    #[inline]
    pub(super) fn disarm(&self) {
        if self.armed.replace(false) {
            self.set.remove(self.socket);
        }
    }
}
