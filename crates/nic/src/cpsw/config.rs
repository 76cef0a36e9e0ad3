//! What is driven, and how.

use crate::batching::BatchSize;
use towpath_bus::DmaPolicy;

/// How descriptors travel between processor and DMA engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// PKTDMA: two-sided rings inside the engine; the element at index `i` comes back at index `i`.
    Pktdma,
    /// UDMA and a ring accelerator: submission and completion are separate rings.
    Udma,
}

/// How the ring of free receive descriptors is filled. PKTDMA has only [`Exposed`](FreeRing::Exposed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeRing {
    /// By memory and doorbells: a burst costs one register write.
    Exposed,
    /// By messages: every descriptor is a register write of eight bytes.
    Message,
}

/// The system around the switch: who is who. The numbers of channels, flows and rings are those that were granted to this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soc {
    /// How descriptors travel.
    pub family: Family,
    /// First PSI-L thread towards the switch.
    pub tx_thread: u16,
    /// PSI-L thread from the switch.
    pub rx_thread: u16,
    /// PSI-L thread of the engine's channel 0.
    pub psil_base: u16,
    /// First transmit channel.
    pub tx_channel: u16,
    /// Receive channel.
    pub rx_channel: u16,
    /// First receive flow.
    pub rx_flow: u16,
    /// PKTDMA: ring of the first transmit channel, and rings from one channel to the next. UDMA: the submission ring of a channel
    /// has the channel's number, and completion rings are taken from here on.
    pub tx_ring: (u16, u16),
    /// PKTDMA: ring of the first receive flow. UDMA: two rings a flow are taken from here on.
    pub rx_ring: u16,
    /// Address space tag of every pointer.
    pub asel: u8,
    /// How free descriptors are handed over.
    pub free_ring: FreeRing,
    /// The end of a receive teardown is marked on a ring.
    pub marks_rx_teardown: bool,
}

impl Soc {
    /// AM64x and AM62x, CPSW3G.
    pub const AM64X: Soc = Soc {
        family: Family::Pktdma,
        tx_thread: 0xc600,
        rx_thread: 0x4600,
        psil_base: 0x1000,
        tx_channel: 19,
        rx_channel: 19,
        rx_flow: 19,
        tx_ring: (19, 8),
        rx_ring: 118,
        asel: 15,
        free_ring: FreeRing::Exposed,
        marks_rx_teardown: true,
    };

    /// J784S4, main domain: CPSW9G, free descriptors by messages.
    pub const J784S4: Soc = Soc {
        family: Family::Udma,
        tx_thread: 0xca00,
        rx_thread: 0x4a00,
        psil_base: 0x1000,
        tx_channel: 0,
        rx_channel: 0,
        rx_flow: 160,
        tx_ring: (512, 1),
        rx_ring: 528,
        asel: 0,
        free_ring: FreeRing::Message,
        marks_rx_teardown: false,
    };

    /// J7200: as J784S4, with exposed rings for free descriptors.
    pub const J7200: Soc = Soc { free_ring: FreeRing::Exposed, ..Soc::J784S4 };

    /// J784S4 and J721E, MCU domain: CPSW2G.
    pub const J784S4_MCU: Soc = Soc {
        tx_thread: 0xf000,
        rx_thread: 0x7000,
        psil_base: 0x6000,
        rx_flow: 48,
        tx_ring: (128, 1),
        rx_ring: 144,
        ..Soc::J784S4
    };

    pub(super) fn submit_ring(&self, channel: u16) -> u16 {
        match self.family {
            Family::Pktdma => self.tx_ring.0 + channel * self.tx_ring.1,
            Family::Udma => self.tx_channel + channel,
        }
    }

    pub(super) fn tx_completion_ring(&self, channel: u16) -> u16 {
        self.tx_ring.0 + channel * self.tx_ring.1
    }

    /// The rings of free and of filled descriptors of a flow.
    pub(super) fn rx_rings(&self, flow: u16) -> (u16, u16) {
        match self.family {
            Family::Pktdma => (self.rx_ring + flow, self.rx_ring + flow),
            Family::Udma => (self.rx_ring + 2 * flow, self.rx_ring + 2 * flow + 1),
        }
    }
}

