//! Finishing in software what an egress cannot do: segmentation, partial checksums, VLAN tags beside the packet.
//!
//! ```text
//!   what the packet asks for          egress has it      egress has it not
//!   tag beside it                     handed on          inserted behind the addresses
//!   super-packet                      handed on          cut into segments, each copied and summed in one pass
//!   partial checksum                  handed on          completed
//! ```
//!
//! A packet that asks for nothing (one test of a flag byte) is moved, not touched. What contradicts itself is dropped as
//! [`DropReason::Malformed`]; what can't be finished for lack of buffers as [`DropReason::NoBuffer`].

use std::collections::VecDeque;
use std::sync::Arc;
use towpath_gro as gro;
use towpath_packet::{Batch, Cache, Checksum, Counters, DropReason, Offloads, Packet};
use towpath_wire::checksum::Accumulator;

/// Longest packet that is finished: the largest an IP length field can say, behind Ethernet and two tags.
const MAX_LEN: usize = 65535 + 14 + 8;
/// Ethernet addresses: what stands in front of a VLAN tag.
const ADDRESSES: usize = 12;
const TAG: usize = 4;
/// Most segments that the GSO engine cuts a packet into.
const MAX_SEGMENTS: usize = 65535 / gro::MIN_TCP_SIZE as usize + 1;

/// Finishes packets for one egress queue; owned by the thread that runs it.
pub struct Finisher {
    cache: Cache,
    link: gro::LinkKind,
    counters: Arc<Counters>,
    /// Finished, and waiting for room.
    ready: VecDeque<Packet>,
    /// For segments longer than a chunk.
    scratch: Box<[u8]>,
    /// For bytes that others may be writing.
    whole: Box<[u8]>,
}

/// Whether `packet` asks for something that is not in `can`.
#[inline]
pub fn asks_more(packet: &Packet, can: Offloads) -> bool {
    packet.wants_offload() && !can.has(wants(packet))
}

/// What a packet asks for.
fn wants(packet: &Packet) -> Offloads {
    let mut wants = packet.gso().map_or(Offloads::NONE, Offloads::for_gso);
    if matches!(packet.csum(), Checksum::Partial { .. }) {
        wants = wants.with(Offloads::CSUM);
    }
    if packet.vlan().is_some() {
        wants = wants.with(Offloads::VLAN);
    }
    wants
}

impl Finisher {
    /// A finisher that takes buffers from `cache`, counts splits and drops in `counters`, and reads packets that begin as `link`
    /// says.
    pub fn new(cache: Cache, link: gro::LinkKind, counters: Arc<Counters>) -> Finisher {
        let buffer = || vec![0; MAX_LEN].into_boxed_slice();
        let ready = VecDeque::with_capacity(MAX_SEGMENTS);
        Finisher { cache, link, counters, ready, scratch: buffer(), whole: buffer() }
    }

    /// The cache, for freeing packets on the thread that runs the queue.
    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Whether segments wait that no batch had room for yet.
    pub fn holds(&self) -> usize {
        self.ready.len()
    }

    /// Frees everything that waits; the caller counts it.
    pub fn drop_held(&mut self) {
        for packet in self.ready.drain(..) {
            self.cache.free(packet);
        }
    }

    /// Finishes again, in order, what was finished for an egress that has lost an ability since: `refused`, then all that waits.
    pub fn redo(&mut self, refused: &mut Batch, can: Offloads) {
        let waiting = std::mem::replace(&mut self.ready, VecDeque::with_capacity(MAX_SEGMENTS));
        let n = refused.len();
        for packet in refused.drain_front(n).chain(waiting) {
            if !asks_more(&packet, can) {
                self.ready.push_back(packet);
            } else if let Err((reason, packet)) = self.finish_one(packet, can) {
                self.counters.dropped(reason, 1);
                self.cache.free(packet);
            }
        }
    }

