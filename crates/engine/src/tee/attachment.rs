//! A tee as it is attached to slots: what its guard, its reader and [`TeeSlots`](super::TeeSlots)
//! share.

use super::tap::Tap;
use super::{TapCounters, TeeConfig, TeeCounts, TeeError, TeeSlot};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_packet::Notifier;
use towpath_packet::record_ring::{Consumer, record_ring};

/// A tee and the slots that it is attached to.
#[derive(Debug)]
pub(super) struct Attachment {
    id: u64,
    config: TeeConfig,
    /// There are rings that the reader does not have.
    has_new: AtomicBool,
    is_detached: AtomicBool,
    parts: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    /// Wakes the reader; gone once the tee is detached, so that its descriptor is closed with the
    /// reader.
    notifier: Option<Arc<Notifier>>,
    attached: Vec<Attached>,
    new: Vec<Consumer>,
    /// The counts at slots that were left.
    left: TeeCounts,
}

/// A slot, the bursts that it had skipped when the tee was attached, and the tee's counters there.
#[derive(Debug)]
struct Attached {
    slot: Arc<TeeSlot>,
    skipped: u64,
    counters: Arc<TapCounters>,
}

impl Attached {
    fn counts(&self) -> TeeCounts {
        let skipped = self.slot.skipped() - self.skipped;
        let [matched, missed] =
            [&self.counters.matched, &self.counters.missed].map(|n: &AtomicU64| n.load(Ordering::Relaxed) + skipped);
        TeeCounts { matched, missed }
    }
}

impl TeeCounts {
    fn plus(self, other: TeeCounts) -> TeeCounts {
        TeeCounts { matched: self.matched + other.matched, missed: self.missed + other.missed }
    }
}

impl Attachment {
    pub(super) fn new(id: u64, config: &TeeConfig, notifier: Arc<Notifier>) -> Attachment {
        let (has_new, is_detached) = (AtomicBool::new(false), AtomicBool::new(false));
        let parts = Mutex::new(Parts { notifier: Some(notifier), ..Parts::default() });
        Attachment { id, config: config.clone(), has_new, is_detached, parts }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the tee to one more slot, unless it uses none of its points or is detached.
    ///
    /// # Errors
    /// The slot has too many tees.
    pub(super) fn add(&self, slot: &Arc<TeeSlot>) -> Result<(), TeeError> {
        let points = slot.points(&self.config);
        let mut parts = self.lock();
        let Some(notifier) = parts.notifier.clone().filter(|_| points != 0) else { return Ok(()) };
        let (producer, consumer) = record_ring(self.config.ring);
        let counters = Arc::new(TapCounters::default());
        let tap = Tap::new(self.id, points, &self.config, producer, counters.clone(), notifier);
        let skipped = slot.attach(tap)?;
        parts.attached.push(Attached { slot: slot.clone(), skipped, counters });
        parts.new.push(consumer);
        self.has_new.store(true, Ordering::Release);
        Ok(())
    }

    /// Leaves a slot that no thread uses any more.
    pub(super) fn remove(&self, slot: &Arc<TeeSlot>) {
        slot.detach(self.id);
        let mut parts = self.lock();
        if let Some(at) = parts.attached.iter().position(|attached| Arc::ptr_eq(&attached.slot, slot)) {
            let attached = parts.attached.swap_remove(at);
            parts.left = parts.left.plus(attached.counts());
        }
    }

    /// Leaves all slots; the counts are exact afterwards.
    pub(super) fn detach(&self) -> TeeCounts {
        let mut parts = self.lock();
        parts.attached.iter().for_each(|attached| attached.slot.detach(self.id));
        let all = parts.attached.drain(..).map(|attached| attached.counts());
        let all: TeeCounts = all.fold(TeeCounts::default(), TeeCounts::plus);
        parts.left = parts.left.plus(all);
        parts.notifier = None;
        // Behind the rings: a reader that sees the flag sees the last of them.
        self.is_detached.store(true, Ordering::Release);
        parts.left
    }

    pub(super) fn counts(&self) -> TeeCounts {
        let parts = self.lock();
        parts.attached.iter().map(Attached::counts).fold(parts.left, TeeCounts::plus)
    }

    pub(super) fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::Acquire)
    }

    /// Moves rings that were added since the last call to those of the reader.
    #[inline]
    pub(super) fn take_new(&self, rings: &mut Vec<Consumer>) {
        if self.has_new.load(Ordering::Acquire) {
            let mut parts = self.lock();
            rings.append(&mut parts.new);
            self.has_new.store(false, Ordering::Relaxed);
        }
    }
}
