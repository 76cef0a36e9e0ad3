//! What the kernel lost around a port is counted as the kernel itself counts it.

use crate::common::*;
use crate::support::{Namespace, Need, needs};
use std::net::UdpSocket;
use towpath_packet::port::{Port, RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason, Missed, Offloads, Packet};
use towpath_ports::{packet, tun};
use towpath_sys::rtnl::Link;

const TAP: &[Need] = &[Need::Root, Need::Tun];

/// A counter of an interface, as the kernel shows it.
fn counter(ns: &Namespace, interface: &str, name: &str) -> u64 {
    ns.run("cat", &format!("/sys/class/net/{interface}/statistics/{name}")).trim().parse().unwrap()
}

/// A namespace without packets of its own.
fn quiet() -> Namespace {
    let ns = Namespace::new("edge");
    ns.inside(|| {
        for of in ["all", "default"] {
            // Without IPv6 there is nothing to switch off.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
        }
    });
    ns
}

/// Sends datagrams to 10.0.0.2, which needs no ARP.
fn flood(ns: &Namespace, interface: &str, datagrams: usize, len: usize) {
    ns.ip(&format!("neigh replace 10.0.0.2 dev {interface} lladdr 02:00:00:00:00:02 nud permanent"));
    let socket = ns.inside(|| UdpSocket::bind("10.0.0.1:0").unwrap());
    for _ in 0..datagrams {
        // A full queue is no error of the call that fills it.
        let _ = socket.send_to(&pattern(len), "10.0.0.2:9");
    }
}

/// Receives until a call returns nothing; returns the number of packets.
fn drain(rx: &mut impl RxQueue) -> u64 {
    let (mut batch, mut seen) = (Batch::new(), 0);
    while rx.rx(&mut batch) > 0 {
        seen += batch.drain_front(64).count() as u64;
    }
    seen
}

fn tap(ns: &Namespace, text: &str) -> tun::TunPort {
    let uri = uri(&format!("tap:{text},netns={}", ns.name()));
    tun::open(tun::Config::from_uri(&uri).unwrap()).unwrap()
}

#[test]
fn what_the_full_queue_of_a_tap_drops_is_counted_since_the_start_until_the_interface_vanishes() {
    if !needs("what_the_full_queue_of_a_tap_drops_is_counted_since_the_start_until_the_interface_vanishes", TAP) {
        return;
    }
    let ns = quiet();
    // The second port opens the interface with the losses of the first one.
    for (interface, persist) in [("e0", "on"), ("e0", "on"), ("e1", "off")] {
        let port = tap(&ns, &format!("{interface}?persist={persist},txqueuelen=16,addr=10.0.0.1/24"));
        let edge = port.edge().unwrap();
        let before = counter(&ns, interface, "tx_dropped");
        let mut q = start(port, &pool(), Offloads::NONE);
        flood(&ns, interface, 1000, 100);
        let lost = counter(&ns, interface, "tx_dropped") - before;
        let seen = drain(&mut q.rx[0]);
        assert!(seen > 0 && lost > 0 && seen + lost == 1000, "{seen} received, {lost} lost");
        // No reading happened so far: the last queue does it before it closes the interface.
        assert_eq!(edge.rx().snapshot().all_missed(), 0);
        drop(q);
        let missed = || edge.rx().snapshot().missed().collect::<Vec<_>>();
        assert_eq!(missed(), [(Missed::TunQueue, lost)]);
        edge.refresh();
        assert_eq!((missed(), edge.tx().snapshot().all_missed()), (vec![(Missed::TunQueue, lost)], 0));
        if persist == "on" {
            is_detached(&ns, interface);
            ns.ip(&format!("addr flush dev {interface}"));
        }
    }
}

#[test]
fn the_losses_of_a_tap_that_was_moved_to_another_namespace_and_renamed_are_counted() {
    if !needs("the_losses_of_a_tap_that_was_moved_to_another_namespace_and_renamed_are_counted", TAP) {
        return;
    }
    let (here, there) = (quiet(), quiet());
    let port = tap(&here, "e0?txqueuelen=16");
    let edge = port.edge().unwrap();
    let q = start(port, &pool(), Offloads::NONE);
    here.ip(&format!("link set e0 netns {} name moved", there.name()));
    there.ip("link set moved up");
    there.ip("addr add 10.0.0.1/24 dev moved");
    for round in 1..=2 {
        flood(&there, "moved", 100, 100);
        edge.refresh();
        let lost = counter(&there, "moved", "tx_dropped");
        assert_eq!(edge.rx().snapshot().missed().collect::<Vec<_>>(), [(Missed::TunQueue, lost)], "{round}");
        assert!(lost >= 84);
    }
    drop(q);
}

