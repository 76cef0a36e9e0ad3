//! Segmentation against packets built one by one.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{ACK, CWR, Carrier, FIN, PSH, Spec, check, in_tunnel, tcp, udp, v4, v6};
use proptest::prelude::*;
use towpath_gro::{
    Checksum, Checksums, GsoError, GsoKind, LinkKind, MAX_HEADERS, Offload, Slices, Split, complete_checksum,
};

fn split(
    chunks: &[&[u8]],
    link: LinkKind,
    offload: &Offload,
    checksums: Checksums,
) -> Result<Vec<(Vec<u8>, Offload)>, GsoError> {
    let mut split = Split::new(chunks.iter().copied(), link, offload, checksums)?;
    let mut out = vec![];
    while let Some(len) = split.next_len() {
        let mut buffer = vec![0xee; len];
        assert_eq!(split.write(&mut buffer[..len - 1]), None, "a short buffer changes nothing");
        let offload = split.write(&mut buffer).unwrap();
        out.push((buffer, offload));
    }
    assert_eq!(split.packets(), 0);
    assert_eq!(split.write(&mut [0; 2000]), None);
    assert_eq!(out, slices(&chunks.concat(), link, offload, checksums)?);
    Ok(out)
}

/// The same packets, their payload left in place.
fn slices(
    packet: &[u8],
    link: LinkKind,
    offload: &Offload,
    checksums: Checksums,
) -> Result<Vec<(Vec<u8>, Offload)>, GsoError> {
    let mut split = Split::of(packet, link, offload, checksums)?;
    let mut out = vec![];
    let mut headers = vec![0xee; packet.len().max(MAX_HEADERS)];
    while let Some(len) = split.next_len() {
        let Slices { headers: n, payload, offload } = split.next_slices(&mut headers).unwrap();
        assert!(n + payload.len() == len && packet.as_ptr_range().contains(&payload.as_ptr()) || payload.is_empty());
        out.push(([&headers[..n], payload].concat(), offload));
    }
    assert_eq!(split.next_slices(&mut headers), None);
    Ok(out)
}

/// Every kind of packet the splitter knows: transports, link kinds, tags, extension headers,
/// tunnels.
fn every_kind() -> Vec<Spec> {
    let mut plain = vec![];
    for ip in [v4(), v6()] {
        plain.extend([tcp(ip.clone(), 0), udp(ip.clone(), 0)]);
    }
    let mut all = plain.clone();
    all.extend(plain.iter().map(|s| s.clone().with(|s| s.link = LinkKind::Ip)));
    all.extend(plain.iter().map(|s| s.clone().with(|s| s.tags = vec![(0x8100, 5)])));
    all.extend(plain.iter().map(|s| s.clone().with(|s| s.tags = vec![(0x88a8, 7), (0x8100, 5)])));
    all.push(tcp(v6(), 0).with(|s| s.ip.options = vec![1, 4, 0, 0, 0, 0]));
    all.push(tcp(v4(), 0).with(|s| s.ip.options = vec![1, 1, 1, 0]));
    for outer in [v4(), v6()] {
        for carrier in carriers() {
            for link in [LinkKind::Ethernet, LinkKind::Ip] {
                all.extend(
                    plain.iter().map(|s| in_tunnel(s.clone(), outer.clone(), carrier.clone()).with(|s| s.link = link)),
                );
            }
        }
    }
    all
}

fn carriers() -> Vec<Carrier> {
    let mut all = vec![Carrier::Ip];
    for checksum in [false, true] {
        all.push(Carrier::Vxlan { vni: 42, checksum });
        for ethernet in [false, true] {
            all.push(Carrier::Geneve { vni: 43, checksum, options: vec![1, 2, 3, 4], ethernet });
            all.push(Carrier::Gre { key: checksum.then_some(44), checksum, ethernet });
        }
    }
    all
}

/// `n` packets of `size` bytes, the last of `last`, and the super-packet they make.
fn sample(spec: &Spec, n: usize, size: usize, last: usize) -> (Vec<Spec>, Vec<u8>, Offload) {
    let mut run = spec.run(n - 1, size);
    run.push(run[n - 2].next(last));
    let whole = run.iter().flat_map(|s| s.payload.clone()).collect();
    let (packet, offload) = Spec { payload: whole, ..spec.clone() }.build_super(size as u16);
    (run, packet, offload)
}

#[test]
fn segments_of_every_kind_are_the_packets_built_one_by_one() {
    for spec in every_kind() {
        let (run, packet, offload) = sample(&spec, 4, 333, 17);
        check::super_packet(&packet, spec.link, &offload).unwrap_or_else(|e| panic!("{e}: {spec:?}"));
        let segments =
            split(&[&packet], spec.link, &offload, Checksums::Complete).unwrap_or_else(|e| panic!("{e}: {spec:?}"));
        assert_eq!(segments.len(), 4);
        for (want, (got, offload)) in run.iter().zip(&segments) {
            assert_eq!(&want.build(), got, "{spec:?}");
            assert_eq!(*offload, Offload::new(Checksum::Verified, None));
        }
    }
}

