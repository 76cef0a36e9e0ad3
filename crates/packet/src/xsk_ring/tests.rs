//! The rings against a plain model of the other side, and in every interleaving.

#[cfg(not(loom))]
mod model {
    use super::super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    /// A ring in ordinary memory.
    #[derive(Debug, Default)]
    struct TestRing {
        producer: AtomicU32,
        consumer: AtomicU32,
        entries: Vec<AtomicU64>,
    }

    impl RingMemory for Arc<TestRing> {
        type Entry = u64;
        type RingCounter = AtomicU32;
        fn size(&self) -> u32 {
            self.entries.len() as u32
        }
        fn producer(&self) -> &AtomicU32 {
            &self.producer
        }
        fn consumer(&self) -> &AtomicU32 {
            &self.consumer
        }
        fn read(&self, at: u32) -> u64 {
            self.entries[(at & (self.size() - 1)) as usize].load(Relaxed)
        }
        fn write(&self, at: u32, entry: u64) {
            self.entries[(at & (self.size() - 1)) as usize].store(entry, Relaxed);
        }
    }

    /// A ring whose counters both stand at `start`.
    fn memory(size: u32, start: u32) -> Arc<TestRing> {
        let entries = (0..size).map(|_| AtomicU64::new(u64::MAX)).collect();
        Arc::new(TestRing { producer: AtomicU32::new(start), consumer: AtomicU32::new(start), entries })
    }

    proptest! {
        /// We produce, a kernel that keeps a queue consumes; counters wrap on the way.
        #[test]
        fn submitted_entries_arrive_in_order_and_no_others(
            log in 0u32..6, back in 0u32..40, steps in proptest::collection::vec((0u8..3, 1u32..9), 1..200),
        ) {
            let (size, start) = (1 << log, 0u32.wrapping_sub(back));
            let ring = memory(size, start);
            let mut ours = Producer { ring: ring.clone(), at: start, limit: start.wrapping_add(size) };
            let (mut next, mut written, mut submitted) = (0u64, VecDeque::new(), VecDeque::new());
            for (what, n) in steps {
                match what {
                    0 => {
                        let free = ours.reserve(n);
                        let used = (written.len() + submitted.len()) as u32;
                        prop_assert!(free <= size - used, "never more than there is");
                        prop_assert!(free >= n.min(size - used), "as much as was asked for, where there is as much");
                        for _ in 0..n.min(free) {
                            ours.write(next);
                            written.push_back(next);
                            next += 1;
                        }
                    }
                    1 => {
                        ours.submit();
                        submitted.append(&mut written);
                    }
                    _ => {
                        let (from, to) = (ring.consumer.load(Relaxed), ring.producer.load(Relaxed));
                        prop_assert_eq!(to.wrapping_sub(from), submitted.len() as u32);
                        for i in 0..n.min(to.wrapping_sub(from)) {
                            prop_assert_eq!(Some(ring.read(from.wrapping_add(i))), submitted.pop_front());
                            ring.consumer.store(from.wrapping_add(i + 1), Relaxed);
                        }
                    }
                }
                prop_assert_eq!(ours.waiting(), (written.len() + submitted.len()) as u32);
            }
        }

        /// A kernel produces, we consume.
        #[test]
        fn entries_of_the_other_side_are_read_once_and_in_order(
            log in 0u32..6, back in 0u32..40, steps in proptest::collection::vec((0u8..3, 1u32..9), 1..200),
        ) {
            let (size, start) = (1 << log, 0u32.wrapping_sub(back));
            let ring = memory(size, start);
            let mut ours = Consumer { ring: ring.clone(), at: start, limit: start };
            let (mut next, mut submitted) = (0u64, VecDeque::new());
            for (what, n) in steps {
                match what {
                    0 => {
                        let (mut to, from) = (ring.producer.load(Relaxed), ring.consumer.load(Relaxed));
                        for _ in 0..n.min(size - to.wrapping_sub(from)) {
                            ring.write(to, next);
                            submitted.push_back(next);
                            next += 1;
                            to = to.wrapping_add(1);
                        }
                        ring.producer.store(to, Relaxed);
                    }
                    1 => {
                        let ready = ours.peek(n);
                        prop_assert!(ready as usize <= submitted.len());
                        prop_assert!(ready >= n.min(submitted.len() as u32));
                        prop_assert_eq!(ours.waiting(), submitted.len() as u32);
                        for _ in 0..n.min(ready) {
                            let entry = ours.read();
                            // After a cancel it is the next one again.
                            ours.cancel();
                            prop_assert!(ours.peek(1) > 0);
                            prop_assert_eq!(ours.read(), entry);
                            prop_assert_eq!(Some(entry), submitted.pop_front());
                        }
                    }
                    _ => ours.release(),
                }
            }
        }

        /// For any counter of the other side, at most the size of the ring is read or written.
        #[test]
        fn an_impossible_counter_is_clamped(log in 0u32..6, words in proptest::collection::vec(any::<u32>(), 1..50)) {
            let size = 1 << log;
            let ring = memory(size, 0);
            let (mut producer, mut consumer) = (Producer::new(ring.clone()), Consumer::new(memory(size, 0)));
            for word in words {
                ring.consumer.store(word, Relaxed);
                consumer.ring.producer.store(word, Relaxed);
                prop_assert!(producer.reserve(u32::MAX) <= size);
                prop_assert!(producer.waiting() <= size && consumer.waiting() <= size);
                let ready = consumer.peek(u32::MAX);
                prop_assert!(ready <= size);
                (0..ready).for_each(|_| drop(consumer.read().to_string()));
            }
        }
    }
}

