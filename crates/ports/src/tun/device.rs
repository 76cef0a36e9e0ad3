//! The device that all queues of a port share: made or attached to, configured, its offloads.

use super::config::{Config, Kind};
use super::steering::Steering;
use crate::kernel::interface::interface;
use crate::kernel::link::LinkWatch;
use crate::vnet::VnetHeader;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, Interface, PortError};
use towpath_sys::netdev::{Control, LinkState};
use towpath_sys::rtnl::Link;
use towpath_sys::tun::{self, Attach, CLONE_DEVICE};
use towpath_sys::{host, netns};

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
    index: i32,
    control: Arc<Control>,
    /// For the counters of the interface.
    link: Option<Link>,
    /// The offloads that the kernel and the options permit.
    limit: Offloads,
    rx_offloads: Mutex<RxOffloads>,
    pub(super) steering: Option<Steering>,
}

/// The offloads of received packets.
#[derive(Debug, Default)]
struct RxOffloads {
    /// Accepted by each queue.
    accept: Vec<Offloads>,
    /// Set in the kernel.
    set: Option<Offloads>,
}

impl TunDevice {
    /// Makes the interface or attaches to it: one descriptor for each queue.
    pub(super) fn open(config: &Config) -> Result<(TunDevice, Vec<File>), PortError> {
        let port = config.port();
        let step = |step: String| {
            let port = port.clone();
            move |source: io::Error| {
                let hint = hint(config, &step, &source);
                PortError::Os { port, step, source, hint }
            }
        };
        let inside = || {
            let control = Control::new().map_err(step("socket".to_owned()))?;
            let how = Attach { ethernet: config.kind == Kind::Tap, multi_queue: config.is_multi_queue() };
            let mut name = config.name.clone();
            let mut queues = Vec::new();
            for _ in 0..config.queues {
                let queue = tun::open().map_err(step(format!("open {CLONE_DEVICE}")))?;
                name = tun::attach(&queue, &name, how).map_err(step("TUNSETIFF".to_owned()))?;
                tun::set_header_len(&queue, VnetHeader::LEN).map_err(step("TUNSETVNETHDRSZ".to_owned()))?;
                queues.push(queue);
            }
            let index = control.index(&name).map_err(step("SIOCGIFINDEX".to_owned()))?;
            let port = format!("{}:{name}", config.kind.name());
            let (kind, limit) = (config.kind, Offloads::NONE);
            let device = TunDevice {
                port,
                kind,
                name,
                index,
                control: Arc::new(control),
                link: Link::new(index).ok(),
                limit,
                rx_offloads: Mutex::default(),
                steering: None,
            };
            Ok((device, queues))
        };
        let netns = config.netns.as_deref();
        netns::within(netns, inside).map_err(step(format!("enter netns {}", netns.unwrap_or_default())))?
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
    pub(super) fn configure(&self, config: &Config, queues: &[File]) -> Result<(), PortError> {
        let (control, name) = (&self.control, &self.name);
        if let (Some(persist), Some(queue)) = (config.persist, queues.first()) {
            tun::set_persist(queue, persist).map_err(self.os("TUNSETPERSIST"))?;
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
                .with_mend(Some(format!("ip link set {name} txqueuelen {wanted}"))),
        })
    }

    /// What the interface is; before the start, which takes its link.
    pub(super) fn interface(&self) -> Option<Interface> {
        self.link.as_ref().and_then(|link| interface(&self.control, link))
    }

    pub(super) fn mtu(&self) -> Result<u32, PortError> {
        self.control.mtu(&self.name).map_err(self.os("SIOCGIFMTU"))
    }

    pub(super) fn is_up(&self) -> bool {
        self.control.is_up(&self.name).unwrap_or(true)
    }

    pub(super) fn set_up(&self) -> Result<(), PortError> {
        self.control.set_up(&self.name).map_err(self.os("set the interface up"))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn link_state(&self) -> LinkState {
        self.control.link_state(self.index)
    }

    pub(super) fn watch(&self) -> LinkWatch {
        LinkWatch::new(self.control.clone(), self.index)
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
    pub(super) fn set_queue_offloads(&self, file: &File, queue: usize, accept: Option<Offloads>) -> io::Result<()> {
        let mut offloads = self.rx_offloads.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(entry), Some(accept)) = (offloads.accept.get_mut(queue), accept) {
            *entry = accept;
        }
        let all = offloads.accept.iter().fold(self.limit, |all, &one| all.and(one));
        if offloads.set != Some(all) {
            tun::set_offload(file, bits(all))?;
            offloads.set = Some(all);
        }
        Ok(())
    }
}

/// The bits of `TUNSETOFFLOAD`: none without checksums, and UDP for both versions of IP or none.
pub(super) fn bits(set: Offloads) -> libc::c_uint {
    if !set.has(Offloads::CSUM) {
        return 0;
    }
    let table = [
        (Offloads::CSUM, libc::TUN_F_CSUM),
        (Offloads::TSO4, libc::TUN_F_TSO4),
        (Offloads::TSO6, libc::TUN_F_TSO6),
        (Offloads::TSO_ECN, libc::TUN_F_TSO_ECN),
        (Offloads::USO, libc::TUN_F_USO4 | libc::TUN_F_USO6),
    ];
    table.into_iter().filter(|&(one, _)| set.has(one)).fold(0, |bits, (_, bit)| bits | bit)
}

fn privilege() -> &'static str {
    "run as root, or: setcap cap_net_admin+ep \"$(command -v towpath)\""
}

/// A hint for an error.
fn hint(config: &Config, step: &str, error: &io::Error) -> Option<String> {
    let (name, kind) = (&config.name, config.kind.name());
    let multi = if config.is_multi_queue() { " multi_queue" } else { "" };
    let owned = format!("ip tuntap add dev {name} mode {kind}{multi} user \"$USER\" vnet_hdr");
    Some(match error.raw_os_error()? {
        libc::EPERM if step.starts_with("enter") => "run as root: entering a namespace needs cap_sys_admin".to_owned(),
        libc::EPERM => format!("{}, or have root do once: {owned}", privilege()),
        libc::EACCES => format!("chmod 0666 {CLONE_DEVICE}, or run as root"),
        libc::ENOENT if step.starts_with("enter") => "ip netns list shows the names".to_owned(),
        libc::ENOENT | libc::ENODEV | libc::ENXIO => "modprobe tun".to_owned(),
        libc::EBUSY if config.queues > 1 => {
            format!("{name} is in use by another process, or is no multi-queue device: choose another name")
        }
        libc::EBUSY => format!("{name} is in use by another process: choose another name"),
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

    #[test]
    fn segmentation_without_checksums_is_not_requested() {
        assert_eq!(bits(Offloads::TSO4.with(Offloads::USO)), 0);
        assert_eq!(bits(Offloads::CSUM.with(Offloads::USO)), 0x61);
        assert_eq!(bits(Offloads::ALL), 0x6f);
    }
}
