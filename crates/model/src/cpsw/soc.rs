//! The SoCs: threads, device ids, and what board configuration grants to the host.
//!
//! | | AM62x | AM64x | J7200 | J784S4 | J784S4, MCU |
//! |---|---|---|---|---|---|
//! | transmit threads | c600… | c500… | ca00… | ca00… | f000… |
//! | receive thread | 4600 | 4500 | 4a00 | 4a00 | 7000 |
//! | transmit channels | 19…26 | 16…23 | granted | granted | granted |
//! | their flows, which are rings | 19…82 | 16…79 | – | – | – |
//! | receive channel; flows | 19; 19…34 | 16; 16…31 | granted | granted | granted |
//! | rings of receive flows | flow + 99 | flow + 112 | granted | granted | granted |
//!
//! Threads are those of `k3-psil-*.c` in Linux, ids those of its device trees, ranges those of TI's
//! resource descriptions. Of UDMA, board configuration divides the ranges between all users. The
//! model grants arbitrary parts of the ranges that exist ([`Grants`]).

use towpath_bus::tisci::Range;

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
    /// AM62x: CPSW3G behind PKTDMA, coherent with address tag 15.
    Am62x,
    /// AM64x: as AM62x, with other numbers.
    Am64x,
    /// J7200 main domain: CPSW5G behind UDMA.
    J7200,
    /// J784S4 main domain: CPSW9G behind UDMA.
    J784s4,
    /// J784S4 MCU domain: CPSW2G behind UDMA.
    J784s4Mcu,
}

/// The resources of UDMA that firmware grants to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grants {
    /// Transmit channels.
    pub tx_channels: Range,
    /// Receive channels.
    pub rx_channels: Range,
    /// Receive flows.
    pub rx_flows: Range,
    /// General-purpose rings.
    pub rings: Range,
}

/// A kind of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    TxChannel,
    /// PKTDMA: the flows of transmit channels, each with a ring of its number.
    TxFlow,
    RxChannel,
    RxFlow,
    /// UDMA: general-purpose rings.
    Ring,
}

/// The numbers of one SoC.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) tx_thread: u16,
    pub(crate) rx_thread: u16,
    pub(crate) psil_base: u16,
    /// Device ids: the DMA engine, the rings, the navigator around them.
    pub(crate) dma: u16,
    pub(crate) ring_accelerator: u16,
    pub(crate) navigator: u16,
    /// PKTDMA: transmit flows of the engine, behind whose rings those of receive flows lie.
    tx_flows: u16,
    grants: Grants,
}

const fn range(start: u16, count: u16) -> Range {
    Range { start, count }
}

const AM62X: Numbers = Numbers {
    tx_thread: 0xc600,
    rx_thread: 0x4600,
    psil_base: 0x1000,
    dma: 30,
    ring_accelerator: 30,
    navigator: 25,
    tx_flows: 99,
    grants: Grants {
        tx_channels: range(19, 8),
        rx_channels: range(19, 1),
        rx_flows: range(19, 16),
        rings: range(19, 64),
    },
};

const AM64X: Numbers = Numbers {
    tx_thread: 0xc500,
    rx_thread: 0x4500,
    tx_flows: 112,
    grants: Grants {
        tx_channels: range(16, 8),
        rx_channels: range(16, 1),
        rx_flows: range(16, 16),
        rings: range(16, 64),
    },
    ..AM62X
};

const J7200: Numbers = Numbers {
    tx_thread: 0xca00,
    rx_thread: 0x4a00,
    psil_base: 0x1000,
    dma: 212,
    ring_accelerator: 211,
    navigator: 199,
    tx_flows: 0,
    // Normal channels are 4 to 59, flows that can be configured 60 to 149.
    grants: Grants {
        tx_channels: range(10, 8),
        rx_channels: range(12, 1),
        rx_flows: range(70, 8),
        rings: range(130, 32),
    },
};

