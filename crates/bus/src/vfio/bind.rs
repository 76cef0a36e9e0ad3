//! Hands a device over from the kernel's driver to `vfio-pci`, and gives it back.
//!
//! ```text
//!   bind     note the driver in /run/towpath/bound ─► driver_override = vfio-pci ─► unbind ─► drivers_probe ─► look
//!              └── whatever fails: override as it was, and back to the driver that had it
//!   unbind   unbind from vfio-pci ─► driver_override as it was ─► the driver that had it, or whichever wants it ─► look
//! ```
//!
//! An interface that carries addresses, or is part of a bridge or a bond, is not taken away unless that is said; a device that a
//! process has open is never given back under it (the kernel would wait for that process, and we with it).
//!
//! Sources: Linux `Documentation/ABI/testing/sysfs-bus-pci`.

use super::bdf::Bdf;
use super::host::{self, Host, device};
use std::io;
use std::path::PathBuf;

const VFIO: &str = "vfio-pci";

/// Why a device was not handed over. It is where it was before, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// There is no such device.
    #[error("{0}: there is no such device")]
    NoDevice(Bdf),
    /// `vfio-pci` is neither loaded nor can be.
    #[error("{0}: the module vfio-pci is not loaded, and could not be: modprobe vfio-pci")]
    NoModule(Bdf),
    /// Its interface is in use.
    #[error("{bdf}: its interface {interface} is in use ({why}): take it down first, or force it")]
    InterfaceInUse {
        /// The device.
        bdf: Bdf,
        /// The interface.
        interface: String,
        /// By what: an address, a bridge.
        why: String,
    },
    /// A process has it open.
    #[error("{bdf}: process {} has it open: end it first", .pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    InUse {
        /// The device.
        bdf: Bdf,
        /// Which.
        pids: Vec<u32>,
    },
    /// It is not ours to give back.
    #[error("{bdf}: vfio-pci does not have it, but {}", .driver.as_deref().unwrap_or("no driver"))]
    NotBound {
        /// The device.
        bdf: Bdf,
        /// Who has it.
        driver: Option<String>,
    },
    /// The kernel refused a step.
    #[error("{bdf}: {step}: {source}")]
    Step {
        /// The device.
        bdf: Bdf,
        /// What was being done.
        step: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// All steps went well, but the device is not where it should be.
    #[error("{bdf}: {} has it, not {wanted}: see dmesg", .has.as_deref().unwrap_or("no driver"))]
    Elsewhere {
        /// The device.
        bdf: Bdf,
        /// Who has it.
        has: Option<String>,
        /// Who should.
        wanted: String,
    },
}

/// What [`bind`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The device.
    pub bdf: Bdf,
    /// The driver that had it.
    pub from: Option<String>,
    /// Whether `vfio-pci` had it already.
    pub already: bool,
}

/// What [`unbind`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unbound {
    /// The device.
    pub bdf: Bdf,
    /// The driver that has it now.
    pub to: Option<String>,
    /// Its interfaces, as far as they are there already.
    pub interfaces: Vec<String>,
}

/// Hands a device over to `vfio-pci`, which is loaded if need be. With `force`, also one whose interface is in use.
///
/// # Errors
/// [`BindError`]; the device is given back to the driver that had it.
pub fn bind(bdf: Bdf, force: bool) -> Result<Bound, BindError> {
    bind_on(&mut Host::this(), bdf, force)
}

/// Gives a device back: to the driver that had it when it was [bound](bind), otherwise to whichever wants it; to none if none had it.
///
/// # Errors
/// [`BindError`]; [`BindError::InUse`] while a process has it open.
pub fn unbind(bdf: Bdf) -> Result<Unbound, BindError> {
    unbind_on(&mut Host::this(), bdf)
}

/// The kernel's side, as far as it is commanded.
pub(super) trait Kernel {
    fn host(&self) -> &Host;
    /// Writes to a file of `/sys`.
    fn command(&mut self, path: &str, text: &str) -> io::Result<()>;
    /// Why an interface may not be taken away.
    fn carries(&self, interface: &str) -> Option<String>;
    fn load_module(&mut self);
}

impl Kernel for Host {
    fn host(&self) -> &Host {
        self
    }

    fn command(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.write(path, text)
    }

    fn carries(&self, interface: &str) -> Option<String> {
        let master = self.link(&format!("sys/class/net/{interface}/master")).map(|m| format!("part of {m}"));
        master.or_else(|| host::addresses(interface).first().map(|address| format!("it has the address {address}")))
    }

    fn load_module(&mut self) {
        let _ = std::process::Command::new("modprobe").arg(VFIO).stderr(std::process::Stdio::null()).status();
    }
}

/// What a device was before, kept while it is bound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Before {
    driver: Option<String>,
    /// Its `driver_override`.
    only: Option<String>,
}

impl Before {
    fn of(host: &Host, bdf: Bdf) -> Before {
        let only = host.read(&device(bdf, "driver_override")).filter(|only| !only.is_empty() && only != "(null)");
        Before { driver: host.driver(bdf), only }
    }

    fn file(host: &Host, bdf: Bdf) -> PathBuf {
        host.path(&format!("run/towpath/bound/{bdf}"))
    }

    /// Two lines; an empty one where there was none.
    fn keep(&self, host: &Host, bdf: Bdf) -> io::Result<()> {
        let file = Before::file(host, bdf);
        std::fs::create_dir_all(file.with_file_name(""))?;
        let line = |text: &Option<String>| text.clone().unwrap_or_default();
        std::fs::write(file, format!("{}\n{}\n", line(&self.driver), line(&self.only)))
    }

