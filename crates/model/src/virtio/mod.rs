//! The network device of virtio 1.2, as a PCI function, by its [specification].
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Config`], [`launch`], [`Device`]: the far side |
//! | `pci` | configuration space: where the registers are |
//! | `bus` | [`VirtioBus`]: registers and messages behind the traits of `towpath-bus`; the thread |
//! | `common` | the common configuration: status, features, queues |
//! | `queue` | virtqueues, split and packed, from the device's side |
//! | `net` | frames: transmission, reception, the control queue |
//! | `command` | commands of the control queue, and the filter that they set |
//! | `faults` | [`Faults`] |
//!
//! It is written from the specification alone, with a plain loop over bytes, and shares no code and
//! no constant with the driver or with the virtqueues of `towpath-virtio`.
//!
//! **Strict** ([`Config::strict`]): the first broken rule is stored, see [`Violation`] and
//! [`Device::violation`]: of registers and the order of initialization (§3.1), of descriptor chains
//! and rings (§2.7, §2.8), of headers (§5.1.6), and of memory that is unmapped while the device has
//! it.
//!
//! Left out: super-packets that are sent, RSS and hash reports, ring reset, interrupts by a line.
//! QEMU's device has these.
//!
//! [specification]: https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html

mod bus;
mod command;
mod common;
mod faults;
mod net;
mod pci;
mod queue;
#[cfg(test)]
mod tests;

pub use bus::{VirtioBar, VirtioBus, VirtioIrq};
pub use faults::Faults;

use crate::iommu::{self, ModelDma};
use crate::violation::{Violation, Violations};
use crate::wire::Wire;
use bus::BusShared;
use std::sync::Arc;
use towpath_bus::BusError;
use towpath_packet::setters;

/// Features that a model can have (virtio 1.2 §5.1.3, §6): partial checksums in both directions, an
/// address, mergeable buffers, a link, a control queue with filters, several pairs of queues,
/// indirect tables, event indices, an IOMMU, packed rings and use in order.
pub const FEATURES: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 15 | 0b1111 << 16 | 0b111 << 21 | 0b11 << 28 | 0b1111 << 32;

setters! {
    /// The configuration of a model. Each field has a setter of its name.
    #[derive(Debug, Clone)]
    #[non_exhaustive]
    pub struct Config {
        /// The device's name in errors.
        pub name: String,
        /// The MAC address.
        pub mac: [u8; 6],
        /// The features that it offers, of [`FEATURES`]; and bit 7, with which frames of more than
        /// an MTU of 1500 are received as super-packets of TCP over IPv4.
        pub features: u64,
        /// The most descriptors of a queue.
        pub queue_size: u16,
        /// Pairs of queues.
        pub pairs: u16,
        /// The IOMMU between the device and memory.
        pub iommu: iommu::Config,
        /// Injected faults.
        pub faults: Faults,
        /// Whether the driver is checked against the rules.
        pub strict: bool,
        /// Whether the device has a thread; otherwise the caller [turns](Device::turn) it.
        pub threaded: bool,
    }
}

impl Default for Config {
    /// All features, without faults, not strict, behind an IOMMU, turned by the caller.
    fn default() -> Config {
        Config {
            name: "virtio:model".into(),
            mac: [0x02, 0x74, 0x6f, 0x77, 0x00, 0x02],
            features: FEATURES,
            queue_size: 1024,
            pairs: 1,
            iommu: iommu::Config::default(),
            faults: Faults::default(),
            strict: false,
            threaded: false,
        }
    }
}

/// Builds a model in the state after power-on, connected to a wire; DMA is off.
///
/// # Errors
/// [`BusError::Map`] if there is no memory for the IOMMU's tables, [`BusError::Os`] if there is no
/// thread or descriptor left.
pub fn launch(config: Config, wire: impl Wire) -> Result<VirtioBus, BusError> {
    let violations = Arc::new(Violations::new(config.strict));
    let dma = ModelDma::new(&config.iommu, violations.clone()).map_err(BusError::map(&config.name))?;
    VirtioBus::new(config, dma, violations, Box::new(wire))
}

/// Frames that a model moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Frames that were received into buffers of the driver.
    pub received: u64,
    /// Frames that the filter did not let pass.
    pub filtered: u64,
    /// Frames that were longer than the driver's buffer, without mergeable ones.
    pub missed: u64,
    /// Frames that were sent.
    pub sent: u64,
    /// Commands of the control queue that were done.
    pub commands: u64,
    /// Messages that were sent to the driver.
    pub messages: u64,
    /// Notifications of the driver.
    pub kicks: u64,
}

/// The far side of a model: turns and examines it. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Device {
    shared: Arc<BusShared>,
}

impl Device {
    /// One burst: up to 64 frames in each direction. Returns the number of units of work.
    pub fn turn(&self) -> usize {
        self.shared.turn()
    }

    /// Turns until there is nothing to do; returns the number of units of work. With a wire that
    /// always has a frame it ends after a million turns.
    pub fn run_until_idle(&self) -> usize {
        (0..1_000_000).map(|_| self.turn()).take_while(|n| *n > 0).sum()
    }

    /// The first rule that the driver broke, if the model is strict.
    pub fn violation(&self) -> Option<Violation> {
        self.shared.violations.first().cloned()
    }

    /// The IOMMU: counters, faults.
    pub fn iommu(&self) -> &ModelDma {
        &self.shared.dma
    }

    /// What the device moved since it was made.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// The features that the driver chose; 0 before.
    pub fn features(&self) -> u64 {
        self.shared.machine().common.features()
    }

    /// Pairs of queues that the driver uses.
    pub fn pairs(&self) -> u16 {
        self.shared.machine().pairs_in_use()
    }

    /// Sets whether the link is up; the driver gets a message of the configuration.
    pub fn set_link(&self, up: bool) {
        self.shared.machine().set_link(up);
    }

    /// Asks the driver to announce itself (§5.1.6.5.4), and sends it a message.
    pub fn ask_for_announcement(&self) {
        self.shared.machine().ask_for_announcement();
    }

    /// Whether the driver has acknowledged that it announces itself.
    pub fn is_announced(&self) -> bool {
        self.shared.machine().is_announced()
    }

    /// The device can't go on until it is reset (`DEVICE_NEEDS_RESET`).
    pub fn fail(&self) {
        self.shared.machine().fail();
    }
}
