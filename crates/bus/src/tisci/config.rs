//! Rings, channels and flows as firmware sets them up: each one message.

use super::message::{Message, kind};
use towpath_packet::setters;

/// How software and hardware share a ring (`ring_cfg.mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingMode {
    /// Software keeps its own indices and writes a doorbell; also the two-sided rings of PKTDMA.
    Exposed,
    /// Every element passes through a window of registers.
    Message,
}

setters! {
    /// `TI_SCI_MSG_RM_RING_CFG`. Order and virtual id are not valid: they stay as board
    /// configuration set them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct RingConfig {
        /// Device id of the ring accelerator; of the PKTDMA for its own rings.
        pub device: u16,
        /// The ring's number.
        pub ring: u16,
        /// The IOVA of its elements, without the address space tag.
        pub address: u64,
        /// Elements, of eight bytes each.
        pub count: u32,
        /// The mode.
        pub mode: RingMode,
        /// Address space tag of its elements (PKTDMA: bits 51:48 of every address; 0 elsewhere).
        pub asel: u8,
    }
}

impl RingConfig {
    /// Address, count, mode, element size, address space tag (`k3_ringacc_ring_cfg_sci`).
    const VALID: u32 = 0x9f;
    /// The element size as firmware encodes it: 4 bytes, shifted by this.
    const ELEMENT: u8 = 1;

    /// A ring in exposed mode. Everything else is zero until it is set.
    pub const fn new(device: u16, ring: u16) -> RingConfig {
        RingConfig { device, ring, address: 0, count: 0, mode: RingMode::Exposed, asel: 0 }
    }

    /// The message.
    pub fn message(&self) -> Message {
        let mode = match self.mode {
            RingMode::Exposed => 0,
            RingMode::Message => 1,
        };
        Message::request(kind::RING_CONFIG)
            .u32(RingConfig::VALID)
            .u16(self.device)
            .u16(self.ring)
            .u32(self.address as u32)
            .u32((self.address >> 32) as u32)
            .u32(self.count)
            .u8(mode)
            .u8(RingConfig::ELEMENT)
            .u8(0)
            .u16(0)
            .u8(self.asel)
    }

    /// The message that resets a configured ring: only the count is valid
    /// (`k3_ringacc_ring_reset_sci`).
    pub fn reset_message(device: u16, ring: u16, count: u32) -> Message {
        let head = Message::request(kind::RING_CONFIG).u32(1 << 2).u16(device).u16(ring);
        head.u32(0).u32(0).u32(count).u8(0).u8(0).u8(0).u16(0).u8(0)
    }
}

/// A channel that passes packets by reference (`tx_chan_type`, `rx_chan_type`).
const PACKETS_BY_REFERENCE: u8 = 2;

setters! {
    /// `TI_SCI_MSG_RM_UDMAP_TX_CH_CFG`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct TxChannelConfig {
        /// Device id of the DMA engine.
        pub device: u16,
        /// The channel's number.
        pub channel: u16,
        /// Words of a descriptor that the channel fetches.
        pub fetch_words: u16,
        /// The completion ring; of PKTDMA the channel's own ring.
        pub completion_ring: u16,
        /// Address space tag of the channel's own accesses (`tx_atype`): that of its rings.
        pub asel: u8,
    }
}

impl TxChannelConfig {
    /// Pause on error, tag, type, fetch size, completion ring; filters of EPIB and PS words and of
    /// the end of a teardown, all off (`k3_udma_glue_cfg_tx_chn`).
    const VALID: u32 = 0x0e1f;

    /// A channel. Everything else is zero until it is set.
    pub const fn new(device: u16, channel: u16) -> TxChannelConfig {
        TxChannelConfig { device, channel, fetch_words: 0, completion_ring: 0, asel: 0 }
    }

    /// The message.
    pub fn message(&self) -> Message {
        Message::request(kind::TX_CHANNEL_CONFIG)
            .u32(TxChannelConfig::VALID)
            .u16(self.device)
            .u16(self.channel)
            // Pause on error, filters of EPIB and of PS words.
            .put([0; 3])
            .u8(self.asel)
            .u8(PACKETS_BY_REFERENCE)
            // No suppression of the end of a teardown.
            .u8(0)
            .u16(self.fetch_words)
            // Credits.
            .u8(0)
            .u16(self.completion_ring)
            // Priority, QoS, order id, FIFO depth, scheduling, burst size, teardown, extended type.
            .put([0; 9])
    }
}

