//! Start, stop and change of a ring, sleep and wake-up.

use super::*;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use towpath_packet::port::Wake;
use towpath_sys::poll::wait_readable;

/// Whether the descriptor of the slot is readable.
fn is_awake(guest: &Guest) -> bool {
    waits(guest.slot.sleeps_on(), Duration::ZERO)
}

fn waits(fd: RawFd, time: Duration) -> bool {
    // SAFETY: the guest or the queue owns the descriptor and is there.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    wait_readable(fd, Some(time)).unwrap()
}

#[test]
fn a_ring_that_is_stopped_gives_all_chains_back_and_another_one_goes_on_there() {
    for (format, features) in kinds() {
        let mut guest = Guest::new(Way::FromGuest, format, features);
        let mut rx = guest.rx();
        for round in 0..5 {
            let frames: Vec<_> = (0..4).map(|_| guest.random_bytes(1000)).collect();
            frames.iter().for_each(|frame| _ = guest.send(&with_header(frame), 1));
            guest.publish();
            let mut batch = Batch::new();
            assert_eq!(rx.rx(&mut batch), 4, "{format:?} {features:#x} {round}");
            let packets: Vec<_> = batch.drain_front(64).collect();
            // In the first round packets are freed in time, later they are not.
            let late = if round > 0 { packets } else { packets.into_iter().take(0).collect() };
            let stopped = guest.slot.stop(Duration::ZERO).unwrap();
            assert_eq!(usize::from(stopped.abandoned), late.len());
            assert_eq!(guest.used().len(), 4, "{format:?} {features:#x} {round}");
            assert!(guest.slot.stop(Duration::ZERO).is_none());
            assert_eq!(rx.rx(&mut batch), 0);
            guest.start(stopped.base);
            // Pages of the ring before do not complete chains of this one.
            let frame = guest.random_bytes(1000);
            guest.send(&with_header(&frame), 1);
            guest.publish();
            assert_eq!(rx.rx(&mut batch), 1);
            drop(late);
            rx.rx(&mut batch);
            assert_eq!((guest.used().len(), batch.len()), (0, 1));
            drop(batch);
            rx.rx(&mut Batch::new());
            assert_eq!(guest.used().len(), 1);
            guest.reset();
        }
        assert_eq!(guest.events.abandoned.load(Relaxed), 16);
        drop(rx);
        guest.balances();
    }
}

#[test]
fn stop_waits_for_pages_that_another_thread_frees() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let mut rx = guest.rx();
    let frame = guest.random_bytes(1000);
    guest.send(&with_header(&frame), 1);
    guest.publish();
    let mut batch = Batch::new();
    rx.rx(&mut batch);
    let slot = guest.slot.clone();
    let stopping = std::thread::spawn(move || slot.stop(Duration::from_secs(100)));
    drop(batch);
    assert_eq!(stopping.join().unwrap().unwrap().abandoned, 0);
    assert_eq!(guest.used().len(), 1);
}

#[test]
fn a_ring_that_is_discarded_returns_nothing_and_its_pages_are_still_counted() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let mut rx = guest.rx();
    let frame = guest.random_bytes(1000);
    (0..2).for_each(|_| _ = guest.send(&with_header(&frame), 1));
    guest.publish();
    let mut batch = Batch::new();
    assert_eq!(rx.rx(&mut batch), 2);
    drop(batch.pop());
    assert!(guest.slot.discard() && !guest.slot.discard());
    assert!(guest.used().is_empty());
    drop((batch, rx));
    guest.balances();
}

#[test]
fn a_worker_that_sleeps_is_woken_by_a_kick_a_freed_page_and_the_control_thread() {
    for (format, features) in kinds() {
        let mut guest = Guest::new(Way::FromGuest, format, features);
        let mut rx = guest.rx();
        let mut batch = Batch::new();
        let frame = guest.random_bytes(1000);
        let sleep = |rx: &mut VhostRx, batch: &mut Batch| {
            let wake = rx.wake();
            assert!(matches!(wake, Wake::Fd(_)));
            rx.rx(batch)
        };
        assert_eq!(sleep(&mut rx, &mut batch), 0);
        assert!(!is_awake(&guest), "nothing happened");
        guest.send(&with_header(&frame), 1);
        guest.publish();
        assert!(is_awake(&guest), "a kick, {format:?} {features:#x}");
        assert_eq!(rx.rx(&mut batch), 1);
        // Awake: no kick costs a system call, but one by position.
        let kicks = guest.kicks;
        guest.send(&with_header(&frame), 1);
        guest.publish();
        assert_eq!(guest.kicks, kicks, "{format:?} {features:#x}");
        assert_eq!(sleep(&mut rx, &mut batch), 1);
        assert_eq!(sleep(&mut rx, &mut batch), 0);
        assert!(!is_awake(&guest));
        drop(batch.drain_front(1).next());
        assert!(is_awake(&guest), "a page, {format:?} {features:#x}");
        assert_eq!(sleep(&mut rx, &mut batch), 0);
        assert_eq!(guest.used().len(), 1);
        assert_eq!(sleep(&mut rx, &mut batch), 0);
        assert!(!is_awake(&guest));
        assert!(guest.slot.change(|_| {}));
        assert!(is_awake(&guest), "the control thread");
        drop(batch);
    }
}

