//! The configuration of a model.

use super::faults::Faults;
use super::phy::PhyStart;
use crate::iommu;
use towpath_packet::setters;

/// The interrupts that a device offers. On a real one that is a choice of its NVM and of the
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// MSI-X with this many vectors (up to 5), MSI, and a line.
    MsiX(u16),
    /// MSI and a line, like the 82583V.
    Msi,
    /// A line alone.
    Intx,
}

setters! {
    /// The configuration of an 82574L model. Each field has a setter of its name.
    #[derive(Debug, Clone)]
    #[non_exhaustive]
    pub struct Config {
        /// The device's name in errors.
        pub name: String,
        /// The MAC address in its NVM.
        pub mac: [u8; 6],
        /// The IOMMU between the device and memory.
        pub iommu: iommu::Config,
        /// Injected faults.
        pub faults: Faults,
        /// Whether the driver is checked against the rules.
        pub strict: bool,
        /// Ticks that the link takes to come up: bursts or steps of the device, and reads of
        /// STATUS.
        pub negotiation: u32,
        /// Mb/s that both ends agree on: 10, 100 or 1000.
        pub speed: u32,
        /// Whether the NVM is a flash chip.
        pub flash: bool,
        /// Whether a management controller shares the port: firmware has set MANC, and a receive
        /// address of its own (entry 3).
        pub manageability: bool,
        /// Whether the other end takes pause frames: it stops sending while the packet buffer is
        /// full, if the driver has agreed on that and set CTRL.TFCE and a threshold. Otherwise
        /// frames are lost then, and counted as MPC.
        pub pause: bool,
        /// The state in which the driver finds the PHY.
        pub phy: PhyStart,
        /// This many requests for the semaphore of PHY and NVM are denied: firmware holds it.
        pub phy_denied: u32,
        /// Its PCI device ID.
        pub device_id: u16,
        /// Its interrupts.
        pub interrupts: Interrupts,
        /// Whether the chipset loses the messages of MSI.
        pub loses_msi: bool,
        /// Whether the device has a thread; otherwise the caller [steps](super::Device) it.
        pub threaded: bool,
    }
}

impl Default for Config {
    /// Without faults, not strict, behind an IOMMU, stepped by the caller.
    fn default() -> Config {
        Config {
            name: "e1000e:model".into(),
            mac: [0x02, 0x74, 0x6f, 0x77, 0x00, 0x01],
            iommu: iommu::Config::default(),
            faults: Faults::default(),
            strict: false,
            negotiation: 0,
            speed: 1000,
            flash: false,
            manageability: false,
            pause: true,
            phy: PhyStart::default(),
            phy_denied: 0,
            device_id: 0x10d3,
            interrupts: Interrupts::MsiX(5),
            loses_msi: false,
            threaded: false,
        }
    }
}
