//! One application of a receive queue: the descriptors of its TX ring, taken as packets.
//!
//! ```text
//!   a frame of one piece, to an egress that takes fragments ──► its page, no head
//!   a frame of one piece, to be copied whole                ──► a head with the copy
//!   in pieces, with metadata, or with linear bytes          ──► a head with copies, then pages
//! ```
//!
//! Frames of the first two kinds have a loop of their own each, which ends at the first other one.

use super::rings::{AppTxRings, Stall};
use crate::copy_plan::{CopyPlan, SinglePiece};
use crate::sock::source;
use crate::sock::stats::{Fault, RxTotals};
use crate::sock::tx_metadata;
use std::sync::atomic::Ordering;
use towpath_client::protocol::{MAX_PIECES, MAX_SUPER_PIECES, Statistic};
use towpath_packet::{Batch, Cache, Packet, xsk_ring};
use towpath_wire::ethernet;

impl AppTxRings {
    /// Writes completions, then takes up to `room` packets. Returns the number of descriptors that
    /// it took.
    #[inline]
    pub(super) fn poll(
        &mut self,
        room: usize,
        plan: CopyPlan,
        cache: &mut Cache,
        out: &mut Batch,
        totals: &mut RxTotals,
    ) -> Result<usize, Fault> {
        let plan = if self.sources.is_some() { plan.with_headers(source::HEADERS) } else { plan };
        totals.completed += self.write_completions()?;
        let done = self.take(room, plan, cache, out, totals);
        if let Err(Fault::Descriptor | Fault::Chunk) = done {
            self.stats.add(Statistic::TxInvalidDescs, 1);
        }
        if let Some(poll_fd) = self.session.poll_fd()
            && (self.stall != Stall::None || poll_fd.is_tx_full())
        {
            poll_fd.set_tx_full(!self.has_room());
        }
        if std::mem::take(&mut self.unsubmitted) {
            self.completion.submit();
            self.session.notify_completions();
        }
        done
    }

    /// Writes completions of pages that came back, as far as the ring has room. Returns how many.
    #[inline]
    fn write_completions(&mut self) -> Result<u64, Fault> {
        self.completion_full = false;
        if !self.pages.has_freed() {
            return Ok(0);
        }
        let free = self.completion.try_reserve(self.pages.in_use() as u32).map_err(|_| Fault::Counter)?;
        let (completion, umem, mut bytes) = (&mut self.completion, &*self.session.umem, 0);
        let n = self.pages.drain_freed(free as usize, |addr, len| {
            completion.write(addr);
            umem.end_tx(addr);
            bytes += u64::from(len);
        });
        self.charged -= umem.truesize(n as u64, bytes);
        self.unsubmitted |= n > 0;
        self.completion_full = n == free as usize && self.pages.has_freed();
        Ok(n as u64)
    }

    /// Takes up to `room` packets to the end of `out`, and at most `room` descriptors whatever
    /// their content: frames that cannot be sent must not take time from other applications.
    /// Returns the number of descriptors.
    #[inline]
    fn take(
        &mut self,
        room: usize,
        plan: CopyPlan,
        cache: &mut Cache,
        out: &mut Batch,
        totals: &mut RxTotals,
    ) -> Result<usize, Fault> {
        let ready = self.tx.try_peek(room as u32).map_err(|_| Fault::Counter)? as usize;
        let chunks = self.budget.saturating_sub(self.charged) / self.session.umem.chunk() as u64;
        let mut n = ready.min(room).min(self.pages.available()).min(chunks as usize);
        if plan.linear() > 0 || self.skip_invalid {
            // A copied or skipped descriptor is completed at once.
            let room = self.completion.try_reserve(n as u32).map_err(|_| Fault::Counter)? as usize;
            self.completion_full |= n > 0 && room == 0;
            n = n.min(room);
        }
        // No kick announces the descriptors that stay, and the burst may end without a packet.
        self.stall = match n {
            n if n == ready => Stall::None,
            0 => Stall::Waits,
            _ => Stall::Burst,
        };
        if n == 0 {
            return Ok(0);
        }
        if n == ready && n < room {
            self.stats.add(Statistic::TxRingEmptyDescs, 1);
        }
        let taken = match plan.single() {
            _ if self.partial.is_some() => Ok(0),
            SinglePiece::Page => self.take_headless(n, cache, out, totals),
            SinglePiece::Copy => self.take_copies(n, plan, cache, out, totals),
            SinglePiece::Any => Ok(0),
        };
        let done = taken.and_then(|taken| match n - taken {
            0 => Ok(()),
            left => self.take_with_heads(left, plan, cache, out, totals),
        });
        self.tx.release();
        done.map(|()| n)
    }

    /// Takes up to `n` frames of one piece without metadata, as pages without heads. Returns how
    /// many there were in a row.
    #[inline]
    fn take_headless(
        &mut self,
        n: usize,
        cache: &mut Cache,
        out: &mut Batch,
        totals: &mut RxTotals,
    ) -> Result<usize, Fault> {
        let mut taken = 0;
        loop {
            taken += self.take_pages(n - taken, out, totals);
            if taken == n || !self.take_odd(cache, out, totals)? {
                return Ok(taken);
            }
            taken += 1;
        }
    }

