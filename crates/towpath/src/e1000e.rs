//! Network devices by their URIs: `e1000e:vfio=0000:03:00.0?copybreak=2048,policy=strict`,
//! `e1000e:model@tap:far`.
//!
//! The drivers take no URIs: this module turns options into the configuration of a driver.

use crate::any::AnyPort;
use crate::pci::{self, Driver, bus_error, rule};
use crate::port_wire::PortWire;
use towpath_bus::qtest::QtestBus;
use towpath_bus::vfio::{self, Bdf, VfioBus};
use towpath_bus::{BusError, IrqKind, Pci};
use towpath_model::e1000e::{self as model, ModelBus};
use towpath_model::wire::Loopback;
use towpath_nic::batching::BatchSize;
use towpath_nic::e1000e::{Config, DEVICES, E1000e, FlowControl, InterruptMode, RingSize, TxCopybreak};
use towpath_packet::port::{Ability, Port, PortError};
use towpath_ports::kind::{Kind, PortOption};
use towpath_ports::uri::{Options, Uri};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "e1000e",
    example: "e1000e:vfio=0000:03:00.0",
    what: "an Intel 82574 or 82583, driven from here; e1000e:model@PORT is a model whose wire is PORT",
    options: &[
        pci::BACKEND,
        pci::UNPROTECTED,
        pci::IOMMU,
        pci::SLOT,
        pci::MEMORY,
        PortOption::new("queues", "1–2", "1", "queues in each direction", "queues=2"),
        PortOption::new("rx", "80–4096, by 8", "512", "descriptors of a receive queue", "rx=1024"),
        PortOption::new("tx", "80–4096, by 8", "512", "descriptors of a transmit queue", "tx=1024"),
        PortOption::new("mtu", "BYTES, 68–9216", "1500", "longest packet without its Ethernet header", "mtu=9000"),
        pci::POLICY,
        pci::COPYBREAK,
        PortOption::new(
            "tx-copybreak",
            "BYTES",
            "by the policy",
            "sent frames up to this length are copied",
            "tx-copybreak=256",
        ),
        pci::MAC,
        pci::RECEIVE,
        pci::ADDRESSES,
        pci::GROUPS,
        pci::VLANS,
        pci::BATCH,
        PortOption::new("rs", "FRAMES, 1–64", "32", "frames for which the device writes back one status", "rs=8"),
        PortOption::new(
            "interrupts",
            "on|off|msix|msi|intx",
            "off",
            "how an idle receiver learns of frames",
            "interrupts=on",
        ),
        PortOption::new("csum", "on|off", "on", "the device checks and completes checksums", "csum=off"),
        PortOption::new("tso", "on|off", "on", "the device segments TCP super-packets", "tso=off"),
        PortOption::new("vlan", "on|off", "on", "the device strips and inserts VLAN tags", "vlan=off"),
        pci::PAUSE,
        PortOption::new(
            "stall",
            "TIME, 10ms–60s",
            "1s",
            "time that a frame may wait before the device is reset",
            "stall=500ms",
        ),
    ],
};

/// The options of the driver, as they are taken.
const DRIVER: Driver<Config> = Driver { table: KIND.options, take: e1000e };

/// The bus that a driver uses.
pub(crate) enum BusChoice<'a> {
    /// VFIO: a PCI function.
    Vfio(&'a str),
    /// QEMU's device: the qtest socket of a running machine.
    Qtest(&'a str),
    /// A model in this process.
    Model,
}

impl BusChoice<'_> {
    /// The bus that the target of a URI names.
    pub(crate) fn of(uri: &Uri) -> Result<BusChoice<'_>, PortError> {
        match uri.target().split_once('=').unwrap_or((uri.target(), "")) {
            ("vfio", function) => Ok(BusChoice::Vfio(function)),
            ("qtest", socket) if !socket.is_empty() => Ok(BusChoice::Qtest(socket)),
            ("model", "") => Ok(BusChoice::Model),
            _ => Err(uri.error(
                "say where the device is: e1000e:vfio=0000:03:00.0, e1000e:qtest=SOCKET of a QEMU, or e1000e:model",
            )),
        }
    }
}

