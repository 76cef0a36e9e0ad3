//! Programs that wait and kick by one descriptor, as with an AF_XDP socket.

use super::*;
use crate::sys::app;
use std::os::fd::AsRawFd;
use towpath_packet::port::Wake;

/// A program that both queues know.
fn program(rig: &mut Rig) -> Program {
    let program = Program::that_says(rig, &Hello { one_descriptor: true, rules: "default".to_owned(), ..HELLO });
    until(|| {
        rig.tx.reclaim();
        rig.rx.rx(&mut Batch::new());
        rig.tx.queue.sessions() == 1
    });
    program
}

impl Program {
    fn is_readable(&self) -> bool {
        app::is_readable(self.kick.as_fd())
    }

    /// `sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0)`.
    fn send_nothing(&self) {
        // SAFETY: no bytes are sent.
        let sent = unsafe { libc::send(self.kick.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
    }

    /// Takes one packet, and posts its chunk again.
    fn take(&mut self) {
        assert!(self.rx.ready(1) >= 1);
        let addr = self.rx.pop().addr;
        self.rx.release();
        self.post(&[addr]);
    }
}

/// The queue comes to rest; what it waits for then.
fn rest(rig: &Rig) -> std::os::fd::BorrowedFd<'_> {
    let Wake::Fd(fd) = rig.rx.wake() else { panic!("nothing to wait for") };
    // SAFETY: the queue has the descriptor for as long as it lives.
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
fn reading_from_the_descriptor_loses_no_wake_up() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    program.post(&[0]);
    rig.send(&[&[1; 60]]);
    app::forget(program.kick.as_fd());
    assert!(!program.is_readable());
    // Also for a queue that never comes to rest.
    until(|| {
        rig.rx.rx(&mut Batch::new());
        program.is_readable()
    });
    app::forget(program.kick.as_fd());
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
        let waits_for = rest(&rig);
        assert!(program.tx.ring().needs_wakeup() && !app::is_readable(waits_for));
        program.send_nothing();
        assert!(app::is_readable(waits_for));
    }
    program.send(&[(0, 60, 0)]);
    drop(rig.receive(1));
    assert!(!program.tx.ring().needs_wakeup(), "it is awake");
    rig.end();
}

#[test]
fn a_program_whose_session_is_over_is_told_by_its_descriptor() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig);
    program.send(&[(0, 0, 0)]);
    rig.until_event("bad-descriptor", 1);
    until(|| program.is_readable());
    let mut byte = [0; 8];
    assert_eq!(connection::receive(program.kick.as_fd(), &mut byte).unwrap().len, 0);
    rig.end();
}
