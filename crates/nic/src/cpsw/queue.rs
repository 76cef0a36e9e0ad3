//! The port traits over channels and flows.

use super::host::Host;
use super::lease::{RxWay, TxWay};
use super::rx::{RxCounts, RxFlow};
use super::tx::{TxChannel, TxCounts};
use super::window::PortWindow;
use crate::batching::Batching;
use std::os::fd::RawFd;
use std::sync::Arc;
use towpath_bus::{Bus, Irq, Mmio};
use towpath_packet::port::{RxMemory, RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Checksum, Counters, DropReason, Offloads, Packet, Pool};

/// Calls between two looks at the link.
const LOOK_EVERY: u32 = 4096;
const NO_LINK: State = State::Down(std::borrow::Cow::Borrowed("no link"));

/// A receive queue of one MAC port.
pub struct CpswRx<B: Bus> {
    pub(super) ways: Vec<RxWay<B>>,
    pub(super) first: usize,
    pub(super) port: u8,
    pub(super) queue: u8,
    pub(super) batching: Batching,
    /// The pool that buffers come from, if that is not the port's: a shared flow has that of the port which started first.
    pub(super) own_pool: Option<Pool>,
    /// The interrupt of the queue's only flow, where nobody else takes from it.
    pub(super) irq: Option<B::Irq>,
    pub(super) counters: Arc<Counters>,
}

impl<B: Bus> CpswRx<B> {
    /// Descriptors of its flows that are free, and all.
    pub fn descriptors(&self) -> (usize, usize) {
        let of_flows = self.ways.iter().filter_map(|way| way.read(RxFlow::home));
        of_flows.fold((0, 0), |(free, all), (f, a)| (free + f, all + a))
    }

    /// Numbers of its flows.
    pub fn counts(&self) -> Vec<RxCounts> {
        self.ways.iter().filter_map(|way| way.read(|flow| flow.counts)).collect()
    }
}

