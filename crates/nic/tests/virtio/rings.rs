//! Against a back end of this process, stepped by hand.

use crate::backend::{Backend, HEADER};
use crate::rig::{EVERYTHING, PATIENCE, Rig, VERSION_1, frame, pool};
use std::sync::Arc;
use std::time::Instant;
use towpath_nic::virtio::{Config, Copybreak, UserConfig, UserTransport, VirtioNet};
use towpath_packet::port::{PortControl, RxQueue, SettingValue, State, TxQueue, Wake};
use towpath_packet::{Backing, Batch, Checksum, DropReason, Gso, GsoKind, Offloads, Packet};
use towpath_testing::abandoned_socket;

pub(crate) fn config(edit: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    config.ring = 32;
    edit(&mut config);
    config
}

#[test]
fn frames_go_both_ways_in_every_kind_of_ring() {
    for kind in 0..32u32 {
        let has = |bit: u32| kind >> bit & 1 != 0;
        let config = config(|config| {
            (config.packed, config.indirect, config.in_order) = (has(0), has(1), has(2));
            (config.event_idx, config.mergeable) = (has(3), has(4));
        });
        let backend = Backend::new(EVERYTHING, 1);
        let mut rig = Rig::new(config, &backend);
        for round in 0..40 {
            let sent: Vec<_> = (0..7).map(|i| frame(round * 7 + i, 60 + 200 * i)).collect();
            for (i, bytes) in sent.iter().enumerate() {
                let (a, b) = bytes.split_at(20);
                let pieces: &[&[u8]] = if i % 2 == 0 { &[bytes] } else { &[a, b] };
                let packet = rig.packet(pieces);
                assert!(rig.send(0, packet), "{kind:#b}");
            }
            let got = backend.take(0);
            assert_eq!(got.len(), 7);
            for (got, sent) in got.iter().zip(&sent) {
                assert_eq!((&got[..HEADER], &got[HEADER..]), (&[0; HEADER][..], &sent[..]), "{kind:#b}");
            }
            assert_eq!(rig.tx[0].reclaim(), 7);
            for bytes in &sent {
                assert!(backend.give(0, [0; 10], bytes), "{kind:#b}");
            }
            let got = rig.receive(0);
            assert_eq!(got.iter().map(|packet| packet.to_vec()).collect::<Vec<_>>(), sent, "{kind:#b}");
        }
        let (rx, tx) = (rig.rx[0].counters().snapshot(), rig.tx[0].counters().snapshot());
        let bytes: u64 = (0..7).map(|i| 60 + 200 * i).sum();
        assert_eq!((rx.packets, rx.bytes, tx.packets, tx.bytes), (280, 40 * bytes, 280, 40 * bytes));
        assert_eq!((rx.all_drops(), tx.all_drops(), rig.tx[0].pending()), (0, 0, 0));
        rig.end();
    }
}

#[test]
fn a_packet_of_one_piece_is_one_descriptor_and_a_long_chain_takes_one_if_tables_are_negotiated() {
    for indirect in [false, true] {
        let backend = Backend::new(EVERYTHING, 1);
        let mut rig = Rig::new(config(|config| config.indirect = indirect), &backend);
        let mut sent = 0;
        while {
            let packet = rig.packet(&[&frame(0, 60), &[1; 100], &[2; 100], &[3; 100]]);
            rig.send(0, packet)
        } {
            sent += 1;
        }
        assert_eq!(sent, if indirect { 32 } else { 8 }, "a header in front costs no descriptor");
        backend.take(0);
        rig.tx[0].reclaim();
        sent = 0;
        while {
            let packet = rig.packet(&[&frame(0, 60)]);
            rig.send(0, packet)
        } {
            sent += 1;
        }
        assert_eq!(sent, 32);
        rig.end();
    }
}

