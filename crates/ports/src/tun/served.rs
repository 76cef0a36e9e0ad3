//! A tap whose queues something else reads and writes: vhost-net. What stays with the port is the
//! interface: its offloads, its link and its counters.

use super::device::TunDevice;
use crate::kernel::edge::EdgeGuard;
use crate::kernel::link::{LinkWatch, down, gone};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Offloads;
use towpath_packet::port::{Edge, Info, PortError, State};
use towpath_sys::netdev::LinkState;

/// The interface of a tap that something else reads and writes.
#[derive(Debug)]
pub struct ServedTap {
    /// Dropped before the device.
    _edge: Arc<EdgeGuard>,
    link: Mutex<(LinkWatch, State)>,
    offloads: (Offloads, Offloads),
    /// The interface is to be set up.
    up: AtomicBool,
    device: TunDevice,
}

/// A port of [`TunPort::into_served`](super::TunPort::into_served).
#[derive(Debug)]
pub struct Served {
    /// The port.
    pub info: Info,
    /// The descriptors of its queues.
    pub queues: Vec<Arc<File>>,
    /// Its counters of the kernel's losses.
    pub edge: Arc<dyn Edge>,
    /// Its interface.
    pub tap: ServedTap,
}

impl ServedTap {
    /// Of a device whose queues are left to something else, with the offloads of both directions.
    pub(super) fn new(
        mut device: TunDevice,
        edge: Arc<EdgeGuard>,
        offloads: (Offloads, Offloads),
        up: bool,
    ) -> ServedTap {
        // One entry for all queues.
        device.set_limit(offloads.1, Offloads::NONE, 1);
        let link = Mutex::new((device.watch(), State::Up));
        ServedTap { _edge: edge, link, offloads, up: AtomicBool::new(up), device }
    }

    /// The offloads of packets that are sent to the interface, and of those that come from it.
    pub fn offloads(&self) -> (Offloads, Offloads) {
        self.offloads
    }

    /// Sets the offloads that packets which come from it may need.
    ///
    /// # Errors
    /// [`PortError::Os`]: the kernel refuses.
    pub fn set_rx_offloads(&self, set: Offloads) -> Result<(), PortError> {
        self.device.set_queue_offloads(0, Some(set)).map_err(|error| self.device.failed(error))
    }

    /// Sets the interface up, at the first call, unless an option says that it stays as it is.
    ///
    /// # Errors
    /// [`PortError::Os`]: the kernel refuses.
    pub fn run(&self) -> Result<(), PortError> {
        if self.up.swap(false, Relaxed) { self.device.set_up() } else { Ok(()) }
    }

    /// The state of the interface, which is read at intervals.
    pub fn state(&self) -> State {
        let (watch, state) = &mut *self.link.lock().unwrap_or_else(PoisonError::into_inner);
        match watch.poll() {
            Some(LinkState::Up) => *state = State::Up,
            // It was deleted, or works in another namespace.
            Some(LinkState::Absent) => *state = if self.device.is_attached() { State::Up } else { gone() },
            Some(link) => *state = down(link),
            None => {}
        }
        state.clone()
    }
}
