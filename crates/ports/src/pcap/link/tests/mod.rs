//! Tests of the links, each with frames made by hand.

mod wifi;

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn v4() -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([1, 2, 3, 4]);
    packet
}

fn v6() -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 4, 59, 64];
    packet.extend([0x20; 16]);
    packet.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 9]);
    packet.extend([1, 2, 3, 4]);
    packet
}

/// The only frame of a record.
fn only(link: LinkType, data: &[u8], layer: Layer) -> Result<Frame<'_>, Unfit> {
    let frames: Vec<_> = link.frames(data, data.len(), layer).collect();
    let [frame] = frames[..] else { panic!("{frames:?}") };
    frame
}

fn cat(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn a_packet_of_each_link_is_the_same_ip_packet_and_has_the_right_type_on_ethernet() {
    let sll = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0][..]].concat();
    let table: Vec<(u32, Vec<u8>, Vec<u8>)> = vec![
        (1, vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]),
        (
            1,
            vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0],
            vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 2, 0x86, 0xdd],
        ),
        (101, vec![], vec![]),
        (0, vec![2, 0, 0, 0], vec![0, 0, 0, 30]),
        (108, vec![0, 0, 0, 2], vec![24, 0, 0, 0]),
        (8, vec![0; 16], vec![1; 16]),
        (9, vec![0xff, 3, 0, 0x21], vec![0, 0x57]),
        (9, vec![0x21], vec![0x57]),
        (50, vec![0x0f, 0, 8, 0], vec![0xff, 3, 0, 0x57]),
        (204, vec![1, 0xff, 3, 0, 0x21], vec![0, 0, 0x57]),
        (51, vec![0x11, 0, 0, 1, 0, 26, 0, 0x21], vec![0x11, 0, 0, 1, 0, 46, 0, 0x57]),
        (104, vec![0x0f, 0, 8, 0], vec![0x8f, 0, 0x86, 0xdd]),
        (107, vec![0x18, 0x41, 3, 0xcc], vec![0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 0x86, 0xdd]),
        (107, vec![0x18, 0x41, 8, 0], vec![0x18, 0x41, 3, 0x8e]),
        (113, cat(&[&sll, &[8, 0]]), cat(&[&sll, &[0x86, 0xdd]])),
        (
            276,
            vec![8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0],
            vec![0x86, 0xdd, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0],
        ),
    ];
    for (number, head4, head6) in table {
        let link = LinkType::from_number(number).unwrap();
        for (head, packet, group) in [(head4, v4(), MADE_DESTINATION), (head6, v6(), [0x33, 0x33, 0xff, 0, 0, 9])] {
            let data = cat(&[&head, &packet]);
            let frame = only(link, &data, Layer::Ip).unwrap();
            assert_eq!((frame.head, frame.rest), (None, &packet[..]), "link type {number}: {head:x?}");
            // The padding of the link is left out, where there is a header to replace.
            if link != LinkType::Ip {
                let padded = cat(&[&data, &[0; 9]]);
                assert_eq!(only(link, &padded, Layer::Ip).unwrap().rest, packet, "link type {number}");
            }
            let frame = only(link, &data, Layer::Ethernet).unwrap();
            let kind = if number == 51 {
                [0x88, 0x64]
            } else if packet[0] == 0x45 {
                [8, 0]
            } else {
                [0x86, 0xdd]
            };
            match frame.head {
                None => assert_eq!((link, frame.rest), (LinkType::Ethernet, &data[..])),
                Some(head) => {
                    let source = if number > 112 && number != 204 { [2, 0, 0, 0, 0, 7] } else { MADE_SOURCE };
                    assert_eq!(head[12..], kind, "link type {number}");
                    assert_eq!(head[6..12], source, "link type {number}");
                    assert!(number == 51 || head[..6] == group, "link type {number}");
                    assert!(number == 51 || frame.rest == packet, "link type {number}");
                }
            }
        }
    }
}

