//! A transmit channel: staging, doorbells, completions. One owner.
//!
//! ```text
//!   stage ──► staged ──flush──► in flight ──────collect──► descriptors to the pool, packets freed
//!             stored in the     announced by one           popped by one
//!             ring only         doorbell for up to 127     doorbell for up to 127
//!
//!   credits = ring slots − staged − in flight
//!   A slot is free after its completion was popped, not already after it was fetched.
//! ```
//!
//! No staged packet is stranded: packets are announced when a batch is full, at the end of a burst
//! ([`flush`](TxChannel::flush)), before completions are polled, and before the channel stops.

use super::super::config::{Config, Family};
use super::super::regs::Regions;
use super::super::ring::{Completion, CompletionRing, MAX_COUNT, NO_DESC, SubmitRing};
use super::TxCounts;
use super::descs::{MAX_DESCS, TxDescs};
use towpath_bus::{Bus, Domain, MapError};
use towpath_packet::{Batch, Packet};

/// A transmit channel.
pub(in crate::cpsw) struct TxChannel<B: Bus> {
    pub(in crate::cpsw) number: u16,
    pub(in crate::cpsw) submit: SubmitRing<B::Bar>,
    pub(in crate::cpsw) completion: CompletionRing<B::Bar>,
    descs: TxDescs<B::Dma>,
    /// Scratch space: the completions that one doorbell pops.
    completed: Vec<u16>,
    /// Bytes of the longest frame.
    max_frame: usize,
    /// Slots of the submission ring.
    size: u32,
    staged: u32,
    in_flight: u32,
    /// Packets were announced since completions were last polled.
    busy: bool,
    /// Packets in flight at which completions are polled again.
    poll_at: u32,
    singly: bool,
    /// The device has reported that teardown is complete.
    pub(in crate::cpsw) torn_down: bool,
    pub(in crate::cpsw) counts: TxCounts,
}

impl<B: Bus> TxChannel<B> {
    pub(in crate::cpsw) fn new(
        number: u16,
        config: &Config,
        regions: &Regions<B::Bar>,
        domain: &Domain<B::Dma>,
    ) -> Result<TxChannel<B>, MapError> {
        let (soc, size) = (&config.soc, config.tx_ring);
        let rings = (soc.submit_ring(number), soc.tx_completion_ring(number));
        // PKTDMA's rings are two-sided: the field has no meaning there.
        let return_ring = if soc.family == Family::Udma { rings.1 } else { 0 };
        // UDMA records the end of a teardown on the completion ring, which may be full.
        let sizes = (size, size + 1);
        Ok(TxChannel {
            number,
            submit: SubmitRing::new(domain, regions, rings.0, size)?,
            completion: CompletionRing::new(domain, regions, soc.family, rings, sizes)?,
            descs: TxDescs::new(config, domain, return_ring)?,
            completed: Vec::with_capacity(MAX_COUNT as usize),
            max_frame: config.max_frame(),
            size,
            staged: 0,
            in_flight: 0,
            busy: false,
            poll_at: 0,
            singly: config.singly,
            torn_down: false,
            counts: TxCounts::default(),
        })
    }

