//! The locks and atomics of what queues share, from the loom switch.

#[cfg(all(test, loom))]
pub(crate) use towpath_sys::sync::model;
pub(crate) use towpath_sys::sync::{AtomicU32, Mutex, MutexGuard, lock};
