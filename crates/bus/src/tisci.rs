//! What firmware sets up for a driver on TI's K3 processors: rings, DMA channels, flows, and the threads that join them.
//!
//! ```text
//!   driver ── Tisci ──► system firmware ──► configuration space of rings and channels (closed to everybody else)
//!   driver ── Mmio ───────────────────────► real-time registers of what was granted
//! ```
//!
//! The calls are those of TI's system controller interface (TISCI) for ring accelerator, UDMA and PSI-L; their transport is the
//! business of who implements the trait.

/// How software and hardware share a ring (`ring_cfg.mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingMode {
    /// Software keeps the indices of its side and announces by a doorbell; also the two-sided rings of PKTDMA.
    Exposed,
    /// Every element goes through a window of registers.
    Message,
}

/// `TI_SCI_MSG_RM_RING_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// The ring.
    pub ring: u16,
    /// Address of its elements as the device sees it, without the tag.
    pub address: u64,
    /// Elements of eight bytes each.
    pub count: u32,
    /// How it is shared.
    pub mode: RingMode,
    /// Address space tag of its elements (PKTDMA: bits 51:48 of every address; 0 elsewhere).
    pub asel: u8,
}

/// `TI_SCI_MSG_UDMAP_TX_CH_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxChannelConfig {
    /// The channel.
    pub channel: u16,
    /// Words of a descriptor that are fetched.
    pub fetch_words: u8,
    /// The ring on which completions are returned; 0xffff where the channel's own ring takes them (PKTDMA).
    pub completion_ring: u16,
}

/// `TI_SCI_MSG_UDMAP_RX_CH_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxChannelConfig {
    /// The channel.
    pub channel: u16,
    /// Words of a descriptor that are fetched.
    pub fetch_words: u8,
    /// Its first flow.
    pub flow_start: u16,
    /// Its flows.
    pub flow_count: u16,
}

/// `TI_SCI_MSG_UDMAP_FLOW_CFG`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxFlowConfig {
    /// The flow.
    pub flow: u16,
    /// Descriptors have the extended packet information block.
    pub einfo: bool,
    /// Descriptors have protocol specific words.
    pub psinfo: bool,
    /// Without a free descriptor the channel waits, instead of dropping.
    pub stall: bool,
    /// Bytes that the device leaves free at the start of the first buffer.
    pub sop_offset: u16,
    /// Ring of filled descriptors.
    pub completion_ring: u16,
    /// Ring of free descriptors.
    pub free_ring: u16,
}

/// Firmware refused, or did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("firmware refused {call}: {what}")]
pub struct Refused {
    /// The call.
    pub call: &'static str,
    /// Why.
    pub what: &'static str,
}

/// The calls.
pub trait Tisci: Send + Sync + 'static {
    /// Sets up a ring: empty, indices at zero.
    ///
    /// # Errors
    /// [`Refused`].
    fn ring_config(&self, ring: &RingConfig) -> Result<(), Refused>;

    /// Empties a ring that has been set up: indices, counts and flags become zero, the rest stays (a `ring_cfg` in which only
    /// the count is valid).
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

    /// Joins a source thread to a destination thread.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_pair(&self, source: u16, destination: u16) -> Result<(), Refused>;

    /// Parts them.
    ///
    /// # Errors
    /// [`Refused`].
    fn psil_unpair(&self, source: u16, destination: u16) -> Result<(), Refused>;
}
