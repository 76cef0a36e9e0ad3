//! UDP and tunnels.

use crate::common::{Carrier, Spec, in_tunnel, udp, v4};
use crate::{APART, Left, MERGED, common, config, data, outer, pair, push_all, segs, specs};
use towpath_gro::Gro;

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
    let (mut gro, mut left) = (Gro::new(config().tunnels(false)), Left::default());
    push_all(&mut gro, run, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, [3]);
    assert_eq!(left.packets[0].offload.gso.unwrap().kind, towpath_gro::GsoKind::Udp);
    for carrier in [Carrier::Ip, Carrier::Gre { key: None, checksum: false, ethernet: false }] {
        let run: Vec<_> = in_tunnel(data(), v4(), carrier).run(2, 100).iter().map(Spec::build).collect();
        assert_eq!(segs(config(), &run), MERGED);
        assert_eq!(segs(config().tunnels(false), &run), APART, "nothing outside is a flow");
    }
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
