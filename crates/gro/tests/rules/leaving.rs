//! When packets leave, and in what order.

use crate::common::chain::{Chain, Handle};
use crate::common::{ACK, CWR, Carrier, RST, SYN, Spec, in_tunnel, udp, v4, v6};
use crate::{Left, config, data, push_all, segs, trusted};
use towpath_gro::{Checksum, Flush, Gro, GroConfig, Offload, Segment};

#[test]
fn a_single_packet_leaves_byte_for_byte_unchanged() {
    for offload in [trusted(), Offload::default(), Offload::new(Checksum::Partial { start: 34, offset: 16 }, None)] {
        let bytes = data().build();
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        gro.push(Chain::new(bytes.clone(), offload), 0, &mut left);
        gro.flush_all(&mut left);
        assert_eq!((left.packets[0].bytes(), left.packets[0].offload), (bytes, offload));
    }
}

#[test]
fn a_super_packet_that_comes_in_leaves_in_its_place() {
    let run = data().run(4, 100);
    let (bytes, offload) = Spec { payload: vec![1; 200], ..run[1].clone() }.build_super(100);
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    gro.push(Chain::new(run[0].build(), trusted()), 0, &mut left);
    gro.push(Chain::new(bytes, offload), 0, &mut left);
    gro.push(Chain::new(run[3].build(), trusted()), 0, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [1, 2, 1]);
    assert_eq!(gro.stats().flushed(Flush::Gso), 1);
}

#[test]
fn a_packet_of_unknown_flow_leaves_after_everything_held() {
    let mut headless = data().next(50).build();
    let payload = headless.split_off(20);
    let headless = Chain { pieces: vec![headless, payload], ..Chain::default() };
    let fragment = Chain::new(udp(v4(), 50).with(|s| s.ip.fragment = 0x10).build(), trusted());
    for unknown in [headless, fragment] {
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, data().run(2, 100).iter().map(Spec::build), &mut left);
        gro.push(unknown, 0, &mut left);
        assert_eq!(left.segs, [2, 1]);
        assert_eq!(gro.stats().flushed(Flush::Unknown), 1);
    }
}

#[test]
fn packets_far_apart_in_a_burst_that_leaves_at_once_merge() {
    let run = data().run(2, 100);
    let other = |n: u16| data().with(|s| s.ports.0 = 1000 + n).build();
    let mut burst: Vec<_> = (0..128).map(other).collect();
    (burst[0], burst[100]) = (run[0].build(), run[1].build());
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    gro.push_and_flush(burst.into_iter().map(|b| Chain::new(b, trusted())), &mut left);
    assert_eq!((left.segs.len(), left.segs.iter().max()), (127, Some(&2)));
}

#[test]
fn a_full_table_evicts_the_oldest_and_keeps_order() {
    let (mut gro, mut left) = (Gro::new(config().flows(8)), Left::default());
    for now in 0..3000u64 {
        let spec = data().with(|s| s.ports.0 = now as u16);
        gro.push(Chain::new(spec.build(), trusted()), now, &mut left);
        assert!(gro.held() <= 8);
    }
    gro.flush_all(&mut left);
    assert_eq!(left.packets.len(), 3000);
    assert!(gro.stats().flushed(Flush::Evict) > 2900);
    // Eight flows at most are ahead of any other.
    for (i, p) in left.packets.iter().enumerate() {
        let port = usize::from(u16::from_be_bytes([p.bytes()[34], p.bytes()[35]]));
        assert!(port.abs_diff(i) < 64, "{port} left as number {i}");
    }
}

#[test]
fn held_flows_are_flushed_by_age_in_the_order_they_came() {
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    for now in 0..10 {
        let spec = data().with(|s| s.ports.0 = now as u16);
        gro.push(Chain::new(spec.build(), trusted()), now, &mut left);
    }
    gro.flush(4, &mut left);
    assert_eq!((left.packets.len(), gro.held()), (5, 5));
    assert_eq!(gro.stats().flushed(Flush::Age), 5);
    gro.flush_all(&mut left);
    assert_eq!(gro.stats().flushed(Flush::End), 5);
    let ports: Vec<u8> = left.packets.iter().map(|p| p.bytes()[35]).collect();
    assert_eq!(ports, (0..10).collect::<Vec<u8>>());
}

#[test]
fn auto_bypasses_when_nothing_merges_and_resumes_in_order() {
    let (mut gro, mut left) = (Gro::new(config().auto(true)), Left::default());
    let mut burst = |gro: &mut Gro<Chain>, flows: u16, base: u32| {
        let packets = (0..64u16).map(|i| {
            let n = u32::from(i / flows) + base;
            Chain::new(
                data().seq(1000 + 100 * n).with(|s| (s.ports.0, s.ip.id) = (i % flows, n as u16)).build(),
                trusted(),
            )
        });
        gro.push_batch(packets, 0, &mut left);
        if !gro.is_bypassed() {
            gro.flush_all(&mut left);
        }
        assert_eq!(gro.held(), 0);
    };
    (0..16).for_each(|i| burst(&mut gro, 64, i));
    assert!(gro.is_bypassed(), "a window without a merge");
    (0..100).for_each(|i| burst(&mut gro, 1, i * 64));
    assert!(gro.is_bypassed(), "the rest is not over");
    (100..300).for_each(|i| burst(&mut gro, 1, i * 64));
    assert!(!gro.is_bypassed(), "it probed, and everything merges");
    let stats = *gro.stats();
    assert_eq!(stats.packets, 64 * 316);
    assert!(stats.bypassed >= 16 * 1024 && stats.merged > 0);
}

