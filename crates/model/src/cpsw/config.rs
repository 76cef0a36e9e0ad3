//! What is modelled, and how closely it is watched.

use crate::iommu;

/// How descriptors travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Two-sided rings inside the DMA engine: element `i` comes back at index `i`.
    Pktdma,
    /// A ring accelerator beside it: submission and completion are separate rings.
    Udma,
}

/// The system around the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soc {
    /// AM64x and AM62x: CPSW3G behind PKTDMA, coherent by address tag 15.
    Am64x,
    /// J784S4 main domain: CPSW9G behind UDMA.
    J784s4,
    /// J784S4 MCU domain: CPSW2G behind UDMA.
    J784s4Mcu,
}

impl Soc {
    /// How descriptors travel.
    pub fn family(self) -> Family {
        if self == Soc::Am64x { Family::Pktdma } else { Family::Udma }
    }

    /// First PSI-L thread of packets to the switch; there are eight.
    pub(crate) fn tx_thread(self) -> u16 {
        match self {
            Soc::Am64x => 0xc600,
            Soc::J784s4 => 0xca00,
            Soc::J784s4Mcu => 0xf000,
        }
    }

    /// PSI-L thread of packets from the switch.
    pub(crate) fn rx_thread(self) -> u16 {
        match self {
            Soc::Am64x => 0x4600,
            Soc::J784s4 => 0x4a00,
            Soc::J784s4Mcu => 0x7000,
        }
    }

    /// PSI-L thread of channel 0 of the DMA engine.
    pub(crate) fn psil_base(self) -> u16 {
        if self == Soc::J784s4Mcu { 0x6000 } else { 0x1000 }
    }

    /// Bytes from the real-time registers of one ring to those of the next.
    pub(crate) fn ring_stride(self) -> usize {
        if self.family() == Family::Pktdma { 0x2000 } else { 0x1000 }
    }

    /// The ring that a transmit channel fetches from.
    pub(crate) fn tx_ring(self, channel: u16) -> u16 {
        match self.family() {
            // Channels 19 to 26 own eight flows each, from flow 19 on; a ring has its flow's number.
            Family::Pktdma => 19 + channel.saturating_sub(19) * 8,
            Family::Udma => channel,
        }
    }

    /// The two-sided ring of a receive flow of PKTDMA: there are 99 transmit flows before them.
    pub(crate) fn rx_ring(self, flow: u16) -> u16 {
        flow + 99
    }

    /// Whether the end of a receive teardown is marked on a ring.
    pub(crate) fn marks_rx_teardown(self) -> bool {
        self.family() == Family::Pktdma
    }
}

/// Which flow's ring shows that the receive channel is torn down; the manuals do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RxMarker {
    /// That of the first flow.
    #[default]
    FirstFlow,
    /// All of them.
    AllFlows,
}

/// When an interrupt signals its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IrqMode {
    /// As the interrupt aggregator does: as long as its level is high; again at once, when it was taken with the level still high.
    #[default]
    Level,
    /// Only when the level rises: who goes to sleep with something left on the ring sleeps for good.
    Edge,
}

/// How the model behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// The system.
    pub soc: Soc,
    /// What stands between the engine and memory.
    pub iommu: iommu::Config,
    /// MAC ports, 1 to 8.
    pub ports: u8,
    /// Look for what a driver must not do, and keep the first case in detail. Costs time and memory per descriptor.
    pub strict: bool,
    /// Packets that a channel fetches ahead, 1 to 16: the forward occupancy falls long before they are done.
    pub prefetch: u8,
    /// Counts become visible some time after the memory that they are about; otherwise at once.
    pub lag: bool,
    /// Random steps that each register read runs before it is answered: with them, a driver that waits for the device needs
    /// no other thread.
    pub steps_per_read: u16,
    /// Seed of those steps.
    pub seed: u64,
    /// Frames that wait in a MAC port for its wire; a channel whose next frame finds no room waits.
    pub port_depth: usize,
    /// Frames that wait for the receive channel; more are dropped and counted.
    pub host_depth: usize,
    /// Where the end of a receive teardown shows.
    pub rx_marker: RxMarker,
    /// When interrupts signal.
    pub irq: IrqMode,
    /// Overwrite what a transmit descriptor and its PS words held when it comes back, so that whoever relies on it sees.
    pub poison: bool,
}

impl Config {
    /// A device to be used rather than to be tested by: nothing is judged, counts do not lag, queues are long.
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
    /// An AM64x with two ports, strict, counts that lag, four packets ahead.
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
