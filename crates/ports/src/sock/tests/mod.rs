//! Applications that keep to the protocol. `tests/hostile` has those that break it.
//!
//! | module | what |
//! |---|---|
//! | `rig`, `program` | a started port with its applications; a program without the client |
//! | `handshake`, `descriptors` | messages and descriptors from the application and back |
//! | `segments`, `supers` | super-packets from applications, and to them |
//! | `copy_plan` | how much of what applications send is copied |
//! | `shared` | unaligned chunks, memory that sessions share, and queues |
//! | `turns` | several queues that deliver to the same applications |
//! | `skip_invalid`, `source`, `limits` | invalid descriptors, source addresses, accounts |
//! | `wakeups`, `poll_fd` | what wakes a queue; programs with one descriptor, as an AF_XDP socket |
//! | `statistics`, `ends` | what an application learns of its frames, and of its session's end |

use super::*;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use towpath_client::protocol::{Answer, Code, Hello, Sizes, Statistic, Statistics};
use towpath_client::{Error, Frame, Socket, Umem};
use towpath_packet::port::{RxQueue, TxLinear, TxQueue};
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer, RingMemory};
use towpath_packet::{
    Backing, Batch, DropReason, ExtBufGauge, Offloads, Packet, Pool, PoolConfig, Region, UntrustedMem,
};
use towpath_sys::seqpacket;

mod copy_plan;
mod descriptors;
mod ends;
mod handshake;
mod limits;
mod poll_fd;
mod program;
mod rig;
mod segments;
mod shared;
mod skip_invalid;
mod source;
mod statistics;
mod supers;
mod turns;
mod wakeups;

use program::{HELLO, Program, send_hello};
use rig::{Rig, frames, give, udp, until};

#[test]
fn frames_are_sent_from_their_pages_and_complete_in_the_order_in_which_their_last_users_are_done() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut sent = frames(&umem, 3, 100);
    assert_eq!(app.tx(&mut sent).unwrap(), 3);
    let mut batch = rig.receive(3);
    for (i, packet) in batch.iter().enumerate() {
        assert_eq!((packet.linear().len(), packet.frags()), (0, 1), "no byte is copied");
        assert_eq!(packet.to_vec(), [i as u8; 100]);
    }
    let mut back = Vec::new();
    let [c, b, a] = [(); 3].map(|()| batch.pop().unwrap());
    for (packet, byte) in [(b, 1), (c, 2), (a, 0)] {
        assert_eq!(app.completions(&mut back).unwrap(), 0);
        // On any thread.
        std::thread::spawn(move || drop(packet)).join().unwrap();
        rig.rx.rx(&mut batch);
        assert_eq!(app.completions(&mut back).unwrap(), 1);
        let mut frame = back.pop().unwrap();
        assert!(frame.set_range(0, 1));
        assert_eq!(frame.bytes(), [byte]);
    }
    drop(app);
    rig.end();
}

#[test]
fn bytes_that_a_packet_owns_reach_the_application_that_its_headers_name_and_are_freed() {
    let mut rig = Rig::new("");
    let (umem, other) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let (mut app, mut rest) = (rig.connect(&umem, "udp dport 7"), rig.connect(&other, "default"));
    rig.until_sessions(2);
    app.fill(&mut frames(&umem, 8, 1)).unwrap();
    rest.fill(&mut frames(&other, 8, 1)).unwrap();
    let bytes: [Arc<[u8]>; 2] = [udp(7, 500).into(), udp(8, 3000).into()];
    let mut batch = Batch::new();
    for bytes in &bytes {
        batch.push(Packet::from_owner(bytes.clone()).unwrap()).unwrap();
        let mut behind = Packet::copy_from(&mut rig.pool.cache(Direction::Tx).unwrap(), &bytes[..42]).unwrap();
        behind.append(Packet::from_owner(bytes[42..].to_vec()).unwrap()).unwrap();
        batch.push(behind).unwrap();
    }
    rig.tx.reclaim();
    assert_eq!(rig.tx.tx(&mut batch), 4);
    rig.tx.kick();
    for (socket, bytes) in [(&mut app, &bytes[0]), (&mut rest, &bytes[1])] {
        let mut got = Vec::new();
        socket.rx(&mut got).unwrap();
        let got: Vec<u8> = got.iter().flat_map(|frame| frame.bytes().to_vec()).collect();
        assert!(got == [&bytes[..], bytes].concat(), "{} bytes of 2 × {}", got.len(), bytes.len());
        assert_eq!(Arc::strong_count(bytes), 1);
    }
    drop((app, rest));
    rig.end();
}

