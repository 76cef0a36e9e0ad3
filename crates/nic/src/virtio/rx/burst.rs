//! A burst: used chains become packets.

use super::super::control::Fault;
use super::super::features::{HASH_HEADER, HEADER};
use super::super::hashing::reported;
use super::{RxRing, RxRules};
use std::ops::Range;
use towpath_bus::Dma;
use towpath_packet::vnet::{self, VnetHeader};
use towpath_packet::{Batch, Checksum, DropReason, Offloads, Packet};
use towpath_virtio::{RingError, Used};
use towpath_wire::ethernet;

/// Used chains of one flush, at most.
pub(super) const BURST: usize = 64;

/// A packet whose buffers have not all come.
#[derive(Debug)]
pub(super) struct Partial {
    /// `None` if the packet is discarded.
    packet: Option<Packet>,
    header: VnetHeader,
    /// Buffers that are missing.
    left: u16,
}

impl<D: Dma> RxRing<D> {
    /// Receives packets; returns how many were appended, and their bytes.
    ///
    /// # Errors
    /// [`RingError`] if the device uses chains that it was not given. Packets may have been
    /// appended before.
    #[inline]
    pub(super) fn receive(&mut self, out: &mut Batch, copybreak: usize) -> (usize, u64, Result<(), RingError>) {
        // Buffers of fewer bytes are copied, the header included.
        let short = if copybreak > 0 { (copybreak + self.rules.header).min(self.copy_room + 1) as u32 } else { 0 };
        let (mut packets, mut bytes) = (0, 0);
        loop {
            let wanted = out.room().min(BURST);
            let (n, harvested) = self.harvest(wanted, short);
            if n > 0 {
                let synced = self.mapper.sync_iotlb().is_ok();
                let mut at = 0;
                while at < n {
                    let piece = if let Some(chains) = self.rules.chains {
                        self.take_chain(at, synced, chains)
                    } else {
                        let (taken, other) = if synced { self.take_plain(at..n, out, &mut bytes) } else { (0, None) };
                        at += taken;
                        packets += taken;
                        if other.is_none() && at < n { self.take(at) } else { other }
                    };
                    at += 1;
                    if let Some(packet) = piece.and_then(|piece| self.assemble(piece)) {
                        bytes += packet.len() as u64;
                        packets += usize::from(out.push(packet).is_ok());
                    }
                }
            }
            if harvested.is_err() || n < wanted || wanted == 0 {
                return (packets, bytes, harvested);
            }
        }
    }

    /// First pass: takes used chains, and unmaps their buffers, if any is mapped alone. Those of
    /// fewer than `short` bytes are copied instead.
    #[inline]
    fn harvest(&mut self, wanted: usize, short: u32) -> (usize, Result<(), RingError>) {
        let wanted = wanted.min(BURST);
        let (n, taken) = self.driver.take_used(&mut self.used[..wanted]);
        if self.driver.overlong() != self.overlong {
            self.note_overlong();
        }
        if let Some(chains) = self.rules.chains {
            (0..n).for_each(|at| self.harvest_chain(at, short, chains));
            return (n, taken);
        }
        let passed = if short == 0 && !self.mapper.maps_buffers() { n } else { 0 };
        for i in passed..n {
            let Used { id, len } = self.used[i];
            if !(len < short && self.copy(i, id, len as usize, 1))
                && let Some(slot) = self.slots.get_mut(id.into())
            {
                slot.unmap(&mut self.mapper, len as usize, &self.control);
            }
        }
        self.counts.completed += n as u64;
        (n, taken)
    }

    /// Counts used lengths of more bytes than the chain has, to which they were cut.
    #[cold]
    fn note_overlong(&mut self) {
        let overlong = self.driver.overlong();
        (self.overlong..overlong).for_each(|_| self.control.fault(Fault::BadLength));
        self.overlong = overlong;
    }

    /// Copies the first buffer of a chain of so many, and takes it out, to be posted again. It
    /// stays mapped; returns false if there is no buffer for the copy.
    #[inline(never)]
    pub(super) fn copy(&mut self, at: usize, id: u16, len: usize, buffers: usize) -> bool {
        let slot = self.slots.get_mut(u32::from(id) * buffers as u32);
        let (Some(place), Some(slot)) = (self.copies.get_mut(at), slot) else { return false };
        let copies = self.copy_cache.as_mut().unwrap_or(&mut self.cache);
        let Some(mut packet) = copies.alloc() else { return false };
        if slot.copy(&mut self.mapper, len, &mut packet).is_none() {
            copies.free(packet);
            return false;
        }
        *place = Some(packet);
        self.spares.push(std::mem::take(slot));
        self.counts.copies += 1;
        true
    }

    /// Last pass, if no translation of the buffers is cached any more: takes buffers that are plain
    /// frames, and appends them to `out`, which has room for all. Ends at a buffer that is gone,
    /// and behind one that is something else, which is returned with the number of frames before
    /// it.
    #[inline(always)]
    fn take_plain(&mut self, chains: Range<usize>, out: &mut Batch, bytes: &mut u64) -> (usize, Option<Packet>) {
        let RxRing { used, slots, mapper, control, rules, queue, .. } = self;
        let (rules, queue, begins) = (*rules, *queue, self.partial.is_none());
        let mut taken = 0;
        for &Used { id, len } in used.get(chains).unwrap_or_default() {
            let Some(slot) = slots.get_mut(id.into()) else { break };
            // It is mapped yet if the first pass had nothing to do.
            if slot.mapped.is_some() {
                slot.unmap(mapper, len as usize, control);
            }
            let Some(buffer) = slot.buffer.take() else { break };
            let mut packet = buffer.complete(len as usize);
            if !(begins && strip_plain(&mut packet, rules)) {
                return (taken, Some(packet));
            }
            packet.set_ingress(0, queue);
            *bytes += packet.len() as u64;
            if out.push(packet).is_err() {
                break;
            }
            taken += 1;
        }
        (taken, None)
    }

