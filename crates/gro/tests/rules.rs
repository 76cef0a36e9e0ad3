//! Every rule and every known bug of other engines, by name.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::chain::Chain;
use common::{ACK, CWR, Carrier, FIN, L4, PSH, RST, SYN, Spec, URG, check, in_tunnel, tcp, udp, v4, v6};
use towpath_gro::{Checksum, Config, Flush, Gro, Gso, Linear, Link, Offload, Sink};

fn trusted() -> Offload {
    Offload { checksum: Checksum::Verified, gso: None }
}

fn config() -> Config {
    Config { seed: 1, ..Config::default() }
}

/// What leaves, as the number of packets in each, and its bytes.
#[derive(Default)]
struct Left {
    segs: Vec<usize>,
    packets: Vec<Chain>,
}

impl Sink<Chain> for Left {
    fn packet(&mut self, packet: Chain) {
        self.segs.push(packet.offload.gso.map_or(1, |gso| gso.segs.into()));
        self.packets.push(packet);
    }
}

fn push_all(gro: &mut Gro<Chain>, packets: impl IntoIterator<Item = Vec<u8>>, left: &mut Left) {
    gro.push_batch(packets.into_iter().map(|b| Chain::new(b, Offload::default())), 0, left);
}

/// The number of packets in each that leaves, in the order they leave, all flushed.
fn segs(config: Config, packets: &[Vec<u8>]) -> Vec<usize> {
    let (mut gro, mut left) = (Gro::new(config), Left::default());
    push_all(&mut gro, packets.to_vec(), &mut left);
    gro.flush_all(&mut left);
    left.segs
}

fn specs(specs: &[Spec]) -> Vec<usize> {
    let config = Config { link: specs[0].link, ..config() };
    segs(config, &specs.iter().map(Spec::build).collect::<Vec<_>>())
}

/// Two packets that would merge, the second changed.
fn pair(first: &Spec, change: impl FnOnce(&mut Spec)) -> Vec<usize> {
    let first = first.clone().with(|s| s.payload = vec![5; 100]);
    specs(&[first.clone(), first.next(100).with(change)])
}

fn data() -> Spec {
    tcp(v4(), 100)
}

fn outer(s: &mut Spec) -> &mut common::Outer {
    s.outer.as_mut().unwrap()
}

const MERGED: [usize; 1] = [2];
const APART: [usize; 2] = [1, 1];

#[test]
fn the_flow_key_is_everything_that_sets_flows_apart() {
    let vxlan = in_tunnel(data(), v4(), Carrier::Vxlan { vni: 1, checksum: false });
    let tagged = data().with(|s| s.tags = vec![(0x88a8, 1), (0x8100, 2)]);
    assert_eq!(pair(&data(), |_| ()), MERGED);
    assert_eq!(pair(&tagged, |_| ()), MERGED);
    assert_eq!(pair(&vxlan, |_| ()), MERGED);
    assert_eq!(pair(&data(), |s| s.mac ^= 1), APART);
    assert_eq!(pair(&data(), |s| s.ip.src ^= 1), APART);
    assert_eq!(pair(&data(), |s| s.ip.dst ^= 1), APART);
    assert_eq!(pair(&data(), |s| s.ports.0 ^= 1), APART);
    assert_eq!(pair(&data(), |s| s.ports.1 ^= 1), APART);
    assert_eq!(pair(&data(), |s| s.tags = vec![(0x8100, 3)]), APART);
    assert_eq!(pair(&tagged, |s| s.tags[0].1 = 9), APART);
    assert_eq!(pair(&tagged, |s| s.tags[1].1 = 9), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.label ^= 1), APART);
    assert_eq!(pair(&vxlan, |s| outer(s).ip.src ^= 1), APART);
    assert_eq!(pair(&vxlan, |s| outer(s).port ^= 1), APART);
    assert_eq!(pair(&vxlan, |s| outer(s).carrier = Carrier::Vxlan { vni: 2, checksum: false }), APART);
}