#[test]
fn a_received_packet_is_spread_over_small_buffers_and_put_together_again() {
    let backend = Backend::new(EVERYTHING, 1);
    let rig = Rig::open(config(|_| {}), &backend.path, pool(Backing::Memfd, 512), Offloads::ALL);
    let mut rig = rig;
    for len in [60, 384, 385, 1000, 1514] {
        let bytes = frame(len, len);
        assert!(backend.give(0, [0; 10], &bytes));
        let got = rig.receive(0);
        assert_eq!((got.len(), got[0].to_vec()), (1, bytes), "{len}");
        assert_eq!(got[0].frags(), (len + HEADER - 1) / (384 + HEADER));
        assert_eq!(got[0].headroom(), 128, "the header was in it");
    }
    rig.end();
}

#[test]
fn a_short_buffer_is_copied_out_and_posted_again_until_the_threshold_is_changed() {
    for packed in [false, true] {
        let backend = Backend::new(EVERYTHING, 1);
        let edit = config(|config| {
            (config.packed, config.copybreak) = (packed, Some(Copybreak::new(300).unwrap()));
        });
        let mut rig = Rig::open(edit, &backend.path, pool(Backing::Memfd, 512), Offloads::ALL);
        let exchange = |rig: &mut Rig, lens: &[usize]| {
            let frames: Vec<_> = lens.iter().map(|&len| frame(len, len)).collect();
            frames.iter().for_each(|bytes| assert!(backend.give(0, [0; 10], bytes)));
            assert_eq!(rig.receive(0).iter().map(|packet| packet.to_vec()).collect::<Vec<_>>(), frames);
        };
        // A buffer has room for a header and 384 bytes: the third packet is one of them and 16
        // bytes of another.
        (0..50).for_each(|_| exchange(&mut rig, &[60, 299, 400, 300]));
        let counts = rig.rx[0].counts();
        assert_eq!((counts.completed, counts.copies, counts.handed), (250, 150, 100));
        assert!(counts.recycled > 140);
        rig.control.set("copybreak", &SettingValue::Number(0)).unwrap();
        exchange(&mut rig, &[60, 299]);
        assert_eq!(rig.rx[0].counts().copies, 150);
        assert!(rig.control.set("copybreak", &SettingValue::Number(20_000)).is_err());
        rig.end();
    }
}

#[test]
fn checksums_and_segmentation_travel_in_the_header() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let mut packet = rig.packet(&[&frame(1, 1000), &[5; 1500], &[6; 1500]]);
    packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
    packet.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: true, size: 1448, segs: 0, hdr_len: 66 }));
    assert!(rig.send(0, packet));
    let got = backend.take(0);
    let header = [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
    assert_eq!((&got[0][..HEADER], got[0].len()), (&header[..], HEADER + 4000));
    let mut super_packet = [0; 10];
    super_packet.copy_from_slice(&header[..10]);
    assert!(backend.give(0, super_packet, &got[0][HEADER..]));
    let back = rig.receive(0);
    assert_eq!(back[0].csum(), Checksum::Partial { start: 34, offset: 16 });
    assert_eq!(back[0].gso().map(|gso| (gso.kind, gso.ecn, gso.size)), Some((GsoKind::Tcp4, true, 1448)));
    assert_eq!(back[0].to_vec(), got[0][HEADER..]);
    // Verified, by the other side.
    assert!(backend.give(0, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0], &frame(2, 100)));
    assert_eq!(rig.receive(0)[0].csum(), Checksum::Verified);
    drop(back);
    rig.end();
}

