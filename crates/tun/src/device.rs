//! The device: made, attached to or inherited; its queues, its settings.

use crate::changes::Changes;
use crate::config::{Config, Kind, check_mtu};
use crate::descriptor::{attach, examine, of_device, set_header, step};
use crate::error::Error;
use crate::header::{MAX_LEN, TUNNEL_LEN};
use crate::offloads::TunOffloads;
use crate::probe::{self, OFF, Report, UNTRIED};
use crate::queue::{DeviceShared, Queue};
use crate::steering::Steering;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use towpath_sys::netdev::Control;
use towpath_sys::netns::Namespace;
use towpath_sys::rtnl::Link;
use towpath_sys::tun;
use towpath_wire::virtio_net::VnetHeader;

/// A TUN or TAP device. It vanishes with its last descriptor, unless it is persistent.
///
/// Dropping this closes no [`Queue`]. It ends the steering program.
#[derive(Debug)]
pub struct Device {
    shared: Arc<DeviceShared>,
    /// Of the device; not the one of the calling thread if the device was made elsewhere.
    netns: Namespace,
    control: Option<Arc<Control>>,
    link: Option<Link>,
    index: i32,
    multi_queue: bool,
    /// Any of its descriptors: for its name and its settings.
    file: Arc<File>,
    /// The descriptor that came with the device, until it is taken.
    first: Option<Queue>,
    queues: usize,
    steer: bool,
    steering: Option<Steering>,
    report: Report,
}

impl Device {
    /// Makes the interface, or attaches to an existing one, and probes the kernel. The interface is
    /// not set up: `ip link set … up`, or [`set_up`](Device::set_up).
    ///
    /// # Errors
    /// [`Error::Option`] for a value that breaks a rule, [`Error::Os`] for a step that the kernel
    /// refused, with a hint.
    pub fn open(config: &Config) -> Result<Device, Error> {
        config.check()?;
        let name = config.name.as_str();
        let netns = config.netns.as_deref();
        let enter = |source: io::Error| {
            let hint = match source.raw_os_error() {
                Some(libc::ENOENT) => "ip netns list shows the names",
                _ => "entering a namespace needs CAP_SYS_ADMIN",
            };
            let step = format!("enter netns {}", netns.unwrap_or_default());
            Error::os(name, step, source, Some(hint.to_owned()))
        };
        let netns = Namespace::open(netns).map_err(enter)?;
        let file =
            netns.run(|| attach(config.kind, name, config.multi_queue, vnet_header(config))).map_err(enter)??;
        let header = if vnet_header(config) {
            set_header(&file, config.offloads).map_err(step(name, "TUNSETVNETHDRSZ"))?
        } else {
            0
        };
        let device = Device::new(file, config.kind, config.multi_queue, header, netns, config)?;
        if let Some(mtu) = config.mtu {
            device.set_mtu(mtu)?;
        }
        if let Some(packets) = config.queue_len {
            device.set_queue_len(packets)?;
        }
        Ok(device)
    }

    /// Takes over an open descriptor: from a supervisor, `--tun-fd`, Android's `VpnService`. Of the
    /// configuration only `offloads`, `probe` and `steering` matter; see [`Device::from_fd`].
    ///
    /// # Errors
    /// As [`Device::from_fd`].
    pub fn from_fd_with(fd: OwnedFd, config: &Config) -> Result<Device, Error> {
        let number = fd.as_raw_fd();
        let (file, attached) = examine(fd)?;
        let name = attached.name.as_str();
        if attached.packet_info {
            return Err(Error::descriptor(
                format!("{name}: descriptor {number} has 4 bytes of packet information in front of each packet"),
                "make the device with IFF_NO_PI",
            ));
        }
        let kind = if attached.ethernet { Kind::Tap } else { Kind::Tun };
        let header = if attached.vnet_header {
            // The length is that of all descriptors of the device, so it is not changed.
            let len = tun::header_len(&file).map_err(step(name, "TUNGETVNETHDRSZ"))?;
            if !(VnetHeader::LEN..=MAX_LEN).contains(&len) {
                return Err(Error::descriptor(
                    format!("{name}: descriptor {number} has a header of {len} bytes in front of each packet"),
                    format!("set TUNSETVNETHDRSZ to {}", VnetHeader::LEN),
                ));
            }
            len
        } else {
            0
        };
        let netns = of_device(&file);
        Device::new(file, kind, attached.multi_queue, header, netns, config)
    }

    /// Takes over an open descriptor. Name, layer, header and queues are those of the descriptor,
    /// which stays blocking or nonblocking as it is: an event loop needs
    /// [`Queue::set_nonblocking`]. A descriptor without `IFF_VNET_HDR` works without offloads. MTU,
    /// index and other settings are read in the device's namespace, or, without the right to enter
    /// it, in that of the calling thread.
    ///
    /// ```no_run
    /// # fn example(fd: std::os::fd::OwnedFd) -> Result<(), towpath_tun::Error> {
    /// let mut device = towpath_tun::Device::from_fd(fd)?;
    /// let queue = device.queue()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Descriptor`] names what is wrong with the descriptor, and how to fix it.
    pub fn from_fd(fd: OwnedFd) -> Result<Device, Error> {
        Device::from_fd_with(fd, &Config::tun(""))
    }