    /// Last pass, a buffer that is gone: takes the copy of it, if there is one. A buffer that is
    /// there may still be translated by the device, and is leaked.
    #[inline(never)]
    fn take(&mut self, at: usize) -> Option<Packet> {
        let id = self.used.get(at)?.id;
        let copy = self.copies.get_mut(at)?.take();
        if copy.is_none() {
            self.slots.get_mut(id.into())?.leak(&self.control);
            self.lost();
        }
        copy
    }

    /// A piece with a header begins a packet; others continue one.
    #[inline]
    fn assemble(&mut self, mut packet: Packet) -> Option<Packet> {
        if self.partial.is_some() {
            return self.append(packet);
        }
        let Some(bytes) = packet.linear().first_chunk::<HEADER>().copied() else {
            self.discard(packet, Fault::BadLength);
            return None;
        };
        let (header, buffers) = decode(&bytes);
        packet.pull_front(HEADER);
        if self.rules.header == HASH_HEADER && !take_hash(&mut packet) {
            self.discard(packet, Fault::BadLength);
            return None;
        }
        let buffers = if self.rules.mergeable { buffers } else { 1 };
        if buffers <= 1 {
            return self.finish(packet, header);
        }
        if usize::from(buffers) > self.size {
            self.discard(packet, Fault::BadLength);
            return None;
        }
        self.partial = Some(Partial { packet: Some(packet), header, left: buffers - 1 });
        None
    }

    /// Adds the next buffer of a packet of several; returns the packet with the last one.
    fn append(&mut self, part: Packet) -> Option<Packet> {
        let partial = self.partial.as_mut()?;
        partial.left -= 1;
        if let Some(packet) = &mut partial.packet
            && let Err(part) = packet.append(part)
        {
            // More pieces than a packet can have.
            partial.packet = None;
            self.cache.free(part);
        }
        if partial.left > 0 {
            return None;
        }
        let Partial { packet, header, .. } = self.partial.take()?;
        match packet {
            Some(packet) => self.finish(packet, header),
            None => {
                self.control.fault(Fault::LostFrame);
                self.counters.dropped(DropReason::Malformed, 1);
                None
            }
        }
    }

    /// Checks a packet, and sets its metadata.
    #[inline]
    fn finish(&mut self, mut packet: Packet, header: VnetHeader) -> Option<Packet> {
        packet.set_ingress(0, self.queue);
        if header.is_plain() && (ethernet::HEADER_LEN..=self.rules.max_frame).contains(&packet.len()) {
            return Some(packet);
        }
        self.apply(packet, header)
    }

    /// Any packet: with offloads, or of a wrong length.
    #[inline(never)]
    fn apply(&mut self, mut packet: Packet, header: VnetHeader) -> Option<Packet> {
        let len = packet.len();
        let fault = match vnet::apply(header, &mut packet) {
            Err(_) => Fault::BadHeader,
            Ok(()) if !self.rules.offloads.has(needs(&packet)) => Fault::BadHeader,
            Ok(()) if len < ethernet::HEADER_LEN || (packet.gso().is_none() && len > self.rules.max_frame) => {
                Fault::BadFrame
            }
            Ok(()) => return Some(packet),
        };
        self.discard(packet, fault);
        None
    }

    #[cold]
    fn discard(&mut self, packet: Packet, fault: Fault) {
        self.control.fault(fault);
        self.counters.dropped(DropReason::Malformed, 1);
        self.cache.free(packet);
    }

    /// A buffer of a packet is lost.
    #[cold]
    fn lost(&mut self) {
        self.lost += 1;
        self.control.fault(Fault::LostFrame);
        if let Some(partial) = &mut self.partial {
            partial.packet = None;
            partial.left -= 1;
            if partial.left == 0 {
                self.partial = None;
            }
        }
    }
}

/// Removes the header of a frame that is whole and needs nothing; returns false for any other,
/// which stays as it is.
#[inline(always)]
fn strip_plain(packet: &mut Packet, rules: RxRules) -> bool {
    let Some(bytes) = packet.linear().first_chunk() else { return false };
    let (header, buffers) = decode(bytes);
    let len = packet.len().wrapping_sub(rules.header);
    if !header.is_plain()
        || (rules.mergeable && buffers > 1)
        || !(ethernet::HEADER_LEN..=rules.max_frame).contains(&len)
    {
        return false;
    }
    packet.pull_front(HEADER);
    rules.header == HEADER || take_hash(packet)
}

/// What the packet needs of the next port.
fn needs(packet: &Packet) -> Offloads {
    let gso = packet.gso().map_or(Offloads::NONE, Offloads::for_gso);
    if matches!(packet.csum(), Checksum::Partial { .. }) { gso.with(Offloads::CSUM) } else { gso }
}

/// Takes the second part of the header; returns false if the packet is too short.
#[inline]
fn take_hash(packet: &mut Packet) -> bool {
    let Some(bytes) = packet.linear().first_chunk().copied() else { return false };
    packet.pull_front(HASH_HEADER - HEADER);
    if let Some(hash) = reported(bytes) {
        packet.set_flow_hash(hash);
    }
    true
}

/// The header, and the number of buffers (virtio 1.2 §5.1.6).
#[inline]
fn decode(bytes: &[u8; HEADER]) -> (VnetHeader, u16) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
    (VnetHeader::from_le_bytes(&[a, b, c, d, e, f, g, h, i, j]), u16::from_le_bytes([k, l]))
}
