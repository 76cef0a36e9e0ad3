//! `tap:` and `tun:`.

use crate::common::*;
use crate::support::{Namespace, Need, needs};
use std::collections::HashSet;
use std::net::{Ipv6Addr, UdpSocket};
use towpath_datapath::ports::tun::{Config, STEERING, TunPort, TunRx, TunTx, open};
use towpath_packet::port::{Info, Port, PortError, Queues, RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Csum, DropReason, Gso, GsoKind, Offloads, Packet};
use towpath_wire::emit::{Checksums, Ip, Link};
use towpath_wire::vlan::{Tag, Tci};

const NEEDS: &[Need] = &[Need::Root, Need::Tun];

fn try_open(text: &str) -> Result<TunPort, PortError> {
    open(Config::from_uri(&uri(text))?)
}

/// A tap in `ns` with 10.0.0.1 and fd00::1, where 10.0.0.2 and fd00::2 are known to be the host that the test plays.
fn tap(ns: &Namespace, options: &str, accept: Offloads) -> (Info, Queues<TunRx, TunTx>) {
    let own = "mac=02:00:00:00:00:01,addr=10.0.0.1/24+fd00::1/64";
    let port = try_open(&format!("tap:tp0?netns={},{own}{options}", ns.name())).unwrap();
    let info = port.info().clone();
    let queues = start(port, &pool(), accept);
    ns.ip("neigh replace 10.0.0.2 dev tp0 lladdr 02:00:00:00:00:02");
    ns.ip("neigh replace fd00::2 dev tp0 lladdr 02:00:00:00:00:02");
    (info, queues)
}

fn link() -> Link {
    Link { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2], ..Link::default() }
}

/// Frames from the host that the test plays to the one behind the tap.
fn to_host() -> Between {
    Between { link: Some(link()), ip: Ip::v4([10, 0, 0, 2], [10, 0, 0, 1]) }
}

fn packet(bytes: &[u8]) -> Packet {
    Packet::copy_from(&mut tx_cache(&pool()), bytes).unwrap()
}

fn socket(ns: &Namespace, address: &str) -> UdpSocket {
    let socket = ns.inside(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn datagram(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let (n, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from.port(), 9);
    buffer.truncate(n);
    buffer
}

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
        send(&mut q.tx[0], packet(&to_host().udp(9, 7000, &payload, Checksums::Full).0));
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
    send(&mut q.tx[0], packet(&host.udp(9, 7000, &payload, Checksums::Full).0));
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
    // The same bytes are wrong as long as nobody says that the checksum is partial.
    send(&mut q.tx[0], packet(&frame));
    let mut partial = packet(&frame);
    partial.set_csum(Csum::Partial { start, offset: 6 });
    send(&mut q.tx[0], partial);
    send(&mut q.tx[0], packet(&to_host().udp(9, 7000, b"last", Checksums::Full).0));
    assert_eq!(datagram(&socket), b"partial");
    assert_eq!(datagram(&socket), b"last", "the first one was dropped");
    // And the other way: the kernel leaves the checksum to us, and says where.
    socket.send_to(b"from the kernel", "10.0.0.2:9").unwrap();
    let csum = receive(&mut q.rx[0], |p| (udp_payload(&p)? == b"from the kernel").then(|| p.csum()));
    assert_eq!(csum, Csum::Partial { start: 34, offset: 6 });
}

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
    forwarder.longest.iter().for_each(|longest| longest.store(0, std::sync::atomic::Ordering::Relaxed));
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
    // The first is told only while it runs that the other takes nothing.
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
    p.set_csum(Csum::Partial { start, offset: 6 });
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
    q.rx[0].restrict(Offloads::NONE);
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    let mut parts = Vec::new();
    receive(&mut q.rx[0], |p| {
        parts.extend(udp_payload(&p)?);
        assert!(!p.wants_offload() && p.len() == 1042);
        (parts.len() == 5000).then_some(())
    });
    assert_eq!(parts, payload);
    q.rx[0].restrict(Offloads::CSUM.with(Offloads::USO));
    send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    receive(&mut q.rx[0], |p| p.gso().map(drop));
}

