#[cfg(not(loom))]
mod threads {
    use super::super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicUsize as Count;

    #[test]
    fn a_full_ring_hands_the_item_back() {
        let (mut p, mut c) = ring(2);
        assert!(p.push(1).is_ok() && p.push(2).is_ok());
        assert_eq!(p.push(3), Err(3));
        assert_eq!((c.pop(), c.pop(), c.pop()), (Some(1), Some(2), None));
    }

    #[test]
    fn nothing_is_seen_before_the_submit_and_an_abandoned_reservation_drops_its_items() {
        let (mut p, mut c) = ring(8);
        let item = Arc::new(());
        let mut r = p.reserve(3);
        r.push(item.clone()).unwrap();
        r.push(item.clone()).unwrap();
        drop(r);
        assert!(c.pop().is_none());
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn what_is_written_slot_by_slot_is_seen_at_the_submit_or_belongs_to_the_ring_at_the_end() {
        let (mut p, mut c) = ring(2);
        let item = Arc::new(());
        p.vacant().unwrap().write(item.clone());
        assert!(p.vacant().is_some(), "a slot that is not written stays free");
        p.vacant().unwrap().write(item.clone());
        assert!(p.vacant().is_none() && c.pop().is_none());
        assert_eq!((p.submit(), p.submit()), (2, 0));
        assert!(c.pop().is_some());
        p.vacant().unwrap().write(item.clone());
        assert_eq!((p.push(item.clone()), c.pop()), (Err(item.clone()), Some(item.clone())));
        assert!(c.pop().is_none(), "a push that is refused submits nothing");
        drop((p, c));
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn an_iterator_that_is_forgotten_loses_items_and_yields_none_twice() {
        let (mut p, mut c) = ring(4);
        let items: Vec<_> = (0..4).map(Arc::new).collect();
        items.iter().for_each(|item| p.push(item.clone()).unwrap());
        let mut drain = c.drain(2);
        let first = drain.next().unwrap();
        std::mem::forget(drain);
        let third = c.pop().unwrap();
        assert_eq!((*first, *third, p.free(4)), (0, 2, 3), "the slots are free with the next ones");
        let mut drain = c.drain(1);
        let fourth = drain.next().unwrap();
        std::mem::forget(drain);
        drop((p, c));
        let users: Vec<_> = items.iter().map(Arc::strong_count).collect();
        assert_eq!((users, *fourth), (vec![2, 2, 2, 2], 3), "what the iterators had is not dropped with the ring");
    }

    #[test]
    fn closing_is_seen_after_the_last_item() {
        let (mut p, mut c) = ring(4);
        p.push(1).unwrap();
        drop(p);
        assert!(!c.is_closed());
        assert_eq!(c.pop(), Some(1));
        assert!(c.is_closed());
        let (p, c) = ring::<u8>(4);
        drop(c);
        assert!(p.is_closed());
    }

    struct Counted<'a>(&'a Count);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn items_left_in_the_ring_are_dropped_once() {
        let dropped = Count::new(0);
        let (mut p, mut c) = ring(8);
        for _ in 0..8 {
            assert!(p.push(Counted(&dropped)).is_ok());
        }
        drop(c.drain(3));
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        drop((p, c));
        assert_eq!(dropped.load(Ordering::Relaxed), 8);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Push(usize, bool),
        Write(usize),
        Drain(usize, usize),
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue(ops in proptest::collection::vec(prop_oneof![
            (0usize..12, any::<bool>()).prop_map(|(n, submit)| Op::Push(n, submit)),
            (0usize..12).prop_map(Op::Write),
            (0usize..12, 0usize..12).prop_map(|(n, take)| Op::Drain(n, take)),
        ], 0..200)) {
            let (mut p, mut c) = ring::<u32>(8);
            let (mut model, mut next) = (VecDeque::new(), 0);
            for op in ops {
                match op {
                    Op::Push(n, submit) => {
                        let mut r = p.reserve(n);
                        prop_assert_eq!(r.room(), n.min(8 - model.len()));
                        let mut sent = Vec::new();
                        while r.push(next).is_ok() { sent.push(next); next += 1; }
                        if submit { r.submit(); model.extend(sent); }
                    }
                    Op::Write(n) => {
                        let room = 8 - model.len();
                        for _ in 0..n {
                            if let Some(slot) = p.vacant() { slot.write(next); model.push_back(next); next += 1; }
                        }
                        prop_assert_eq!(p.submit(), n.min(room));
                    }
                    Op::Drain(n, take) => {
                        let mut drain = c.drain(n);
                        let expected = drain.len();
                        prop_assert_eq!(expected, n.min(model.len()));
                        for _ in 0..take.min(expected) { prop_assert_eq!(drain.next(), model.pop_front()); }
                        drop(drain);
                        model.drain(..expected - take.min(expected));
                    }
                }
            }
        }
    }

    #[test]
    fn two_threads_pass_every_number_in_order() {
        let (mut p, mut c) = ring::<u64>(64);
        const N: u64 = 200_000;
        let t = std::thread::spawn(move || {
            let mut next = 0;
            while next < N {
                let mut r = p.reserve(17);
                while next < N && r.push(next).is_ok() {
                    next += 1;
                }
                if r.submit() == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut expect = 0;
        while expect < N {
            let before = expect;
            for got in c.drain(13) {
                assert_eq!(got, expect);
                expect += 1;
            }
            if expect == before {
                std::thread::yield_now();
            }
        }
        t.join().unwrap();
    }
}

#[cfg(loom)]
mod model {
    use super::super::*;

    #[test]
    fn every_interleaving_passes_items_in_order_and_drops_the_rest() {
        crate::sync::model(|| {
            let (mut p, mut c) = ring::<Box<u32>>(2);
            let t = loom::thread::spawn(move || {
                let mut r = p.reserve(2);
                r.push(Box::new(0)).unwrap();
                r.push(Box::new(1)).unwrap();
                r.submit();
                if let Some(slot) = p.vacant() {
                    slot.write(Box::new(2));
                }
                p.submit();
            });
            let mut expect = 0;
            for _ in 0..2 {
                for item in c.drain(1) {
                    assert_eq!(*item, expect);
                    expect += 1;
                }
            }
            t.join().unwrap();
            for item in c.drain(2) {
                assert_eq!(*item, expect);
                expect += 1;
            }
            assert!(expect >= 2);
            assert!(c.is_closed());
        });
    }
}
