//! The messages of TI's K3 system firmware that a driver needs: rings, DMA channels, flows, PSI-L
//! threads, and the ranges of them that this host was granted.
//!
//! ```text
//!   driver ── Tisci: typed calls ──► Message ── call ──► system firmware ──► configuration (firmware only)
//!   driver ── Mmio ──────────────────────────────────────────────────────► real-time registers
//! ```
//!
//! The messages are those of TI's system controller interface ([TISCI]) for ring accelerator, UDMA
//! and PSI-L: packed, little-endian, behind a header of eight bytes (`drivers/firmware/ti_sci.h` in
//! Linux). A message has a mask of its valid fields; firmware leaves all others as they are. The
//! values and masks are those of Linux (`k3-ringacc.c`, `k3-udma-glue.c`).
//!
//! An implementation of [`Tisci`] provides only the transport, [`call`](Tisci::call). It fills in
//! host and sequence number.
//!
//! [TISCI]: https://software-dl.ti.com/tisci/esd/latest/

use std::borrow::Cow;

/// Bytes of the longest message: a secure proxy passes 60.
pub const MAX_MESSAGE: usize = 60;
/// Bytes of the header: type, host, sequence number, flags.
const HEADER: usize = 8;
/// Flag of a request: firmware answers when it has processed it.
const ACK_ON_PROCESSED: u32 = 1 << 1;

/// The type of a message.
pub mod kind {
    /// `TI_SCI_MSG_RM_RING_CFG`
    pub const RING_CONFIG: u16 = 0x1110;
    /// `TI_SCI_MSG_RM_UDMAP_TX_CH_CFG`
    pub const TX_CHANNEL_CONFIG: u16 = 0x1205;
    /// `TI_SCI_MSG_RM_UDMAP_RX_CH_CFG`
    pub const RX_CHANNEL_CONFIG: u16 = 0x1215;
    /// `TI_SCI_MSG_RM_UDMAP_FLOW_CFG`
    pub const RX_FLOW_CONFIG: u16 = 0x1230;
    /// `TI_SCI_MSG_RM_PSIL_PAIR`
    pub const PSIL_PAIR: u16 = 0x1280;
    /// `TI_SCI_MSG_RM_PSIL_UNPAIR`
    pub const PSIL_UNPAIR: u16 = 0x1281;
    /// `TI_SCI_MSG_GET_RESOURCE_RANGE`
    pub const GET_RANGE: u16 = 0x1500;
}

/// A request, or its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message {
    bytes: [u8; MAX_MESSAGE],
    len: usize,
}

impl Message {
    /// A request without a body.
    fn request(kind: u16) -> Message {
        Message { bytes: [0; MAX_MESSAGE], len: 0 }.u16(kind).u8(0).u8(0).u32(ACK_ON_PROCESSED)
    }

    /// A message with these bytes; `None` if they are no message: less than a header, or too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let mut message = Message { bytes: [0; MAX_MESSAGE], len: bytes.len() };
        if bytes.len() < HEADER {
            return None;
        }
        message.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(message)
    }

    /// The bytes, header included.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The type.
    pub fn kind(&self) -> u16 {
        u16::from_le_bytes([self.bytes[0], self.bytes[1]])
    }

    fn put<const N: usize>(mut self, bytes: [u8; N]) -> Message {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + N) {
            place.copy_from_slice(&bytes);
            self.len += N;
        }
        self
    }

    fn u8(self, value: u8) -> Message {
        self.put([value])
    }

    fn u16(self, value: u16) -> Message {
        self.put(value.to_le_bytes())
    }

    fn u32(self, value: u32) -> Message {
        self.put(value.to_le_bytes())
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes().get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Message({:02x?})", self.bytes())
    }
}

/// How software and hardware share a ring (`ring_cfg.mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingMode {
    /// Software keeps its own indices and writes a doorbell; also the two-sided rings of PKTDMA.
    Exposed,
    /// Every element passes through a window of registers.
    Message,
}

/// `TI_SCI_MSG_RM_RING_CFG`. Order and virtual id are not valid: they stay as board configuration
/// set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl RingConfig {
    /// Address, count, mode, element size, address space tag (`k3_ringacc_ring_cfg_sci`).
    const VALID: u32 = 0x9f;
    /// The element size as firmware encodes it: 4 bytes, shifted by this.
    const ELEMENT: u8 = 1;

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

/// `TI_SCI_MSG_RM_UDMAP_TX_CH_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl TxChannelConfig {
    /// Pause on error, tag, type, fetch size, completion ring; filters of EPIB and PS words and of
    /// the end of a teardown, all off (`k3_udma_glue_cfg_tx_chn`).
    const VALID: u32 = 0x0e1f;

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