#[test]
fn a_tag_that_came_beside_the_packet_is_part_of_the_key() {
    let run = data().run(2, 100);
    for (tags, want) in
        [([0x8100_0005, 0x8100_0005], &MERGED[..]), ([0x8100_0005, 0x8100_0006], &APART), ([0, 0x8100_0000], &APART)]
    {
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        for (spec, vlan) in run.iter().zip(tags) {
            gro.push(Chain { vlan, ..Chain::new(spec.build(), trusted()) }, 0, &mut left);
        }
        gro.flush_all(&mut left);
        assert_eq!(left.segs, want);
    }
}

#[test]
fn a_bad_checksum_is_passed_on_alone_and_never_merged() {
    for at in [14 + 10, 14 + 20 + 16, 14 + 20 + 32 + 50] {
        for bad in 0..4 {
            let mut packets: Vec<_> = data().run(4, 100).iter().map(Spec::build).collect();
            packets[bad][at] ^= 4;
            let (mut gro, mut left) = (Gro::new(config()), Left::default());
            push_all(&mut gro, packets.clone(), &mut left);
            gro.flush_all(&mut left);
            assert!(left.packets.iter().any(|p| p.bytes() == packets[bad]), "alone, as it came: {bad} {at}");
            assert_eq!(left.segs.iter().sum::<usize>(), 4);
        }
    }
}

#[test]
fn a_port_that_verified_is_believed() {
    let mut packets: Vec<_> = data().run(2, 100).iter().map(Spec::build).collect();
    packets[1][14 + 20 + 16] ^= 4;
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    gro.push_batch(packets.into_iter().map(|b| Chain::new(b, trusted())), 0, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, MERGED);
}

#[test]
fn a_partial_checksum_is_as_good_as_a_right_one_if_it_is_the_transports() {
    for (start, want) in [(34, &MERGED[..]), (14, &APART)] {
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        let offload = Offload { checksum: Checksum::Partial { start, offset: 16 }, gso: None };
        gro.push_batch(data().run(2, 100).iter().map(|s| Chain::new(s.build_super(100).0, offload)), 0, &mut left);
        gro.flush_all(&mut left);
        assert_eq!(left.segs, want);
    }
}

#[test]
fn ipv4_options_and_fragments_never_merge() {
    assert_eq!(pair(&data(), |s| s.ip.options = vec![1; 4]), APART);
    let with_options = data().with(|s| s.ip.options = vec![1; 4]);
    assert_eq!(pair(&with_options, |_| ()), APART);
    assert_eq!(pair(&data(), |s| s.ip.fragment = 0x2000), APART);
    assert_eq!(pair(&data().with(|s| s.ip.fragment = 0x2000), |_| ()), APART);
    assert_eq!(pair(&data().with(|s| s.ip.fragment = 0x10), |_| ()), APART);
}

#[test]
fn padding_of_short_frames_is_not_data() {
    let mut packets: Vec<_> = data().run(3, 10).iter().map(Spec::build).collect();
    packets[1].extend([0; 4]);
    assert_eq!(segs(config(), &packets), [1, 1, 1]);
    packets[0].extend([0; 4]);
    assert_eq!(segs(config(), &packets), [1, 1, 1]);
}

#[test]
fn ttl_tos_and_df_are_equal_in_an_aggregate() {
    assert_eq!(pair(&data(), |s| s.ip.ttl -= 1), APART);
    assert_eq!(pair(&data(), |s| s.ip.tos = 4), APART);
    assert_eq!(pair(&data(), |s| s.ip.tos = 3), APART, "ECN");
    assert_eq!(pair(&data(), |s| s.ip.df = false), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.ttl -= 1), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.tos = 4), APART);
}

#[test]
fn identifications_count_up_or_stay_as_the_second_packet_decides() {
    let run = |ids: [u16; 4], df| {
        let mut run = data().with(|s| s.ip.df = df).run(4, 100);
        run.iter_mut().zip(ids).for_each(|(s, id)| s.ip.id = id);
        specs(&run)
    };
    assert_eq!(run([65_534, 65_535, 0, 1], true), [4]);
    assert_eq!(run([7, 7, 7, 7], true), [4]);
    assert_eq!(run([7, 8, 8, 9], true), [2, 2]);
    assert_eq!(run([7, 7, 8, 9], true), [2, 2]);
    assert_eq!(run([7, 9, 10, 11], true), [1, 3]);
    assert_eq!(run([7, 7, 7, 7], false), [1, 1, 1, 1], "what may be fragmented needs identifications");
}

