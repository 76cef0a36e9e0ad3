//! The transmit queue of one MAC port, over its channel.

use super::super::host::Host;
use super::super::link::StartedPort;
use super::super::losses::TxLosses;
use super::descs::PORTS;
use super::{ChannelRef, TxChannel, TxCounts, TxCredits};
use crate::batching::Batching;
use crate::common::watch::Watchdog;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use towpath_bus::{Bus, Mmio};
use towpath_packet::port::{State, TxQueue};
use towpath_packet::{Batch, Cache, Checksum, Counters, DropReason, Offloads, Packet};
use towpath_wire::ethernet;

/// Half of this passes at most between two looks at the link of a queue that is called.
const LINK: Duration = Duration::from_millis(400);

const NO_LINK: &str = "no link";

/// A transmit queue of one MAC port.
pub struct CpswTx<B: Bus> {
    channel: ChannelRef<B>,
    /// If the channel is shared.
    credits: Option<TxCredits<B::Bar>>,
    port: u8,
    batching: Batching,
    cache: Cache,
    link: Arc<StartedPort<B::Bar>>,
    bar: B::Bar,
    /// When to look at the link; `None` if another queue of the port does.
    watchdog: Option<Watchdog>,
    /// The state that the credits are for.
    was_up: bool,
    /// Finds the frames that the link took with it, if this queue watches it.
    losses: Option<TxLosses<B::Bar>>,
    counters: Arc<Counters>,
}

/// PS word 2 for a checksum to insert. Bytes are numbered from one.
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
    // A checksum at offset 6 is UDP's, which is never sent as zero.
    let invert_zero = if offset == 6 { 0x8000 } else { 0 };
    Ok(result << 24 | (start + 1) << 16 | invert_zero | count)
}

/// Checks whether a packet can be sent; returns its PS word 2.
#[inline]
fn check(packet: &Packet, max_frame: usize) -> Result<u32, DropReason> {
    if packet.gso().is_some() || packet.vlan().is_some() {
        return Err(DropReason::Offload);
    }
    match packet.len() {
        0..ethernet::HEADER_LEN => Err(DropReason::Malformed),
        len if len > max_frame => Err(DropReason::TooLong),
        _ => checksum_word(packet),
    }
}

/// Stages one packet; returns its length. A packet that cannot be sent is freed.
#[inline]
fn send<B: Bus>(
    channel: &mut TxChannel<B>,
    cache: &mut Cache,
    packet: Packet,
    port: u8,
    batch: u8,
    counters: &Counters,
) -> Result<u64, DropReason> {
    let word = match check(&packet, channel.max_frame) {
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
            Err(packet) if channel.descs.table.mapper.map_external(&packet) => {
                match channel.stage(packet, port, word, batch) {
                    Ok(()) => return Ok(len),
                    Err(packet) => packet,
                }
            }
            // The device can't reach its memory.
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
    packet.copy_to(0, copy.push_back(packet.len()).ok()?);
    Some(copy)
}

impl<B: Bus> CpswTx<B> {
    /// A queue of MAC port `port`, which has no frame to send now.
    pub(in crate::cpsw) fn new(
        host: &Host<B>,
        port: u8,
        channel: ChannelRef<B>,
        batching: Batching,
        cache: Cache,
        link: Arc<StartedPort<B::Bar>>,
    ) -> CpswTx<B> {
        let bar = host.regions.switch.clone();
        let shared = matches!(channel, ChannelRef::Shared(_));
        let credits = shared.then(|| TxCredits::new(bar.clone(), port));
        let (was_up, counters) = (link.is_up(), Arc::default());
        CpswTx { channel, credits, port, batching, cache, link, bar, watchdog: None, was_up, losses: None, counters }
    }

    /// Makes this the queue that looks at the port's link; `queues` are all of the port's.
    pub(in crate::cpsw) fn watch(&mut self, queues: Vec<Arc<Counters>>) {
        self.watchdog = Some(Watchdog::new(LINK, self.bar.now()));
        self.losses = Some(TxLosses::new(self.bar.clone(), self.port, queues));
    }

    /// Starts a burst that may be longer than a [`Batch`]. Full batches are announced as packets
    /// are pushed, and the rest when the guard is dropped.
    pub fn burst(&mut self) -> Burst<'_, B> {
        Burst { tx: self }
    }

    /// The numbers of free descriptors and of all descriptors of the channel.
    pub fn descriptors(&self) -> (usize, usize) {
        self.channel.read(|channel| channel.descs.table.numbers()).unwrap_or_default()
    }

    /// Counters of the channel.
    pub fn counts(&self) -> TxCounts {
        self.channel.read(|channel| channel.counts).unwrap_or_default()
    }

    /// Looks at the link, and unmaps external memory that has no other user.
    #[cold]
    fn check_link(&mut self) {
        self.channel.with(|channel| channel.descs.table.mapper.unmap_unused());
        self.link.check();
        let is_up = self.link.is_up();
        if std::mem::replace(&mut self.was_up, is_up) != is_up
            && let Some(credits) = &mut self.credits
        {
            credits.reset();
        }
        let pending = self.pending();
        if let Some(losses) = &mut self.losses {
            losses.look(is_up, pending);
        }
    }
}