/// The driver's configuration from a URI, and the URI of a model's wire: no device is opened.
///
/// # Errors
/// [`PortError::Input`] names the option, its value and the rule.
pub fn config_from_uri(uri: &Uri) -> Result<(Config, Option<Uri>), PortError> {
    let (device, wire) = pci::split(uri)?;
    let config = match BusChoice::of(&device)? {
        BusChoice::Vfio(function) => pci::vfio_config(&device, function, DRIVER)?.2,
        BusChoice::Qtest(_) => pci::qtest_config(&device, DRIVER)?.2,
        BusChoice::Model => pci::model_config(&device, DRIVER)?.1,
    };
    Ok((config, wire))
}

/// Opens a PCI function that is bound to `vfio-pci`.
pub(crate) fn vfio(uri: &Uri, function: &str) -> Result<E1000e<VfioBus>, PortError> {
    let (address, bus, config) = pci::vfio(uri, function, DRIVER)?;
    let port = open(uri, bus, config)?.with_needs(pci::vfio_needs());
    Ok(match vfio::aspm(address) {
        Some(aspm) => {
            let hint = (!aspm.is_off()).then(|| format!("towpath bind {address}, or: {}", aspm.hint()));
            port.with_ability(Ability::new("no-aspm", aspm.is_off(), aspm.to_string()).with_hint(hint))
        }
        None => port,
    })
}

/// Stops a function that is bound to `vfio-pci` and that nothing drives; call it before
/// [`vfio::unbind`]. A process that was killed leaves its device receiving into the addresses of a
/// memory that is gone, and the next driver may let it reach memory before it resets it, as Linux's
/// `e1000_probe` does.
///
/// # Errors
/// [`PortError`]: the function can't be opened, it is in use, or this driver does not support it.
pub fn stop(bdf: Bdf) -> Result<(), PortError> {
    let uri: Uri = format!("e1000e:vfio={bdf}").parse()?;
    let bus = pci::vfio_to_stop(&uri, bdf)?;
    open(&uri, bus, Config::default()).map(drop)
}

/// Opens a device of a running QEMU without a guest: the one in `slot`, or the first supported one.
pub(crate) fn qtest(uri: &Uri, socket: &str) -> Result<E1000e<QtestBus>, PortError> {
    let (bus, config) = qtest_bus(uri, socket)?;
    Ok(open(uri, bus, config)?.with_needs(pci::qtest_needs()))
}

fn qtest_bus(uri: &Uri, socket: &str) -> Result<(QtestBus, Config), PortError> {
    let none = "the machine has no e1000e: start it with -device e1000e,netdev=…";
    pci::qtest(uri, socket, &DEVICES, none, DRIVER)
}

/// Makes a model with a thread of its own, connected to `wire` or to a loopback plug.
pub(crate) fn model(uri: &Uri, wire: Option<AnyPort>) -> Result<E1000e<ModelBus>, PortError> {
    let (iommu, config) = pci::model_config(uri, DRIVER)?;
    let device = model::Config::default().name(uri.short()).iommu(iommu).threaded(true);
    let needs = wire.as_ref().map(AnyPort::needs).unwrap_or_default();
    let bus = match wire {
        None => model::launch(device, Loopback::default()),
        Some(port) => model::launch(device, PortWire::new(port)?),
    };
    let port = open(uri, bus.map_err(|error| bus_error(uri, error))?, config)?;
    Ok(port.with_needs(needs))
}

fn open<B: Pci>(uri: &Uri, bus: B, config: Config) -> Result<E1000e<B>, PortError> {
    E1000e::open(bus, &uri.short(), config).map_err(|error| error.at_port(uri.as_str()))
}

