//! Unaligned chunks, memory that sessions share, and queues.

use super::*;

pub(super) fn sharing(with: &Socket) -> towpath_client::Config {
    towpath_client::Config::default().rings(Sizes::all(64)).share(with.welcome().session)
}

#[test]
fn frames_of_unaligned_chunks_go_both_ways_with_their_offsets() {
    let mut rig = Rig::new("mtu=3000");
    let umem = Umem::unaligned(64, 3000).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.fill(&mut frames(&umem, 4, 1)).unwrap();
    let mut sent = frames(&umem, 3, 2500);
    for frame in &mut sent {
        assert!(frame.set_range(499, 2501));
        frame.bytes_mut()[2500] = 0xff;
    }
    app.tx(&mut sent).unwrap();
    let mut batch = rig.receive(3);
    for (i, packet) in batch.iter().enumerate() {
        assert_eq!((packet.linear().len(), packet.frags(), packet.len()), (0, 1, 2501), "no byte is copied");
        let bytes = packet.to_vec();
        assert!(bytes[..2001].iter().all(|&byte| byte == i as u8) && bytes[2500] == 0xff);
    }
    batch.pop();
    batch.pop();
    batch.pop();
    rig.rx.rx(&mut batch);
    let mut got = Vec::new();
    assert_eq!(app.completions(&mut got).unwrap(), 3);
    // A chunk has room for 3000 bytes, of which 32 stay free.
    rig.send(&[&[7; 2968], &[8; 2969]]);
    got.clear();
    assert_eq!(app.rx(&mut got).unwrap(), 3);
    let pieces: Vec<_> = got.iter().map(|frame| (frame.bytes().to_vec(), frame.continues())).collect();
    assert_eq!(pieces, [(vec![7; 2968], false), (vec![8; 2968], true), (vec![8; 1], false)]);
    drop((got, app));
    rig.end();
}

#[test]
fn unaligned_frames_are_charged_by_their_bytes_and_aligned_ones_by_their_chunks() {
    for (umem, most) in [(Umem::new(128, 2048).unwrap(), 36), (Umem::unaligned(128, 2048).unwrap(), 100)] {
        // The minimum budget: 36 chunks.
        let mut rig = Rig::new("budget=4096");
        let mut app = rig.ask_for(&umem, "default", towpath_client::Config::default().rings(Sizes::all(128)));
        let app = app.as_mut().unwrap();
        assert_eq!(app.tx(&mut frames(&umem, 100, 60)).unwrap(), 100);
        let (mut one, mut other) = (Batch::<64>::new(), Batch::<64>::new());
        until(|| {
            rig.rx.rx(&mut one);
            rig.rx.rx(&mut other);
            one.len() + other.len() >= most
        });
        rig.rx.rx(&mut other);
        assert_eq!(one.len() + other.len(), most);
        drop((one, other));
        rig.completes(app, 100);
        rig.end();
    }
}

#[test]
fn sessions_of_one_memory_send_what_the_other_received_and_outlive_each_other() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut first = rig.connect(&umem, "udp dport 1");
    let mut second = rig.ask_for(&umem, "default", sharing(&first)).unwrap();
    rig.until_sessions(2);
    first.fill(&mut frames(&umem, 2, 1)).unwrap();
    rig.send(&[&udp(1, 80)]);
    let mut got = Vec::new();
    assert_eq!(first.rx(&mut got).unwrap(), 1);
    assert_eq!(second.tx(&mut got).unwrap(), 1);
    let batch = rig.receive(1);
    assert_eq!((batch.as_slice()[0].to_vec(), batch.as_slice()[0].frags()), (udp(1, 80), 1));
    // The session that brought the memory ends; the other one may use what it had posted.
    drop(first);
    rig.until_event("sessions-ended", 1);
    rig.until_sessions(1);
    drop(batch);
    rig.rx.rx(&mut Batch::<64>::new());
    assert_eq!(second.completions(&mut got).unwrap(), 1);
    second.fill(&mut got).unwrap();
    rig.send(&[&udp(2, 90)]);
    assert_eq!(second.rx(&mut got).unwrap(), 1);
    assert_eq!(got[0].bytes(), udp(2, 90));
    drop((got, second));
    rig.end();
}

