//! How large an aggregate becomes.

use crate::common::chain::Chain;
use crate::common::{Carrier, L4, Spec, check, in_tunnel, tcp, v4, v6};
use crate::{Left, config, data, push_all, segs, trusted};
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
        gro.push(Linear::new(bytes, len, Offload::default()), 0, &mut |l: Linear<Vec<u8>>| out.push(l.packet().len()));
    }
    gro.flush_all(&mut |l: Linear<Vec<u8>>| out.push(l.packet().len()));
    assert_eq!(out, [366, 266]);
}
