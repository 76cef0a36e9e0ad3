//! The locks and atomics of what queues share, from the loom switch.

#[cfg(all(test, loom))]
pub(crate) use towpath_sys::sync::model;
pub(crate) use towpath_sys::sync::{AtomicU32, Mutex, MutexGuard};

/// Locks, also if a thread has panicked with the lock held: no code here leaves data half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