const J784S4: Numbers = Numbers {
    dma: 319,
    ring_accelerator: 315,
    navigator: 280,
    // Flows that can be configured begin at 82.
    grants: Grants {
        tx_channels: range(20, 8),
        rx_channels: range(31, 1),
        rx_flows: range(90, 8),
        rings: range(440, 32),
    },
    ..J7200
};

const J784S4_MCU: Numbers = Numbers {
    tx_thread: 0xf000,
    rx_thread: 0x7000,
    psil_base: 0x6000,
    dma: 329,
    ring_accelerator: 328,
    navigator: 323,
    tx_flows: 0,
    // Normal channels are 2 to 44, flows that can be configured begin at 48. There are 286 rings.
    grants: Grants {
        tx_channels: range(6, 8),
        rx_channels: range(9, 1),
        rx_flows: range(50, 8),
        rings: range(160, 32),
    },
};

impl Soc {
    /// The DMA engine.
    pub fn family(self) -> Family {
        if matches!(self, Soc::Am62x | Soc::Am64x) { Family::Pktdma } else { Family::Udma }
    }

    pub(crate) fn numbers(self) -> &'static Numbers {
        match self {
            Soc::Am62x => &AM62X,
            Soc::Am64x => &AM64X,
            Soc::J7200 => &J7200,
            Soc::J784s4 => &J784S4,
            Soc::J784s4Mcu => &J784S4_MCU,
        }
    }

    /// What firmware grants unless a test decides otherwise.
    pub fn grants(self) -> Grants {
        self.numbers().grants
    }

    /// Bytes from the real-time registers of one ring to those of the next.
    pub(crate) fn ring_stride(self) -> usize {
        if self.family() == Family::Pktdma { 0x2000 } else { 0x1000 }
    }

    /// The submission ring of a transmit channel. Each channel of the switch on PKTDMA owns eight
    /// flows, and uses the ring of the first.
    pub(crate) fn tx_ring(self, channel: u16) -> u16 {
        let first = self.grants().tx_channels.start;
        match self.family() {
            Family::Pktdma => self.grants().rings.start + channel.saturating_sub(first) * 8,
            Family::Udma => channel,
        }
    }

    /// The two-sided ring of a receive flow of PKTDMA.
    pub(crate) fn rx_ring(self, flow: u16) -> u16 {
        flow + self.numbers().tx_flows
    }

    /// Whether a marker on a ring reports the end of a receive teardown.
    pub(crate) fn marks_rx_teardown(self) -> bool {
        self.family() == Family::Pktdma
    }

    /// The resource that a subtype of a device stands for.
    pub(crate) fn resource(self, device: u16, subtype: u8) -> Option<Resource> {
        let numbers = self.numbers();
        match (self.family(), subtype) {
            (Family::Pktdma, _) if device != numbers.dma => None,
            (Family::Pktdma, 0x24) => Some(Resource::TxChannel),
            (Family::Pktdma, 0x11) => Some(Resource::TxFlow),
            (Family::Pktdma, 0x2b) => Some(Resource::RxChannel),
            (Family::Pktdma, 0x2c) => Some(Resource::RxFlow),
            (Family::Udma, 0x01) if device == numbers.ring_accelerator => Some(Resource::Ring),
            (Family::Udma, _) if device != numbers.dma => None,
            (Family::Udma, 0x0d) => Some(Resource::TxChannel),
            (Family::Udma, 0x0a) => Some(Resource::RxChannel),
            (Family::Udma, 0x00) => Some(Resource::RxFlow),
            _ => None,
        }
    }
}

impl Grants {
    pub(crate) fn of(&self, resource: Resource) -> Range {
        match resource {
            Resource::TxChannel => self.tx_channels,
            Resource::RxChannel => self.rx_channels,
            Resource::RxFlow => self.rx_flows,
            Resource::TxFlow | Resource::Ring => self.rings,
        }
    }
}