impl<B: Bus> RxQueue for CpswRx<B> {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        let ways = self.ways.len();
        for turn in 0..ways {
            if out.room() == 0 {
                break;
            }
            let Some(way) = self.ways.get_mut((self.first + turn) % ways) else { break };
            let lost = way.poll(self.port, out);
            if lost > 0 {
                self.counters.missed(lost);
            }
        }
        self.first = if self.first + 1 < ways { self.first + 1 } else { 0 };
        let got = out.as_mut_slice().get_mut(from..).unwrap_or_default();
        let mut bytes = 0;
        for packet in got.iter_mut() {
            packet.set_ingress(0, self.queue);
            bytes += packet.len() as u64;
        }
        let packets = got.len();
        if packets > 0 {
            self.counters.moved(packets as u64, bytes);
        }
        packets
    }

    #[inline]
    fn refill(&mut self) -> usize {
        let batch = self.batching.get().get();
        self.ways.iter_mut().map(|way| way.refill(batch)).sum()
    }

    fn memory(&self) -> RxMemory {
        self.own_pool.clone().map_or_else(RxMemory::default, RxMemory::own_pool)
    }

    fn wake(&self) -> Wake {
        let fd: Option<RawFd> = self.irq.as_ref().and_then(|irq| {
            // What it signalled until now is looked for by the call of `rx` that follows.
            irq.take();
            irq.fd()
        });
        fd.map_or(Wake::Poll, Wake::Fd)
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// A transmit queue of one MAC port.
pub struct CpswTx<B: Bus> {
    pub(super) way: TxWay<B>,
    /// Where the channel is shared.
    pub(super) window: Option<PortWindow<B::Bar>>,
    pub(super) port: u8,
    pub(super) batching: Batching,
    pub(super) cache: Cache,
    pub(super) host: Arc<Host<B>>,
    pub(super) state: State,
    pub(super) turn: u32,
    pub(super) counters: Arc<Counters>,
}

/// Where a checksum goes, in the terms of PS word 2: bytes are numbered from one.
#[inline]
fn checksum_word(packet: &Packet) -> Result<u32, DropReason> {
    let Checksum::Partial { start, offset } = packet.csum() else { return Ok(0) };
    let (start, offset) = (u32::from(start), u32::from(offset));
    let count = (packet.len() as u32).checked_sub(start).ok_or(DropReason::Malformed)?;
    let result = start + offset + 1;
    if count < offset + 2 {
        return Err(DropReason::Malformed);
    }
    if result > 255 || count > 0x3fff {
        return Err(DropReason::Offload);
    }
    // The checksum of UDP lies six bytes behind its start, and is never sent as zero.
    let invert_zero = if offset == 6 { 0x8000 } else { 0 };
    Ok(result << 24 | (start + 1) << 16 | invert_zero | count)
}

/// PS word 2 for a packet that can be sent.
#[inline]
fn examine(packet: &Packet, longest: usize) -> Result<u32, DropReason> {
    if packet.gso().is_some() || packet.vlan().is_some() {
        return Err(DropReason::Offload);
    }
    match packet.len() {
        0..14 => Err(DropReason::Malformed),
        len if len > longest => Err(DropReason::TooLong),
        _ => checksum_word(packet),
    }
}

/// Puts one packet into the channel; its length if it was taken.
#[inline]
fn send<B: Bus>(
    channel: &mut TxChannel<B>,
    cache: &mut Cache,
    packet: Packet,
    port: u8,
    batch: u8,
    counters: &Counters,
) -> Result<u64, DropReason> {
    let word = match examine(&packet, channel.longest) {
        Ok(word) => word,
        Err(reason) => {
            cache.free(packet);
            return Err(reason);
        }
    };
    let len = packet.len() as u64;
    let packet = if channel.takes(&packet) {
        match channel.stage(packet, port, word, batch) {
            Ok(()) => return Ok(len),
            Err(packet) if channel.map_external(&packet) => match channel.stage(packet, port, word, batch) {
                Ok(()) => return Ok(len),
                Err(packet) => packet,
            },
            // Memory that the device can't reach.
            Err(packet) => packet,
        }
    } else {
        packet
    };
    let copied = copy(cache, &packet);
    counters.copied(u64::from(copied.is_some()), if copied.is_some() { len } else { 0 });
    cache.free(packet);
    let staged = copied.and_then(|copy| channel.stage(copy, port, word, batch).map_err(|copy| cache.free(copy)).ok());
    staged.map(|()| len).ok_or(DropReason::NoBuffer)
}

#[cold]
fn copy(cache: &mut Cache, packet: &Packet) -> Option<Packet> {
    let mut copy = cache.alloc()?;
    match copy.push_back(packet.len()) {
        Ok(room) => {
            packet.copy_to(0, room);
            Some(copy)
        }
        Err(_) => {
            cache.free(copy);
            None
        }
    }
}

impl<B: Bus> CpswTx<B> {
    /// Begins a burst that may be longer than a [`Batch`]: what is pushed is announced by full batches, and the rest when the guard
    /// is dropped.
    pub fn burst(&mut self) -> Burst<'_, B> {
        Burst { tx: self }
    }

    /// Descriptors of its channel that are free, and all.
    pub fn descriptors(&self) -> (usize, usize) {
        self.way.read(TxChannel::home).unwrap_or_default()
    }

    /// Numbers of its channel.
    pub fn counts(&self) -> TxCounts {
        self.way.read(|channel| channel.counts).unwrap_or_default()
    }

    fn look_at_link(&mut self) {
        self.turn = 0;
        self.way.with(TxChannel::unmap_unused);
        let was = std::mem::replace(&mut self.state, if self.host.has_link(self.port) { State::Up } else { NO_LINK });
        if was != self.state
            && let Some(window) = &mut self.window
        {
            window.reopen();
        }
    }
}