#[test]
fn a_frame_that_has_no_such_form_is_named() {
    let unfit = |number, data: &[u8], layer| only(LinkType::from_number(number).unwrap(), data, layer).unwrap_err();
    let arp = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1];
    assert_eq!(unfit(1, &arp, Layer::Ip), Unfit::NotIp);
    assert_eq!(unfit(1, &arp[..13], Layer::Ip), Unfit::Cut);
    assert_eq!(unfit(9, &[0xff, 3, 0xc0, 0x21, 1], Layer::Ethernet), Unfit::NoType);
    assert_eq!(unfit(0, &[7, 0, 0, 0, 1], Layer::Ethernet), Unfit::NotIp);
    assert_eq!(unfit(101, &[0x10], Layer::Ethernet), Unfit::NotIp);
    let netlink = [0, 4, 0x03, 0x38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(unfit(113, &netlink, Layer::Ethernet), Unfit::NoType);
    let control = [&[0xff, 0][..], &[0; 30]].concat();
    assert_eq!(unfit(106, &control, Layer::Ethernet), Unfit::NoType);
    assert_eq!(unfit(123, &[6, 0, 0, 5, 1], Layer::Ethernet), Unfit::NoType);
    assert_eq!(unfit(10, &[0x41; 30], Layer::Ethernet), Unfit::NoType);
    assert_eq!(unfit(6, &[0x10; 30], Layer::Ethernet), Unfit::NoType);
    assert_eq!(unfit(178, b"MGD\0....", Layer::Ethernet), Unfit::NoType);
    // An attribute without a payload, and one of no length.
    assert_eq!(unfit(239, &[2, 0, 0, 0, 8, 0, 1, 0, 0, 0, 0, 0], Layer::Ip), Unfit::Cut);
    assert_eq!(unfit(239, &[2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], Layer::Ip), Unfit::Cut);
    for refused in [129, 143, 195, 9999] {
        assert_eq!(LinkType::from_number(refused), None);
    }
}

#[test]
fn a_frame_within_another_has_a_link_of_its_own_and_not_one_that_has_others() {
    let pktap = |kind: u32, link: u32, behind: &[u8]| {
        let head: Vec<u8> = [12, kind, link].iter().flat_map(|word| word.to_le_bytes()).collect();
        let swapped: Vec<u8> = head.chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
        let of = |head: Vec<u8>| {
            let data = cat(&[&head, behind]);
            only(LinkType::Pktap, &data, Layer::Ip).map(|frame| frame.rest.to_vec())
        };
        assert_eq!(of(head.clone()), of(swapped));
        of(head)
    };
    assert_eq!(pktap(1, 0, &cat(&[&[2, 0, 0, 0], &v4()])), Ok(v4()));
    assert_eq!(pktap(1, 101, &v6()), Ok(v6()));
    assert_eq!(pktap(2, 101, &v4()), Err(Unfit::NoType));
    for other in [258, 192, 189] {
        assert_eq!(pktap(1, other, &v4()), Err(Unfit::OtherLink));
    }
}

