//! What the device can't reach: its memory is made known to it, or the packet is copied.

use super::super::control::Fault;
use super::TxCore;
use towpath_bus::Dma;
use towpath_packet::{Cache, Packet};

impl<D: Dma> TxCore<D> {
    /// Puts a copy in the place of a packet; false when there is no buffer for it.
    #[cold]
    pub(super) fn copy(&mut self, packet: &mut Packet, why: Fault) -> bool {
        let Some(copy) = duplicate(packet, &mut self.cache) else { return false };
        self.log.counters.copied(1, packet.len() as u64);
        self.log.control.fault(why);
        self.cache.free(std::mem::replace(packet, copy));
        true
    }
}

/// A copy of a packet in buffers of `cache`, with all that it asks for.
fn duplicate(packet: &Packet, cache: &mut Cache) -> Option<Packet> {
    let mut copy = cache.alloc()?;
    let mut offset = 0;
    while offset < packet.len() {
        let mut part = if offset == 0 { None } else { Some(cache.alloc()?) };
        let to = part.as_mut().unwrap_or(&mut copy);
        let n = to.tailroom().min(packet.len() - offset);
        if n == 0 {
            return None;
        }
        packet.copy_to(offset, to.push_back(n).ok()?);
        offset += n;
        if let Some(part) = part {
            copy.append(part).ok()?;
        }
    }
    copy.set_csum(packet.csum());
    copy.set_gso(packet.gso());
    copy.set_vlan(packet.vlan());
    Some(copy)
}