/// The number of frames that a port may submit; no limit if its channel is its own.
#[inline]
fn available<M: Mmio>(credits: &mut Option<TxCredits<M>>) -> usize {
    credits.as_mut().map_or(usize::MAX, TxCredits::available)
}

/// A burst. Dropping it announces the packets that were not announced yet.
pub struct Burst<'a, B: Bus> {
    tx: &'a mut CpswTx<B>,
}

impl<B: Bus> Burst<'_, B> {
    /// Adds a packet. A packet that can never be sent is dropped and counted.
    ///
    /// # Errors
    /// Hands the packet back if the channel is full or the port has no link; the packets pushed
    /// before have been announced.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        let CpswTx { channel, credits, cache, counters, port, batching, link, .. } = &mut *self.tx;
        let batch = batching.get().get();
        let available = if link.is_up() { available(credits) } else { 0 };
        let sent = channel.with(|channel| {
            let before = channel.counts.submit_doorbells;
            if available == 0 || channel.fits(std::slice::from_ref(&packet)) == 0 {
                counters.called(channel.flush());
                return Err(packet);
            }
            match send(channel, cache, packet, *port, batch, counters) {
                Ok(len) => {
                    counters.moved(1, len);
                    credits.iter_mut().for_each(TxCredits::consume);
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
        // Without a link packets stay with the caller, which drops them if it can't wait.
        if !self.link.is_up() {
            return 0;
        }
        let CpswTx { channel, credits, cache, counters, port, batching, .. } = self;
        let size = batching.get().get();
        let available = available(credits);
        let taken = channel.with(|channel| {
            let before = channel.counts.submit_doorbells;
            let n = channel.fits(batch.as_slice()).min(available);
            let (mut packets, mut bytes) = (0, 0);
            for packet in batch.drain_front(n) {
                match send(channel, cache, packet, *port, size, counters) {
                    Ok(len) => {
                        packets += 1;
                        bytes += len;
                        credits.iter_mut().for_each(TxCredits::consume);
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
        let CpswTx { channel, cache, batching, .. } = self;
        let size = batching.get().get();
        let done =
            channel.with(|channel| channel.reclaim(size, &mut |batch: &mut Batch| cache.free_bulk(batch))).unwrap_or(0);
        if self.watchdog.as_mut().is_some_and(|watchdog| watchdog.is_due(done == 0, || self.bar.now())) {
            self.check_link();
        }
        done
    }

    #[inline]
    fn kick(&mut self) {
        let doorbells = self.channel.with(TxChannel::flush);
        self.counters.called(doorbells.unwrap_or(0));
    }

    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.kick();
        Ok(())
    }

    fn offloads(&self) -> Offloads {
        Offloads::CSUM
    }

    fn pending(&self) -> usize {
        self.channel.read(|channel| channel.descs.pending[usize::from(self.port) % PORTS] as usize).unwrap_or(0)
    }

    fn state(&self) -> State {
        if self.link.is_up() { State::Up } else { State::Down(Cow::Borrowed(NO_LINK)) }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<B: Bus> std::fmt::Debug for CpswTx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpswTx").field("port", &self.port).field("state", &self.state()).finish_non_exhaustive()
    }
}
