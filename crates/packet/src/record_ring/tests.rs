#[cfg(not(loom))]
mod threads {
    use super::super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        (0..len).map(|i| (seed as u8).wrapping_add(i as u8)).collect()
    }

    fn stage(ring: &mut Producer, seed: u64, len: usize) -> bool {
        let Some(out) = ring.stage([seed, !seed, len as u64], len) else { return false };
        out.copy_from_slice(&bytes(seed, len));
        true
    }

    fn take(ring: &mut Consumer) -> Option<(u64, Vec<u8>)> {
        let mut got = None;
        ring.take(|[seed, inverse, len], bytes| {
            assert_eq!((inverse, len), (!seed, bytes.len() as u64));
            got = Some((seed, bytes.to_vec()));
            true
        });
        got
    }

    #[test]
    fn nothing_is_seen_before_the_submit_and_what_is_behind_it_is_forgotten() {
        let (mut p, mut c) = record_ring(4096);
        assert!(stage(&mut p, 1, 10));
        let first = p.position();
        assert!(stage(&mut p, 2, 20));
        assert_eq!(take(&mut c), None);
        p.submit_to(first);
        assert!(stage(&mut p, 3, 30));
        p.submit();
        let seen: Vec<_> = std::iter::from_fn(|| take(&mut c)).map(|(seed, bytes)| (seed, bytes.len())).collect();
        assert_eq!(seen, [(1, 10), (3, 30)]);
    }

    #[test]
    fn a_record_that_is_not_taken_is_the_next_one_again() {
        let (mut p, mut c) = record_ring(4096);
        stage(&mut p, 7, 5);
        p.submit();
        assert!(!c.take(|_, _| false));
        assert_eq!(c.peek(), Some([7, !7, 5]));
        assert_eq!(take(&mut c), Some((7, bytes(7, 5))));
        assert_eq!(c.peek(), None);
    }

    #[test]
    fn a_full_ring_refuses_until_its_memory_is_released_and_seen() {
        let (mut p, mut c) = record_ring(4096);
        let records = (0..).take_while(|&seed| stage(&mut p, seed, 96)).count();
        assert_eq!(records, 4096 / 128);
        p.submit();
        assert!(take(&mut c).is_some());
        p.refresh();
        assert!(!stage(&mut p, 1, 96), "not released yet");
        c.release();
        assert!(!stage(&mut p, 1, 96), "not seen yet");
        p.refresh();
        assert!(stage(&mut p, 1, 96));
        assert!(!stage(&mut p, 1, usize::MAX / 2), "no length overflows");
    }

    #[test]
    fn the_end_is_seen_after_the_last_record() {
        let (mut p, mut c) = record_ring(4096);
        stage(&mut p, 1, 0);
        p.submit();
        stage(&mut p, 2, 0);
        drop(p);
        assert!(!c.is_closed());
        assert_eq!(take(&mut c), Some((1, vec![])));
        assert!(c.is_closed());
    }

    #[derive(Debug, Clone)]
    enum Op {
        Stage(usize),
        Submit,
        SubmitFirst(usize),
        Forget,
        Take(usize),
        Release,
        Refresh,
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue_of_records(ops in proptest::collection::vec(prop_oneof![
            6 => (0usize..1200).prop_map(Op::Stage),
            2 => Just(Op::Submit),
            1 => (0usize..4).prop_map(Op::SubmitFirst),
            1 => Just(Op::Forget),
            3 => (0usize..6).prop_map(Op::Take),
            2 => Just(Op::Release),
            3 => Just(Op::Refresh),
        ], 0..300)) {
            let (mut p, mut c) = record_ring(4096);
            let (mut queue, mut staged, mut next) = (VecDeque::new(), Vec::new(), 0);
            for op in ops {
                match op {
                    Op::Stage(len) => {
                        if stage(&mut p, next, len) {
                            staged.push((next, bytes(next, len), p.position()));
                        } else {
                            // Room that is refused is at most what a record in one piece wastes.
                            prop_assert!(p.used() + 2 * size(len) > 4096);
                        }
                        next += 1;
                    }
                    Op::Submit => {
                        p.submit();
                        queue.extend(staged.drain(..).map(|(seed, bytes, _)| (seed, bytes)));
                    }
                    Op::SubmitFirst(n) if n > 0 && n <= staged.len() => {
                        p.submit_to(staged[n - 1].2);
                        queue.extend(staged.drain(..n).map(|(seed, bytes, _)| (seed, bytes)));
                        staged.clear();
                    }
                    Op::SubmitFirst(_) => {}
                    Op::Forget => {
                        p.forget();
                        staged.clear();
                    }
                    Op::Take(n) => for _ in 0..n {
                        prop_assert_eq!(take(&mut c), queue.pop_front());
                    },
                    Op::Release => c.release(),
                    Op::Refresh => p.refresh(),
                }
            }
        }
    }

    #[test]
    fn two_threads_pass_every_record_in_order() {
        const N: u64 = 100_000;
        let (mut p, mut c) = record_ring(1 << 14);
        let sender = std::thread::spawn(move || {
            let mut next = 0;
            while next < N {
                p.refresh();
                while next < N && stage(&mut p, next, (next * 37 % 300) as usize) {
                    next += 1;
                }
                p.submit();
                std::thread::yield_now();
            }
        });
        let mut expected = 0;
        while !c.is_closed() {
            while let Some((seed, got)) = take(&mut c) {
                assert_eq!((seed, got), (expected, bytes(expected, (expected * 37 % 300) as usize)));
                expected += 1;
            }
            c.release();
            std::thread::yield_now();
        }
        assert_eq!(expected, N);
        sender.join().unwrap();
    }
}

#[cfg(loom)]
mod model {
    use super::super::*;

    #[test]
    fn every_interleaving_passes_records_in_order_and_reuses_no_memory_that_is_read() {
        crate::sync::model(|| {
            let (mut p, mut c) = record_ring(4 * UNIT);
            let thread = loom::thread::spawn(move || {
                let mut sent = Vec::new();
                // Two records fill the ring, so the third one needs the memory of the first.
                for seed in 0..3u8 {
                    p.refresh();
                    if let Some(out) = p.stage([seed.into(), 0, 0], 8) {
                        out.fill(seed);
                        sent.push(seed);
                    }
                    p.submit();
                }
                sent
            });
            let mut got = Vec::new();
            let mut read = |c: &mut Consumer| {
                c.take(|[seed, ..], bytes| {
                    assert!(bytes.iter().all(|byte| u64::from(*byte) == seed));
                    got.push(seed as u8);
                    true
                });
                c.release();
            };
            read(&mut c);
            read(&mut c);
            let sent = thread.join().unwrap();
            for _ in 0..3 {
                read(&mut c);
            }
            assert_eq!(got, sent);
            assert!(c.is_closed());
        });
    }
}
