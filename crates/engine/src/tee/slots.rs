//! Slots that come and go while tees are attached: those of ports of a hub.

use super::attachment::Attachment;
use super::{TeeConfig, TeeError, TeeGuard, TeeReader, TeeSlot, attach};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The slots of what runs. A tee that is attached to them is attached to those that are added later
/// as well.
#[derive(Debug, Default)]
pub struct TeeSlots(Mutex<Members>);

#[derive(Debug, Default)]
struct Members {
    slots: Vec<Arc<TeeSlot>>,
    tees: Vec<Weak<Attachment>>,
}

impl TeeSlots {
    /// These slots.
    pub fn new(slots: Vec<Arc<TeeSlot>>) -> TeeSlots {
        TeeSlots(Mutex::new(Members { slots, tees: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a tee to all slots, also to those that are added as long as it is attached.
    ///
    /// # Errors
    /// [`TeeError`]; then nothing is attached.
    pub fn attach(&self, config: &TeeConfig) -> Result<(TeeGuard, TeeReader), TeeError> {
        let mut members = self.lock();
        let (guard, reader) = attach(&members.slots, config)?;
        members.tees.retain(|tee| tee.strong_count() > 0);
        members.tees.push(guard.attachment());
        Ok((guard, reader))
    }

    /// Adds a slot, with the tees that are attached.
    pub fn add(&self, slot: Arc<TeeSlot>) {
        let mut members = self.lock();
        for tee in members.tees.iter().filter_map(Weak::upgrade) {
            // A new slot has room for as many tees as any other one; one tee more is not there.
            let _ = tee.add(&slot);
        }
        members.slots.push(slot);
    }

    /// Removes the slots that receive from an interface: the port has left, and no thread uses
    /// them.
    pub fn remove(&self, interface: u8) {
        let mut members = self.lock();
        let Members { slots, tees } = &mut *members;
        let is_its = |slot: &Arc<TeeSlot>| slot.ingress() == Some(interface);
        for slot in slots.iter().filter(|slot| is_its(slot)) {
            tees.iter().filter_map(Weak::upgrade).for_each(|tee| tee.remove(slot));
        }
        slots.retain(|slot| !is_its(slot));
    }
}
