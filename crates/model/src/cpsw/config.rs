//! Configuration of the model.

use crate::iommu;

/// The DMA engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// PKTDMA: two-sided rings inside the engine; element `i` completes at index `i`.
    Pktdma,
    /// UDMA with a ring accelerator: submission and completion are separate rings.
    Udma,
}

/// The SoC around the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soc {
    /// AM64x and AM62x: CPSW3G behind PKTDMA, coherent with address tag 15.
    Am64x,
    /// J784S4 main domain: CPSW9G behind UDMA.
    J784s4,
    /// J784S4 MCU domain: CPSW2G behind UDMA.
    J784s4Mcu,
}

impl Soc {
    /// The DMA engine.
    pub fn family(self) -> Family {
        if self == Soc::Am64x { Family::Pktdma } else { Family::Udma }
    }

    /// First of the eight PSI-L threads to the switch.
    pub(crate) fn tx_thread(self) -> u16 {
        match self {
            Soc::Am64x => 0xc600,
            Soc::J784s4 => 0xca00,
            Soc::J784s4Mcu => 0xf000,
        }
    }

    /// PSI-L thread from the switch.
    pub(crate) fn rx_thread(self) -> u16 {
        match self {
            Soc::Am64x => 0x4600,
            Soc::J784s4 => 0x4a00,
            Soc::J784s4Mcu => 0x7000,
        }
    }

    /// PSI-L thread of channel 0 of the engine.
    pub(crate) fn psil_base(self) -> u16 {
        if self == Soc::J784s4Mcu { 0x6000 } else { 0x1000 }
    }

    /// Bytes from the real-time registers of one ring to those of the next.
    pub(crate) fn ring_stride(self) -> usize {
        if self.family() == Family::Pktdma { 0x2000 } else { 0x1000 }
    }

    /// The submission ring of a transmit channel.
    pub(crate) fn tx_ring(self, channel: u16) -> u16 {
        match self.family() {
            // Channels 19 to 26 own eight flows each, from flow 19 on. A ring has the number of its
            // flow.
            Family::Pktdma => 19 + channel.saturating_sub(19) * 8,
            Family::Udma => channel,
        }
    }

    /// The two-sided ring of a receive flow of PKTDMA, behind those of 99 transmit flows.
    pub(crate) fn rx_ring(self, flow: u16) -> u16 {
        flow + 99
    }

    /// Whether a marker on a ring reports the end of a receive teardown.
    pub(crate) fn marks_rx_teardown(self) -> bool {
        self.family() == Family::Pktdma
    }
}

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

/// Configuration of a model.
#[derive(Debug, Clone)]
pub struct Config {
    /// The SoC.
    pub soc: Soc,
    /// The IOMMU between the engine and memory.
    pub iommu: iommu::Config,
    /// MAC ports, 1 to 8.
    pub ports: u8,
    /// Check the rules for drivers, and keep the first violation in detail. The check costs time
    /// and memory per descriptor.
    pub strict: bool,
    /// Packets that a channel fetches ahead, 1 to 16. The forward occupancy falls long before these
    /// packets complete.
    pub prefetch: u8,
    /// Occupancies show elements some time after their memory was written; otherwise at once.
    pub lag: bool,
    /// Random steps before the answer to each register read, and 64 times as many while the
    /// driver pauses. With them, a driver that waits for the device needs no other thread and no
    /// time.
    pub steps_per_read: u16,
    /// Seed of those steps.
    pub seed: u64,
    /// Frames that a MAC port queues for its wire. A channel whose next frame finds the queue full
    /// waits.
    pub port_depth: usize,
    /// Frames that wait for the receive channel. More frames are dropped and counted.
    pub host_depth: usize,
    /// The ring that shows the end of a receive teardown.
    pub rx_marker: RxMarker,
    /// When interrupts signal.
    pub irq: IrqMode,
    /// Overwrite transmit descriptors and their PS words at completion, so that a driver that
    /// relies on their content fails.
    pub poison: bool,
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
            poison: false,
        }
    }
}
