//! What bells and lanes synchronise with: the standard library's atomics and the kernel's events, or loom's when its model
//! checker runs the tests.

#[cfg(loom)]
pub(crate) use self::modelled::{AtomicBool, Event};
#[cfg(not(loom))]
pub(crate) use crate::sys::thread::Event;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering, fence};

/// Runs every interleaving of a model with at most three preemptions: what finds nearly all ordering errors, in seconds.
#[cfg(all(test, loom))]
pub(crate) fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(f);
}

#[cfg(loom)]
mod modelled {
    use super::Ordering;
    use loom::sync::{Mutex, Notify};
    use std::io;
    use std::os::fd::RawFd;

    /// Loom's, but a store is an exchange. Loom would let a plain store stand on both sides of another thread's exchange: in front
    /// of it for one reader, behind it for another, which no order of modifications allows.
    #[derive(Debug)]
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub(crate) fn new(value: bool) -> AtomicBool {
            AtomicBool(loom::sync::atomic::AtomicBool::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> bool {
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            self.0.swap(value, order);
        }

        pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
            self.0.swap(value, order)
        }
    }

    /// An eventfd as its users see it: a state behind a lock of the kernel's, and sleepers that wait until it is set.
    #[derive(Debug)]
    pub(crate) struct Event {
        set: Mutex<bool>,
        changed: Notify,
    }

    impl Event {
        pub(crate) fn new() -> io::Result<Event> {
            Ok(Event { set: Mutex::new(false), changed: Notify::new() })
        }

        pub(crate) fn fd(&self) -> RawFd {
            -1
        }

        pub(crate) fn signal(&self) {
            *self.set.lock().unwrap_or_else(|e| e.into_inner()) = true;
            self.changed.notify();
        }

        pub(crate) fn clear(&self) {
            *self.set.lock().unwrap_or_else(|e| e.into_inner()) = false;
        }

        /// Sleeps on the descriptor. Who is never woken is a deadlock, which the model checker reports.
        #[cfg(test)]
        pub(crate) fn wait(&self) {
            while !*self.set.lock().unwrap_or_else(|e| e.into_inner()) {
                self.changed.wait();
            }
        }
    }
}
