//! One ring of a device, between the thread that answers the front end and the worker that moves
//! packets.
//!
//! ```text
//!   control thread   start(RingSetup) ─► ┌──────┐ ◄─ take ── worker, for a burst ── put back ─►
//!                    change(…)           │ Ring │
//!                    stop() ─► Stopped   └──────┘   one of the two has it; the worker never waits
//!                                sleep descriptor: kicks, freed pages, and the control thread
//! ```

use super::events::{RingEvents, add};
use super::pages::Pages;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_packet::TakeCell;
use towpath_packet::notify::{self, Notifier};
use towpath_sys::{Epoll, EventFd, Signaller};
use towpath_virtio::{
    Areas, Base, Chain, Device, Features, Format, InFlightRecord, QueueError, RegionPlace, Regions, RingError, Token,
};
use towpath_wire::virtio_net::{VnetHeader, feature};

/// Pieces of a chain. The specification's limit is the size of the queue, but drivers exceed it
/// with indirect tables.
const MAX_PIECES: usize = 1024;
/// The time between two looks at pages that are out, or at a ring that a worker has.
const PAUSE: Duration = Duration::from_micros(50);
/// Looks at a ring that a worker has, before the control thread sleeps in between.
const LOOKS: u32 = 64;
/// Looks between two that check whether the worker is held by a counter.
const RELIEF: u32 = 1024;

/// Which side fills the buffers of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The guest's transmit queue.
    FromGuest,
    /// The guest's receive queue.
    ToGuest,
}

/// The record of the guest's pages that were written, which a migration sends again.
pub(super) trait DirtyLog: Send + Sync + std::fmt::Debug {
    /// Marks the pages of `len` bytes at a guest physical address, after they were written.
    fn mark(&self, addr: u64, len: u64);
}

/// What a ring logs while its guest migrates.
#[derive(Debug, Clone)]
pub(super) struct RingLog {
    pub(super) pages: Arc<dyn DirtyLog>,
    /// The guest physical address of the used ring, or of a packed ring's descriptors.
    pub(super) used: Option<u64>,
}

/// What the front end configured, complete, translated and checked, when a ring starts.
#[derive(Debug)]
pub(super) struct RingSetup {
    /// Format of the ring.
    pub(super) format: Format,
    /// Descriptors.
    pub(super) size: u16,
    /// The areas, in the front end's memory.
    pub(super) areas: Areas,
    /// Where it begins.
    pub(super) base: Base,
    /// All feature bits that the guest acknowledged.
    pub(super) features: u64,
    /// The guest's memory, by guest physical address.
    pub(super) memory: Regions,
    /// Announces available chains; without it the worker polls.
    pub(super) kick: Option<EventFd>,
    /// Announces used chains; without it none are announced.
    pub(super) call: Option<EventFd>,
    /// Announces that the ring is broken.
    pub(super) err: Option<EventFd>,
    /// Pages that are written are marked here.
    pub(super) log: Option<RingLog>,
    /// Chains in flight are noted here; those of a device before this one are taken first.
    pub(super) record: Option<InFlightRecord>,
}

/// A ring that was started. The control thread may [change](RingSlot::change) the descriptors and
/// the `log` of its setup; anything else takes another start.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) device: Device,
    pub(super) setup: RingSetup,
    /// Why it moves nothing any more.
    pub(super) broken: Option<RingError>,
    /// The chain that was taken last.
    pub(super) chain: Chain<RegionPlace>,
    /// Chains that are out in packets.
    pub(super) pages: Pages,
    /// Chains that go back together, and the bytes written to each: those of one packet for the
    /// guest, or of short frames of the guest.
    pub(super) chains: Vec<(Token, u32)>,
    /// The kick can be waited for.
    kicks: bool,
    /// What signals the counters of the front end without a wait, in place of a write.
    signaller: Option<Arc<Signaller>>,
}

impl Ring {
    fn new(mut setup: RingSetup, pages: Pages, signaller: Option<Arc<Signaller>>) -> Result<Ring, QueueError> {
        let record = setup.record.take();
        let RingSetup { format, size, base, features, ref areas, .. } = setup;
        let areas = Areas { desc: areas.desc.clone(), driver: areas.driver.clone(), device: areas.device.clone() };
        let features = Features::from_bits(features);
        let mut device = match record {
            None => Device::new(format, areas, size, features, base)?,
            Some(record) => Device::resume(format, areas, size, features, base, record)?,
        };
        // Until the worker is about to sleep.
        device.disable_kicks();
        let chains = Vec::with_capacity(size.into());
        let chain = Chain::new(MAX_PIECES);
        Ok(Ring { device, setup, broken: None, chain, pages, chains, kicks: false, signaller })
    }