#[cfg(loom)]
mod interleavings {
    use super::super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU32;
    use loom::sync::{Arc, Mutex, Notify};

    struct TestRing {
        producer: AtomicU32,
        consumer: AtomicU32,
        flags: AtomicU32,
        entries: [UnsafeCell<u64>; 2],
    }

    fn ring() -> Arc<TestRing> {
        let [producer, consumer, flags] = [(); 3].map(|()| AtomicU32::new(0));
        Arc::new(TestRing { producer, consumer, flags, entries: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    impl RingCounter for AtomicU32 {
        fn load(&self, order: Ordering) -> u32 {
            self.load(order)
        }
        fn store(&self, value: u32, order: Ordering) {
            self.store(value, order);
        }
    }

    impl RingMemory for Arc<TestRing> {
        type Entry = u64;
        type RingCounter = AtomicU32;
        fn size(&self) -> u32 {
            2
        }
        fn producer(&self) -> &AtomicU32 {
            &self.producer
        }
        fn consumer(&self) -> &AtomicU32 {
            &self.consumer
        }
        fn read(&self, at: u32) -> u64 {
            // SAFETY: loom reports accesses that are not ordered with each other.
            self.entries[(at & 1) as usize].with(|entry| unsafe { *entry })
        }
        fn write(&self, at: u32, entry: u64) {
            // SAFETY: as above.
            self.entries[(at & 1) as usize].with_mut(|place| unsafe { *place = entry });
        }
    }

    #[test]
    fn entries_cross_in_order_and_no_slot_is_touched_by_both_sides_at_once() {
        crate::sync::model(|| {
            let ring = ring();
            let mut producer = Producer::new(ring.clone());
            let mut consumer = Consumer::new(ring);
            let sender = loom::thread::spawn(move || {
                for value in 1..=3 {
                    while producer.reserve(1) == 0 {
                        loom::thread::yield_now();
                    }
                    producer.write(value);
                    producer.submit();
                }
            });
            for value in 1..=3 {
                while consumer.peek(1) == 0 {
                    loom::thread::yield_now();
                }
                assert_eq!(consumer.read(), value);
                consumer.release();
            }
            sender.join().unwrap();
        });
    }

    /// A descriptor: readable from the first wake until it is drained. A side that is never woken
    /// is a deadlock, which loom reports.
    #[derive(Default)]
    struct WakeFd {
        readable: Mutex<bool>,
        changed: Notify,
    }

    impl WakeFd {
        fn wake(&self) {
            *self.readable.lock().unwrap() = true;
            self.changed.notify();
        }

        fn wait(&self) {
            while !*self.readable.lock().unwrap() {
                self.changed.wait();
            }
        }

        fn drain(&self) {
            *self.readable.lock().unwrap() = false;
        }
    }

    #[test]
    fn a_consumer_that_reads_the_ring_once_more_before_it_sleeps_is_woken_for_every_entry() {
        crate::sync::model(|| {
            let (ring, fd) = (ring(), Arc::new(WakeFd::default()));
            let mut producer = Producer::new(ring.clone());
            let mut consumer = Consumer::new(ring);
            let waker = fd.clone();
            let sender = loom::thread::spawn(move || {
                // There is room for both from the start.
                for value in 1..=2 {
                    producer.write(value);
                    producer.submit();
                    if wakeup::is_needed(&producer.ring().flags) {
                        waker.wake();
                    }
                }
            });
            let mut seen = 0;
            while seen < 2 {
                for _ in 0..consumer.peek(2) {
                    seen += 1;
                    assert_eq!(consumer.read(), seen);
                    consumer.release();
                }
                if seen < 2 {
                    // As the application's `wait` does.
                    wakeup::set_needed(&consumer.ring().flags, true);
                    if consumer.peek(1) == 0 {
                        fd.wait();
                    }
                    wakeup::set_needed(&consumer.ring().flags, false);
                    fd.drain();
                }
            }
            sender.join().unwrap();
        });
    }
}
