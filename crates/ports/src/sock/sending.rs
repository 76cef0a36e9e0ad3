//! What an application sends: its descriptors, taken as packets.
//!
//! ```text
//!   a frame of one piece, to an egress that takes fragments       ──► its page, and no head
//!   in pieces, with metadata, or with bytes that are to be linear ──► a head of the pool: copies in it, pages behind it
//! ```

use super::asking::{Metadata, grant};
use super::copying::Copying;
use super::events::Fault;
use super::roster::Member;
use super::session::Session;
use super::statistics::Counted;
use crate::vnet::VnetHeader;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_client::protocol::{MAX_PIECES, MAX_SUPER_PIECES, Statistic};
use towpath_packet::xsk_ring::Shared;
use towpath_packet::{Batch, Cache, ExtBufPool, Packet, xsk_ring};

/// Shortest frame: an Ethernet header.
const SHORTEST: usize = 14;

/// What was taken in one turn.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) bytes: usize,
    pub(super) copies: u64,
    pub(super) copied_bytes: u64,
    /// ExtBufPool that were attached, and that came home.
    pub(super) lent: u64,
    pub(super) home: u64,
}

/// One application's half: its TX and COMPLETION rings.
#[derive(Debug)]
pub(super) struct Sending {
    /// The queue that it lives on.
    pub(super) queue: u8,
    pub(super) session: Arc<Session>,
    pub(super) tx: xsk_ring::Consumer<xsk_ring::Mapped<xsk_ring::Desc>>,
    pub(super) completion: xsk_ring::Producer<xsk_ring::Mapped<u64>>,
    pub(super) counted: Counted,
    /// Descriptors that can't be are counted, and do not end the session.
    pub(super) lenient: bool,
    /// Their tokens are the addresses by which they were sent.
    pub(super) pages: ExtBufPool,
    /// Bytes of chunks that may be on their way.
    pub(super) budget: u64,
    /// Bytes that are.
    pub(super) charged: u64,
    /// Longest frame.
    pub(super) longest: usize,
    /// The first pieces of a packet, and how many they are.
    pub(super) begun: Option<Packet>,
    pub(super) pieces: usize,
    /// What may be asked for in front of frames.
    pub(super) metadata: Metadata,
    /// What the packet asks for.
    pub(super) request: Option<VnetHeader>,
    /// Completions were written that the application has not been told of.
    pub(super) told: bool,
    /// There was no room in the COMPLETION ring for all that came home.
    pub(super) blocked: bool,
    /// There was no buffer for a head, no page, or no room in the COMPLETION ring.
    pub(super) starved: bool,
}

