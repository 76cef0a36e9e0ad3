//! Super-packets, whole if both ends accept them.

use super::{NEEDS, datagram, packet, socket, tap, to_host, try_open};
use crate::common::*;
use crate::support::{Namespace, needs};
use std::sync::atomic::Ordering;
use towpath_packet::port::{Port, RxQueue};
use towpath_packet::{Batch, Checksum, Gso, GsoKind, Offloads};
use towpath_wire::emit::Checksums;

#[test]
fn a_tcp_connection_between_two_taps_moves_super_packets_whole() {
    if !needs("a_tcp_connection_between_two_taps_moves_super_packets_whole", NEEDS) {
        return;
    }
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let pool = pool();
    let open = |ns: &Namespace, host: u8| {
        let addr = format!("10.0.0.{host}/24+fd00::{host}/64");
        start(try_open(&format!("tap:tp0?netns={},addr={addr},mtu=1500", ns.name())).unwrap(), &pool, Offloads::ALL)
    };
    let forwarder = Forwarder::new(open(&a, 1), open(&b, 2), &pool);
    tcp_echo(&a, &b, "10.0.0.2:5000", 8 << 20);
    let v4 = [forwarder.longest(0), forwarder.longest(1)];
    forwarder.longest.iter().for_each(|longest| longest.store(0, Ordering::Relaxed));
    tcp_echo(&a, &b, "[fd00::2]:5000", 8 << 20);
    let v6 = [forwarder.longest(0), forwarder.longest(1)];
    assert!(v4.iter().chain(&v6).all(|&longest| longest > 40_000), "{v4:?} {v6:?}");
}

#[test]
fn tcp_works_between_a_tap_with_offloads_and_one_without() {
    if !needs("tcp_works_between_a_tap_with_offloads_and_one_without", NEEDS) {
        return;
    }
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let pool = pool();
    let whole = try_open(&format!("tap:tp0?netns={},addr=10.0.0.1/24", a.name())).unwrap();
    let plain = try_open(&format!("tap:tp0?netns={},addr=10.0.0.2/24,csum=off", b.name())).unwrap();
    assert!(plain.info().tx_offloads.is_none() && plain.info().rx_offloads.is_none());
    // The first port learns only while it runs that the other accepts none.
    let whole = start(whole, &pool, Offloads::ALL);
    let forwarder = Forwarder::new(whole, start(plain, &pool, Offloads::ALL), &pool);
    tcp_echo(&a, &b, "10.0.0.2:5000", 2 << 20);
    assert_eq!(forwarder.longest(1), 0, "the second never hands over a super-packet");
}

#[test]
fn udp_super_packets_go_both_ways_whole() {
    if !needs("udp_super_packets_go_both_ways_whole", NEEDS) {
        return;
    }
    let ns = Namespace::new("uso");
    let (info, mut q) = tap(&ns, "", Offloads::ALL);
    assert!(info.tx_offloads.has(Offloads::USO) && info.rx_offloads.has(Offloads::USO), "{:?}", info.abilities);
    let socket = socket(&ns, "10.0.0.1:7000");
    let payload = pattern(30_000);
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    let whole = receive(&mut q.rx[0], |p| p.gso().map(|gso| (gso, p.len(), p.frags(), p.to_vec())));
    assert_eq!((whole.0.kind, whole.0.size, whole.1), (GsoKind::Udp, 1000, 30_042));
    assert_eq!(whole.2, 1, "a head and a tail");
    assert_eq!(whole.3[42..], payload);

    let (frame, start, headers) = to_host().udp(9, 7000, &payload[..4500], Checksums::Partial);
    let mut p = packet(&frame);
    p.set_csum(Checksum::Partial { start, offset: 6 });
    p.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 1000, segs: 5, hdr_len: headers }));
    send(&mut q.tx[0], p);
    for part in payload[..4500].chunks(1000) {
        assert_eq!(datagram(&socket), part);
    }
}

#[test]
fn restricting_a_running_queue_stops_super_packets_and_partial_checksums() {
    if !needs("restricting_a_running_queue_stops_super_packets_and_partial_checksums", NEEDS) {
        return;
    }
    let ns = Namespace::new("restrict");
    let (_, mut q) = tap(&ns, "", Offloads::ALL);
    let socket = socket(&ns, "10.0.0.1:7000");
    let payload = pattern(5000);
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    receive(&mut q.rx[0], |p| p.gso().map(drop));
    q.rx[0].set_rx_offloads(Offloads::NONE);
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    let mut parts = Vec::new();
    receive(&mut q.rx[0], |p| {
        parts.extend(udp_payload(&p)?);
        assert!(!p.wants_offload() && p.len() == 1042);
        (parts.len() == 5000).then_some(())
    });
    assert_eq!(parts, payload);
    q.rx[0].set_rx_offloads(Offloads::CSUM.with(Offloads::USO));
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    receive(&mut q.rx[0], |p| p.gso().map(drop));
}

#[test]
fn an_offload_that_one_queue_refuses_is_off_for_all_queues_of_the_device() {
    if !needs("an_offload_that_one_queue_refuses_is_off_for_all_queues_of_the_device", NEEDS) {
        return;
    }
    let ns = Namespace::new("least");
    let (_, mut q) = tap(&ns, ",queues=2", Offloads::ALL);
    q.rx[1].set_rx_offloads(Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    send_segmented(&socket, &pattern(3000), 1000, "10.0.0.2:9");
    let mut seen = 0;
    let mut batch = Batch::new();
    until("three packets arrive", || {
        for rx in &mut q.rx {
            rx.rx(&mut batch);
            for p in batch.drain_front(64) {
                assert!(p.gso().is_none());
                seen += usize::from(udp_payload(&p).is_some_and(|payload| payload.len() == 1000));
            }
        }
        seen == 3
    });
}
