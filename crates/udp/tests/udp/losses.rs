//! Buffers, and what they lose.

use crate::common::{LOOPBACK, address, balanced, bind, flush};
use std::io::ErrorKind;
use std::net::UdpSocket;
use towpath_testing::{Namespace, Need, needs, until};
use towpath_udp::{Path, UdpBatch, UdpConfig};

#[test]
fn what_the_receive_buffer_has_no_room_for_is_counted() {
    let config = UdpConfig::default().segmentation(false).gro(false);
    let mut a = bind(LOOPBACK, &config);
    // The smallest that the kernel has; it is not made larger.
    let mut b = bind(LOOPBACK, &config.clone().receive_buffer(0));
    let tiny = 2048i32;
    set(&b, libc::SO_RCVBUF, tiny);
    let mut sent = 0;
    for _ in 0..10 {
        for _ in 0..50 {
            a.sender.push(&Path::to(address(&b)), &[1; 1000]).unwrap();
        }
        flush(&mut a);
        sent += 50;
    }
    assert_eq!(a.sender.stats().datagrams, sent);
    b.socket().set_nonblocking(true).unwrap();
    // On a busy machine datagrams arrive after they were sent.
    until("every datagram is received or lost", || {
        while b.receiver.receive().is_ok() {}
        b.receiver.stats().datagrams + b.receiver.lost().unwrap() == sent
    });
    assert!(b.receiver.lost().unwrap() > 0);
    // What was lost before the socket was taken over is not counted.
    let again = UdpBatch::new(b.socket().try_clone().unwrap(), &config.receive_buffer(0));
    assert_eq!(again.unwrap().receiver.lost().unwrap(), 0);
}

fn set(batch: &UdpBatch, option: libc::c_int, value: libc::c_int) {
    use std::os::fd::AsRawFd;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: address and length describe the int, which the kernel only reads.
    let set = unsafe { libc::setsockopt(batch.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), len) };
    assert_eq!(set, 0);
}

#[test]
fn the_granted_buffer_is_the_wanted_one_or_what_the_limit_allows() {
    let limit: usize = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
    let wanted = 2 * limit;
    let granted = bind(LOOPBACK, &UdpConfig::default().receive_buffer(wanted)).info().receive_buffer;
    assert!(granted == wanted || granted == limit, "{granted} of {wanted}, at most {limit}");
}

#[test]
fn a_larger_buffer_stays() {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let before = UdpBatch::new(socket.try_clone().unwrap(), &UdpConfig::default().receive_buffer(0)).unwrap().info();
    let small = UdpConfig::default().receive_buffer(before.receive_buffer / 2);
    assert_eq!(UdpBatch::new(socket, &small).unwrap().info().receive_buffer, before.receive_buffer);
}

#[test]
fn what_the_kernel_has_no_room_for_stays_pending_and_is_sent_later() {
    if !needs("what_the_kernel_has_no_room_for_stays_pending_and_is_sent_later", &[Need::Root]) {
        return;
    }
    let (near, far) = (Namespace::new("near"), Namespace::new("far"));
    near.ip(&format!("link add v0 type veth peer name v1 netns {}", far.name()));
    for (namespace, link, address) in [(&near, "v0", "10.0.0.1/24"), (&far, "v1", "10.0.0.2/24")] {
        namespace.ip(&format!("addr add {address} dev {link}"));
        namespace.ip(&format!("link set {link} up"));
    }
    let mut b = far.inside(|| bind("10.0.0.2:0", &UdpConfig::default()));
    // Next to nothing leaves: the qdisc holds what the socket has sent.
    near.run("tc", "qdisc add dev v0 root tbf rate 80bit burst 1540 limit 1000000");
    let mut a = near.inside(|| bind("10.0.0.1:0", &UdpConfig::default().send_buffer(0).segmentation(false)));
    set(&a, libc::SO_SNDBUF, 4608);
    a.socket().set_nonblocking(true).unwrap();
    for _ in 0..100 {
        a.sender.push(&Path::to(address(&b)), &[1; 1000]).unwrap();
    }
    let first = a.sender.flush().unwrap();
    assert!((1..100).contains(&first), "{first} were sent");
    assert_eq!(a.sender.pending(), 100 - first);
    assert_eq!(a.sender.flush().unwrap_err().kind(), ErrorKind::WouldBlock);
    balanced(&a, 100);
    near.run("tc", "qdisc del dev v0 root");
    let mut received = 0;
    while a.sender.pending() > 0 {
        match a.sender.flush() {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        std::thread::yield_now();
    }
    assert_eq!(a.sender.stats().datagrams, 100);
    // What the qdisc held went with it.
    while received < 100 - first {
        received += b.receiver.receive().unwrap();
    }
}
