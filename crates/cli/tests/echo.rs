//! `towpath echo` returns every packet, and `towpath serve` is `fwd sock:…`.

mod support;

#[path = "../../client/examples/async_echo.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main, and is no module of a library")]
mod async_echo;

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
fn connect(umem: &Umem, path: &std::path::Path) -> Socket {
    let mut socket = None;
    until(|| {
        socket = Socket::connect(umem, path, &Config::default()).ok();
        socket.is_some()
    });
    socket.unwrap()
}

fn frame(umem: &Umem, bytes: &[u8]) -> Frame {
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
    let mut frames = vec![frame(&umem, &[7; 9000]), frame(&umem, &[7; 13]), frame(&umem, &[7; 60])];
    let refused = socket.tx(&mut frames).unwrap_err().to_string();
    assert_eq!((refused.as_str(), frames.len()), ("a packet of 13 bytes: must have 14 to 9022", 2));
    drop(socket);
    // The datapath counts it.
    let mut socket = None;
    until(|| {
        socket = Socket::connect(&umem, &path, &Config::default().checks(false)).ok();
        socket.is_some()
    });
    let mut socket = socket.unwrap();
    socket.tx(&mut frames).unwrap();
    let mut back = Vec::new();
    until(|| {
        socket.completions(&mut back).unwrap();
        back.len() == 2
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

/// Two applications joined by a datapath; the far one is a task of tokio.
#[test]
fn an_echo_in_a_task_of_tokio_returns_every_packet() {
    let dir = tempfile::tempdir().unwrap();
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    let towpath = Towpath::start(&["fwd", &format!("sock:{}", near.display()), &format!("sock:{}", far.display())]);
    let umem = Umem::new(256, 2048).unwrap();
    drop(connect(&umem, &far));
    let echo = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let echo = async_echo::Echo::new(far.to_str().unwrap(), "default").unwrap();
            tokio::spawn(echo.run()).await.unwrap()
        })
    });
    let mut socket = connect(&umem, &near);
    socket.fill(&mut std::iter::from_fn(|| umem.alloc()).take(128).collect()).unwrap();
    // Sends a packet with a number, and waits for its echo. Whether it came in time.
    let mut number = 0;
    let mut echoes = |most: Duration| {
        number = u8::wrapping_add(number, 1);
        let sent: Vec<u8> = (0..99).chain([number]).collect();
        socket.tx(&mut vec![frame(&umem, &sent)]).unwrap();
        let (mut got, begun) = (Vec::new(), Instant::now());
        while got.last() != Some(&number) && begun.elapsed() < most {
            socket.wait(Some(Duration::from_millis(10))).unwrap();
            socket.completions(&mut Vec::new()).unwrap();
            let mut frames = Vec::new();
            socket.rx(&mut frames).unwrap();
            for received in frames {
                got = received.bytes().to_vec();
                let ports = [&sent[36..38], &sent[34..36], &sent[38..99]].concat();
                let addresses = [&sent[6..12], &sent[..6], &sent[12..26], &sent[30..34], &sent[26..30]].concat();
                assert_eq!(got[..99], [addresses, ports].concat());
                drop(received);
                socket.fill(&mut vec![umem.alloc().unwrap()]).unwrap();
            }
        }
        got.last() == Some(&number)
    };
    // Packets from before the echo has its session are dropped.
    until(|| echoes(Duration::from_millis(100)));
    // From here on the task sleeps between packets, and none is lost.
    assert!((0..20).all(|_| echoes(Duration::from_secs(60))));
    towpath.signal(libc::SIGTERM);
    towpath.wait().code(0);
    assert!(echo.join().unwrap().unwrap_err().to_string().contains("closed the session"));
}

#[test]
fn echo_refuses_lanes() {
    let finished = run(&["echo", "null:", "--lanes", "0"]).code(2);
    assert!(finished.stderr.contains("lanes") && finished.stderr.contains("workers"), "{finished:#?}");
}
