//! What applications find in their rings at the end of their session.

use super::*;
use std::sync::atomic::Ordering;

/// More sessions of a user than may leave their rings behind while the port runs.
const MANY: usize = 40;

#[test]
fn when_the_port_ends_every_application_gets_its_last_frames_back_and_then_sees_the_end() {
    let mut rig = Rig::new("");
    let umems: Vec<_> = (0..MANY).map(|_| Umem::new(8, 2048).unwrap()).collect();
    let mut apps: Vec<_> = umems.iter().map(|umem| rig.connect(umem, "")).collect();
    let mut back = Vec::new();
    // The rings are not those of a new session.
    for round in 1..=2 {
        for (umem, app) in umems.iter().zip(&mut apps) {
            app.tx(&mut frames(umem, 1, 60)).unwrap();
        }
        until(|| {
            drop(rig.step());
            rig.pages.freed() == (round * MANY) as u64
        });
        if round == 1 {
            apps.iter_mut().for_each(|app| assert_eq!(app.completions(&mut back).unwrap(), 1));
        }
    }
    rig.end();
    for mut app in apps {
        assert_eq!(app.completions(&mut back).unwrap(), 1);
        assert!(matches!(app.wait(None), Err(Error::Closed)));
        assert_eq!((app.completions(&mut back).unwrap(), app.rx(&mut back).unwrap()), (0, 0));
    }
}

#[test]
fn an_application_whose_rings_were_freed_sees_the_end_of_its_session_and_no_breach() {
    let mut rig = Rig::new("");
    let umem = Umem::new(8, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    rig.until_sessions(1);
    app.fill(&mut frames(&umem, 1, 60)).unwrap();
    rig.send(&[&udp(1, 60)]);
    app.tx(&mut frames(&umem, 1, 60)).unwrap();
    drop(rig.receive(1));
    drop(rig.step());
    let mut got = Vec::new();
    assert_eq!((app.completions(&mut got).unwrap(), app.rx(&mut got).unwrap()), (1, 1));
    seqpacket::shutdown(app.as_fd());
    rig.until_free();
    rig.free_rings();
    assert!(matches!(app.completions(&mut got), Err(Error::Closed)));
    assert!(matches!(app.rx(&mut got), Err(Error::Closed)));
    assert!(matches!(app.wait(None), Err(Error::Closed)));
    rig.end();
}

#[test]
fn a_counter_that_is_wrong_while_the_session_is_open_is_a_breach() {
    let mut rig = Rig::new("");
    let umem = Umem::new(8, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    rig.until_sessions(1);
    rig.tx.queue.apps()[0].destination.session.rx_ring.producer().store(1000, Ordering::Relaxed);
    assert!(matches!(app.rx(&mut Vec::new()), Err(Error::Broken("the RX ring's counter"))));
    drop(app);
    rig.end();
}

/// Waits until the server thread has ended a session; the queues do nothing meanwhile.
fn until_ended(rig: &Rig) {
    until(|| rig.event("sessions-ended") == 1);
}

/// Takes everything that comes until the sessions are freed.
fn rest(rig: &mut Rig) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    until(|| {
        all.extend(rig.step().iter().map(|packet| packet.to_vec()));
        rig.tx.reclaim();
        rig.usage("sessions").now == 0
    });
    all
}

#[test]
fn what_an_application_submitted_before_it_left_is_sent_as_pages_and_as_copies() {
    for options in ["", "tx=copy"] {
        let mut rig = Rig::new(options);
        let umem = Umem::new(256, 2048).unwrap();
        let mut app = rig.ask(&umem, "default", Sizes::all(256)).unwrap();
        // More than a burst takes.
        let mut sent = frames(&umem, 200, 99);
        app.tx(&mut sent).unwrap();
        assert!(sent.is_empty());
        drop(app);
        until_ended(&rig);
        let all: Vec<_> = (0..200).map(|i| vec![i; 99]).collect();
        assert_eq!((rest(&mut rig), rig.event("descriptors-unsent")), (all, 0), "{options}");
        rig.end();
    }
}

#[test]
fn frames_of_an_application_that_left_before_the_queue_knew_it_are_sent_beside_those_of_others() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut stays = rig.connect(&umem, "");
    let mut leaves = rig.connect(&umem, "");
    leaves.tx(&mut frames(&umem, 3, 60)).unwrap();
    stays.tx(&mut frames(&umem, 2, 70)).unwrap();
    drop(leaves);
    until_ended(&rig);
    let lens = |batch: Batch| batch.iter().map(Packet::len).collect::<Vec<_>>();
    let mut first = lens(rig.receive(5));
    first.sort_unstable();
    assert_eq!(first, [60, 60, 60, 70, 70]);
    until(|| {
        drop(rig.step());
        rig.tx.reclaim();
        rig.usage("sessions").now == 1
    });
    stays.tx(&mut frames(&umem, 2, 71)).unwrap();
    assert_eq!(lens(rig.receive(2)), [71, 71]);
    drop(stays);
    rig.end();
}

#[test]
fn what_has_no_room_for_its_completion_when_the_application_left_is_counted() {
    let mut rig = Rig::new("tx=copy");
    let rings = Sizes { completion: 4, ..Sizes::all(16) };
    let mut program = Program::connect(&rig, &Hello { rings, ..HELLO });
    program.send(&[(0, 60, 0), (2048, 60, 0), (4096, 60, 0), (6144, 60, 0), (8192, 60, 0), (10240, 60, 0)]);
    drop(program);
    until_ended(&rig);
    assert_eq!((rest(&mut rig).len(), rig.event("descriptors-unsent")), (4, 2));
    rig.end();
}

#[test]
fn a_process_that_keeps_the_ring_of_an_ended_session_sends_what_was_submitted_and_no_more() {
    let mut rig = Rig::new("");
    let mut program = Program::connect(&rig, &HELLO);
    program.send(&[(0, 60, 0), (2048, 61, 0)]);
    seqpacket::shutdown(program.connection.as_fd());
    until_ended(&rig);
    let mut sent = Vec::new();
    for turn in 0..100 {
        let batch = rig.step();
        sent.extend(batch.iter().map(Packet::len));
        drop(batch);
        rig.tx.reclaim();
        let _ = program.completion.peek(16);
        program.completion.release();
        program.send(&[(4096 + turn % 2 * 2048, 70, 0)]);
    }
    assert_eq!(sent, [60, 61]);
    rig.until_free();
    rig.end();
}

#[test]
fn nothing_that_lies_behind_a_breach_is_sent() {
    let mut rig = Rig::new("");
    // The breach ends the session, or is found after its end.
    for leaves in [false, true] {
        let mut program = Program::connect(&rig, &HELLO);
        program.send(&[(0, 60, 0), (0, 61, 0), (2048, 62, 0)]);
        if leaves {
            seqpacket::shutdown(program.connection.as_fd());
            until(|| rig.event("sessions-ended") == 2);
        }
        let lens: Vec<_> = rest(&mut rig).iter().map(Vec::len).collect();
        assert_eq!((lens, rig.event("bad-chunk")), (vec![60], 1 + u64::from(leaves)));
    }
    rig.end();
}