/// `TI_SCI_MSG_RM_UDMAP_RX_CH_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl RxChannelConfig {
    /// Tag, type, fetch size, completion ring (`k3_udma_glue_cfg_rx_chn`).
    const VALID: u32 = 0x001e;
    /// The range of flows.
    const VALID_FLOWS: u32 = 0x0600;
    /// No completion ring: each flow has its own.
    const NO_RING: u16 = 0xffff;

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

/// `TI_SCI_MSG_RM_UDMAP_FLOW_CFG`, for host descriptors with their PS words inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The low byte of a descriptor's source tag is that of the packet's source: the switch's input
    /// port (selector 4). Otherwise it is zero.
    pub source_tag: bool,
    /// Ring of filled descriptors.
    pub completion_ring: u16,
    /// Ring of free descriptors, of any size of buffer.
    pub free_ring: u16,
}

impl RxFlowConfig {
    /// EPIB, PS words, errors, descriptor type, completion ring, selectors of tags, free rings; not
    /// the offset of data, constants of tags and place of PS words (`k3_udma_glue_cfg_rx_flow`).
    const VALID: u32 = 0x3_fc2f;
    /// Selector of a tag: that of the packet's source.
    const REMOTE_SOURCE: u8 = 4;

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

/// A range of channels, flows or rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// The first.
    pub start: u16,
    /// Their number.
    pub count: u16,
}

impl Range {
    /// Whether `count` from `start` on lie inside.
    pub fn holds(self, start: u16, count: u16) -> bool {
        let end = |start: u16, count: u16| u32::from(start) + u32::from(count);
        start >= self.start && end(start, count) <= end(self.start, self.count)
    }
}

/// The message that asks for the ranges of a resource: `subtype` of `device`. 255 stands for this
/// host.
pub fn range_message(device: u16, subtype: u8) -> Message {
    Message::request(kind::GET_RANGE).u16(device).u8(subtype).u8(255)
}

/// The ranges of an answer; the second one is usually empty.
fn ranges(answer: &Message) -> Option<[Range; 2]> {
    let word = |i: usize| answer.u16_at(HEADER + 2 * i);
    Some([Range { start: word(0)?, count: word(1)? }, Range { start: word(2)?, count: word(3)? }])
}

/// Firmware refused a call, or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("firmware refused {call}: {what}")]
pub struct Refused {
    /// The call.
    pub call: &'static str,
    /// The reason.
    pub what: Cow<'static, str>,
}

impl Refused {
    /// A refusal of a message, by its type.
    pub fn new(message: &Message, what: impl Into<Cow<'static, str>>) -> Refused {
        let call = match message.kind() {
            kind::RING_CONFIG => "ring_config",
            kind::TX_CHANNEL_CONFIG => "tx_channel_config",
            kind::RX_CHANNEL_CONFIG => "rx_channel_config",
            kind::RX_FLOW_CONFIG => "rx_flow_config",
            kind::PSIL_PAIR => "psil_pair",
            kind::PSIL_UNPAIR => "psil_unpair",
            kind::GET_RANGE => "get_range",
            _ => "an unknown message",
        };
        Refused { call, what: what.into() }
    }
}

/// The way to system firmware, and the calls.
pub trait Tisci: Send + Sync + 'static {
    /// Sends a request and waits for its answer, which has a body only for
    /// [`GET_RANGE`](kind::GET_RANGE).
    ///
    /// # Errors
    /// [`Refused`] if firmware does not acknowledge the request, or does not answer.
    fn call(&self, request: &Message) -> Result<Message, Refused>;

    /// Sets up a ring: empty, indices at zero.
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_config(&self, ring: &RingConfig) -> Result<(), Refused> {
        self.call(&ring.message()).map(drop)
    }

    /// Resets a configured ring of `count` elements: indices, counts and flags become zero, the
    /// rest stays.
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_reset(&self, device: u16, ring: u16, count: u32) -> Result<(), Refused> {
        self.call(&RingConfig::reset_message(device, ring, count)).map(drop)
    }

    /// Sets up a transmit channel.
    ///
    /// # Errors
    /// [`Refused`].
    fn tx_channel_config(&self, channel: &TxChannelConfig) -> Result<(), Refused> {
        self.call(&channel.message()).map(drop)
    }

    /// Sets up a receive channel.
    ///
    /// # Errors
    /// [`Refused`].
    fn rx_channel_config(&self, channel: &RxChannelConfig) -> Result<(), Refused> {
        self.call(&channel.message()).map(drop)
    }

    /// Sets up a receive flow.
    ///
    /// # Errors
    /// [`Refused`].
    fn rx_flow_config(&self, flow: &RxFlowConfig) -> Result<(), Refused> {
        self.call(&flow.message()).map(drop)
    }

    /// Pairs a source thread with a destination thread, 0x8000 and up, of the navigator `device`.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_pair(&self, device: u16, source: u16, destination: u16) -> Result<(), Refused> {
        self.call(&psil_message(kind::PSIL_PAIR, device, source, destination)).map(drop)
    }

    /// Unpairs them.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_unpair(&self, device: u16, source: u16, destination: u16) -> Result<(), Refused> {
        self.call(&psil_message(kind::PSIL_UNPAIR, device, source, destination)).map(drop)
    }

    /// The ranges of a resource that this host was granted.
    ///
    /// # Errors
    /// [`Refused`], also if the answer is too short.
    fn ranges(&self, device: u16, subtype: u8) -> Result<[Range; 2], Refused> {
        let request = range_message(device, subtype);
        ranges(&self.call(&request)?).ok_or_else(|| Refused::new(&request, "the answer is too short"))
    }
}

