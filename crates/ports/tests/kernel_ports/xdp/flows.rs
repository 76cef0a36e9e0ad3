//! The flows that are received, and their queues.

use super::{NEEDS, all_free, datagram, pair, to_host};
use crate::common::*;
use crate::support::needs;
use std::net::UdpSocket;
use towpath_packet::port::{Port, RxQueue, Start};
use towpath_packet::{Batch, Offloads, Packet};
use towpath_wire::emit::Checksums;

#[test]
fn only_the_flows_of_match_are_received_and_the_rest_goes_to_the_host() {
    if !needs("only_the_flows_of_match_are_received_and_the_rest_goes_to_the_host", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.middle.ip("addr add 10.0.0.2/24 dev p0");
    pair.middle.ip("link set p0 address 02:00:00:00:00:02");
    pair.host.ip("addr add fd00::1/64 dev h0 nodad");
    pair.middle.ip("addr add fd00::2/64 dev p0 nodad");
    let flows = [
        ("udp dport 4242", true),
        ("udp dport 4000-4242", true),
        ("tcp dport 4242", false),
        ("dport 4242 src 10.0.0.0/24 dst 10.0.0.2", true),
        ("dport 4242 src 10.0.1.0/24", false),
        ("ip dmac 02:00:00:00:00:02 smac 02:00:00:00:00:01", true),
        ("dmac 82:00:00:00:00:02", false),
        ("vlan 100", false),
        ("frag", false),
        ("ip6", false),
        ("ether 0x88cc+udp sport 1+proto 17", true),
    ];
    let host = pair.middle.inside(|| UdpSocket::bind("10.0.0.2:4242").unwrap());
    for (flow, ours) in flows {
        let pool = pool();
        let mut q = pair.start(&format!(",match={flow}"), &pool);
        host.set_read_timeout(Some(if ours { std::time::Duration::from_millis(20) } else { PATIENCE })).unwrap();
        let socket = pair.socket(0);
        socket.send_to(flow.as_bytes(), "10.0.0.2:4242").unwrap();
        let mut buffer = [0; 100];
        let got = host.recv(&mut buffer);
        if ours {
            receive(&mut q.rx[0], |p| (udp_payload(&p)? == flow.as_bytes()).then_some(()));
            assert!(got.is_err(), "{flow}: the host got it too");
        } else {
            assert_eq!(&buffer[..got.unwrap()], flow.as_bytes(), "{flow}");
        }
        drop(q);
        pair.is_free();
    }
    let pool = pool();
    let mut q = pair.start(",match=udp src fd00::/64 dst fd00::2 dport 4242", &pool);
    let socket = pair.host.inside(|| UdpSocket::bind("[fd00::1]:0").unwrap());
    socket.send_to(b"six", "[fd00::2]:4242").unwrap();
    receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"six").then_some(()));
}

#[test]
fn several_queues_share_the_memory() {
    if !needs("several_queues_share_the_memory", NEEDS) {
        return;
    }
    let pair = pair("numrxqueues 2 numtxqueues 2");
    let pool = pool();
    let port = pair.try_open(",queues=2").unwrap();
    let mut q = port.start(Start { pool: pool.clone(), queues: 2, accept: Offloads::ALL }).unwrap();
    let socket = pair.socket(7000);
    for (i, tx) in q.tx.iter_mut().enumerate() {
        let payload = pattern(100 + i);
        let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
        send(tx, Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
        assert_eq!(datagram(&socket), payload);
    }
    // A flow is received in any queue that the kernel chooses.
    for flow in 0..16u16 {
        let socket = pair.socket(8000 + flow);
        let payload = pattern(200 + usize::from(flow));
        socket.send_to(&payload, "10.0.0.2:9").unwrap();
        let end = std::time::Instant::now() + PATIENCE;
        let mut seen = false;
        while !seen {
            assert!(std::time::Instant::now() < end, "flow {flow} came by no queue");
            for rx in &mut q.rx {
                let mut batch = Batch::new();
                rx.refill();
                rx.rx(&mut batch);
                seen |= batch.iter().any(|p| udp_payload(p).is_some_and(|got| got == payload));
            }
        }
    }
    drop(q);
    all_free(&pool);
}
