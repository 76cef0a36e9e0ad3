//! A value that threads use in turn without waiting.
//!
//! ```text
//!   thread 1   take ──► the value, alone ──► put          take ──► …
//!   thread 2         take ──► None: does something else and tries again
//! ```

use crate::sync::{AtomicPtr, Ordering};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A cell with one value. The thread that takes the value owns it until it puts it back; other
/// threads find the cell empty.
///
/// Unlike with a lock, no thread waits for a preempted one. Taking and putting are an exchange of a
/// pointer each; the value stays where it was allocated.
///
/// ```
/// use towpath_packet::TakeCell;
/// let cell = TakeCell::new(Box::new(7));
/// let mut seven = cell.take().unwrap();
/// assert!(cell.take().is_none());
/// *seven += 1;
/// cell.put(seven);
/// assert_eq!(cell.take().as_deref(), Some(&8));
/// ```
pub struct TakeCell<T> {
    /// From [`Box::into_raw`], or null.
    value: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: the cell owns its value as a box does.
unsafe impl<T: Send> Send for TakeCell<T> {}
// SAFETY: a shared cell gives the value itself to one thread at a time; no two threads have a
// reference to it.
unsafe impl<T: Send> Sync for TakeCell<T> {}

impl<T> TakeCell<T> {
    /// A cell with a value.
    pub fn new(value: Box<T>) -> TakeCell<T> {
        TakeCell { value: AtomicPtr::new(Box::into_raw(value)), owns: PhantomData }
    }

    /// Takes the value, unless another thread has it.
    #[inline]
    pub fn take(&self) -> Option<Box<T>> {
        // Load first: an exchange would take the cache line from the thread that is about to put
        // the value back.
        if self.value.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.exchange(null_mut())
    }

    /// Puts the value back. A value in the cell is dropped.
    #[inline]
    pub fn put(&self, value: Box<T>) {
        drop(self.exchange(Box::into_raw(value)));
    }

    /// Replaces the pointer by null, or by a former box that the caller no longer uses.
    #[inline]
    fn exchange(&self, value: *mut T) -> Option<Box<T>> {
        // Acquire: other threads' writes to the value before they put it back. Release: our writes
        // before we put it.
        let before = self.value.swap(value, Ordering::AcqRel);
        // SAFETY: a pointer that is not null was a box whose owner gave it up, and the exchange
        // returns it to one caller.
        (!before.is_null()).then(|| unsafe { Box::from_raw(before) })
    }
}

impl<T> Drop for TakeCell<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> fmt::Debug for TakeCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeCell").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_value_is_dropped_once_whether_it_was_put_back_or_not() {
        let value = Arc::new(());
        for put_back in [false, true] {
            let cell = TakeCell::new(Box::new(value.clone()));
            let taken = cell.take().unwrap();
            if put_back {
                cell.put(taken);
            } else {
                drop(taken);
            }
            drop(cell);
            assert_eq!(Arc::strong_count(&value), 1);
        }
        let cell = TakeCell::new(Box::new(value.clone()));
        cell.put(Box::new(value.clone()));
        assert_eq!(Arc::strong_count(&value), 2, "what stood there is gone");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;
    use std::sync::Arc;

    /// Adds one so that the model checker notices a concurrent access or a missed write.
    fn work(cell: &TakeCell<UnsafeCell<u32>>) -> u32 {
        let Some(value) = cell.take() else { return 0 };
        // SAFETY: no other thread has it, which is what the test checks.
        value.with_mut(|value| unsafe { *value += 1 });
        cell.put(value);
        1
    }

    #[test]
    fn the_thread_that_takes_the_value_has_it_alone_and_sees_all_writes_before() {
        crate::sync::model(|| {
            let cell = Arc::new(TakeCell::new(Box::new(UnsafeCell::new(0))));
            let threads = [(); 2].map(|()| {
                let cell = cell.clone();
                thread::spawn(move || work(&cell) + work(&cell))
            });
            let own = work(&cell);
            let done: u32 = own + threads.map(|thread| thread.join().unwrap()).into_iter().sum::<u32>();
            // The first thread found the value.
            assert!(done > 0);
            let value = cell.take().unwrap();
            // SAFETY: the threads have ended.
            assert_eq!(value.with(|value| unsafe { *value }), done);
        });
    }
}
