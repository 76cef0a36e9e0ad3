//! Linearizes packets for the egress: contiguous bytes, headroom and tailroom ([`TxLayout`]).
//!
//! ```text
//!   tx_linear of the egress   a packet of fragments
//!   None                      unchanged: the page that holds the bytes is sent
//!   Header(n)                 the first n bytes are copied, the rest stays in place
//!   Whole                     one copy, with exactly the headroom and tailroom of the egress
//! ```
//!
//! An ingress that was given the layout of the egress
//! ([`RxQueue::set_tx_layout`](towpath_packet::port::RxQueue::set_tx_layout)) delivers packets that
//! conform. Other packets are rewritten here. A packet that conforms is moved, not touched. Every
//! copy is counted ([`Counters::copied`]).

use std::sync::Arc;
use towpath_packet::port::{TxLayout, TxLinear};
use towpath_packet::{Batch, Cache, Counters, DropReason, Packet};

/// Bytes of a packet of `len` bytes that must be linear.
#[inline]
fn linear_len(egress: TxLayout, len: usize) -> usize {
    match egress.linear {
        TxLinear::None => 0,
        TxLinear::Header(n) => len.min(n.into()),
        TxLinear::Whole => len,
    }
}

/// Whether a packet conforms to the layout. Tailroom requires the whole packet in one piece.
#[inline]
fn conforms(egress: TxLayout, packet: &Packet) -> bool {
    packet.linear().len() >= linear_len(egress, packet.len())
        && packet.headroom() >= egress.headroom.into()
        && (egress.tailroom == 0 || (packet.frags() == 0 && packet.tailroom() >= egress.tailroom.into()))
}

/// Linearizes packets for one egress queue; owned by the thread that runs it.
#[derive(Debug)]
pub struct Linearizer {
    egress: TxLayout,
    counters: Arc<Counters>,
}

impl Linearizer {
    /// Counts copies and drops in `counters`; `None` if every packet conforms to the layout.
    pub fn new(egress: TxLayout, counters: Arc<Counters>) -> Option<Linearizer> {
        (egress != TxLayout::default()).then_some(Linearizer { egress, counters })
    }

    /// Linearizes all packets of a batch in order, with chunks from `cache`. Without a buffer a
    /// packet is dropped as [`DropReason::NoBuffer`]; a packet that does not fit into a chunk is
    /// dropped as [`DropReason::TooLong`].
    #[inline]
    pub fn linearize(&mut self, batch: &mut Batch, cache: &mut Cache) {
        if !batch.iter().all(|packet| conforms(self.egress, packet)) {
            self.linearize_each(batch, cache);
        }
    }

    fn linearize_each(&mut self, batch: &mut Batch, cache: &mut Cache) {
        let (mut copies, mut bytes) = (0, 0);
        let mut from = std::mem::take(batch);
        let n = from.len();
        for packet in from.drain_front(n) {
            let result =
                if conforms(self.egress, &packet) { Ok((packet, 0)) } else { self.linearize_one(packet, cache) };
            match result {
                Ok((packet, copied)) => {
                    copies += u64::from(copied > 0);
                    bytes += copied as u64;
                    // It came out of a batch of the same size.
                    let _ = batch.push(packet);
                }
                Err((reason, packet)) => {
                    self.counters.dropped_packet(reason, &packet);
                    cache.free(packet);
                }
            }
        }
        self.counters.copied(copies, bytes);
    }

    /// The conforming packet, and the number of copied bytes.
    #[inline]
    fn linearize_one(&self, mut packet: Packet, cache: &mut Cache) -> Result<(Packet, usize), (DropReason, Packet)> {
        let linear = linear_len(self.egress, packet.len());
        if self.egress.tailroom > 0 || linear == packet.len() {
            return self.copy(packet, cache);
        }
        let present = packet.linear().len();
        if packet.headroom() >= self.egress.headroom.into() && packet.make_linear(linear).is_ok() {
            return Ok((packet, linear.saturating_sub(present)));
        }
        self.split_head(packet, linear.max(present), cache)
    }

    /// A copy of the first `len` bytes and of the metadata, in a new chunk with the required
    /// headroom.
    #[inline]
    fn alloc_copy(&self, of: &Packet, len: usize, cache: &mut Cache) -> Result<Packet, DropReason> {
        let mut packet = cache.alloc().ok_or(DropReason::NoBuffer)?;
        let reserved = packet.set_headroom(self.egress.headroom.into()).and_then(|()| packet.push_back(len).map(drop));
        if reserved.is_err() || packet.tailroom() < self.egress.tailroom.into() {
            cache.free(packet);
            return Err(DropReason::TooLong);
        }
        of.copy_to(0, packet.linear_mut());
        packet.copy_metadata_from(of);
        Ok(packet)
    }

    /// Copies the whole packet into one chunk.
    #[inline]
    fn copy(&self, packet: Packet, cache: &mut Cache) -> Result<(Packet, usize), (DropReason, Packet)> {
        match self.alloc_copy(&packet, packet.len(), cache) {
            Ok(copy) => {
                let len = packet.len();
                cache.free(packet);
                Ok((copy, len))
            }
            Err(reason) => Err((reason, packet)),
        }
    }

    /// Splits the head off: a new head with a copy of the first `len` bytes; the other bytes follow
    /// in place.
    fn split_head(
        &self,
        mut packet: Packet,
        len: usize,
        cache: &mut Cache,
    ) -> Result<(Packet, usize), (DropReason, Packet)> {
        let mut head = match self.alloc_copy(&packet, len, cache) {
            Ok(head) => head,
            Err(reason) => return Err((reason, packet)),
        };
        packet.pull_front(len);
        match head.append(packet) {
            Ok(()) => Ok((head, len)),
            Err(packet) => {
                cache.free(head);
                Err((DropReason::Offload, packet))
            }
        }
    }
}

#[cfg(test)]
mod tests;