#[test]
fn an_unmatched_packet_does_not_leave_while_something_is_held() {
    let run = data().run(3, 100);
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    let chain = |at: usize| Chain::new(run[at].build(), trusted());
    let passes = |gro: &mut Gro<Chain>, at: usize| gro.pass_unmatched(&[chain(at)], Segment::head);
    assert!(!passes(&mut gro, 0), "nothing is known before the first burst");
    gro.push_and_flush([chain(0)], &mut left);
    assert!(passes(&mut gro, 1));
    gro.push(chain(1), 0, &mut left);
    assert!(!passes(&mut gro, 2), "it would overtake");
}

#[test]
fn a_flow_that_was_ended_is_not_opened_again_by_what_would_follow() {
    let run = data().run(2, 100);
    let short = run[1].next(60);
    // Padded to the length of the others, its lengths still those of the short one.
    let padded = |n: u16| {
        let mut bytes = short.clone().seq(1200 + 100 * u32::from(n)).with(|s| s.ip.id += n).build();
        bytes.resize(bytes.len() + 40, 0);
        bytes
    };
    let burst = [run[0].build(), run[1].build(), short.build(), padded(1), padded(2), padded(3)];
    let (mut gro, mut left) = (Gro::new(config()), vec![]);
    let burst = burst.map(|bytes| Handle::new(bytes, trusted()));
    gro.push_batch(burst, 0, &mut (|it: Handle| left.push(it.0.offload.gso.map(|gso| gso.segs)), drop));
    assert_eq!((left, gro.held()), (vec![Some(3), None, None, None], 0));
}

/// Whether a burst passes as one of unmatched packets.
fn are_unmatched(config: GroConfig, burst: &[Vec<u8>]) -> bool {
    let (mut gro, mut left) = (Gro::new(config), Left::default());
    gro.push_and_flush([], &mut left);
    gro.pass_unmatched(burst, |bytes| bytes)
}

#[test]
fn packets_of_one_flow_are_unmatched_if_they_cannot_merge() {
    let pair = |spec: Spec, len: usize| spec.run(2, len).iter().map(Spec::build).collect::<Vec<_>>();
    for ip in [v4(), v6()] {
        let tcp = data().with(|s| s.ip = ip.clone());
        assert!(are_unmatched(config(), &pair(tcp.clone(), 0)), "acknowledgments");
        for flags in [SYN, RST | ACK, 0] {
            assert!(are_unmatched(config(), &pair(tcp.clone().flags(flags), 100)));
        }
        assert!(!are_unmatched(config(), &pair(tcp.clone().flags(ACK | CWR), 100)));
        assert!(!are_unmatched(config(), &pair(tcp.clone(), 100)));
        let between = [tcp.build(), tcp.next(0).build(), tcp.next(100).build()];
        assert!(!are_unmatched(config(), &between), "data around an acknowledgment");
        assert!(!are_unmatched(config(), &pair(udp(ip.clone(), 0), 100)));
        assert!(are_unmatched(config().udp(false), &pair(udp(ip, 0), 100)));
    }
    let arp = [&[0xff; 12][..], &[8, 6], &[1; 28]].concat();
    assert!(are_unmatched(config(), &[arp.clone(), arp]));
}

#[test]
fn packets_that_merge_are_not_unmatched_wherever_their_headers_are() {
    let tagged = data().with(|s| s.tags = vec![(0x88a8, 3), (0x8100, 4)]);
    let gre = Carrier::Gre { key: Some(5), checksum: true, ethernet: false };
    let vxlan = Carrier::Vxlan { vni: 1, checksum: true };
    let tunnels =
        [Carrier::Ip, gre, vxlan].map(|carrier| [v4(), v6()].map(|ip| in_tunnel(data(), ip, carrier.clone())));
    let options = data().with(|s| (s.ip.v6, s.ip.options) = (true, vec![1, 4, 0, 0, 0, 0]));
    for spec in tunnels.into_iter().flatten().chain([tagged, options]) {
        let first = Spec { payload: vec![1; 100], ..spec };
        // The lengths in all headers differ.
        let merge = [first.build(), first.next(50).build()];
        assert_eq!(segs(config(), &merge), [2]);
        assert!(!are_unmatched(config(), &merge));
        let other = first.clone().with(|s| (s.ports.0, s.ip.dst) = (7, 99));
        let distinguishes = first.outer.is_none();
        assert!(!distinguishes || are_unmatched(config(), &[first.build(), other.build()]));
    }
}