#[test]
fn what_one_queue_cannot_take_no_queue_of_the_device_gets() {
    if !needs("what_one_queue_cannot_take_no_queue_of_the_device_gets", NEEDS) {
        return;
    }
    let ns = Namespace::new("least");
    let (_, mut q) = tap(&ns, ",queues=2", Offloads::ALL);
    q.rx[1].restrict(Offloads::NONE);
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
    let frame = to_host().udp(9, 7000, &payload, Checksums::Full).0;
    let p = packet(&frame);
    assert!(p.frags() > 30, "all chunks of a long chain are written");
    send(&mut q.tx[0], p);
    assert_eq!(datagram(&socket), payload);
}

/// The queue that the kernel sends a datagram to which answers one that was written to queue `by`.
fn answered_by(socket: &UdpSocket, q: &mut Queues<TunRx, TunTx>, port: u16, by: usize) -> usize {
    let text = [port.to_be_bytes(), [by as u8, 0]].concat();
    send(&mut q.tx[by], packet(&to_host().udp(port, 7000, &text, Checksums::Full).0));
    let mut buffer = [0; 10];
    let (n, from) = socket.recv_from(&mut buffer).unwrap();
    socket.send_to(&buffer[..n], from).unwrap();
    queue_of(q, |p| udp_payload(p).is_some_and(|payload| payload == text))
}

