//! The device that all queues of a port share: made or attached to ([`towpath_tun::Device`]),
//! configured, the offloads of its queues.

use super::config::{Config, Kind};
use crate::kernel::ability::{KernelOffloads, to_tun};
use crate::kernel::interface::interface;
use crate::kernel::link::LinkWatch;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, Interface, PortError};
use towpath_sys::host;
use towpath_sys::netdev::{Control, LinkState};
use towpath_sys::rtnl::Link;
use towpath_sys::tun::CLONE_DEVICE;
use towpath_tun::steering::Steering;
use towpath_tun::{self as tun, Device, Error};

/// Packets that the kernel queues for each queue, unless the user says otherwise: what 64 TCP
/// connections without TSO have under way while the reader is not scheduled, measured in
/// `docs/perf/bridge.md`.
const QUEUE_LEN: u32 = 16384;
/// The same on a machine with little memory: one scheduling delay of 1 ms at a million packets/s.
const MIN_QUEUE_LEN: u32 = 1000;
/// Full queues take at most this share of the machine's memory, if all packets are super-packets.
const MEMORY_SHARE: u64 = 16;
/// Bytes that the kernel needs for a packet of 1500 bytes (`skb->truesize`).
const SKB_1500: f64 = 2304.0;
const QUEUE_LEN_OPTION: &str = "txqueuelen";
/// Bytes of a super-packet.
const SUPER_PACKET: u64 = 1 << 16;

/// The default length of each of `queues` queues on a machine with `memory` bytes.
fn default_queue_len(memory: u64, queues: u16) -> u32 {
    let most = memory / MEMORY_SHARE / SUPER_PACKET / u64::from(queues.max(1));
    u32::try_from(most).unwrap_or(u32::MAX).clamp(MIN_QUEUE_LEN, QUEUE_LEN)
}

/// The part that the queues share.
#[derive(Debug)]
pub(super) struct TunDevice {
    port: String,
    pub(super) kind: Kind,
    name: String,
    device: Device,
    control: Arc<Control>,
    /// For the counters of the interface.
    link: Option<Link>,
    /// The offloads that the kernel and the options permit.
    limit: Offloads,
    rx_offloads: Mutex<RxOffloads>,
    pub(super) steering: Option<Steering>,
}

/// The offloads of received packets, which are those that all queues accept.
#[derive(Debug, Default)]
struct RxOffloads {
    /// Accepted by each queue.
    accept: Vec<Offloads>,
    /// Set in the kernel.
    set: Option<Offloads>,
}

impl TunDevice {
    /// Makes the interface or attaches to it, and probes the kernel: one descriptor for each queue.
    pub(super) fn open(config: &Config) -> Result<(TunDevice, Vec<Arc<File>>), PortError> {
        let failed = |error| failed(config, error);
        let mut wanted = match config.kind {
            Kind::Tap => tun::Config::tap(&config.name),
            Kind::Tun => tun::Config::tun(&config.name),
        };
        wanted.netns.clone_from(&config.netns);
        // The port attaches the steering program itself, and reports it.
        let wanted = wanted.multi_queue(config.is_multi_queue()).steering(false);
        let mut device = Device::open(&wanted).map_err(failed)?;
        // None until the port starts.
        device.set_rx_offloads(tun::TunOffloads::NONE).map_err(failed)?;
        let mut queues = Vec::new();
        for _ in 0..config.queues {
            queues.push(device.queue().map_err(failed)?.file().clone());
        }
        let name = device.name().map_err(failed)?;
        let port = format!("{}:{name}", config.kind.name());
        let control = device.interface().cloned().ok_or_else(|| PortError::Os {
            port: port.clone(),
            step: "socket".to_owned(),
            source: io::ErrorKind::Unsupported.into(),
            hint: None,
        })?;
        let device = TunDevice {
            port,
            kind: config.kind,
            name,
            link: device.counters().ok(),
            device,
            control,
            limit: Offloads::NONE,
            rx_offloads: Mutex::default(),
            steering: None,
        };
        Ok((device, queues))
    }

