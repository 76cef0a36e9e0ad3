//! Runs, messages and datagrams.

use crate::common::{LOOPBACK, address, balanced, bind, flush, receive};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use towpath_sys::poll::wait_readable;
use towpath_testing::{PATIENCE, allocations};
use towpath_udp::{OpenError, Path, UdpBatch, UdpConfig};

/// Pieces of bytes that are known again.
fn datagram(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number * 31 + i) as u8).collect()
}

#[test]
fn datagrams_of_one_size_leave_and_arrive_as_one_message() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
    let sent: Vec<_> = (0..40).map(|i| datagram(i, if i < 39 { 1200 } else { 700 })).collect();
    let path = Path::to(address(&b));
    sent.iter().for_each(|datagram| a.sender.push(&path, datagram).unwrap());
    assert_eq!(a.sender.flush().unwrap(), 40);
    assert_eq!(receive(&mut b, 40), sent);
    let stats = a.sender.stats();
    assert_eq!((stats.calls, stats.segmented, stats.refused), (1, 1, 0));
    assert_eq!(stats.bytes, 39 * 1200 + 700);
    assert_eq!((b.receiver.stats().calls, b.receiver.stats().coalesced), (1, 1));
    balanced(&a, 40);
}

#[test]
fn without_offloads_the_same_datagrams_arrive() {
    let config = UdpConfig::default().segmentation(false).gro(false);
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
    assert!(!a.info().segmentation && !a.info().gro);
    assert_eq!(a.sender.refused_size(), Some(0));
    let sent: Vec<_> = (0..100).map(|i| datagram(i, 1200)).collect();
    sent.iter().for_each(|datagram| a.sender.push(&Path::to(address(&b)), datagram).unwrap());
    flush(&mut a);
    assert_eq!(receive(&mut b, 100), sent);
    assert_eq!((a.sender.stats().segmented, b.receiver.stats().coalesced), (0, 0));
    // 64 messages a call.
    assert_eq!(a.sender.stats().calls, 2);
}

#[test]
fn datagrams_of_any_size_to_many_receivers_arrive_in_order_at_each() {
    let config = UdpConfig::default();
    let mut a = bind(LOOPBACK, &config);
    let mut receivers: Vec<_> = (0..12).map(|_| (bind(LOOPBACK, &config), vec![])).collect();
    let paths: Vec<_> = receivers.iter().map(|(b, _)| Path::to(address(b))).collect();
    let (mut random, mut pushed) = (1u64, 0);
    for round in 0..20 {
        for number in 0..300 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = (random >> 33) as usize;
            let len = [1200, 1200, 1200, 1200, 1432, 40, 0, bits % 3000][bits % 8];
            let to = bits / 64 % if round % 2 == 0 { 3 } else { 12 };
            let datagram = datagram(number, len);
            if a.sender.push(&paths[to], &datagram).is_err() {
                flush(&mut a);
                a.sender.push(&paths[to], &datagram).unwrap();
            }
            receivers[to].1.push(datagram);
            pushed += 1;
        }
        flush(&mut a);
        for (b, expected) in &mut receivers {
            let expected = std::mem::take(expected);
            assert_eq!(receive(b, expected.len()), expected);
        }
    }
    balanced(&a, pushed);
    assert!(a.sender.stats().segmented > 0 && a.sender.stats().refused == 0);
}

#[test]
fn an_empty_datagram_is_a_datagram() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
    let sent = [vec![], vec![1; 10], vec![], vec![]];
    sent.iter().for_each(|datagram| a.sender.push(&Path::to(address(&b)), datagram).unwrap());
    flush(&mut a);
    assert_eq!(receive(&mut b, 4), sent);
    assert_eq!(b.receiver.stats().datagrams, 4);
}

#[test]
fn a_datagram_can_be_written_and_changed_in_place() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
    let path = Path::to(address(&b));
    let written = a.sender.push_with(&path, 2000, |room| {
        room[..3].copy_from_slice(&[1, 2, 3]);
        Some(3)
    });
    assert!(written.unwrap());
    assert!(!a.sender.push_with(&path, 2000, |_| None).unwrap());
    flush(&mut a);
    assert_eq!(b.receiver.receive().unwrap(), 1);
    let mut message = b.receiver.messages().next().unwrap();
    message.iter_mut().for_each(|datagram| datagram.reverse());
    assert_eq!(message.bytes, [3, 2, 1]);
}

