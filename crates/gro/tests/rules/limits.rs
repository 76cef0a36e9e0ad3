//! How large an aggregate becomes.

use crate::common::chain::Chain;
use crate::common::{Carrier, L4, PSH, Spec, check, in_tunnel, tcp, udp, v4, v6};
use crate::{Left, config, data, push_all, segs, specs, trusted};
use towpath_gro::{Gro, Linear, LinkKind, Offload};

#[test]
fn an_ip_packet_is_never_longer_than_65535() {
    for spec in
        [data(), tcp(v6(), 0), in_tunnel(data(), v6(), Carrier::Gre { key: None, checksum: true, ethernet: false })]
    {
        for size in [1448, 1460, 8948, 13_000, 32_000, 32_700] {
            let (mut gro, mut left) = (Gro::new(config()), Left::default());
            push_all(&mut gro, spec.run(130, size).iter().map(Spec::build), &mut left);
            gro.flush_all(&mut left);
            assert_eq!(left.segs.iter().sum::<usize>(), 130);
            for p in left.packets {
                let bytes = p.bytes();
                assert!(bytes.len() - 14 <= 65_535);
                if p.offload.gso.is_some() {
                    check::super_packet(&bytes, spec.link, &p.offload).unwrap();
                } else {
                    check::packet(&bytes, spec.link).unwrap();
                }
            }
        }
    }
}

#[test]
fn exactly_65535_is_reached() {
    let without_options = tcp(v4(), 0).with(|s| {
        if let L4::Tcp { options, .. } = &mut s.l4 {
            options.clear();
        }
    });
    let size = (65_535 - 20 - 20) / 5;
    assert_eq!(size * 5 + 40, 65_535);
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    push_all(&mut gro, without_options.run(6, size).iter().map(Spec::build), &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [5, 1]);
    assert_eq!(left.packets[0].bytes().len(), 14 + 65_535);
    check::super_packet(&left.packets[0].bytes(), LinkKind::Ethernet, &left.packets[0].offload).unwrap();
}

/// Flows of which aggregates are limited by length, not by the number of packets.
fn all_kinds() -> Vec<Spec> {
    let gre = Carrier::Gre { key: None, checksum: true, ethernet: false };
    let vxlan = Carrier::Vxlan { vni: 1, checksum: true };
    let mut all = vec![in_tunnel(data(), v6(), gre), in_tunnel(udp(v6(), 0), v4(), vxlan)];
    for ip in [v4(), v6()] {
        let tagged = tcp(ip.clone(), 0).with(|s| s.tags = vec![(0x8100, 3)]);
        all.extend([tcp(ip.clone(), 0), udp(ip, 0), tagged]);
    }
    let bare: Vec<_> =
        all[2..].iter().cloned().map(|s| s.with(|s| (s.link, s.tags) = (LinkKind::Ip, vec![]))).collect();
    all.extend(bare);
    all
}

/// Full-sized packets as many as `max` bytes have room for, and the number of bytes that are left.
fn filling(spec: &Spec, size: usize, max: usize) -> (Vec<Spec>, usize) {
    let link = if spec.link == LinkKind::Ethernet { 14 + 4 * spec.tags.len() } else { 0 };
    let headers = Spec { payload: vec![], ..spec.clone() }.build().len() - link;
    let room = max - headers;
    (spec.run(room / size, size), room % size)
}

/// As the series `large` of Linux's own GRO tests: the remainder fills the aggregate, and a byte
/// more begins another one.
#[test]
fn a_shorter_last_packet_fills_an_aggregate_to_its_last_byte_and_one_byte_more_does_not_join() {
    for spec in all_kinds() {
        for (size, max) in [(1448, 65_535), (1428, 65_535), (1449, 65_535), (1448, 20_000), (100, 1280), (1001, 9000)] {
            let (full, rest) = filling(&spec, size, max);
            assert!(rest > 0 && full.len() > 1, "{size} {max}");
            for (last, segs, len) in [(rest, vec![full.len() + 1], max), (rest + 1, vec![full.len(), 1], max - rest)] {
                let ends = full[full.len() - 1].next(last);
                let config = config().link(spec.link).max_size(max as u32);
                let (mut gro, mut left) = (Gro::new(config), Left::default());
                let packets = full.iter().chain([&ends]).map(Spec::build);
                push_all(&mut gro, packets, &mut left);
                gro.flush_all(&mut left);
                assert_eq!(left.segs, segs, "{size} {max}: {spec:?}");
                let (bytes, offload) = (left.packets[0].bytes(), left.packets[0].offload);
                let l3 = if spec.link == LinkKind::Ethernet { 14 + 4 * spec.tags.len() } else { 0 };
                assert_eq!(bytes.len() - l3, len);
                check::super_packet(&bytes, spec.link, &offload).unwrap();
            }
        }
    }
}

