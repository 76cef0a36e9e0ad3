//! One ring of a device, between the thread that answers the front end and the worker that moves
//! packets.
//!
//! ```text
//!   control thread   start(RingSetup) ─► ┌──────┐ ◄─ take ── worker, for a burst ── put ─►
//!                    change(…)          │ Ring │
//!                    stop() ─► Base     └──────┘   taken by one of the two at a time, neither waits in a lock
//!                                sleep descriptor: the kick, and a poke from the control thread
//! ```

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use towpath_packet::TakeCell;
use towpath_sys::{Epoll, EventFd};
use towpath_virtio::{Areas, Base, Device, Features, Format, QueueError, Regions, RingError};

/// What the front end configured, complete, translated and checked, when a ring starts.
#[derive(Debug)]
pub(super) struct RingSetup {
    /// Format of the ring.
    pub(super) format: Format,
    /// Descriptors.
    pub(super) size: u16,
    /// The areas, in the front end's memory.
    pub(super) areas: Areas,
    /// Where it begins.
    pub(super) base: Base,
    /// All feature bits that the guest acknowledged.
    pub(super) features: u64,
    /// The guest's memory, by guest physical address.
    pub(super) memory: Regions,
    /// Announces available chains; without it the worker polls.
    pub(super) kick: Option<EventFd>,
    /// Announces used chains; without it none are announced.
    pub(super) call: Option<EventFd>,
    /// Whether packets move: a ring that is not enabled gives none to the guest, and drops its own.
    pub(super) enabled: bool,
}

/// A ring that was started.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) device: Device,
    pub(super) setup: RingSetup,
    /// Why it moves nothing any more.
    pub(super) broken: Option<RingError>,
}

/// What is left of a ring that was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped {
    /// Where another device can go on.
    pub(super) base: Base,
    /// Chains whose pages packets still refer to; they were returned to the guest all the same.
    pub(super) abandoned: u16,
}

/// The place of a ring.
#[derive(Debug)]
pub(super) struct RingSlot {
    cell: TakeCell<Option<Ring>>,
    /// Readable when there is something to do.
    sleep: Epoll,
    poke: EventFd,
}

impl RingSlot {
    /// An empty place.
    pub(super) fn new() -> io::Result<Arc<RingSlot>> {
        let (sleep, poke) = (Epoll::new()?, EventFd::new()?);
        sleep.add(poke.fd(), false)?;
        Ok(Arc::new(RingSlot { cell: TakeCell::new(Box::new(None)), sleep, poke }))
    }

    /// Control thread: starts a ring; one that is there must have been stopped.
    pub(super) fn start(&self, setup: RingSetup) -> Result<(), QueueError> {
        let _ = (setup, Features::default());
        unimplemented!("the data path's half is written next")
    }

    /// Control thread: takes the ring out. Chains that are out in packets are waited for, for
    /// `patience` at most, and then returned to the guest. When this returns, nothing of the guest's
    /// rings is accessed any more. `None` if there is no ring.
    pub(super) fn stop(&self, patience: Duration) -> Option<Stopped> {
        let _ = (patience, &self.cell);
        unimplemented!("the data path's half is written next")
    }

    /// Control thread: changes a ring between two bursts. Returns false if there is none.
    pub(super) fn change(&self, change: impl FnOnce(&mut Ring)) -> bool {
        let _ = change;
        unimplemented!("the data path's half is written next")
    }

    /// The descriptor that the worker sleeps on.
    pub(super) fn sleeps_on(&self) -> RawFd {
        self.sleep.fd()
    }

    /// Wakes the worker.
    pub(super) fn poke(&self) {
        self.poke.signal();
    }
}
