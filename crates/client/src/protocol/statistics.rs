//! The statistics of a session, counted by the datapath.

macro_rules! statistics {
    ($($(#[$doc:meta])* $variant:ident $field:ident = $entry:literal;)*) => {
        /// A counter, by its entry in [`Rings::statistics`](super::Rings::statistics).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Statistic {
            $(
                #[doc = concat!("See [`Statistics::", stringify!($field), "`].")]
                $variant = $entry,
            )*
        }

        impl Statistic {
            /// All counters.
            pub const ALL: &[Statistic] = &[$(Statistic::$variant),*];

            /// The name of its field.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Statistic::$variant => stringify!($field),)*
                }
            }
        }

        /// All counters. The first six have the order and the meaning of AF_XDP's (`struct
        /// xdp_statistics`). The others are packets that were taken from the TX ring and completed
        /// without being sent, by reason.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Statistics {
            /// Reads the counters by `entry`, which returns the word of an entry.
            pub fn read(entry: impl Fn(u32) -> u64) -> Statistics {
                Statistics { $($field: entry($entry),)* }
            }

            /// One counter.
            pub const fn get(&self, which: Statistic) -> u64 {
                match which {
                    $(Statistic::$variant => self.$field,)*
                }
            }
        }
    };
}

statistics! {
    /// Packets for the application that were dropped for other reasons than a full RX ring.
    RxDropped rx_dropped = 0;
    /// Invalid entries of the FILL ring: those that were skipped, or the one that ended the
    /// session.
    RxInvalidDescs rx_invalid_descs = 1;
    /// Invalid descriptors of the TX ring, and the pieces in front of them: those that were
    /// skipped, or the one that ended the session.
    TxInvalidDescs tx_invalid_descs = 2;
    /// Packets that were dropped because the RX ring was full.
    RxRingFull rx_ring_full = 3;
    /// Packets that were dropped because too few chunks were posted.
    RxFillRingEmptyDescs rx_fill_ring_empty_descs = 4;
    /// Bursts that emptied the TX ring.
    TxRingEmptyDescs tx_ring_empty_descs = 5;
    /// Packets that were shorter than an Ethernet header.
    TxTooShort tx_too_short = 6;
    /// Packets that were [longer than the port sends](super::Welcome::longest), or whose segments
    /// would have been, and super-packets that are longer than any may be.
    TxTooLong tx_too_long = 7;
    /// Packets whose metadata asked for a checksum or for segmentation that is not possible, or not
    /// allowed in this session. Their descriptors are counted as
    /// [invalid](Statistics::tx_invalid_descs), too.
    TxInvalidRequests tx_invalid_requests = 8;
    /// Packets with a source address that the application may not send from.
    TxSpoofed tx_spoofed = 9;
}

impl Statistics {
    /// The packets that were not sent or not received, by reason: counters that are not 0.
    ///
    /// ```
    /// use towpath_client::protocol::{Statistic, Statistics};
    ///
    /// let counters = Statistics::read(|entry| if entry == 7 { 3 } else { 0 });
    /// assert_eq!(counters.drops().collect::<Vec<_>>(), [(Statistic::TxTooLong, 3)]);
    /// assert_eq!(Statistic::TxTooLong.to_string(), "tx_too_long");
    /// ```
    pub fn drops(&self) -> impl Iterator<Item = (Statistic, u64)> {
        let reasons = Statistic::ALL.iter().filter(|which| **which != Statistic::TxRingEmptyDescs);
        reasons.map(|which| (*which, self.get(*which))).filter(|(_, n)| *n > 0)
    }

    /// The entry that ended the session, as a datapath counts it that skips none.
    pub(crate) fn ending(&self) -> Option<Statistic> {
        let ending = [Statistic::TxInvalidRequests, Statistic::TxInvalidDescs, Statistic::RxInvalidDescs];
        ending.into_iter().find(|which| self.get(*which) > 0)
    }
}

impl std::fmt::Display for Statistic {
    /// The name of its field.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Statistic {
    /// Entries of the counters, a power of two; the last ones are not used.
    pub const ENTRIES: u32 = 16;
}

const _: () = assert!(Statistic::ALL.len() <= Statistic::ENTRIES as usize);
