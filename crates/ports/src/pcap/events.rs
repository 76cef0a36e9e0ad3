//! The control of a capture file: what happened to its records, and how its rate was kept.

use super::link::Unfit;
use super::parse::{EMPTY, OTHER_LINK};
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
    /// The same, of 802.11.
    Management,
    Control,
    NoData,
    Encrypted,
    Fragment,
    BadFcs,
    /// A frame behind the first one of its record.
    Subframe,
    /// The link type is one whose frames are not sent.
    OtherLink,
    /// No chain of buffers holds the packet.
    TooLong,
}

impl Event {
    /// Whether the frame was understood, and has no form that the egress takes.
    pub(super) fn is_formless(self) -> bool {
        use Event::{BadFcs, Control, Encrypted, Fragment, Management, NoData, Unconverted};
        matches!(self, Unconverted | Management | Control | NoData | Encrypted | Fragment | BadFcs)
    }

    /// The record, for people.
    pub(super) fn what(self) -> &'static str {
        match self {
            Event::Truncated => "a packet that the capture cut (truncated=skip)",
            Event::Empty => EMPTY,
            Event::OtherLink => OTHER_LINK,
            Event::TooLong => "a packet that is longer than buffers can be chained to",
            _ => "a frame that has no form that the egress takes",
        }
    }
}

const NAMES: [&str; 12] = [
    "truncated_packets",
    "empty_records",
    "frames_not_convertible",
    "wifi_management_frames",
    "wifi_control_frames",
    "wifi_frames_without_data",
    "wifi_encrypted_frames",
    "wifi_fragments",
    "wifi_frames_with_bad_fcs",
    "wifi_further_amsdu_frames",
    "frames_of_other_links",
    "packets_too_long",
];

impl From<Unfit> for Event {
    fn from(unfit: Unfit) -> Event {
        match unfit {
            Unfit::Cut | Unfit::NotIp | Unfit::NoType => Event::Unconverted,
            Unfit::OtherLink => Event::OtherLink,
            Unfit::Management => Event::Management,
            Unfit::Control => Event::Control,
            Unfit::NoData => Event::NoData,
            Unfit::Encrypted => Event::Encrypted,
            Unfit::Fragment => Event::Fragment,
            Unfit::BadFcs => Event::BadFcs,
        }
    }
}

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
