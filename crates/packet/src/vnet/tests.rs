use super::*;
use crate::{Backing, Cache, Direction, Gso, GsoKind, Pool, PoolConfig, Vlan};
use proptest::prelude::*;

fn cache() -> Cache {
    let config = PoolConfig::default().capacity(64).backing(Backing::Anonymous);
    Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
}

fn packet(cache: &mut Cache, len: usize) -> Packet {
    Packet::copy_from(cache, &vec![0; len]).unwrap()
}

fn tcp(start: u16) -> (Checksum, Gso) {
    let gso = Gso { kind: GsoKind::Tcp4, ecn: true, size: 1448, segs: 0, hdr_len: start + 32 };
    (Checksum::Partial { start, offset: 16 }, gso)
}

#[test]
fn the_metadata_of_a_super_packet_survives_the_header() {
    let mut cache = cache();
    let mut sent = packet(&mut cache, 9000);
    let (csum, gso) = tcp(34);
    sent.set_csum(csum);
    sent.set_gso(Some(gso));
    let mut received = packet(&mut cache, 9000);
    apply(header_of(&sent).unwrap(), &mut received).unwrap();
    assert_eq!((received.csum(), received.gso()), (csum, Some(gso)));
}

#[test]
fn a_useless_hint_is_replaced_by_the_shortest_headers() {
    let mut cache = cache();
    let mut sent = packet(&mut cache, 9000);
    let (csum, gso) = tcp(34);
    sent.set_csum(csum);
    for hint in [0, 33, 53, 4028, 65535] {
        sent.set_gso(Some(Gso { hdr_len: hint, ..gso }));
        assert_eq!(header_of(&sent).unwrap().hdr_len, 54, "{hint}");
    }
    sent.set_gso(Some(Gso { hdr_len: 94, ..gso }));
    assert_eq!(header_of(&sent).unwrap().hdr_len, 94);
}

#[test]
fn metadata_that_contradicts_the_packet_never_reaches_the_kernel() {
    let mut cache = cache();
    let (csum, gso) = tcp(34);
    let refusal = |len, csum, gso, vlan| {
        let mut p = packet(&mut cache, len);
        p.set_csum(csum);
        p.set_gso(gso);
        p.set_vlan(vlan);
        header_of(&p).err()
    };
    let mut refusal = refusal;
    assert_eq!(refusal(9000, csum, Some(gso), None), None);
    assert_eq!(refusal(51, csum, None, None), Some(DropReason::Malformed), "checksum field cut off");
    assert_eq!(refusal(53, csum, Some(gso), None), Some(DropReason::Malformed), "TCP header cut off");
    assert_eq!(refusal(9000, csum, Some(Gso { size: 0, ..gso }), None), Some(DropReason::Malformed));
    assert_eq!(refusal(9000, Checksum::Partial { start: 34, offset: 6 }, Some(gso), None), Some(DropReason::Malformed));
    assert_eq!(
        refusal(9000, Checksum::Partial { start: 19, offset: 16 }, Some(gso), None),
        Some(DropReason::Malformed)
    );
    let udp = Gso { kind: GsoKind::Udp, ecn: false, size: 10, ..gso };
    let at = Checksum::Partial { start: 34, offset: 6 };
    assert_eq!(refusal(42 + 1280, at, Some(udp), None), None);
    assert_eq!(refusal(42 + 1281, at, Some(udp), None), Some(DropReason::Offload), "129 segments");
    assert_eq!(refusal(1000, Checksum::Unknown, Some(udp), None), Some(DropReason::Offload), "complete checksum");
    let tag = Some(Vlan { tci: 5, service: false });
    assert_eq!(refusal(1000, Checksum::Unknown, None, tag), Some(DropReason::Offload), "no word for a tag");
}

#[test]
fn a_header_that_contradicts_the_packet_is_refused_and_leaves_it_unchanged() {
    let mut cache = cache();
    let good = VnetHeader { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 100, csum_start: 34, csum_offset: 16 };
    let cases = [
        VnetHeader { csum_start: 983, ..good },
        VnetHeader { csum_start: u16::MAX, csum_offset: u16::MAX, ..good },
        VnetHeader { csum_offset: 6, ..good },
        VnetHeader { gso_size: 0, ..good },
        VnetHeader { gso_size: u16::MAX, ..good },
        VnetHeader { gso_type: 3, ..good },
        VnetHeader { gso_type: 0x80, ..good },
        VnetHeader { gso_type: 0x85, ..good },
        VnetHeader { gso_type: 0x21, ..good },
    ];
    for header in cases {
        let mut p = packet(&mut cache, 1000);
        assert!(apply(header, &mut p).is_err(), "{header:?}");
        assert_eq!((p.csum(), p.gso()), (Checksum::Unknown, None));
    }
    let mut p = packet(&mut cache, 1000);
    apply(good, &mut p).unwrap();
}

#[test]
fn verified_is_kept_in_both_directions() {
    let mut cache = cache();
    let mut p = packet(&mut cache, 60);
    apply(VnetHeader { flags: DATA_VALID, ..VnetHeader::default() }, &mut p).unwrap();
    assert_eq!(p.csum(), Checksum::Verified);
    assert_eq!(header_of(&p).unwrap(), VnetHeader { flags: DATA_VALID, ..VnetHeader::default() });
}

proptest! {
    #[test]
    fn likely_headers_hold_too(
        flags in 0u8..4, kind in prop::sample::select(vec![0u8, 1, 3, 4, 5, 0x81, 0x84]),
        start in 0u16..100, offset in prop::sample::select(vec![6u16, 16]), size in 0u16..2000, len in 1usize..3000,
    ) {
        let header = VnetHeader { flags, gso_type: kind, hdr_len: 54, gso_size: size, csum_start: start, csum_offset: offset };
        let mut cache = cache();
        let mut p = packet(&mut cache, len);
        if apply(header, &mut p).is_ok()
            && let Ok(again) = header_of(&p)
        {
            prop_assert_eq!(again.gso_type, kind);
            prop_assert_eq!(again.flags & NEEDS_CSUM, flags & NEEDS_CSUM);
        }
    }
}
