//! The loom switch: the standard library's atomics and locks and the kernel's events, or loom's
//! under `--cfg loom`.
//!
//! Every crate whose threads share memory imports its atomics from here, so that its loom tests see
//! every access.

#[cfg(loom)]
pub use self::modelled::{EventFd, ExchangeBool, lock};
#[cfg(not(loom))]
pub use crate::event::EventFd;
#[cfg(not(loom))]
pub use crate::mutex::lock;
#[cfg(loom)]
pub use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// A flag that one thread exchanges while another one stores to it.
#[cfg(not(loom))]
pub type ExchangeBool = AtomicBool;

/// Runs every interleaving of a model with at most three preemptions. That finds nearly all
/// ordering errors in seconds.
#[cfg(loom)]
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(f);
}

#[cfg(loom)]
mod modelled {
    use super::Ordering;
    use loom::sync::{Mutex, MutexGuard, Notify};
    use std::io;
    use std::os::fd::RawFd;
    use std::sync::PoisonError;

    /// As [`crate::lock`], of loom's mutexes.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loom's `AtomicBool`, whose store is an exchange. Loom orders a plain store both before and
    /// after another thread's exchange, for different readers, which no modification order allows.
    #[derive(Debug)]
    pub struct ExchangeBool(loom::sync::atomic::AtomicBool);

    impl ExchangeBool {
        /// A flag.
        pub fn new(value: bool) -> ExchangeBool {
            ExchangeBool(loom::sync::atomic::AtomicBool::new(value))
        }

        /// Reads the flag.
        pub fn load(&self, order: Ordering) -> bool {
            self.0.load(order)
        }

        /// Writes the flag.
        pub fn store(&self, value: bool, order: Ordering) {
            self.0.swap(value, order);
        }

        /// Writes the flag and returns its previous value.
        pub fn swap(&self, value: bool, order: Ordering) -> bool {
            self.0.swap(value, order)
        }
    }

    /// A model of an eventfd: a state behind a lock of the kernel, and sleepers that wait until it
    /// is set.
    #[derive(Debug)]
    pub struct EventFd {
        set: Mutex<bool>,
        changed: Notify,
    }

    impl EventFd {
        /// An event that is not set.
        ///
        /// # Errors
        /// None.
        pub fn new() -> io::Result<EventFd> {
            Ok(EventFd { set: Mutex::new(false), changed: Notify::new() })
        }

        /// No descriptor.
        pub fn fd(&self) -> RawFd {
            -1
        }

        /// Sets the event.
        pub fn signal(&self) {
            *self.set.lock().unwrap_or_else(|e| e.into_inner()) = true;
            self.changed.notify();
        }

        /// Resets the event.
        pub fn clear(&self) {
            *self.set.lock().unwrap_or_else(|e| e.into_inner()) = false;
        }

        /// Sleeps on the descriptor. A sleeper that is never woken is a deadlock, which the model
        /// checker reports.
        pub fn wait(&self) {
            while !*self.set.lock().unwrap_or_else(|e| e.into_inner()) {
                self.changed.wait();
            }
        }
    }
}