#[test]
fn chains_that_became_available_before_the_request_of_kicks_keep_the_worker_awake() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let rx = guest.rx();
    // A frame that is none: the last look finds no packet.
    guest.send(&[0; 12], 1);
    guest.publish();
    assert!(matches!(rx.wake(), Wake::Fd(_)));
    let mut rx = rx;
    assert_eq!(rx.rx(&mut Batch::new()), 0);
    assert!(is_awake(&guest));
}

#[test]
fn a_kick_is_replaced_while_the_worker_sleeps_and_the_descriptor_stays() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let mut rx = guest.rx();
    let (old, kick) = (another(&guest.kick), EventFd::new().unwrap());
    // A kick from before the replacement counts.
    kick.signal();
    rx.wake();
    assert!(guest.slot.change(|ring| ring.setup.kick = Some(another(&kick))));
    rx.wake();
    assert_eq!(rx.rx(&mut Batch::new()), 0);
    assert!(!is_awake(&guest));
    old.signal();
    assert!(!is_awake(&guest), "the old one is forgotten");
    guest.kick = kick;
    let frame = guest.random_bytes(100);
    guest.send(&with_header(&frame), 1);
    guest.publish();
    assert!(is_awake(&guest));
    assert!(guest.slot.change(|ring| ring.setup.kick = None));
    assert_eq!(rx.wake(), Wake::Poll, "nothing announces chains");
}

#[test]
fn no_kick_is_lost_between_a_guest_and_a_worker_that_sleep_in_turn() {
    const FRAMES: u32 = 1000;
    for (format, features) in kinds() {
        let mut guest = Guest::new(Way::FromGuest, format, features);
        let mut rx = guest.rx();
        let sleeps_on = guest.slot.sleeps_on();
        let worker = std::thread::spawn(move || {
            let (mut batch, mut next) = (Batch::new(), 0u32);
            while next < FRAMES {
                if rx.rx(&mut batch) == 0 {
                    rx.wake();
                    if rx.rx(&mut batch) == 0 {
                        // Without a time limit: a kick that is lost ends the test.
                        assert!(waits(sleeps_on, Duration::from_secs(60)), "a kick was lost");
                    }
                }
                for packet in batch.drain_front(64) {
                    let bytes = packet.to_vec();
                    assert_eq!(bytes[..4], next.to_le_bytes());
                    next += 1;
                }
            }
            rx.rx(&mut batch);
        });
        let (mut sent, mut used) = (0u32, 0);
        while used < FRAMES {
            let mut n = 1 + guest.random.below(4) as u32;
            while n > 0 && sent < FRAMES && guest.driver.num_free() > 0 {
                let mut frame = vec![0; if sent.is_multiple_of(3) { 600 } else { 60 }];
                frame[..4].copy_from_slice(&sent.to_le_bytes());
                if guest.driver.in_flight() == 0 {
                    guest.reset();
                }
                guest.send(&with_header(&frame), 1);
                (sent, n) = (sent + 1, n - 1);
            }
            guest.publish();
            used += guest.used().len() as u32;
            if guest.driver.num_free() == 0 && !guest.driver.enable_calls() {
                assert!(waits(guest.call.fd(), Duration::from_secs(60)), "a call was lost");
                guest.call.take();
            }
            if sent == FRAMES {
                std::thread::yield_now();
            }
        }
        worker.join().unwrap();
        guest.balances();
    }
}

#[test]
fn a_ring_is_stopped_and_started_under_a_worker_that_takes_it_all_the_time() {
    let mut guest = Guest::new(Way::FromGuest, Format::Packed, feature::VERSION_1 | feature::RING_PACKED);
    let mut rx = guest.rx();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = done.clone();
    let worker = std::thread::spawn(move || {
        let (mut batch, mut got) = (Batch::new(), 0);
        while !ended.load(Relaxed) {
            got += rx.rx(&mut batch);
            batch.drain_front(64).for_each(drop);
        }
        got + rx.rx(&mut batch)
    });
    let (mut sent, mut used) = (0, 0);
    for _ in 0..100 {
        let frame = vec![7; 500];
        guest.reset();
        while guest.driver.num_free() > 0 {
            guest.send(&with_header(&frame), 1);
            sent += 1;
        }
        guest.publish();
        while guest.driver.in_flight() > 32 {
            used += guest.used().len();
            std::thread::yield_now();
        }
        let stopped = guest.slot.stop(Duration::from_millis(5)).unwrap();
        used += guest.used().len();
        guest.start(stopped.base);
        while guest.driver.in_flight() > 0 {
            used += guest.used().len();
            std::thread::yield_now();
        }
    }
    done.store(true, Relaxed);
    assert_eq!((worker.join().unwrap(), used), (sent, sent));
    guest.balances();
}