    fn new(
        file: File,
        kind: Kind,
        multi_queue: bool,
        header: usize,
        netns: Namespace,
        config: &Config,
    ) -> Result<Device, Error> {
        let name = tun::name(&file).map_err(step(&config.name, "TUNGETIFF"))?;
        let enter = step(&name, "enter the device's netns");
        let (control, link, index) = netns
            .run(|| {
                let control = Control::new().ok().map(Arc::new);
                let index = control.as_ref().and_then(|control| control.index(&name).ok());
                (control, index.and_then(|index| Link::new(index).ok()), index.unwrap_or(0))
            })
            .map_err(enter)?;
        let mut device = Device {
            shared: Arc::new(DeviceShared::new(kind, header, TunOffloads::NONE, TunOffloads::NONE)),
            netns,
            control,
            link,
            index,
            multi_queue,
            file: Arc::new(file),
            first: None,
            queues: 0,
            steer: config.steering,
            steering: None,
            report: Report::default(),
        };
        device.find_offloads(config);
        let (rx, tx) = (device.report.rx, device.report.tx);
        device.shared = Arc::new(DeviceShared::new(kind, header, TunOffloads::NONE, tx));
        device.first = Some(Queue::new(device.file.clone(), &device.shared));
        device.set_rx_offloads(rx)?;
        Ok(device)
    }

    /// Finds what the kernel has, within what the configuration permits.
    fn find_offloads(&mut self, config: &Config) {
        let DeviceShared { kind, header, .. } = *self.shared;
        let tunnels = TunOffloads::TUNNEL.with(TunOffloads::TUNNEL_CSUM);
        let described = if header < TUNNEL_LEN { TunOffloads::ALL.without(tunnels) } else { TunOffloads::ALL };
        let limit = if header == 0 { TunOffloads::NONE } else { config.offloads.and(described).consistent() };
        let mut report = Report { how: OFF, ..Report::default() };
        if header > 0 && !limit.is_none() {
            probe::probe_rx(&self.file, header, &mut report);
            if config.probe {
                probe::probe_tx(&self.file, kind, header, self.is_up().unwrap_or(true), &mut report);
            } else {
                (report.tx, report.how) = (limit, UNTRIED);
            }
        } else if header == 0 && !config.offloads.is_none() {
            report.how = "the descriptor has no virtio-net header (IFF_VNET_HDR)";
        }
        report.rx = report.rx.and(limit).consistent();
        report.tx = report.tx.and(limit).consistent();
        self.report = report;
    }

    /// What the kernel accepted when the device was opened.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The next queue. The first call returns the descriptor that the device was opened with; each
    /// further one opens another, which the kernel uses from then on: read it. With the second
    /// queue the steering program starts.
    ///
    /// # Errors
    /// [`Error::Os`] if the kernel gives no further descriptor: `EBUSY` for a device of one queue.
    pub fn queue(&mut self) -> Result<Queue, Error> {
        let queue = match self.first.take() {
            Some(queue) => queue,
            None => {
                let name = self.name()?;
                let DeviceShared { kind, header, .. } = *self.shared;
                if !self.multi_queue {
                    let busy = io::Error::from_raw_os_error(libc::EBUSY);
                    let hint = "the device has one queue: make it with multi_queue".to_owned();
                    return Err(Error::os(&name, "another queue", busy, Some(hint)));
                }
                let file = self
                    .netns
                    .run(|| attach(kind, &name, true, header > 0))
                    .map_err(step(&name, "enter the device's netns"))??;
                Queue::new(Arc::new(file), &self.shared)
            }
        };
        Ok(self.count(queue))
    }

    /// Takes over another descriptor of this device, as a further queue.
    ///
    /// # Errors
    /// [`Error::Descriptor`] if it is none of this device.
    pub fn add_fd(&mut self, fd: OwnedFd) -> Result<Queue, Error> {
        let number = fd.as_raw_fd();
        let (file, attached) = examine(fd)?;
        let name = self.name()?;
        if attached.name != name {
            return Err(Error::descriptor(
                format!("descriptor {number} is of {}, not of {name}", attached.name),
                "open a device of its own from it",
            ));
        }
        Ok(self.count(Queue::new(Arc::new(file), &self.shared)))
    }

    /// Counts a queue. With the second one the steering program starts.
    fn count(&mut self, queue: Queue) -> Queue {
        self.queues += 1;
        if self.queues > 1 && self.steer && self.steering.is_none() {
            match Steering::attach(queue.file(), self.shared.kind) {
                Ok(steering) => self.steering = Some(steering),
                Err(error) => {
                    self.steer = false;
                    self.report.refused.push((TunOffloads::NONE, format!("steering (bpf): {error}")));
                }
            }
        }
        queue
    }

