//! Configuration of the model.

use super::phy::PhyStart;
use super::soc::{Grants, Soc};
use crate::iommu;
use std::time::Duration;
use towpath_packet::setters;

/// The ring that shows the end of a receive teardown; the manuals do not specify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RxMarker {
    /// The ring of the first flow.
    #[default]
    FirstFlow,
    /// The rings of all flows.
    AllFlows,
}

/// When an interrupt signals its file descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IrqMode {
    /// While its level is high, like the interrupt aggregator. An interrupt that is taken with the
    /// level still high signals again.
    #[default]
    Level,
    /// Only when the level rises: a driver that sleeps with elements left on the ring sleeps for
    /// ever.
    Edge,
}

setters! {
    /// Configuration of a model. Each field has a setter of its name.
    #[derive(Debug, Clone)]
    #[non_exhaustive]
    pub struct Config {
        /// The SoC.
        pub soc: Soc,
        /// The resources of UDMA that firmware grants; otherwise those of the [SoC](Soc::grants).
        pub grants: Option<Grants>,
        /// The IOMMU between the engine and memory.
        pub iommu: iommu::Config,
        /// MAC ports, 1 to 8.
        pub ports: u8,
        /// Check the rules for drivers, and keep the first violation in detail. The check costs
        /// time and memory per descriptor.
        pub strict: bool,
        /// Packets that a channel fetches ahead, 1 to 16. The forward occupancy falls long before
        /// these packets complete.
        pub prefetch: u8,
        /// Occupancies show elements some time after their memory was written; otherwise at once.
        pub lag: bool,
        /// Random steps before the answer to each register read, and 64 times as many while the
        /// driver pauses. With them, a driver that waits for the device needs no other thread and
        /// no time.
        pub steps_per_read: u16,
        /// Seed of those steps.
        pub seed: u64,
        /// Frames that a FIFO of a MAC port takes. A channel whose next frame finds the queue full
        /// waits.
        pub port_depth: usize,
        /// Frames that wait for the receive channel. More frames are dropped and counted.
        pub host_depth: usize,
        /// The ring that shows the end of a receive teardown.
        pub rx_marker: RxMarker,
        /// When interrupts signal.
        pub irq: IrqMode,
        /// The state in which the driver finds the PHYs.
        pub phy: PhyStart,
        /// Address of each port's PHY on the management bus.
        pub phy_addresses: [u8; 8],
        /// How long a negotiation takes, by the device's clock.
        pub negotiation: Duration,
        /// PHYs also send the state of their link in the gaps between frames, which the switch
        /// shows as in-band status.
        pub in_band_status: bool,
        /// Overwrite transmit descriptors and their PS words at completion, so that a driver that
        /// relies on their content fails.
        pub poison: bool,
    }
}

impl Config {
    /// A device to run traffic with: it checks no rules, its occupancies do not lag, and its queues
    /// are long.
    pub fn lenient(soc: Soc, ports: u8) -> Config {
        Config {
            soc,
            ports,
            strict: false,
            prefetch: 16,
            lag: false,
            port_depth: 64,
            host_depth: 1024,
            ..Config::default()
        }
    }
}

impl Default for Config {
    /// An AM64x with two ports, strict, with occupancies that lag and a prefetch of four packets.
    fn default() -> Config {
        Config {
            soc: Soc::Am64x,
            grants: None,
            // Addresses have 36 bits on PKTDMA.
            iommu: iommu::Config {
                ranges: vec![0x1000..=0xfedf_ffff, 0xfef0_0000..=(1 << 36) - 1],
                ..iommu::Config::default()
            },
            ports: 2,
            strict: true,
            prefetch: 4,
            lag: true,
            steps_per_read: 0,
            seed: 1,
            port_depth: 16,
            host_depth: 256,
            rx_marker: RxMarker::FirstFlow,
            irq: IrqMode::Level,
            phy: PhyStart::Ready,
            phy_addresses: [0, 1, 2, 3, 4, 5, 6, 7],
            negotiation: Duration::from_secs(2),
            in_band_status: false,
            poison: false,
        }
    }
}
