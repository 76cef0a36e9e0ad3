//! Descriptors that applications send, on kernels that can refuse them (`SO_PASSRIGHTS`, Linux
//! 6.16) and as on those that cannot. Their last close blocks for an hour: what waits for one does
//! not end.

use super::*;
use crate::closing::CAN_REFUSE;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use towpath_testing::lingering;

/// Runs a test on both kinds of kernels, each within a minute.
fn on_each_kernel(test: fn(bool)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for can_refuse in [true, false] {
        CAN_REFUSE.store(can_refuse, Ordering::Relaxed);
        let (done, is_done) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            test(can_refuse);
            let _ = done.send(());
        });
        let ended = is_done.recv_timeout(Duration::from_secs(60));
        CAN_REFUSE.store(true, Ordering::Relaxed);
        match ended {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("it waits; can_refuse: {can_refuse}"),
            _ => thread.join().unwrap(),
        }
    }
}

fn one_descriptor(rules: &str) -> Hello {
    Hello { one_descriptor: true, rules: rules.to_owned(), ..HELLO }
}

/// The other end reads to the end: the connection was closed. The queues are stepped meanwhile.
fn is_closed(mut far: TcpStream, mut step: impl FnMut()) {
    far.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 1 << 16];
    until(|| {
        step();
        far.read(&mut bytes).is_ok_and(|n| n == 0)
    });
}

fn step(rig: &mut Rig) {
    drop(rig.step());
    rig.tx.reclaim();
}

/// Closes the test's own descriptor of a lingering connection: if it is the last one, that waits
/// for the other end.
fn close_slowly(near: TcpStream) {
    std::thread::spawn(move || drop(near));
}

/// Sends a kick with a lingering connection. Returns whether it was sent, and the connection's
/// other end.
fn bad_kick(program: &Program) -> (bool, TcpStream) {
    let (near, far) = lingering();
    let sent = seqpacket::send(program.kick.as_fd(), &[], &[near.as_fd()]).is_ok();
    close_slowly(near);
    (sent, far)
}

#[test]
fn a_kick_with_a_descriptor_is_refused_or_ends_its_session_and_delays_no_other() {
    on_each_kernel(|can_refuse| {
        let mut rig = Rig::new("");
        let umem = Umem::new(64, 2048).unwrap();
        let mut honest = rig.connect(&umem, "udp dport 1");
        let program = Program::connect(&rig, &one_descriptor("default"));
        rig.until_sessions(2);
        drop(rig.step());
        let (sent, far) = bad_kick(&program);
        // A kernel from before 6.16 refuses nothing.
        let refused = can_refuse && seqpacket::refuse_descriptors(program.connection.as_fd()).unwrap();
        assert_eq!(sent, !refused);
        if !refused {
            until(|| {
                let _ = rig.rx.wake();
                drop(rig.step());
                rig.event("sessions-ended") == 1
            });
            assert!(rig.control.session_log()[1].ends_with("kick-with-files"));
            rig.until_sessions(1);
        }
        assert_eq!(rig.event("kick-with-files"), u64::from(!refused));
        is_closed(far, || step(&mut rig));
        honest.tx(&mut frames(&umem, 8, 60)).unwrap();
        assert_eq!(rig.receive(8).len(), 8);
        rig.completes(&mut honest, 8);
        drop((honest, program));
        rig.end();
    });
}

#[test]
fn the_last_page_of_a_session_and_the_end_of_the_port_wait_for_no_descriptor() {
    on_each_kernel(|_| {
        let mut rig = Rig::new("");
        let mut program = Program::connect(&rig, &one_descriptor("default"));
        program.send(&[(0, 60, 0)]);
        let page = rig.receive(1);
        let (_, far) = bad_kick(&program);
        drop(program);
        rig.until_event("sessions-ended", 1);
        until(|| {
            step(&mut rig);
            rig.tx.queue.apps().is_empty()
        });
        drop(page);
        is_closed(far, || step(&mut rig));
        // With the session, and without the thread that frees it.
        let mut program = Program::connect(&rig, &one_descriptor("default"));
        program.send(&[(0, 60, 0)]);
        let page = rig.receive(1);
        let (_, far) = bad_kick(&program);
        let Rig { rx, tx, .. } = rig;
        drop((rx, tx));
        drop(page);
        is_closed(far, || ());
    });
}

