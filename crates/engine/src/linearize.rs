//! Fitting packets to what an egress wants of their memory: bytes in one piece, room in front and behind.
//!
//! ```text
//!   the egress wants        of a packet in fragments
//!   nothing linear          nothing is touched: the page where the bytes were written is what is sent
//!   n bytes of headers      these are copied, the rest stays where it is
//!   all of it               one copy, with exactly the headroom and the tailroom that the egress asks for
//! ```
//!
//! An ingress that knows the egress ([`RxQueue::set_tx_layout`](towpath_packet::port::RxQueue::set_tx_layout)) brings packets that fit. For all others
//! this is the place. What fits already is moved, not touched. Every copy is counted ([`Counters::copied`]).

use std::sync::Arc;
use towpath_packet::port::{TxLayout, TxLinear};
use towpath_packet::{Batch, Cache, Counters, DropReason, Packet};

/// Bytes of a packet of `len` bytes that are to be linear.
#[inline]
fn linear(egress: TxLayout, len: usize) -> usize {
    match egress.linear {
        TxLinear::None => 0,
        TxLinear::Header(n) => len.min(n.into()),
        TxLinear::Whole => len,
    }
}

/// Whether a packet is as the egress wants it. For tailroom all of it has to be in one piece.
#[inline]
fn fits(egress: TxLayout, packet: &Packet) -> bool {
    packet.linear().len() >= linear(egress, packet.len())
        && packet.headroom() >= egress.headroom.into()
        && (egress.tailroom == 0 || (packet.frags() == 0 && packet.tailroom() >= egress.tailroom.into()))
}

/// Fits packets for one egress queue; owned by the thread that runs it.
#[derive(Debug)]
pub struct Fitter {
    egress: TxLayout,
    counters: Arc<Counters>,
}

impl Fitter {
    /// A fitter that counts copies and drops in `counters`; `None` if every packet fits.
    pub fn new(egress: TxLayout, counters: Arc<Counters>) -> Option<Fitter> {
        (egress != TxLayout::default()).then_some(Fitter { egress, counters })
    }

    /// Fits all packets of a batch, in order, with chunks from `cache`. What can't be fitted is dropped: without a buffer as
    /// [`DropReason::NoBuffer`], without room for it in a chunk as [`DropReason::TooLong`].
    #[inline]
    pub fn fit(&mut self, batch: &mut Batch, cache: &mut Cache) {
        if !batch.iter().all(|packet| fits(self.egress, packet)) {
            self.fit_each(batch, cache);
        }
    }

    fn fit_each(&mut self, batch: &mut Batch, cache: &mut Cache) {
        let (mut copies, mut bytes) = (0, 0);
        let mut from = std::mem::take(batch);
        let n = from.len();
        for packet in from.drain_front(n) {
            let fitted = if fits(self.egress, &packet) { Ok((packet, 0)) } else { self.fit_one(packet, cache) };
            match fitted {
                Ok((packet, copied)) => {
                    copies += u64::from(copied > 0);
                    bytes += copied as u64;
                    // It came out of a batch of the same size.
                    let _ = batch.push(packet);
                }
                Err((reason, packet)) => {
                    self.counters.dropped(reason, 1);
                    cache.free(packet);
                }
            }
        }
        self.counters.copied(copies, bytes);
    }

    /// The packet as it is wanted, and how many bytes were copied for it.
    #[inline]
    fn fit_one(&self, mut packet: Packet, cache: &mut Cache) -> Result<(Packet, usize), (DropReason, Packet)> {
        let linear = linear(self.egress, packet.len());
        if self.egress.tailroom > 0 || linear == packet.len() {
            return self.copy(packet, cache);
        }
        let there = packet.linear().len();
        if packet.headroom() >= self.egress.headroom.into() && packet.make_linear(linear).is_ok() {
            return Ok((packet, linear.saturating_sub(there)));
        }
        self.behead(packet, linear.max(there), cache)
    }

    /// A new packet with room for `len` bytes.
    #[inline]
    fn room(&self, of: &Packet, len: usize, cache: &mut Cache) -> Result<Packet, DropReason> {
        let mut packet = cache.alloc().ok_or(DropReason::NoBuffer)?;
        let made = packet.set_headroom(self.egress.headroom.into()).and_then(|()| packet.push_back(len).map(drop));
        if made.is_err() || packet.tailroom() < self.egress.tailroom.into() {
            cache.free(packet);
            return Err(DropReason::TooLong);
        }
        of.copy_to(0, packet.linear_mut());
        packet.copy_metadata_from(of);
        Ok(packet)
    }

    /// One copy of all bytes.
    #[inline]
    fn copy(&self, packet: Packet, cache: &mut Cache) -> Result<(Packet, usize), (DropReason, Packet)> {
        match self.room(&packet, packet.len(), cache) {
            Ok(copy) => {
                let len = packet.len();
                cache.free(packet);
                Ok((copy, len))
            }
            Err(reason) => Err((reason, packet)),
        }
    }

    /// A new head with the first `len` bytes, and all others behind it where they are.
    fn behead(
        &self,
        mut packet: Packet,
        len: usize,
        cache: &mut Cache,
    ) -> Result<(Packet, usize), (DropReason, Packet)> {
        let mut head = match self.room(&packet, len, cache) {
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