setters! {
    /// `TI_SCI_MSG_RM_UDMAP_RX_CH_CFG`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct RxChannelConfig {
        /// Device id of the DMA engine.
        pub device: u16,
        /// The channel's number.
        pub channel: u16,
        /// Words of a descriptor that the channel fetches.
        pub fetch_words: u16,
        /// The first flow and the number of flows, where they are not fixed (UDMA).
        pub flows: Option<(u16, u16)>,
        /// Address space tag of the channel's own accesses (`rx_atype`): that of its rings.
        pub asel: u8,
    }
}

impl RxChannelConfig {
    /// Tag, type, fetch size, completion ring (`k3_udma_glue_cfg_rx_chn`).
    const VALID: u32 = 0x001e;
    /// The range of flows.
    const VALID_FLOWS: u32 = 0x0600;
    /// No completion ring: each flow has its own.
    const NO_RING: u16 = 0xffff;

    /// A channel whose flows are fixed. Everything else is zero until it is set.
    pub const fn new(device: u16, channel: u16) -> RxChannelConfig {
        RxChannelConfig { device, channel, fetch_words: 0, flows: None, asel: 0 }
    }

    /// The message.
    pub fn message(&self) -> Message {
        let (start, count) = self.flows.unwrap_or_default();
        let flows = if self.flows.is_some() { RxChannelConfig::VALID_FLOWS } else { 0 };
        Message::request(kind::RX_CHANNEL_CONFIG)
            .u32(RxChannelConfig::VALID | flows)
            .u16(self.device)
            .u16(self.channel)
            .u16(self.fetch_words)
            .u16(RxChannelConfig::NO_RING)
            // Priority, QoS, order id, scheduling.
            .put([0; 4])
            .u16(start)
            .u16(count)
            // No pause on error.
            .u8(0)
            .u8(self.asel)
            .u8(PACKETS_BY_REFERENCE)
            // Short and long packets, burst size.
            .put([0; 3])
    }
}

setters! {
    /// `TI_SCI_MSG_RM_UDMAP_FLOW_CFG`, for host descriptors with their PS words inside.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct RxFlowConfig {
        /// Device id of the DMA engine.
        pub device: u16,
        /// The flow's number.
        pub flow: u16,
        /// Descriptors have the extended packet information block.
        pub einfo: bool,
        /// Descriptors have protocol-specific words.
        pub psinfo: bool,
        /// Without a free descriptor the channel stalls instead of dropping.
        pub stall: bool,
        /// The low byte of a descriptor's source tag is that of the packet's source: the switch's
        /// input port (selector 4). Otherwise it is zero.
        pub source_tag: bool,
        /// Ring of filled descriptors.
        pub completion_ring: u16,
        /// Ring of free descriptors, of any size of buffer.
        pub free_ring: u16,
    }
}

impl RxFlowConfig {
    /// EPIB, PS words, errors, descriptor type, completion ring, selectors of tags, free rings; not
    /// the offset of data, constants of tags and place of PS words (`k3_udma_glue_cfg_rx_flow`).
    const VALID: u32 = 0x3_fc2f;
    /// Selector of a tag: that of the packet's source.
    const REMOTE_SOURCE: u8 = 4;

    /// A flow between two rings. Everything else is off until it is set.
    pub const fn new(device: u16, flow: u16, completion_ring: u16, free_ring: u16) -> RxFlowConfig {
        let (einfo, psinfo, stall, source_tag) = (false, false, false, false);
        RxFlowConfig { device, flow, einfo, psinfo, stall, source_tag, completion_ring, free_ring }
    }

    /// The message.
    pub fn message(&self) -> Message {
        let source = if self.source_tag { RxFlowConfig::REMOTE_SOURCE } else { 0 };
        Message::request(kind::RX_FLOW_CONFIG)
            .u32(RxFlowConfig::VALID)
            .u16(self.device)
            .u16(self.flow)
            .u8(self.einfo.into())
            .u8(self.psinfo.into())
            .u8(self.stall.into())
            // Host descriptors, and no offset of data.
            .u8(0)
            .u16(0)
            .u16(self.completion_ring)
            // Constants of tags.
            .put([0; 4])
            // Selectors: source high and low, destination high and low.
            .put([0, source, 0, 0])
            .u16(self.free_ring)
            .u16(self.free_ring)
            .u16(self.free_ring)
            .u16(self.free_ring)
            .u8(0)
    }
}