#[test]
fn extension_headers_merge_only_when_byte_equal_and_a_fragment_header_never() {
    let spec = tcp(v6(), 100).with(|s| s.ip.options = vec![1, 4, 0, 0, 0, 0]);
    assert_eq!(pair(&spec, |_| ()), MERGED);
    assert_eq!(pair(&spec, |s| s.ip.options[5] = 1), APART);
    assert_eq!(pair(&spec, |s| s.ip.options.clear()), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.fragment = 1), APART);
    assert_eq!(pair(&tcp(v6(), 100).with(|s| s.ip.fragment = 1), |_| ()), APART);
}

#[test]
fn only_the_next_sequence_number_merges_and_another_begins_anew() {
    let run = data().run(4, 100);
    assert_eq!(specs(&[run[0].clone(), run[2].clone(), run[3].clone()]), [1, 2]);
    assert_eq!(specs(&[run[0].clone(), run[0].clone()]), APART);
    assert_eq!(specs(&[run[1].clone(), run[0].clone()]), APART);
}

#[test]
fn sequence_numbers_wrap() {
    assert_eq!(specs(&data().seq(u32::MAX - 149).run(4, 100)), [4]);
}

#[test]
fn acknowledgment_window_and_options_are_equal_in_an_aggregate() {
    let change = |change: fn(&mut u32, &mut u16, &mut Vec<u8>)| {
        pair(&data(), |s| {
            if let L4::Tcp { ack, window, options, .. } = &mut s.l4 {
                change(ack, window, options);
            }
        })
    };
    assert_eq!(change(|_, _, _| ()), MERGED);
    assert_eq!(change(|ack, _, _| *ack += 1), APART);
    assert_eq!(change(|_, window, _| *window += 1), APART);
    assert_eq!(change(|_, _, options| options[11] += 1), APART);
    assert_eq!(change(|_, _, options| options.clear()), APART);
}

#[test]
fn fin_and_psh_merge_are_ored_into_the_head_and_end_it() {
    for flag in [FIN, PSH] {
        let run = data().run(4, 100);
        let packets = [run[0].clone(), run[1].clone().flags(ACK | flag), run[2].clone(), run[3].clone()];
        assert_eq!(specs(&packets), [2, 2]);
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, packets[..2].iter().map(Spec::build), &mut left);
        assert_eq!(left.packets[0].bytes()[14 + 20 + 13], ACK | flag, "without being flushed");
        assert_eq!(gro.stats().flushed(Flush::Push), 1);
    }
}

#[test]
fn syn_rst_and_urg_end_the_aggregate_and_do_not_merge() {
    for flag in [SYN, RST, URG] {
        let run = data().run(3, 100);
        assert_eq!(specs(&[run[0].clone(), run[1].clone(), run[2].clone().flags(ACK | flag)]), [2, 1]);
        assert_eq!(specs(&run.iter().map(|s| s.clone().flags(ACK | flag)).collect::<Vec<_>>()), [1, 1, 1]);
    }
}

#[test]
fn other_flags_and_cwr_merge_only_when_equal() {
    assert_eq!(pair(&data().flags(ACK | CWR), |_| ()), MERGED);
    assert_eq!(pair(&data(), |s| *s = s.clone().flags(ACK | CWR)), APART);
    assert_eq!(pair(&data().flags(ACK | CWR), |s| *s = s.clone().flags(ACK)), APART);
    assert_eq!(pair(&data(), |s| *s = s.clone().flags(ACK | 0x40)), APART);
}

#[test]
fn pure_acknowledgments_never_merge_and_leave_after_what_is_held() {
    let run = data().run(2, 100);
    let ack = run[1].next(0);
    assert_eq!(specs(&[run[0].clone(), run[1].clone(), ack.clone(), ack]), [2, 1, 1]);
}

#[test]
fn a_longer_payload_ends_the_held_one_and_a_shorter_one_merges_and_ends() {
    let first = data().run(1, 100).remove(0);
    let longer = first.next(101);
    assert_eq!(specs(&[first.clone(), longer.clone(), longer.next(101)]), [1, 2]);
    let shorter = first.next(99);
    assert_eq!(specs(&[first, shorter.clone(), shorter.next(99)]), [2, 1]);
}

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
    check::super_packet(&left.packets[0].bytes(), Link::Ethernet, &left.packets[0].offload).unwrap();
}