    /// Whether the guest acknowledged all of these bits.
    #[inline]
    pub(super) fn has(&self, bits: u64) -> bool {
        self.setup.features & bits == bits
    }

    /// Bytes of the header in front of each frame: only a legacy guest without mergeable buffers
    /// has no `num_buffers` (virtio 1.2, 5.1.6.1).
    #[inline]
    pub(super) fn header_len(&self) -> usize {
        let long = feature::VERSION_1 | feature::MRG_RXBUF | feature::RING_PACKED;
        if self.setup.features & long != 0 { VnetHeader::LEN_V1 } else { VnetHeader::LEN }
    }

    /// Why no packet moves, if none does.
    #[inline]
    pub(super) fn stands_still(&self) -> Option<&'static str> {
        self.broken.map(|_| "the guest broke the rules of its ring")
    }

    /// The guest broke a rule: the ring moves nothing from here on.
    #[cold]
    pub(super) fn breaks(&mut self, error: RingError, events: &RingEvents) {
        if self.broken.replace(error).is_none() {
            add(&events.broken, 1);
            if let Some(err) = &self.setup.err {
                self.signal(err);
            }
        }
    }

    /// Shows used chains to the guest, and calls it if it requests that.
    #[inline]
    pub(super) fn publish(&mut self, events: &RingEvents) {
        let wanted = self.device.publish();
        if let Some(log) = &self.setup.log
            && let Some(used) = log.used
        {
            let [desc, _, device] = self.setup.format.lengths(self.setup.size);
            let len = if self.setup.format == Format::Packed { desc } else { device };
            log.pages.mark(used, len as u64);
        }
        if wanted && let Some(call) = &self.setup.call {
            self.signal(call);
            add(&events.calls, 1);
        }
    }

    #[inline]
    fn signal(&self, counter: &EventFd) {
        match &self.signaller {
            Some(signaller) => signaller.signal(counter),
            None => counter.signal(),
        }
    }
}

/// What is left of a ring that was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped {
    /// Where another device can go on.
    pub(super) base: Base,
    /// Chains whose pages packets still refer to; they were returned to the guest all the same.
    pub(super) abandoned: u16,
}

/// The place of a ring.
#[derive(Debug)]
pub(super) struct RingSlot {
    way: Way,
    cell: TakeCell<Option<Ring>>,
    /// Readable when there is something to do.
    sleep: Epoll,
    notifier: Arc<Notifier>,
    events: Arc<RingEvents>,
    /// Without one a worker writes the counters of the front end, and may wait.
    signaller: Option<Arc<Signaller>>,
    /// Counters of the front end that the worker writes.
    counters: Mutex<Vec<Arc<EventFd>>>,
    /// One of them was full.
    was_full: AtomicBool,
}