    /// The kernel's offloads.
    pub(super) fn found(&self) -> KernelOffloads {
        self.device.report().into()
    }

    /// The port's name, with the actual name of the interface.
    pub(super) fn port(&self) -> &str {
        &self.port
    }

    fn os(&self, step: impl Into<String>) -> impl FnOnce(io::Error) -> PortError {
        let (port, step) = (self.port.clone(), step.into());
        move |source| {
            let denied = matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES));
            PortError::Os { port, step, source, hint: denied.then(|| privilege().to_owned()) }
        }
    }

    /// Configures the interface, but does not set it up.
    pub(super) fn configure(&self, config: &Config) -> Result<(), PortError> {
        let (control, name) = (&self.control, &self.name);
        if let Some(persist) = config.persist {
            self.device.set_persistent(persist).map_err(|error| failed(config, error))?;
        }
        if let Some(mac) = config.mac {
            control.set_mac(name, mac).map_err(self.os("set the hardware address"))?;
        }
        if let Some(mtu) = config.mtu {
            control.set_mtu(name, mtu).map_err(self.os(format!("set mtu {mtu}")))?;
        }
        for &(address, prefix) in &config.addresses {
            let step = self.os(format!("add address {address}/{prefix}"));
            match control.add_address(name, address, prefix) {
                // An interface that existed before may have the address.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done => done.map_err(step)?,
            }
        }
        Ok(())
    }

    /// Sets the length of the queues, and reports it.
    pub(super) fn set_queue_len(&self, config: &Config) -> Result<Ability, PortError> {
        let (control, name) = (&self.control, &self.name);
        let wanted = config.queue_len.unwrap_or_else(|| default_queue_len(host::memory(), config.queues));
        let mut refused = None;
        if let Some(len) = config.queue_len {
            control.set_queue_len(name, len).map_err(self.os(format!("set txqueuelen {len}")))?;
        } else if control.queue_len(name).is_ok_and(|len| len < wanted) {
            // Without the right to change it, the present length is used.
            refused = control.set_queue_len(name, wanted).err();
        }
        let len = control.queue_len(name).unwrap_or(wanted);
        let cost = format!(
            "{len} packets may wait in each queue: {:.0} MB of the kernel's memory if they have 1500 bytes, \
             {:.0} ms of delay at a million packets/s",
            f64::from(len) * SKB_1500 / 1e6,
            f64::from(len) / 1e3
        );
        Ok(match refused {
            None => Ability::new(QUEUE_LEN_OPTION, true, cost),
            Some(error) => Ability::new(QUEUE_LEN_OPTION, false, format!("{cost}; {wanted} were refused: {error}"))
                .with_hint(Some(format!("ip link set {name} txqueuelen {wanted}"))),
        })
    }

    /// What the interface is; before the start, which takes its link.
    pub(super) fn interface(&self) -> Option<Interface> {
        self.link.as_ref().and_then(|link| interface(&self.control, link))
    }

    pub(super) fn mtu(&self) -> Result<u32, PortError> {
        self.control.mtu(&self.name).map_err(self.os("SIOCGIFMTU"))
    }

    pub(super) fn set_up(&self) -> Result<(), PortError> {
        self.control.set_up(&self.name).map_err(self.os("set the interface up"))
    }

    /// Whether the interface is there, in any namespace.
    pub(super) fn is_attached(&self) -> bool {
        self.device.name().is_ok()
    }

    /// The port's error for one of the device that runs.
    pub(super) fn failed(&self, error: Error) -> PortError {
        let (step, source) = match error {
            Error::Os { step, source, .. } => (step, source),
            other => ("set up".to_owned(), other.into()),
        };
        PortError::Os { port: self.port.clone(), step, source, hint: None }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn link_state(&self) -> LinkState {
        self.control.link_state(self.device.index())
    }

    pub(super) fn watch(&self) -> LinkWatch {
        LinkWatch::new(self.control.clone(), self.device.index())
    }

    /// The interface's counters.
    pub(super) fn take_link(&mut self) -> Option<Link> {
        self.link.take()
    }

    /// Sets the permitted offloads, and that each of `queues` queues accepts `accept`.
    pub(super) fn set_limit(&mut self, limit: Offloads, accept: Offloads, queues: usize) {
        self.limit = limit;
        self.rx_offloads = Mutex::new(RxOffloads { accept: vec![accept; queues], set: None });
    }

    /// Stores the offloads that one queue accepts, and sets those of all queues in the kernel: the
    /// setting is the device's.
    pub(super) fn set_queue_offloads(&self, queue: usize, accept: Option<Offloads>) -> Result<(), Error> {
        let mut offloads = self.rx_offloads.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(entry), Some(accept)) = (offloads.accept.get_mut(queue), accept) {
            *entry = accept;
        }
        let all = offloads.accept.iter().fold(self.limit, |all, &one| all.and(one));
        if offloads.set != Some(all) {
            self.device.set_rx_offloads(to_tun(all))?;
            offloads.set = Some(all);
        }
        Ok(())
    }
}

