//! The flag by which one side of a ring requests a wakeup (`XDP_RING_NEED_WAKEUP`).
//!
//! [`notify`](crate::notify) shows why no wake-up is lost.

use super::RingCounter;
use crate::notify::{before_last_look, publish};
use std::sync::atomic::Ordering;

/// The flag's bit.
const NEED_WAKEUP: u32 = 1;

/// Read by the waker, after its counter was stored.
#[inline]
pub(super) fn is_needed(flags: &impl RingCounter) -> bool {
    publish();
    flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
}

/// Set by the sleeper before its last read of the ring, and cleared when it is awake again.
#[inline]
pub(super) fn set_needed(flags: &impl RingCounter, needed: bool) {
    flags.store(if needed { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    if needed {
        before_last_look();
    }
}
