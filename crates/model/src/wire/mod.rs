//! What a device's connector is joined to.
//!
//! ```text
//!   device ──► Wire::send        a frame leaves, without FCS; false: the wire is busy, the frame waits in the device
//!          ◄── Wire::receive     the next frame that has arrived
//!
//!   Loop                 what is sent comes back
//!   cable(n) ─► Plug, Plug     two ends, n frames in flight each way: two devices, or a device and a test
//!   Packets(fd)          a TAP, a packet socket: one frame a read, one a write
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

/// Longest frame that a wire carries, without FCS.
pub const MAX_FRAME: usize = 16 << 10;

/// A wire's end. Calls don't block.
pub trait Wire: Send + 'static {
    /// Sends a frame; false when there is no room at the moment.
    fn send(&mut self, frame: &[u8]) -> bool;

    /// Puts the next frame that has arrived into `into`, in place of what was there; false when there is none.
    fn receive(&mut self, into: &mut Vec<u8>) -> bool;

    /// Whether there is a carrier.
    fn carrier(&self) -> bool {
        true
    }

    /// A descriptor that becomes readable when a frame arrives, if there is one. Called by a device that is about to sleep, which looks
    /// with [`receive`](Wire::receive) once more before it does.
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

/// No cable: no carrier, nothing arrives, what is sent is lost.
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