#[test]
fn big_tcp_is_an_option() {
    for ip in [v4(), v6()] {
        let (mut gro, mut left) = (Gro::new(Config { max_size: 200_000, ..config() }), Left::default());
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
    let (mut gro, mut left) = (Gro::new(Config { max_size: 500_000, ..config() }), Left::default());
    gro.push_batch(packets.into_iter().map(|b| Chain::new(b, trusted())), 0, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [1, 1, 1]);
    let whole: Vec<_> = run.iter().map(Spec::build).collect();
    assert_eq!(segs(Config { max_size: 500_000, ..config() }, &whole), [3]);
}

#[test]
fn udp_merges_equal_lengths_a_shorter_one_ends_and_64_are_enough() {
    let spec = udp(v4(), 0);
    assert_eq!(specs(&spec.run(130, 18)), [64, 64, 2]);
    let first = spec.run(2, 100);
    let shorter = first[1].next(99);
    assert_eq!(specs(&[first[0].clone(), first[1].clone(), shorter.clone(), shorter.next(99)]), [3, 1]);
    let longer = first[1].next(101);
    assert_eq!(specs(&[first[0].clone(), first[1].clone(), longer.clone(), longer.next(101)]), [2, 2]);
}

#[test]
fn a_udp_checksum_of_zero_never_merges() {
    let none = |s: &mut Spec| s.l4 = L4::Udp { checksum: false };
    assert_eq!(pair(&udp(v4(), 0), none), APART);
    assert_eq!(pair(&udp(v4(), 0).with(none), |_| ()), APART);
    let mut run = udp(v4(), 0).run(4, 100);
    none(&mut run[2]);
    assert_eq!(specs(&run), [2, 1, 1]);
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    gro.push_batch(run.iter().map(|s| Chain::new(s.build(), trusted())), 0, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [2, 1, 1], "even if the port trusts it");
}

#[test]
fn udp_with_an_unknown_tunnel_inside_is_data() {
    let inner = data().run(3, 100);
    let spec = udp(v4(), 0).with(|s| s.ports.1 = 4790);
    let mut run = spec.run(3, 0);
    run.iter_mut().zip(inner).for_each(|(s, inner)| s.payload = inner.build());
    assert_eq!(specs(&run), [3]);
}

#[test]
fn tunnels_are_one_level_and_opaque_if_asked() {
    let vxlan = in_tunnel(data(), v4(), Carrier::Vxlan { vni: 1, checksum: true });
    let run: Vec<_> = vxlan.run(3, 100).iter().map(Spec::build).collect();
    assert_eq!(segs(config(), &run), [3]);
    let (mut gro, mut left) = (Gro::new(Config { tunnels: false, ..config() }), Left::default());
    push_all(&mut gro, run, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [3]);
    assert_eq!(left.packets[0].offload.gso.unwrap().kind, towpath_gro::GsoKind::Udp);
}

#[test]
fn outer_headers_are_compared() {
    let vxlan = in_tunnel(data(), v4(), Carrier::Vxlan { vni: 1, checksum: true });
    assert_eq!(pair(&vxlan, |s| outer(s).ip.ttl -= 1), APART);
    assert_eq!(pair(&vxlan, |s| outer(s).ip.tos = 4), APART);
    assert_eq!(pair(&vxlan, |s| outer(s).ip.id += 5), APART);
    assert_eq!(pair(&vxlan, |s| outer(s).carrier = Carrier::Vxlan { vni: 1, checksum: false }), APART);
    let geneve = |options| Carrier::Geneve { vni: 1, checksum: false, options, ethernet: true };
    let spec = in_tunnel(data(), v4(), geneve(vec![1, 2, 3, 4]));
    assert_eq!(pair(&spec, |s| outer(s).carrier = geneve(vec![1, 2, 3, 5])), APART);
}

#[test]
fn the_outer_udp_checksum_is_zero_or_valid() {
    for (checksum, want) in [(false, &MERGED[..]), (true, &APART)] {
        let spec = in_tunnel(data(), v4(), Carrier::Vxlan { vni: 1, checksum });
        let mut packets: Vec<_> = spec.run(2, 100).iter().map(Spec::build).collect();
        if checksum {
            packets[1][14 + 20 + 6] ^= 1;
        }
        assert_eq!(segs(config(), &packets), want);
    }
}

#[test]
fn gre_with_sequence_numbers_passes() {
    let spec = in_tunnel(data(), v4(), Carrier::Gre { key: Some(1), checksum: false, ethernet: false });
    let packets: Vec<_> = spec
        .run(2, 100)
        .iter()
        .map(|s| {
            let mut b = s.build();
            b[34] |= 0x10;
            b.splice(42..42, [0, 0, 0, 1]);
            let len = (b.len() - 14) as u16;
            b[16..18].copy_from_slice(&len.to_be_bytes());
            b[24..26].fill(0);
            let check = !common::sum16(&b[14..34]);
            b[24..26].copy_from_slice(&check.to_be_bytes());
            b
        })
        .collect();
    assert_eq!(segs(config(), &packets), APART);
}

#[test]
fn a_single_packet_leaves_byte_for_byte_as_it_came() {
    for offload in
        [trusted(), Offload::default(), Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso: None }]
    {
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
fn a_packet_whose_flow_cannot_be_told_leaves_after_everything_held() {
    let mut headless = data().next(50).build();
    let payload = headless.split_off(20);
    let headless = Chain { pieces: vec![headless, payload], ..Chain::default() };
    let fragment = Chain::new(udp(v4(), 50).with(|s| s.ip.fragment = 0x10).build(), trusted());
    for stranger in [headless, fragment] {
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, data().run(2, 100).iter().map(Spec::build), &mut left);
        gro.push(stranger, 0, &mut left);
        assert_eq!(left.segs, [2, 1]);
        assert_eq!(gro.stats().flushed(Flush::Unknown), 1);
    }
}

#[test]
fn runts_pass() {
    let whole = data().build();
    for len in 0..66 {
        assert_eq!(segs(config(), &[whole[..len].to_vec(), whole[..len].to_vec()]), APART, "{len}");
    }
}

#[test]
fn flows_do_not_mix() {
    let mut packets = vec![];
    let flows: Vec<_> = (0..200u16).map(|f| data().with(|s| s.ports.0 = f).run(4, 100)).collect();
    for i in 0..4 {
        packets.extend(flows.iter().map(|run| run[i].build()));
    }
    assert_eq!(segs(config(), &packets), vec![4; 200]);
}

#[test]
fn a_full_table_evicts_the_oldest_and_keeps_order() {
    let (mut gro, mut left) = (Gro::new(Config { flows: 8, ..config() }), Left::default());
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
fn auto_steps_aside_when_nothing_merges_and_comes_back_in_order() {
    let (mut gro, mut left) = (Gro::new(Config { auto: true, ..config() }), Left::default());
    let mut burst = |gro: &mut Gro<Chain>, flows: u16, base: u32| {
        let packets = (0..64u16).map(|i| {
            let n = u32::from(i / flows) + base;
            Chain::new(
                data().seq(1000 + 100 * n).with(|s| (s.ports.0, s.ip.id) = (i % flows, n as u16)).build(),
                trusted(),
            )
        });
        gro.push_batch(packets, 0, &mut left);
        if !gro.is_aside() {
            gro.flush_all(&mut left);
        }
        assert_eq!(gro.held(), 0);
    };
    (0..16).for_each(|i| burst(&mut gro, 64, i));
    assert!(gro.is_aside(), "a window without a merge");
    (0..100).for_each(|i| burst(&mut gro, 1, i * 64));
    assert!(gro.is_aside(), "the rest is not over");
    (100..300).for_each(|i| burst(&mut gro, 1, i * 64));
    assert!(!gro.is_aside(), "it probed, and everything merges");
    let stats = *gro.stats();
    assert_eq!(stats.packets, 64 * 316);
    assert!(stats.aside >= 16 * 1024 && stats.merged > 0);
}

// Bugs of others.

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
    assert_eq!(specs(&tcp(v4(), 0).with(|s| s.link = Link::Ip).run(4, size)), [3, 1]);
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
    assert!(matches!(p.offload.gso, Some(Gso { size: 100, segs: 5, header_len: 66, .. })));
    check::super_packet(&p.bytes(), Link::Ethernet, &p.offload).unwrap();
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