/// Where descriptors come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discipline {
    /// Recycled: an array of free indices, one owner.
    #[default]
    Recycled,
    /// As drivers do without recycling, for comparison in benches: allocated from a pool by searching a bitmap, freed to it.
    Pooled,
}

/// How it is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The system.
    pub soc: Soc,
    /// MAC ports, 1 to 8.
    pub ports: u8,
    /// Transmit channels, 1 to 8. With at least one a port, every port has channels of its own. With fewer, ports share them, and each
    /// may only have as many frames under way as its FIFO takes, lest it hold up the others: batches are small then.
    pub tx_channels: u8,
    /// Receive flows, 1 to 8: a frame's flow follows from its user priority, whatever port it came in at.
    pub rx_flows: u8,
    /// Elements of a transmit ring, 2 to 32768.
    pub tx_ring: u32,
    /// Descriptors of a transmit channel, 2 to 32768: a packet takes one for each of its pieces.
    pub tx_descriptors: u32,
    /// Descriptors, elements and buffers of a receive flow, 2 to 32768.
    pub rx_ring: u32,
    /// Longest frame in either direction, FCS included, 64 to 9604.
    pub max_len: u32,
    /// Buffers that a received frame may be spread over, 1 to 16; longer frames than they hold are not let in. Beyond 1 PKTDMA is
    /// given chains of as many, and UDMA takes what it needs, from rings of messages only: what it has taken in vain
    /// it pushes back, which an exposed ring does not stand.
    pub rx_buffers: u8,
    /// How the memory of packets is protected from the device.
    pub policy: DmaPolicy,
    /// Batch size that ports begin with.
    pub batch: BatchSize,
    /// Where descriptors come from.
    pub discipline: Discipline,
    /// As drivers do without batches, for comparison in benches: every packet is announced, popped and refilled by itself.
    #[doc(hidden)]
    pub singly: bool,
}

impl Default for Config {
    /// Two ports of an AM64x, a channel each, one flow, rings of 516 and 500 elements as in Linux.
    fn default() -> Config {
        Config {
            soc: Soc::AM64X,
            ports: 2,
            tx_channels: 8,
            rx_flows: 1,
            tx_ring: 516,
            tx_descriptors: 500,
            rx_ring: 500,
            max_len: 2024,
            rx_buffers: 1,
            policy: DmaPolicy::default(),
            batch: BatchSize::default(),
            discipline: Discipline::default(),
            singly: false,
        }
    }
}

impl Config {
    /// The first field that is out of its range, with its value and the rule.
    pub(super) fn fault(&self) -> Option<(&'static str, u64, &'static str)> {
        let few = |name, n: u8| (!(1..=8).contains(&n)).then_some((name, u64::from(n), "must be from 1 to 8"));
        let many =
            |name, n: u32| (!(2..=32_768).contains(&n)).then_some((name, u64::from(n), "must be from 2 to 32768"));
        few("ports", self.ports)
            .or(few("tx_channels", self.tx_channels))
            .or(few("rx_flows", self.rx_flows))
            .or(many("tx_ring", self.tx_ring))
            .or(many("tx_descriptors", self.tx_descriptors))
            .or(many("rx_ring", self.rx_ring))
            .or((!(64..=9604).contains(&self.max_len)).then_some((
                "max_len",
                u64::from(self.max_len),
                "must be from 64 to 9604",
            )))
            .or(self.chain_fault().map(|rule| ("rx_buffers", u64::from(self.rx_buffers), rule)))
    }

    fn chain_fault(&self) -> Option<&'static str> {
        let pushes_back = self.soc.family == Family::Udma && self.soc.free_ring == FreeRing::Exposed;
        match self.rx_buffers {
            1 => None,
            2..=16 if pushes_back => Some("must be 1 where UDMA takes free descriptors from exposed rings"),
            2..=16 if u32::from(self.rx_buffers) > self.rx_ring => Some("must not be more than rx_ring"),
            2..=16 => None,
            _ => Some("must be from 1 to 16"),
        }
    }

    /// Bytes of the longest frame that is sent, without FCS.
    pub(super) fn longest(&self) -> usize {
        self.max_len as usize - 4
    }

    /// Channels that each port has for itself; 0 where they are shared.
    pub(super) fn channels_per_port(&self) -> u8 {
        self.tx_channels / self.ports.max(1)
    }
}
