//! Devices and paths that refuse a message of several datagrams.

use crate::common::{address, balanced, bind, flush, receive};
use std::os::fd::AsRawFd;
use towpath_testing::{Namespace, Need, needs};
use towpath_udp::{Path, UdpBatch, UdpConfig};

/// Two namespaces and the link between them, of MTU 1280.
struct Link {
    near: Namespace,
    far: Namespace,
}

impl Link {
    fn new() -> Link {
        let (near, far) = (Namespace::new("near"), Namespace::new("far"));
        near.ip(&format!("link add v0 type veth peer name v1 netns {}", far.name()));
        for (namespace, link, number) in [(&near, "v0", 1), (&far, "v1", 2)] {
            namespace.ip(&format!("addr add 10.0.0.{number}/24 dev {link}"));
            namespace.ip(&format!("addr add 2001:db8::{number}/64 dev {link} nodad"));
            namespace.ip(&format!("link set {link} mtu 1280 up"));
        }
        Link { near, far }
    }

    fn batches(&self, family: usize) -> (UdpBatch, UdpBatch) {
        let (a, b) = [("10.0.0.1:0", "10.0.0.2:0"), ("[2001:db8::1]:0", "[2001:db8::2]:0")][family];
        let config = UdpConfig::default();
        (self.near.inside(|| bind(a, &config)), self.far.inside(|| bind(b, &config)))
    }
}

fn push(a: &mut UdpBatch, b: &UdpBatch, n: usize, len: usize) -> Vec<Vec<u8>> {
    let sent: Vec<_> = (0..n).map(|i| vec![i as u8; len]).collect();
    sent.iter().for_each(|datagram| a.sender.push(&Path::to(address(b)), datagram).unwrap());
    sent
}

fn set(batch: &UdpBatch, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: address and length describe the int, which the kernel only reads.
    let set = unsafe { libc::setsockopt(batch.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    assert_eq!(set, 0);
}

#[test]
fn segments_longer_than_the_mtu_are_sent_as_datagrams_and_the_size_is_remembered() {
    if !needs("segments_longer_than_the_mtu_are_sent_as_datagrams_and_the_size_is_remembered", &[Need::Root]) {
        return;
    }
    let link = Link::new();
    for family in [0, 1] {
        let (mut a, mut b) = link.batches(family);
        // Each is fragmented; no message of several may be.
        let sent = push(&mut a, &b, 20, 1400);
        flush(&mut a);
        assert_eq!(receive(&mut b, 20), sent);
        let stats = a.sender.stats();
        assert_eq!((stats.refused, stats.segmented, stats.dropped), (1, 0, 0));
        assert_eq!(a.sender.refused_size(), Some(1400));

        let sent = [push(&mut a, &b, 10, 1400), push(&mut a, &b, 10, 1500), push(&mut a, &b, 10, 1000)].concat();
        flush(&mut a);
        let mut received = receive(&mut b, 30);
        // Fragments take longer than whole datagrams: among sizes there is no order.
        received.sort_by_key(|datagram| [1400, 1500, 1000].iter().position(|&len| len == datagram.len()));
        assert_eq!(received, sent);
        let stats = a.sender.stats();
        assert_eq!((stats.refused, stats.segmented, stats.dropped), (1, 1, 0));
        balanced(&a, 50);
    }
}

#[test]
fn segments_that_must_not_be_fragmented_are_dropped_and_counted_and_nothing_is_remembered() {
    if !needs("segments_that_must_not_be_fragmented_are_dropped_and_counted_and_nothing_is_remembered", &[Need::Root]) {
        return;
    }
    let link = Link::new();
    let (mut a, mut b) = link.batches(0);
    set(&a, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    push(&mut a, &b, 5, 1400);
    let sent = push(&mut a, &b, 5, 1200);
    flush(&mut a);
    assert_eq!(receive(&mut b, 5), sent);
    let stats = a.sender.stats();
    assert_eq!((stats.refused, stats.segmented, stats.dropped), (1, 1, 5));
    assert_eq!(a.sender.take_error().unwrap().raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(a.sender.refused_size(), None);
    balanced(&a, 10);
}

#[test]
fn a_socket_without_checksums_sends_datagrams_one_by_one() {
    if !needs("a_socket_without_checksums_sends_datagrams_one_by_one", &[Need::Root]) {
        return;
    }
    let link = Link::new();
    let (mut a, mut b) = link.batches(0);
    set(&a, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1);
    for _ in 0..2 {
        let sent = push(&mut a, &b, 20, 1000);
        flush(&mut a);
        assert_eq!(receive(&mut b, 20), sent);
    }
    let stats = a.sender.stats();
    assert_eq!((stats.refused, stats.segmented, stats.dropped), (1, 0, 0));
    balanced(&a, 40);
}

#[test]
fn a_device_without_checksum_offload_loses_nothing() {
    if !needs("a_device_without_checksum_offload_loses_nothing", &[Need::Root, Need::Program("ethtool")]) {
        return;
    }
    let link = Link::new();
    // Kernels before 6.11 refuse the message (EIO), later ones segment it.
    link.near.run("ethtool", "-K v0 tx off");
    let (mut a, mut b) = link.batches(0);
    for _ in 0..2 {
        let sent = push(&mut a, &b, 20, 1000);
        flush(&mut a);
        assert_eq!(receive(&mut b, 20), sent);
    }
    let stats = a.sender.stats();
    assert_eq!((stats.refused + stats.segmented, stats.dropped), (if stats.refused > 0 { 1 } else { 2 }, 0));
    balanced(&a, 40);
}