    fn kept(host: &Host, bdf: Bdf) -> Option<Before> {
        let text = std::fs::read_to_string(Before::file(host, bdf)).ok()?;
        let mut lines = text.lines().map(|line| Some(line.to_owned()).filter(|line| !line.is_empty()));
        Some(Before { driver: lines.next().flatten(), only: lines.next().flatten() })
    }

    fn forget(host: &Host, bdf: Bdf) {
        let _ = std::fs::remove_file(Before::file(host, bdf));
    }
}

struct Steps<'a, K> {
    kernel: &'a mut K,
    bdf: Bdf,
}

impl<K: Kernel> Steps<'_, K> {
    fn write(&mut self, path: String, text: &str) -> Result<(), BindError> {
        self.kernel.command(&path, text).map_err(|source| BindError::Step {
            bdf: self.bdf,
            step: format!("writing '{}' to /{path}", text.trim_end()),
            source,
        })
    }

    fn driver(&self) -> Option<String> {
        self.kernel.host().driver(self.bdf)
    }

    /// Which driver alone may have the device; a line end alone means any.
    fn only(&mut self, driver: Option<&str>) -> Result<(), BindError> {
        self.write(device(self.bdf, "driver_override"), &format!("{}\n", driver.unwrap_or("")))
    }

    fn release(&mut self) -> Result<(), BindError> {
        match self.driver() {
            Some(_) => self.write(device(self.bdf, "driver/unbind"), &self.bdf.to_string()),
            None => Ok(()),
        }
    }

    fn probe(&mut self) -> Result<(), BindError> {
        self.write("sys/bus/pci/drivers_probe".to_owned(), &self.bdf.to_string())
    }

    /// From the kernel's driver to ours.
    fn take(&mut self) -> Result<(), BindError> {
        self.only(Some(VFIO))?;
        self.release()?;
        self.probe()?;
        let has = self.driver();
        if has.as_deref() == Some(VFIO) {
            Ok(())
        } else {
            Err(BindError::Elsewhere { bdf: self.bdf, has, wanted: VFIO.to_owned() })
        }
    }

    /// Back to what it was, as far as that goes.
    fn give(&mut self, before: &Before) -> Result<(), BindError> {
        self.only(before.only.as_deref())?;
        if self.driver() == before.driver {
            return Ok(());
        }
        self.release()?;
        let Some(driver) = &before.driver else { return Ok(()) };
        // To the very driver that had it: there may be several that would take it.
        let bind = format!("sys/bus/pci/drivers/{driver}/bind");
        let direct = self.kernel.host().exists(&bind).then(|| self.write(bind, &self.bdf.to_string()));
        if !matches!(direct, Some(Ok(()))) {
            self.probe()?;
        }
        let has = self.driver();
        if has.is_some() { Ok(()) } else { Err(BindError::Elsewhere { bdf: self.bdf, has, wanted: driver.clone() }) }
    }
}

pub(super) fn bind_on(kernel: &mut impl Kernel, bdf: Bdf, force: bool) -> Result<Bound, BindError> {
    let host = kernel.host().clone();
    if !host.has(bdf) {
        return Err(BindError::NoDevice(bdf));
    }
    let before = Before::of(&host, bdf);
    if before.driver.as_deref() == Some(VFIO) {
        return Ok(Bound { bdf, from: None, already: true });
    }
    if !host.exists("sys/bus/pci/drivers/vfio-pci") {
        kernel.load_module();
    }
    if !host.exists("sys/bus/pci/drivers/vfio-pci") {
        return Err(BindError::NoModule(bdf));
    }
    if !force {
        for interface in host.interfaces(bdf) {
            if let Some(why) = kernel.carries(&interface) {
                return Err(BindError::InterfaceInUse { bdf, interface, why });
            }
        }
    }
    before.keep(&host, bdf).map_err(|source| BindError::Step {
        bdf,
        step: "noting its driver in /run/towpath/bound".to_owned(),
        source,
    })?;
    let mut steps = Steps { kernel, bdf };
    if let Err(error) = steps.take() {
        // The first error is the one to report; a second one can change nothing any more.
        let _ = steps.give(&before);
        Before::forget(&host, bdf);
        return Err(error);
    }
    Ok(Bound { bdf, from: before.driver, already: false })
}

pub(super) fn unbind_on(kernel: &mut impl Kernel, bdf: Bdf) -> Result<Unbound, BindError> {
    let host = kernel.host().clone();
    if !host.has(bdf) {
        return Err(BindError::NoDevice(bdf));
    }
    let driver = host.driver(bdf);
    if driver.as_deref() != Some(VFIO) {
        return Err(BindError::NotBound { bdf, driver });
    }
    let pids = host.holders(&host.nodes(bdf));
    if !pids.is_empty() {
        return Err(BindError::InUse { bdf, pids });
    }
    let kept = Before::kept(&host, bdf);
    let mut steps = Steps { kernel, bdf };
    match &kept {
        Some(before) => steps.give(before)?,
        None => {
            // It was not us who bound it: whoever wants it may have it.
            steps.only(None)?;
            steps.release()?;
            steps.probe()?;
        }
    }
    let to = steps.driver();
    Before::forget(&host, bdf);
    Ok(Unbound { bdf, to, interfaces: host.interfaces(bdf) })
}

#[cfg(test)]
mod tests;
