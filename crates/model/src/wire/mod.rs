//! The network at a device's far end.
//!
//! ```text
//!   device ──► Wire::send        a frame leaves, without FCS; false: no room, the frame stays in the device
//!          ◄── Wire::receive     the next frame that has arrived
//!
//!   Loopback             every frame returns to its sender
//!   cable(n) ─► Plug, Plug     two ends, n frames in flight each way: two devices, or a device and a test
//!   FdWire(fd)           a TAP, a packet socket: one frame per read, one per write
//!   Unplugged            no carrier
//! ```

mod cable;
mod looped;
mod packets;

pub use cable::{Plug, cable};
pub use looped::Loop;
pub use packets::Packets;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The longest frame of a wire, without FCS.
pub const MAX_FRAME: usize = 16 << 10;

/// The end of a wire. Calls do not block.
pub trait Wire: Send + 'static {
    /// Sends a frame; returns false if there is no room at the moment.
    fn send(&mut self, frame: &[u8]) -> bool;

    /// Replaces the contents of `into` by the next frame that has arrived; returns false if there
    /// is none.
    fn receive(&mut self, into: &mut Vec<u8>) -> bool;

    /// Whether the link has a carrier.
    fn carrier(&self) -> bool {
        true
    }

    /// A descriptor that becomes readable when a frame arrives, if the wire has one. A device that
    /// is about to sleep calls this, then [`receive`](Wire::receive) once more before it sleeps.
    fn wake(&mut self) -> Option<RawFd> {
        None
    }
}

/// An event descriptor: rung by one side, waited for by the other.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        // SAFETY: eventfd takes no pointer.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor and nobody else has it.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(raw) }))
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the pointer is to eight bytes that live across the call. It fails only when 2^64 - 1 rings wait.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// How often it was rung since it was last asked; it is quiet then.
    pub(crate) fn take(&self) -> u64 {
        let mut count = [0; 8];
        // SAFETY: the pointer is to eight bytes that live across the call and are exclusively ours.
        let n = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if n == 8 { u64::from_ne_bytes(count) } else { 0 }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn send(&mut self, frame: &[u8]) -> bool {
        (**self).send(frame)
    }
    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        (**self).receive(into)
    }
    fn carrier(&self) -> bool {
        (**self).carrier()
    }
    fn wake(&mut self) -> Option<RawFd> {
        (**self).wake()
    }
}

/// No cable: no carrier, nothing arrives, sent frames are lost.
#[derive(Debug, Default)]
pub struct Unplugged;

impl Wire for Unplugged {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }
    fn receive(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }
    fn carrier(&self) -> bool {
        false
    }
}
