//! `packet:`, on the ends of veth pairs.

use crate::common::*;
use crate::support::{Namespace, Need, needs, skip};
use std::collections::HashSet;
use std::net::UdpSocket;
use std::sync::Arc;
use towpath_packet::port::{Ability, Layer, Port, PortError, Queues, RxQueue, State, TxBarrier, TxQueue, Wake};
use towpath_packet::{Batch, Checksum, DropReason, Gso, GsoKind, Offloads, Packet, Pool, Vlan};
use towpath_ports::packet::{Config, PacketPort, PacketRx, PacketTx, open};
use towpath_ports::tun;
use towpath_wire::emit::{Checksums, Ip, Link};
use towpath_wire::vlan::{Tag, Tci};

const NEEDS: &[Need] = &[Need::Root];

fn try_open(text: &str) -> Result<PacketPort, PortError> {
    open(Config::from_uri(&uri(text))?)
}

/// A host with 10.0.0.1 and fd00::1 on its end `h0` of a veth pair; the other end `p0`, in a
/// namespace of its own, is the port's.
struct Pair {
    host: Namespace,
    middle: Namespace,
}

fn pair() -> Pair {
    let (host, middle) = (Namespace::new("host"), Namespace::new("mid"));
    veth(&host, "h0", &middle, "p0");
    host.ip("link set h0 address 02:00:00:00:00:01");
    host.ip("addr add 10.0.0.1/24 dev h0");
    host.ip("addr add fd00::1/64 dev h0 nodad");
    host.ip("neigh add 10.0.0.2 dev h0 lladdr 02:00:00:00:00:02");
    Pair { host, middle }
}

fn veth(a: &Namespace, a_end: &str, b: &Namespace, b_end: &str) {
    a.ip(&format!("link add {a_end} type veth peer name {b_end} netns {}", b.name()));
    a.ip(&format!("link set {a_end} up"));
    b.ip(&format!("link set {b_end} up"));
}

impl Pair {
    fn open(&self, options: &str) -> PacketPort {
        try_open(&format!("packet:p0?netns={}{options}", self.middle.name())).unwrap()
    }

    fn start(&self, options: &str) -> Queues<PacketRx, PacketTx> {
        start(self.open(options), &pool(), Offloads::ALL)
    }

    fn socket(&self, port: u16) -> UdpSocket {
        socket(&self.host, &format!("10.0.0.1:{port}"))
    }
}

fn to_host() -> Between {
    let link = Link { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], ..Link::default() };
    Between { link: Some(link), ip: Ip::v4([10, 0, 0, 2], [10, 0, 0, 1]) }
}