    /// The part of [`take_headless`](AppTxRings::take_headless) for frames that can be sent.
    #[inline]
    fn take_pages(&mut self, n: usize, out: &mut Batch, totals: &mut RxTotals) -> usize {
        let (pages, umem, queue) = (&mut self.pages, &*self.session.umem, self.queue);
        let (lengths, mut bytes) = (ethernet::HEADER_LEN..=self.longest, 0);
        let taken = self.tx.read_while(n, |xsk_ring::Desc { addr, len, options }| {
            let len = len as usize;
            if options != 0 || !lengths.contains(&len) {
                return false;
            }
            let Some(at) = umem.try_begin_tx(addr, len as u32, true) else { return false };
            let Some(mut packet) = pages.packet(at, len, addr) else { return false };
            packet.set_ingress(0, queue);
            bytes += len;
            // `n` is at most the room of the batch.
            let _ = out.push(packet);
            true
        });
        totals.attached += taken as u64;
        totals.bytes += bytes;
        self.charged += umem.truesize(taken as u64, bytes as u64);
        taken
    }

    /// Takes the next frame, which [`take_pages`](AppTxRings::take_pages) did not take. Returns
    /// false if it has metadata, or several pieces: it stays in the ring.
    #[cold]
    #[inline(never)]
    fn take_odd(&mut self, cache: &mut Cache, out: &mut Batch, totals: &mut RxTotals) -> Result<bool, Fault> {
        let xsk_ring::Desc { addr, len, options } = self.tx.read();
        if options != 0 {
            self.tx.cancel();
            return Ok(false);
        }
        let at = self.session.umem.begin_tx(addr, len, true);
        let page = at.and_then(|at| self.pages.packet(at, len as usize, addr).ok_or(Fault::Descriptor));
        let mut packet = match page {
            Ok(packet) => packet,
            Err(_) if self.skip_invalid => {
                self.skip(0, Some(addr));
                return Ok(true);
            }
            Err(fault) => return Err(fault),
        };
        totals.attached += 1;
        self.charged += self.session.umem.truesize(1, len.into());
        if !self.fits(packet.len()) {
            cache.free(packet);
            return Ok(true);
        }
        // The descriptor has changed since.
        totals.bytes += packet.len();
        packet.set_ingress(0, self.queue);
        let _ = out.push(packet);
        Ok(true)
    }

    /// Takes up to `n` frames of one piece without metadata, as copies that are completed at once.
    /// Returns how many there were in a row.
    #[inline]
    fn take_copies(
        &mut self,
        n: usize,
        plan: CopyPlan,
        cache: &mut Cache,
        out: &mut Batch,
        totals: &mut RxTotals,
    ) -> Result<usize, Fault> {
        let mut at = out.len();
        let heads = cache.alloc_bulk(out, n);
        let (mut taken, mut done) = (0, Ok(()));
        while taken < heads
            && let Some(packet) = out.as_mut_slice().get_mut(at)
        {
            let xsk_ring::Desc { addr, len, options } = self.tx.read();
            if options != 0 || plan.copy_len(packet, len as usize) < len as usize {
                self.tx.cancel();
                break;
            }
            taken += 1;
            match self.session.umem.begin_tx(addr, len, false) {
                // The chunk lies inside of the memory, and so do the bytes; the head has room.
                Ok(from) => _ = self.pages.copy(from, len as usize, packet),
                Err(_) if self.skip_invalid => {
                    self.skip(0, Some(addr));
                    continue;
                }
                Err(fault) => {
                    done = Err(fault);
                    break;
                }
            }
            self.completion.write(addr);
            self.unsubmitted = true;
            totals.copies += 1;
            totals.copied_bytes += u64::from(len);
            if self.fits(len as usize) && self.permits(packet) {
                totals.bytes += len as usize;
                packet.set_ingress(0, self.queue);
                at += 1;
            } else {
                // The head is used again.
                packet.truncate(0);
            }
        }
        while out.len() > at
            && let Some(head) = out.pop()
        {
            cache.free(head);
        }
        done.map(|()| taken)
    }

    /// Whether a frame of `len` bytes can be sent. Counts those that can't.
    #[inline]
    fn fits(&mut self, len: usize) -> bool {
        let fits = (ethernet::HEADER_LEN..=self.longest).contains(&len);
        if !fits {
            self.count_unsent(len);
        }
        fits
    }