/// The registers of the device that a URI names, as they are found: no driver has used it since it
/// was opened by its bus.
///
/// # Errors
/// [`PortError`] if the bus can't be opened, or if an option breaks a rule.
pub fn registers(uri: &Uri) -> Result<Vec<(&'static str, u64)>, PortError> {
    let (device, _) = pci::split(uri)?;
    let failed = |error| bus_error(&device, error);
    match BusChoice::of(&device)? {
        BusChoice::Vfio(function) => read_registers(&pci::vfio(&device, function, DRIVER)?.1),
        BusChoice::Qtest(socket) => read_registers(&qtest_bus(&device, socket)?.0),
        BusChoice::Model => {
            let (iommu, _) = pci::model_config(&device, DRIVER)?;
            let model = model::Config::default().name(device.short()).iommu(iommu).threaded(true);
            read_registers(&model::launch(model, Loopback::default()).map_err(failed)?)
        }
    }
    .map_err(failed)
}

fn read_registers<B: Pci>(bus: &B) -> Result<Vec<(&'static str, u64)>, BusError> {
    let bar = bus.bar(0, 128 << 10)?;
    // Registers are decoded, and memory is not accessed.
    bus.set_master(false);
    Ok(towpath_nic::e1000e::registers(&bar))
}

/// The options of the driver.
fn e1000e(options: &mut Options) -> Result<Config, PortError> {
    let mut config = Config::default();
    let ring =
        |options: &mut Options, name: &'static str, default: RingSize| match options.number(name, 0..=u64::MAX)? {
            None => Ok(default),
            Some(n) => RingSize::new(name, n).map_err(|error| rule(options, error)),
        };
    config.copybreak = pci::copybreak(options)?;
    if let Some(bytes) = options.number("tx-copybreak", 0..=u64::MAX)? {
        config.tx_copybreak = Some(TxCopybreak::new(bytes).map_err(|error| rule(options, error))?);
    }
    config.filter = pci::filter(options)?;
    config.rx_ring = ring(options, "rx", config.rx_ring)?;
    config.tx_ring = ring(options, "tx", config.tx_ring)?;
    config.queues = options.number("queues", 1..=2)?.map_or(config.queues, |n| n as u16);
    config.mtu = options.number("mtu", 68..=9216)?.map_or(config.mtu, |n| n as u16);
    config.policy = pci::dma_policy(options)?.unwrap_or(config.policy);
    config.batch = options.number("batch", 1..=127)?.and_then(|n| BatchSize::new(n as u8)).unwrap_or(config.batch);
    config.report_every = options.number("rs", 1..=64)?.map_or(config.report_every, |n| n as u16);
    let kinds = [
        ("off", InterruptMode::Off),
        ("on", InterruptMode::Auto),
        ("msix", InterruptMode::Only(IrqKind::MsiX)),
        ("msi", InterruptMode::Only(IrqKind::Msi)),
        ("intx", InterruptMode::Only(IrqKind::Intx)),
    ];
    config.interrupts = options.choice("interrupts", &kinds)?.unwrap_or(config.interrupts);
    config.csum = options.switch("csum")?.unwrap_or(config.csum);
    config.tso = options.switch("tso")?.unwrap_or(config.tso);
    config.vlan = options.switch("vlan")?.unwrap_or(config.vlan);
    let pauses =
        [("full", FlowControl::Full), ("rx", FlowControl::Rx), ("tx", FlowControl::Tx), ("off", FlowControl::Off)];
    config.flow_control = options.choice("pause", &pauses)?.unwrap_or(config.flow_control);
    config.stall = options.duration("stall")?.unwrap_or(config.stall);
    config.check().map_err(|error| rule(options, error))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use towpath_bus::{DmaPolicy, Flush};
    use towpath_nic::e1000e::{Copybreak, Receive};

    fn config(text: &str) -> Result<Config, PortError> {
        config_from_uri(&text.parse().unwrap()).map(|(config, _)| config)
    }

    #[test]
    fn every_option_reaches_its_field() {
        let text = "e1000e:vfio=3:0.0?rx=128,tx=256,queues=2,mtu=9000,policy=strict,copybreak=512,tx-copybreak=300,receive=own,batch=16,rs=8,\
                    mac=02:00:00:00:00:0a,addresses=02:00:00:00:00:01,groups=01:00:5e:00:00:fb,vlans=7,interrupts=on,csum=on,tso=off,vlan=off,pause=rx,stall=50ms";
        let mut expected = Config::default();
        expected.rx_ring = RingSize::new("rx", 128).unwrap();
        expected.tx_ring = RingSize::new("tx", 256).unwrap();
        expected.queues = 2;
        expected.mtu = 9000;
        expected.policy = DmaPolicy::PerBuffer { flush: Flush::Strict };
        expected.copybreak = Some(Copybreak::new(512).unwrap());
        expected.tx_copybreak = Some(TxCopybreak::new(300).unwrap());
        expected.filter.receive = Receive::Own;
        expected.filter.mac = Some([2, 0, 0, 0, 0, 10]);
        expected.filter.addresses = vec![[2, 0, 0, 0, 0, 1]];
        expected.filter.groups = vec![[1, 0, 0x5e, 0, 0, 0xfb]];
        expected.filter.vlans = Some("7".parse().unwrap());
        expected.batch = BatchSize::new(16).unwrap();
        expected.report_every = 8;
        expected.interrupts = InterruptMode::Auto;
        expected.csum = true;
        expected.tso = false;
        expected.vlan = false;
        expected.flow_control = FlowControl::Rx;
        expected.stall = Duration::from_millis(50);
        assert_eq!(config(text).unwrap(), expected);
    }

    #[test]
    fn a_value_that_breaks_a_rule_is_named_with_the_rule() {
        let cases = [
            ("e1000e:vfio=3:0.0?rx=84", "multiple of 8"),
            ("e1000e:vfio=3:0.0?tx=5000", "from 80 to 4096"),
            ("e1000e:vfio=3:0.0?copybreak=99999", "from 0 to 16384"),
            ("e1000e:vfio=3:0.0?tx-copybreak=2049", "from 0 to 2048"),
            ("e1000e:vfio=3:0.0?policy=lazy", "persistent, strict, deferred"),
            ("e1000e:vfio=3:0.0?receive=some", "all, multicast, own"),
            ("e1000e:vfio=3:0.0?vlans=7", "receive=own or receive=multicast first"),
            ("e1000e:vfio=3:0.0?mac=01:00:5e:00:00:01", "unicast"),
            ("e1000e:vfio=3:0.0?stall=1ms", "from 10 to 60000"),
            ("e1000e:vfio=3:0.0?pause=on", "full, rx, tx, off"),
            ("e1000e:vfio=3:0.0?speed=10", "no such option"),
        ];
        for (text, part) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_wire_of_a_model_is_returned_and_other_devices_have_none() {
        let (config, wire) = config_from_uri(&"e1000e:model?queues=2,iommu=off@tap:far".parse().unwrap()).unwrap();
        assert_eq!((config.queues, wire.unwrap().as_str()), (2, "tap:far"));
        for text in ["e1000e:vfio=3:0.0@tap:far", "e1000e:model?memory=/x", "e1000e:qtest=/s?backend=auto"] {
            assert!(self::config(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_error_for_an_address_without_a_device_shows_how_to_name_one() {
        let uri: Uri = "e1000e:eth0".parse().unwrap();
        let error = BusChoice::of(&uri).err().unwrap().to_string();
        assert!(error.contains("e1000e:vfio=0000:03:00.0"), "{error}");
        let uri: Uri = "e1000e:vfio=eth0".parse().unwrap();
        let error = vfio(&uri, "eth0").unwrap_err().to_string();
        assert!(error.contains("vfio=eth0"), "{error}");
    }
}
