//! What wakes a queue with a session that waits: the descriptor for the others as ever, and for
//! that session as little as can be.

use super::poll_fd::sleep;
use super::*;
use std::os::fd::BorrowedFd;
use towpath_sys::poll::{is_readable, wait_readable};

/// Nothing wakes the queue by itself.
#[track_caller]
fn stays_asleep(rig: &Rig) {
    // No timer is set that long after the last packet.
    assert!(!wait_readable(sleep(rig), Some(Duration::from_millis(300))).unwrap());
}

/// Sends from the whole TX ring, and lets the pages come back.
fn fill_completion_ring(rig: &mut Rig, program: &mut Program) {
    program.send(&(0..16).map(|chunk| (chunk * 2048, 60, 0)).collect::<Vec<_>>());
    drop(rig.receive(16));
    until(|| {
        drop(rig.step());
        program.completion.waiting() == 8
    });
}

fn take_completions(program: &mut Program) {
    assert_eq!(program.completion.peek(8), 8);
    (0..8).for_each(|_| _ = program.completion.read());
    program.completion.release();
}

/// The descriptor of a queue that sleeps.
fn sleeping(rig: &Rig) -> BorrowedFd<'_> {
    // SAFETY: the queue owns the descriptor as long as it lives.
    unsafe { BorrowedFd::borrow_raw(rig.rx.queue.sleeps_on()) }
}

const SMALL: Sizes = Sizes { completion: 8, ..Sizes::all(16) };

#[test]
fn a_session_that_waits_for_its_own_completion_ring_costs_nothing_and_a_kick_of_another_wakes_the_queue() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut honest = rig.connect(&umem, "udp dport 1");
    let mut program = Program::connect(&rig, &Hello { rings: SMALL, rules: "default".into(), ..HELLO });
    rig.until_sessions(2);
    fill_completion_ring(&mut rig, &mut program);
    stays_asleep(&rig);
    honest.tx(&mut frames(&umem, 1, 60)).unwrap();
    assert!(is_readable(sleeping(&rig)), "the descriptor wakes it");
    assert_eq!(rig.receive(1).len(), 1);
    rig.completes(&mut honest, 1);
    // The rest comes after a kick.
    stays_asleep(&rig);
    take_completions(&mut program);
    assert!(program.tx.ring().needs_wakeup());
    towpath_sys::EventFd::from(program.kick.try_clone().unwrap()).signal();
    assert!(is_readable(sleeping(&rig)));
    drop(rig.step());
    assert_eq!(program.completion.waiting(), 8);
    drop((honest, program));
    rig.end();
}

#[test]
fn an_application_that_makes_room_in_a_full_completion_ring_wakes_the_queue_and_else_it_does_not() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.ask(&umem, "default", SMALL).unwrap();
    let mut back = Vec::new();
    for (n, wakes) in [(16, true), (4, false)] {
        app.tx(&mut frames(&umem, n, 60)).unwrap();
        drop(rig.receive(n.into()));
        (0..20).for_each(|_| drop(rig.step()));
        stays_asleep(&rig);
        assert_eq!(app.completions(&mut back).unwrap(), n.min(8).into());
        assert_eq!(is_readable(sleeping(&rig)), wakes);
        rig.completes(&mut app, (n - n.min(8)).into());
        back.clear();
    }
    drop(app);
    rig.end();
}

#[test]
fn what_a_burst_has_no_room_for_keeps_the_queue_awake_though_nothing_of_it_is_sent() {
    let mut rig = Rig::new("");
    let hello = Hello { skip_invalid: true, rings: Sizes::all(128), rules: "default".into(), ..HELLO };
    let mut program = Program::connect(&rig, &hello);
    rig.until_sessions(1);
    program.send(&[(HELLO.umem, 60, 0); 100]);
    assert!(rig.step().is_empty() && program.tx.waiting() > 0);
    assert!(is_readable(sleep(&rig)), "no kick follows");
    until(|| rig.step().is_empty() && program.completion.waiting() == 100);
    stays_asleep(&rig);
    drop(program);
    rig.end();
}

#[test]
fn a_program_that_waits_in_poll_and_does_not_kick_gets_its_completions_too() {
    let mut rig = Rig::new("");
    let hello = Hello { rings: SMALL, one_descriptor: true, rules: "default".into(), ..HELLO };
    let mut program = Program::connect(&rig, &hello);
    rig.until_sessions(1);
    fill_completion_ring(&mut rig, &mut program);
    let _ = sleep(&rig);
    take_completions(&mut program);
    until(|| is_readable(sleeping(&rig)));
    drop(rig.step());
    assert_eq!(program.completion.waiting(), 8);
    drop(program);
    rig.end();
}

#[test]
fn a_session_without_a_buffer_is_looked_after_by_a_timer_and_a_kick_of_another_wakes_the_queue() {
    let mut rig = Rig::new("tx=copy");
    let (umem, other) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let mut app = rig.connect(&umem, "default");
    let honest = rig.connect(&other, "udp dport 1");
    rig.until_sessions(2);
    let mut cache = rig.pool.cache(Direction::Tx).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| Packet::copy_from(&mut cache, &[0; 60])).collect();
    app.tx(&mut frames(&umem, 2, 60)).unwrap();
    assert!((0..20).all(|_| rig.step().is_empty()));
    for _ in 0..3 {
        let fd = sleep(&rig);
        assert!(wait_readable(fd, Some(Duration::from_secs(60))).unwrap(), "the timer");
    }
    let _ = sleep(&rig);
    honest.kick();
    assert!(is_readable(sleeping(&rig)));
    drop((taken, cache));
    until(|| wait_readable(sleep(&rig), Some(Duration::from_secs(60))).unwrap() && rig.step().len() == 2);
    drop((app, honest));
    rig.end();
}