    /// Whether a program keeps each flow in one queue. Without one the kernel moves flows between
    /// the queues, and packets overtake each other then.
    pub fn is_steered(&self) -> bool {
        self.steering.is_some()
    }

    /// Sets the offloads of packets from the kernel, within [`Report::rx`]; also while packets
    /// flow. Those that it had queued before may still need more.
    ///
    /// # Errors
    /// [`Error::Os`], with the answer of `TUNSETOFFLOAD`.
    pub fn set_rx_offloads(&self, set: TunOffloads) -> Result<(), Error> {
        if self.shared.header == 0 {
            return Ok(());
        }
        let set = set.and(self.report.rx).consistent();
        // More is announced before, and less after: a buffer is never too short.
        self.shared.set_rx(self.shared.rx().with(set));
        tun::set_offload(&self.file, set.bits()).map_err(self.step("TUNSETOFFLOAD"))?;
        self.shared.set_rx(set);
        Ok(())
    }

    /// IP packets or Ethernet frames.
    pub fn kind(&self) -> Kind {
        self.shared.kind
    }

    /// The name of the interface now.
    ///
    /// # Errors
    /// [`Error::Os`]: `EBADFD` after the device was deleted.
    pub fn name(&self) -> Result<String, Error> {
        tun::name(&self.file).map_err(step("tun", "TUNGETIFF"))
    }

    /// The index of the interface, which does not change; 0 if it is in a namespace that can't be
    /// entered.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// The interface's other settings; `None` if it is in a namespace that can't be entered.
    pub fn interface(&self) -> Option<&Arc<Control>> {
        self.control.as_ref()
    }

    /// The interface's counters.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn counters(&self) -> Result<Link, Error> {
        let made = self.netns.run(|| Link::new(self.index)).and_then(|made| made);
        made.map_err(self.step("read the counters"))
    }

    fn step(&self, what: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        step(&self.name().unwrap_or_default(), what)
    }

    /// Runs an ioctl on the interface by its present name.
    fn control<R>(&self, what: &str, call: impl FnOnce(&Control, &str) -> io::Result<R>) -> Result<R, Error> {
        let name = self.name()?;
        let Some(control) = &self.control else {
            return Err(Error::os(&name, what, io::ErrorKind::Unsupported.into(), None));
        };
        call(control, &name).map_err(step(&name, what))
    }

    /// The MTU now.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn mtu(&self) -> Result<u32, Error> {
        self.control("read the MTU", |control, name| control.mtu(name))
    }

    /// Sets the MTU.
    ///
    /// # Errors
    /// [`Error::Option`], [`Error::Os`].
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        check_mtu(self.kind(), mtu)?;
        self.control("set the MTU", |control, name| control.set_mtu(name, mtu))
    }

    /// Packets that the kernel queues for each queue (`txqueuelen`). It drops what finds the queue
    /// full, see [`queue_drops`](Device::queue_drops).
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn queue_len(&self) -> Result<u32, Error> {
        self.control("read txqueuelen", |control, name| control.queue_len(name))
    }

    /// Sets how many packets the kernel queues for each queue. The default of the kernel, 500, is
    /// short: a sender without TSO fills it while the reader is not scheduled once.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn set_queue_len(&self, packets: u32) -> Result<(), Error> {
        self.control("set txqueuelen", |control, name| control.set_queue_len(name, packets))
    }

    /// Packets for user space that the kernel dropped because the queue was full; since the
    /// interface was made.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn queue_drops(&self) -> Result<u64, Error> {
        let link = self.link.as_ref().ok_or(io::ErrorKind::Unsupported.into());
        let counters = link.and_then(Link::statistics).map_err(self.step("read the counters"))?;
        Ok(counters.tx_dropped)
    }

    /// Whether the interface is up.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn is_up(&self) -> Result<bool, Error> {
        self.control("read the flags", |control, name| control.is_up(name))
    }

    /// Sets the interface up.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn set_up(&self) -> Result<(), Error> {
        self.control("set the interface up", |control, name| control.set_up(name))
    }

    /// Adds an address to the interface. An IPv4 address replaces the previous one.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn add_address(&self, address: std::net::IpAddr, prefix: u8) -> Result<(), Error> {
        self.control("add an address", |control, name| control.add_address(name, address, prefix))
    }

    /// Sets whether the device stays when its last descriptor is closed.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn set_persistent(&self, on: bool) -> Result<(), Error> {
        tun::set_persist(&self.file, on).map_err(self.step("TUNSETPERSIST"))
    }

    /// Announcements of the kernel that name, MTU, queue length or state of the interface changed.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn changes(&self) -> Result<Changes, Error> {
        let made = self.netns.run(|| Changes::new(self.index)).and_then(|made| made);
        made.map_err(self.step("listen for changes"))
    }
}

/// Without any offload there is no header either.
fn vnet_header(config: &Config) -> bool {
    !config.offloads.consistent().is_none()
}
