//! A receive flow: free descriptors with buffers to the device, filled ones back. One owner.
//!
//! ```text
//!   buffers ──refill──► free ring ──► device ──► completion ring ──poll──► packets
//!            one doorbell for all                one read, one doorbell for all
//! ```

use super::super::config::Config;
use super::super::regs::Regions;
use super::super::ring::{CompletionRing, MAX_COUNT};
use super::RxCounts;
use super::buffers::RxBuffers;
use super::burst::RxBurst;
use super::free_queue::FreeQueue;
use towpath_bus::{Bus, Domain, MapError};
use towpath_packet::{Batch, Cache, Packet};

/// A receive flow.
pub(in crate::cpsw) struct RxFlow<B: Bus> {
    pub(in crate::cpsw) number: u16,
    pub(in crate::cpsw) free: FreeQueue<B::Bar>,
    pub(in crate::cpsw) completion: CompletionRing<B::Bar>,
    pub(in crate::cpsw) buffers: RxBuffers<B::Dma>,
    /// Scratch space: the buffers that one doorbell pops.
    burst: RxBurst,
    size: u32,
    /// Completions that the occupancy has shown and that were not popped yet.
    available: u32,
    singly: bool,
    pub(in crate::cpsw) counts: RxCounts,
}

impl<B: Bus> RxFlow<B> {
    /// Flow `number`, 0 and up, with its free ring and its completion ring.
    pub(in crate::cpsw) fn new(
        number: u16,
        config: &Config,
        rings: (u16, u16),
        regions: &Regions<B::Bar>,
        domain: &Domain<B::Dma>,
        cache: Cache,
    ) -> Result<RxFlow<B>, MapError> {
        let size = config.rx_ring;
        Ok(RxFlow {
            number,
            free: FreeQueue::new(config, regions, domain, rings.0)?,
            completion: CompletionRing::new(domain, regions, config.soc.family, rings, (size, size))?,
            buffers: RxBuffers::new(config, domain, cache, rings.1)?,
            burst: RxBurst::with_capacity(MAX_COUNT as usize * usize::from(config.rx_buffers)),
            size,
            available: 0,
            singly: config.singly,
            counts: RxCounts::default(),
        })
    }

    /// Hands buffers to the device: if as many as a batch are missing, or the device is short of
    /// them. Returns the number of elements.
    #[inline]
    pub(in crate::cpsw) fn refill(&mut self, batch: u8) -> usize {
        let all = self.size / u32::from(self.buffers.per_element());
        let missing = all - self.buffers.posted;
        let threshold = u32::from(batch).min((all / 2).max(1));
        if missing < threshold && !self.singly {
            return 0;
        }
        self.post(missing)
    }

    fn post(&mut self, mut missing: u32) -> usize {
        let (mut staged, mut total) = (0, 0);
        let mut packets = Batch::<64>::new();
        let per_element = usize::from(self.buffers.per_element());
        while missing > 0 {
            let elements = if self.singly { 1 } else { missing.min(64).min(MAX_COUNT - staged) as usize };
            let want = (elements * per_element).saturating_sub(self.buffers.spare.len()).min(64);
            let got = self.buffers.cache.alloc_bulk(&mut packets, want);
            let mut made = 0;
            for packet in packets.drain_front(got) {
                let Some(index) = self.buffers.attach(packet) else { continue };
                if per_element > 1 {
                    self.buffers.spare.push(index);
                } else {
                    self.stage(index);
                    made += 1;
                }
            }
            while per_element > 1 && made < elements as u32 && self.buffers.spare.len() >= per_element {
                let first = self.buffers.link(per_element);
                self.stage(first);
                made += 1;
            }
            staged += made;
            missing = missing.saturating_sub(if per_element > 1 { made } else { got as u32 });
            // The pool is empty, or the device can't reach its buffers.
            let dry = got < want || (per_element > 1 && made == 0 && self.buffers.spare.len() < per_element);
            if staged == MAX_COUNT || dry || missing == 0 || self.singly {
                self.counts.free_writes += self.free.announce(staged);
                total += std::mem::take(&mut staged);
            }
            if dry {
                break;
            }
        }
        self.counts.posted += u64::from(total);
        total as usize
    }

    /// Puts a descriptor, with those that are linked to it, into the free ring.
    #[inline]
    fn stage(&mut self, first: u16) {
        let element = self.buffers.post(first);
        match self.free.push(element) {
            Some(slot) => self.completion.note(slot, first),
            None => self.counts.free_writes += 1,
        }
    }

    /// Receives up to `room` frames; each goes to `deliver` with its MAC port, 1 and up. Returns
    /// their number.
    #[inline]
    pub(in crate::cpsw) fn poll(&mut self, room: usize, mut deliver: impl FnMut(Packet, u8)) -> usize {
        let room = room.min(MAX_COUNT as usize);
        if self.singly {
            return self.poll_singly(room, deliver);
        }
        // The loop returns 0 only if no completion is left. A caller that then sleeps is woken: the
        // interrupt's level is low and rises with the next completion.
        loop {
            let n = (self.completions() as usize).min(room);
            if n == 0 {
                return 0;
            }
            self.available -= n as u32;
            let done = self.pop(n, &mut deliver);
            if done > 0 {
                return done;
            }
        }
    }

    fn poll_singly(&mut self, room: usize, mut deliver: impl FnMut(Packet, u8)) -> usize {
        let mut done = 0;
        while done < room && self.completions() > 0 {
            self.available -= 1;
            done += self.pop(1, &mut deliver);
            self.post(1);
        }
        done
    }

    /// The number of completions that can be popped. Reads the occupancy if none is known.
    #[inline]
    fn completions(&mut self) -> u32 {
        if self.available == 0 {
            self.counts.occupancy_reads += 1;
            self.available = self.completion.occupancy().0.min(self.buffers.posted);
        }
        self.available
    }

    /// Pops `n` completions and delivers their frames: harvest, unmap, deliver.
    fn pop(&mut self, n: usize, deliver: &mut impl FnMut(Packet, u8)) -> usize {
        let strays = &mut self.counts.strays;
        let doorbells = self.completion.pop(n as u32, &mut self.buffers.table, |_| *strays += 1);
        self.counts.completion_doorbells += doorbells;
        for &first in &self.completion.popped {
            self.burst.harvest(&mut self.buffers, first, &mut self.counts);
        }
        self.burst.deliver(&mut self.buffers, &mut self.counts, deliver)
    }

    /// Takes everything back, of a channel that has been torn down. Frames that were not received
    /// are lost; returns their number.
    pub(in crate::cpsw) fn drain(&mut self) -> usize {
        let mut lost = 0;
        loop {
            self.available = 0;
            let mut frames = Batch::<127>::new();
            if self.poll(MAX_COUNT as usize, |packet, _| drop(frames.push(packet))) == 0 {
                break;
            }
            lost += frames.len();
            self.buffers.cache.free_bulk(&mut frames);
        }
        self.free.drain(self.buffers.posted);
        self.buffers.drain();
        self.available = 0;
        self.completion.reset();
        lost
    }
}
