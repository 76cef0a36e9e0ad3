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

    /// A producer, or a consumer, of a ring whose counters both stand at `start`.
    fn producer(size: u32, start: u32) -> Producer<Arc<TestRing>> {
        Producer { ring: memory(size, start), at: start, limit: start.wrapping_add(size) }
    }

    fn consumer(size: u32, start: u32) -> Consumer<Arc<TestRing>> {
        Consumer { ring: memory(size, start), at: start, limit: start }
    }

    /// Counters before and after they wrap around, and in the middle of their range.
    const STARTS: [u32; 5] = [0, u32::MAX - 5, u32::MAX, 1 << 31, 0x7fff_fffd];

    #[test]
    fn every_counter_of_the_consumer_is_room_for_so_many_or_corrupt() {
        const SIZE: u32 = 8;
        for (start, written) in STARTS.into_iter().flat_map(|start| (0..=SIZE).map(move |n| (start, n))) {
            let possible = |released: u32| SIZE - written + released;
            for released in (0..=written + 3).chain([1 << 31, u32::MAX, 0u32.wrapping_sub(SIZE)]) {
                let mut ours = producer(SIZE, start);
                (0..written).for_each(|entry| ours.write(entry.into()));
                ours.ring.consumer.store(start.wrapping_add(released), Relaxed);
                let free = ours.try_reserve(SIZE + 1);
                // Released entries are at most those that were written. A counter that goes back
                // claims more than the ring has.
                let back = 0u32.wrapping_sub(released);
                let expected = if released <= written {
                    Ok(possible(released))
                } else if back <= SIZE - written {
                    Ok(SIZE - written - back)
                } else {
                    Err(RingCorrupt)
                };
                assert_eq!(free, expected, "{start:#x}: {written} written, {released} released");
                // The claim is not kept: what was free before is free still.
                let kept = expected.unwrap_or(SIZE - written);
                assert_eq!(ours.try_reserve(0), Ok(kept), "{start:#x}: {written} written, {released} released");
            }
        }
    }

    #[test]
    fn every_counter_of_the_producer_is_entries_to_read_or_corrupt() {
        const SIZE: u32 = 8;
        for (start, read) in STARTS.into_iter().flat_map(|start| (0..=SIZE).map(move |n| (start, n))) {
            for submitted in (0..=read + SIZE + 3).chain([1 << 31, u32::MAX]) {
                let mut ours = consumer(SIZE, start);
                ours.ring.producer.store(start.wrapping_add(read), Relaxed);
                assert_eq!(ours.try_peek(read), Ok(read));
                (0..read).for_each(|_| drop(ours.read().to_string()));
                ours.ring.producer.store(start.wrapping_add(submitted), Relaxed);
                // Fewer than were read already is a counter that went back.
                let expected = match submitted.checked_sub(read) {
                    Some(n) if n <= SIZE => Ok(n),
                    _ => Err(RingCorrupt),
                };
                assert_eq!(ours.try_peek(SIZE + 1), expected, "{start:#x}: {read} read, {submitted} submitted");
                assert_eq!(ours.try_peek(0), Ok(expected.unwrap_or(0)), "{start:#x}: a false claim is not kept");
            }
        }
    }

    #[test]
    fn the_shared_counter_is_loaded_only_if_there_are_fewer_entries_than_are_wanted() {
        let (mut ours, mut theirs) = (producer(8, u32::MAX), consumer(8, u32::MAX));
        (0..3).for_each(|entry| ours.write(entry));
        ours.ring.consumer.store(7, Relaxed);
        assert_eq!((ours.try_reserve(5), ours.reserve(5)), (Ok(5), 5), "not loaded");
        assert_eq!(ours.try_reserve(6), Err(RingCorrupt), "loaded");
        theirs.ring.producer.store(3, Relaxed);
        assert_eq!(theirs.try_peek(1), Ok(4));
        theirs.ring.producer.store(1 << 31, Relaxed);
        assert_eq!((theirs.try_peek(4), theirs.peek(4)), (Ok(4), 4), "not loaded");
        assert_eq!(theirs.try_peek(5), Err(RingCorrupt), "loaded");
    }

    proptest! {
        /// We produce, a kernel that keeps a queue consumes; counters wrap on the way.
        #[test]
        fn submitted_entries_arrive_in_order_and_no_others(
            log in 0u32..6, back in 0u32..40, careful: bool, steps in proptest::collection::vec((0u8..3, 1u32..9), 1..200),
        ) {
            let (size, start) = (1 << log, 0u32.wrapping_sub(back));
            let mut ours = producer(size, start);
            let ring = ours.ring.clone();
            let (mut next, mut written, mut submitted) = (0u64, VecDeque::new(), VecDeque::new());
            for (what, n) in steps {
                match what {
                    0 => {
                        let free = if careful { ours.try_reserve(n).unwrap() } else { ours.reserve(n) };
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
            log in 0u32..6, back in 0u32..40, careful: bool, steps in proptest::collection::vec((0u8..3, 1u32..9), 1..200),
        ) {
            let (size, start) = (1 << log, 0u32.wrapping_sub(back));
            let mut ours = consumer(size, start);
            let ring = ours.ring.clone();
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
                        let ready = if careful { ours.try_peek(n).unwrap() } else { ours.peek(n) };
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

        /// Of a hostile side no more than the ring has is ever read or written, and nothing that is
        /// not to be read or written.
        #[test]
        fn no_sequence_of_counters_gains_an_entry(
            log in 0u32..4, start: u32, steps in proptest::collection::vec((any::<u32>(), 0u32..40, any::<bool>()), 1..100),
        ) {
            let size = 1 << log;
            let (mut ours, mut theirs) = (producer(size, start), consumer(size, start));
            // Free-running counters that never wrap.
            let (mut written, mut read) = (1u64 << 32 | u64::from(start), 1u64 << 32 | u64::from(start));
            for (word, near, far) in steps {
                // Mostly a counter near to the right one.
                let word = |at: u64| if far { word } else { (at as u32).wrapping_add(near).wrapping_sub(20) };
                ours.ring.consumer.store(word(written), Relaxed);
                let released = (written - u64::from(size)..=written).find(|at| *at as u32 == word(written));
                let free = ours.try_reserve(u32::MAX);
                prop_assert_eq!(free, released.map(|at| size - (written - at) as u32).ok_or(RingCorrupt));
                for _ in 0..free.unwrap_or(0) / 2 {
                    ours.write(0);
                    written += 1;
                }
                theirs.ring.producer.store(word(read), Relaxed);
                let submitted = (read..=read + u64::from(size)).find(|at| *at as u32 == word(read));
                let ready = theirs.try_peek(u32::MAX);
                prop_assert_eq!(ready, submitted.map(|at| (at - read) as u32).ok_or(RingCorrupt));
                for _ in 0..ready.unwrap_or(0) / 2 {
                    theirs.read();
                    read += 1;
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