#[test]
fn descriptors_behind_the_hello_are_closed_with_the_connection_and_nothing_waits_for_them() {
    on_each_kernel(|_| {
        let mut rig = Rig::new("");
        for count in 1..=3 {
            let umem = Region::new(HELLO.umem as usize, Backing::Memfd).unwrap();
            let connection = seqpacket::connect(&rig.path).unwrap();
            let (near, far) = lingering();
            seqpacket::send(connection.as_fd(), &HELLO.encode(), &[umem.fd().unwrap()]).unwrap();
            // Refused if the session is open by now.
            let _ = seqpacket::send(connection.as_fd(), b"and", &[near.as_fd()]);
            let _ = seqpacket::send(connection.as_fd(), b"more", &[]);
            close_slowly(near);
            rig.until_event("sessions-ended", count);
            is_closed(far, || step(&mut rig));
        }
        assert!(rig.control.session_log().iter().all(|line| line.ends_with("a second message")));
        rig.end();
    });
}

#[test]
fn a_hello_with_another_descriptor_than_memory_is_refused_with_the_rule_and_how_to_keep_it() {
    on_each_kernel(|_| {
        let rig = Rig::new("");
        let path = std::fs::File::options().read(true).custom_flags(libc::O_PATH).open("/").unwrap();
        let ((near, far), umem) = (lingering(), Region::new(4096, Backing::Memfd).unwrap());
        let refused = |fds: &[std::os::fd::BorrowedFd<'_>]| match send_hello(&rig, &HELLO.encode(), fds).1 {
            Some(Answer::Refusal(refusal)) => (refusal.code, refusal.why),
            other => panic!("{other:?}"),
        };
        for fd in [path.as_fd(), near.as_fd()] {
            let (code, why) = refused(&[fd]);
            assert!(code == Code::Memory && why.contains("memfd_create") && why.contains("F_SEAL_SHRINK"), "{why}");
        }
        let (code, why) = refused(&[umem.fd().unwrap(), near.as_fd()]);
        assert!(code == Code::Protocol && why.starts_with("one descriptor"), "{why}");
        // A message that has no other fault, then none that can be read.
        let (connection, answer, _) = send_hello(&rig, b"what?", &[near.as_fd()]);
        assert!(matches!(answer, Some(Answer::Refusal(_))), "{answer:?}");
        drop(connection);
        close_slowly(near);
        is_closed(far, || ());
        assert_eq!(rig.event("sessions-refused"), 4);
        rig.end();
    });
}

#[test]
fn a_line_that_an_application_shuts_down_ends_its_session() {
    on_each_kernel(|_| {
        let mut rig = Rig::new("");
        let shut = |fd: &OwnedFd, how| {
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::shutdown(fd.as_raw_fd(), how) }, 0);
        };
        let mut ended = 0;
        for (how, full) in
            [(libc::SHUT_WR, false), (libc::SHUT_RDWR, false), (libc::SHUT_WR, true), (libc::SHUT_RD, false)]
        {
            let mut program = Program::connect(&rig, &one_descriptor("default"));
            rig.until_sessions(1);
            drop(rig.step());
            if full {
                // Its end is not writable, and its kicks stay.
                program.send(&(0..16).map(|chunk| (chunk * 2048, 60, 0)).collect::<Vec<_>>());
                let _ = rig.rx.wake();
            }
            if how == libc::SHUT_RD {
                // A record for it, which is read back when it has taken the packet.
                program.post(&[0]);
                rig.send(&[&[1; 60]]);
                assert_eq!(program.rx.peek(1), 1);
                program.rx.read();
                program.rx.release();
            }
            shut(&program.kick, how);
            let _ = rig.rx.wake();
            ended += 1;
            assert_eq!(rig.event("sessions-ended"), ended, "at its next rest");
            rig.until_sessions(0);
            drop(rig.step());
        }
        // The connection, in the direction that tells the application.
        let program = Program::connect(&rig, &HELLO);
        rig.until_sessions(1);
        shut(&program.connection, libc::SHUT_WR);
        rig.until_event("sessions-ended", ended + 1);
        let mut program = Program::connect(&rig, &Hello { rules: "default".into(), ..HELLO });
        rig.until_sessions(1);
        shut(&program.connection, libc::SHUT_RD);
        program.post(&[0]);
        until(|| {
            rig.send(&[&[1; 60]]);
            rig.event("sessions-ended") == ended + 2
        });
        let ends: Vec<_> = rig.control.session_log();
        assert_eq!(ends.iter().filter(|line| line.ends_with("shut")).count() as u64, ended + 1, "{ends:?}");
        rig.end();
    });
}