fn psil_message(kind: u16, device: u16, source: u16, destination: u16) -> Message {
    Message::request(kind).u32(device.into()).u32(source.into()).u32(destination.into())
}

#[cfg(test)]
mod tests {
    //! The messages, byte by byte, written out from TI's message descriptions (`ti_sci.h`): each
    //! line is one field.

    use super::*;

    const HEAD: [u8; 6] = [0, 0, 2, 0, 0, 0];

    #[track_caller]
    fn assert_bytes(message: Message, kind: [u8; 2], body: &[&[u8]]) {
        let expected = [&kind[..], &HEAD, &body.concat()].concat();
        assert_eq!(message.bytes(), expected);
    }

    #[test]
    fn a_ring_has_address_count_mode_size_and_tag_and_no_order_or_virtual_id() {
        let ring =
            RingConfig { device: 30, ring: 128, address: 0x8_1234_5600, count: 516, mode: RingMode::Exposed, asel: 15 };
        let body: [&[u8]; 11] = [
            &[0x9f, 0, 0, 0],          // valid_params
            &[30, 0],                  // nav_id
            &[128, 0],                 // index
            &[0x00, 0x56, 0x34, 0x12], // addr_lo
            &[8, 0, 0, 0],             // addr_hi
            &[4, 2, 0, 0],             // count
            &[0],                      // mode
            &[1],                      // size
            &[0],                      // order_id
            &[0, 0],                   // virtid
            &[15],                     // asel
        ];
        assert_bytes(ring.message(), [0x10, 0x11], &body);
        let message = RingConfig { mode: RingMode::Message, asel: 0, ..ring }.message();
        assert_eq!(message.bytes()[28], 1);
        assert_eq!(message.bytes().len(), 34);
    }

    #[test]
    fn a_ring_is_reset_by_its_count_alone() {
        let message = RingConfig::reset_message(211, 0x123, 500);
        let zeros = [0; 8];
        let body: [&[u8]; 6] = [&[4, 0, 0, 0], &[211, 0], &[0x23, 1], &zeros, &[0xf4, 1, 0, 0], &[0; 6]];
        assert_bytes(message, [0x10, 0x11], &body);
    }

    #[test]
    fn a_transmit_channel_passes_packets_by_reference_with_the_tag_of_its_rings() {
        let channel = TxChannelConfig { device: 30, channel: 17, fetch_words: 24, completion_ring: 0x118, asel: 15 };
        let body: [&[u8]; 19] = [
            &[0x1f, 0x0e, 0, 0], // valid_params
            &[30, 0],            // nav_id
            &[17, 0],            // index
            &[0],                // tx_pause_on_err
            &[0],                // tx_filt_einfo
            &[0],                // tx_filt_pswords
            &[15],               // tx_atype
            &[2],                // tx_chan_type
            &[0],                // tx_supr_tdpkt
            &[24, 0],            // tx_fetch_size
            &[0],                // tx_credit_count
            &[0x18, 1],          // txcq_qnum
            &[0, 0],             // tx_priority, tx_qos
            &[0],                // tx_orderid
            &[0, 0],             // fdepth
            &[0],                // tx_sched_priority
            &[0],                // tx_burst_size
            &[0],                // tx_tdtype
            &[0],                // extended_ch_type
        ];
        assert_bytes(channel.message(), [0x05, 0x12], &body);
    }

