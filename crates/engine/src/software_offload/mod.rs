//! Software offload for an egress that lacks an ability: segmentation, partial checksums, VLAN tags
//! in the metadata.
//!
//! ```text
//!   the packet has              egress supports it   egress does not
//!   a tag in its metadata       unchanged            inserted behind the MAC addresses
//!   a GSO size (super-packet)   unchanged            segmented: one copy, summed in the same pass
//!   a partial checksum          unchanged            completed
//! ```
//!
//! A packet that needs no offload (one test of a flag byte) is moved, not touched. Inconsistent
//! metadata is dropped as [`DropReason::Malformed`]; a lack of buffers is dropped as
//! [`DropReason::NoBuffer`].

use std::collections::VecDeque;
use std::sync::Arc;
use towpath_gro as gro;
use towpath_packet::{Batch, Cache, Checksum, Counters, DropReason, Offloads, Packet};
use towpath_wire::checksum::Accumulator;
use towpath_wire::ethernet::MAX_PACKET;

/// Ethernet addresses: the bytes in front of a VLAN tag.
const MAC_ADDRESSES: usize = 12;
const TAG_LEN: usize = towpath_wire::vlan::HEADER_LEN;
/// Most segments of a packet.
const MAX_SEGMENTS: usize = 65535 / gro::MIN_TCP_SIZE as usize + 1;

/// Applies software offload for one egress queue; owned by the thread that runs it.
pub struct SoftwareOffload {
    cache: Cache,
    link: gro::LinkKind,
    counters: Arc<Counters>,
    /// Results that wait for room.
    ready: VecDeque<Packet>,
    /// Holds segments that are longer than a chunk.
    scratch: Box<[u8]>,
    /// Holds a copy of bytes that another process may be writing.
    snapshot: Box<[u8]>,
}

/// Whether `packet` needs an offload that is not in `can`.
#[inline]
pub fn needs_software(packet: &Packet, can: Offloads) -> bool {
    packet.wants_offload() && !can.has(required_offloads(packet))
}

/// Whether one of `packets` does. Most need none: they are looked at four at a time.
#[inline]
pub(crate) fn any_needs_software(packets: &[Packet], can: Offloads) -> bool {
    let any = |packets: &[Packet]| packets.iter().any(|packet| needs_software(packet, can));
    let (fours, rest) = packets.as_chunks::<4>();
    fours.iter().any(|four| four.iter().fold(false, |wants, p| wants | p.wants_offload()) && any(four)) || any(rest)
}

/// The offloads that a packet needs.
fn required_offloads(packet: &Packet) -> Offloads {
    let mut required = packet.gso().map_or(Offloads::NONE, Offloads::for_gso);
    if matches!(packet.csum(), Checksum::Partial { .. }) {
        required = required.with(Offloads::CSUM);
    }
    if packet.vlan().is_some() {
        required = required.with(Offloads::VLAN);
    }
    required
}

impl SoftwareOffload {
    /// Takes buffers from `cache`, counts splits and drops in `counters`; packets begin with the
    /// header that `link` names.
    pub fn new(cache: Cache, link: gro::LinkKind, counters: Arc<Counters>) -> SoftwareOffload {
        let buffer = || vec![0; MAX_PACKET].into_boxed_slice();
        let ready = VecDeque::with_capacity(MAX_SEGMENTS);
        SoftwareOffload { cache, link, counters, ready, scratch: buffer(), snapshot: buffer() }
    }

    /// The cache, for freeing packets on the thread that runs the queue.
    pub fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Number of results that wait for room in a batch.
    pub fn held(&self) -> usize {
        self.ready.len()
    }

    /// Frees all waiting packets; the caller counts them.
    pub fn drop_held(&mut self, reason: DropReason) {
        for packet in self.ready.drain(..) {
            self.counters.show_dropped(reason, &packet);
            self.cache.free(packet);
        }
    }

    /// Applies software offload again, in order, after the egress lost an ability: first to
    /// `refused`, then to all waiting packets.
    pub fn reapply(&mut self, refused: &mut Batch, can: Offloads) {
        let waiting = std::mem::replace(&mut self.ready, VecDeque::with_capacity(MAX_SEGMENTS));
        let n = refused.len();
        for packet in refused.drain_front(n).chain(waiting) {
            if !needs_software(&packet, can) {
                self.ready.push_back(packet);
            } else if let Err((reason, packet)) = self.apply_one(packet, can) {
                self.counters.dropped_packet(reason, &packet);
                self.cache.free(packet);
            }
        }
    }

    /// Moves packets from the front of `from` to the end of `to` until one is empty or the other
    /// full, and applies the offloads that `can` lacks. Segments that do not fit into `to` wait
    /// inside, ahead of all packets in `from`.
    #[inline]
    pub fn apply(&mut self, from: &mut Batch, to: &mut Batch, can: Offloads) {
        if self.ready.is_empty() && !any_needs_software(from.as_slice(), can) {
            if to.is_empty() {
                std::mem::swap(from, to);
            } else {
                to.take_from(from);
            }
        } else {
            self.apply_each(from, to, can);
        }
    }

