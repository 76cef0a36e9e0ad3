//! Bytes and checksums, through a tap and through a tun.

use super::{NEEDS, datagram, packet, socket, tap, to_host, try_open};
use crate::common::*;
use crate::support::{Namespace, needs};
use std::sync::Arc;
use towpath_packet::port::{Port, RxQueue, TxQueue};
use towpath_packet::{Checksum, DropReason, Gso, GsoKind, Offloads};
use towpath_wire::emit::Checksums;

#[test]
fn bytes_go_through_a_tap_unchanged_in_both_directions() {
    if !needs("bytes_go_through_a_tap_unchanged_in_both_directions", NEEDS) {
        return;
    }
    let ns = Namespace::new("tap");
    let (_, mut q) = tap(&ns, "", Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    for len in [1, 100, 1400, 1472] {
        let payload = pattern(len);
        socket.send_to(&payload, "10.0.0.2:9").unwrap();
        receive(&mut q.rx[0], |p| {
            assert!(!p.wants_offload(), "nothing was accepted");
            (udp_payload(&p)? == payload).then_some(())
        });
        send(&mut q.tx[0], packet(&to_host().udp(9, 7000, &payload, Checksums::Complete).0));
        assert_eq!(datagram(&socket), payload);
    }
    let (rx, tx) = (q.rx[0].counters().snapshot(), q.tx[0].counters().snapshot());
    assert!(rx.packets >= 4 && rx.bytes >= 2973 + 4 * 42 && rx.calls > rx.packets);
    assert_eq!((tx.packets, tx.bytes, tx.calls, tx.all_drops()), (4, 2973 + 4 * 42, 4, 0));
}

#[test]
fn bytes_go_through_a_tun_unchanged_in_both_directions() {
    if !needs("bytes_go_through_a_tun_unchanged_in_both_directions", NEEDS) {
        return;
    }
    let ns = Namespace::new("tun");
    let port = try_open(&format!("tun:tn%d?netns={},addr=10.0.0.1/24,mtu=9000", ns.name())).unwrap();
    assert_eq!((port.info().name.as_str(), port.info().mtu), ("tun:tn0", 9000));
    let mut q = start(port, &pool(), Offloads::ALL);
    let socket = socket(&ns, "10.0.0.1:7000");
    let payload = pattern(8000);
    socket.send_to(&payload, "10.0.0.2:9").unwrap();
    receive(&mut q.rx[0], |p| p.to_vec().ends_with(&payload).then_some(()));
    let host = Between { link: None, ..to_host() };
    send(&mut q.tx[0], packet(&host.udp(9, 7000, &payload, Checksums::Complete).0));
    assert_eq!(datagram(&socket), payload);
    send(&mut q.tx[0], packet(b"\x00 is no version of IP"));
    assert_eq!(q.tx[0].counters().snapshot().dropped(DropReason::Malformed), 1);
}

#[test]
fn the_kernel_completes_a_partial_checksum_and_refuses_a_wrong_complete_one() {
    if !needs("the_kernel_completes_a_partial_checksum_and_refuses_a_wrong_complete_one", NEEDS) {
        return;
    }
    let ns = Namespace::new("csum");
    let (_, mut q) = tap(&ns, "", Offloads::ALL);
    let socket = socket(&ns, "10.0.0.1:7000");
    let (frame, start, _) = to_host().udp(9, 7000, b"partial", Checksums::Partial);
    // The same bytes are wrong without the mark of a partial checksum.
    send(&mut q.tx[0], packet(&frame));
    let mut partial = packet(&frame);
    partial.set_csum(Checksum::Partial { start, offset: 6 });
    send(&mut q.tx[0], partial);
    send(&mut q.tx[0], packet(&to_host().udp(9, 7000, b"last", Checksums::Complete).0));
    assert_eq!(datagram(&socket), b"partial");
    assert_eq!(datagram(&socket), b"last", "the first one was dropped");
    // In the other direction the kernel hands over a partial checksum.
    socket.send_to(b"from the kernel", "10.0.0.2:9").unwrap();
    let csum = receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"from the kernel").then(|| p.csum()));
    assert_eq!(csum, Checksum::Partial { start: 34, offset: 6 });
}

#[test]
fn datagrams_as_long_as_the_largest_mtu_go_through_whole() {
    if !needs("datagrams_as_long_as_the_largest_mtu_go_through_whole", NEEDS) {
        return;
    }
    let ns = Namespace::new("jumbo");
    let (info, mut q) = tap(&ns, ",mtu=65521", Offloads::CSUM);
    assert_eq!(info.mtu, 65521);
    let socket = socket(&ns, "10.0.0.1:7000");
    let payload = pattern(65521 - 28);
    socket.send_to(&payload, "10.0.0.2:9").unwrap();
    receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then_some(()));
    let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
    let p = packet(&frame);
    assert!(p.frags() > 30, "all chunks of a long chain are written");
    send(&mut q.tx[0], p);
    assert_eq!(datagram(&socket), payload);
}

#[test]
fn bytes_that_packets_own_are_written_from_where_they_lie() {
    if !needs("bytes_that_packets_own_are_written_from_where_they_lie", NEEDS) {
        return;
    }
    let ns = Namespace::new("owned");
    let (_, mut q) = tap(&ns, ",mtu=65521", Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    let pool = pool();
    let cache = &mut tx_cache(&pool);
    for len in [1, 1472, 65521 - 28] {
        let payload = pattern(len);
        let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
        for (packet, owner) in owned(&frame, 42, cache) {
            send(&mut q.tx[0], packet);
            assert!(datagram(&socket) == payload);
            assert_eq!(Arc::strong_count(&owner), 1, "freed when it was written");
        }
    }
    let tx = q.tx[0].counters().snapshot();
    assert_eq!((tx.packets, tx.copied, tx.all_drops()), (6, 0, 0));
    // A super-packet, which the kernel splits.
    assert!(q.tx[0].offloads().has(Offloads::USO));
    let payload = pattern(40_000);
    let (frame, start, _) = to_host().udp(9, 7000, &payload, Checksums::Partial);
    for (mut packet, owner) in owned(&frame, 42, cache) {
        packet.set_csum(Checksum::Partial { start, offset: 6 });
        packet.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 1000, segs: 40, hdr_len: 42 }));
        send(&mut q.tx[0], packet);
        let datagrams: Vec<u8> = (0..40).flat_map(|_| datagram(&socket)).collect();
        assert!(datagrams == payload);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
