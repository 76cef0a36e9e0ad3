//! The guest's buffers that packets refer to, and the chains that they belong to.
//!
//! ```text
//!   chain, taken ──► attach, attach ──► packet … any thread … dropped ──► return_freed
//!     slot 5         pieces: 2                                           pieces: 0 ──► used
//! ```
//!
//! A chain is used when its last buffer is free. The packets of one start of a ring never touch
//! the next one: its pools end with it, and buffers that are freed later only count.

use super::events::RingEvents;
use std::sync::Arc;
use towpath_packet::notify::{self, Notifier};
use towpath_packet::{Buf, ExtBufGauge, ExtBufOwner, ExtBufPool, Packet};
use towpath_virtio::{Device, RegionPlace, Regions, Token};

/// Buffers of all regions of a table that can be out at the same time, in units of the ring's
/// size: their metadata is memory of this process.
const SHARES: usize = 8;
/// The least number of buffers of a region.
const LEAST: usize = 64;

/// A chain whose buffers are out.
#[derive(Debug, Clone, Copy, Default)]
struct Out {
    /// From [`Token::into_raw`].
    token: u64,
    /// Buffers that packets refer to; 0 if no chain is out.
    pieces: u16,
}

/// The chains of a ring whose buffers are out in packets.
#[derive(Debug)]
pub(super) struct Pages {
    /// One for each region; none where the kernel refused its memory, so that frames are copied.
    pools: Vec<Option<ExtBufPool>>,
    /// By slot: a chain has one while its buffers are out.
    out: Box<[Out]>,
    /// Slots of no chain, as many as there are descriptors: more chains are never out.
    free: Vec<u16>,
    /// Chains that are out.
    chains: u16,
    gauge: Arc<ExtBufGauge>,
}

/// Wakes the queue when buffers are free.
struct Owner {
    notifier: Arc<Notifier>,
    gauge: Arc<ExtBufGauge>,
}

impl ExtBufOwner for Owner {
    /// Only the first buffer of a run calls this: the others rely on its notification.
    fn on_free(&self) {
        notify::publish();
        self.notifier.notify();
    }

    /// The ring was stopped: the chain was returned to the guest.
    fn on_free_orphaned(&self, _: u64) {
        self.gauge.free(1);
    }
}

impl Pages {
    /// No page is ever attached: for a ring whose chains are written.
    pub(super) fn none(events: &RingEvents) -> Pages {
        let (pools, free) = (Vec::new(), Vec::new());
        Pages { pools, out: Box::default(), free, chains: 0, gauge: events.ext_bufs.clone() }
    }

    /// For a ring of `size` with buffers in `memory`.
    pub(super) fn new(size: u16, memory: &Regions, notifier: &Arc<Notifier>, events: &RingEvents) -> Pages {
        let gauge = &events.ext_bufs;
        let free = (0..size).rev().collect();
        let size = usize::from(size);
        let each = (SHARES * size / memory.len().max(1)).clamp(LEAST, size.max(LEAST));
        let pool = |region| {
            let owner = Owner { notifier: notifier.clone(), gauge: gauge.clone() };
            ExtBufPool::new(each, memory.memory(region)?.clone(), Arc::new(owner)).ok()
        };
        let pools = (0..memory.len() as u32).map(pool).collect();
        Pages { pools, out: vec![Out::default(); size].into(), free, chains: 0, gauge: gauge.clone() }
    }

    /// The slot of the next chain that is out.
    #[inline]
    pub(super) fn slot(&self) -> usize {
        self.free.last().copied().unwrap_or_default().into()
    }

    #[inline]
    fn pool(&mut self, region: u32) -> Option<&mut ExtBufPool> {
        self.pools.get_mut(region as usize)?.as_mut()
    }

    /// A fragment of `len` bytes of the chain in `slot`; `None` if no metadata is free.
    #[inline]
    pub(super) fn attach(&mut self, place: RegionPlace, len: usize, slot: usize) -> Option<Buf> {
        self.pool(place.region)?.attach(place.offset, len, slot as u64)
    }

    /// A packet of one piece, the only one of the chain in `slot`; `None` as for `attach`.
    #[inline]
    pub(super) fn packet(&mut self, place: RegionPlace, len: usize, slot: usize) -> Option<Packet> {
        self.pool(place.region)?.packet(place.offset, len, slot as u64)
    }

    /// The chain in [`slot`](Pages::slot) is used when its `pieces`, at least one, were freed.
    #[inline]
    pub(super) fn hold(&mut self, slot: usize, token: Token, pieces: u16) {
        if let Some(out) = self.out.get_mut(slot) {
            *out = Out { token: token.into_raw(), pieces };
            self.free.pop();
            self.chains += 1;
        }
    }

    /// Adds the chains whose buffers are all free to the used ring.
    #[inline]
    pub(super) fn return_freed(&mut self, device: &mut Device) {
        if self.chains > 0 {
            self.drain_freed(|token| device.add_used(token, 0));
        }
    }

    #[inline]
    fn drain_freed(&mut self, mut add_used: impl FnMut(Token)) {
        let Pages { pools, out, free, chains, gauge } = self;
        for pool in pools.iter_mut().flatten().filter(|pool| pool.has_freed()) {
            let n = pool.drain_freed(usize::MAX, |slot, _| {
                let Some(out) = out.get_mut(slot as usize).filter(|out| out.pieces > 0) else { return };
                out.pieces -= 1;
                if out.pieces == 0 {
                    *chains -= 1;
                    free.push(slot as u16);
                    add_used(Token::from_raw(out.token));
                }
            });
            gauge.free(n as u64);
        }
    }

    /// Chains that are out.
    pub(super) fn chains(&self) -> u16 {
        self.chains
    }

    /// Whether buffers were freed and not returned.
    pub(super) fn has_freed(&self) -> bool {
        self.chains > 0 && self.pools.iter().flatten().any(ExtBufPool::has_freed)
    }

    /// Adds the chains that are still out to the used ring; returns how many.
    pub(super) fn abandon(&mut self, device: &mut Device) -> u16 {
        for (slot, out) in (0..).zip(&mut self.out).filter(|(_, out)| out.pieces > 0) {
            out.pieces = 0;
            self.free.push(slot);
            device.add_used(Token::from_raw(out.token), 0);
        }
        std::mem::take(&mut self.chains)
    }

    /// Forgets the chains that are still out; returns how many.
    pub(super) fn discard(&mut self) -> u16 {
        self.drain_freed(drop);
        std::mem::take(&mut self.chains)
    }
}
