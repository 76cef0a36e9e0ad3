//! Devices through the kernel's [VFIO]: real hardware, isolated by an IOMMU.
//!
//! ```text
//!   VfioBus ─┬─ VfioBar          registers, mapped
//!            ├─ VfioDma          persistent mappings
//!            │   └─ VfioWindow   buffers mapped one by one
//!            └─ VfioIrq          MSI-X, MSI, INTx; requests and errors: as eventfds
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `device` | the open device: regions, configuration space, reset |
//! | `address_space` | its address space: a VFIO container or an iommufd IOAS |
//! | `pagemap` | physical addresses, for a system without an IOMMU |
//! | `bar`, `dma`, `window`, `irq` | the types of [`Bus`] |
//! | `inspect` | what prevents a device from being opened, and the commands that fix it |
//! | `bind` | binds a device to `vfio-pci`, and back to its driver |
//! | `aspm` | power management of the link, switched off where an erratum asks for it |
//! | `identity`, `bdf` | what a function is, by class and names; its address |
//! | `host` | `/sys`, `/proc` and `/dev` |
//! | `abi`, `ioctl` | structures and system calls |
//! | `fake` | for tests: a machine made of files |
//!
//! A device is opened by its own file and [iommufd] if the kernel has them (since 6.6), otherwise
//! by its group (`/dev/vfio/N`, type 1 version 2). [`VfioConfig::backend`] forces either.
//!
//! **Without an IOMMU** a device can reach all of memory, whatever its driver writes. That is
//! refused unless [`VfioConfig::unprotected`] is set, which is `unsafe`. It needs a kernel with
//! `vfio.enable_unsafe_noiommu_mode=1`, root, and reserved huge pages for all memory. Only
//! [`DmaPolicy::Persistent`](crate::DmaPolicy::Persistent) works.
//!
//! **Teardown order.** Dropping the bus disables DMA and interrupts of the device. The last
//! [`VfioBar`] closes the device's descriptor. After that the last [`VfioDma`] closes the address
//! space with all mappings: memory is unmapped for the device before it returns to the system. When
//! the process is killed, the kernel does all of it in the same order: it resets the device, which
//! can be opened again at once.
//!
//! **Removal.** To unbind a device, or to take it out of its slot, the kernel waits until its file
//! is closed. It asks by the event [`removal`](crate::Events::removal), again and again. A driver
//! answers by dropping all that it has of the device. Registers stay readable meanwhile.
//!
//! [VFIO]: https://docs.kernel.org/driver-api/vfio.html
//! [iommufd]: https://docs.kernel.org/userspace-api/iommufd.html

mod abi;
mod aspm;
mod bar;
mod bdf;
mod bind;
mod device;
mod dma;
#[cfg(test)]
mod fake;
mod host;
mod identity;
mod inspect;

mod address_space;
mod ioctl;
mod irq;
mod pagemap;
mod window;

pub use aspm::{Aspm, aspm};
pub use bar::VfioBar;
pub use bdf::{Bdf, BdfError};
pub use bind::{BindError, Bound, Unbound, bind, unbind};
pub use dma::VfioDma;
pub use identity::Identity;
pub use inspect::{Finding, Inspection, inspect};
pub use irq::VfioIrq;
pub use window::VfioWindow;

use crate::bus::{Bus, BusError, Events, IrqKind, Pci};
use address_space::AddressSpace;
use device::VfioDevice;
use host::Host;
use std::sync::Arc;

/// The kernel interface through which a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// The device file and iommufd if both exist, otherwise the group.
    #[default]
    Auto,
    /// The group file.
    Group,
    /// The device file and iommufd.
    Iommufd,
}

/// How to open a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VfioConfig {
    /// The kernel interface.
    pub backend: Backend,
    unprotected: bool,
}

impl VfioConfig {
    /// Sets the kernel interface.
    pub fn backend(mut self, backend: Backend) -> VfioConfig {
        self.backend = backend;
        self
    }

    /// Sets whether a device that is not behind an IOMMU is accepted.
    ///
    /// # Safety
    /// Such a device reaches all of memory. The caller drives it: the device gets no address but
    /// those that its [`Dma`](crate::Dma) has mapped.
    pub unsafe fn unprotected(mut self, unprotected: bool) -> VfioConfig {
        self.unprotected = unprotected;
        self
    }
}