    /// Bytes of the longest frame, without FCS.
    #[inline]
    pub(super) fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// Whether a packet has few enough chunks to be sent without a copy.
    #[inline]
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        chunks(packet) <= usize::from(self.descs.count().min(MAX_DESCS))
    }

    /// The number of packets that fit, from the first on: each takes a slot, and a descriptor for
    /// each chunk.
    #[inline]
    pub(super) fn fits(&self, packets: &[Packet]) -> usize {
        let mut free = self.descs.free();
        let slots = (self.size - self.staged - self.in_flight) as usize;
        let enough = |packet: &&Packet| {
            let chunks = if self.takes(packet) { chunks(packet) } else { 1 };
            let fits = chunks <= free;
            free = free.saturating_sub(chunks);
            fits
        };
        packets.iter().take(slots).take_while(enough).count()
    }

    /// Puts a packet into the ring; the next [`flush`](TxChannel::flush) announces it. To be called
    /// only for packets that [`fits`](TxChannel::fits) counted.
    ///
    /// # Errors
    /// Hands the packet back: its memory can't be mapped for the device, or descriptors are
    /// missing.
    #[inline]
    pub(super) fn stage(&mut self, packet: Packet, port: u8, checksum: u32, batch: u8) -> Result<(), Packet> {
        let first = self.descs.post(packet, port, checksum)?;
        let slot = self.submit.store(self.descs.descriptors.element(first));
        self.completion.note(slot, first);
        self.staged += 1;
        if self.staged >= u32::from(batch) || self.singly {
            self.flush();
        }
        Ok(())
    }

    /// Announces the staged packets.
    #[inline]
    pub(in crate::cpsw) fn flush(&mut self) {
        if self.staged > 0 {
            self.counts.submit_doorbells += self.submit.announce(self.staged);
            self.counts.announced += u64::from(self.staged);
            self.in_flight += std::mem::take(&mut self.staged);
            self.busy = true;
        }
    }

    /// Pops completions if that pays: if enough packets are in flight, if slots or descriptors are
    /// short, or if no packet was sent since the last call. Returns the number of packets that were
    /// handed to `free`.
    #[inline]
    pub(super) fn reclaim(&mut self, batch: u8, free: &mut impl FnMut(&mut Batch)) -> usize {
        self.flush();
        let busy = std::mem::take(&mut self.busy);
        if self.in_flight == 0 {
            return 0;
        }
        let short =
            self.size - self.in_flight <= self.size / 4 || self.descs.free() <= usize::from(self.descs.count()) / 4;
        let enough = (2 * u32::from(batch)).min(self.size / 2).max(self.poll_at);
        if busy && !short && self.in_flight < enough && !self.singly {
            return 0;
        }
        let done = self.collect(free);
        // A device that lags is not polled again before another batch was sent.
        self.poll_at = if done < usize::from(batch) { self.in_flight + u32::from(batch) } else { 0 };
        done
    }

    /// Pops all completions.
    pub(in crate::cpsw) fn collect(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        let mut done = self.pop(free);
        if self.singly {
            // Until the occupancy is zero.
            while let n @ 1.. = self.pop(free) {
                done += n;
            }
        }
        done
    }

    /// Reads the occupancy once and pops as many completions; returns the number of packets.
    fn pop(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        let (count, marked) = self.completion.occupancy();
        self.counts.occupancy_reads += 1;
        if count == 0 {
            // The marker follows the last completion: it counts only if no completion is left.
            if marked {
                self.completion.side.acknowledge_teardown();
                self.torn_down = true;
            }
            return 0;
        }
        let (mut batch, mut completed) = (Batch::new(), std::mem::take(&mut self.completed));
        let (mut left, mut done) = (count.min(self.completion.size()), 0);
        let most = if self.singly { 1 } else { MAX_COUNT };
        while left > 0 {
            let n = left.min(most);
            completed.clear();
            for _ in 0..n {
                let first = self.next_completed();
                completed.push(first);
            }
            self.counts.completion_doorbells += self.completion.side.pop(n);
            left -= n;
            for &first in completed.iter().filter(|&&first| first != NO_DESC) {
                self.in_flight = self.in_flight.saturating_sub(1);
                done += 1;
                if let Some(packet) = self.descs.release(first) {
                    self.collect_packet(packet, &mut batch, free);
                }
            }
        }
        self.completed = completed;
        self.free_batch(&mut batch, free);
        self.counts.completed += done as u64;
        done
    }

    /// The first descriptor of the next completed packet; [`NO_DESC`] for a stray or a record.
    #[inline]
    fn next_completed(&mut self) -> u16 {
        match self.completion.load(&self.descs.descriptors) {
            Completion::Desc(first) if self.descs.is_in_flight(first) => first,
            Completion::Desc(_) => {
                self.counts.strays += 1;
                NO_DESC
            }
            Completion::Teardown => {
                self.torn_down = true;
                NO_DESC
            }
        }
    }

    #[inline]
    fn collect_packet(&mut self, packet: Packet, batch: &mut Batch, free: &mut impl FnMut(&mut Batch)) {
        if batch.room() == 0 {
            self.free_batch(batch, free);
        }
        let _ = batch.push(packet);
    }

    /// Frees packets after the device can no longer reach their memory.
    #[inline]
    fn free_batch(&mut self, batch: &mut Batch, free: &mut impl FnMut(&mut Batch)) {
        if batch.is_empty() {
            return;
        }
        if self.descs.sync_iotlb() {
            free(batch);
        } else {
            std::mem::forget(std::mem::take(batch));
        }
    }

    /// Takes back the packets that were announced and never fetched, of a channel that has been
    /// torn down; returns their number.
    pub(in crate::cpsw) fn drain(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        self.submit.drain(self.in_flight);
        let mut batch = Batch::new();
        let mut done = 0;
        for first in 0..self.descs.count() {
            if self.descs.is_in_flight(first)
                && let Some(packet) = self.descs.release(first)
            {
                done += 1;
                self.collect_packet(packet, &mut batch, free);
            }
        }
        self.free_batch(&mut batch, free);
        self.descs.flush();
        (self.staged, self.in_flight) = (0, 0);
        self.completion.reset();
        done
    }

    /// Number of packets of MAC port `port` that are staged or in flight.
    #[inline]
    pub(super) fn pending(&self, port: u8) -> usize {
        self.descs.pending(port)
    }

    /// The numbers of free descriptors and of all descriptors.
    pub(in crate::cpsw) fn descriptors(&self) -> (usize, usize) {
        (self.descs.free(), self.descs.count().into())
    }

    /// See [`TxDescs::map_external`].
    #[cold]
    pub(super) fn map_external(&mut self, packet: &Packet) -> bool {
        self.descs.map_external(packet)
    }

    /// See [`TxDescs::unmap_unused`].
    #[cold]
    pub(super) fn unmap_unused(&mut self) {
        self.descs.unmap_unused();
    }
}

/// Chunks of a packet that have bytes: each takes a descriptor.
#[inline]
fn chunks(packet: &Packet) -> usize {
    packet.frags() + usize::from(!packet.linear().is_empty())
}
