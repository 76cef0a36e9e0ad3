//! The handle to a running port: its settings, its link and its fault counters.

use super::config::{Config, ConfigError, Copybreak};
use crate::common::batching::Batching;
use crate::common::link::{LinkCell, LinkStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use towpath_packet::Counters;
use towpath_packet::port::{ControlError, PortControl, Setting};

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $field:ident,)*) => {
        /// A fault that the driver survives.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Fault { $($(#[$doc])* $variant,)* }

        const FAULTS: usize = [$(Fault::$variant),*].len();

        /// How often each fault has happened since the port was started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Faults { $($(#[$doc])* pub $field: u64,)* }

        impl Faults {
            fn read(counts: &[AtomicU64; FAULTS]) -> Faults {
                Faults { $($field: counts[Fault::$variant as usize].load(Relaxed),)* }
            }

            /// Names and counts, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

faults! {
    /// Frames that were damaged on the wire, by their status.
    BrokenFrame = broken_frames,
    /// Frames too short for an Ethernet header.
    Runt = runts,
    /// Frames longer than the MTU allows.
    Oversize = oversize,
    /// Descriptors with a length that is larger than a buffer.
    BadLength = bad_lengths,
    /// Frames that did not end after the largest number of descriptors.
    Endless = endless_frames,
    /// Frames that were received and lost because a buffer could not be unmapped.
    LostFrame = lost_frames,
    /// Times that the device completed a descriptor before the one that was next.
    OutOfOrder = out_of_order,
    /// Times that the pool had no buffer for a receive slot.
    NoBuffer = no_buffer,
    /// Buffers that could not be mapped; the driver tries again.
    MapFailed = map_failed,
    /// Frames that were copied for transmission, because the device can't reach their memory.
    Bounced = bounced,
    /// Frames made linear for transmission, because they have more pieces than the device takes.
    Linearised = linearised,
    /// Times that frames waited for longer than the stall limit.
    Hang = hangs,
    /// Times that the link was lost.
    LinkLost = link_losses,
    /// Times that the link came up slower than both ends can, because of its cable.
    Downshift = downshifts,
    /// Times that the PHY did not answer.
    PhySilent = phy_silent,
    /// Errors that the bus has reported (PCI Express: AER).
    BusError = bus_errors,
    /// Resets to recover.
    Reset = resets,
    /// Buffers that are never used again, because the device may still reach them.
    Leaked = leaked,
}

#[derive(Debug)]
struct ControlShared {
    copybreak: AtomicU32,
    batching: Batching,
    link: LinkCell,
    faults: [AtomicU64; FAULTS],
}

/// A handle to a running port. It works from any thread, and outlives the port. A clone is another
/// handle to the same port.
#[derive(Debug, Clone)]
pub struct Control(Arc<ControlShared>);

impl Control {
    pub(super) fn new(config: &Config) -> Control {
        let copybreak = config.copybreak.unwrap_or(Copybreak::default_for(config.policy));
        Control(Arc::new(ControlShared {
            copybreak: AtomicU32::new(copybreak.get()),
            batching: Batching::new(config.batch),
            link: LinkCell::default(),
            faults: [const { AtomicU64::new(0) }; FAULTS],
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

    /// How many descriptors one tail write announces; it can be changed while the port runs.
    pub fn batching(&self) -> &Batching {
        &self.0.batching
    }

    #[inline]
    pub(super) fn batch(&self) -> u32 {
        self.0.batching.get().get().into()
    }

    /// The link, as the port's watchdog saw it last.
    pub fn link(&self) -> LinkStatus {
        self.0.link.get()
    }

    #[inline]
    pub(super) fn link_is_up(&self) -> bool {
        self.0.link.is_up()
    }

    /// Notes the state of the link, and counts a loss.
    pub(super) fn set_link(&self, status: LinkStatus) {
        if self.0.link.set(status) {
            self.fault(Fault::LinkLost);
        }
    }

    /// The faults until now.
    pub fn faults(&self) -> Faults {
        Faults::read(&self.0.faults)
    }

    #[cold]
    pub(super) fn fault(&self, fault: Fault) {
        if let Some(count) = self.0.faults.get(fault as usize) {
            count.fetch_add(1, Relaxed);
        }
    }
}

impl PortControl for Control {
    fn settings(&self) -> Vec<Setting> {
        let what = "frames shorter than this many bytes are copied out of their buffer";
        let mut settings = vec![Setting::new("copybreak", self.copybreak().into(), what)];
        settings.extend(self.batching().settings());
        settings
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.faults().iter().collect()
    }

    fn set(&self, name: &str, value: u64) -> Result<(), ControlError> {
        let rule = |error: ConfigError| ControlError::Value { name: name.to_owned(), value, rule: error.rule };
        match name {
            "copybreak" => self.set_copybreak(value).map_err(rule),
            "batch" => self.batching().set(name, value),
            _ => Err(ControlError::unknown(name, self)),
        }
    }
}

/// Counts a queue's faults: by name for the port's handle, and among the errors of the queue's
/// counters.
#[derive(Debug, Clone)]
pub(super) struct FaultLog {
    pub(super) control: Control,
    pub(super) counters: Arc<Counters>,
}

impl FaultLog {
    pub(super) fn new(control: &Control) -> FaultLog {
        FaultLog { control: control.clone(), counters: Arc::default() }
    }

    #[cold]
    pub(super) fn fault(&self, fault: Fault) {
        self.control.fault(fault);
        self.counters.failed(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_can_be_set_within_its_range_and_is_kept_otherwise() {
        let control = Control::new(&Config::default());
        control.set_copybreak(2048).unwrap();
        assert!(control.set_copybreak(20_000).is_err());
        assert_eq!(control.clone().copybreak(), 2048);
    }

    #[test]
    fn threshold_and_batch_are_settings_of_the_port() {
        let control = Control::new(&Config::default());
        control.set("copybreak", 256).unwrap();
        control.set("batch", 8).unwrap();
        let settings: Vec<_> = control.settings().iter().map(|s| (s.name, s.value)).collect();
        assert_eq!(settings, [("copybreak", 256), ("batch", 8)]);
        assert_eq!(control.set("batch", 128).unwrap_err().to_string(), "batch=128: must be from 1 to 127");
        let error = control.set("copybreak", 1 << 20).unwrap_err().to_string();
        assert_eq!(error, "copybreak=1048576: must be from 0 to 16384");
        let error = control.set("colour", 1).unwrap_err().to_string();
        assert_eq!(error, "colour: no such setting; there are: copybreak, batch");
    }

    #[test]
    fn a_lost_link_is_counted_once() {
        let control = Control::new(&Config::default());
        let up = LinkStatus { up: true, speed: 1000, full_duplex: true };
        control.set_link(up);
        assert_eq!(control.link(), up);
        for _ in 0..2 {
            control.set_link(LinkStatus { up: false, ..up });
        }
        assert_eq!(control.faults().link_losses, 1);
    }

    #[test]
    fn a_fault_is_counted_under_its_name() {
        let log = FaultLog::new(&Control::new(&Config::default()));
        log.fault(Fault::BadLength);
        let named: Vec<_> = log.control.faults().iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(named, [("bad_lengths", 1)]);
        assert_eq!(log.counters.snapshot().errors, 1);
    }
}
