//! What of an application's frame is copied rather than sent from its page.

use super::Transmit;
use towpath_packet::Packet;
use towpath_packet::port::{TxLayout, TxLinear};

/// How much of a packet is copied out of its pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copying {
    /// The first bytes, as many as that.
    pub(super) linear: usize,
    /// Bytes to leave free behind them.
    tailroom: usize,
    /// A frame of one piece is sent as its page and nothing else: there need be no room in front of it.
    pub(super) alone: bool,
}

impl Copying {
    /// What `transmit` copies for an egress.
    pub(super) fn of(transmit: Transmit, egress: TxLayout) -> Copying {
        let linear = match (transmit, egress.linear) {
            (Transmit::Page, _) | (Transmit::Auto, TxLinear::None) => 0,
            (Transmit::Auto, TxLinear::Header(n)) => n.into(),
            (Transmit::Copy, _) | (Transmit::Auto, TxLinear::Whole) => usize::MAX,
        };
        Copying { linear, tailroom: egress.tailroom.into(), alone: linear == 0 && egress.headroom == 0 }
    }

    /// How many of the next `len` bytes of a packet.
    #[inline]
    pub(super) fn next(&self, packet: &Packet, len: usize) -> usize {
        // Behind a page nothing can be linear.
        if self.linear <= packet.len() || packet.frags() > 0 {
            return 0;
        }
        (self.linear - packet.len()).min(len).min(packet.tailroom().saturating_sub(self.tailroom))
    }
}