/// Frames that a port may be given: as many as one likes, where its channel is its own.
#[inline]
fn room<M: Mmio>(window: &mut Option<PortWindow<M>>) -> usize {
    window.as_mut().map_or(usize::MAX, PortWindow::room)
}

/// A burst; dropping it announces what was not announced yet.
pub struct Burst<'a, B: Bus> {
    tx: &'a mut CpswTx<B>,
}

impl<B: Bus> Burst<'_, B> {
    /// Adds a packet. One that can never be sent is dropped and counted.
    ///
    /// # Errors
    /// Hands it back when there is no room now; what was pushed before has been announced then.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        let CpswTx { way, window, cache, counters, port, batching, .. } = &mut *self.tx;
        let batch = batching.get().get();
        let room = room(window);
        let sent = way.with(|channel| {
            let before = channel.counts.submit_doorbells;
            if room == 0 || channel.fits(std::slice::from_ref(&packet)) == 0 {
                channel.flush();
                counters.called(channel.counts.submit_doorbells - before);
                return Err(packet);
            }
            match send(channel, cache, packet, *port, batch, counters) {
                Ok(len) => {
                    counters.moved(1, len);
                    window.iter_mut().for_each(PortWindow::give);
                }
                Err(reason) => counters.dropped(reason, 1),
            }
            if channel.counts.submit_doorbells != before {
                counters.called(1);
            }
            Ok(())
        });
        sent.unwrap_or(Ok(()))
    }
}

impl<B: Bus> Drop for Burst<'_, B> {
    fn drop(&mut self) {
        self.tx.kick();
    }
}

impl<B: Bus> TxQueue for CpswTx<B> {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if self.state != State::Up {
            let n = batch.len();
            self.counters.dropped(DropReason::LinkDown, n as u64);
            self.cache.free_bulk(batch);
            return n;
        }
        let CpswTx { way, window, cache, counters, port, batching, .. } = self;
        let size = batching.get().get();
        let room = room(window);
        let taken = way.with(|channel| {
            let before = channel.counts.submit_doorbells;
            let n = channel.fits(batch.as_slice()).min(room);
            let (mut packets, mut bytes) = (0, 0);
            for packet in batch.drain_front(n) {
                match send(channel, cache, packet, *port, size, counters) {
                    Ok(len) => {
                        packets += 1;
                        bytes += len;
                        window.iter_mut().for_each(PortWindow::give);
                    }
                    Err(reason) => counters.dropped(reason, 1),
                }
            }
            if packets > 0 {
                counters.moved(packets, bytes);
            }
            if !batch.is_empty() {
                channel.flush();
            }
            counters.called(channel.counts.submit_doorbells - before);
            n
        });
        taken.unwrap_or(0)
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        self.turn += 1;
        if self.turn >= LOOK_EVERY {
            self.look_at_link();
        }
        let CpswTx { way, cache, batching, .. } = self;
        let size = batching.get().get();
        way.with(|channel| channel.reclaim(size, &mut |batch: &mut Batch| cache.free_bulk(batch))).unwrap_or(0)
    }

    #[inline]
    fn kick(&mut self) {
        let rung = self.way.with(|channel| {
            let before = channel.counts.submit_doorbells;
            channel.flush();
            channel.counts.submit_doorbells - before
        });
        self.counters.called(rung.unwrap_or(0));
    }

    fn close(&mut self) {
        self.kick();
    }

    fn offloads(&self) -> Offloads {
        Offloads::CSUM
    }

    fn pending(&self) -> usize {
        self.way.read(|channel| channel.pending(self.port)).unwrap_or(0)
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<B: Bus> std::fmt::Debug for CpswRx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpswRx").field("port", &self.port).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl<B: Bus> std::fmt::Debug for CpswTx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpswTx").field("port", &self.port).field("state", &self.state).finish_non_exhaustive()
    }
}
