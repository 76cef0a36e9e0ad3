//! What checksums have to be.

use crate::common::chain::Chain;
use crate::common::{Carrier, L4, Spec, in_tunnel, udp, v4};
use crate::{APART, Left, MERGED, config, data, pair, push_all, segs, specs, trusted};
use towpath_gro::{Checksum, Gro, Offload};

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
        let offload = Offload::new(Checksum::Partial { start, offset: 16 }, None);
        gro.push_batch(data().run(2, 100).iter().map(|s| Chain::new(s.build_super(100).0, offload)), 0, &mut left);
        gro.flush_all(&mut left);
        assert_eq!(left.segs, want);
    }
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