/// The queue in which a packet arrives.
fn queue_of(q: &mut Queues<TunRx, TunTx>, is_it: impl Fn(&Packet) -> bool) -> usize {
    let mut batch = Batch::new();
    let mut found = None;
    until("the packet arrives", || {
        for (number, rx) in q.rx.iter_mut().enumerate() {
            rx.rx(&mut batch);
            found = found.or(batch.drain_front(64).any(|p| is_it(&p)).then_some(number));
        }
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_flow_stays_in_its_queue_whichever_queue_its_other_direction_is_written_to() {
    if !needs("a_flow_stays_in_its_queue_whichever_queue_its_other_direction_is_written_to", NEEDS) {
        return;
    }
    let ns = Namespace::new("queues");
    let (info, mut q) = tap(&ns, ",queues=4,steering=require", Offloads::NONE);
    assert_eq!((info.max_queues, q.rx.len()), (4, 4));
    assert!(info.abilities.iter().any(|a| a.name == STEERING && a.on));
    let socket = socket(&ns, "10.0.0.1:7000");
    let mut used = HashSet::new();
    for port in 100..116 {
        let queues: HashSet<usize> = (0..4).map(|by| answered_by(&socket, &mut q, port, by)).collect();
        assert_eq!(queues.len(), 1, "port {port}: {queues:?}");
        used.extend(queues);
    }
    assert!(used.len() > 1, "all in one queue");
}

#[test]
fn without_a_program_the_kernel_moves_a_flow_to_the_queue_its_other_direction_was_written_to() {
    let name = "without_a_program_the_kernel_moves_a_flow_to_the_queue_its_other_direction_was_written_to";
    if !needs(name, NEEDS) {
        return;
    }
    let ns = Namespace::new("moves");
    let (info, mut q) = tap(&ns, ",queues=4,steering=off", Offloads::NONE);
    let ability = info.abilities.iter().find(|a| a.name == STEERING).unwrap();
    assert!(!ability.on && ability.why.contains("overtake") && ability.mend.is_some(), "{ability:?}");
    let socket = socket(&ns, "10.0.0.1:7000");
    assert_eq!([0, 1, 2, 3].map(|by| answered_by(&socket, &mut q, 100, by)), [0, 1, 2, 3]);
}

#[test]
fn both_directions_of_a_flow_have_one_queue_with_and_without_tags_ports_and_fragments() {
    let name = "both_directions_of_a_flow_have_one_queue_with_and_without_tags_ports_and_fragments";
    if !needs(name, NEEDS) {
        return;
    }
    let ns = Namespace::new("hash");
    let (_, mut q) = tap(&ns, ",queues=2,steering=require", Offloads::NONE);
    let config = towpath_datapath::ports::packet::Config::from_uri(&uri(&format!("packet:tp0?netns={}", ns.name())));
    let mut host = start(towpath_datapath::ports::packet::open(config.unwrap()).unwrap(), &pool(), Offloads::NONE);
    let mut queue_of_frame = |frame: &[u8]| {
        send(&mut host.tx[0], packet(frame));
        queue_of(&mut q, |p| p.to_vec() == frame)
    };
    let tag = Tag { tpid: 0x8100, tci: Tci::default() };
    let (one, two) = ("fd00::1".parse::<Ipv6Addr>().unwrap().octets(), "fd00::2".parse::<Ipv6Addr>().unwrap().octets());
    let v4 = [Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), Ip::v4([10, 0, 0, 2], [10, 0, 0, 1])];
    let v6 = [Ip::v6(one, two), Ip::v6(two, one)];
    let mut random = 1u32;
    for (ips, header) in [(v4, 20), (v6, 40)] {
        for tags in [[Tag::default(); 2], [tag, Tag::default()], [Tag { tpid: 0x88a8, ..tag }, tag]] {
            let [there, back] = ips.map(|ip| Between { link: Some(Link { tags, ..link() }), ip });
            let mut used = HashSet::new();
            for source in 100..124 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let (port, text) = ((random >> 16) as u16 | 1, random.to_be_bytes());
                let udp = queue_of_frame(&there.udp(source, port, &text, Checksums::Full).0);
                assert_eq!(queue_of_frame(&back.udp(port, source, &text, Checksums::Full).0), udp);
                let tcp = queue_of_frame(&there.tcp(source, port, &text, Checksums::Full).0);
                assert_eq!(queue_of_frame(&back.tcp(port, source, &text, Checksums::Full).0), tcp);
                used.extend([udp, tcp]);
                // Not TCP any more but a protocol without ports: all between two addresses have one queue.
                let mut other = there.tcp(source, port, &text, Checksums::Full).0;
                let at = other.len() - 24 - header;
                other[at + if header == 20 { 9 } else { 6 }] = 47;
                let first = queue_of_frame(&other);
                if header == 20 {
                    // So have fragments, the first of which alone has ports.
                    for bits in [0x20, 0x01] {
                        let mut piece = there.udp(source, port, &text, Checksums::Full).0;
                        let at = piece.len() - 12 - header;
                        piece[at + 6] = bits;
                        assert_eq!(queue_of_frame(&piece), first);
                    }
                }
            }
            assert_eq!(used.len(), 2, "{ips:?} {tags:?}");
        }
    }
}

#[test]
fn a_persistent_device_gets_back_what_the_kernel_does_by_itself() {
    if !needs("a_persistent_device_gets_back_what_the_kernel_does_by_itself", NEEDS) {
        return;
    }
    let ns = Namespace::new("back");
    let (_, q) = tap(&ns, ",queues=2,steering=require,persist=on", Offloads::NONE);
    drop(q);
    let (_, mut q) = tap(&ns, ",queues=2,steering=off,persist=off", Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    assert_eq!([0, 1].map(|by| answered_by(&socket, &mut q, 100, by)), [0, 1]);
}

#[test]
fn the_self_test_says_what_it_found_and_leaves_no_trace() {
    if !needs("the_self_test_says_what_it_found_and_leaves_no_trace", NEEDS) {
        return;
    }
    let ns = Namespace::new("probe");
    ns.ip("tuntap add dev up0 mode tap vnet_hdr");
    ns.ip("link set up0 up");
    for name in ["tap:new", "tap:up0", "tun:new2"] {
        let port = try_open(&format!("{name}?netns={},tso=require", ns.name())).unwrap();
        for ability in &port.info().abilities {
            assert!(ability.on && ability.why == "accepted by the kernel", "{name}: {ability:?}");
        }
        let names = ns.ip("-o link");
        assert!(!names.contains("probe"), "{names}");
    }
    let received = ns.run("cat", "/sys/class/net/up0/statistics/rx_packets");
    assert_eq!(received.trim(), "0", "the interface that was up has seen nothing");
    let port = try_open(&format!("tap:off?netns={},uso=off", ns.name())).unwrap();
    let uso = port.info().abilities.iter().find(|a| a.name == "uso").unwrap();
    assert_eq!((uso.on, uso.why.as_ref(), uso.mend.as_deref()), (false, "switched off by option", Some("uso=prefer")));
    assert!(!port.info().tx_offloads.has(Offloads::USO) && !port.info().rx_offloads.has(Offloads::USO));
}

#[test]
fn packets_that_the_port_cannot_send_are_dropped_under_their_reason_and_the_rest_goes() {
    if !needs("packets_that_the_port_cannot_send_are_dropped_under_their_reason_and_the_rest_goes", NEEDS) {
        return;
    }
    let ns = Namespace::new("drops");
    let (_, mut q) = tap(&ns, ",tso=off", Offloads::ALL);
    let socket = socket(&ns, "10.0.0.1:7000");
    let mut batch = Batch::new();
    let (frame, start, _) = to_host().tcp(9, 9, &pattern(3000), Checksums::Partial);
    let mut tso = packet(&frame);
    tso.set_csum(Csum::Partial { start, offset: 16 });
    tso.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, segs: 3, hdr_len: 54 }));
    let mut lying = packet(&frame[..60]);
    lying.set_csum(Csum::Partial { start: 59, offset: 6 });
    for p in [tso, lying, packet(b"short"), packet(&vec![0; 65_558])] {
        batch.push(p).unwrap();
    }
    batch.push(packet(&to_host().udp(9, 7000, b"good", Checksums::Full).0)).unwrap();
    assert_eq!(q.tx[0].tx(&mut batch), 5);
    assert_eq!(datagram(&socket), b"good");
    let s = q.tx[0].counters().snapshot();
    let drops = [DropReason::Offload, DropReason::Malformed, DropReason::TooLong].map(|reason| s.dropped(reason));
    assert_eq!((drops, s.packets), ([1, 2, 1], 1));
}

