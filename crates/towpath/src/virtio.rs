//! Virtio network devices by their URIs: `virtio:user=/run/vhost.sock?queues=2,packed=on`,
//! `virtio:vfio=0000:03:00.0?policy=strict`, `virtio:model@tap:far`.
//!
//! The driver takes no URIs: this module turns options into its configuration.

use crate::any::AnyPort;
use crate::pci::{self, Driver, bus_error, rule};
use crate::port_wire::PortWire;
use std::time::Duration;
use towpath_bus::qtest::QtestBus;
use towpath_bus::vfio::{Bdf, VfioBus};
use towpath_bus::{BusError, Pci};
use towpath_model::virtio::{self as model, VirtioBus};
use towpath_model::wire::Loopback;
use towpath_nic::virtio::{
    Config, DEVICES, OpenError, PciConfig, PciTransport, Transport, UserConfig, UserTransport, VirtioNet,
};
use towpath_packet::port::{Calls, Needs, PathUse, Port, PortError};
use towpath_ports::kind::{Kind, PortOption};
use towpath_ports::uri::{Options, Uri};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "virtio",
    example: "virtio:user=/run/vhost.sock",
    what: "a virtio network device, driven from here: a vhost-user back end, a PCI function (vfio=BDF), or a model (model@PORT)",
    options: &[
        PortOption::new("server", "on|off", "off", "user=: listen, and the back end connects", "server=on"),
        PortOption::new("wait", "TIME", "10s", "user=: how long to wait for the back end", "wait=1s"),
        pci::BACKEND,
        pci::UNPROTECTED,
        pci::IOMMU,
        pci::SLOT,
        pci::MEMORY,
        PortOption::new("queues", "1–128", "1", "queue pairs", "queues=4"),
        PortOption::new("ring", "2^n, 16–4096", "256", "descriptors of a queue", "ring=1024"),
        PortOption::new("mtu", "BYTES, 68–9216", "1500", "longest packet without its Ethernet header", "mtu=9000"),
        pci::POLICY,
        pci::COPYBREAK,
        pci::MAC,
        pci::RECEIVE,
        pci::ADDRESSES,
        pci::GROUPS,
        pci::VLANS,
        PortOption::new("packed", "on|off", "off", "packed rings", "packed=on"),
        PortOption::new("mergeable", "on|off", "on", "a received packet may fill several buffers", "mergeable=off"),
        PortOption::new("indirect", "on|off", "on", "tables of descriptors", "indirect=off"),
        PortOption::new("event-idx", "on|off", "on", "request notifications by position", "event-idx=off"),
        PortOption::new("in-order", "on|off", "on", "the device uses buffers in order", "in-order=off"),
        PortOption::new("csum", "on|off", "on", "partial checksums", "csum=off"),
        PortOption::new("tso", "on|off", "on", "TCP super-packets", "tso=off"),
        PortOption::new("uso", "on|off", "on", "UDP super-packets", "uso=off"),
        PortOption::new("rss", "on|off", "on", "the device distributes flows to queues", "rss=off"),
        PortOption::new("interrupts", "on|off", "on", "an idle receiver waits for an interrupt", "interrupts=off"),
        PortOption::new(
            "stall",
            "TIME, 10ms–60s",
            "5s",
            "time that a frame may wait before the device is reset",
            "stall=1s",
        ),
    ],
};

/// The options of the driver, as they are taken.
const DRIVER: Driver<Config> = Driver { table: KIND.options, take: driver };

/// Where the device is.
pub(crate) enum DeviceChoice<'a> {
    /// A back end of vhost-user: its socket.
    User(&'a str),
    /// VFIO: a PCI function.
    Vfio(&'a str),
    /// QEMU's device: the qtest socket of a running machine.
    Qtest(&'a str),
    /// A model in this process.
    Model,
}

impl DeviceChoice<'_> {
    /// The device that the target of a URI names.
    pub(crate) fn of(uri: &Uri) -> Result<DeviceChoice<'_>, PortError> {
        match uri.target().split_once('=').unwrap_or((uri.target(), "")) {
            ("user", path) if !path.is_empty() => Ok(DeviceChoice::User(path)),
            ("vfio", function) => Ok(DeviceChoice::Vfio(function)),
            ("qtest", socket) if !socket.is_empty() => Ok(DeviceChoice::Qtest(socket)),
            ("model", "") => Ok(DeviceChoice::Model),
            _ => Err(uri.error(
                "say where the device is: virtio:user=SOCKET of a vhost-user back end, virtio:vfio=0000:03:00.0, \
                 virtio:qtest=SOCKET of a QEMU, or virtio:model",
            )),
        }
    }
}