#[test]
fn partial_segments_become_right_when_the_egress_completes_them() {
    for spec in every_kind() {
        let (run, packet, offload) = sample(&spec, 3, 200, 200);
        let segments = split(&[&packet], spec.link, &offload, Checksums::Partial).unwrap();
        for (want, (mut got, offload)) in run.iter().zip(segments) {
            check::partial(&got, spec.link).unwrap_or_else(|e| panic!("{e}: {spec:?}"));
            complete_checksum(&mut got, &offload).unwrap();
            assert_eq!(want.build(), got, "{spec:?}");
        }
    }
}

#[test]
fn fin_and_psh_are_in_the_last_segment_only() {
    let (_, packet, offload) = sample(&tcp(v4(), 0).flags(ACK | FIN | PSH), 3, 100, 100);
    let flags: Vec<u8> = split(&[&packet], LinkKind::Ethernet, &offload, Checksums::Complete)
        .unwrap()
        .iter()
        .map(|(p, _)| p[14 + 20 + 13])
        .collect();
    assert_eq!(flags, [ACK, ACK, ACK | FIN | PSH]);
}

#[test]
fn cwr_is_in_the_first_segment_only_if_the_metadata_says_ecn() {
    for (ecn, want) in [(true, [ACK | CWR, ACK, ACK]), (false, [ACK | CWR; 3])] {
        let (_, packet, mut offload) = sample(&tcp(v6(), 0).flags(ACK | CWR), 3, 100, 100);
        offload.gso.as_mut().unwrap().ecn = ecn;
        let flags: Vec<u8> = split(&[&packet], LinkKind::Ethernet, &offload, Checksums::Complete)
            .unwrap()
            .iter()
            .map(|(p, _)| p[14 + 40 + 13])
            .collect();
        assert_eq!(flags, want);
    }
}

#[test]
fn identifications_are_fixed_if_the_metadata_says_so_inner_and_outer_apart() {
    let spec = in_tunnel(tcp(v4(), 0), v4(), Carrier::Vxlan { vni: 1, checksum: true });
    for (inner, outer) in [(true, false), (false, true)] {
        let (_, packet, mut offload) = sample(&spec, 3, 100, 100);
        (offload.fixed_id, offload.outer_fixed_id) = (inner, outer);
        for (i, (p, _)) in
            split(&[&packet], LinkKind::Ethernet, &offload, Checksums::Complete).unwrap().iter().enumerate()
        {
            check::packet(p, LinkKind::Ethernet).unwrap();
            let id = |at| u16::from_be_bytes([p[at], p[at + 1]]);
            assert_eq!(id(18), 500 + if outer { 0 } else { i as u16 });
            assert_eq!(id(64 + 4), 100 + if inner { 0 } else { i as u16 });
        }
    }
}

#[test]
fn sequence_numbers_and_identifications_wrap() {
    let spec = tcp(v4(), 0).seq(u32::MAX - 50).with(|s| s.ip.id = u16::MAX);
    let (run, packet, offload) = sample(&spec, 3, 100, 100);
    let segments = split(&[&packet], LinkKind::Ethernet, &offload, Checksums::Complete).unwrap();
    assert!(run.iter().zip(&segments).all(|(want, (got, _))| want.build() == *got));
}