/// The port's error for one of the device.
fn failed(config: &Config, error: Error) -> PortError {
    let port = config.port();
    match error {
        Error::Os { step, source, .. } => {
            let hint = hint(config, &step, &source);
            PortError::Os { port, step, source, hint }
        }
        Error::Option { option, value, rule } => {
            PortError::Option { port, option: option.to_owned(), value, rule: rule.to_owned() }
        }
        other => PortError::Os { port, step: "open".to_owned(), source: other.into(), hint: None },
    }
}

fn privilege() -> &'static str {
    "run as root, or: setcap cap_net_admin+ep \"$(command -v towpath)\""
}

/// A hint for an error.
fn hint(config: &Config, step: &str, error: &io::Error) -> Option<String> {
    let (name, kind) = (&config.name, config.kind.name());
    let multi = if config.is_multi_queue() { " multi_queue" } else { "" };
    let user = fs::metadata("/proc/self").map_or_else(|_| "\"$USER\"".to_owned(), |own| own.uid().to_string());
    let owned =
        format!("ip tuntap add dev {name} mode {kind}{multi} user {user} vnet_hdr && ip link set dev {name} up");
    Some(match error.raw_os_error()? {
        libc::EPERM if step.starts_with("enter") => "run as root: entering a namespace needs cap_sys_admin".to_owned(),
        libc::EPERM if step == "set the interface up" => {
            format!("{}, or have root do once: ip link set dev {name} up; or up=off", privilege())
        }
        libc::EPERM => format!("{}, or have root do once: {owned}", privilege()),
        libc::EACCES => format!("chmod 0666 {CLONE_DEVICE}, or run as root"),
        libc::ENOENT if step.starts_with("enter") => "ip netns list shows the names".to_owned(),
        libc::ENOENT | libc::ENODEV | libc::ENXIO => "modprobe tun".to_owned(),
        libc::EBUSY if config.queues > 1 => {
            format!(
                "{name} is in use, by another process or another port of this one, or is no multi-queue device: choose another name"
            )
        }
        libc::EBUSY => format!("{name} is in use, by another process or another port of this one: choose another name"),
        libc::EINVAL if step == "TUNSETIFF" => {
            let other = if config.is_multi_queue() { "off, queues=1" } else { "on" };
            format!("there is an interface {name} already that is no {kind}, or one that wants multiqueue={other}")
        }
        libc::E2BIG => "the device has no more queues to give".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_queue_scales_with_the_memory_and_the_number_of_queues_within_its_bounds() {
        let gib = 1 << 30;
        let cases = [((24 * gib, 1), 16384), ((8 * gib, 1), 8192), ((8 * gib, 4), 2048), ((gib / 2, 1), 1000)];
        for ((memory, queues), len) in cases {
            assert_eq!(default_queue_len(memory, queues), len, "{memory} {queues}");
        }
    }
}