#[test]
fn a_socket_that_does_not_block_says_that_there_is_nothing() {
    let mut a = bind(LOOPBACK, &UdpConfig::default());
    a.socket().set_nonblocking(true).unwrap();
    assert_eq!(a.receiver.receive().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(a.receiver.messages().count(), 0);
    assert_eq!(a.sender.flush().unwrap(), 0);
}

#[test]
fn a_connected_socket_is_taken_over_and_an_icmp_error_costs_no_datagram() {
    // An address on which nothing is bound: the port is taken on another one. A socket that was
    // closed would not do, because a program that another test starts may hold it until its `exec`.
    let taken = UdpSocket::bind(LOOPBACK).unwrap();
    let to = SocketAddr::from(([127, 0, 0, 2], taken.local_addr().unwrap().port()));
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    socket.connect(to).unwrap();
    let mut a = UdpBatch::new(socket, &UdpConfig::default()).unwrap();
    a.sender.push(&Path::to(to), b"lost").unwrap();
    flush(&mut a);
    // The port is unreachable; the error waits in the socket. On a busy machine it comes later.
    assert!(wait_readable(a.socket().as_fd(), Some(PATIENCE)).unwrap(), "no error");
    let mut b = bind(&to.to_string(), &UdpConfig::default());
    a.sender.push(&Path::to(to), b"again").unwrap();
    flush(&mut a);
    assert_eq!(receive(&mut b, 1), [b"again"]);
    let stats = a.sender.stats();
    assert_eq!((stats.datagrams, stats.dropped), (2, 0));
    assert!(a.sender.take_error().is_none());
}

#[test]
fn a_datagram_that_the_kernel_refuses_is_dropped_and_counted_and_the_others_go() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
    let good = Path::to(address(&b));
    // An address that is not this host's, one of the other family, a datagram that is too long.
    a.sender.push(&good, b"first").unwrap();
    a.sender.push(&good.from([192, 0, 2, 1].into()), b"foreign").unwrap();
    a.sender.push(&Path::to("[::1]:9".parse().unwrap()), b"other family").unwrap();
    a.sender.push(&good, &[0; 65_535]).unwrap();
    a.sender.push(&good, b"last").unwrap();
    flush(&mut a);
    assert_eq!(receive(&mut b, 2), [b"first".to_vec(), b"last".to_vec()]);
    let stats = a.sender.stats();
    assert_eq!((stats.datagrams, stats.dropped), (2, 3));
    assert!(a.sender.take_error().is_some());
    balanced(&a, 5);
}

#[test]
fn what_is_no_udp_socket_is_refused() {
    let tcp = TcpListener::bind(LOOPBACK).unwrap();
    assert!(matches!(UdpBatch::new(tcp, &UdpConfig::default()), Err(OpenError::NotUdp)));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(UdpBatch::new(file, &UdpConfig::default()), Err(OpenError::NotUdp)));
    let first = bind(LOOPBACK, &UdpConfig::default());
    let taken = address(&first);
    let error = UdpBatch::bind(taken, &UdpConfig::default()).unwrap_err();
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}

#[test]
fn the_halves_work_on_two_threads() {
    let config = UdpConfig::default();
    let (echo, client) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
    let (path, n) = (Path::to(address(&echo)), 200);
    let (mut echo_tx, mut echo_rx) = echo.split();
    let (mut tx, mut rx) = client.split();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut left = n;
            while left > 0 {
                left -= echo_rx.receive().unwrap();
                for message in echo_rx.messages() {
                    let back = message.path.reply();
                    message.iter().for_each(|datagram| echo_tx.push(&back, datagram).unwrap());
                }
                echo_tx.flush().unwrap();
            }
        });
        scope.spawn(move || {
            for i in 0..n {
                tx.push(&path, &datagram(i, 900)).unwrap();
                if i % 20 == 19 {
                    tx.flush().unwrap();
                }
            }
        });
        let mut received = vec![];
        while received.len() < n {
            rx.receive().unwrap();
            rx.messages().for_each(|message| received.extend(message.iter().map(<[u8]>::to_vec)));
        }
        assert!(received.iter().enumerate().all(|(i, bytes)| *bytes == datagram(i, 900)));
    });
}

#[test]
fn sending_and_receiving_allocates_nothing() {
    for on in [true, false] {
        let config = UdpConfig::default().segmentation(on).gro(on);
        let (mut a, mut b) = (bind(LOOPBACK, &config), bind(LOOPBACK, &config));
        let (to, back) = (Path::to(address(&b)), Path::to(address(&a)).from([127, 0, 0, 1].into()));
        let n = allocations(|| {
            for i in 0..40 {
                a.sender.push(if i % 8 == 0 { &back } else { &to }, &[7; 200]).unwrap();
            }
            flush(&mut a);
            let mut datagrams = 0;
            while datagrams < 35 {
                b.receiver.receive().unwrap();
                datagrams += b.receiver.messages().map(|message| message.iter().count()).sum::<usize>();
            }
            while a.receiver.receive().unwrap() == 0 {}
            datagrams
        });
        assert_eq!(n, 0, "segmentation and GRO: {on}");
    }
}
