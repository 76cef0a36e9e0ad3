//! PCI functions by their URIs: what the drivers share, which are the bus and its options, and
//! options that several drivers have.

use std::path::Path;
use towpath_bus::qtest::{Qemu, QtestBus};
use towpath_bus::vfio::{Backend, Bdf, VfioBus, VfioConfig};
use towpath_bus::{BusError, DmaPolicy, Flush};
use towpath_model::iommu;
use towpath_nic::e1000e::{ConfigError, Copybreak, Filter};
use towpath_packet::port::{Calls, Capability, Needs, PortError};
use towpath_ports::kind::PortOption;
use towpath_ports::uri::{Options, Uri};

// Options that several drivers have.
pub(crate) const BACKEND: PortOption =
    PortOption::new("backend", "auto|group|iommufd", "auto", "vfio=: the interface of VFIO", "backend=group");
pub(crate) const UNPROTECTED: PortOption = PortOption::new(
    "unprotected",
    "on|off",
    "off",
    "vfio=: also without an IOMMU (a device can write anywhere)",
    "unprotected=on",
);
pub(crate) const IOMMU: PortOption =
    PortOption::new("iommu", "on|off", "on", "model: put an IOMMU in front of it", "iommu=off");
pub(crate) const SLOT: PortOption =
    PortOption::new("slot", "0–31", "the first that fits", "qtest=: slot of QEMU's device", "slot=3");
pub(crate) const MEMORY: PortOption =
    PortOption::new("memory", "FILE", "found by itself", "qtest=: file of the machine's memory", "memory=/dev/shm/vm0");
pub(crate) const POLICY: PortOption = PortOption::new(
    "policy",
    "persistent|strict|deferred",
    "persistent",
    "how packet memory is protected from the device: mapped for good, or for each packet",
    "policy=strict",
);
pub(crate) const COPYBREAK: PortOption = PortOption::new(
    "copybreak",
    "BYTES, 0–16384",
    "by the policy",
    "received frames up to this length are copied",
    "copybreak=256",
);
pub(crate) const MAC: PortOption =
    PortOption::new("mac", "MAC|device", "device", "the port's address", "mac=02:00:00:00:00:01");
pub(crate) const RECEIVE: PortOption =
    PortOption::new("receive", "all|multicast|own", "all", "destinations that are received", "receive=own");
pub(crate) const ADDRESSES: PortOption = PortOption::new(
    "addresses",
    "MAC, several with +; none",
    "none",
    "unicast addresses besides the port's own",
    "addresses=02:00:00:00:00:02",
);
pub(crate) const GROUPS: PortOption =
    PortOption::new("groups", "MAC, several with +; none", "none", "multicast groups", "groups=01:00:5e:00:00:fb");
pub(crate) const VLANS: PortOption = PortOption::new(
    "vlans",
    "IDS with +; all, none",
    "all",
    "VLANs besides untagged frames",
    "receive=own,vlans=10+100-199",
);
pub(crate) const PAUSE: PortOption =
    PortOption::new("pause", "full|rx|tx|off", "full", "pause frames that are offered to the partner", "pause=rx");
pub(crate) const BATCH: PortOption = PortOption::new(
    "batch",
    "FRAMES, 1–127",
    "64; cpsw: 32",
    "frames that one write of a tail or doorbell announces",
    "batch=16",
);

/// The options of a driver: their table, and what takes those that are not of the bus.
pub(crate) struct Driver<C> {
    pub(crate) table: &'static [PortOption],
    pub(crate) take: fn(&mut Options) -> Result<C, PortError>,
}

/// The address of a function behind VFIO, the options of the bus, and those of the driver.
pub(crate) fn vfio_config<C>(uri: &Uri, function: &str, driver: Driver<C>) -> Result<(Bdf, VfioConfig, C), PortError> {
    let mut options = uri.options(driver.table);
    let backends = [("auto", Backend::Auto), ("group", Backend::Group), ("iommufd", Backend::Iommufd)];
    let bus = VfioConfig::default().backend(options.choice("backend", &backends)?.unwrap_or_default());
    // SAFETY: the drivers give the device only addresses that were mapped for it.
    let bus = unsafe { bus.unprotected(options.switch("unprotected")?.unwrap_or(false)) };
    let config = (driver.take)(&mut options)?;
    options.finish()?;
    let address = function.parse().map_err(|error| uri.error(format!("vfio={function}: {error}")))?;
    Ok((address, bus, config))
}

/// The IOMMU of a model, and the options of the driver.
pub(crate) fn model_config<C>(uri: &Uri, driver: Driver<C>) -> Result<(iommu::Config, C), PortError> {
    let mut options = uri.options(driver.table);
    let iommu = if options.switch("iommu")?.unwrap_or(true) { iommu::Config::default() } else { iommu::Config::off() };
    let config = (driver.take)(&mut options)?;
    options.finish()?;
    Ok((iommu, config))
}