#[test]
fn a_packet_of_several_frames_is_sent_as_one_even_if_its_end_comes_later() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut sent = frames(&umem, 3, 400);
    sent[0].set_continues(true);
    sent[1].set_continues(true);
    let mut last = vec![sent.pop().unwrap()];
    app.tx(&mut sent).unwrap();
    let mut batch = Batch::new();
    assert_eq!((0..100).map(|_| rig.rx.rx(&mut batch)).sum::<usize>(), 0);
    assert!(batch.is_empty());
    app.tx(&mut last).unwrap();
    let batch = rig.receive(1);
    assert_eq!(batch.as_slice()[0].to_vec(), [[0; 400], [1; 400], [2; 400]].concat());
    rig.completes(&mut app, 0);
    drop(batch);
    rig.completes(&mut app, 3);
    rig.end();
}

#[test]
fn over_budget_frames_wait_and_none_is_lost() {
    // The minimum budget: 36 chunks.
    let mut rig = Rig::new("budget=4096");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let (mut waiting, mut back) = (frames(&umem, 200, 60), Vec::new());
    let (mut seen, mut most) = (0u8, 0);
    until(|| {
        app.tx(&mut waiting).unwrap();
        let mut batch = Batch::new();
        for _ in 0..3 {
            rig.rx.rx(&mut batch);
        }
        most = most.max(batch.len());
        for packet in batch.iter() {
            assert_eq!(packet.to_vec(), [seen; 60], "in order");
            seen += 1;
        }
        drop(batch);
        app.completions(&mut back).unwrap();
        back.len() == 200
    });
    assert!(most <= 36, "{most} at a time");
    assert_eq!((seen, rig.rx.counters().snapshot().all_drops()), (200, 0));
    drop(back);
    rig.end();
}

#[test]
fn packets_go_to_the_application_whose_rules_match_and_the_others_to_the_default() {
    let mut rig = Rig::new("");
    let (dns, rest) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let mut rest_app = rig.connect(&rest, "default");
    let mut dns_app = rig.connect(&dns, "udp dport 53,udp dport 54");
    assert!(matches!(rig.ask(&rest, "default", Sizes::all(64)), Err(Error::Refused(r)) if r.code == Code::Rules));
    assert!(matches!(rig.ask(&rest, "udp dport x", Sizes::all(64)), Err(Error::Refused(r)) if r.code == Code::Rules));
    dns_app.fill(&mut frames(&dns, 8, 1)).unwrap();
    rest_app.fill(&mut frames(&rest, 8, 1)).unwrap();
    rig.until_sessions(2);
    rig.send(&[&udp(53, 60), &udp(99, 61), &udp(54, 62)]);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    assert_eq!((dns_app.rx(&mut one).unwrap(), rest_app.rx(&mut other).unwrap()), (2, 1));
    assert_eq!([one[0].bytes(), one[1].bytes(), other[0].bytes()], [&udp(53, 60)[..], &udp(54, 62), &udp(99, 61)]);
    drop(rest_app);
    rig.until_event("sessions-ended", 1);
    rig.send(&[&udp(99, 61)]);
    assert_eq!(rig.tx.counters().snapshot().dropped(DropReason::Unclaimed), 1);
    // Another application can have the default now.
    until(|| {
        rig.tx.reclaim();
        rig.ask(&rest, "default", Sizes::all(64)).is_ok()
    });
    drop((one, other, dns_app));
    rig.end();
}