    #[test]
    fn a_receive_channel_has_a_range_of_flows_only_where_they_are_not_fixed() {
        let channel = RxChannelConfig { device: 212, channel: 5, fetch_words: 24, flows: Some((90, 2)), asel: 0 };
        let body = |valid: &'static [u8], start: &'static [u8], count: &'static [u8]| {
            [
                valid,
                &[212, 0],     // nav_id
                &[5, 0],       // index
                &[24, 0],      // rx_fetch_size
                &[0xff, 0xff], // rxcq_qnum
                &[0, 0, 0, 0], // rx_priority, rx_qos, rx_orderid, rx_sched_priority
                start,         // flowid_start
                count,         // flowid_cnt
                &[0],          // rx_pause_on_err
                &[0],          // rx_atype
                &[2],          // rx_chan_type
                &[0, 0],       // rx_ignore_short, rx_ignore_long
                &[0],          // rx_burst_size
            ]
        };
        assert_bytes(channel.message(), [0x15, 0x12], &body(&[0x1e, 6, 0, 0], &[90, 0], &[2, 0]));
        let fixed = RxChannelConfig { flows: None, ..channel };
        assert_bytes(fixed.message(), [0x15, 0x12], &body(&[0x1e, 0, 0, 0], &[0, 0], &[0, 0]));
    }

    #[test]
    fn a_flow_selects_the_remote_source_tag_and_names_one_ring_for_all_free_buffers() {
        let flow = RxFlowConfig {
            device: 30,
            flow: 16,
            einfo: true,
            psinfo: true,
            stall: false,
            source_tag: true,
            completion_ring: 128,
            free_ring: 0x181,
        };
        let body: [&[u8]; 23] = [
            &[0x2f, 0xfc, 3, 0], // valid_params
            &[30, 0],            // nav_id
            &[16, 0],            // flow_index
            &[1],                // rx_einfo_present
            &[1],                // rx_psinfo_present
            &[0],                // rx_error_handling
            &[0],                // rx_desc_type
            &[0, 0],             // rx_sop_offset
            &[128, 0],           // rx_dest_qnum
            &[0],                // rx_src_tag_hi
            &[0],                // rx_src_tag_lo
            &[0],                // rx_dest_tag_hi
            &[0],                // rx_dest_tag_lo
            &[0],                // rx_src_tag_hi_sel
            &[4],                // rx_src_tag_lo_sel
            &[0],                // rx_dest_tag_hi_sel
            &[0],                // rx_dest_tag_lo_sel
            &[0x81, 1],          // rx_fdq0_sz0_qnum
            &[0x81, 1],          // rx_fdq1_qnum
            &[0x81, 1],          // rx_fdq2_qnum
            &[0x81, 1],          // rx_fdq3_qnum
            &[0],                // rx_ps_location
            &[],
        ];
        assert_bytes(flow.message(), [0x30, 0x12], &body);
    }

    #[test]
    fn threads_are_paired_and_ranges_asked_for_by_the_ids_of_the_descriptions() {
        let pair: [&[u8]; 3] = [&[25, 0, 0, 0], &[0x10, 0x10, 0, 0], &[0, 0xc5, 0, 0]];
        assert_bytes(psil_message(kind::PSIL_PAIR, 25, 0x1010, 0xc500), [0x80, 0x12], &pair);
        assert_bytes(psil_message(kind::PSIL_UNPAIR, 25, 0x1010, 0xc500), [0x81, 0x12], &pair);
        assert_bytes(range_message(30, 0x24), [0, 0x15], &[&[30, 0], &[0x24], &[255]]);
    }

    /// A transport that answers each request with the same bytes.
    struct Answer(&'static [u8]);

    impl Tisci for Answer {
        fn call(&self, _: &Message) -> Result<Message, Refused> {
            Ok(Message::from_bytes(self.0).unwrap())
        }
    }

    #[test]
    fn an_answer_has_two_ranges_and_one_that_is_too_short_is_refused() {
        let answer = Answer(&[0, 0x15, 0, 0, 2, 0, 0, 0, 16, 0, 8, 0, 0x23, 1, 1, 0]);
        let first = Range { start: 16, count: 8 };
        assert_eq!(answer.ranges(30, 0x24), Ok([first, Range { start: 0x123, count: 1 }]));
        assert!(first.holds(16, 8) && first.holds(23, 1) && !first.holds(15, 1) && !first.holds(17, 8));
        let short = Answer(&[0, 0x15, 0, 0, 2, 0, 0, 0, 16, 0]).ranges(30, 0x24).unwrap_err();
        assert_eq!(short.to_string(), "firmware refused get_range: the answer is too short");
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        assert!(Message::from_bytes(&[0; 7]).is_none());
        assert!(Message::from_bytes(&[0; 61]).is_none());
        assert_eq!(Message::from_bytes(&[0; 60]).unwrap().bytes().len(), 60);
    }
}
