//! Binds a device to `vfio-pci` in place of the kernel's driver, and back.
//!
//! ```text
//!   bind     save the driver in /run/towpath/bound ─► driver_override = vfio-pci ─► unbind
//!            ─► drivers_probe ─► check ─► switch ASPM off, where an erratum asks for it
//!            └── on any failure: restore the override and the previous driver
//!   unbind   restore ASPM ─► unbind from vfio-pci ─► restore driver_override ─► the previous driver, or any that
//!            matches ─► check
//! ```
//!
//! Only a network device that has a driver here is bound, unless that is forced: a disk controller
//! that loses its driver takes the system with it.
//!
//! A device is not unbound while its interface carries addresses or is part of a bridge or a bond,
//! unless that is forced. Nor is it unbound from `vfio-pci` while a process has it open: the kernel
//! waits for that process.
//!
//! Source: Linux [`sysfs-bus-pci`].
//!
//! [`sysfs-bus-pci`]: https://docs.kernel.org/admin-guide/abi-testing.html

use super::aspm::{self, Aspm};
use super::bdf::Bdf;
use super::host::{self, Host, device};
use super::identity::Identity;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VFIO: &str = "vfio-pci";

/// Why a device was not bound or unbound. It has its previous driver, unless the variant says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The device does not exist.
    #[error("{0}: there is no such device")]
    NoDevice(Bdf),
    /// No driver of this program works the device.
    #[error("{bdf}: it is {identity}, with {}, and no driver here works it: {}; --force binds it all the same",
        .driver.as_deref().map_or("no driver".to_owned(), |driver| format!("the kernel's driver {driver}")), .hint)]
    Unknown {
        /// The device.
        bdf: Bdf,
        /// What it is.
        identity: Identity,
        /// Its driver.
        driver: Option<String>,
        /// What to do instead.
        hint: String,
    },
    /// `vfio-pci` is not loaded and cannot be loaded.
    #[error("{0}: the module vfio-pci is not loaded, and could not be: modprobe vfio-pci")]
    NoModule(Bdf),
    /// The device's interface is in use.
    #[error("{bdf}: its interface {interface} is in use ({why}): take it down first, or force it")]
    InterfaceInUse {
        /// The device.
        bdf: Bdf,
        /// The interface.
        interface: String,
        /// The use: an address, a bridge.
        why: String,
    },
    /// A process has the device open.
    #[error("{bdf}: process {} has it open: end it first, or force it (--force)", .pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    InUse {
        /// The device.
        bdf: Bdf,
        /// The processes.
        pids: Vec<u32>,
    },
    /// The device is not bound to `vfio-pci`.
    #[error("{bdf}: vfio-pci does not have it, but {}", .driver.as_deref().unwrap_or("no driver"))]
    NotBound {
        /// The device.
        bdf: Bdf,
        /// Its driver.
        driver: Option<String>,
    },
    /// The kernel refused a step.
    #[error("{bdf}: {step}: {source}")]
    Step {
        /// The device.
        bdf: Bdf,
        /// The step.
        step: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// All steps succeeded, but the device has the wrong driver.
    #[error("{bdf}: {} has it, not {wanted}: see dmesg", .has.as_deref().unwrap_or("no driver"))]
    WrongDriver {
        /// The device.
        bdf: Bdf,
        /// Its driver.
        has: Option<String>,
        /// The expected driver.
        wanted: String,
    },
}

/// The result of [`bind`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bound {
    /// The device.
    pub bdf: Bdf,
    /// The previous driver.
    pub from: Option<String>,
    /// Whether the device was bound to `vfio-pci` before.
    pub already: bool,
    /// Power management of its link as it was before it was switched off; `None` if it was off, or
    /// may stay on.
    pub aspm: Option<Aspm>,
}

/// The result of [`unbind`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unbound {
    /// The device.
    pub bdf: Bdf,
    /// The driver that it has now.
    pub to: Option<String>,
    /// Its interfaces that exist already.
    pub interfaces: Vec<String>,
}

