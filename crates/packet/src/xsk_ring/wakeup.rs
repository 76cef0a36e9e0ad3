//! The flag by which one side of a ring requests a wakeup (`XDP_RING_NEED_WAKEUP`).
//!
//! ```text
//!   sleeper:  set the flag      │ fence │ look at the other side's counter, once more │ sleep
//!   waker:    store the counter │ fence │ is the flag set? ── yes ──► wake
//! ```
//!
//! Both sides write one word and then read the other's, with a sequentially consistent fence in
//! between (Dekker's pattern). The fences have an order: if the sleeper's is first the waker sees
//! the flag, else the sleeper sees the counter.

use super::RingCounter;
use crate::sync::fence;
use std::sync::atomic::Ordering;

/// The flag's bit.
const NEED_WAKEUP: u32 = 1;

/// Read by the waker, after its counter was stored.
#[inline]
pub(super) fn is_needed(flags: &impl RingCounter) -> bool {
    // SeqCst fence: our counter is written before the flag is read.
    fence(Ordering::SeqCst);
    flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
}

/// Set by the sleeper before its last read of the ring, and cleared when it is awake again.
#[inline]
pub(super) fn set_needed(flags: &impl RingCounter, needed: bool) {
    flags.store(if needed { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    if needed {
        // SeqCst fence: the flag is written before the other side's counter is read.
        fence(Ordering::SeqCst);
    }
}
