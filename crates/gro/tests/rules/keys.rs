//! What distinguishes flows.

use crate::common::chain::{Chain, Handle};
use crate::common::{Carrier, in_tunnel, tcp, v4, v6};
use crate::{APART, Left, MERGED, config, data, outer, pair, segs, trusted};
use towpath_gro::Gro;

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
fn a_packet_without_a_tag_does_not_join_the_flow_that_is_expected_next_and_has_one() {
    let (mut gro, mut left) = (Gro::new(config()), vec![]);
    let mut sink = (|packet: Handle| left.push(packet.0.pieces.len()), drop);
    for (spec, vlan) in data().run(4, 100).iter().zip([0x8100_0005, 0x8100_0005, 0x8100_0005, 0]) {
        gro.push(Handle(Box::new(Chain { vlan, ..Chain::new(spec.build(), trusted()) })), 0, &mut sink);
    }
    gro.flush_all(&mut sink);
    assert_eq!(left, [3, 1]);
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
