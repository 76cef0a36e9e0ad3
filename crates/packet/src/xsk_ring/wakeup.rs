//! The flag by which one side of a ring says that it sleeps (`XDP_RING_NEED_WAKEUP`).
//!
//! [`notify`](crate::notify) shows why no wake-up is lost.

use super::Word;
use crate::notify::{before_last_look, publish};
use std::sync::atomic::Ordering;

/// The flag's bit.
const NEED_WAKEUP: u32 = 1;

/// By the waker, after its counter was stored.
#[inline]
pub(super) fn is_needed(flags: &impl Word) -> bool {
    publish();
    flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
}

/// By the sleeper, before its last look, and when it is awake again.
#[inline]
pub(super) fn set_needed(flags: &impl Word, needed: bool) {
    flags.store(if needed { NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    if needed {
        before_last_look();
    }
}
