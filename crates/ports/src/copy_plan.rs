//! The copy plan of a packet in an untrusted owner's pages: what is copied, and what goes on as a
//! page.
//!
//! ```text
//!   a frame of one piece, to an egress that takes fragments ──► its page, no head
//!   a frame of one piece, to be copied whole                ──► a head with the copy
//!   any other                                               ──► a head with copies, then pages
//! ```

use towpath_packet::Packet;
use towpath_packet::port::{TxLayout, TxLinear};

/// How much of a packet is copied out of its pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyPlan {
    /// The number of bytes, from the first of the packet.
    linear: usize,
    /// Bytes to leave free behind them.
    tailroom: usize,
    /// How frames of one piece are taken.
    single: SinglePiece,
}

/// The way of a frame of one piece without metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinglePiece {
    /// Its page without a head: the egress needs no headroom.
    Page,
    /// A copy of all of it in a head.
    Copy,
    /// As any other frame.
    Any,
}

impl CopyPlan {
    /// The plan for an egress: what it needs linear is copied.
    pub(crate) fn new(egress: TxLayout) -> CopyPlan {
        let linear = match egress.linear {
            TxLinear::None => 0,
            TxLinear::Header(n) => n.into(),
            TxLinear::Whole => usize::MAX,
        };
        let single = match linear {
            0 if egress.headroom == 0 => SinglePiece::Page,
            usize::MAX => SinglePiece::Copy,
            _ => SinglePiece::Any,
        };
        CopyPlan { linear, tailroom: egress.tailroom.into(), single }
    }

    /// As this, with at least `n` bytes copied.
    #[inline]
    pub(crate) fn with_headers(self, n: usize) -> CopyPlan {
        let single = if self.single == SinglePiece::Page { SinglePiece::Any } else { self.single };
        CopyPlan { linear: self.linear.max(n), single, ..self }
    }

    /// The number of bytes to copy, from the first of the packet.
    #[inline]
    pub(crate) fn linear(&self) -> usize {
        self.linear
    }

    /// How frames of one piece are taken.
    #[inline]
    pub(crate) fn single(&self) -> SinglePiece {
        self.single
    }

    /// How many of the next `len` bytes of a packet are copied.
    #[inline]
    pub(crate) fn copy_len(&self, packet: &Packet, len: usize) -> usize {
        // The bytes behind a page can't be linear.
        if self.linear <= packet.len() || packet.frags() > 0 {
            return 0;
        }
        (self.linear - packet.len()).min(len).min(packet.tailroom().saturating_sub(self.tailroom))
    }
}
