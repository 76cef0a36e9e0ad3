//! Submission: packets into the TX ring, in flight until their completion; and the wakeup of the
//! kernel.

use super::{MAX_FRAGS, SocketTx};
use crate::kernel::link::down;
use crate::xdp::events::Event;
use crate::xdp::tx_metadata;
use crate::xdp::tx_metadata::TxTimestamp;
use towpath_engine::software_offload::needs_software;
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Batch, Checksum, DropReason, Packet};
use towpath_sys::netdev::LinkState;
use towpath_wire::ethernet;

impl SocketTx {
    /// The number of packets from the front for which the rings have room.
    #[inline]
    pub(super) fn fits(&mut self, batch: &Batch) -> usize {
        let Some(rings) = &mut self.rings else { return 0 };
        let max = self.max_frags.max(1);
        let at_worst = batch.len() * max;
        if (rings.tx.reserve(at_worst as u32) as usize).min(self.ring_size - self.in_flight.chunks()) >= at_worst {
            return batch.len();
        }
        let frags = |packet: &Packet| (packet.frags() + 1).min(max);
        let wanted: usize = batch.iter().map(frags).sum();
        let free = rings.tx.reserve(wanted as u32) as usize;
        let mut room = free.min(self.ring_size - self.in_flight.chunks());
        let mut n = 0;
        for packet in batch {
            match room.checked_sub(frags(packet)) {
                Some(rest) => room = rest,
                None => break,
            }
            n += 1;
        }
        n
    }

    /// Puts a packet into the TX ring, which has room. Returns a packet that can never be sent,
    /// with the reason.
    #[inline]
    pub(super) fn submit(&mut self, packet: Packet) -> Result<(), (DropReason, Packet)> {
        if needs_software(&packet, self.offloads) {
            return Err((DropReason::Offload, packet));
        }
        match packet.len() {
            len if len < ethernet::HEADER_LEN => return Err((DropReason::Malformed, packet)),
            len if len > self.max_len => return Err((DropReason::TooLong, packet)),
            _ => {}
        }
        let mut chunk_addr = self.single_chunk(&packet);
        let mut packet = packet;
        if chunk_addr.is_none() && !self.is_sendable(&packet) {
            packet = self.copy(packet)?;
            chunk_addr = self.single_chunk(&packet);
        }
        let mut request = 0;
        if let Checksum::Partial { .. } = packet.csum() {
            request |= tx_metadata::CHECKSUM;
        }
        let has_headroom = packet.headroom() >= tx_metadata::LEN && !packet.linear().is_empty();
        if has_headroom && self.timestamp.as_ref().is_some_and(TxTimestamp::is_due) {
            request |= tx_metadata::TIMESTAMP;
        }
        if request != 0 && tx_metadata::request(&mut packet, request).is_none() {
            return Err((DropReason::Offload, packet));
        }
        match chunk_addr {
            Some((chunk, addr)) => self.post_whole(packet, chunk, addr, request),
            None => self.post_frags(packet, request),
        }
    }

    #[inline]
    fn post_whole(
        &mut self,
        packet: Packet,
        chunk: usize,
        addr: u64,
        request: u64,
    ) -> Result<(), (DropReason, Packet)> {
        let Some(rings) = &mut self.rings else { return Err((DropReason::PortGone, packet)) };
        let options = if request == 0 { 0 } else { Desc::METADATA };
        rings.tx.write(Desc { addr, len: packet.len() as u32, options });
        self.in_flight.post(packet, chunk);
        self.begin_timestamp(chunk, request);
        Ok(())
    }

    #[cold]
    fn post_frags(&mut self, packet: Packet, request: u64) -> Result<(), (DropReason, Packet)> {
        let Some(rings) = &mut self.rings else { return Err((DropReason::PortGone, packet)) };
        let total = packet.chunks().count();
        let mut options = if request == 0 { 0 } else { Desc::METADATA };
        let (mut chunks, mut n) = ([0; MAX_FRAGS], 0);
        for (i, frag) in packet.chunks().enumerate() {
            // `is_sendable` found all fragments in the UMEM, and no more than the array has room
            // for.
            let (Some((chunk, addr)), Some(at)) = (self.queue.port.umem.address(&frag), chunks.get_mut(i)) else {
                continue;
            };
            (*at, n) = (chunk, i + 1);
            let more = if i + 1 < total { Desc::CONTINUED } else { 0 };
            rings.tx.write(Desc { addr, len: frag.len() as u32, options: options | more });
            options = 0;
        }
        if n == 0 {
            return Err((DropReason::Malformed, packet));
        }
        self.in_flight.post_frags(packet, &chunks[..n]);
        self.begin_timestamp(chunks[0], request);
        Ok(())
    }

