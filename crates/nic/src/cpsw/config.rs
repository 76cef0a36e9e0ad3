//! Configuration, and the channel, flow and ring numbers of each SoC.

use crate::batching::BatchSize;
use towpath_bus::DmaPolicy;

/// The DMA engine between processor and switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// PKTDMA: two-sided rings inside the engine; the element at index `i` completes at index `i`.
    Pktdma,
    /// UDMA with a ring accelerator: submission and completion are separate rings.
    Udma,
}

/// Mode of the ring of free receive descriptors. PKTDMA has only [`Exposed`](FreeRing::Exposed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeRing {
    /// The driver stores elements to memory and writes doorbells: a burst costs one register write.
    Exposed,
    /// Each element is a register write of eight bytes.
    Message,
}

/// The SoC around the switch. Channels, flows and rings have the numbers that firmware granted to
/// this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soc {
    /// The DMA engine.
    pub family: Family,
    /// First PSI-L thread to the switch.
    pub tx_thread: u16,
    /// PSI-L thread from the switch.
    pub rx_thread: u16,
    /// PSI-L thread of channel 0 of the engine.
    pub psil_base: u16,
    /// First transmit channel.
    pub tx_channel: u16,
    /// Receive channel.
    pub rx_channel: u16,
    /// First receive flow.
    pub rx_flow: u16,
    /// PKTDMA: the ring of the first transmit channel, and the number of rings per channel. UDMA:
    /// the submission ring has the channel's number; completion rings are taken from this ring on.
    pub tx_ring: (u16, u16),
    /// PKTDMA: the ring of the first receive flow. UDMA: two rings a flow are taken from this ring
    /// on.
    pub rx_ring: u16,
    /// Address space tag (ASEL) of every pointer.
    pub asel: u8,
    /// Mode of the rings of free receive descriptors.
    pub free_ring: FreeRing,
    /// A marker on a ring reports the end of a receive teardown.
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

    /// J784S4, main domain: CPSW9G, free rings in message mode.
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

    /// J7200: as J784S4, with exposed free rings.
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

    /// The submission ring and the completion ring of a transmit channel.
    pub(super) fn tx_rings(&self, channel: u16) -> (u16, u16) {
        let ring = self.tx_ring.0 + channel * self.tx_ring.1;
        match self.family {
            Family::Pktdma => (ring, ring),
            Family::Udma => (self.tx_channel + channel, ring),
        }
    }

    /// The free ring and the completion ring of a flow.
    pub(super) fn rx_rings(&self, flow: u16) -> (u16, u16) {
        match self.family {
            Family::Pktdma => (self.rx_ring + flow, self.rx_ring + flow),
            Family::Udma => (self.rx_ring + 2 * flow, self.rx_ring + 2 * flow + 1),
        }
    }
}

/// How descriptors are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DescAlloc {
    /// From a stack of free indices with one owner.
    #[default]
    Recycled,
    /// From a bitmap that is searched, like `gen_pool` in Linux: for comparison in benches.
    GenPool,
}

/// Configuration of the device and all its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The SoC.
    pub soc: Soc,
    /// MAC ports, 1 to 8.
    pub ports: u8,
    /// Transmit channels, 1 to 8. With at least one per port, each port has channels of its own.
    /// With fewer, ports share them, and each may have only as many frames in flight as its FIFO
    /// takes, so that it does not delay the others; batches are small then.
    pub tx_channels: u8,
    /// Receive flows, 1 to 8. The user priority of a frame decides its flow; its port does not.
    pub rx_flows: u8,
    /// Elements of a transmit ring, 2 to 32768.
    pub tx_ring: u32,
    /// Descriptors of a transmit channel, 2 to 32768; a packet takes one for each of its chunks.
    pub tx_descriptors: u32,
    /// Descriptors, elements and buffers of a receive flow, 2 to 32768.
    pub rx_ring: u32,
    /// Longest frame in either direction, FCS included, 64 to 9604.
    pub max_len: u32,
    /// Buffers of a received frame, 1 to 16; the switch drops frames that they can't hold. With
    /// more than 1, PKTDMA gets chains of this length, and UDMA takes as many descriptors as it
    /// needs. UDMA does so only from rings in message mode: it pushes back descriptors that turn
    /// out to be too few, which an exposed ring does not support.
    pub rx_buffers: u8,
    /// How the IOMMU protects packet memory from the device.
    pub policy: DmaPolicy,
    /// Batch size of each port at its start.
    pub batch: BatchSize,
    /// How descriptors are allocated.
    pub desc_alloc: DescAlloc,
    /// No batches, for comparison in benches: each packet is announced, popped and refilled alone.
    #[doc(hidden)]
    pub singly: bool,
}

impl Default for Config {
    /// Two ports of an AM64x with a channel each, one flow, and rings of 516 and 500 elements as in
    /// Linux.
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
            desc_alloc: DescAlloc::default(),
            singly: false,
        }
    }
}

macro_rules! setters {
    ($($field:ident: $type:ty),+ $(,)?) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(self, $field: $type) -> Config {
            Config { $field, ..self }
        }
    )+};
}

impl Config {
    setters! { soc: Soc, ports: u8, tx_channels: u8, rx_flows: u8, tx_ring: u32, tx_descriptors: u32, rx_ring: u32, max_len: u32, rx_buffers: u8, policy: DmaPolicy, batch: BatchSize, desc_alloc: DescAlloc, singly: bool }

    /// The first field that is out of its range, with its value and the rule.
    pub(super) fn invalid(&self) -> Option<(&'static str, u64, &'static str)> {
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
            .or(self.invalid_chain().map(|rule| ("rx_buffers", u64::from(self.rx_buffers), rule)))
    }

    fn invalid_chain(&self) -> Option<&'static str> {
        let pushes_back = self.soc.family == Family::Udma && self.soc.free_ring == FreeRing::Exposed;
        match self.rx_buffers {
            1 => None,
            2..=16 if pushes_back => Some("must be 1 where UDMA takes free descriptors from exposed rings"),
            2..=16 if u32::from(self.rx_buffers) > self.rx_ring => Some("must not be more than rx_ring"),
            2..=16 => None,
            _ => Some("must be from 1 to 16"),
        }
    }

    /// Bytes of the longest frame to send, without FCS.
    pub(super) fn max_frame(&self) -> usize {
        self.max_len as usize - 4
    }

    /// Transmit channels of each port; 0 if ports share channels.
    pub(super) fn channels_per_port(&self) -> u8 {
        self.tx_channels / self.ports.max(1)
    }
}