#[test]
fn a_packet_that_needs_what_was_not_negotiated_is_dropped_by_name_in_both_directions() {
    let backend = Backend::new(VERSION_1 | 1 << 15, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    assert_eq!(rig.tx[0].offloads(), Offloads::NONE);
    let mut packet = rig.packet(&[&frame(1, 100)]);
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    assert!(rig.send(0, packet));
    assert_eq!(rig.tx[0].counters().snapshot().dropped(DropReason::Offload), 1);
    let too_long = rig.packet(&[&frame(1, 1500), &[0; 100]]);
    assert!(rig.send(0, too_long));
    assert_eq!(rig.tx[0].counters().snapshot().dropped(DropReason::TooLong), 1);
    // A partial checksum, a super-packet, a checksum outside of the packet, a kind without a name.
    for header in
        [[1, 0, 0, 0, 0, 0, 34, 0, 6, 0], [1, 1, 66, 0, 100, 0, 34, 0, 16, 0], [1, 0, 0, 0, 0, 0, 90, 0, 90, 0]]
    {
        assert!(backend.give(0, header, &frame(3, 100)));
    }
    assert!(backend.give(0, [0, 77, 0, 0, 0, 0, 0, 0, 0, 0], &frame(3, 100)));
    assert!(backend.give(0, [0; 10], &[1; 13]) && backend.give(0, [0; 10], &frame(3, 1523)));
    assert_eq!(rig.receive(0).len(), 0);
    assert_eq!((rig.control.faults().bad_headers, rig.control.faults().bad_frames), (4, 2));
    assert_eq!(rig.rx[0].counters().snapshot().dropped(DropReason::Malformed), 6);
    rig.end();
}

#[test]
fn bytes_that_lie_in_no_region_are_copied_and_counted_and_their_owners_dropped_once() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let bytes: Arc<[u8]> = frame(9, 1400).into();
    assert!(rig.send(0, Packet::from_owner(bytes.clone()).unwrap()));
    let mut behind = rig.packet(&[&bytes[..14]]);
    behind.append(Packet::from_owner(bytes[14..].to_vec()).unwrap()).unwrap();
    assert!(rig.send(0, behind));
    let got = backend.take(0);
    assert!(got.iter().all(|got| got[HEADER..] == bytes[..]) && got.len() == 2);
    assert_eq!((rig.control.faults().bounced, rig.tx[0].counters().snapshot().copied), (2, 2));
    assert_eq!(Arc::strong_count(&bytes), 1);
    rig.end();
}

#[test]
fn packets_out_of_reach_are_copied_and_buffers_come_from_a_pool_of_the_port() {
    let backend = Backend::new(EVERYTHING, 1);
    let copybreak = Copybreak::new(256).unwrap();
    let config = config(|config| config.copybreak = Some(copybreak));
    let mut rig = Rig::open(config, &backend.path, pool(Backing::Anonymous, 2048), Offloads::ALL);
    assert!(rig.own.is_some());
    let packet = rig.packet(&[&frame(1, 100), &[7; 1000]]);
    assert!(rig.send(0, packet));
    assert_eq!(backend.take(0)[0][HEADER..], [&frame(1, 100)[..], &[7; 1000]].concat());
    assert_eq!((rig.control.faults().bounced, rig.tx[0].reclaim()), (1, 1));
    assert!(backend.give(0, [0; 10], &frame(2, 200)));
    // The copy is a buffer of the datapath's pool.
    let got = rig.receive(0);
    let region = rig.pool.region().unwrap();
    let offset = got[0].linear().as_ptr().addr().wrapping_sub(region.base().addr().get());
    assert!(got[0].to_vec() == frame(2, 200) && offset < region.len());
    drop(got);
    rig.end();
}

#[test]
fn each_pair_of_queues_has_frames_of_its_own() {
    let backend = Backend::new(EVERYTHING, 3);
    let mut rig = Rig::new(config(|config| config.queues = 3), &backend);
    for pair in 0..3 {
        let packet = rig.packet(&[&frame(pair, 100)]);
        assert!(rig.send(pair, packet) && backend.give(pair, [0; 10], &frame(10 + pair, 90)));
    }
    for pair in 0..3 {
        assert_eq!(backend.take(pair)[0][HEADER..], frame(pair, 100));
        let got = rig.receive(pair);
        assert_eq!((got[0].to_vec(), got[0].ingress().1), (frame(10 + pair, 90), pair as u8));
    }
    rig.end();
}

