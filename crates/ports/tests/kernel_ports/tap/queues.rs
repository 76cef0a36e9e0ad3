//! The queue that the kernel chooses for a flow, with a steering program and without.

use super::{NEEDS, link, packet, socket, tap, to_host};
use crate::common::*;
use crate::support::{Namespace, needs};
use std::collections::HashSet;
use std::net::{Ipv6Addr, UdpSocket};
use towpath_packet::port::{Queues, RxQueue};
use towpath_packet::{Batch, Offloads, Packet};
use towpath_ports::tun::{STEERING, TunRx, TunTx};
use towpath_wire::emit::{Checksums, Ip, Link};
use towpath_wire::vlan::{Tag, Tci};

/// The queue of the answer to a datagram that was written to queue `by`.
fn answered_by(socket: &UdpSocket, q: &mut Queues<TunRx, TunTx>, port: u16, by: usize) -> usize {
    let text = [port.to_be_bytes(), [by as u8, 0]].concat();
    send(&mut q.tx[by], packet(&to_host().udp(port, 7000, &text, Checksums::Complete).0));
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
fn a_flow_stays_in_its_queue_whatever_queue_its_other_direction_is_written_to() {
    if !needs("a_flow_stays_in_its_queue_whatever_queue_its_other_direction_is_written_to", NEEDS) {
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
    assert!(!ability.on && ability.why.contains("overtake") && ability.hint.is_some(), "{ability:?}");
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
    let config = towpath_ports::packet::Config::from_uri(&uri(&format!("packet:tp0?netns={}", ns.name())));
    let mut host = start(towpath_ports::packet::open(config.unwrap()).unwrap(), &pool(), Offloads::NONE);
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
                let udp = queue_of_frame(&there.udp(source, port, &text, Checksums::Complete).0);
                assert_eq!(queue_of_frame(&back.udp(port, source, &text, Checksums::Complete).0), udp);
                let tcp = queue_of_frame(&there.tcp(source, port, &text, Checksums::Complete).0);
                assert_eq!(queue_of_frame(&back.tcp(port, source, &text, Checksums::Complete).0), tcp);
                used.extend([udp, tcp]);
                // A protocol without ports: all packets between two addresses have one queue.
                let mut other = there.tcp(source, port, &text, Checksums::Complete).0;
                let at = other.len() - 24 - header;
                other[at + if header == 20 { 9 } else { 6 }] = 47;
                let first = queue_of_frame(&other);
                if header == 20 {
                    // The same for fragments, of which only the first has ports.
                    for bits in [0x20, 0x01] {
                        let mut piece = there.udp(source, port, &text, Checksums::Complete).0;
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
fn a_persistent_device_has_no_program_after_the_port_is_dropped() {
    if !needs("a_persistent_device_has_no_program_after_the_port_is_dropped", NEEDS) {
        return;
    }
    let ns = Namespace::new("back");
    let (_, q) = tap(&ns, ",queues=2,steering=require,persist=on", Offloads::NONE);
    drop(q);
    is_detached(&ns, "tp0");
    let (_, mut q) = tap(&ns, ",queues=2,steering=off,persist=off", Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    assert_eq!([0, 1].map(|by| answered_by(&socket, &mut q, 100, by)), [0, 1]);
}
