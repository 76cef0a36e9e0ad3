//! Invalid packets, links that fail, deleted interfaces, exhausted pools.

use super::{NEEDS, datagram, packet, socket, tap, to_host, try_open};
use crate::common::*;
use crate::support::{Namespace, needs};
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Checksum, DropReason, Gso, GsoKind, Offloads};
use towpath_wire::emit::Checksums;

#[test]
fn packets_that_the_port_cannot_send_are_dropped_under_their_reason_and_the_rest_is_sent() {
    if !needs("packets_that_the_port_cannot_send_are_dropped_under_their_reason_and_the_rest_is_sent", NEEDS) {
        return;
    }
    let ns = Namespace::new("drops");
    let (_, mut q) = tap(&ns, ",tso=off", Offloads::ALL);
    let socket = socket(&ns, "10.0.0.1:7000");
    let mut batch = Batch::new();
    let (frame, start, _) = to_host().tcp(9, 9, &pattern(3000), Checksums::Partial);
    let mut tso = packet(&frame);
    tso.set_csum(Checksum::Partial { start, offset: 16 });
    tso.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, segs: 3, hdr_len: 54 }));
    let mut lying = packet(&frame[..60]);
    lying.set_csum(Checksum::Partial { start: 59, offset: 6 });
    for p in [tso, lying, packet(b"short"), packet(&vec![0; 65_558])] {
        batch.push(p).unwrap();
    }
    batch.push(packet(&to_host().udp(9, 7000, b"good", Checksums::Complete).0)).unwrap();
    assert_eq!(q.tx[0].tx(&mut batch), 5);
    assert_eq!(datagram(&socket), b"good");
    let s = q.tx[0].counters().snapshot();
    let drops = [DropReason::Offload, DropReason::Malformed, DropReason::TooLong].map(|reason| s.dropped(reason));
    assert_eq!((drops, s.packets), ([1, 2, 1], 1));
}

#[test]
fn a_super_packet_with_wrong_metadata_is_dropped_and_the_offload_stays_on() {
    if !needs("a_super_packet_with_wrong_metadata_is_dropped_and_the_offload_stays_on", NEEDS) {
        return;
    }
    let ns = Namespace::new("liar");
    let port = try_open(&format!("tun:tn0?netns={},addr=10.0.0.1/24", ns.name())).unwrap();
    let mut q = start(port, &pool(), Offloads::ALL);
    let before = q.tx[0].offloads();
    let host = Between { link: None, ..to_host() };
    let mut liar = packet(&host.udp(9, 7000, &pattern(3000), Checksums::Complete).0);
    liar.set_gso(Some(Gso { kind: GsoKind::Tcp6, ecn: false, size: 1000, segs: 3, hdr_len: 0 }));
    send(&mut q.tx[0], liar);
    assert_eq!(q.tx[0].offloads(), before);
}

#[test]
fn a_link_that_goes_down_is_reported_and_works_again_when_it_is_up() {
    if !needs("a_link_that_goes_down_is_reported_and_works_again_when_it_is_up", NEEDS) {
        return;
    }
    let ns = Namespace::new("down");
    let (_, mut q) = tap(&ns, "", Offloads::NONE);
    let socket = socket(&ns, "10.0.0.1:7000");
    let frame = to_host().udp(9, 7000, b"again", Checksums::Complete).0;
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
    send(&mut q.tx[0], packet(&to_host().udp(9, 9, b"x", Checksums::Complete).0));
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