#[test]
fn a_burst_is_kicked_once_and_only_if_the_back_end_asks_for_it() {
    for event_idx in [false, true] {
        let backend = Backend::new(EVERYTHING, 1);
        let mut rig = Rig::new(config(|config| config.event_idx = event_idx), &backend);
        for (enabled, kicks) in [(true, 1), (false, 0), (true, 1)] {
            backend.take(0);
            rig.tx[0].reclaim();
            let _ = backend.lock().kicks(1);
            backend.lock().enable_kicks(1, enabled);
            let mut batch: Batch = Batch::new();
            (0..16).for_each(|i| batch.push(rig.packet(&[&frame(i, 60)])).unwrap());
            assert_eq!(rig.tx[0].tx(&mut batch), 16);
            rig.tx[0].kick();
            assert_eq!(backend.lock().kicks(1), kicks, "event_idx {event_idx}, enabled {enabled}");
        }
        rig.end();
    }
}

#[test]
fn a_sleeping_worker_is_called_and_a_busy_one_is_not() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|config| config.event_idx = false), &backend);
    let readable = |wake: Wake| {
        let Wake::Fd(fd) = wake else { panic!("{wake:?}") };
        // SAFETY: the descriptor is open as long as the queue.
        towpath_sys::poll::is_readable(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
    };
    assert!(!readable(rig.rx[0].wake()));
    assert!(backend.give(0, [0; 10], &frame(1, 60)));
    assert!(readable(rig.rx[0].wake()), "it was asked for");
    rig.rx[0].refill();
    assert_eq!(rig.receive(0).len(), 1);
    assert!(backend.give(0, [0; 10], &frame(1, 60)), "nothing is asked for");
    assert_eq!(rig.receive(0).len(), 1);
    assert!(!readable(rig.rx[0].wake()));
    // The end of the connection wakes as well.
    backend.close();
    assert!(readable(rig.rx[0].wake()));
    rig.end();
}