#[test]
fn chunks_that_an_ended_session_had_posted_are_free_for_the_others_of_its_memory() {
    let mut rig = Rig::new("");
    let (mut first, memory) = Program::with_memory(&rig, &Hello { rules: "udp dport 1".into(), ..HELLO });
    let hello = Hello { share: first.session, rules: "default".into(), ..HELLO };
    let mut second = Program::in_memory(&rig, &hello, &memory);
    rig.until_sessions(2);
    first.post(&[0, 2048]);
    // The port takes both out of the ring, and the packet fills one.
    rig.send(&[&udp(1, 60)]);
    assert_eq!(first.rx.peek(2), 1);
    drop(first);
    rig.until_event("sessions-ended", 1);
    rig.until_sessions(1);
    // The server's thread frees what the queues removed.
    let session = rig.tx.queue.apps()[0].destination.session.clone();
    until(|| [0, 2048].iter().all(|chunk| session.umem.locate_fill(*chunk).is_ok()));
    second.post(&[0, 2048]);
    rig.send(&[&udp(2, 60), &udp(3, 60)]);
    assert_eq!((second.rx.peek(2), rig.event("bad-chunk"), rig.event("sessions-ended")), (2, 0, 1));
    drop((session, second));
    rig.end();
}

#[test]
fn memory_is_shared_only_with_a_session_that_has_it_and_describes_it_alike() {
    let rig = Rig::new("");
    let (umem, other) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let first = rig.connect(&umem, "udp");
    let stranger = rig.ask_for(&other, "tcp", sharing(&first));
    assert!(matches!(&stranger, Err(Error::Refused(refusal)) if refusal.code == Code::Memory), "{stranger:?}");
    let missing = towpath_client::Config::default().share(99);
    let missing = rig.ask_for(&umem, "tcp", missing);
    assert!(matches!(&missing, Err(Error::Refused(refusal)) if refusal.code == Code::Memory), "{missing:?}");
    drop(first);
    rig.end();
}

#[test]
fn a_session_gets_the_emptiest_queue_or_the_one_it_names_and_packets_from_all() {
    let mut rig = Rig::with_queues("", 2);
    let umem = Umem::new(64, 2048).unwrap();
    let mut one = rig.connect(&umem, "udp dport 1");
    let mut two = rig.connect(&umem, "udp dport 2");
    assert_eq!((one.welcome().queue, two.welcome().queue), (0, 1));
    let on = |queue| towpath_client::Config::default().rings(Sizes::all(64)).queue(Some(queue));
    let third = rig.ask_for(&umem, "udp dport 3", on(1)).unwrap();
    assert_eq!(third.welcome().queue, 1);
    assert!(matches!(rig.ask_for(&umem, "udp dport 4", on(2)), Err(Error::Refused(_))));
    rig.until_sessions(3);
    // Its frames come in by its queue alone.
    two.tx(&mut frames(&umem, 1, 60)).unwrap();
    let mut batch = Batch::<64>::new();
    assert_eq!((0..100).map(|_| rig.rx.rx(&mut batch)).sum::<usize>(), 0);
    until(|| rig.more[0].0.rx(&mut batch) == 1);
    assert_eq!(batch.as_slice()[0].ingress().1, 1);
    drop(std::mem::take(&mut batch));
    assert_eq!(rig.more[0].0.rx(&mut batch), 0);
    assert_eq!(two.completions(&mut Vec::new()).unwrap(), 1, "and go back by it");
    // Its packets come by any queue.
    one.fill(&mut frames(&umem, 8, 1)).unwrap();
    rig.send(&[&udp(1, 60)]);
    give(&rig.pool, &mut rig.more[0].1, &[&udp(1, 61), &udp(2, 70)]);
    let mut got = Vec::new();
    assert_eq!((one.rx(&mut got).unwrap(), two.rx(&mut got).unwrap()), (2, 0));
    assert_eq!((got[0].bytes().len(), got[1].bytes().len()), (60, 61));
    assert_eq!(rig.more[0].1.counters().snapshot().dropped(DropReason::NoBuffer), 1);
    drop((got, batch, one, two, third));
    rig.end();
}

#[test]
fn sessions_of_one_memory_and_the_same_rules_each_get_the_packets_of_their_queue() {
    let mut rig = Rig::with_queues("", 2);
    let umem = Umem::new(64, 2048).unwrap();
    let mut one = rig.connect(&umem, "default");
    let mut two = rig.ask_for(&umem, "default", sharing(&one)).unwrap();
    assert_eq!((one.welcome().queue, two.welcome().queue), (0, 1));
    assert!(matches!(rig.ask(&umem, "default", Sizes::all(64)), Err(Error::Refused(r)) if r.code == Code::Rules));
    rig.until_sessions(2);
    one.fill(&mut frames(&umem, 8, 1)).unwrap();
    two.fill(&mut frames(&umem, 8, 1)).unwrap();
    rig.send(&[&[1; 60]]);
    give(&rig.pool, &mut rig.more[0].1, &[&[2; 60], &[3; 60]]);
    let mut got = Vec::new();
    assert_eq!((one.rx(&mut got).unwrap(), two.rx(&mut got).unwrap()), (1, 2));
    // One session ends: the other gets everything.
    drop(two);
    rig.until_sessions(1);
    give(&rig.pool, &mut rig.more[0].1, &[&[4; 60]]);
    assert_eq!(one.rx(&mut got).unwrap(), 1);
    drop((got, one));
    rig.end();
}