    /// Begins a sample for the frame in this chunk, if it has a request for a timestamp.
    #[inline]
    fn begin_timestamp(&mut self, chunk: usize, request: u64) {
        if request & tx_metadata::TIMESTAMP != 0
            && let Some(sample) = &mut self.timestamp
        {
            sample.begin(chunk);
        }
    }

    /// Whether the packet has headroom for its metadata.
    #[inline]
    fn has_headroom(packet: &Packet) -> bool {
        !matches!(packet.csum(), Checksum::Partial { .. })
            || (packet.headroom() >= tx_metadata::LEN && !packet.linear().is_empty())
    }

    /// Chunk and address of a packet that lies in one chunk of the UMEM.
    #[inline]
    fn single_chunk(&self, packet: &Packet) -> Option<(usize, u64)> {
        if packet.frags() > 0 || !Self::has_headroom(packet) {
            return None;
        }
        let found = packet.chunks().next().and_then(|frag| self.queue.port.umem.address(&frag));
        found.filter(|&(chunk, _)| self.in_flight.is_free(chunk))
    }

    /// Whether the packet can be sent without a copy, in several fragments.
    #[cold]
    fn is_sendable(&self, packet: &Packet) -> bool {
        if !Self::has_headroom(packet) {
            return false;
        }
        let mut n = 0;
        for frag in packet.chunks() {
            let Some((chunk, _)) = self.queue.port.umem.address(&frag) else { return false };
            if !self.in_flight.is_free(chunk) {
                return false;
            }
            n += 1;
        }
        n <= self.max_frags && (n < 2 || self.has_distinct_chunks(packet))
    }

    /// Whether each fragment lies in a chunk of its own.
    #[cold]
    fn has_distinct_chunks(&self, packet: &Packet) -> bool {
        let mut seen = [usize::MAX; MAX_FRAGS];
        for (i, frag) in packet.chunks().enumerate() {
            let Some((chunk, _)) = self.queue.port.umem.address(&frag) else { return false };
            if seen.contains(&chunk) || i >= seen.len() {
                return false;
            }
            seen[i] = chunk;
        }
        true
    }

    /// Copies the packet to chunks of the UMEM, with headroom for metadata.
    #[cold]
    fn copy(&mut self, packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Some(mut copy) = self.copy_cache.alloc() else { return Err((DropReason::NoBuffer, packet)) };
        if copy.headroom() < tx_metadata::LEN {
            // The pool has no headroom.
            let _ = copy.push_back(tx_metadata::LEN);
            copy.pull_front(tx_metadata::LEN);
        }
        let len = packet.len();
        let mut at = len.min(copy.tailroom());
        if let Ok(room) = copy.push_back(at) {
            packet.copy_to(0, room);
        }
        while at < len {
            let Some(mut next) = self.copy_cache.alloc() else { return Err((DropReason::NoBuffer, packet)) };
            let n = (len - at).min(next.tailroom());
            if let Ok(room) = next.push_back(n) {
                packet.copy_to(at, room);
            }
            at += n;
            if copy.frags() + 2 > self.max_frags || n == 0 || copy.append(next).is_err() {
                return Err((DropReason::TooLong, packet));
            }
        }
        self.counters.copied(1, packet.len() as u64);
        copy.copy_metadata_from(&packet);
        self.cache.free(packet);
        Ok(copy)
    }

    /// Makes the kernel send the entries of the TX ring, if it needs a wakeup.
    #[inline]
    pub(super) fn wake_kernel(&mut self) {
        self.needs_kick = false;
        let Some(rings) = &mut self.rings else { return };
        if !rings.tx.ring().needs_wakeup() {
            return;
        }
        let (mut calls, mut waiting) = (0, rings.tx.waiting());
        while waiting > 0 {
            calls += 1;
            let result = rings.socket.wake_tx();
            let left = rings.tx.waiting();
            let progress = left < waiting;
            waiting = left;
            match result.err().and_then(|e| e.raw_os_error()) {
                None | Some(libc::EINTR) if progress => {}
                // The driver dropped a frame.
                Some(libc::EBUSY) => {
                    self.refused += 1;
                    self.queue.port.events.count(Event::DroppedByDriver, 1);
                    if !progress {
                        break;
                    }
                }
                // The budget of one call, or a full send buffer; both without loss.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if progress => {}
                Some(libc::ENETDOWN) => {
                    self.state = down(LinkState::Down);
                    break;
                }
                Some(libc::ENXIO | libc::ENODEV) => {
                    self.state = self.queue.gone();
                    break;
                }
                _ => {
                    self.counters.retried(1);
                    break;
                }
            }
            // Completions come first: the kernel sends no more than the COMPLETION ring has room
            // for.
        }
        self.needs_kick = waiting > 0;
        self.counters.called(calls);
    }
}