/// Runs the queues until something is true.
pub(crate) fn until(rig: &mut Rig, mut done: impl FnMut(&mut Rig) -> bool) {
    let begun = Instant::now();
    while !done(rig) {
        assert!(begun.elapsed() < PATIENCE, "waited in vain");
        for pair in 0..rig.rx.len() {
            rig.receive(pair);
            rig.tx[pair].reclaim();
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_back_end_that_comes_again_finds_new_rings_and_what_the_first_one_had_is_dropped() {
    for packed in [false, true] {
        let backend = Backend::new(EVERYTHING, 2);
        let mut rig = Rig::new(
            config(|config| {
                (config.packed, config.queues) = (packed, 2);
                // Buffers that were copied out are freed with the others.
                config.copybreak = packed.then(|| Copybreak::new(256).unwrap());
            }),
            &backend,
        );
        for losses in 1..=3 {
            let lost = rig.packet(&[&frame(1, 100)]);
            assert!(rig.send(0, lost));
            let connections = backend.lock().connections;
            backend.close();
            until(&mut rig, |rig| rig.control.faults().link_losses == losses);
            until(&mut rig, |rig| {
                rig.control.link_is_up() && backend.lock().connections > connections && backend.lock().runs(4)
            });
            until(&mut rig, |rig| rig.tx[0].pending() == 0);
            for pair in 0..2 {
                let packet = rig.packet(&[&frame(2, 100)]);
                assert!(rig.send(pair, packet));
                until(&mut rig, |_| backend.take(pair).iter().any(|got| got[HEADER..] == frame(2, 100)));
                until(&mut rig, |_| backend.give(pair, [0; 10], &frame(3, 100)));
                assert_eq!(rig.receive_some(pair, 1), [frame(3, 100)]);
            }
            until(&mut rig, |rig| rig.tx.iter().all(|tx| tx.pending() == 0));
        }
        let sent = rig.tx[0].counters().snapshot();
        assert_eq!((sent.packets, sent.dropped(DropReason::LinkDown)), (3, 3));
        rig.end();
    }
}

#[test]
fn a_back_end_that_uses_what_it_was_not_given_loses_its_connection() {
    for packed in [false, true] {
        let backend = Backend::new(EVERYTHING & !(1 << 35), 1);
        let mut rig = Rig::new(config(|config| config.packed = packed), &backend);
        let connections = backend.lock().connections;
        backend.lock().forge(1);
        until(&mut rig, |rig| rig.control.faults().broken_rings > 0);
        until(&mut rig, |rig| rig.control.link_is_up() && backend.lock().connections > connections);
        until(&mut rig, |_| backend.lock().runs(2));
        let packet = rig.packet(&[&frame(2, 100)]);
        assert!(rig.send(0, packet));
        until(&mut rig, |_| !backend.take(0).is_empty());
        until(&mut rig, |rig| rig.tx[0].pending() == 0);
        rig.end();
    }
}

#[test]
fn a_back_end_that_does_not_answer_holds_no_worker() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    std::fs::remove_file(&backend.path).unwrap();
    let silent = std::os::unix::net::UnixListener::bind(&backend.path).unwrap();
    silent.set_nonblocking(true).unwrap();
    backend.close();
    let mut accepted = None;
    until(&mut rig, |_| {
        accepted = silent.accept().ok();
        accepted.is_some()
    });
    let (mut stream, _) = accepted.unwrap();
    rig.receive(0);
    // The connection is still waited for, and the worker has had its turn.
    stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; 64];
    let end = loop {
        match std::io::Read::read(&mut stream, &mut bytes) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(end, Some(std::io::ErrorKind::WouldBlock));
    assert!(matches!(rig.rx[0].state(), State::Down(_)));
    drop((stream, silent));
    rig.end();
}

#[test]
fn a_port_without_a_back_end_is_down_by_name_and_refuses_packets() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let path = backend.path.clone();
    std::fs::remove_file(&path).unwrap();
    backend.close();
    let path = path.to_string_lossy();
    until(
        &mut rig,
        |rig| matches!(rig.rx[0].state(), State::Down(why) if why.contains("connect") && why.contains(&*path)),
    );
    let packet = rig.packet(&[&frame(1, 60)]);
    assert!(!rig.send(0, packet));
    assert_eq!(rig.rx[0].wake(), Wake::Poll, "it looks for the next one");
    rig.end();
}

#[test]
fn what_a_back_end_does_not_offer_is_refused_by_name() {
    let open = |offered: u64, edit: fn(&mut Config)| {
        let backend = Backend::new(offered, 1);
        let transport = UserTransport::open(UserConfig::new(&backend.path)).unwrap();
        VirtioNet::open(transport, "virtio:user", config(edit)).map(drop).map_err(|error| error.to_string())
    };
    let refused = |offered, edit, part: &str| {
        let error = open(offered, edit).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    refused(0, |_| {}, "legacy");
    refused(VERSION_1, |config| config.packed = true, "packed=on: the device does not offer it");
    refused(VERSION_1, |config| config.queues = 2, "queues=2: must be at most 1");
    refused(EVERYTHING, |config| config.filter.set("receive", "own").unwrap(), "no control queue");
    assert_eq!(open(VERSION_1, |_| {}), Ok(()));
    let refused = UserTransport::open(UserConfig::new("/nowhere/s")).unwrap_err().to_string();
    assert!(refused.contains("/nowhere/s") && refused.contains("server=on"), "{refused}");
}

#[test]
fn a_back_end_that_does_not_listen_yet_is_waited_for_and_an_abandoned_socket_is_named() {
    let backend = Backend::new(EVERYTHING, 1);
    let path = backend.path.with_extension("starting");
    abandoned_socket(&path);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            std::fs::rename(&backend.path, &path).unwrap();
        });
        assert!(UserTransport::open(UserConfig::new(&path)).is_ok());
    });
    std::fs::remove_file(&path).unwrap();
    abandoned_socket(&path);
    let refused = UserTransport::open(UserConfig::new(&path)).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(refused.contains("refused") && refused.contains("start the back end first"), "{refused}");
}

#[test]
fn the_counters_of_a_port_have_names() {
    let backend = Backend::new(EVERYTHING, 1);
    let rig = Rig::new(config(|_| {}), &backend);
    assert!(rig.control.events().iter().all(|(name, count)| !name.is_empty() && *count == 0));
    rig.end();
}