/// The driver's configuration from a URI: no device is opened.
///
/// # Errors
/// [`PortError`] names the option, its value and the rule.
pub fn config_from_uri(uri: &Uri) -> Result<Config, PortError> {
    let (uri, _) = &pci::split(uri)?;
    match DeviceChoice::of(uri)? {
        DeviceChoice::User(path) => user_config(uri, path).map(|(_, config)| config),
        DeviceChoice::Vfio(function) => pci::vfio_config(uri, function, DRIVER).map(|(_, _, config)| config),
        DeviceChoice::Qtest(_) => pci::qtest_config(uri, DRIVER).map(|(_, _, config)| config),
        DeviceChoice::Model => pci::model_config(uri, DRIVER).map(|(_, config)| config),
    }
}

/// The back end, and the options of the driver.
fn user_config(uri: &Uri, path: &str) -> Result<(UserConfig, Config), PortError> {
    let mut options = uri.options(KIND.options);
    let server = options.switch("server")?.unwrap_or(false);
    let patience = options.duration("wait")?.unwrap_or(Duration::from_secs(10));
    let config = driver(&mut options)?;
    options.finish()?;
    Ok((UserConfig::new(path).server(server).patience(patience).pairs(config.queues), config))
}

/// Connects to a back end of vhost-user.
pub(crate) fn user(uri: &Uri, path: &str) -> Result<VirtioNet<UserTransport>, PortError> {
    let (back_end, config) = user_config(uri, path)?;
    let needs = Needs::none().calls([Calls::Sockets]);
    // A back end that comes again is accepted, or connected to.
    let needs = if back_end.server {
        needs.calls([Calls::Accept]).directory_of(&back_end.path, PathUse::Remove)
    } else {
        needs.calls([Calls::Connect])
    };
    let transport = UserTransport::open(back_end).map_err(|error| bus_error(uri, error))?;
    Ok(open(uri, transport, config)?.with_needs(needs))
}

/// Opens a PCI function that is bound to `vfio-pci`.
pub(crate) fn vfio(uri: &Uri, function: &str) -> Result<VirtioNet<PciTransport<VfioBus>>, PortError> {
    let (_, bus, config) = pci::vfio(uri, function, DRIVER)?;
    let transport = transport(bus, &config, config.interrupts).map_err(|error| bus_error(uri, error))?;
    Ok(open(uri, transport, config)?.with_needs(pci::vfio_needs()))
}

/// Stops a function as [`e1000e::stop`](crate::e1000e::stop) does.
///
/// # Errors
/// [`PortError`]: the function can't be opened, it is in use, or this driver does not support it.
pub fn stop(bdf: Bdf) -> Result<(), PortError> {
    let uri: Uri = format!("virtio:vfio={bdf}").parse()?;
    let bus = pci::vfio_to_stop(&uri, bdf)?;
    PciTransport::open(bus, PciConfig::new(1, false)).map(drop).map_err(|error| bus_error(&uri, error))
}

/// Opens a device of a running QEMU without a guest: the one in `slot`, or the first one.
pub(crate) fn qtest(uri: &Uri, socket: &str) -> Result<VirtioNet<PciTransport<QtestBus>>, PortError> {
    let none = "the machine has no network device of virtio: start it with -device virtio-net-pci,netdev=…";
    let (bus, config) = pci::qtest(uri, socket, &DEVICES, none, DRIVER)?;
    // Its interrupts can't be waited for.
    let transport = transport(bus, &config, false).map_err(|error| bus_error(uri, error))?;
    Ok(open(uri, transport, config)?.with_needs(pci::qtest_needs()))
}

