//! One value for many readers, replaced as a whole.
//!
//! A reader loads one number per burst. If it has changed, the reader takes the new value under a
//! lock that is held for the time of a copied pointer; if the lock is taken at that moment, the
//! next burst takes it. The last owner of a value is the side that publishes: readers free no
//! memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The publishing side.
#[derive(Debug)]
pub struct Publisher<T> {
    shared: Arc<SnapshotShared<T>>,
    /// Values that readers may still have.
    retired: Vec<Arc<T>>,
}

#[derive(Debug)]
struct SnapshotShared<T> {
    generation: AtomicU64,
    value: Mutex<Arc<T>>,
}

impl<T> Publisher<T> {
    /// Publishes the first value.
    pub fn new(value: T) -> Publisher<T> {
        let shared = SnapshotShared { generation: AtomicU64::new(1), value: Mutex::new(Arc::new(value)) };
        Publisher { shared: Arc::new(shared), retired: Vec::new() }
    }

    /// Replaces the value.
    pub fn publish(&mut self, value: T) {
        let value = Arc::new(value);
        let old = std::mem::replace(&mut *self.shared.value.lock().unwrap_or_else(PoisonError::into_inner), value);
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.retired.push(old);
        self.collect();
    }

    /// Frees the values that no reader has any more.
    pub fn collect(&mut self) {
        self.retired.retain(|value| Arc::strong_count(value) > 1);
    }

    /// The value now.
    pub fn value(&self) -> Arc<T> {
        self.shared.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A reader, for one thread.
    pub fn reader(&self) -> Reader<T> {
        let generation = self.shared.generation.load(Ordering::Acquire);
        Reader { shared: self.shared.clone(), generation, value: self.value() }
    }
}

/// The value as one thread sees it: it changes only by [`refresh`](Reader::refresh).
#[derive(Debug)]
pub struct Reader<T> {
    shared: Arc<SnapshotShared<T>>,
    generation: u64,
    value: Arc<T>,
}

impl<T> Reader<T> {
    /// Takes the newest value.
    #[inline]
    pub fn refresh(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.take(generation);
        }
    }

    #[cold]
    fn take(&mut self, generation: u64) {
        let Ok(value) = self.shared.value.try_lock() else { return };
        // The value is this generation's, or a later one's.
        (self.generation, self.value) = (generation, value.clone());
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_the_newest_value_after_a_refresh_and_frees_none() {
        let mut publisher = Publisher::new(1);
        let mut reader = publisher.reader();
        publisher.publish(2);
        assert_eq!((**reader.value(), publisher.retired.len()), (1, 1));
        reader.refresh();
        assert_eq!(**reader.value(), 2);
        publisher.collect();
        assert!(publisher.retired.is_empty());
        assert_eq!(*publisher.value(), 2);
    }
}