#[test]
fn a_packet_that_is_not_a_super_packet_leaves_as_it_is_with_its_checksum_completed() {
    for spec in every_kind() {
        let want = spec.run(1, 99)[0].clone();
        let (packet, mut offload) = want.build_super(99);
        let payload_in_one = split(&[&packet], spec.link, &offload, Checksums::Complete).unwrap();
        assert_eq!(payload_in_one.len(), 1);
        assert_eq!(payload_in_one[0].0, want.build());
        offload = Offload::new(offload.checksum, None);
        let (got, state) = split(&[&packet], spec.link, &offload, Checksums::Complete).unwrap().remove(0);
        assert_eq!(state.checksum, Checksum::Verified);
        if spec.outer.is_none() {
            assert_eq!(got, want.build());
        }
        let (same, state) = split(&[&packet], spec.link, &offload, Checksums::Partial).unwrap().remove(0);
        assert_eq!((same, state), (packet, offload));
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let mut spec = udp(v4(), 2);
    spec.payload = vec![0, 0];
    let built = spec.build();
    spec.payload = built[40..42].to_vec();
    let (packet, mut offload) = spec.build_super(2);
    offload.gso = None;
    let (got, _) = split(&[&packet], LinkKind::Ethernet, &offload, Checksums::Complete).unwrap().remove(0);
    assert_eq!(got[40..42], [0xff, 0xff]);
    let (got, _) =
        split(&[&packet], LinkKind::Ethernet, &spec.build_super(2).1, Checksums::Complete).unwrap().remove(0);
    assert_eq!(got[40..42], [0xff, 0xff]);
}

#[test]
fn hostile_metadata_is_an_error() {
    let (_, packet, good) = sample(&tcp(v4(), 0), 3, 100, 100);
    let error = |change: &dyn Fn(&mut Offload)| {
        let mut offload = good;
        change(&mut offload);
        split(&[&packet], LinkKind::Ethernet, &offload, Checksums::Complete).err()
    };
    assert_eq!(error(&|_| ()), None);
    assert_eq!(error(&|o| o.gso.as_mut().unwrap().size = 0), Some(GsoError::Size));
    assert_eq!(error(&|o| o.gso.as_mut().unwrap().size = 7), Some(GsoError::Size));
    assert_eq!(error(&|o| o.gso.as_mut().unwrap().hdr_len = 60_000), None, "a hint is not relied on");
    assert_eq!(error(&|o| o.gso.as_mut().unwrap().kind = GsoKind::Tcp6), Some(GsoError::Headers));
    assert_eq!(error(&|o| o.gso.as_mut().unwrap().kind = GsoKind::Udp), Some(GsoError::Headers));
    assert_eq!(error(&|o| o.checksum = Checksum::Partial { start: 65_535, offset: 255 }), Some(GsoError::Checksum));
    assert_eq!(error(&|o| o.checksum = Checksum::Partial { start: 33, offset: 16 }), Some(GsoError::Checksum));
    assert_eq!(error(&|o| o.checksum = Checksum::Partial { start: 34, offset: 6 }), Some(GsoError::Checksum));
    let datagrams = udp(v4(), 300).build_super(2);
    assert_eq!(
        split(&[&datagrams.0], LinkKind::Ethernet, &datagrams.1, Checksums::Complete).err(),
        Some(GsoError::Size)
    );
    assert_eq!(
        split(&[&packet[..60]], LinkKind::Ethernet, &good, Checksums::Complete).err(),
        Some(GsoError::Truncated)
    );
    assert_eq!(
        split(&[], LinkKind::Ethernet, &Offload::default(), Checksums::Complete).err(),
        Some(GsoError::Truncated)
    );
    for (offset, error) in [(8, None), (9, Some(GsoError::Checksum))] {
        let partial = Checksum::Partial { start: packet.len() as u16 - 10, offset };
        assert_eq!(complete_checksum(&mut packet.clone(), &Offload::new(partial, None)).err(), error);
    }
    let unchecked = Offload { checksum: Checksum::Unknown, ..datagrams.1 };
    assert_eq!(
        split(&[&datagrams.0], LinkKind::Ethernet, &unchecked, Checksums::Complete).err(),
        Some(GsoError::Checksum)
    );
}

proptest! {
    #[test]
    fn how_the_input_is_scattered_makes_no_difference(
        kind in 0..every_kind().len(), n in 2..6usize, size in 8..400usize, cut in 0..400usize,
        cuts in prop::collection::vec(0..1500usize, 0..8),
    ) {
        let spec = &every_kind()[kind];
        let (run, packet, offload) = sample(spec, n, size, 1 + cut % size);
        let mut at: Vec<usize> = cuts.iter().map(|c| c % packet.len()).chain([0, packet.len()]).collect();
        at.sort_unstable();
        let chunks: Vec<&[u8]> = at.windows(2).map(|w| &packet[w[0]..w[1]]).collect();
        let segments = split(&chunks, spec.link, &offload, Checksums::Complete).unwrap();
        prop_assert_eq!(segments.len(), n);
        for (want, (got, _)) in run.iter().zip(&segments) {
            prop_assert_eq!(&want.build(), got);
        }
    }

    #[test]
    fn no_packet_and_no_metadata_make_it_panic_or_invent_bytes(
        kind in 0..every_kind().len(), flips in prop::collection::vec((0..200usize, any::<u8>()), 0..6), cut in 0..700usize,
        size in any::<u16>(), start in any::<u16>(), offset in any::<u8>(), inner in any::<u16>(), which in 0..16u8,
    ) {
        let spec = &every_kind()[kind];
        let (_, mut packet, mut offload) = sample(spec, 3, 200, 50);
        for (at, value) in flips {
            if let Some(b) = packet.get_mut(at) { *b = value; }
        }
        packet.truncate(cut.max(1));
        let gso = offload.gso.as_mut().unwrap();
        if which & 1 != 0 { gso.size = size; }
        if which & 2 != 0 { offload.checksum = Checksum::Partial { start, offset }; }
        if let (true, Some(t)) = (which & 4 != 0, &mut offload.tunnel) { t.inner_l3 = inner % 200; }
        if which & 8 != 0 { offload.checksum = Checksum::Unknown; }
        for checksums in [Checksums::Complete, Checksums::Partial] {
            if let Ok(segments) = split(&[&packet], spec.link, &offload, checksums) {
                let longest = segments.iter().map(|(p, _)| p.len()).max().unwrap_or(0);
                prop_assert!(longest <= packet.len());
            }
        }
    }
}
