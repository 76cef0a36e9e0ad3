//! A receive flow: free descriptors with buffers to the device, filled ones back. One owner.
//!
//! ```text
//!   recycler + pool ──refill──► free ring ──► device ──► completion ring ──poll──► packet, descriptor to the recycler
//!                    one doorbell for all                       one count, one doorbell for all
//! ```
//!
//! Every flow has a ring of free descriptors of its own, so that what it hands out comes back to it and to nobody else.
//!
//! A frame that is longer than a buffer goes on in others ([`Config::rx_buffers`]). PKTDMA is given chains of descriptors, of which it
//! fills as many as it needs; UDMA takes one descriptor after the other and links them. Only the first comes back on the ring.

mod frame;
mod refill;

use super::config::{Config, Family, FreeRing};
use super::descriptor::Descriptors;
use super::doorbell::{MOST, Side};
use super::recycler::Recycler;
use super::regs::{Regions, window};
use frame::Taken;
use towpath_bus::{Bus, Coherent, DmaMapper, Domain, MapError, Mapped, Mmio};
use towpath_packet::{Batch, Cache, FromDevice, InFlight};

const NONE: u16 = u16::MAX;

#[derive(Debug)]
struct Shadow {
    loan: Option<InFlight<FromDevice>>,
    mapped: Option<Mapped>,
    /// Of a chain that was made for the device: the descriptor that goes on.
    next: u16,
    /// It has an element on the ring of free descriptors: the others of its chain have none.
    listed: bool,
}

impl Shadow {
    const EMPTY: Shadow = Shadow { loan: None, mapped: None, next: NONE, listed: false };
}

/// The way in which free descriptors are handed over.
enum Free<M> {
    Ring { slots: Coherent, side: Side<M>, head: u32 },
    Window { slots: Coherent, bar: M, at: usize },
}

/// Numbers of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxCounts {
    /// Buffers handed to the device.
    pub posted: u64,
    /// Frames received.
    pub received: u64,
    /// Doorbells, or element writes, for free descriptors.
    pub free_writes: u64,
    /// Doorbells for what was received.
    pub completion_doorbells: u64,
    /// Counts of completions that were read.
    pub occupancy_reads: u64,
    /// Frames that the switch marked as damaged, or whose description cannot be: too long for its buffers, with a chain that is broken
    /// or does not end.
    pub broken: u64,
    /// Elements that came back and were none of ours.
    pub strays: u64,
}

/// A receive flow.
pub(super) struct RxFlow<B: Bus> {
    pub(super) number: u16,
    free: Free<B::Bar>,
    pub(super) done: Side<B::Bar>,
    completions: Option<Coherent>,
    return_ring: u16,
    descriptors: Descriptors,
    recycler: Recycler,
    shadows: Box<[Shadow]>,
    /// Descriptor in each slot of a two-sided ring.
    order: Box<[u16]>,
    /// Room for what is popped at once: descriptors, then what they describe.
    popped: Vec<u16>,
    taken: Vec<Taken>,
    /// Descriptors with a buffer, mapped, that are not with the device: frames that were shorter than their chain left them over.
    kept: Vec<u16>,
    mapper: DmaMapper<B::Dma>,
    cache: Cache,
    size: u32,
    /// Buffers of a frame, at most.
    chain: u16,
    /// They are linked before the device gets them.
    linked: bool,
    back: u32,
    /// Elements on the ring of free descriptors.
    posted: u32,
    /// Completions that a count has shown and that were not popped yet.
    known: u32,
    singly: bool,
    pub(super) counts: RxCounts,
}

impl<B: Bus> RxFlow<B> {
    pub(super) fn new(
        number: u16,
        config: &Config,
        regions: &Regions<B::Bar>,
        domain: &Domain<B::Dma>,
        cache: Cache,
    ) -> Result<RxFlow<B>, MapError> {
        let (free, filled) = config.soc.rx_rings(number);
        let ring = || Coherent::new(domain, config.rx_ring as usize * 8);
        let udma = config.soc.family == Family::Udma;
        let way = match (&regions.windows, config.soc.free_ring) {
            (Some(bar), FreeRing::Message) => {
                Free::Window { slots: ring()?, bar: bar.clone(), at: usize::from(free) * window::STRIDE }
            }
            _ => Free::Ring { slots: ring()?, side: Side::forward(regions, free), head: 0 },
        };
        let count = config.rx_ring as u16;
        Ok(RxFlow {
            number,
            free: way,
            done: if udma { Side::forward(regions, filled) } else { Side::reverse(regions, filled) },
            completions: if udma { Some(ring()?) } else { None },
            return_ring: if udma { filled } else { 0 },
            descriptors: Descriptors::new(domain, count, &config.soc)?,
            recycler: Recycler::new(count, config.discipline),
            shadows: (0..count).map(|_| Shadow::EMPTY).collect(),
            order: vec![NONE; config.rx_ring as usize].into(),
            popped: Vec::with_capacity(MOST as usize),
            taken: Vec::with_capacity(MOST as usize * usize::from(config.rx_buffers)),
            kept: Vec::with_capacity(usize::from(count)),
            mapper: DmaMapper::new(domain, config.rx_ring, 1 << 16)?,
            cache,
            size: config.rx_ring,
            chain: u16::from(config.rx_buffers),
            linked: !udma && config.rx_buffers > 1,
            back: 0,
            posted: 0,
            known: 0,
            singly: config.singly,
            counts: RxCounts::default(),
        })
    }

    /// Elements of the ring of free descriptors, and of that of filled ones where that is another.
    pub(super) fn rings(&self) -> (&Coherent, Option<&Coherent>) {
        let (Free::Ring { slots, .. } | Free::Window { slots, .. }) = &self.free;
        (slots, self.completions.as_ref())
    }

    /// What the device did not fill, of a channel that has been torn down: takes it off the ring and back. What was filled and
    /// not received is lost; returns how many frames that were.
    pub(super) fn drain(&mut self) -> usize {
        let mut lost = 0;
        loop {
            self.known = 0;
            let mut frames = Batch::<127>::new();
            if self.poll(MOST as usize, |packet, _| drop(frames.push(packet))) == 0 {
                break;
            }
            lost += frames.len();
            self.cache.free_bulk(&mut frames);
        }
        match &mut self.free {
            Free::Ring { side, head, .. } => {
                side.pop(side.occupancy().0.min(self.posted));
                *head = 0;
            }
            Free::Window { bar, at, .. } => {
                for _ in 0..self.posted {
                    if bar.r64(*at + window::POP_HEAD) == 0 {
                        break;
                    }
                }
            }
        }
        self.kept.clear();
        for index in 0..self.shadows.len() as u16 {
            if let Some(loan) = self.take(index, 0)
                && self.mapper.sync_iotlb().is_ok()
            {
                self.cache.free(loan.complete(0));
            }
        }
        let _ = self.mapper.flush();
        (self.back, self.known) = (0, 0);
        self.order.fill(NONE);
        lost
    }

    /// Descriptors that are free, and all.
    pub(super) fn home(&self) -> (usize, usize) {
        (self.recycler.len(), self.shadows.len())
    }
}
