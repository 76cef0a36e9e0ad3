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
