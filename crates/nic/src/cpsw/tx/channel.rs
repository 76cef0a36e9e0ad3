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

use super::super::config::Config;
use super::super::regs::Regions;
use super::super::ring::{Completion, CompletionRing, MAX_COUNT, SubmitRing};
use super::TxCounts;
use super::descs::{MAX_DESCS, TxDescs};
use towpath_bus::{Bus, Domain, MapError};
use towpath_packet::{Batch, Packet};

/// A transmit channel.
pub(in crate::cpsw) struct TxChannel<B: Bus> {
    pub(in crate::cpsw) number: u16,
    pub(in crate::cpsw) submit: SubmitRing<B::Bar>,
    pub(in crate::cpsw) completion: CompletionRing<B::Bar>,
    pub(in crate::cpsw) descs: TxDescs<B::Dma>,
    /// Bytes of the longest frame, without FCS.
    pub(super) max_frame: usize,
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
    /// The channel of thread `number`, with its submission and its completion ring.
    pub(in crate::cpsw) fn new(
        number: u16,
        config: &Config,
        rings: (u16, u16),
        regions: &Regions<B::Bar>,
        domain: &Domain<B::Dma>,
    ) -> Result<TxChannel<B>, MapError> {
        let size = config.tx_ring;
        // UDMA records the end of a teardown on the completion ring, which may be full.
        let sizes = (size, size + 1);
        Ok(TxChannel {
            number,
            submit: SubmitRing::new(domain, regions, rings.0, size)?,
            completion: CompletionRing::new(domain, regions, config.soc.family, rings, sizes)?,
            descs: TxDescs::new(config, domain, rings.1)?,
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

    /// Whether a packet has few enough chunks to be sent without a copy.
    #[inline]
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        chunks(packet) <= usize::from(self.descs.table.count.min(MAX_DESCS))
    }

    /// The number of packets that fit, from the first on: each takes a slot, and a descriptor for
    /// each chunk.
    #[inline]
    pub(super) fn fits(&self, packets: &[Packet]) -> usize {
        let mut free = self.descs.table.pool.len();
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
        let slot = self.submit.store(self.descs.table.descriptors.element(first));
        self.completion.note(slot, first);
        self.staged += 1;
        if self.staged >= u32::from(batch) || self.singly {
            self.flush();
        }
        Ok(())
    }

    /// Announces the staged packets; returns the number of doorbells.
    #[inline]
    pub(in crate::cpsw) fn flush(&mut self) -> u64 {
        if self.staged == 0 {
            return 0;
        }
        let doorbells = self.submit.announce(self.staged);
        self.counts.submit_doorbells += doorbells;
        self.counts.announced += u64::from(self.staged);
        self.in_flight += std::mem::take(&mut self.staged);
        self.busy = true;
        doorbells
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
        let short = self.size - self.in_flight <= self.size / 4
            || self.descs.table.pool.len() <= usize::from(self.descs.table.count) / 4;
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
        let (mut left, mut done) = (count.min(self.completion.size), 0);
        let (mut batch, most) = (Batch::new(), if self.singly { 1 } else { MAX_COUNT });
        while left > 0 {
            let n = left.min(most);
            self.counts.completion_doorbells += self.completion.pop(n, &mut self.descs.table, |other| match other {
                Completion::Desc(_) => self.counts.strays += 1,
                Completion::Teardown => self.torn_down = true,
            });
            left -= n;
            for &first in &self.completion.popped {
                // An engine that completes a packet twice may do so within one pop.
                if !self.descs.table.is_in_flight(first) {
                    self.counts.strays += 1;
                    continue;
                }
                self.in_flight = self.in_flight.saturating_sub(1);
                done += 1;
                self.descs.collect(first, &mut batch, free);
            }
        }
        self.descs.free_batch(&mut batch, free);
        self.counts.completed += done as u64;
        done
    }

    /// Takes back the packets that were announced and never fetched, of a channel that has been
    /// torn down; returns their number.
    pub(in crate::cpsw) fn drain(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        self.submit.drain(self.in_flight);
        let mut batch = Batch::new();
        let mut done = 0;
        for first in 0..self.descs.table.count {
            let undelivered = self.descs.table.is_in_flight(first) && self.descs.collect(first, &mut batch, free);
            done += usize::from(undelivered);
        }
        self.descs.free_batch(&mut batch, free);
        // Waits, under any policy, until the device can't reach the memory that was unmapped.
        let _ = self.descs.table.mapper.flush_iotlb();
        (self.staged, self.in_flight) = (0, 0);
        self.completion.reset();
        done
    }
}

/// Chunks of a packet that have bytes: each takes a descriptor.
#[inline]
fn chunks(packet: &Packet) -> usize {
    packet.frags() + usize::from(!packet.linear().is_empty())
}
