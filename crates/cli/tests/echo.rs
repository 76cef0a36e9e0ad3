//! `towpath echo` returns every packet, and `towpath serve` is `fwd sock:…`.

mod support;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use support::Towpath;
use support::datapath::run;
use towpath_client::{Config, Frame, Socket, Umem};

fn until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never happens");
        std::thread::yield_now();
    }
}

/// A session with a datapath that may still be starting.
fn connect<'u>(umem: &'u Umem, path: &std::path::Path) -> Socket<'u> {
    let mut socket = None;
    until(|| {
        socket = Socket::connect(umem, path, &Config::default()).ok();
        socket.is_some()
    });
    socket.unwrap()
}

fn frame<'u>(umem: &'u Umem, bytes: &[u8]) -> Frame<'u> {
    let mut frame = umem.alloc().unwrap();
    assert!(frame.put(bytes));
    frame
}

#[test]
fn frames_of_an_application_come_back_with_the_addresses_swapped_and_the_balance_is_exact() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let towpath = Towpath::start(&["echo", &format!("sock:{}", path.display())]);
    let umem = Umem::new(64, 2048).unwrap();
    let mut socket = connect(&umem, &path);
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(32).collect();
    socket.fill(&mut empty).unwrap();
    let sent: Vec<u8> = (0..100).collect();
    let mut frames: Vec<_> = (0..10).map(|_| frame(&umem, &sent)).collect();
    socket.tx(&mut frames).unwrap();
    let mut got = Vec::new();
    until(|| {
        socket.rx(&mut got).unwrap();
        got.len() == 10
    });
    let expected = [&sent[6..12], &sent[..6], &sent[12..]].concat();
    for frame in &got {
        assert_eq!(frame.bytes(), expected);
    }
    // The sent frames are unchanged: the swapped addresses are in the datapath's copy.
    let mut back = Vec::new();
    until(|| {
        socket.completions(&mut back).unwrap();
        back.len() == 10
    });
    for frame in &mut back {
        assert!(frame.set_range(0, 100));
        assert_eq!(frame.bytes(), sent);
    }
    drop(got);
    towpath.signal(libc::SIGTERM);
    let summary = towpath.wait().code(0).summary();
    assert_eq!((summary.balance.received, summary.balance.sent), (10, 10));
    summary.is_clean();
}

#[test]
fn serving_is_forwarding_from_applications() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = format!("{}?mtu=9000", path.display());
    let towpath = Towpath::start(&["serve", &options, "null:"]);
    until(|| UnixStream::connect(&path).is_err_and(|error| error.raw_os_error() == Some(libc::EPROTOTYPE)));
    let umem = Umem::new(8, 16384).unwrap();
    let mut socket = connect(&umem, &path);
    // The middle one is too short.
    socket.tx(&mut vec![frame(&umem, &[7; 9000]), frame(&umem, &[7; 13]), frame(&umem, &[7; 60])]).unwrap();
    let mut back = Vec::new();
    until(|| {
        socket.completions(&mut back).unwrap();
        back.len() == 3
    });
    assert_eq!(socket.statistics().tx_too_short, 1);
    towpath.signal(libc::SIGTERM);
    let finished = towpath.wait().code(0);
    let summary = finished.summary();
    assert_eq!(summary.port("null").tx.bytes, 9060);
    // The operator reads the same.
    assert!(finished.stdout.contains("the port ended, tx_too_short 1"), "{}", finished.stdout);
    summary.is_clean();
}

#[test]
fn echo_refuses_lanes() {
    let finished = run(&["echo", "null:", "--lanes", "0"]).code(2);
    assert!(finished.stderr.contains("lanes") && finished.stderr.contains("workers"), "{finished:#?}");
}