#[test]
fn a_long_packet_comes_in_pieces_and_one_that_finds_no_chunk_is_counted() {
    let mut rig = Rig::new("");
    let umem = Umem::new(8, 512).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.fill(&mut frames(&umem, 4, 1)).unwrap();
    rig.until_sessions(1);
    let long: Vec<u8> = (0..1400u32).map(|i| i as u8).collect();
    rig.send(&[&long, &long]);
    assert_eq!(rig.tx.counters().snapshot().dropped(DropReason::NoBuffer), 1);
    let mut got = Vec::new();
    assert_eq!(app.rx(&mut got).unwrap(), 3);
    assert_eq!(got.iter().map(Frame::continues).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(got.iter().flat_map(Frame::bytes).copied().collect::<Vec<_>>(), long);
    drop((got, app));
    rig.end();
}

#[test]
fn an_application_that_sleeps_is_woken_by_what_comes_in() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    rig.until_sessions(1);
    app.fill(&mut frames(&umem, 4, 1)).unwrap();
    assert!(!app.wait(Some(Duration::from_millis(1))).unwrap());
    assert!(app.arm());
    rig.send(&[&udp(1, 60)]);
    assert!(app.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(app.rx(&mut Vec::new()).unwrap(), 1);
    drop(rig);
    assert!(matches!(app.wait(Some(Duration::from_secs(60))), Err(Error::Closed)));
}

#[test]
fn frames_longer_than_the_port_sends_complete_unsent_and_counted() {
    let mut rig = Rig::new("mtu=500");
    let umem = Umem::new(8, 2048).unwrap();
    let mut app = rig.connect_unchecked(&umem);
    let mut sent = [frames(&umem, 1, 523), frames(&umem, 1, 13), frames(&umem, 1, 522)].into_iter().flatten().collect();
    app.tx(&mut sent).unwrap();
    assert_eq!(rig.receive(1).as_slice()[0].len(), 522);
    rig.until_event("frame-length", 2);
    rig.completes(&mut app, 3);
    drop(app);
    rig.end();
}

#[test]
fn the_pages_of_an_application_that_is_gone_stay_valid_until_they_are_sent() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.tx(&mut frames(&umem, 10, 99)).unwrap();
    let batch = rig.receive(10);
    drop(app);
    drop(umem);
    rig.until_event("sessions-ended", 1);
    assert!(batch.iter().enumerate().all(|(i, packet)| packet.to_vec() == [i as u8; 99]));
    drop(batch);
    rig.end();
}

#[test]
fn a_socket_that_a_killed_process_left_is_replaced_and_one_in_use_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str| Config::new(dir.path().join(name));
    // The file of a socket stays when that is closed.
    towpath_testing::abandoned_socket(&config("a").path);
    assert!(config("a").path.exists());
    let first = open(config("a")).unwrap();
    assert!(open(config("a")).is_err());
    drop(first);
    assert!(!config("a").path.exists());
    std::fs::write(config("b").path, "a file").unwrap();
    assert!(open(config("b")).is_err(), "what is no socket stays");
}

#[test]
fn the_file_has_the_owner_of_the_options_and_the_log_has_the_sessions() {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: they take no argument, and can't fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut rig = Rig::new(&format!("mode=640,uid={uid},gid={gid}"));
    let file = std::fs::metadata(&rig.path).unwrap();
    assert_eq!((file.mode() & 0o777, file.uid(), file.gid()), (0o640, uid, gid));
    let umem = Umem::new(8, 2048).unwrap();
    let app = rig.connect(&umem, "default");
    let line = format!("session 1: pid {}, uid {uid}, queue 0", std::process::id());
    // The application has its answer before the log has the session.
    until(|| rig.control.session_log() == [format!("{line}: here")]);
    drop(app);
    rig.until_event("sessions-ended", 1);
    // The end is counted before the log has it.
    until(|| rig.control.session_log() == [format!("{line}: left")]);
    rig.end();
}

#[test]
fn an_application_that_ends_without_closing_its_session_was_killed_says_the_log() {
    let rig = Rig::new("");
    let program = Program::connect(&rig, &HELLO);
    until(|| rig.control.session_log().len() == 1);
    // Its descriptors are closed, as those of a process that is killed.
    drop(program);
    until(|| rig.control.session_log()[0].ends_with(": killed, or ended without closing the session"));
    rig.end();
}

#[test]
fn options_reach_their_fields_and_an_invalid_one_is_named() {
    let config = |text: &str| Config::from_uri(&text.parse().unwrap());
    let (path, transmit) = ("/a/b".into(), Transmit::Copy);
    let (mode, uid, gid) = (0o660, Some(12), Some(0));
    let (sessions, umem, budget, queues, mtu) = (7, 1_000_000, 5000, 3, 9000);
    let (rules, all_rules) = (9, 11);
    let expected = Config {
        path,
        mode,
        uid,
        gid,
        sessions,
        umem,
        budget,
        queues,
        rules,
        all_rules,
        mtu,
        transmit,
        ..Config::default()
    };
    let text =
        "sock:/a/b?mode=660,uid=12,gid=0,sessions=7,umem=1M,budget=5k,queues=3,rules=9,all-rules=11,mtu=9000,tx=copy";
    assert_eq!(config(text).unwrap(), expected);
    for (text, part) in [
        ("sock:", "path"),
        ("sock:x?mode=9", "octal"),
        ("sock:x?sessions=0", "1"),
        ("sock:x?rules=0", "rules"),
        ("sock:x?all-rules=16385", "16384"),
        ("sock:x?y=1", "y"),
    ] {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
