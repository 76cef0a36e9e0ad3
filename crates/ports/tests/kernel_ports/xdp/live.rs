//! Frames that a program makes in the kernel (`tx=live`).

use super::{NEEDS, all_free, datagram, pair, to_host};
use crate::common::*;
use crate::support::needs;
use towpath_packet::port::{Port, State, TxQueue};
use towpath_packet::{Batch, DropReason, Packet};
use towpath_wire::emit::Checksums;

#[test]
fn frames_of_a_program_arrive_byte_by_byte_and_are_all_counted() {
    if !needs("frames_of_a_program_arrive_byte_by_byte_and_are_all_counted", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.host.run("ethtool", "-K h0 gro on");
    let pool = pool();
    for burst in [1, 7, 4096] {
        let mut q = pair.start(&format!(",tx=live,burst={burst}"), &pool);
        let socket = pair.socket(7000);
        // As many as the socket's buffer holds: each frame is a page.
        for round in 0..80usize {
            let mut batch = Batch::new();
            let len = |i: usize| 1 + (i * 97 + round) % 1472;
            for i in 0..16 {
                let frame = to_host().udp(9, 7000, &pattern(len(i)), Checksums::Complete).0;
                batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
            }
            assert_eq!(q.tx[0].tx(&mut batch), 16);
            while q.tx[0].pending() > 0 {
                q.tx[0].reclaim();
            }
            for i in 0..16 {
                assert!(datagram(&socket) == pattern(len(i)), "burst {burst}, round {round}, frame {i}");
            }
        }
        let counters = q.tx[0].counters().clone();
        drop(q);
        pair.is_free();
        let s = counters.snapshot();
        assert_eq!((s.packets, s.all_drops()), (1280, 0));
    }
    all_free(&pool);
}

#[test]
fn the_largest_burst_is_one_call_for_short_frames_and_several_for_long_ones() {
    if !needs("the_largest_burst_is_one_call_for_short_frames_and_several_for_long_ones", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.host.run("ethtool", "-K h0 gro on");
    let pool = pool();
    // The memory has room for 2 MiB of frames, each rounded up to a multiple of 64 bytes.
    for (payload, calls) in [(22, 1), (1472, 4)] {
        let mut q = pair.start(",tx=live,burst=4096", &pool);
        let mut cache = tx_cache(&pool);
        let frame = to_host().udp(9, 7000, &pattern(payload), Checksums::Complete).0;
        for _ in 0..64 {
            let mut batch = Batch::new();
            for _ in 0..64 {
                batch.push(Packet::copy_from(&mut cache, &frame).unwrap()).unwrap();
            }
            assert_eq!(q.tx[0].tx(&mut batch), 64);
        }
        let counters = q.tx[0].counters().clone();
        drop(q);
        pair.is_free();
        let s = counters.snapshot();
        assert_eq!((s.packets, s.all_drops(), s.calls), (4096, 0, calls), "{payload} bytes of payload");
    }
    all_free(&pool);
}

#[test]
fn a_device_that_stops_to_accept_frames_is_noticed() {
    if !needs("a_device_that_stops_to_accept_frames_is_noticed", NEEDS) {
        return;
    }
    let pair = pair("");
    pair.host.run("ethtool", "-K h0 gro on");
    // The device counts all frames that it sent; the test is the only sender.
    pair.middle.set("ipv6/conf/p0/disable_ipv6", "1");
    let pool = pool();
    let mut q = pair.start(",tx=live", &pool);
    pair.host.run("ethtool", "-K h0 gro off");
    let frame = to_host().udp(9, 7000, b"lost", Checksums::Complete).0;
    let mut given = 0;
    until("the queue notices", || {
        let mut batch = Batch::new();
        batch.push(Packet::copy_from(&mut tx_cache(&pool), &frame).unwrap()).unwrap();
        given += q.tx[0].tx(&mut batch) as u64;
        for _ in 0..3 {
            q.tx[0].reclaim();
        }
        matches!(q.tx[0].state(), State::Down(_))
    });
    let counters = q.tx[0].counters().clone();
    drop(q);
    pair.is_free();
    let s = counters.snapshot();
    assert_eq!(s.packets + s.all_drops(), given);
    assert!(s.dropped(DropReason::Refused) > 0 && s.packets < given, "{s:?}");
    let port = pair.try_open(",tx=prefer-live").unwrap();
    let tx = port.info().abilities.iter().find(|a| a.name == "tx").unwrap();
    assert!(!tx.on && tx.hint.as_deref().is_some_and(|m| m.contains("gro on")), "{tx:?}");
}
