//! The locks in use, from the loom switch.

#[cfg(all(test, loom))]
pub(crate) use towpath_sys::sync::model;
pub(crate) use towpath_sys::sync::{Mutex, MutexGuard};
