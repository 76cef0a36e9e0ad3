//! The calls of TI's K3 system firmware that a driver needs: rings, DMA channels, flows, PSI-L
//! threads.
//!
//! ```text
//!   driver ── Tisci ──► system firmware ──► configuration of rings and channels (firmware only)
//!   driver ── Mmio ───────────────────────► real-time registers of the granted resources
//! ```
//!
//! The calls are those of TI's system controller interface ([TISCI]) for ring accelerator, UDMA and
//! PSI-L. The implementation of the trait provides the transport.
//!
//! [TISCI]: https://software-dl.ti.com/tisci/esd/latest/

/// How software and hardware share a ring (`ring_cfg.mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingMode {
    /// Software keeps its own indices and writes a doorbell; also the two-sided rings of PKTDMA.
    Exposed,
    /// Every element passes through a window of registers.
    Message,
}

/// `TI_SCI_MSG_RM_RING_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
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

/// `TI_SCI_MSG_UDMAP_TX_CH_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxChannelConfig {
    /// The channel's number.
    pub channel: u16,
    /// Words of a descriptor that the channel fetches.
    pub fetch_words: u8,
    /// The completion ring; 0xffff if completions return on the channel's own ring (PKTDMA).
    pub completion_ring: u16,
}

/// `TI_SCI_MSG_UDMAP_RX_CH_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxChannelConfig {
    /// The channel's number.
    pub channel: u16,
    /// Words of a descriptor that the channel fetches.
    pub fetch_words: u8,
    /// Its first flow.
    pub flow_start: u16,
    /// The number of its flows.
    pub flow_count: u16,
}

/// `TI_SCI_MSG_UDMAP_FLOW_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxFlowConfig {
    /// The flow's number.
    pub flow: u16,
    /// Descriptors have the extended packet information block.
    pub einfo: bool,
    /// Descriptors have protocol-specific words.
    pub psinfo: bool,
    /// Without a free descriptor the channel stalls instead of dropping.
    pub stall: bool,
    /// Bytes that the device leaves free at the start of the first buffer.
    pub sop_offset: u16,
    /// Ring of filled descriptors.
    pub completion_ring: u16,
    /// Ring of free descriptors.
    pub free_ring: u16,
}

/// The firmware refused a call, or did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("firmware refused {call}: {what}")]
pub struct Refused {
    /// The call.
    pub call: &'static str,
    /// The reason.
    pub what: &'static str,
}

/// The calls.
pub trait Tisci: Send + Sync + 'static {
    /// Sets up a ring: empty, indices at zero.
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_config(&self, ring: &RingConfig) -> Result<(), Refused>;

    /// Resets a configured ring: indices, counts and flags become zero, the rest stays (a
    /// `ring_cfg` in which only the count is valid).
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_reset(&self, ring: u16) -> Result<(), Refused>;

    /// Sets up a transmit channel.
    ///
    /// # Errors
    /// [`Refused`].
    fn tx_channel_config(&self, channel: &TxChannelConfig) -> Result<(), Refused>;

    /// Sets up a receive channel.
    ///
    /// # Errors
    /// [`Refused`].
    fn rx_channel_config(&self, channel: &RxChannelConfig) -> Result<(), Refused>;

    /// Sets up a receive flow.
    ///
    /// # Errors
    /// [`Refused`].
    fn rx_flow_config(&self, flow: &RxFlowConfig) -> Result<(), Refused>;

    /// Pairs a source thread with a destination thread.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_pair(&self, source: u16, destination: u16) -> Result<(), Refused>;

    /// Unpairs them.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_unpair(&self, source: u16, destination: u16) -> Result<(), Refused>;
}