    /// Moves packets from the front of `from` to the end of `to` until one is empty or the other full, finishing those that ask for
    /// more than `can`. Segments that `to` has no room for wait inside, ahead of everything in `from`.
    #[inline]
    pub fn finish(&mut self, from: &mut Batch, to: &mut Batch, can: Offloads) {
        if self.ready.is_empty() && !from.iter().any(|p| asks_more(p, can)) {
            if to.is_empty() {
                std::mem::swap(from, to);
            } else {
                to.take_from(from);
            }
        } else {
            self.finish_each(from, to, can);
        }
    }

    fn finish_each(&mut self, from: &mut Batch, to: &mut Batch, can: Offloads) {
        while to.room() > 0 {
            if let Some(segment) = self.ready.pop_front() {
                let _ = to.push(segment);
            } else if let Some(packet) = from.drain_front(1).next() {
                if !asks_more(&packet, can) {
                    let _ = to.push(packet);
                } else if let Err((reason, packet)) = self.finish_one(packet, can) {
                    self.counters.dropped(reason, 1);
                    self.cache.free(packet);
                }
            } else {
                return;
            }
        }
    }

    fn finish_one(&mut self, mut packet: Packet, can: Offloads) -> Result<(), (DropReason, Packet)> {
        if packet.len() > MAX_LEN {
            return Err((DropReason::Malformed, packet));
        }
        if !can.has(Offloads::VLAN) {
            packet = self.insert_tag(packet)?;
        }
        match packet.gso() {
            Some(gso) if !can.has(Offloads::for_gso(gso)) => self.split(packet, can),
            _ => {
                if !can.has(Offloads::CSUM) {
                    packet = self.complete(packet)?;
                }
                self.ready.push_back(packet);
                Ok(())
            }
        }
    }

    /// Puts the tag that travels beside the packet into it.
    fn insert_tag(&mut self, mut packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Some(vlan) = packet.vlan() else { return Ok(packet) };
        if !self.cache.give_head(&mut packet) {
            return Err((DropReason::NoBuffer, packet));
        }
        if self.link != gro::LinkKind::Ethernet || packet.make_linear(ADDRESSES).is_err() {
            return Err((DropReason::Malformed, packet));
        }
        let mut header = [0; ADDRESSES + TAG];
        packet.copy_to(0, &mut header[..ADDRESSES]);
        header[ADDRESSES..][..2].copy_from_slice(&if vlan.service { [0x88, 0xa8] } else { [0x81, 0x00] });
        header[ADDRESSES + 2..].copy_from_slice(&vlan.tci.to_be_bytes());
        match packet.push_front(TAG) {
            Ok(_) => packet.linear_mut()[..header.len()].copy_from_slice(&header),
            Err(_) => {
                // No headroom: the addresses and the tag get a chunk of their own.
                let Some(mut head) = self.cache.alloc() else { return Err((DropReason::NoBuffer, packet)) };
                let room = head.set_headroom(TAG).and_then(|()| head.push_back(ADDRESSES).map(drop));
                head.copy_metadata_from(&packet);
                if room.and_then(|()| head.push_front(TAG).map(drop)).is_err() {
                    return Err((DropReason::NoBuffer, packet));
                }
                head.linear_mut().copy_from_slice(&header);
                packet.pull_front(ADDRESSES);
                if let Err(packet) = head.append(packet) {
                    return Err((DropReason::Offload, packet));
                }
                packet = head;
            }
        }
        packet.set_vlan(None);
        Ok(packet)
    }

