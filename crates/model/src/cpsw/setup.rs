//! The set-up by firmware: rings, channels, flows.

/// A ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingSetup {
    pub(crate) address: u64,
    pub(crate) count: u32,
    /// Message mode.
    pub(crate) message: bool,
    /// Address space tag of its elements.
    pub(crate) asel: u8,
}

/// A transmit channel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TxSetup {
    pub(crate) fetch_words: u16,
    pub(crate) completion_ring: u16,
    /// Address space tag of its accesses.
    pub(crate) asel: u8,
    /// It passes packets by reference.
    pub(crate) packets: bool,
}

/// The receive channel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RxSetup {
    pub(crate) fetch_words: u16,
    /// The first flow and the number of flows; fixed on PKTDMA.
    pub(crate) flows: (u16, u16),
    pub(crate) asel: u8,
    pub(crate) packets: bool,
}

/// A receive flow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlowSetup {
    pub(crate) flow: u16,
    pub(crate) einfo: bool,
    pub(crate) psinfo: bool,
    pub(crate) stall: bool,
    pub(crate) sop_offset: u16,
    /// The source tag's low byte is the input port.
    pub(crate) source_tag: bool,
    pub(crate) completion_ring: u16,
    pub(crate) free_ring: u16,
}
