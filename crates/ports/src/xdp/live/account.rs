//! What became of frames that were sent: as far as the device says it, ten times a second.

use crate::kernel::link::{down, gone};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::State;
use towpath_packet::{Counters, DropReason};
use towpath_sys::netdev::{Control, Link};
use towpath_sys::netdev_genl::{Device, Statistics};

/// Time between two looks at the device.
const EVERY: Duration = Duration::from_millis(100);

/// Frames that were handed to a device, and are counted when it has been asked about them.
#[derive(Debug)]
pub(super) struct Account {
    device: Device,
    seen: Statistics,
    next: Instant,
    control: Arc<Control>,
    index: i32,
    frames: u64,
    bytes: u64,
}

impl Account {
    pub(super) fn new(device: Device, control: Arc<Control>, index: i32) -> Account {
        let seen = device.statistics().unwrap_or_default();
        Account { device, seen, next: Instant::now() + EVERY, control, index, frames: 0, bytes: 0 }
    }

    /// The device was handed so many.
    pub(super) fn handed(&mut self, frames: u64, bytes: u64) {
        self.frames += frames;
        self.bytes += bytes;
    }

    /// Whether it is time to ask.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Whether nothing waits to be counted.
    pub(super) fn is_settled(&self) -> bool {
        self.frames == 0
    }

    /// Counts what was handed over as sent or refused; returns how the device is.
    #[cold]
    pub(super) fn settle(&mut self, counters: &Counters) -> State {
        self.next = Instant::now() + EVERY;
        let takes = self.device.features().is_ok_and(|f| f.takes_frames());
        let now = self.device.statistics().unwrap_or(self.seen);
        let (sent, bytes) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.bytes));
        let dropped = now.tx_dropped.saturating_sub(self.seen.tx_dropped);
        let arrived = now.tx_packets.saturating_sub(self.seen.tx_packets);
        self.seen = now;
        // A device that takes no frames any more says nothing of those that it did not take.
        let refused = if takes { dropped.min(sent) } else { sent.saturating_sub(arrived) };
        if refused > 0 {
            counters.dropped(DropReason::Refused, refused);
        }
        counters.moved(sent - refused, bytes.checked_div(sent).map_or(0, |mean| mean * (sent - refused)));
        match self.control.link(self.index) {
            Link::Absent => gone(),
            link @ (Link::Down | Link::NoCarrier) => down(link),
            Link::Up if !takes => State::Down("the device takes no frames any more".into()),
            Link::Up => State::Up,
        }
    }
}