/// Binds a device to `vfio-pci` and loads that module if needed. It is a network device, and its
/// ID is among `known`, the first words of the configuration spaces of devices that have a driver
/// here: `DEVICES` of `towpath_nic::e1000e` and `towpath_nic::virtio`. With `force`, it may be any
/// function, and its interface may be in use.
///
/// # Errors
/// [`BindError`]. The previous driver is bound again.
pub fn bind(bdf: Bdf, known: &[u32], force: bool) -> Result<Bound, BindError> {
    bind_on(&mut Host::this(), bdf, known, force)
}

/// Unbinds a device from `vfio-pci`: back to the driver that it had before [`bind`], otherwise to
/// any that matches; to none if it had none. With `force`, also while a process has the device
/// open: the kernel asks it to close the device, and the call waits until it has. A running port of
/// towpath does so at once.
///
/// # Errors
/// [`BindError`]: [`BindError::InUse`] while a process has the device open, without `force`.
pub fn unbind(bdf: Bdf, force: bool) -> Result<Unbound, BindError> {
    unbind_on(&mut Host::this(), bdf, force)
}

/// The writes to the kernel, so that tests can replace them.
pub(super) trait Kernel {
    fn host(&self) -> &Host;
    /// Writes to a file of `/sys`.
    fn write(&mut self, path: &str, text: &str) -> io::Result<()>;
    /// Writes two bytes of a function's configuration space.
    fn write_config(&mut self, bdf: Bdf, at: usize, value: u16) -> io::Result<()>;
    /// Why an interface must stay up.
    fn in_use(&self, interface: &str) -> Option<String>;
    fn load_module(&mut self);
}

impl Kernel for Host {
    fn host(&self) -> &Host {
        self
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        Host::write(self, path, text)
    }

    fn write_config(&mut self, bdf: Bdf, at: usize, value: u16) -> io::Result<()> {
        Host::write_config(self, bdf, at, value)
    }

    fn in_use(&self, interface: &str) -> Option<String> {
        let master = self.link(&format!("sys/class/net/{interface}/master")).map(|m| format!("part of {m}"));
        master.or_else(|| host::addresses(interface).first().map(|address| format!("it has the address {address}")))
    }

    fn load_module(&mut self) {
        if let Some(program) = module_loader(self) {
            // What counts is whether the driver is there afterwards.
            let _ = load_vfio(&program).status();
        }
    }
}

/// The program by which the kernel loads modules, an absolute path; `None` if the administrator has
/// disabled that.
///
/// Source: `kernel.modprobe` in the kernel's [sysctl documentation].
///
/// [sysctl documentation]: https://docs.kernel.org/admin-guide/sysctl/kernel.html#modprobe
fn module_loader(host: &Host) -> Option<PathBuf> {
    let program = host.read("proc/sys/kernel/modprobe").unwrap_or_else(|| "/sbin/modprobe".to_owned());
    Some(PathBuf::from(program)).filter(|program| program.is_absolute())
}