fn packet(bytes: &[u8]) -> Packet {
    Packet::copy_from(&mut tx_cache(&pool()), bytes).unwrap()
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let n = socket.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

#[test]
fn bytes_go_through_an_interface_unchanged_in_both_directions_and_nothing_is_received_twice() {
    if !needs("bytes_go_through_an_interface_unchanged_in_both_directions_and_nothing_is_received_twice", NEEDS) {
        return;
    }
    for qdisc in ["normal", "bypass"] {
        let pair = pair();
        let mut q = pair.start(&format!(",qdisc={qdisc}"));
        let socket = pair.socket(7000);
        let mut sent = 0;
        for len in [1, 100, 1472] {
            let payload = pattern(len);
            send(&mut q.tx[0], packet(&to_host().udp(9, 7000, &payload, Checksums::Complete).0));
            assert_eq!(datagram(&socket), payload);
            sent += 42 + len as u64;
            socket.send_to(&payload, "10.0.0.2:9").unwrap();
            receive(&mut q.rx[0], |p| {
                let bytes = p.to_vec();
                assert_ne!(bytes[6..12], [2, 0, 0, 0, 0, 2], "what the port sent comes back to it");
                (udp_payload(&p)? == payload).then_some(())
            });
        }
        let s = q.tx[0].counters().snapshot();
        assert_eq!((s.packets, s.bytes, s.all_drops()), (3, sent, 0));
        let s = q.rx[0].counters().snapshot();
        assert!(s.packets >= 3 && s.calls == 0, "out of the ring, without a system call: {s:?}");
    }
}

#[test]
fn bytes_that_packets_own_are_sent_from_where_they_lie() {
    if !needs("bytes_that_packets_own_are_sent_from_where_they_lie", NEEDS) {
        return;
    }
    for qdisc in ["normal", "bypass"] {
        let pair = pair();
        let mut q = pair.start(&format!(",qdisc={qdisc}"));
        let socket = pair.socket(7000);
        let pool = pool();
        for len in [1, 100, 1472] {
            let payload = pattern(len);
            let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
            for (packet, owner) in owned(&frame, 42, &mut tx_cache(&pool)) {
                send(&mut q.tx[0], packet);
                assert_eq!(datagram(&socket), payload);
                until("the owner is still in use", || {
                    q.tx[0].reclaim();
                    Arc::strong_count(&owner) == 1
                });
            }
        }
        let s = q.tx[0].counters().snapshot();
        assert_eq!((s.packets, s.copied, s.all_drops()), (6, 0, 0));
    }
}

#[test]
fn a_batch_of_many_sizes_arrives_in_order() {
    if !needs("a_batch_of_many_sizes_arrives_in_order", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start("");
    let socket = pair.socket(7000);
    for round in 0..20 {
        let mut batch = Batch::new();
        for i in 0..64usize {
            batch
                .push(packet(&to_host().udp(9, 7000, &pattern(1 + (i * 97 + round) % 1472), Checksums::Complete).0))
                .unwrap();
        }
        assert_eq!(q.tx[0].tx(&mut batch), 64);
        for i in 0..64usize {
            assert_eq!(datagram(&socket), pattern(1 + (i * 97 + round) % 1472));
        }
    }
    assert_eq!(q.tx[0].counters().snapshot().calls, 20);
}

#[test]
fn checksums_and_super_packets_go_both_ways() {
    // The probe of the abilities uses a tap.
    if !needs("checksums_and_super_packets_go_both_ways", &[Need::Root, Need::Tun]) {
        return;
    }
    let pair = pair();
    let port = pair.open("");
    for ability in &port.info().abilities {
        let why = match ability.name {
            Ability::LINK => "up, with carrier",
            "ring" | "rcvbuf" => &ability.why,
            _ => "accepted by the kernel",
        };
        assert!(ability.on && ability.why == why, "{ability:?}");
    }
    assert_eq!((port.info().layer, port.info().mtu), (Layer::Ethernet, 1500));
    let mut q = start(port, &pool(), Offloads::ALL);
    let socket = pair.socket(7000);
    let payload = pattern(30_000);
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    let whole = receive(&mut q.rx[0], |p| p.gso().map(|gso| (gso, p.csum(), p.frags(), p.to_vec())));
    assert_eq!((whole.0.kind, whole.0.size), (GsoKind::Udp, 1000));
    assert_eq!((whole.1, whole.2), (Checksum::Partial { start: 34, offset: 6 }, 1));
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

/// Two hosts whose veth pairs end in `middle`, as `pa` and `pb`.
fn two_hosts() -> (Namespace, Namespace, Namespace) {
    let (a, b, middle) = (Namespace::new("a"), Namespace::new("b"), Namespace::new("mid"));
    for (host, end, number) in [(&a, "pa", 1), (&b, "pb", 2)] {
        veth(host, "h0", &middle, end);
        host.ip(&format!("addr add 10.0.0.{number}/24 dev h0"));
        host.ip(&format!("addr add fd00::{number}/64 dev h0 nodad"));
    }
    (a, b, middle)
}

#[test]
fn a_tcp_connection_between_two_interfaces_moves_super_packets_whole() {
    if !needs("a_tcp_connection_between_two_interfaces_moves_super_packets_whole", NEEDS) {
        return;
    }
    for qdisc in ["normal", "bypass"] {
        let (a, b, middle) = two_hosts();
        let pool = pool();
        let open = |end: &str| {
            let port = try_open(&format!("packet:{end}?netns={},qdisc={qdisc}", middle.name())).unwrap();
            start(port, &pool, Offloads::ALL)
        };
        let forwarder = Forwarder::new(open("pa"), open("pb"), &pool);
        tcp_echo(&a, &b, "10.0.0.2:5000", 8 << 20);
        tcp_echo(&a, &b, "[fd00::2]:5000", 8 << 20);
        let longest = [forwarder.longest(0), forwarder.longest(1)];
        assert!(longest.iter().all(|&longest| longest > 40_000), "{longest:?}");
    }
}

#[test]
fn tcp_works_between_a_tap_and_an_interface_with_and_without_offloads() {
    if !needs("tcp_works_between_a_tap_and_an_interface_with_and_without_offloads", &[Need::Root, Need::Tun]) {
        return;
    }
    for (tap, interface) in [("", ""), (",csum=off", ""), ("", ",csum=off"), (",tso=off", ",tso=off,uso=off")] {
        let (a, pair) = (Namespace::new("a"), pair());
        pair.host.ip("neigh del 10.0.0.2 dev h0");
        let pool = pool();
        let text = format!("tap:t?netns={},addr=10.0.0.2/24+fd00::2/64{tap}", a.name());
        let tap = tun::open(tun::Config::from_uri(&uri(&text)).unwrap()).unwrap();
        let interface = start(pair.open(interface), &pool, Offloads::ALL);
        let _forwarder = Forwarder::new(start(tap, &pool, Offloads::ALL), interface, &pool);
        tcp_echo(&a, &pair.host, "10.0.0.1:5000", 2 << 20);
        tcp_echo(&pair.host, &a, "[fd00::2]:5000", 2 << 20);
    }
}

#[test]
fn a_tag_that_the_kernel_removed_is_in_the_metadata() {
    if !needs("a_tag_that_the_kernel_removed_is_in_the_metadata", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start("");
    let mut far = start(try_open(&format!("packet:h0?netns={}", pair.host.name())).unwrap(), &pool(), Offloads::ALL);
    for (tpid, service) in [(0x8100, false), (0x88a8, true)] {
        let mut tagged = to_host();
        tagged.link = tagged.link.map(|link| Link { tags: [Tag { tpid, tci: Tci(100) }, Tag::default()], ..link });
        let (frame, start, _) = tagged.udp(9, 9, b"tagged", Checksums::Partial);
        let mut p = packet(&frame);
        p.set_csum(Checksum::Partial { start, offset: 6 });
        send(&mut far.tx[0], p);
        let (vlan, csum) = receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"tagged").then(|| (p.vlan(), p.csum())));
        assert_eq!(vlan, Some(Vlan { tci: 100, service }));
        assert_eq!(csum, Checksum::Partial { start: 34, offset: 6 }, "counted in the packet without the tag");
    }
}

#[test]
fn queues_share_the_flows_and_no_packet_is_received_twice_or_lost() {
    if !needs("queues_share_the_flows_and_no_packet_is_received_twice_or_lost", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start(",queues=3");
    assert_eq!((q.rx.len(), q.tx.len()), (3, 3));
    let sockets: Vec<_> = (0..60).map(|i| pair.socket(8000 + i)).collect();
    for round in 0..5u8 {
        for (i, socket) in sockets.iter().enumerate() {
            socket.send_to(&[round, i as u8], "10.0.0.2:9").unwrap();
        }
    }
    let mut seen = HashSet::new();
    let mut queue_of = vec![HashSet::new(); 60];
    let mut batch = Batch::new();
    until("all packets arrive", || {
        for rx in &mut q.rx {
            rx.rx(&mut batch);
            for p in batch.drain_front(64) {
                if let Some([round, flow]) = udp_payload(&p).as_deref() {
                    assert!(seen.insert((*round, *flow)), "seen twice");
                    queue_of[usize::from(*flow)].insert(p.ingress().1);
                }
            }
        }
        seen.len() == 300
    });
    assert!(queue_of.iter().all(|queues| queues.len() == 1), "a flow stays on its queue");
    let used: HashSet<u8> = queue_of.iter().flatten().copied().collect();
    assert_eq!(used.len(), 3, "every queue has flows");
    // Any queue can send to any flow.
    for (i, tx) in q.tx.iter_mut().enumerate() {
        send(tx, packet(&to_host().udp(9, 8000, &[i as u8], Checksums::Complete).0));
        assert_eq!(datagram(&sockets[0]), [i as u8]);
    }
}

#[test]
fn a_link_that_goes_down_is_reported_and_works_again_when_it_is_up() {
    if !needs("a_link_that_goes_down_is_reported_and_works_again_when_it_is_up", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start("");
    let socket = pair.socket(7000);
    let frame = to_host().udp(9, 7000, b"again", Checksums::Complete).0;
    pair.middle.ip("link set p0 down");
    let mut batch = Batch::new();
    for _ in 0..3 {
        batch.push(packet(&frame)).unwrap();
    }
    assert_eq!(q.tx[0].tx(&mut batch), 3);
    assert_eq!(q.tx[0].counters().snapshot().dropped(DropReason::LinkDown), 3);
    assert!(matches!(q.tx[0].state(), State::Down(_)));
    until("the receive queue notices", || {
        q.rx[0].rx(&mut batch);
        matches!(q.rx[0].state(), State::Down(_))
    });
    pair.middle.ip("link set p0 up");
    until("both queues notice", || {
        q.rx[0].rx(&mut Batch::new());
        q.tx[0].reclaim();
        q.rx[0].state() == State::Up && q.tx[0].state() == State::Up
    });
    send(&mut q.tx[0], packet(&frame));
    assert_eq!(datagram(&socket), b"again");
    socket.send_to(b"back", "10.0.0.2:9").unwrap();
    receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"back").then_some(()));
}

#[test]
fn a_packet_in_a_queue_behind_the_socket_holds_the_barrier() {
    let name = "a_packet_in_a_queue_behind_the_socket_holds_the_barrier";
    if !needs(name, NEEDS) || !needs(name, &[Need::Program("tc")]) {
        return;
    }
    let pair = pair();
    let slow = "qdisc add dev p0 root tbf rate 80bit burst 1600 limit 10000";
    if !pair.middle.command("tc", slow).status().is_ok_and(|status| status.success()) {
        return skip(name, "the kernel has no tbf");
    }
    let mut q = pair.start("");
    let tx = &mut q.tx[0];
    let pool = pool();
    let frame = to_host().udp(9, 7000, &pattern(1000), Checksums::Complete).0;
    let packet = || Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap();
    tx.begin();
    assert!(tx.passed(), "nothing was sent");
    // The first passes at once, the second most of a minute later.
    send(tx, packet());
    tx.begin();
    until("the first has passed", || tx.passed());
    send(tx, packet());
    tx.begin();
    assert!(!tx.passed(), "the second waits");
    // The barrier begins again: the time until it is given up begins with its first look, and the
    // machine may be busy before that.
    tx.begin();
    send(tx, packet());
    assert!(!tx.passed(), "what was sent after it does not make it pass");
    until("it is given up, or has passed", || tx.passed());
}

#[test]
fn a_deleted_interface_ends_the_queues_for_good() {
    if !needs("a_deleted_interface_ends_the_queues_for_good", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start("");
    pair.middle.ip("link del p0");
    until("the receive queue notices", || {
        q.rx[0].rx(&mut Batch::new());
        matches!(q.rx[0].state(), State::Gone(_))
    });
    assert_eq!(q.rx[0].wake(), Wake::Never);
    send(&mut q.tx[0], packet(&to_host().udp(9, 9, b"x", Checksums::Complete).0));
    assert!(matches!(q.tx[0].state(), State::Gone(_)));
    assert_eq!(q.tx[0].counters().snapshot().dropped(DropReason::PortGone), 1);
}

#[test]
fn packets_that_the_port_cannot_send_are_dropped_under_their_reason_and_the_rest_is_sent() {
    if !needs("packets_that_the_port_cannot_send_are_dropped_under_their_reason_and_the_rest_is_sent", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start(",uso=off");
    let socket = pair.socket(7000);
    let (frame, start, headers) = to_host().udp(9, 7000, &pattern(3000), Checksums::Partial);
    let mut uso = packet(&frame);
    uso.set_csum(Checksum::Partial { start, offset: 6 });
    uso.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 1000, segs: 3, hdr_len: headers }));
    let mut tagged = packet(&frame[..60]);
    tagged.set_vlan(Some(Vlan { tci: 1, service: false }));
    let good = |text: &[u8]| packet(&to_host().udp(9, 7000, text, Checksums::Complete).0);
    let mut batch = Batch::new();
    for p in [good(b"first"), uso, packet(b"short"), good(b"second"), packet(&vec![0; 1600]), tagged, good(b"third")] {
        batch.push(p).unwrap();
    }
    assert_eq!(q.tx[0].tx(&mut batch), 7);
    assert_eq!([datagram(&socket), datagram(&socket), datagram(&socket)], [&b"first"[..], b"second", b"third"]);
    let s = q.tx[0].counters().snapshot();
    let drops = [DropReason::Offload, DropReason::Malformed, DropReason::TooLong].map(|reason| s.dropped(reason));
    assert_eq!((drops, s.packets), ([2, 1, 1], 3));
}

#[test]
fn packets_that_the_kernel_drops_without_a_reader_are_counted_as_missed() {
    if !needs("packets_that_the_kernel_drops_without_a_reader_are_counted_as_missed", NEEDS) {
        return;
    }
    let pair = pair();
    let mut q = pair.start(",ring=64");
    let socket = pair.socket(7000);
    for _ in 0..1000 {
        socket.send_to(&pattern(1000), "10.0.0.2:9").unwrap();
    }
    let (mut batch, mut seen) = (Batch::new(), 0);
    until("all packets are received or missed", || {
        q.rx[0].rx(&mut batch);
        seen += batch.drain_front(64).filter(|p| udp_payload(p).is_some_and(|b| b.len() == 1000)).count() as u64;
        q.rx[0].counters().snapshot().all_missed() > 0 && seen + q.rx[0].counters().snapshot().all_missed() >= 1000
    });
    assert!(seen < 1000);
}

#[test]
fn an_error_of_open_has_a_hint() {
    if !needs("an_error_of_open_has_a_hint", NEEDS) {
        return;
    }
    let pair = pair();
    let missing = try_open(&format!("packet:nobody?netns={}", pair.middle.name())).unwrap_err().to_string();
    assert!(missing.contains("No such device") && missing.contains("ip link"), "{missing}");
    let denied = pair.middle.inside(|| unprivileged(|| try_open("packet:p0").unwrap_err().to_string()));
    assert!(denied.contains("Operation not permitted") && denied.contains("setcap cap_net_raw"), "{denied}");
}

#[test]
fn every_buffer_is_free_after_a_busy_port_is_dropped() {
    if !needs("every_buffer_is_free_after_a_busy_port_is_dropped", NEEDS) {
        return;
    }
    let pair = pair();
    let pool: Pool = pool();
    let mut q = start(pair.open(""), &pool, Offloads::ALL);
    let socket = pair.socket(7000);
    for _ in 0..100 {
        send_segmented(&socket, &pattern(5000), 1000, "10.0.0.2:9");
    }
    let mut batch = Batch::new();
    until("something arrives", || q.rx[0].rx(&mut batch) > 10);
    drop(q);
    drop(batch);
    let stats = pool.stats();
    assert_eq!(stats.free, stats.capacity);
}
