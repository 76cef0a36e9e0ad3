//! Devices through the kernel's VFIO: real hardware, with an IOMMU between it and everything that is not its own.
//!
//! ```text
//!   VfioBus ─┬─ VfioBar      registers, mapped                    device    open device: regions, configuration, reset
//!            ├─ VfioDma      lasting mappings                     space     its address space, and how the kernel is asked
//!            │   └─ VfioWindow   buffers mapped one by one        iova      which addresses are free
//!            └─ VfioIrq      MSI-X (or MSI) as eventfds           phys      physical addresses, where nothing translates
//!
//!   inspect  what is missing before a device can be opened, and the commands that mend it
//!   bind     hands a device over from the kernel's driver, and gives it back
//! ```
//!
//! A device is opened by its own file and iommufd where the kernel has them (from 6.6 on), otherwise by its group
//! (`/dev/vfio/N`, type 1 version 2); [`VfioConfig::backend`] forces either.
//!
//! **Without an IOMMU** a device reaches all of memory, whatever a driver tells it. That is refused unless
//! [`VfioConfig::unprotected`] says that it is wanted; it takes a kernel with `vfio.enable_unsafe_noiommu_mode=1`, root, and
//! reserved huge pages for all memory, and only [`DmaPolicy::Persistent`](crate::DmaPolicy::Persistent) works.
//!
//! **Order of the end.** Dropping the bus takes DMA and interrupts from the device. Its descriptor is closed with the last
//! [`VfioBar`]; its address space, with all that is still mapped there, with the last [`VfioDma`] after that: memory is unmapped
//! for the device before it goes back to the system. When the process is killed the kernel does it all, in the same order: the device
//! is reset, and can be opened again at once.
//!
//! Sources: Linux `Documentation/driver-api/vfio.rst`, `Documentation/userspace-api/iommufd.rst` and the headers of both.

mod abi;
mod bar;
mod bdf;
mod bind;
mod device;
mod dma;
#[cfg(test)]
mod fake;
mod host;
mod inspect;
mod iova;
mod irq;
mod phys;
mod space;
mod sys;
mod window;

pub use bar::VfioBar;
pub use bdf::{Bdf, BdfError};
pub use bind::{BindError, Bound, Unbound, bind, unbind};
pub use dma::VfioDma;
pub use inspect::{Finding, Inspection, inspect};
pub use irq::VfioIrq;
pub use window::VfioWindow;

use crate::bus::{Bus, BusError, Pci};
use device::Device;
use host::Host;
use space::Space;
use std::sync::Arc;

/// By which of the kernel's files a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// Its own and iommufd where both are there, otherwise its group's.
    #[default]
    Auto,
    /// Its group's.
    Group,
    /// Its own, and iommufd.
    Iommufd,
}

/// How to open a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfioConfig {
    /// By which files.
    pub backend: Backend,
    /// Accept a device that no IOMMU keeps from the rest of memory.
    pub unprotected: bool,
}

/// A PCI function, opened through VFIO.
#[derive(Debug)]
pub struct VfioBus {
    name: String,
    // Before the reach into memory: see the order of the end.
    device: Arc<Device>,
    dma: VfioDma,
}

impl VfioBus {
    /// Opens a function that is bound to `vfio-pci` (see [`bind`]). The kernel resets it.
    ///
    /// # Errors
    /// [`BusError`] names the step; where [`inspect`] finds why, its first finding is the hint.
    pub fn open(bdf: Bdf, config: &VfioConfig) -> Result<VfioBus, BusError> {
        let host = Host::this();
        VfioBus::open_on(&host, bdf, config).map_err(|error| match (error, inspect(bdf).first_obstacle()) {
            (BusError::Os { device, step, source, hint: None }, Some(found)) => {
                BusError::Os { device, step, source, hint: Some(found.to_string()) }
            }
            (error, _) => error,
        })
    }

    fn open_on(host: &Host, bdf: Bdf, config: &VfioConfig) -> Result<VfioBus, BusError> {
        let wrong = |what: String| BusError::Device { device: bdf.to_string(), what };
        let Some(group) = host.group(bdf) else {
            let why = inspect(bdf).first_obstacle().map(ToString::to_string);
            return Err(wrong(why.unwrap_or_else(|| "it has no IOMMU group".to_owned())));
        };
        let unprotected = host.unprotected(bdf);
        if unprotected && !config.unprotected {
            let why = "there is no IOMMU: the device could read and write all of memory. If that is accepted, say so \
                       (unprotected=on)";
            return Err(wrong(why.to_owned()));
        }
        let cdev = host.cdev(bdf).filter(|name| host.exists(&format!("dev/vfio/devices/{name}")));
        let (space, fd) = match (config.backend, cdev) {
            _ if unprotected => Space::unprotected(host, bdf, group)?,
            (Backend::Iommufd, None) => {
                let why = "it has no file in /dev/vfio/devices: the kernel is older than 6.6, was built without \
                           CONFIG_VFIO_DEVICE_CDEV, or the device is not bound to vfio-pci";
                return Err(wrong(why.to_owned()));
            }
            (Backend::Iommufd, Some(cdev)) => Space::of_cdev(host, bdf, group, &cdev)?,
            (Backend::Auto, Some(cdev)) if host.may_use("dev/iommu") => Space::of_cdev(host, bdf, group, &cdev)?,
            (Backend::Auto | Backend::Group, _) => Space::of_group(host, bdf, group)?,
        };
        let device = Arc::new(Device::new(bdf, fd, space)?);
        let dma = VfioDma::new(&device);
        Ok(VfioBus { name: bdf.to_string(), device, dma })
    }

    /// How the device was opened, in a few words for people.
    pub fn backend(&self) -> &'static str {
        self.device.space().kind()
    }
}

impl Bus for VfioBus {
    type Bar = VfioBar;
    type Dma = VfioDma;
    type Irq = VfioIrq;

    fn name(&self) -> &str {
        &self.name
    }

    fn bar(&self, index: u8, len: usize) -> Result<VfioBar, BusError> {
        self.device.bar(index, len)
    }

    fn dma(&self) -> &VfioDma {
        &self.dma
    }

    fn irqs(&self, count: u16) -> Result<Vec<VfioIrq>, BusError> {
        self.device.irqs(count)
    }
}

impl Pci for VfioBus {
    fn config_r32(&self, at: u16) -> u32 {
        self.device.config_r32(at)
    }

    fn config_w32(&self, at: u16, value: u32) {
        self.device.config_w32(at, value);
    }

    /// Resets the function; memory decoding is on afterwards, and bus mastering as it was before.
    fn reset(&self) -> Result<(), BusError> {
        self.device.reset()
    }
}

impl Drop for VfioBus {
    fn drop(&mut self) {
        self.device.quiet();
    }
}
