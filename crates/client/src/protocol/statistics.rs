//! What the datapath counts for a session.

/// A counter, by its entry in [`Rings::statistics`](super::Rings::statistics).
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
    /// Entries of the counters, a power of two; the last ones are not used.
    pub const ENTRIES: u32 = 8;
}

/// All counters, in the order and with the meaning of AF_XDP's (`struct xdp_statistics`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Statistics {
    /// Packets for the application that were dropped for other reasons than a full RX ring.
    pub rx_dropped: u64,
    /// Invalid entries of the FILL ring, which were skipped.
    pub rx_invalid_descs: u64,
    /// Invalid descriptors of the TX ring, and the pieces in front of them, which were skipped.
    pub tx_invalid_descs: u64,
    /// Packets that were dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Packets that were dropped because too few chunks were posted.
    pub rx_fill_ring_empty_descs: u64,
    /// Bursts that emptied the TX ring.
    pub tx_ring_empty_descs: u64,
}

impl Statistics {
    /// Reads the counters by `entry`, which returns the word of an entry.
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
