//! Bytes: chunks of every kind, fragments, checksums, buffers outside the UMEM.

use super::{NEEDS, all_free, datagram, pair, pool_of, to_host};
use crate::common::*;
use crate::support::needs;
use std::sync::Arc;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Checksum, Direction, IndirectPool, Offloads, Packet, Pool, PoolConfig};
use towpath_wire::emit::Checksums;

#[test]
fn bytes_go_through_an_interface_unchanged_in_both_directions() {
    if !needs("bytes_go_through_an_interface_unchanged_in_both_directions", NEEDS) {
        return;
    }
    // Aligned and unaligned chunks, and chunks that cannot be a UMEM.
    let cases = [
        ("", 2048),
        (",mode=generic", 2048),
        (",csum=off,wakeup=off", 4096),
        ("", 3008),
        ("", 8192),
        (",frags=off", 512),
    ];
    for (options, chunk) in cases {
        let pair = pair("");
        let pool = pool_of(chunk);
        let mut q = pair.start(options, &pool);
        let own = q.rx[0].memory().pool;
        assert_eq!(own.is_some(), !(2048..=4096).contains(&chunk));
        let socket = pair.socket(7000);
        for len in [1, 100, 1472] {
            let payload = pattern(len);
            let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
            send(&mut q.tx[0], Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap());
            assert_eq!(datagram(&socket), payload, "{options} {chunk}");
            socket.send_to(&payload, "10.0.0.2:9").unwrap();
            receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then_some(()));
        }
        until("what was sent is completed", || {
            q.tx[0].reclaim();
            q.tx[0].pending() == 0
        });
        let s = q.tx[0].counters().snapshot();
        assert_eq!((s.packets, s.bytes, s.all_drops()), (3, 1573 + 3 * 42, 0));
        drop(q);
        pair.is_free();
        all_free(&pool);
        own.iter().for_each(all_free);
    }
}

#[test]
fn a_batch_of_many_sizes_arrives_in_order() {
    if !needs("a_batch_of_many_sizes_arrives_in_order", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start(",ring=64,txbudget=32", &pool);
    let socket = pair.socket(7000);
    for round in 0..20 {
        let mut batch = Batch::new();
        for i in 0..64usize {
            let frame = to_host().udp(9, 7000, &pattern(1 + (i * 97 + round) % 1472), Checksums::Complete).0;
            batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
        }
        while !batch.is_empty() {
            q.tx[0].reclaim();
            q.tx[0].tx(&mut batch);
        }
        for i in 0..64usize {
            assert_eq!(datagram(&socket), pattern(1 + (i * 97 + round) % 1472));
        }
    }
}

#[test]
fn long_packets_have_several_fragments_in_both_directions() {
    if !needs("long_packets_have_several_fragments_in_both_directions", NEEDS) {
        return;
    }
    for options in ["", ",mode=generic"] {
        let pair = pair("mtu 3900");
        let pool = pool();
        let mut q = pair.start(options, &pool);
        let socket = pair.socket(7000);
        let payload = pattern(3800);
        for _ in 0..5000 {
            let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
            let packet = Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap();
            assert!(packet.frags() > 0);
            send(&mut q.tx[0], packet);
            assert!(datagram(&socket) == payload);
        }
        socket.send_to(&payload, "10.0.0.2:9").unwrap();
        let frags = receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then(|| p.frags()));
        assert_eq!(frags, 2, "1792, 1792 and what is left");
        drop(q);
        all_free(&pool);
    }
}

#[test]
fn a_partial_checksum_of_the_peers_stack_is_detected_and_one_that_is_sent_is_completed() {
    if !needs("a_partial_checksum_of_the_peers_stack_is_detected_and_one_that_is_sent_is_completed", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    assert!(q.tx[0].offloads().has(Offloads::CSUM));
    let socket = pair.socket(7000);
    let payload = pattern(500);
    socket.send_to(&payload, "10.0.0.2:9").unwrap();
    let csum = receive(&mut q.rx[0], |p| (udp_payload(&p)? == payload).then(|| p.csum()));
    assert_eq!(csum, Checksum::Partial { start: 34, offset: 6 });
    // A device without the offload has the host complete it.
    pair.host.run("ethtool", "-K h0 rx off");
    for headroom in [128, 0] {
        let config = PoolConfig::default().capacity(64).headroom(headroom).backing(Backing::Anonymous);
        let mut cache = Pool::new(config).unwrap().cache(Direction::Tx).unwrap();
        let (frame, start, _) = to_host().udp(9, 7000, &payload, Checksums::Partial);
        let mut packet = Packet::copy_from(&mut cache, &frame).unwrap();
        packet.set_csum(Checksum::Partial { start, offset: 6 });
        send(&mut q.tx[0], packet);
        assert_eq!(datagram(&socket), payload);
    }
}

#[test]
fn packets_outside_the_umem_or_in_a_shared_buffer_are_copied_and_arrive() {
    if !needs("packets_outside_the_umem_or_in_a_shared_buffer_are_copied_and_arrive", NEEDS) {
        return;
    }
    let pair = pair("");
    let pool = pool();
    let mut q = pair.start("", &pool);
    let socket = pair.socket(7000);
    let payload = pattern(1000);
    let frame = to_host().udp(9, 7000, &payload, Checksums::Complete).0;
    let mut cache = tx_cache(&pool);
    // The same bytes as fragments of two packets that are sent together.
    let whole = Packet::copy_from(&mut cache, &frame[42..]).unwrap();
    let shared = towpath_packet::SharedBuf::new(whole.into_linear_buf().unwrap());
    let mut views = IndirectPool::new(8).unwrap();
    let mut batch = Batch::new();
    for _ in 0..2 {
        let mut packet = Packet::copy_from(&mut cache, &frame[..42]).unwrap();
        packet.append_buf(shared.slice(0, 500, &mut views).unwrap()).unwrap();
        packet.append_buf(shared.slice(500, 500, &mut views).unwrap()).unwrap();
        batch.push(packet).unwrap();
    }
    // A packet of another pool.
    let other = pool_of(512);
    batch.push(Packet::copy_from(&mut tx_cache(&other), &frame).unwrap()).unwrap();
    assert_eq!(q.tx[0].tx(&mut batch), 3);
    for _ in 0..3 {
        assert!(datagram(&socket) == payload);
    }
    let copied = q.tx[0].counters().snapshot().copied;
    // Bytes of their own are freed as soon as they are copied.
    for (n, (packet, owner)) in (1..).zip(owned(&frame, 42, &mut cache)) {
        send(&mut q.tx[0], packet);
        assert!(datagram(&socket) == payload);
        assert_eq!((q.tx[0].counters().snapshot().copied, Arc::strong_count(&owner)), (copied + n, 1));
    }
    drop((shared, views, q, cache));
    all_free(&pool);
    all_free(&other);
}