impl Member for Sending {
    fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.session.events().halves.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sending {
    /// One turn: completions, then up to `room` packets.
    #[inline]
    pub(super) fn turn(
        &mut self,
        room: usize,
        copying: Copying,
        cache: &mut Cache,
        out: &mut Batch,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        tally.home += self.complete()?;
        let done = self.take(room, copying, cache, out, tally);
        if let Some(line) = self.session.line()
            && (self.starved || line.is_full())
        {
            line.set_full(!self.has_room());
        }
        if std::mem::take(&mut self.told) {
            self.completion.submit();
            self.session.tell_completed();
        }
        done
    }

    /// Whether the application has room to send, by AF_XDP's rule: no more than half of its TX ring is full.
    pub(super) fn has_room(&self) -> bool {
        self.tx.waiting() <= self.tx.ring().size() / 2
    }

    /// Writes completions of pages that came home, as far as the ring has room; returns how many.
    #[inline]
    fn complete(&mut self) -> Result<u64, Fault> {
        self.blocked = false;
        if !self.pages.has_back() {
            return Ok(0);
        }
        let free = self.completion.try_reserve(self.pages.away() as u32).map_err(|_| Fault::Counter)?;
        let (completion, memory, charged) = (&mut self.completion, &self.session.memory, &mut self.charged);
        let n = self.pages.take_back(free as usize, |addr, len| {
            completion.write(addr);
            memory.came_back(addr);
            *charged -= memory.truesize(len.into());
        });
        self.told |= n > 0;
        self.blocked = n == free as usize && self.pages.has_back();
        Ok(n as u64)
    }

    /// Takes up to `room` packets, each into a head of its own at the end of `out`, and no more descriptors than that, whatever they say:
    /// what nobody can send must not take time from the others.
    #[inline]
    fn take(
        &mut self,
        room: usize,
        copying: Copying,
        cache: &mut Cache,
        out: &mut Batch,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        let ready = self.tx.try_peek(room as u32).map_err(|_| Fault::Counter)? as usize;
        let chunks = self.budget.saturating_sub(self.charged) / self.session.memory.chunk() as u64;
        let mut n = ready.min(room).min(self.pages.free()).min(chunks as usize);
        if copying.linear > 0 || self.lenient {
            // What is copied, or skipped, is completed at once.
            n = n.min(self.completion.try_reserve(n as u32).map_err(|_| Fault::Counter)? as usize);
        }
        // More is there, which no kick will announce, and this turn may end without a packet.
        self.starved = n < ready;
        if n == 0 {
            return Ok(());
        }
        if n == ready && n < room {
            self.counted.add(Statistic::TxRingEmptyDescs, 1);
        }
        let alone = copying.alone && self.begun.is_none();
        let taken = if alone { self.take_alone(n, cache, out, tally) } else { Ok(0) };
        let done = taken.and_then(|taken| match n - taken {
            0 => Ok(()),
            left => self.take_pieces(left, copying, cache, out, tally),
        });
        self.tx.release();
        done
    }

    /// Takes up to `n` frames of one piece that ask for nothing, as pages without heads; returns how many there were in a row.
    #[inline]
    fn take_alone(&mut self, n: usize, cache: &mut Cache, out: &mut Batch, tally: &mut Tally) -> Result<usize, Fault> {
        for taken in 0..n {
            let xsk_ring::Desc { addr, len, options } = self.tx.read();
            if options != 0 {
                self.tx.put_back();
                return Ok(taken);
            }
            let at = self.session.memory.send(addr, len, true);
            let page = at.and_then(|at| self.pages.packet(at, len as usize, addr).ok_or(Fault::Descriptor));
            let mut packet = match page {
                Ok(packet) => packet,
                Err(_) if self.lenient => {
                    self.skip(0, Some(addr));
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            tally.lent += 1;
            self.charged += self.session.memory.truesize(len);
            if !self.fits(packet.len()) {
                cache.free(packet);
                continue;
            }
            tally.bytes += packet.len();
            packet.set_ingress(0, self.queue);
            // There is room: for as many as were to be taken.
            let _ = out.push(packet);
        }
        Ok(n)
    }

    /// Whether a frame of so many bytes can be sent; counts those that can't.
    #[inline]
    fn fits(&self, len: usize) -> bool {
        let fits = (SHORTEST..=self.longest).contains(&len);
        if !fits {
            self.session.events().too_long.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// Takes `n` pieces of packets of any kind, each packet into a head.
    #[inline]
    fn take_pieces(
        &mut self,
        n: usize,
        copying: Copying,
        cache: &mut Cache,
        out: &mut Batch,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        let mut at = out.len();
        let begun = self.begun.take().is_some_and(|packet| out.push(packet).is_ok());
        let heads = n - usize::from(begun);
        self.starved |= cache.alloc_bulk(out, heads) < heads;
        let mut done = Ok(());
        for _ in 0..n {
            let Some(packet) = out.as_mut_slice().get_mut(at) else { break };
            let desc = self.tx.read();
            let added = self.add(desc, packet, copying, tally);
            if added.is_ok() && desc.options & xsk_ring::Desc::CONTINUED != 0 {
                continue;
            }
            let (pieces, request) = (std::mem::take(&mut self.pieces), self.request.take());
            let granted = added.and_then(|()| match request {
                None => Ok(packet.len()),
                Some(request) => grant(request, packet, tally),
            });
            match granted {
                Ok(len) if self.fits(len) => {
                    tally.bytes += packet.len();
                    packet.set_ingress(0, self.queue);
                    at += 1;
                    continue;
                }
                Ok(_) => {}
                Err(_) if self.lenient => self.skip(pieces, added.is_err().then_some(desc.addr)),
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
            if packet.len() > 0 { self.begun = Some(packet) } else { cache.free(packet) }
        }
        done
    }

    /// Counts a packet that can't be sent. Its pieces come home with its head; a descriptor that is none of them is completed here.
    #[cold]
    fn skip(&mut self, pieces: usize, last: Option<u64>) {
        let lost = pieces as u64 + u64::from(last.is_some());
        if let Some(addr) = last {
            self.completion.write(addr);
            self.told = true;
        }
        self.counted.add(Statistic::TxInvalidDescs, lost);
        self.session.events().skipped.fetch_add(lost, Ordering::Relaxed);
    }

    /// Reads what lies in front of the first frame of a packet.
    #[cold]
    fn read_metadata(&mut self, desc: xsk_ring::Desc) -> Result<(), Fault> {
        let known = desc.options & !(xsk_ring::Desc::CONTINUED | xsk_ring::Desc::METADATA) == 0;
        if !known || self.pieces > 0 {
            return Err(Fault::Descriptor);
        }
        self.request = self.metadata.read(&self.session.memory, desc.addr)?;
        Ok(())
    }

    /// Whether a packet of so many pieces may have another one.
    #[cold]
    fn may_go_on(&self) -> bool {
        self.pieces < MAX_SUPER_PIECES && self.request.is_some_and(|request| request.gso_type != 0)
    }

    /// Adds the piece of a descriptor to a packet: copied, or as a page.
    #[inline]
    fn add(
        &mut self,
        desc: xsk_ring::Desc,
        packet: &mut Packet,
        copying: Copying,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        let xsk_ring::Desc { addr, len, options } = desc;
        if options & !xsk_ring::Desc::CONTINUED != 0 {
            self.read_metadata(desc)?;
        }
        if self.pieces >= MAX_PIECES && !self.may_go_on() {
            return Err(Fault::Descriptor);
        }
        let memory = &self.session.memory;
        let n = copying.next(packet, len as usize);
        let at = memory.send(addr, len, n < len as usize)?;
        self.pieces += 1;
        let len = len as usize;
        if n > 0 {
            // It lies inside: the chunk does.
            let _ = self.pages.copy(at, n, packet);
            tally.copies += 1;
            tally.copied_bytes += n as u64;
        }
        if n == len {
            self.completion.write(addr);
            self.told = true;
            return Ok(());
        }
        let page = self.pages.attach(at + n, len - n, addr).ok_or(Fault::Descriptor)?;
        // It has fewer pieces than a packet may have.
        let _ = packet.append_buf(page);
        tally.lent += 1;
        self.charged += memory.truesize((len - n) as u32);
        Ok(())
    }
}
