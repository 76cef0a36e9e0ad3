//! Programs that wait and kick by one descriptor, as with an AF_XDP socket.

use super::*;
use std::os::fd::AsRawFd;
use towpath_packet::port::Wake;
use towpath_packet::xsk_ring::RingMemory;
use towpath_sys::poll::{is_readable, is_writable};
use towpath_sys::seqpacket;

/// A program that both queues have.
fn program(rig: &mut Rig) -> Program {
    let program = Program::connect(
        rig,
        &Hello { one_descriptor: true, skip_invalid: true, rules: "default".to_owned(), ..HELLO },
    );
    until(|| {
        rig.tx.reclaim();
        rig.rx.rx(&mut Batch::new());
        rig.tx.queue.apps().len() == 1
    });
    program
}

impl Program {
    fn is_writable(&self) -> bool {
        is_writable(self.kick.as_fd())
    }

    fn is_readable(&self) -> bool {
        is_readable(self.kick.as_fd())
    }

    /// `sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0)`.
    fn send_nothing(&self) {
        // SAFETY: no bytes are sent.
        let sent = unsafe { libc::send(self.kick.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// Takes one packet, and posts its chunk again.
    fn take(&mut self) {
        assert!(self.rx.peek(1) >= 1);
        let addr = self.rx.read().addr;
        self.rx.release();
        self.post(&[addr]);
    }
}

/// Puts the queue to sleep; returns the descriptor that wakes it.
pub(super) fn sleep(rig: &Rig) -> std::os::fd::BorrowedFd<'_> {
    let Wake::Fd(fd) = rig.rx.wake() else { panic!("nothing to wait for") };
    // SAFETY: the queue owns the descriptor as long as it lives.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

#[test]
fn a_programs_descriptor_is_readable_as_long_as_it_has_packets_to_take() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    program.post(&[0, 2048, 4096]);
    assert!(!program.is_readable());
    for _ in 0..3 {
        rig.send(&[&[1; 60], &[2; 60]]);
        assert!(program.is_readable());
        program.take();
        rig.rx.wake();
        assert!(program.is_readable(), "one is left");
        program.take();
        rig.rx.wake();
        assert!(!program.is_readable());
    }
    rig.end();
}

#[test]
fn a_programs_descriptor_is_writable_as_long_as_half_of_its_tx_ring_is_free() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    let all: Vec<_> = (0..16).map(|chunk| (chunk * 2048, 60, 0)).collect();
    for _ in 0..3 {
        assert!(program.is_writable());
        // So many that the queue takes no more.
        let mut on_their_way = Batch::new();
        let stuck = |rig: &mut Rig, batch: &mut Batch| (0..3).all(|_| rig.rx.rx(batch) == 0);
        for n in [8, 9] {
            until(|| {
                program.send(&all[..(n - program.tx.waiting().min(n)) as usize]);
                stuck(&mut rig, &mut on_their_way) && program.tx.waiting() == n
            });
            assert_eq!((program.tx.waiting(), program.is_writable()), (n, n == 8), "half of the ring is free");
        }
        program.send_nothing();
        rig.rx.wake();
        assert!(!program.is_writable(), "nor for a queue that comes to rest");
        // The kick of the meantime is dropped when there is room.
        let mut left = on_their_way.len() + 9;
        drop(on_their_way);
        until(|| {
            drop(rig.step());
            let back = program.completion.peek(16);
            left -= (0..back).map(|_| program.completion.read()).count();
            program.completion.release();
            left == 0
        });
    }
    rig.end();
}

#[test]
fn a_queue_that_sleeps_with_a_full_tx_ring_asks_to_be_polled() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    let all: Vec<_> = (0..16).map(|chunk| (chunk * 2048, 60, 0)).collect();
    program.send(&all);
    rig.rx.wake();
    assert!(!program.is_writable());
    drop(rig.receive(16));
    assert!(program.is_writable());
    rig.end();
}

#[test]
fn reading_from_the_descriptor_loses_no_wake_up() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    program.post(&[0]);
    rig.send(&[&[1; 60]]);
    seqpacket::drain(program.kick.as_fd(), true);
    assert!(!program.is_readable());
    // Also with a queue that never sleeps.
    until(|| {
        rig.rx.rx(&mut Batch::new());
        program.is_readable()
    });
    seqpacket::drain(program.kick.as_fd(), true);
    rig.rx.wake();
    assert!(program.is_readable());
    program.take();
    rig.end();
}

#[test]
fn sending_nothing_wakes_the_queue_however_often_it_was_done_before() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    for _ in 0..1000 {
        let waits_for = sleep(&rig);
        assert!(program.tx.ring().needs_wakeup() && !is_readable(waits_for));
        program.send_nothing();
        assert!(is_readable(waits_for));
    }
    program.send(&[(0, 60, 0)]);
    drop(rig.receive(1));
    assert!(!program.tx.ring().needs_wakeup(), "it is awake");
    rig.end();
}

#[test]
fn the_descriptor_shows_that_the_session_is_over() {
    let mut rig = Rig::new("");
    let program = program(&mut rig);
    program.tx.ring().producer().store(17, std::sync::atomic::Ordering::Release);
    rig.until_event("bad-counter", 1);
    until(|| program.is_readable());
    let mut byte = [0; 8];
    assert_eq!(seqpacket::receive(program.kick.as_fd(), &mut byte).unwrap().len, 0);
    rig.end();
}

#[test]
fn a_queue_that_sleeps_is_woken_by_pages_that_are_freed() {
    let mut rig = Rig::new("");
    let umem = Umem::new(8, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.tx(&mut frames(&umem, 1, 100)).unwrap();
    let batch = rig.receive(1);
    {
        let woken = sleep(&rig);
        assert!(!is_readable(woken));
        drop(batch);
        assert!(is_readable(woken), "the completion waits for it");
    }
    drop(app);
    rig.end();
}

#[test]
fn a_burst_is_shared_by_the_applications_that_have_frames() {
    let mut rig = Rig::new("");
    let umems = [Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap()];
    let mut apps = [rig.connect(&umems[0], "default"), rig.connect(&umems[1], "udp dport 1")];
    rig.until_sessions(2);
    assert!(rig.step().is_empty());
    for (app, (umem, len)) in apps.iter_mut().zip(umems.iter().zip([100, 200])) {
        assert_eq!(app.tx(&mut frames(umem, 64, len)).unwrap(), 64);
    }
    let batch = rig.step();
    assert_eq!((batch.len(), batch.iter().filter(|packet| packet.len() == 100).count()), (64, 32));
    drop((batch, apps));
    rig.end();
}