impl RingSlot {
    /// An empty place.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(
        way: Way,
        events: &Arc<RingEvents>,
        signaller: Option<Arc<Signaller>>,
    ) -> io::Result<Arc<RingSlot>> {
        let (sleep, notifier) = (Epoll::new()?, Arc::new(Notifier::new()?));
        sleep.add(notifier.fd(), true)?;
        let cell = TakeCell::new(Box::new(None));
        let (events, counters, was_full) = (events.clone(), Mutex::default(), AtomicBool::new(false));
        Ok(Arc::new(RingSlot { way, cell, sleep, notifier, events, signaller, counters, was_full }))
    }

    /// Counts of all rings of the port.
    pub(super) fn events(&self) -> &Arc<RingEvents> {
        &self.events
    }

    /// Control thread: starts a ring; one that is there must have been stopped, or is discarded.
    ///
    /// # Errors
    /// [`QueueError`] for a size, areas or a base with which no ring can be.
    pub(super) fn start(&self, setup: RingSetup) -> Result<(), QueueError> {
        let pages = match self.way {
            Way::FromGuest => Pages::new(setup.size, &setup.memory, &self.notifier, &self.events),
            Way::ToGuest => Pages::none(&self.events),
        };
        let mut ring = Ring::new(setup, pages, self.signaller.clone())?;
        add(&self.events.again, ring.device.to_take_again() as u64);
        self.add_kick(&mut ring);
        let mut taken = self.wait();
        if let Some(old) = taken.replace(Some(ring)) {
            self.remove_kick(&old);
        }
        drop(taken);
        self.poke();
        Ok(())
    }

    /// Control thread: takes the ring out. Chains that are out in packets are waited for, for
    /// `patience` at most, and then returned to the guest. When this returns, nothing accesses the
    /// ring any more. `None` if there is no ring.
    pub(super) fn stop(&self, patience: Duration) -> Option<Stopped> {
        let mut ring = self.wait().replace(None)?;
        self.remove_kick(&ring);
        let Ring { device, pages, .. } = &mut ring;
        let begun = Instant::now();
        pages.return_freed(device);
        while pages.chains() > 0 && begun.elapsed() < patience {
            std::thread::sleep(PAUSE);
            pages.return_freed(device);
        }
        let abandoned = pages.abandon(device);
        add(&self.events.abandoned, abandoned.into());
        ring.publish(&self.events);
        Some(Stopped { base: ring.device.base(), abandoned })
    }

    /// Control thread: takes the ring out without returning anything to the guest, because its
    /// front end is gone. Returns whether there was a ring.
    pub(super) fn discard(&self) -> bool {
        let Some(mut ring) = self.wait().replace(None) else { return false };
        self.remove_kick(&ring);
        add(&self.events.abandoned, ring.pages.discard().into());
        true
    }

    /// Control thread: changes a ring between two bursts, and wakes the worker. Returns false if
    /// there is none.
    pub(super) fn change(&self, change: impl FnOnce(&mut Ring)) -> bool {
        let mut taken = self.wait();
        let Some(ring) = taken.ring() else { return false };
        self.remove_kick(ring);
        change(ring);
        self.add_kick(ring);
        drop(taken);
        self.poke();
        true
    }

    /// Waits for the kick of a ring. Each kick wakes once and its count is never read: the
    /// descriptor is another process's, and a read of it might block. A kick from before counts.
    fn add_kick(&self, ring: &mut Ring) {
        ring.kicks = ring.setup.kick.as_ref().is_some_and(|kick| self.sleep.add(kick.fd(), true).is_ok());
    }

    fn remove_kick(&self, ring: &Ring) {
        if let Some(kick) = ring.setup.kick.as_ref().filter(|_| ring.kicks) {
            self.sleep.remove(kick.fd());
        }
    }

    /// Control thread: the counters of the front end that the worker writes: calls and errors.
    pub(super) fn watch(&self, counters: impl IntoIterator<Item = Arc<EventFd>>) {
        let counters = counters.into_iter().collect();
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    /// Control thread: lets the worker go on that a full counter holds: the front end can fill it
    /// and make it blocking. No counter holds one that has a signaller.
    pub(super) fn relieve(&self) {
        if self.signaller.is_some() {
            return;
        }
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        // Each of them, also behind one that was full.
        if counters.iter().filter(|counter| counter.relieve()).count() > 0 {
            self.was_full.store(true, Relaxed);
        }
    }

    /// Control thread: whether a counter was full since the last call.
    pub(super) fn take_full(&self) -> bool {
        self.was_full.swap(false, Relaxed)
    }

    /// Control thread: waits until the worker puts the ring back, at the end of its burst.
    fn wait(&self) -> Taken<'_> {
        let mut looks = 0;
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
            if looks % RELIEF == 0 {
                self.relieve();
            }
        }
    }

    /// Worker: takes the ring for a burst, unless the control thread has it.
    #[inline]
    pub(super) fn take(&self) -> Option<Taken<'_>> {
        Some(Taken { slot: self, place: Some(self.cell.take()?) })
    }

    /// Worker: requests all wake-ups; it looks at the ring once more before it sleeps. Returns
    /// whether the [descriptor](RingSlot::sleeps_on) announces all that can happen.
    pub(super) fn arm(&self) -> bool {
        self.sleep.drain();
        self.notifier.arm();
        // While the control thread has the ring, it will wake this one.
        let Some(mut taken) = self.take() else { return true };
        // Nothing is taken from a ring that is broken.
        let Some(ring) = taken.ring().filter(|ring| ring.broken.is_none()) else { return true };
        let freed = ring.pages.has_freed();
        // The last look may find frames that are dropped, so it does not suffice for chains that no
        // kick announces.
        if ring.device.enable_kicks() || freed {
            self.notifier.wake();
        }
        ring.kicks
    }

    /// Worker: is busy again, and polls.
    pub(super) fn disarm(&self, ring: &mut Ring) {
        self.notifier.disarm();
        ring.device.disable_kicks();
    }

    /// The descriptor that the worker sleeps on.
    pub(super) fn sleeps_on(&self) -> RawFd {
        self.sleep.fd()
    }

    /// Wakes the worker.
    pub(super) fn poke(&self) {
        notify::publish();
        self.notifier.notify();
    }
}

/// The content of a [`RingSlot`], taken by one thread until it is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    slot: &'a RingSlot,
    place: Option<Box<Option<Ring>>>,
}

impl Taken<'_> {
    /// The ring, if one was started.
    #[inline]
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        self.place.as_mut()?.as_mut().as_mut()
    }

    fn replace(&mut self, ring: Option<Ring>) -> Option<Ring> {
        std::mem::replace(self.place.as_mut()?.as_mut(), ring)
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.slot.cell.put(place);
        }
    }
}
