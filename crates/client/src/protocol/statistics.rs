//! What befell a session, as the datapath counts it.

/// A counter: the entry of [`Rings::statistics`](super::Rings::statistics) that it stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Statistic {
    /// See [`Statistics::rx_dropped`].
    RxDropped = 0,
    /// See [`Statistics::rx_invalid_descs`].
    RxInvalidDescs = 1,
    /// See [`Statistics::tx_invalid_descs`].
    TxInvalidDescs = 2,
    /// See [`Statistics::rx_ring_full`].
    RxRingFull = 3,
    /// See [`Statistics::rx_fill_ring_empty_descs`].
    RxFillRingEmptyDescs = 4,
    /// See [`Statistics::tx_ring_empty_descs`].
    TxRingEmptyDescs = 5,
}

impl Statistic {
    /// Entries that the counters have, a power of two; the last ones are not used.
    pub const ENTRIES: u32 = 8;
}

/// All counters, in the order and with the meaning of AF_XDP's (`struct xdp_statistics`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Statistics {
    /// Packets for the application that were dropped, but for a full RX ring.
    pub rx_dropped: u64,
    /// Entries of the FILL ring that name no chunk, and were skipped.
    pub rx_invalid_descs: u64,
    /// Descriptors of the TX ring that can't be, and were skipped, with the packets that they are pieces of.
    pub tx_invalid_descs: u64,
    /// Packets that were dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Packets that were dropped because too few chunks were posted.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the TX ring was emptied: there was something in it, and then nothing more.
    pub tx_ring_empty_descs: u64,
}

impl Statistics {
    /// Reads them, entry by entry.
    pub fn read(entry: impl Fn(u32) -> u64) -> Statistics {
        let entry = |which: Statistic| entry(which as u32);
        Statistics {
            rx_dropped: entry(Statistic::RxDropped),
            rx_invalid_descs: entry(Statistic::RxInvalidDescs),
            tx_invalid_descs: entry(Statistic::TxInvalidDescs),
            rx_ring_full: entry(Statistic::RxRingFull),
            rx_fill_ring_empty_descs: entry(Statistic::RxFillRingEmptyDescs),
            tx_ring_empty_descs: entry(Statistic::TxRingEmptyDescs),
        }
    }
}
