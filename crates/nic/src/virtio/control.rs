//! The handle to a running port: its settings, its link and its fault counters.

use super::config::{Config, ConfigError};
use crate::common::copybreak::{Copybreak, LeakLog};
use crate::common::link::{LinkCell, LinkStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use towpath_packet::port::{ControlError, PortControl, Setting, SettingValue};

/// A fault that the driver survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fault {
    /// A used chain that was not in flight, or more of them than were: the ring is broken.
    BrokenRing,
    /// A received buffer that is too short for its header, or that names more buffers than there
    /// are.
    BadLength,
    /// A received packet whose header contradicts it, or asks for what was not negotiated.
    BadHeader,
    /// A received frame that is too short for an Ethernet header, or longer than the MTU allows.
    BadFrame,
    /// Received packets that were lost in a reset, or with a buffer that could not be unmapped.
    LostFrame,
    /// Times that the pool had no buffer for a receive queue.
    NoBuffer,
    /// Buffers that could not be mapped.
    MapFailed,
    /// Packets that were copied to be sent, because the device can't reach their memory.
    Bounced,
    /// Packets that were copied to be sent, because they have too many pieces.
    Linearised,
    /// Times that frames waited for longer than the stall limit.
    Hang,
    /// Times that the link, or the connection to the back end, was lost.
    LinkLost,
    /// Commands of the control queue that the device refused.
    Refused,
    /// Resets to recover.
    Reset,
    /// Buffers that are never used again, because the device may still reach them.
    Leaked,
}

const NAMES: [&str; 14] = [
    "broken_rings",
    "bad_lengths",
    "bad_headers",
    "bad_frames",
    "lost_frames",
    "no_buffer",
    "map_failed",
    "bounced",
    "linearised",
    "hangs",
    "link_losses",
    "refused_commands",
    "resets",
    "leaked",
];

#[derive(Debug)]
struct ControlShared {
    copybreak: AtomicU32,
    link: LinkCell,
    faults: [AtomicU64; NAMES.len()],
}

/// A handle to a running port. It works from any thread, and outlives the port. A clone is another
/// handle to the same port.
#[derive(Debug, Clone)]
pub struct Control(Arc<ControlShared>);

impl Control {
    pub(super) fn new(config: &Config) -> Control {
        Control(Arc::new(ControlShared {
            copybreak: AtomicU32::new(config.copybreak().get()),
            link: LinkCell::default(),
            faults: [const { AtomicU64::new(0) }; NAMES.len()],
        }))
    }

    /// The threshold below which received frames are copied, in bytes.
    #[inline]
    pub fn copybreak(&self) -> u32 {
        self.0.copybreak.load(Relaxed)
    }

    /// Sets the threshold; the queues use it from their next burst on.
    ///
    /// # Errors
    /// [`ConfigError`] unless the threshold is from 0 to 16384.
    pub fn set_copybreak(&self, bytes: u64) -> Result<(), ConfigError> {
        self.0.copybreak.store(Copybreak::new(bytes)?.get(), Relaxed);
        Ok(())
    }

    /// Whether the link is up: that of the device's configuration, or the connection to a back end.
    #[inline]
    pub fn link_is_up(&self) -> bool {
        self.0.link.is_up()
    }

    pub(super) fn set_link(&self, up: bool) {
        if self.0.link.set(LinkStatus { up, speed: 0, full_duplex: true }) {
            self.fault(Fault::LinkLost);
        }
    }

    #[cold]
    pub(super) fn fault(&self, fault: Fault) {
        if let Some(count) = self.0.faults.get(fault as usize) {
            // Relaxed: a count orders nothing.
            count.fetch_add(1, Relaxed);
        }
    }

    /// How often a fault of this name has happened since the port was started; 0 for an unknown
    /// name.
    pub fn faults(&self, name: &str) -> u64 {
        self.events().into_iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| count)
    }
}

impl LeakLog for Control {
    #[cold]
    fn leaked(&self) {
        self.fault(Fault::Leaked);
    }
}

impl PortControl for Control {
    fn settings(&self) -> Vec<Setting> {
        let what = "frames shorter than this many bytes are copied out of their buffer";
        vec![Setting::new("copybreak", u64::from(self.copybreak()), what)]
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        NAMES.into_iter().zip(&self.0.faults).map(|(name, count)| (name, count.load(Relaxed))).collect()
    }

    fn set(&self, name: &str, value: &SettingValue) -> Result<(), ControlError> {
        match name {
            "copybreak" => self.set_copybreak(value.number(name)?).map_err(|error| value.breaks(name, error.rule)),
            _ => Err(ControlError::unknown(name, self)),
        }
    }
}