    fn apply_each(&mut self, from: &mut Batch, to: &mut Batch, can: Offloads) {
        while to.room() > 0 {
            if let Some(segment) = self.ready.pop_front() {
                let _ = to.push(segment);
            } else if let Some(packet) = from.drain_front(1).next() {
                if !needs_software(&packet, can) {
                    let _ = to.push(packet);
                } else if let Err((reason, packet)) = self.apply_one(packet, can) {
                    self.counters.dropped_packet(reason, &packet);
                    self.cache.free(packet);
                }
            } else {
                return;
            }
        }
    }

    fn apply_one(&mut self, mut packet: Packet, can: Offloads) -> Result<(), (DropReason, Packet)> {
        if packet.len() > MAX_PACKET {
            return Err((DropReason::Malformed, packet));
        }
        if !can.has(Offloads::VLAN) {
            packet = self.insert_vlan(packet)?;
        }
        match packet.gso() {
            Some(gso) if !can.has(Offloads::for_gso(gso)) => self.split(packet, can),
            _ => {
                if !can.has(Offloads::CSUM) {
                    packet = self.complete_checksum(packet)?;
                }
                self.ready.push_back(packet);
                Ok(())
            }
        }
    }

    /// Inserts the tag from the metadata into the packet.
    ///
    /// # Errors
    /// Returns the packet, and why it can't have the tag.
    pub(crate) fn insert_vlan(&mut self, mut packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Some(vlan) = packet.vlan() else { return Ok(packet) };
        if !self.cache.ensure_head(&mut packet) {
            return Err((DropReason::NoBuffer, packet));
        }
        if self.link != gro::LinkKind::Ethernet || packet.make_linear(MAC_ADDRESSES).is_err() {
            return Err((DropReason::Malformed, packet));
        }
        if packet.insert_vlan(vlan).is_err() {
            // Without headroom the addresses and the tag get a chunk of their own.
            let Some(mut head) = self.cache.alloc() else { return Err((DropReason::NoBuffer, packet)) };
            let addresses = head.set_headroom(TAG_LEN).and_then(|()| head.push_back(MAC_ADDRESSES));
            let room = addresses.map(|addresses| packet.copy_to(0, addresses));
            head.copy_metadata_from(&packet);
            if room.and_then(|_| head.insert_vlan(vlan)).is_err() {
                return Err((DropReason::NoBuffer, packet));
            }
            packet.pull_front(MAC_ADDRESSES);
            if let Err(packet) = head.append(packet) {
                return Err((DropReason::Offload, packet));
            }
            packet = head;
        }
        Ok(packet)
    }

    /// Completes a partial checksum.
    fn complete_checksum(&mut self, mut packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Checksum::Partial { start, offset } = packet.csum() else { return Ok(packet) };
        if !self.cache.ensure_head(&mut packet) {
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
        // A UDP checksum of zero means "no checksum"
        // ([RFC 768](https://www.rfc-editor.org/rfc/rfc768)).
        let check = match sum.finish() {
            0 if offset == 6 => 0xffff,
            check => check,
        };
        packet.linear_mut()[field..field + 2].copy_from_slice(&check.to_be_bytes());
        packet.set_csum(Checksum::Unknown);
        Ok(packet)
    }

    /// Segments a super-packet; the segments go to the end of `ready`.
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
            // Another process may be writing these bytes. They are copied first, so that the
            // checked bytes are the sent ones.
            let mut copy = std::mem::take(&mut self.snapshot);
            let n = packet.copy_to(0, &mut copy);
            let done = gro::Split::new([&copy[..n]].into_iter(), self.link, &offload, sums)
                .map(|split| self.write_segments(split, &packet));
            self.snapshot = copy;
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

    /// The next segment: in one chunk if it fits, otherwise through the scratch buffer in several.
    fn write_segment<'a, I>(&mut self, split: &mut gro::Split<'a, I>, len: usize) -> Option<(Packet, gro::Offload)>
    where
        I: Iterator<Item = &'a [u8]> + Clone,
    {
        let mut segment = self.cache.alloc()?;
        if let Ok(to) = segment.push_back(len) {
            let offload = split.write(to)?;
            return Some((segment, offload));
        }
        // The copy happens after the segment is complete in the scratch buffer, so that a lack of
        // chunks loses no half-written packet.
        let to = self.scratch.get_mut(..len)?;
        let offload = split.write(to)?;
        Packet::copy_from(&mut self.cache, to).map(|segment| (segment, offload))
    }
}

impl std::fmt::Debug for SoftwareOffload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftwareOffload").field("link", &self.link).field("ready", &self.ready.len()).finish()
    }
}

struct Written {
    written: u64,
    lost: u64,
}

#[cfg(test)]
mod tests;
