//! A lock that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a thread has panicked with the lock held: for data that no panic leaves half
/// changed.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
