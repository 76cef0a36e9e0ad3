//! A descriptor that becomes readable when the kernel has freed a sent frame, in copy mode.
//!
//! The kernel then wakes what waits to write to the socket (`sock_wfree`), after the frame's
//! completion. The socket itself stays writable while half of its TX ring is free, so the edges
//! count: they are collected by an epoll set.
//!
//! A set that waits for them costs a wake-up for each frame, also while its owner is busy: a tenth
//! of all that a frame of 64 bytes costs. So the socket is put into the set when its queue may
//! sleep, and taken out at the second burst after that: a queue that sleeps between its bursts
//! keeps it there.

use std::cell::Cell;
use std::os::fd::RawFd;
use towpath_sys::Epoll;

/// The set of one socket.
#[derive(Debug)]
pub(in crate::xdp) struct SentSignal {
    set: Epoll,
    socket: RawFd,
    /// Bursts until the socket is taken out of the set; 0 if it is not in it.
    bursts: Cell<u8>,
}

impl SentSignal {
    /// An empty set for `socket`, which must outlive it; `None` without a descriptor.
    pub(in crate::xdp) fn new(socket: RawFd) -> Option<SentSignal> {
        Some(SentSignal { set: Epoll::new().ok()?, socket, bursts: Cell::new(0) })
    }

    /// The descriptor. Frames that are freed from now on make it readable, also those of the next
    /// burst. `None` if the system has no memory for it.
    pub(super) fn arm(&self) -> Option<RawFd> {
        if self.bursts.get() == 0 {
            self.set.add_writable_edge(self.socket).ok()?;
        }
        self.bursts.set(2);
        // A socket that is writable counts once when it is added.
        self.set.drain();
        Some(self.set.fd())
    }

    /// A burst is sent.
    #[inline]
    pub(super) fn begin_burst(&self) {
        let left = self.bursts.get();
        if left > 0 {
            self.bursts.set(left - 1);
            if left == 1 {
                self.set.remove(self.socket);
            }
        }
    }
}