    /// Adds up what a partial checksum leaves out.
    fn complete(&mut self, mut packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Checksum::Partial { start, offset } = packet.csum() else { return Ok(packet) };
        if !self.cache.give_head(&mut packet) {
            return Err((DropReason::NoBuffer, packet));
        }
        let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
        if packet.make_linear(field + 2).is_err() {
            return Err((DropReason::Malformed, packet));
        }
        let mut sum = Accumulator::new();
        let mut skip = start;
        for chunk in packet.chunks() {
            let piece = chunk.skip(skip);
            skip = skip.saturating_sub(chunk.len());
            match piece.bytes() {
                Some(bytes) => sum.add_bytes(bytes),
                None => {
                    let n = piece.copy_to(0, &mut self.scratch);
                    sum.add_bytes(&self.scratch[..n]);
                }
            }
        }
        // A UDP checksum of zero would mean that there is none (RFC 768).
        let check = match sum.finish() {
            0 if offset == 6 => 0xffff,
            check => check,
        };
        packet.linear_mut()[field..field + 2].copy_from_slice(&check.to_be_bytes());
        packet.set_csum(Checksum::Unknown);
        Ok(packet)
    }

    /// Cuts a super-packet; the segments go to the end of `ready`.
    fn split(&mut self, packet: Packet, can: Offloads) -> Result<(), (DropReason, Packet)> {
        let offload = gro::Offload::new(packet.csum(), packet.gso());
        let sums = if can.has(Offloads::CSUM) { gro::Checksums::Partial } else { gro::Checksums::Complete };
        let done = if packet.chunks().all(|chunk| chunk.bytes().is_some()) {
            let chunks = packet.chunks().filter_map(|chunk| chunk.bytes());
            match gro::Split::new(chunks, self.link, &offload, sums) {
                Ok(split) => self.write_segments(split, &packet),
                Err(_) => return Err((DropReason::Malformed, packet)),
            }
        } else {
            // Somebody may be writing these bytes: what is checked must be what is sent, so they are copied first.
            let mut copy = std::mem::take(&mut self.whole);
            let n = packet.copy_to(0, &mut copy);
            let done = gro::Split::new([&copy[..n]].into_iter(), self.link, &offload, sums)
                .map(|split| self.write_segments(split, &packet));
            self.whole = copy;
            match done {
                Ok(done) => done,
                Err(_) => return Err((DropReason::Malformed, packet)),
            }
        };
        self.counters.split(done.written + done.lost);
        self.counters.dropped(DropReason::NoBuffer, done.lost);
        self.cache.free(packet);
        Ok(())
    }

    fn write_segments<'a, I>(&mut self, mut split: gro::Split<'a, I>, of: &Packet) -> Written
    where
        I: Iterator<Item = &'a [u8]> + Clone,
    {
        let mut written = 0;
        while let Some(len) = split.next_len() {
            let Some((mut segment, offload)) = self.write_segment(&mut split, len) else {
                return Written { written, lost: split.packets() as u64 };
            };
            segment.copy_metadata_from(of);
            segment.set_gso(None);
            segment.set_csum(match offload.checksum {
                partial @ Checksum::Partial { .. } => partial,
                Checksum::Verified | Checksum::Unknown => Checksum::Unknown,
            });
            self.ready.push_back(segment);
            written += 1;
        }
        Written { written, lost: 0 }
    }

    /// The next segment: into one chunk where it fits, through the scratch buffer into several where not.
    fn write_segment<'a, I>(&mut self, split: &mut gro::Split<'a, I>, len: usize) -> Option<(Packet, gro::Offload)>
    where
        I: Iterator<Item = &'a [u8]> + Clone,
    {
        let mut segment = self.cache.alloc()?;
        if let Ok(to) = segment.push_back(len) {
            let offload = split.write(to)?;
            return Some((segment, offload));
        }
        // The scratch buffer is read only after it was filled, so a packet cannot be lost for want of chunks halfway.
        let to = self.scratch.get_mut(..len)?;
        let offload = split.write(to)?;
        Packet::copy_from(&mut self.cache, to).map(|segment| (segment, offload))
    }
}

impl std::fmt::Debug for Finisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finisher").field("link", &self.link).field("ready", &self.ready.len()).finish()
    }
}

struct Written {
    written: u64,
    lost: u64,
}

#[cfg(test)]
mod tests;
