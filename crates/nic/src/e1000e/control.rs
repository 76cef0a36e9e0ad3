//! The handle to a running port: its settings, its link and its fault counters.

use super::config::{Config, ConfigError, TxCopybreak, check_mtu};
use crate::common::batching::Batching;
use crate::common::copybreak::{Copybreak, LeakLog};
use crate::common::faults::faults;
use crate::common::filter::Filter;
use crate::common::link::{LinkCell, LinkStatus};
use crate::common::settings::{Follow, LiveSettings};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use towpath_packet::Counters;
use towpath_packet::port::{ControlError, PortControl, Setting, SettingValue};
use towpath_wire::ethernet::Mac;

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
    /// Frames that were received and lost: a buffer could not be unmapped, or the device was reset
    /// before they were taken.
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
    /// Resets of the whole function by its bus, when those of the device did not help.
    FunctionReset = function_resets,
    /// Buffers that are never used again, because the device may still reach them.
    Leaked = leaked,
}

/// The settings that are registers of the device.
#[derive(Debug)]
struct DeviceSettings {
    mtu: u16,
    filter: Filter,
    /// The address in the device's memory.
    device_mac: Mac,
}

#[derive(Debug)]
struct ControlShared {
    copybreak: AtomicU32,
    tx_copybreak: AtomicU32,
    /// The transmit queues have bounce memory.
    has_bounce: bool,
    batching: Batching,
    link: LinkCell,
    faults: FaultCounts,
    settings: LiveSettings<DeviceSettings>,
    /// Bytes of the longest frame, and of a receive buffer, as the device is programmed.
    max_frame: AtomicU32,
    buffer_size: AtomicU32,
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
            tx_copybreak: AtomicU32::new(config.tx_copybreak().get()),
            has_bounce: config.has_bounce(),
            batching: Batching::new(config.batch),
            link: LinkCell::default(),
            faults: FaultCounts::default(),
            settings: LiveSettings::new(DeviceSettings {
                mtu: config.mtu,
                filter: config.filter.clone(),
                device_mac: Mac::default(),
            }),
            max_frame: AtomicU32::new(config.max_frame() as u32),
            buffer_size: AtomicU32::new(0),
        }))
    }

    /// Notes the address in the device's memory.
    pub(super) fn set_device_mac(&self, mac: Mac) {
        self.0.settings.set(|settings| settings.device_mac = mac);
    }

    /// The device is started: it follows all further changes.
    pub(super) fn attach(&self, device: Weak<dyn Follow>) {
        self.0.settings.attach(device);
    }

    /// A configuration with the settings as they are now, and the address in the device's memory.
    pub(super) fn current(&self, config: &Config) -> (Config, Mac) {
        self.0.settings.read(|DeviceSettings { mtu, filter, device_mac }| {
            (Config { mtu: *mtu, filter: filter.clone(), ..config.clone() }, *device_mac)
        })
    }

    /// The device is programmed for frames and receive buffers of this many bytes.
    pub(super) fn programmed(&self, max_frame: usize, buffer_size: usize) {
        self.0.max_frame.store(max_frame as u32, Relaxed);
        self.0.buffer_size.store(buffer_size as u32, Relaxed);
    }

    #[inline]
    pub(super) fn max_frame(&self) -> usize {
        self.0.max_frame.load(Relaxed) as usize
    }

    pub(super) fn buffer_size(&self) -> usize {
        self.0.buffer_size.load(Relaxed) as usize
    }

    /// The longest packet in bytes, without Ethernet header and tags.
    pub fn mtu(&self) -> u16 {
        self.0.settings.read(|settings| settings.mtu)
    }

    /// Sets the longest packet. If buffers and the division of the packet buffer stay as they are,
    /// the change takes effect at once. Otherwise the queues reset the device at their next burst:
    /// frames that are not sent yet are dropped and counted, and the link is negotiated again.
    ///
    /// # Errors
    /// [`ConfigError`] unless the MTU is from 68 to 9216, or if the device was given up.
    pub fn set_mtu(&self, bytes: u64) -> Result<(), ConfigError> {
        let mtu = check_mtu(bytes)?;
        self.0.settings.change("mtu", &bytes, |settings| settings.mtu = mtu)
    }

    /// The port's address.
    pub fn mac(&self) -> Mac {
        self.0.settings.read(|settings| settings.filter.mac.unwrap_or(settings.device_mac))
    }

    /// Which frames are received.
    pub fn filter(&self) -> Filter {
        self.0.settings.read(|settings| settings.filter.clone())
    }

    /// Changes which frames are received, and the port's address. When this returns, the device
    /// filters by it. Frames that pass both filters are received during the change.
    ///
    /// # Errors
    /// [`ConfigError`] if `filter` breaks a rule, or if the device was given up; nothing has
    /// changed then.
    pub fn set_filter(&self, filter: Filter) -> Result<(), ConfigError> {
        filter.check()?;
        self.0.settings.change("filter", &"", |settings| settings.filter = filter)
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

    /// The threshold below which frames are copied for transmission, in bytes.
    #[inline]
    pub fn tx_copybreak(&self) -> u32 {
        self.0.tx_copybreak.load(Relaxed)
    }

    /// Sets the threshold; the queues use it from their next burst on.
    ///
    /// # Errors
    /// [`ConfigError`] unless the threshold is from 0 to 2048, or 0 if the port has no memory for
    /// copies (`tx_copybreak` of the configuration).
    pub fn set_tx_copybreak(&self, bytes: u64) -> Result<(), ConfigError> {
        let threshold = TxCopybreak::new(bytes)?;
        if threshold != TxCopybreak::OFF && !self.0.has_bounce {
            let rule =
                "the port was opened without memory for copies: open it with tx-copybreak=, or with policy=strict";
            return Err(ConfigError { option: "tx-copybreak", value: bytes.to_string(), rule: rule.to_owned() });
        }
        self.0.tx_copybreak.store(threshold.get(), Relaxed);
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

    /// Times that the link was lost.
    pub(super) fn link_losses(&self) -> u64 {
        self.faults().link_losses
    }

    /// The device is reset: the link comes up again when both ends have negotiated.
    pub(super) fn forget_link(&self) {
        self.0.link.set(LinkStatus { up: false, ..self.link() });
    }

    /// The faults until now.
    pub fn faults(&self) -> Faults {
        self.0.faults.read()
    }

    #[cold]
    pub(super) fn fault(&self, fault: Fault) {
        self.0.faults.add(fault);
    }
}

impl PortControl for Control {
    fn settings(&self) -> Vec<Setting> {
        let what = "frames shorter than this many bytes are copied out of their buffer";
        let tx_what = "frames shorter than this many bytes are copied to be sent, instead of mapped";
        let mut settings = vec![
            Setting::new("copybreak", u64::from(self.copybreak()), what),
            Setting::new("tx-copybreak", u64::from(self.tx_copybreak()), tx_what),
        ];
        settings.extend(self.batching().settings());
        let what = "the longest packet in bytes, without Ethernet header and tags, 68 to 9216";
        settings.push(Setting::new("mtu", u64::from(self.mtu()), what));
        settings.extend(self.filter().settings(Some(self.mac())));
        settings
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.faults().iter().collect()
    }

    fn registers(&self) -> Vec<(&'static str, u64)> {
        self.0.settings.device().map(|device| device.registers()).unwrap_or_default()
    }

    fn set(&self, name: &str, value: &SettingValue) -> Result<(), ControlError> {
        let rule = |error: ConfigError| value.breaks(name, error.rule);
        match name {
            "copybreak" => self.set_copybreak(value.number(name)?).map_err(rule),
            "tx-copybreak" => self.set_tx_copybreak(value.number(name)?).map_err(rule),
            "batch" => self.batching().set(name, value),
            "mtu" => self.set_mtu(value.number(name)?).map_err(rule),
            _ if Filter::has_option(name) => {
                let mut filter = self.filter();
                filter.set(name, &value.to_string()).and_then(|()| self.set_filter(filter)).map_err(rule)
            }
            _ => Err(ControlError::unknown(name, &self.settings())),
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

impl LeakLog for FaultLog {
    #[cold]
    fn leaked(&self) {
        self.fault(Fault::Leaked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_bus::{DmaPolicy, Flush};

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
        let set = |name: &str, n: u64| control.set(name, &n.into()).map_err(|error| error.to_string());
        set("copybreak", 256).unwrap();
        set("batch", 8).unwrap();
        let settings: Vec<_> = control.settings().iter().take(3).map(|s| (s.name, s.value.clone())).collect();
        assert_eq!(settings, [("copybreak", 256.into()), ("tx-copybreak", 0.into()), ("batch", 8.into())]);
        assert_eq!(set("batch", 128).unwrap_err(), "batch=128: must be from 1 to 127");
        assert_eq!(set("copybreak", 1 << 20).unwrap_err(), "copybreak=1048576: must be from 0 to 16384");
        let known = "copybreak, tx-copybreak, batch, mtu, mac, receive, addresses, groups, vlans";
        assert_eq!(set("colour", 1).unwrap_err(), format!("colour: no such setting; there are: {known}"));
        let error = control.set("batch", &"many".into()).unwrap_err().to_string();
        assert_eq!(error, "batch=many: must be a whole number");
    }

    #[test]
    fn address_filter_and_mtu_are_settings_of_the_port_also_before_it_is_started() {
        let control = Control::new(&Config::default());
        control.set_device_mac([2, 0, 0, 0, 0, 9]);
        let set = |name: &str, value: SettingValue| control.set(name, &value).map_err(|error| error.to_string());
        assert_eq!(set("vlans", 7.into()).unwrap_err().split(':').next(), Some("vlans=7"));
        for (name, value) in [("mtu", 1400.into()), ("receive", "own".into()), ("vlans", 7.into())] {
            set(name, value).unwrap();
        }
        assert!(set("receive", "all".into()).unwrap_err().starts_with("receive=all: receive=all takes"));
        let of = |name: &str| control.settings().into_iter().find(|s| s.name == name).unwrap().value.to_string();
        assert_eq!(["mtu", "mac", "vlans"].map(of), ["1400", "02:00:00:00:00:09", "7"]);
        set("mac", "02:00:00:00:00:0a".into()).unwrap();
        assert_eq!((of("mac"), control.mac()), ("02:00:00:00:00:0a".to_owned(), [2, 0, 0, 0, 0, 10]));
        assert_eq!(set("mtu", 67.into()).unwrap_err(), "mtu=67: must be from 68 to 9216");
        let (config, mac) = control.current(&Config::default());
        assert_eq!((config.mtu, config.filter, mac), (1400, control.filter(), [2, 0, 0, 0, 0, 9]));
    }

    #[test]
    fn frames_are_copied_for_transmission_only_by_a_port_with_memory_for_it() {
        let control = Control::new(&Config::default());
        let error = control.set("tx-copybreak", &64.into()).unwrap_err().to_string();
        assert!(error.starts_with("tx-copybreak=64: the port was opened without memory for copies"), "{error}");
        control.set("tx-copybreak", &0.into()).unwrap();
        let policy = DmaPolicy::PerBuffer { flush: Flush::Strict };
        let chosen = Config { tx_copybreak: TxCopybreak::new(64).ok(), ..Config::default() };
        for config in [Config { policy, tx_copybreak: Some(TxCopybreak::OFF), ..Config::default() }, chosen] {
            let control = Control::new(&config);
            control.set("tx-copybreak", &2048.into()).unwrap();
            assert_eq!(control.tx_copybreak(), 2048);
            assert!(control.set_tx_copybreak(2049).is_err());
        }
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