    #[cold]
    fn count_unsent(&mut self, len: usize) {
        let reason = if len < ethernet::HEADER_LEN { Statistic::TxTooShort } else { Statistic::TxTooLong };
        self.stats.add(reason, 1);
        self.session.events.too_long.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a packet has a source address that may be sent from.
    #[inline]
    fn permits(&mut self, packet: &Packet) -> bool {
        self.sources.is_none() || self.compare_source(packet)
    }

    /// Compares a packet's source address. Counts those that may not be sent from.
    #[cold]
    #[inline(never)]
    fn compare_source(&mut self, packet: &Packet) -> bool {
        let permits = self.sources.as_ref().is_none_or(|sources| sources.permit(packet));
        if !permits {
            self.stats.add(Statistic::TxSpoofed, 1);
            self.session.events.spoofed.fetch_add(1, Ordering::Relaxed);
        }
        permits
    }

    /// Takes `n` pieces of packets of any kind, each packet with a head.
    #[inline]
    fn take_with_heads(
        &mut self,
        n: usize,
        plan: CopyPlan,
        cache: &mut Cache,
        out: &mut Batch,
        totals: &mut RxTotals,
    ) -> Result<(), Fault> {
        let mut at = out.len();
        let partial = self.partial.take().is_some_and(|packet| out.push(packet).is_ok());
        let heads = n - usize::from(partial);
        if cache.alloc_bulk(out, heads) < heads {
            self.stall = Stall::NoHead;
        }
        let mut done = Ok(());
        for _ in 0..n {
            let Some(packet) = out.as_mut_slice().get_mut(at) else { break };
            let desc = self.tx.read();
            let added = self.add_piece(desc, packet, plan, totals);
            if added.is_ok() && desc.options & xsk_ring::Desc::CONTINUED != 0 {
                continue;
            }
            let (pieces, request) = (std::mem::take(&mut self.pieces), self.request.take());
            let applied = added.and_then(|()| match request {
                None => Ok(packet.len()),
                Some(request) => tx_metadata::apply(request, packet, totals)
                    .inspect_err(|_| self.stats.add(Statistic::TxInvalidRequests, 1)),
            });
            match applied {
                Ok(len) if self.fits(len) && self.permits(packet) => {
                    totals.bytes += packet.len();
                    packet.set_ingress(0, self.queue);
                    at += 1;
                    continue;
                }
                Ok(_) => {}
                Err(_) if self.skip_invalid => self.skip(pieces, added.is_err().then_some(desc.addr)),
                Err(fault) => {
                    done = Err(fault);
                    break;
                }
            }
            // The last head takes its place.
            let last = out.len() - 1;
            out.as_mut_slice().swap(at, last);
            if let Some(packet) = out.pop() {
                cache.free(packet);
            }
        }
        while out.len() > at
            && let Some(packet) = out.pop()
        {
            if packet.len() > 0 { self.partial = Some(packet) } else { cache.free(packet) }
        }
        done
    }

    /// Counts a packet that can't be sent. Its pieces complete with its head; a descriptor that is
    /// not one of its pieces is completed here.
    #[cold]
    fn skip(&mut self, pieces: usize, last: Option<u64>) {
        let lost = pieces as u64 + u64::from(last.is_some());
        if let Some(addr) = last {
            self.completion.write(addr);
            self.unsubmitted = true;
        }
        self.stats.add(Statistic::TxInvalidDescs, lost);
        self.session.events.skipped.fetch_add(lost, Ordering::Relaxed);
    }

    /// Reads the metadata in front of the first frame of a packet.
    #[cold]
    fn read_metadata(&mut self, desc: xsk_ring::Desc) -> Result<(), Fault> {
        let known = desc.options & !(xsk_ring::Desc::CONTINUED | xsk_ring::Desc::METADATA) == 0;
        if !known || self.pieces > 0 {
            return Err(Fault::Descriptor);
        }
        let request = self.metadata.read(&self.session.umem, desc.addr);
        self.request = request.inspect_err(|_| self.stats.add(Statistic::TxInvalidRequests, 1))?;
        Ok(())
    }

    /// Whether the packet, of [`MAX_PIECES`] or more, may have another piece.
    #[cold]
    fn may_continue(&self) -> bool {
        self.pieces < MAX_SUPER_PIECES && self.request.is_some_and(|request| request.gso_type != 0)
    }

    /// Adds the piece of a descriptor to a packet: copied, or as a page.
    #[inline]
    fn add_piece(
        &mut self,
        desc: xsk_ring::Desc,
        packet: &mut Packet,
        plan: CopyPlan,
        totals: &mut RxTotals,
    ) -> Result<(), Fault> {
        let xsk_ring::Desc { addr, len, options } = desc;
        if options & !xsk_ring::Desc::CONTINUED != 0 {
            self.read_metadata(desc)?;
        }
        if self.pieces >= MAX_PIECES && !self.may_continue() {
            return Err(Fault::Descriptor);
        }
        let umem = &self.session.umem;
        let n = plan.copy_len(packet, len as usize);
        let at = umem.begin_tx(addr, len, n < len as usize)?;
        self.pieces += 1;
        let len = len as usize;
        if n > 0 {
            // The chunk lies inside of the memory, and so do the bytes.
            let _ = self.pages.copy(at, n, packet);
            totals.copies += 1;
            totals.copied_bytes += n as u64;
        }
        if n == len {
            self.completion.write(addr);
            self.unsubmitted = true;
            return Ok(());
        }
        let page = self.pages.attach(at + n, len - n, addr).ok_or(Fault::Descriptor)?;
        // The packet has fewer pieces than the maximum.
        let _ = packet.append_buf(page);
        totals.attached += 1;
        self.charged += umem.truesize(1, (len - n) as u64);
        Ok(())
    }
}