#[test]
fn an_aggregate_with_room_for_a_shorter_packet_leaves_before_a_packet_that_cannot_join() {
    for spec in all_kinds() {
        let (full, rest) = filling(&spec, 1448, 65_535);
        let (n, last) = (full.len(), &full[full.len() - 1]);
        let one_more = last.next(1448);
        let late = Spec { payload: vec![1; rest], ..one_more.next(rest) };
        let other = last.next(rest).with(|s| s.ip.ttl -= 1);
        let mut ends = vec![(last.next(1449), vec![n, 1]), (other, vec![n, 1]), (one_more.clone(), vec![n, 1])];
        if !spec.is_udp() {
            ends.extend([(late, vec![n, 1]), (one_more.clone().flags(0x10 | PSH), vec![n, 1])]);
        }
        for (then, segs) in ends {
            let config = config().link(spec.link);
            let (mut gro, mut left) = (Gro::new(config), Left::default());
            push_all(&mut gro, full.iter().map(Spec::build), &mut left);
            assert_eq!(gro.held(), 1, "it may still be filled");
            gro.push(Chain::new(then.build(), Offload::default()), 0, &mut left);
            assert_eq!(left.segs[0], n, "it leaves first");
            gro.flush_all(&mut left);
            assert_eq!(left.segs, segs, "{then:?}");
        }
        // Full-sized packets without end: each aggregate is as long as the first.
        let run = spec.run(3 * n + 2, 1448);
        assert_eq!(specs(&run), [n, n, n, 2]);
    }
}

#[test]
fn an_aggregate_of_the_most_packets_leaves_at_once() {
    for (spec, most) in [(tcp(v4(), 0), 128), (tcp(v6(), 0), 128), (udp(v4(), 0), 64), (udp(v6(), 0), 64)] {
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, spec.run(most, 100).iter().map(Spec::build), &mut left);
        assert_eq!((left.segs, gro.held()), (vec![most], 0));
    }
}

#[test]
fn a_shorter_last_packet_fills_big_tcp() {
    for ip in [v4(), v6()] {
        let (full, rest) = filling(&tcp(ip, 0), 1448, 150_000);
        let packets = [full.clone(), vec![full[full.len() - 1].next(rest)]].concat();
        let packets: Vec<_> = packets.iter().map(Spec::build).collect();
        assert_eq!(segs(config().max_size(150_000), &packets), [full.len() + 1]);
        assert_eq!(segs(config().max_size(149_999), &packets), [full.len(), 1]);
    }
}

#[test]
fn big_tcp_is_an_option() {
    for ip in [v4(), v6()] {
        let (mut gro, mut left) = (Gro::new(config().max_size(200_000)), Left::default());
        push_all(&mut gro, tcp(ip.clone(), 0).run(100, 1448).iter().map(Spec::build), &mut left);
        gro.flush_all(&mut left);
        assert_eq!(left.segs, [100]);
        let length = if ip.v6 { 14 + 4 } else { 14 + 2 };
        assert_eq!(left.packets[0].bytes()[length..length + 2], [0, 0]);
    }
}

#[test]
fn big_tcp_does_not_take_a_packet_that_claims_to_be_longer_than_it_is() {
    let run = tcp(v4(), 0).run(3, 65_535 - 52);
    let mut packets: Vec<_> = run.iter().map(Spec::build).collect();
    packets[1].truncate(65_535);
    let (mut gro, mut left) = (Gro::new(config().max_size(500_000)), Left::default());
    gro.push_batch(packets.into_iter().map(|b| Chain::new(b, trusted())), 0, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [1, 1, 1]);
    let whole: Vec<_> = run.iter().map(Spec::build).collect();
    assert_eq!(segs(config().max_size(500_000), &whole), [3]);
}

#[test]
fn a_buffer_that_is_full_ends_the_aggregate() {
    let mut gro = Gro::new(config());
    let mut out = vec![];
    for spec in data().run(5, 100) {
        let (mut bytes, len) = (spec.build(), spec.build().len());
        bytes.resize(len + 250, 0);
        gro.push(
            Linear::new(bytes, len, Offload::default()),
            0,
            &mut (|l: Linear<Vec<u8>>| out.push(l.packet().len()), drop),
        );
    }
    gro.flush_all(&mut (|l: Linear<Vec<u8>>| out.push(l.packet().len()), drop));
    assert_eq!(out, [366, 266]);
}
