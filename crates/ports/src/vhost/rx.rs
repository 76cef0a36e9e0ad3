//! The receive queue of the port: frames of the guest's transmit ring, as packets.

use super::events::{RingEvents, add};
use super::frame::{Burst, End, Totals};
use super::rarp::Rarp;
use super::ring::RingSlot;
use crate::copy_plan::CopyPlan;
use std::cell::Cell;
use std::sync::Arc;
use towpath_packet::port::{RxMemory, RxQueue, State, TxLayout, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Missed, Packet};

/// Frames of up to so many bytes are copied whole. A page costs the metadata of a second chunk, its
/// way through a list of freed ones, and a chain that the guest gets back later.
const COPYBREAK: usize = 256;

/// A receive queue of the port: the transmit queue of a guest.
#[derive(Debug)]
pub struct VhostRx {
    slot: Arc<RingSlot>,
    plan: CopyPlan,
    /// [`COPYBREAK`], or 0 if chunks are shorter.
    copybreak: usize,
    cache: Cache,
    /// Empty packets.
    heads: Batch,
    queue: u8,
    /// Why no packet comes, if none can.
    down: Option<&'static str>,
    armed: Cell<bool>,
    /// Announcements that the front end asks for, at one queue of the port.
    rarp: Option<Arc<Rarp>>,
    /// The last burst ended for a reason that nothing announces the end of.
    stalled: bool,
    counters: Arc<Counters>,
}

/// Bytes of frames that are copied whole into heads of `cache`.
fn copybreak(cache: &Cache, egress: TxLayout) -> usize {
    let room = cache.chunk().saturating_sub(cache.headroom() + usize::from(egress.tailroom));
    if room >= COPYBREAK { COPYBREAK } else { 0 }
}

impl VhostRx {
    /// The queue that takes frames out of the ring in `slot`, with heads of `cache`.
    pub(super) fn new(slot: Arc<RingSlot>, cache: Cache, queue: u16) -> VhostRx {
        let layout = TxLayout::default();
        VhostRx {
            slot,
            plan: CopyPlan::new(layout),
            copybreak: copybreak(&cache, layout),
            cache,
            heads: Batch::new(),
            queue: u8::try_from(queue).unwrap_or(u8::MAX),
            down: Some(super::NO_GUEST),
            armed: Cell::new(false),
            rarp: None,
            stalled: false,
            counters: Arc::default(),
        }
    }

    /// The queue at which announcements of the guest come in.
    pub(super) fn with_announcements(self, rarp: Arc<Rarp>) -> VhostRx {
        VhostRx { rarp: Some(rarp), ..self }
    }

    /// Appends the announcement that the front end asked for. It is lost if there is no buffer for
    /// it.
    #[cold]
    fn announce(&mut self, frame: &[u8], out: &mut Batch) -> usize {
        let packet = Packet::copy_from(&mut self.cache, frame).filter(|_| out.room() > 0);
        let Some(mut packet) = packet else { return 0 };
        packet.set_ingress(0, self.queue);
        self.counters.moved(1, frame.len() as u64);
        // There is room.
        let _ = out.push(packet);
        1
    }

    /// Adds a burst to the counts.
    #[inline]
    fn count(&self, got: usize, totals: &Totals) {
        let events: &RingEvents = self.slot.events();
        if got > 0 {
            self.counters.moved(got as u64 + totals.dropped, totals.bytes);
        }
        if totals.copies > 0 {
            self.counters.copied(totals.copies, totals.copied_bytes);
            add(&events.copies, totals.copies);
            add(&events.copied_bytes, totals.copied_bytes);
        }
        if totals.attached > 0 {
            events.ext_bufs.attach(totals.attached);
        }
        if totals.malformed + totals.dropped > 0 {
            self.count_lost(got, totals);
        }
    }

    #[cold]
    fn count_lost(&self, got: usize, totals: &Totals) {
        let events: &RingEvents = self.slot.events();
        if got == 0 {
            self.counters.moved(totals.dropped, 0);
        }
        self.counters.dropped(DropReason::NoBuffer, totals.dropped);
        if totals.malformed > 0 {
            self.counters.missed(Missed::Unreadable, totals.malformed);
            add(&events.malformed, totals.malformed);
        }
    }
}

impl RxQueue for VhostRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let announcement = self.rarp.as_ref().and_then(|rarp| rarp.take());
        let announced = announcement.map_or(0, |frame| self.announce(&frame, out));
        let Some(mut taken) = self.slot.take() else { return announced };
        let Some(ring) = taken.ring() else {
            self.down = Some(super::NO_GUEST);
            return announced;
        };
        let before = out.len();
        let VhostRx { plan, copybreak, cache, heads, queue, .. } = self;
        let mut burst = Burst::new((*plan, *copybreak), (cache, heads), *queue, ring);
        ring.pages.return_freed(&mut ring.device);
        self.stalled = false;
        self.down = ring.stands_still();
        if ring.broken.is_none() {
            match burst.take(ring, out) {
                Ok(end) => self.stalled = end == End::NoHead,
                Err(error) => ring.breaks(error, self.slot.events()),
            }
        }
        ring.publish(self.slot.events());
        let got = out.len() - before;
        if got > 0 && self.armed.replace(false) {
            self.slot.disarm(ring);
        }
        let totals = burst.totals;
        if got == 0 && !heads.is_empty() {
            // An idle queue holds no buffers.
            cache.free_bulk(heads);
        }
        drop(taken);
        if self.stalled {
            self.counters.retried(1);
        }
        self.count(got, &totals);
        announced + got
    }

    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.plan = CopyPlan::new(egress);
        if self.plan.linear() > 0 {
            self.cache.free_bulk(&mut self.heads);
            self.cache.set_headroom(egress.headroom.into());
        }
        self.copybreak = copybreak(&self.cache, egress);
    }

    fn memory(&self) -> RxMemory {
        RxMemory::ext_bufs(self.slot.events().ext_bufs.clone())
    }

    fn state(&self) -> State {
        self.down.map_or(State::Up, |why| State::Down(why.into()))
    }

    fn wake(&self) -> Wake {
        self.armed.set(true);
        // Nothing announces a buffer that is free again.
        if self.slot.arm() && !self.stalled { Wake::Fd(self.slot.sleeps_on()) } else { Wake::Poll }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