#[test]
fn a_super_packet_that_is_not_what_it_says_costs_itself_and_not_the_ability() {
    if !needs("a_super_packet_that_is_not_what_it_says_costs_itself_and_not_the_ability", NEEDS) {
        return;
    }
    let ns = Namespace::new("liar");
    let port = try_open(&format!("tun:tn0?netns={},addr=10.0.0.1/24", ns.name())).unwrap();
    let mut q = start(port, &pool(), Offloads::ALL);
    let before = q.tx[0].offloads();
    let host = Between { link: None, ..to_host() };
    let mut liar = packet(&host.udp(9, 7000, &pattern(3000), Checksums::Full).0);
    liar.set_gso(Some(Gso { kind: GsoKind::Tcp6, ecn: false, size: 1000, segs: 3, hdr_len: 0 }));
    send(&mut q.tx[0], liar);
    assert_eq!(q.tx[0].offloads(), before);
}

#[test]
fn a_link_that_goes_down_is_said_and_works_again_when_it_returns() {
    if !needs("a_link_that_goes_down_is_said_and_works_again_when_it_returns", NEEDS) {
        return;
    }
    let ns = Namespace::new("down");
    let (_, mut q) = tap(&ns, "", Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    let frame = to_host().udp(9, 7000, b"again", Checksums::Full).0;
    ns.ip("link set tp0 down");
    let mut batch = Batch::new();
    for _ in 0..3 {
        batch.push(packet(&frame)).unwrap();
    }
    assert_eq!(q.tx[0].tx(&mut batch), 3);
    let s = q.tx[0].counters().snapshot();
    assert_eq!((s.dropped(DropReason::LinkDown), s.packets), (3, 0));
    assert!(matches!(q.tx[0].state(), State::Down(_)));
    until("the receive queue notices", || {
        q.rx[0].rx(&mut batch);
        matches!(q.rx[0].state(), State::Down(_))
    });
    ns.ip("link set tp0 up");
    until("both queues notice", || {
        q.rx[0].rx(&mut Batch::new());
        q.tx[0].reclaim();
        q.rx[0].state() == State::Up && q.tx[0].state() == State::Up
    });
    send(&mut q.tx[0], packet(&frame));
    assert_eq!(datagram(&socket), b"again");
}

#[test]
fn a_deleted_interface_ends_the_queues_for_good() {
    if !needs("a_deleted_interface_ends_the_queues_for_good", NEEDS) {
        return;
    }
    let ns = Namespace::new("gone");
    let (_, mut q) = tap(&ns, "", Offloads::NONE);
    ns.ip("link del tp0");
    let mut batch = Batch::new();
    until("the receive queue notices", || {
        q.rx[0].rx(&mut batch);
        matches!(q.rx[0].state(), State::Gone(_))
    });
    assert_eq!(q.rx[0].wake(), Wake::Never);
    send(&mut q.tx[0], packet(&to_host().udp(9, 9, b"x", Checksums::Full).0));
    assert!(matches!(q.tx[0].state(), State::Gone(_)));
    assert_eq!(q.tx[0].counters().snapshot().dropped(DropReason::PortGone), 1);
}

#[test]
fn a_transmit_queue_that_has_nothing_to_send_notices_that_its_interface_was_deleted() {
    if !needs("a_transmit_queue_that_has_nothing_to_send_notices_that_its_interface_was_deleted", NEEDS) {
        return;
    }
    let ns = Namespace::new("quiet");
    let (_, mut q) = tap(&ns, "", Offloads::NONE);
    q.tx[0].reclaim();
    assert_eq!(q.tx[0].state(), State::Up);
    ns.ip("link del tp0");
    until("the transmit queue notices", || {
        q.tx[0].reclaim();
        matches!(q.tx[0].state(), State::Gone(_))
    });
}

#[test]
fn the_interface_vanishes_with_the_port_unless_it_is_to_stay() {
    if !needs("the_interface_vanishes_with_the_port_unless_it_is_to_stay", NEEDS) {
        return;
    }
    let ns = Namespace::new("persist");
    let q = start(try_open(&format!("tap:short?netns={}", ns.name())).unwrap(), &pool(), Offloads::NONE);
    drop(start(try_open(&format!("tap:long?netns={},persist=on", ns.name())).unwrap(), &pool(), Offloads::NONE));
    assert!(ns.ip("-o link").contains("short"));
    drop(q);
    // A child process of another test may hold the descriptors for the moment between fork and exec.
    until("the interface vanishes", || !ns.ip("-o link").contains("short"));
    assert!(ns.ip("-o link").contains("long"));
    until("it can be attached to", || try_open(&format!("tap:long?netns={},persist=off", ns.name())).is_ok());
    until("the interface vanishes", || !ns.ip("-o link").contains("long"));
}

#[test]
fn what_prevents_opening_is_said_with_what_would_mend_it() {
    if !needs("what_prevents_opening_is_said_with_what_would_mend_it", NEEDS) {
        return;
    }
    let ns = Namespace::new("errors");
    let at = |text: &str| format!("{text}netns={}", ns.name());
    let said = |text: &str| try_open(&at(text)).unwrap_err().to_string();
    let held = try_open(&at("tap:held?")).unwrap();
    assert!(said("tap:held?").contains("in use by another process"), "{}", said("tap:held?"));
    assert!(said("tap:held?queues=2,").contains("multiqueue=off"), "{}", said("tap:held?queues=2,"));
    assert!(said("tun:held?").contains("is no tun"), "{}", said("tun:held?"));
    drop(held);
    let missing = try_open("tap:x?netns=no-such-namespace").unwrap_err().to_string();
    assert!(missing.contains("enter netns") && missing.contains("ip netns list"), "{missing}");
    let denied = ns.inside(|| unprivileged(|| try_open("tap:x").unwrap_err().to_string()));
    assert!(denied.contains("Operation not permitted") && denied.contains("setcap cap_net_admin+ep"), "{denied}");
    assert!(denied.contains("ip tuntap add dev x mode tap user"), "{denied}");
}

#[test]
fn when_buffers_run_out_the_kernel_keeps_the_packets() {
    if !needs("when_buffers_run_out_the_kernel_keeps_the_packets", NEEDS) {
        return;
    }
    let ns = Namespace::new("dry");
    let (_, mut q) = tap(&ns, "", Offloads::ALL);
    let socket = socket(&ns, "10.0.0.1:7000");
    let payload = pattern(20_000);
    let mut held = Vec::new();
    let mut batch = Batch::new();
    for _ in 0..50 {
        send_segmented(&socket, &payload, 1000, "10.0.0.2:9");
    }
    until("the port has no buffers left", || {
        q.rx[0].rx(&mut batch);
        held.extend(batch.drain_front(64).filter(|p| p.gso().is_some()));
        q.rx[0].counters().snapshot().retries > 0
    });
    assert_eq!(q.rx[0].wake(), Wake::Poll, "the descriptor stays readable and says nothing");
    let mut seen = held.len();
    assert!(seen < 50, "{seen}");
    held.clear();
    until("the rest arrives", || {
        q.rx[0].rx(&mut batch);
        seen += batch.drain_front(64).filter(|p| p.gso().is_some()).count();
        seen == 50
    });
}
