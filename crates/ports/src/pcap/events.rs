//! What happened to the records of a file, and how its rate was kept: the port's control.

use super::rate::RateShared;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use towpath_packet::port::{Pacing, PortControl};

/// A record that was not sent as it is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Event {
    /// The capture cut the packet: it was sent, padded or skipped, as configured.
    Truncated,
    /// The record has no bytes.
    Empty,
    /// The frame has no form that the egress takes.
    Unconverted,
    /// The link type is one whose frames are not sent.
    OtherLink,
    /// No chain of buffers holds the packet.
    TooLong,
}

const NAMES: [&str; 5] =
    ["truncated_packets", "empty_records", "frames_not_convertible", "frames_of_other_links", "packets_too_long"];

/// Counters of [`Event`]s.
#[derive(Debug, Default)]
pub(super) struct Events([AtomicU64; NAMES.len()]);

impl Events {
    /// One writer.
    pub(super) fn count(&self, event: Event) {
        let counter = &self.0[event as usize];
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}

/// The control of a file that is read.
#[derive(Debug)]
pub(super) struct ReadControl {
    pub(super) events: Arc<Events>,
    pub(super) rate: Option<Arc<RateShared>>,
}

impl PortControl for ReadControl {
    fn events(&self) -> Vec<(&'static str, u64)> {
        NAMES.into_iter().zip(&self.events.0).map(|(name, counter)| (name, counter.load(Relaxed))).collect()
    }

    fn pacing(&self, _: Instant) -> Option<Pacing> {
        self.rate.as_ref().map(|rate| rate.read())
    }
}