/// Loads `vfio-pci`, with the environment that the kernel gives to its loader and nothing of ours.
fn load_vfio(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-q", "--", VFIO]).current_dir("/").env_clear();
    command.envs([("HOME", "/"), ("PATH", "/sbin:/usr/sbin:/bin:/usr/bin"), ("TERM", "linux")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The driver of a device before it was bound, saved meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PreviousDriver {
    driver: Option<String>,
    /// Its `driver_override`.
    driver_override: Option<String>,
    /// Power management of its link, if it was switched off.
    aspm: Option<Aspm>,
}

impl PreviousDriver {
    fn of(host: &Host, bdf: Bdf) -> PreviousDriver {
        let driver_override = host.read(&device(bdf, "driver_override"));
        let driver_override = driver_override.filter(|driver| !driver.is_empty() && driver != "(null)");
        PreviousDriver { driver: host.driver(bdf), driver_override, aspm: None }
    }

    fn file(host: &Host, bdf: Bdf) -> PathBuf {
        host.path(&format!("run/towpath/bound/{bdf}"))
    }

    /// Three lines; an empty one for `None`.
    fn save(&self, host: &Host, bdf: Bdf) -> io::Result<()> {
        let file = PreviousDriver::file(host, bdf);
        std::fs::create_dir_all(file.with_file_name(""))?;
        let line = |text: &Option<String>| text.clone().unwrap_or_default();
        let aspm = line(&self.aspm.as_ref().map(Aspm::line));
        std::fs::write(file, format!("{}\n{}\n{aspm}\n", line(&self.driver), line(&self.driver_override)))
    }

    fn load(host: &Host, bdf: Bdf) -> Option<PreviousDriver> {
        let text = std::fs::read_to_string(PreviousDriver::file(host, bdf)).ok()?;
        let mut lines = text.lines().map(|line| Some(line.to_owned()).filter(|line| !line.is_empty()));
        let (driver, driver_override) = (lines.next().flatten(), lines.next().flatten());
        let aspm = lines.next().flatten().and_then(|line| Aspm::parse(bdf, &line));
        Some(PreviousDriver { driver, driver_override, aspm })
    }

    fn remove(host: &Host, bdf: Bdf) {
        let _ = std::fs::remove_file(PreviousDriver::file(host, bdf));
    }
}

struct Steps<'a, K> {
    kernel: &'a mut K,
    bdf: Bdf,
}

impl<K: Kernel> Steps<'_, K> {
    fn write(&mut self, path: String, text: &str) -> Result<(), BindError> {
        self.kernel.write(&path, text).map_err(|source| BindError::Step {
            bdf: self.bdf,
            step: format!("writing '{}' to /{path}", text.trim_end()),
            source,
        })
    }

    fn driver(&self) -> Option<String> {
        self.kernel.host().driver(self.bdf)
    }

    /// Sets `driver_override`: the only driver that may bind the device. An empty line allows any.
    fn set_override(&mut self, driver: Option<&str>) -> Result<(), BindError> {
        self.write(device(self.bdf, "driver_override"), &format!("{}\n", driver.unwrap_or("")))
    }

    fn unbind(&mut self) -> Result<(), BindError> {
        match self.driver() {
            Some(_) => self.write(device(self.bdf, "driver/unbind"), &self.bdf.to_string()),
            None => Ok(()),
        }
    }

    fn probe(&mut self) -> Result<(), BindError> {
        self.write("sys/bus/pci/drivers_probe".to_owned(), &self.bdf.to_string())
    }

    /// From the kernel's driver to `vfio-pci`.
    fn bind(&mut self) -> Result<(), BindError> {
        self.set_override(Some(VFIO))?;
        self.unbind()?;
        self.probe()?;
        let has = self.driver();
        if has.as_deref() == Some(VFIO) {
            Ok(())
        } else {
            Err(BindError::WrongDriver { bdf: self.bdf, has, wanted: VFIO.to_owned() })
        }
    }

    /// Back to the previous driver, as far as possible.
    fn restore(&mut self, before: &PreviousDriver) -> Result<(), BindError> {
        self.set_override(before.driver_override.as_deref())?;
        if self.driver() == before.driver {
            return Ok(());
        }
        self.unbind()?;
        let Some(driver) = &before.driver else { return Ok(()) };
        // Bind to that very driver: several may match the device.
        let bind = format!("sys/bus/pci/drivers/{driver}/bind");
        let direct = self.kernel.host().exists(&bind).then(|| self.write(bind, &self.bdf.to_string()));
        if !matches!(direct, Some(Ok(()))) {
            self.probe()?;
        }
        let has = self.driver();
        if has.is_some() { Ok(()) } else { Err(BindError::WrongDriver { bdf: self.bdf, has, wanted: driver.clone() }) }
    }
}

/// Refuses a function that no driver here works.
fn check_known(host: &Host, bdf: Bdf, known: &[u32]) -> Result<(), BindError> {
    let Some(identity) = Identity::of(host, bdf) else { return Err(BindError::NoDevice(bdf)) };
    if identity.is_network() && known.contains(&identity.id()) {
        return Ok(());
    }
    let hint = match host.interfaces(bdf).first() {
        Some(name) => format!("leave it to the kernel, and use its interface: xdp:{name} or packet:{name}"),
        None if identity.is_network() => "leave it to the kernel".to_owned(),
        None => "look for the right address with lspci -D -d ::0200".to_owned(),
    };
    Err(BindError::Unknown { bdf, identity, driver: host.driver(bdf), hint })
}

pub(super) fn bind_on(kernel: &mut impl Kernel, bdf: Bdf, known: &[u32], force: bool) -> Result<Bound, BindError> {
    let host = kernel.host().clone();
    if !host.has(bdf) {
        return Err(BindError::NoDevice(bdf));
    }
    let before = PreviousDriver::of(&host, bdf);
    if before.driver.as_deref() == Some(VFIO) {
        let aspm = switch_off_aspm(kernel, bdf, PreviousDriver::load(&host, bdf));
        return Ok(Bound { bdf, from: None, already: true, aspm });
    }
    if !force {
        check_known(&host, bdf, known)?;
    }
    if !host.exists("sys/bus/pci/drivers/vfio-pci") {
        kernel.load_module();
    }
    if !host.exists("sys/bus/pci/drivers/vfio-pci") {
        return Err(BindError::NoModule(bdf));
    }
    if !force {
        for interface in host.interfaces(bdf) {
            if let Some(why) = kernel.in_use(&interface) {
                return Err(BindError::InterfaceInUse { bdf, interface, why });
            }
        }
    }
    before.save(&host, bdf).map_err(|source| BindError::Step {
        bdf,
        step: "noting its driver in /run/towpath/bound".to_owned(),
        source,
    })?;
    let mut steps = Steps { kernel, bdf };
    if let Err(error) = steps.bind() {
        // The first error is reported; the second one has no remedy.
        let _ = steps.restore(&before);
        PreviousDriver::remove(&host, bdf);
        return Err(error);
    }
    let from = before.driver.clone();
    let aspm = switch_off_aspm(kernel, bdf, Some(before));
    Ok(Bound { bdf, from, already: false, aspm })
}

/// Switches power management of the link off, and notes what it was. A failure is no reason not to
/// bind: the state is checked whenever the device is opened.
fn switch_off_aspm(kernel: &mut impl Kernel, bdf: Bdf, before: Option<PreviousDriver>) -> Option<Aspm> {
    let aspm = aspm::switch_off(kernel, bdf)?;
    if let Some(before) = before.filter(|before| before.aspm.is_none()) {
        let _ = PreviousDriver { aspm: Some(aspm.clone()), ..before }.save(kernel.host(), bdf);
    }
    Some(aspm)
}

pub(super) fn unbind_on(kernel: &mut impl Kernel, bdf: Bdf, force: bool) -> Result<Unbound, BindError> {
    let host = kernel.host().clone();
    if !host.has(bdf) {
        return Err(BindError::NoDevice(bdf));
    }
    let driver = host.driver(bdf);
    if driver.as_deref() != Some(VFIO) {
        return Err(BindError::NotBound { bdf, driver });
    }
    let pids = host.users(&host.device_nodes(bdf));
    if !pids.is_empty() && !force {
        return Err(BindError::InUse { bdf, pids });
    }
    let previous = PreviousDriver::load(&host, bdf);
    if let Some(aspm) = previous.as_ref().and_then(|before| before.aspm.as_ref()) {
        // Before the previous driver is back, which may switch it off as well.
        aspm::restore(kernel, aspm);
    }
    let mut steps = Steps { kernel, bdf };
    match &previous {
        Some(before) => steps.restore(before)?,
        None => {
            // The device was bound by other means: let any driver match.
            steps.set_override(None)?;
            steps.unbind()?;
            steps.probe()?;
        }
    }
    let to = steps.driver();
    PreviousDriver::remove(&host, bdf);
    Ok(Unbound { bdf, to, interfaces: host.interfaces(bdf) })
}

#[cfg(test)]
mod tests;
