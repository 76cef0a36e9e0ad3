//! The network at a device's far end.
//!
//! ```text
//!   device ──► Wire::send        a frame leaves, without FCS; false: no room
//!          ◄── Wire::receive     the next frame that has arrived
//!
//!   Loopback             every frame returns to its sender
//!   cable(n) ─► Plug, Plug     two ends, n frames in flight each way
//!   FdWire(fd)           a TAP, a packet socket: one frame per read, one per write
//!   Sink                 takes every frame, and has none
//!   Unplugged            no carrier
//! ```

mod cable;
mod fd;
mod loopback;

pub use cable::{Plug, cable};
pub use fd::FdWire;
pub use loopback::Loopback;

use std::os::fd::RawFd;

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

/// A far end that takes every frame, and sends none.
#[derive(Debug, Default)]
pub struct Sink;

impl Wire for Sink {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }
    fn receive(&mut self, _: &mut Vec<u8>) -> bool {
        false
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
