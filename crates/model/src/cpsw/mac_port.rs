//! A MAC port of the switch: its MAC, PHY and wire, its FIFOs, its statistics.

use super::config::Config;
use super::mac::{LinkMode, Mac};
use super::mdio::Phys;
use super::phy::Phy;
use crate::wire::{Unplugged, Wire};
use std::collections::VecDeque;
use std::time::Instant;

/// Each priority maps to itself.
pub(super) const PRIORITIES: u32 = 0x7654_3210;

/// Statistics of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PortStats {
    /// Frames sent on the wire.
    pub sent: u64,
    /// Frames received from the wire.
    pub received: u64,
    /// Frames that could not be sent: too short, too long, without a carrier, or with a checksum
    /// position outside of the frame.
    pub tx_dropped: u64,
    /// Received frames that found the queue to the host full, or the host port disabled, or had no
    /// port to go to.
    pub rx_dropped: u64,
    /// Those of them that the lookup dropped.
    pub ale_dropped: u64,
}

/// A MAC port with its wire.
pub(super) struct MacPort {
    pub(super) wire: Box<dyn Wire>,
    pub(super) mac: Mac,
    pub(super) phy: Phy,
    /// FIFOs by priority.
    pub(super) fifos: [VecDeque<Vec<u8>>; 8],
    pub(super) tx_pri_map: u32,
    pub(super) arriving: Option<Vec<u8>>,
    pub(super) max_len: u32,
    pub(super) stalled: bool,
    /// The port sends one frame in this many turns.
    pub(super) turns: u32,
    /// Turns since the last frame.
    pub(super) turn: u32,
    pub(super) stats: PortStats,
}

impl MacPort {
    pub(super) fn new(config: &Config, now: Instant) -> MacPort {
        MacPort {
            wire: Box::new(Unplugged),
            mac: Mac::default(),
            phy: Phy::new(config.phy, config.negotiation, now),
            fifos: Default::default(),
            tx_pri_map: PRIORITIES,
            arriving: None,
            max_len: 1518,
            stalled: false,
            turns: 1,
            turn: 0,
            stats: PortStats::default(),
        }
    }

    /// The link, if there is one.
    #[inline]
    pub(super) fn link(&mut self, now: Instant) -> Option<LinkMode> {
        self.phy.set_carrier(self.wire.carrier(), now);
        self.phy.link(now)
    }

    /// Whether frames pass the MAC.
    #[inline]
    pub(super) fn passes(&mut self, now: Instant) -> bool {
        let link = self.link(now);
        self.mac.passes(link)
    }

    #[inline]
    pub(super) fn fifo(&self, priority: u8) -> &VecDeque<Vec<u8>> {
        &self.fifos[usize::from(mapped(self.tx_pri_map, priority))]
    }
}

/// The PHYs on the management bus.
pub(super) struct PhyBus<'a> {
    pub(super) ports: &'a mut [MacPort],
    pub(super) addresses: [u8; 8],
    pub(super) now: Instant,
}

impl Phys for PhyBus<'_> {
    fn phy(&mut self, address: u32) -> Option<&mut Phy> {
        let index = self.addresses.iter().position(|&known| u32::from(known) == address)?;
        let port = self.ports.get_mut(index)?;
        port.link(self.now);
        Some(&mut port.phy)
    }
}

/// The priority to which a map of eight nibbles maps another.
#[inline]
pub(super) fn mapped(map: u32, priority: u8) -> u8 {
    (map >> (4 * (priority & 7)) & 7) as u8
}
