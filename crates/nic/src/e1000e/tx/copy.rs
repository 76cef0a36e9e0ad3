//! What the device can't reach: its memory is made known to it, or the packet is copied.

use super::super::control::Fault;
use super::TxCore;
use towpath_bus::Dma;
use towpath_packet::Packet;

impl<D: Dma> TxCore<D> {
    /// Puts a copy in the place of a packet; false when there is no buffer for it.
    #[cold]
    pub(super) fn copy(&mut self, packet: &mut Packet, why: Fault) -> bool {
        let Some(copy) = packet.duplicate(&mut self.cache) else { return false };
        self.log.counters.copied(1, packet.len() as u64);
        self.log.control.fault(why);
        self.cache.free(std::mem::replace(packet, copy));
        true
    }
}