#[test]
fn a_lan_s_addresses_and_type_are_kept_and_802_2_without_a_type_stands_behind_its_length() {
    const SNAP: &[u8] = &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
    let (one, two) = ([0x00, 1, 2, 3, 4, 5], [0x06, 7, 8, 9, 10, 11]);
    let both = cat(&[&one, &two]);
    let ethernet = cat(&[&both, &[8, 0], &v4()]);
    let made = cat(&[&MADE_DESTINATION, &MADE_SOURCE, &[8, 0], &v4()]);
    let routed = cat(&[&one, &[0x86], &two[1..]]);
    let table: Vec<(u32, Vec<u8>, &Vec<u8>)> = vec![
        (10, cat(&[&[0x57], &both, SNAP, &v4()]), &ethernet),
        (6, cat(&[&[0x10, 0x40], &both, SNAP, &v4()]), &ethernet),
        (6, cat(&[&[0x10, 0x40], &routed, &[0xc6, 1, 2, 3, 4, 5], SNAP, &v4()]), &ethernet),
        (100, cat(&[SNAP, &v4()]), &made),
        (100, cat(&[&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7, 0, 0], &ethernet]), &ethernet),
        (100, cat(&[&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 1, 0, 0], &ethernet, &[1, 2, 3, 4]]), &ethernet),
        (123, cat(&[&[0x82, 0, 0, 9], SNAP, &v4()]), &made),
        (123, cat(&[&[0x01, 0, 0, 9, 0, 7], &ethernet]), &ethernet),
        (106, cat(&[&[0, 7], &ethernet]), &ethernet),
        (242, cat(&[&[9; 40], &[8, 0, 0, 0], &v4()]), &made),
        (281, cat(&[&both, &[0, 0, 0, 1, 8, 0], &v4()]), &ethernet),
        (282, cat(&[&[0, 0, 0, 1], &ethernet]), &ethernet),
        (178, cat(&[b"MGC\x01", &ethernet]), &ethernet),
        (178, cat(&[b"MGC\x80\0\x03abc", &ethernet]), &ethernet),
        (178, cat(&[b"MGC\x02\x02\0\0\0", &v4()]), &made),
        (179, cat(&[b"MGC\0", &[0xff, 3, 0, 0x21], &v4()]), &made),
        (180, cat(&[b"MGC\0", &[0x18, 0x41, 3, 0xcc], &v4()]), &made),
        (181, cat(&[b"MGC\0", &[0x0f, 0, 8, 0], &v4()]), &made),
        (117, cat(&[&[5, 2, 0, 0, 0, 0, 0, 0], &v4()]), &made),
        (109, cat(&[&[0; 12], &v4()]), &made),
        (226, cat(&[&[1; 24], &v4()]), &made),
        (239, cat(&[&[2, 0, 0, 0], &[5, 0, 10, 0, 7, 0, 0, 0], &[28, 0, 9, 0], &v4()]), &made),
        (239, cat(&[&[2, 0, 0, 0], &[0, 5, 0, 10, 7, 0, 0, 0], &[0, 28, 0, 9], &v4(), &[1, 2, 3, 4]]), &made),
    ];
    for (number, data, expected) in &table {
        let link = LinkType::from_number(*number).unwrap();
        assert_eq!(only(link, data, Layer::Ethernet).unwrap().to_vec(), **expected, "link type {number}: {data:x?}");
        assert_eq!(only(link, data, Layer::Ip).unwrap().rest, v4(), "link type {number}: {data:x?}");
        for len in 0..data.len() {
            // What the capture cut is missing, and nothing else changes.
            let frame = link.frames(&data[..len], data.len(), Layer::Ethernet).next().unwrap();
            let Ok(frame) = frame else { continue };
            let had = frame.to_vec();
            assert!(had == expected[..had.len()], "link type {number}: {data:x?} cut to {len}");
            assert_eq!(had.len() + frame.missing, expected.len(), "link type {number}: {data:x?} cut to {len}");
        }
    }
    // Spanning tree has no type, AppleTalk's AARP one that a bridge would write otherwise.
    let tree = cat(&[&[0x57], &both, &[0x42, 0x42, 3, 0, 0]]);
    assert_eq!(
        only(LinkType::Fddi, &tree, Layer::Ethernet).unwrap().to_vec(),
        cat(&[&both, &[0, 5, 0x42, 0x42, 3, 0, 0]])
    );
    let aarp = cat(&[&[0x57], &both, &[0xaa, 0xaa, 3, 0, 0, 0, 0x80, 0xf3, 1]]);
    let expected = cat(&[&both, &[0, 9, 0xaa, 0xaa, 3, 0, 0, 0, 0x80, 0xf3, 1]]);
    assert_eq!(only(LinkType::Fddi, &aarp, Layer::Ethernet).unwrap().to_vec(), expected);
    let tunnel = cat(&[&[0x57], &both, &[0xaa, 0xaa, 3, 0, 0, 0xf8, 0x80, 0xf3, 1]]);
    assert_eq!(only(LinkType::Fddi, &tunnel, Layer::Ethernet).unwrap().to_vec(), cat(&[&both, &[0x80, 0xf3, 1]]));
    let tagged = cat(&[&both, &[0, 0, 0, 1, 0, 3, 0x42, 0x42, 3, 0, 0]]);
    let expected = cat(&[&both, &[0, 3, 0x42, 0x42, 3]]);
    assert_eq!(only(LinkType::BroadcomTag, &tagged, Layer::Ethernet).unwrap().to_vec(), expected);
}

proptest! {
    #[test]
    fn any_bytes_of_any_link_give_frames_of_their_own_bytes_or_reasons(
        number in 0u32..300, data in vec(any::<u8>(), 0..80), original in 0usize..100, ip in any::<bool>(),
    ) {
        let Some(link) = LinkType::from_number(number) else { return Ok(()) };
        check(link, &data, original, ip)?;
    }
}

/// The frames of a record are disjoint parts of it, at least one, and have a header or none.
fn check(link: LinkType, data: &[u8], original: usize, ip: bool) -> Result<(), TestCaseError> {
    let layer = if ip { Layer::Ip } else { Layer::Ethernet };
    let (mut count, mut total) = (0, 0);
    for frame in link.frames(data, original, layer) {
        count += 1;
        let Ok(frame) = frame else { continue };
        total += frame.rest.len();
        prop_assert!(data.as_ptr_range().start <= frame.rest.as_ptr_range().start);
        prop_assert!(frame.rest.as_ptr_range().end <= data.as_ptr_range().end);
        prop_assert!(frame.rest.len() + frame.missing <= original.max(data.len()));
        prop_assert!(!ip || frame.head.is_none());
    }
    prop_assert!(count >= 1 && total <= data.len() && count <= 1 + data.len() / 14);
    Ok(())
}
