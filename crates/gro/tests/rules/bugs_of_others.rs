//! Known bugs of other engines, by name.

use crate::common::{ACK, FIN, L4, PSH, RST, SYN, Spec, check, tcp, udp, v4};
use crate::{APART, Left, config, data, pair, push_all, segs, specs};
use towpath_gro::{Gro, Gso, LinkKind, Offload};

#[test]
fn wireguard_go_more_than_128_flows_a_batch() {
    let packets: Vec<_> = (0..5000u16).map(|f| data().with(|s| s.ports.0 = f).build()).collect();
    assert_eq!(segs(config(), &packets), vec![1; 5000]);
}

#[test]
fn wireguard_go_no_metadata_of_what_left_before_stays() {
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    let run = data().run(3, 100);
    push_all(&mut gro, run.iter().map(Spec::build), &mut left);
    gro.flush_all(&mut left);
    let other = data().with(|s| s.ports.0 = 1).build();
    push_all(&mut gro, [other.clone()], &mut left);
    gro.flush_all(&mut left);
    assert_eq!((left.packets[1].offload, left.packets[1].bytes()), (Offload::default(), other));
}

#[test]
fn wireguard_go_fragments_do_not_merge() {
    let fragments: Vec<_> = (0..3).map(|i| udp(v4(), 64).with(|s| s.ip.fragment = 0x2000 | (i * 9)).build()).collect();
    assert_eq!(segs(config(), &fragments), [1, 1, 1]);
}

#[test]
fn tun_rs_no_ip_packet_of_65536() {
    let header = 20 + 32;
    let size = (65_536 - header) / 4;
    assert_eq!(size * 4 + header, 65_536);
    assert_eq!(specs(&tcp(v4(), 0).with(|s| s.link = LinkKind::Ip).run(4, size)), [3, 1]);
}

#[test]
fn dpdk_fin_and_psh_do_not_overtake_what_is_held() {
    for flag in [FIN, PSH, RST, SYN] {
        let run = data().run(3, 100);
        let late = run[2].next(100).flags(ACK | flag);
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, [run[0].build(), run[1].build(), late.build()], &mut left);
        assert_eq!(left.segs, [2, 1]);
        assert_eq!(left.packets[1].bytes(), late.build());
    }
}

#[test]
fn dpdk_the_output_has_a_right_ip_checksum_and_a_gso_size() {
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    push_all(&mut gro, data().run(5, 100).iter().map(Spec::build), &mut left);
    gro.flush_all(&mut left);
    let p = &left.packets[0];
    assert!(matches!(p.offload.gso, Some(Gso { size: 100, segs: 5, hdr_len: 66, .. })));
    check::super_packet(&p.bytes(), LinkKind::Ethernet, &p.offload).unwrap();
}

#[test]
fn gvisor_a_flush_emits_everything() {
    let packets: Vec<_> = (0..1000u16).map(|f| data().with(|s| s.ports.0 = f).build()).collect();
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    push_all(&mut gro, packets, &mut left);
    gro.flush_all(&mut left);
    assert_eq!((left.packets.len(), gro.held()), (1000, 0));
}

#[test]
fn vpp_ports_and_timestamps_are_compared() {
    assert_eq!(pair(&data(), |s| s.ports.0 += 4), APART);
    let newer = |s: &mut Spec| {
        if let L4::Tcp { options, .. } = &mut s.l4 {
            options[7] += 1
        }
    };
    assert_eq!(pair(&data(), newer), APART);
}