/// A PCI function, opened through VFIO.
#[derive(Debug)]
pub struct VfioBus {
    name: String,
    // Dropped before `dma`: see the teardown order.
    device: Arc<VfioDevice>,
    dma: VfioDma,
}

impl VfioBus {
    /// Opens a function that is bound to `vfio-pci` (see [`bind`]). The kernel resets it.
    ///
    /// # Errors
    /// [`BusError`] names the step. If [`inspect`] finds the cause, its first finding is the hint.
    pub fn open(bdf: Bdf, config: &VfioConfig) -> Result<VfioBus, BusError> {
        let host = Host::this();
        VfioBus::open_on(&host, bdf, config).map_err(|error| match inspect(bdf).first_obstacle() {
            Some(found) => error.with_hint(found.to_string()),
            None => error,
        })
    }

    fn open_on(host: &Host, bdf: Bdf, config: &VfioConfig) -> Result<VfioBus, BusError> {
        let refuse = |what: String| BusError::device(bdf, what);
        let Some(group) = host.group(bdf) else {
            let why = inspect(bdf).first_obstacle().map(ToString::to_string);
            return Err(refuse(why.unwrap_or_else(|| "it has no IOMMU group".to_owned())));
        };
        if let Some(incoherent) = inspect::incoherent(host, bdf) {
            return Err(refuse(format!("{incoherent} ({})", incoherent.hint(bdf))));
        }
        let unprotected = host.unprotected(bdf);
        if unprotected && !config.unprotected {
            let why = "there is no IOMMU: the device could read and write all of memory. If that is accepted, say so \
                       (unprotected=on)";
            return Err(refuse(why.to_owned()));
        }
        let cdev = host.cdev(bdf).filter(|name| host.exists(&format!("dev/vfio/devices/{name}")));
        let (space, fd) = match (config.backend, cdev) {
            _ if unprotected => AddressSpace::unprotected(host, bdf, group)?,
            (Backend::Iommufd, None) => {
                let why = "it has no file in /dev/vfio/devices: the kernel is older than 6.6, was built without \
                           CONFIG_VFIO_DEVICE_CDEV, or the device is not bound to vfio-pci";
                return Err(refuse(why.to_owned()));
            }
            (Backend::Iommufd, Some(cdev)) => AddressSpace::of_cdev(host, bdf, group, &cdev)?,
            (Backend::Auto, Some(cdev)) if host.is_accessible("dev/iommu") => {
                AddressSpace::of_cdev(host, bdf, group, &cdev)?
            }
            (Backend::Auto | Backend::Group, _) => AddressSpace::of_group(host, bdf, group)?,
        };
        let device = Arc::new(VfioDevice::new(bdf, fd, space)?);
        let dma = VfioDma::new(&device);
        Ok(VfioBus { name: bdf.to_string(), device, dma })
    }

    /// The interface through which the device was opened, for messages.
    pub fn backend(&self) -> &'static str {
        self.device.space().api_name()
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
        Ok(VfioBar::new(self.device.clone(), self.device.map_bar(index, len)?))
    }

    fn dma(&self) -> &VfioDma {
        &self.dma
    }

    /// Interrupts of MSI-X if the function has enough, otherwise of MSI.
    fn irqs(&self, count: u16) -> Result<Vec<VfioIrq>, BusError> {
        let enough = self.device.irq_count(IrqKind::MsiX) >= count;
        self.device.irqs(if enough { IrqKind::MsiX } else { IrqKind::Msi }, count)
    }
}

impl Pci for VfioBus {
    fn config_r32(&self, at: u16) -> u32 {
        self.device.config_r32(at)
    }

    fn config_w32(&self, at: u16, value: u32) {
        self.device.config_w32(at, value);
    }

    /// Resets the function. Memory decoding is on afterwards; bus mastering is as before.
    fn reset(&self) -> Result<(), BusError> {
        self.device.reset()
    }

    fn irq_count(&self, kind: IrqKind) -> u16 {
        self.device.irq_count(kind)
    }

    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<VfioIrq>, BusError> {
        self.device.irqs(kind, count)
    }

    fn events(&self) -> Result<Events<VfioIrq>, BusError> {
        self.device.events()
    }
}

impl Drop for VfioBus {
    fn drop(&mut self) {
        self.device.disable();
    }
}
