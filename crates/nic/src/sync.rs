//! The locks and atomics of what queues share: the standard library's, or loom's when its model
//! checker runs the tests.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU32};
pub(crate) use std::sync::atomic::Ordering::{Acquire, Release};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicU32};

/// Locks, also after a thread has panicked with the lock held: no code in this crate leaves data
/// half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs all interleavings of a model with at most three preemptions: these show nearly all ordering
/// errors, in seconds.
#[cfg(all(test, loom))]
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}
