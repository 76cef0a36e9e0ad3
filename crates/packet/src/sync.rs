//! The atomics in use, from the loom switch.

#[cfg(all(test, loom))]
pub(crate) use towpath_sys::sync::model;
pub(crate) use towpath_sys::sync::{
    Arc, AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
