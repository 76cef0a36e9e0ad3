//! The handle to a running port: its settings, its link and its fault counters.

use super::config::{Config, ConfigError};
use crate::common::copybreak::{Copybreak, LeakLog};
use crate::common::faults::faults;
use crate::common::filter::Filter;
use crate::common::link::{LinkCell, LinkStatus};
use crate::common::settings::{Follow, LiveSettings};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use towpath_packet::port::{ControlError, PortControl, Setting, SettingValue};
use towpath_wire::ethernet::Mac;

faults! {
    /// A used chain that was not in flight, or more of them than were: the ring is broken.
    BrokenRing = broken_rings,
    /// A received buffer that is too short for its header, that names more buffers than there are,
    /// or whose used length is more than its room.
    BadLength = bad_lengths,
    /// A received packet whose header contradicts it, or asks for what was not negotiated.
    BadHeader = bad_headers,
    /// A received frame that is too short for an Ethernet header, or longer than the MTU allows.
    BadFrame = bad_frames,
    /// Received packets that were lost in a reset, or with a buffer that could not be unmapped.
    LostFrame = lost_frames,
    /// Times that the pool had no buffer for a receive queue.
    NoBuffer = no_buffer,
    /// Buffers that could not be mapped.
    MapFailed = map_failed,
    /// Packets that were copied to be sent, because the device can't reach their memory.
    Bounced = bounced,
    /// Packets that were copied to be sent, because they have too many pieces.
    Linearised = linearised,
    /// Times that frames waited for longer than the stall limit.
    Hang = hangs,
    /// Times that the link, or the connection to the back end, was lost.
    LinkLost = link_losses,
    /// Commands of the control queue that the device refused.
    Refused = refused_commands,
    /// Resets to recover.
    Reset = resets,
    /// Buffers that are never used again, because the device may still reach them.
    Leaked = leaked,
}

#[derive(Debug)]
struct ControlShared {
    copybreak: AtomicU32,
    settings: LiveSettings<Filter>,
    /// The address in the device's memory, if it has one.
    device_mac: Option<Mac>,
    /// The device has a control queue, by which its filter is set.
    filters: bool,
    link: LinkCell,
    faults: FaultCounts,
}

/// A handle to a running port. It works from any thread, and outlives the port. A clone is another
/// handle to the same port.
#[derive(Debug, Clone)]
pub struct Control(Arc<ControlShared>);

impl Control {
    pub(super) fn new(config: &Config, device_mac: Option<Mac>, filters: bool) -> Control {
        Control(Arc::new(ControlShared {
            copybreak: AtomicU32::new(config.copybreak().get()),
            settings: LiveSettings::new(config.filter.clone()),
            device_mac,
            filters,
            link: LinkCell::default(),
            faults: FaultCounts::default(),
        }))
    }

    /// The device is started: it follows all further changes.
    pub(super) fn attach(&self, device: Weak<dyn Follow>) {
        self.0.settings.attach(device);
    }

    /// The address in the device's memory, if it has one.
    pub(super) fn device_mac(&self) -> Option<Mac> {
        self.0.device_mac
    }

    /// The port's address, if it is known.
    pub fn mac(&self) -> Option<Mac> {
        self.filter().mac.or(self.0.device_mac)
    }

    /// Which frames are received.
    pub fn filter(&self) -> Filter {
        self.0.settings.read(Filter::clone)
    }

    /// Changes which frames are received, and the port's address. When this returns, the device
    /// filters by it, unless it has refused commands ([`Faults::refused_commands`]). Frames that
    /// pass both filters are received during the change. A change from all VLANs to some, or back,
    /// takes a reset at the queues' next burst: frames that are not sent yet are dropped and
    /// counted.
    ///
    /// # Errors
    /// [`ConfigError`] if `filter` breaks a rule, if the device has no control queue, or if it was
    /// given up; nothing has changed then.
    pub fn set_filter(&self, filter: Filter) -> Result<(), ConfigError> {
        filter.check()?;
        if !self.0.filters {
            let rule = "the device has no control queue, by which its filter is set".to_owned();
            return Err(ConfigError { option: "filter", value: String::new(), rule });
        }
        self.0.settings.change("filter", &"", |settings| *settings = filter)
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
        self.0.faults.add(fault);
    }

    /// The faults until now.
    pub fn faults(&self) -> Faults {
        self.0.faults.read()
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
        let mut settings = vec![Setting::new("copybreak", u64::from(self.copybreak()), what)];
        if self.0.filters {
            settings.extend(self.filter().settings(self.mac()));
        }
        settings
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.faults().iter().collect()
    }

    fn set(&self, name: &str, value: &SettingValue) -> Result<(), ControlError> {
        let rule = |error: ConfigError| value.breaks(name, error.rule);
        match name {
            "copybreak" => self.set_copybreak(value.number(name)?).map_err(rule),
            _ if Filter::has_option(name) => {
                let mut filter = self.filter();
                filter.set(name, &value.to_string()).and_then(|()| self.set_filter(filter)).map_err(rule)
            }
            _ => Err(ControlError::unknown(name, &self.settings())),
        }
    }
}