#[test]
fn what_the_host_drops_of_written_packets_is_counted_but_nothing_that_it_refused() {
    if !needs("what_the_host_drops_of_written_packets_is_counted_but_nothing_that_it_refused", TAP) {
        return;
    }
    let ns = quiet();
    let port = tap(&ns, "e0?up=off");
    let edge = port.edge().unwrap();
    let pool = pool();
    let mut q = start(port, &pool, Offloads::NONE);
    // The probe of the offloads has written to the interface before the start.
    let before = counter(&ns, "e0", "rx_dropped");
    let dropped = || counter(&ns, "e0", "rx_dropped") - before;
    let mut frame = [0u8; 60];
    // To everybody, of a type for local experiments (IEEE 802) that no protocol takes.
    frame[..6].fill(0xff);
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    let mut cache = tx_cache(&pool);
    let mut frame = || Packet::copy_from(&mut cache, &frame).unwrap();
    for _ in 0..3 {
        send(&mut q.tx[0], frame());
    }
    assert_eq!(q.tx[0].counters().snapshot().dropped(DropReason::LinkDown), 3);
    assert_eq!(dropped(), 3);
    edge.refresh();
    assert_eq!(edge.tx().snapshot().all_missed(), 0);
    ns.ip("link set e0 up");
    for _ in 0..2 {
        send(&mut q.tx[0], frame());
    }
    edge.refresh();
    assert_eq!(dropped(), 5);
    assert_eq!(edge.tx().snapshot().missed().collect::<Vec<_>>(), [(Missed::Host, 2)]);
}

#[test]
fn what_a_queueing_discipline_drops_is_counted_even_if_it_is_replaced() {
    let needed = &[Need::Root, Need::Tun, Need::Program("tc")];
    if !needs("what_a_queueing_discipline_drops_is_counted_even_if_it_is_replaced", needed) {
        return;
    }
    let ns = quiet();
    let port = tap(&ns, "e0?addr=10.0.0.1/24");
    let edge = port.edge().unwrap();
    let mut q = start(port, &pool(), Offloads::NONE);
    for (datagrams, sum) in [(30, 30), (20, 50)] {
        ns.run("tc", "qdisc replace dev e0 root blackhole");
        flood(&ns, "e0", datagrams, 100);
        edge.refresh();
        assert_eq!(edge.rx().snapshot().missed().collect::<Vec<_>>(), [(Missed::Qdisc, sum)]);
        // The next one counts from zero.
        ns.run("tc", "qdisc del dev e0 root");
    }
    assert_eq!(drain(&mut q.rx[0]), 0);
}

#[test]
fn the_ring_and_the_buffer_of_a_packet_socket_are_told_apart_and_nothing_is_lost_without_a_count() {
    const NAME: &str = "the_ring_and_the_buffer_of_a_packet_socket_are_told_apart_and_nothing_is_lost_without_a_count";
    if !needs(NAME, &[Need::Root]) {
        return;
    }
    let (host, middle) = (quiet(), quiet());
    host.ip(&format!("link add h0 mtu 9000 type veth peer name p0 mtu 9000 netns {}", middle.name()));
    host.ip("link set h0 up");
    middle.ip("link set p0 up");
    host.ip("addr add 10.0.0.1/24 dev h0");
    let open = |options: &str| {
        let uri = uri(&format!("packet:p0?netns={},{options}", middle.name()));
        start(packet::open(packet::Config::from_uri(&uri).unwrap()).unwrap(), &pool(), Offloads::ALL)
    };
    let places = |options: &str, datagrams: usize, len: usize| {
        let mut q = open(options);
        flood(&host, "h0", datagrams, len);
        let counters = q.rx[0].counters().clone();
        let mut seen = 0;
        until("every datagram is received or missed", || {
            seen += drain(&mut q.rx[0]);
            seen + counters.snapshot().all_missed() == datagrams as u64
        });
        assert!(seen > 0);
        counters.snapshot().missed().map(|(place, _)| place).collect::<Vec<_>>()
    };
    assert_eq!(places("ring=64,rcvbuf=64M", 1000, 100), [Missed::SocketRing]);
    assert_eq!(places("ring=4096,rcvbuf=65536", 500, 5000), [Missed::SocketBuffer]);
    assert_eq!(places("ring=4096,rcvbuf=64M", 500, 5000), []);
}

#[test]
fn the_other_end_of_a_veth_is_found_in_another_namespace() {
    if !needs("the_other_end_of_a_veth_is_found_in_another_namespace", &[Need::Root]) {
        return;
    }
    let (host, middle) = (quiet(), quiet());
    host.ip(&format!("link add h0 type veth peer name p0 netns {}", middle.name()));
    host.ip("link set h0 up");
    middle.ip("link set p0 up");
    host.ip("addr add 10.0.0.1/24 dev h0");
    flood(&host, "h0", 10, 100);
    let index = middle.run("cat", "/sys/class/net/p0/ifindex").trim().parse().unwrap();
    let (own, peer) = middle.inside(|| {
        let link = Link::new(index).unwrap();
        (link.statistics().unwrap(), link.veth_peer().unwrap().unwrap().statistics().unwrap())
    });
    assert_eq!((own.tx_packets, peer.tx_packets), (0, counter(&host, "h0", "tx_packets")));
    assert!(peer.tx_packets >= 10);
}