/// Splits the URI of a device from the URI of its wire, if there is one:
/// `e1000e:model?policy=strict@tap:far`.
pub(crate) fn split(uri: &Uri) -> Result<(Uri, Option<Uri>), PortError> {
    let model = format!("{}:model", uri.scheme());
    match uri.as_str().split_once('@') {
        None => Ok((uri.clone(), None)),
        Some((device, wire)) if device.split('?').next() == Some(&model) => Ok((device.parse()?, Some(wire.parse()?))),
        Some(_) => Err(uri.error(format!("only a model's wire can be chosen: {model}@tap:far"))),
    }
}

/// Opens a function that is bound to `vfio-pci`.
pub(crate) fn vfio<C>(uri: &Uri, function: &str, driver: Driver<C>) -> Result<(Bdf, VfioBus, C), PortError> {
    let (address, bus, config) = vfio_config(uri, function, driver)?;
    let bus = VfioBus::open(address, &bus).map_err(|error| bus_error(uri, error))?;
    Ok((address, bus, config))
}

/// What VFIO needs of the kernel while a port runs. Memory is mapped for the device: it counts as
/// locked.
pub(crate) fn vfio_needs() -> Needs {
    Needs::none().calls([Calls::Vfio]).capability(Capability::IpcLock)
}

/// Opens a function that is only reset.
pub(crate) fn vfio_to_stop(uri: &Uri, bdf: Bdf) -> Result<VfioBus, PortError> {
    // SAFETY: the device gets no address at all: it is reset and closed.
    let bus = unsafe { VfioConfig::default().unprotected(true) };
    VfioBus::open(bdf, &bus).map_err(|error| bus_error(uri, error))
}

/// The slot of QEMU's device, the file of the machine's memory, and the options of the driver.
pub(crate) fn qtest_config<C>(uri: &Uri, driver: Driver<C>) -> Result<(Option<u8>, Option<String>, C), PortError> {
    let mut options = uri.options(driver.table);
    let slot = options.number("slot", 0..=31)?.map(|slot| slot as u8);
    let memory = options.text("memory");
    let config = (driver.take)(&mut options)?;
    options.finish()?;
    Ok((slot, memory, config))
}

/// Opens a device of a running QEMU without a guest: the one in `slot`, or the first one of these
/// `devices`. `none` is the error if it has none of them.
pub(crate) fn qtest<C>(
    uri: &Uri,
    socket: &str,
    devices: &[u32],
    none: &str,
    driver: Driver<C>,
) -> Result<(QtestBus, C), PortError> {
    let (slot, memory, config) = qtest_config(uri, driver)?;
    let failed = |error| bus_error(uri, error);
    let qemu = Qemu::attach(Path::new(socket), memory.as_deref().map(Path::new)).map_err(failed)?;
    let known = |&(slot, id): &(u8, u32)| devices.contains(&id).then_some(slot);
    let slot = slot.or_else(|| qemu.devices().iter().find_map(known)).ok_or_else(|| uri.error(none))?;
    Ok((qemu.open(slot).map_err(failed)?, config))
}

/// What QEMU's devices need of the kernel while a port runs. Memory is found in `/proc/self/maps`,
/// which stays open.
pub(crate) fn qtest_needs() -> Needs {
    Needs::none().calls([Calls::Sockets, Calls::Files])
}

/// Converts an error of the bus to one of the port.
pub(crate) fn bus_error(uri: &Uri, error: BusError) -> PortError {
    match error {
        BusError::Os { step, source, hint, .. } => PortError::Os { port: uri.short(), step, source, hint },
        other => uri.error(other.to_string()),
    }
}

/// The rule that the value of an option breaks, as an error of the port.
pub(crate) fn rule(options: &Options, error: ConfigError) -> PortError {
    options.error(error.option, error.value, error.rule)
}

/// The DMA policy.
pub(crate) fn dma_policy(options: &mut Options) -> Result<Option<DmaPolicy>, PortError> {
    let policies = [
        ("persistent", DmaPolicy::Persistent),
        ("strict", DmaPolicy::PerBuffer { flush: Flush::Strict }),
        ("deferred", DmaPolicy::PerBuffer { flush: Flush::Deferred }),
    ];
    options.choice("policy", &policies)
}

/// The received frames that are copied.
pub(crate) fn copybreak(options: &mut Options) -> Result<Option<Copybreak>, PortError> {
    let Some(bytes) = options.number("copybreak", 0..=u64::MAX)? else { return Ok(None) };
    Copybreak::new(bytes).map(Some).map_err(|error| rule(options, error))
}

/// Which frames are received.
pub(crate) fn filter(options: &mut Options) -> Result<Filter, PortError> {
    let mut filter = Filter::default();
    for (name, _) in Filter::OPTIONS {
        if let Some(value) = options.text(name) {
            filter.set(name, &value).map_err(|error| rule(options, error))?;
        }
    }
    Ok(filter)
}