/// Makes a model with a thread of its own, connected to `wire` or to a loopback plug.
pub(crate) fn model(uri: &Uri, wire: Option<AnyPort>) -> Result<VirtioNet<PciTransport<VirtioBus>>, PortError> {
    let (iommu, config) = pci::model_config(uri, DRIVER)?;
    let pairs = config.queues;
    let device = model::Config::default().name(uri.short()).iommu(iommu).pairs(pairs).threaded(true);
    let needs = wire.as_ref().map(AnyPort::needs).unwrap_or_default();
    let bus = match wire {
        None => model::launch(device, Loopback::default()),
        Some(port) => model::launch(device, PortWire::new(port)?),
    };
    let transport = bus.and_then(|bus| transport(bus, &config, config.interrupts));
    Ok(open(uri, transport.map_err(|error| bus_error(uri, error))?, config)?.with_needs(needs))
}

fn transport<B: Pci>(bus: B, config: &Config, interrupts: bool) -> Result<PciTransport<B>, BusError> {
    PciTransport::open(bus, PciConfig::new(config.queues, interrupts))
}

fn open<T: Transport>(uri: &Uri, transport: T, config: Config) -> Result<VirtioNet<T>, PortError> {
    VirtioNet::open(transport, &uri.short(), config).map_err(|error: OpenError| error.at_port(&uri.short()))
}

/// The options of the driver.
fn driver(options: &mut Options) -> Result<Config, PortError> {
    let mut config = Config::default();
    config.filter = pci::filter(options)?;
    let number = |options: &mut Options, name: &'static str, default: u16| {
        options.number(name, 0..=u16::MAX.into()).map(|n| n.map_or(default, |n| n as u16))
    };
    config.copybreak = pci::copybreak(options)?;
    config.queues = number(options, "queues", config.queues)?;
    config.ring = number(options, "ring", config.ring)?;
    config.mtu = number(options, "mtu", config.mtu)?;
    for (name, value) in [
        ("packed", &mut config.packed),
        ("mergeable", &mut config.mergeable),
        ("indirect", &mut config.indirect),
        ("event-idx", &mut config.event_idx),
        ("in-order", &mut config.in_order),
        ("csum", &mut config.csum),
        ("tso", &mut config.tso),
        ("uso", &mut config.uso),
        ("rss", &mut config.rss),
        ("interrupts", &mut config.interrupts),
    ] {
        *value = options.switch(name)?.unwrap_or(*value);
    }
    config.policy = pci::dma_policy(options)?.unwrap_or(config.policy);
    config.stall = options.duration("stall")?.unwrap_or(config.stall);
    config.check().map_err(|error| rule(options, error))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_nic::virtio::{Copybreak, Receive};

    fn config(text: &str) -> Result<Config, PortError> {
        config_from_uri(&text.parse().unwrap())
    }

    #[test]
    fn every_option_reaches_its_field() {
        let text = "virtio:user=/run/s?queues=2,ring=512,packed=on,mergeable=off,indirect=off,event-idx=off,\
                    in-order=off,csum=off,tso=off,uso=off,rss=off,copybreak=300,mtu=9000,receive=own,interrupts=off,stall=50ms,server=on,wait=1s";
        let mut expected = Config::default();
        (expected.queues, expected.ring, expected.mtu) = (2, 512, 9000);
        expected.packed = true;
        (expected.mergeable, expected.indirect, expected.event_idx, expected.in_order) = (false, false, false, false);
        (expected.csum, expected.tso, expected.uso, expected.rss) = (false, false, false, false);
        expected.interrupts = false;
        expected.copybreak = Some(Copybreak::new(300).unwrap());
        expected.filter.receive = Receive::Own;
        expected.stall = Duration::from_millis(50);
        assert_eq!(config(text).unwrap(), expected);
    }

    #[test]
    fn a_value_that_breaks_a_rule_is_named_with_the_rule() {
        let cases = [
            ("virtio:eth0", "virtio:user=SOCKET"),
            ("virtio:vfio=eth0", "vfio=eth0"),
            ("virtio:qtest=/s?backend=auto", "no such option"),
            ("virtio:user=/s?ring=300", "power of two"),
            ("virtio:user=/s?queues=0", "from 1 to 128"),
            ("virtio:user=/s?copybreak=99999", "from 0 to 16384"),
            ("virtio:user=/s?policy=lazy", "persistent, strict, deferred"),
            ("virtio:user=/s?speed=10", "no such option"),
            ("virtio:user=/s@tap:far", "virtio:model@tap:far"),
            ("virtio:user=/s?iommu=off", "no such option"),
        ];
        for (text, part) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
