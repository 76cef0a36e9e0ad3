//! 802.11 frames that are made by hand, and what they are on Ethernet.

use super::*;

const A: Mac = [0x02, 0, 0, 0, 0, 0x0a];
const B: Mac = [0x02, 0, 0, 0, 0, 0x0b];
const C: Mac = [0x02, 0, 0, 0, 0, 0x0c];
const D: Mac = [0x02, 0, 0, 0, 0, 0x0d];
const GROUP: Mac = [0x01, 0, 0x5e, 0, 0, 1];
const SNAP: &[u8] = &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0];

/// A frame with these first two bytes and these addresses.
fn frame(kind: u8, flags: u8, addresses: [Mac; 3], behind: &[&[u8]]) -> Vec<u8> {
    cat(&[&[kind, flags, 0, 0], &addresses.concat(), &[0x10, 0x20], &behind.concat()])
}

fn ethernet(destination: Mac, source: Mac) -> Vec<u8> {
    cat(&[&destination, &source, &[8, 0], &v4()])
}

/// The frames of a record, or why they have no form.
fn frames(link: LinkType, data: &[u8]) -> Vec<Result<Vec<u8>, Unfit>> {
    link.frames(data, data.len(), Layer::Ethernet).map(|frame| frame.map(|frame| frame.to_vec())).collect()
}

/// Subframes of an A-MSDU.
fn aggregate(subframes: &[(Mac, Mac, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (destination, source, body) in subframes {
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend(cat(&[destination, source, &(body.len() as u16).to_be_bytes(), body]));
    }
    all
}

#[test]
fn addresses_are_those_of_the_ends_whatever_way_the_frame_goes() {
    let body: [&[u8]; 2] = [SNAP, &v4()];
    for (flags, addresses, fourth, destination, source) in
        [(0, [A, B, C], &[][..], A, B), (1, [A, B, C], &[], C, B), (2, [A, B, C], &[], A, C), (3, [A, B, C], &D, C, D)]
    {
        for (kind, qos) in [(0x08, &[][..]), (0x18, &[]), (0x88, &[0x07, 0])] {
            let data = frame(kind, flags, addresses, &[fourth, qos, body[0], body[1]]);
            let expected = ethernet(destination, source);
            assert_eq!(frames(LinkType::Wifi, &data), [Ok(expected)], "kind {kind:x}, flags {flags}");
            assert_eq!(only(LinkType::Wifi, &data, Layer::Ip).unwrap().rest, v4());
        }
    }
    // The order flag is that of an HT control field in QoS frames only.
    let data = frame(0x88, 0x81, [A, B, C], &[&[0, 0], &[1, 2, 3, 4], SNAP, &v4()]);
    assert_eq!(frames(LinkType::Wifi, &data), [Ok(ethernet(C, B))]);
    let data = frame(0x08, 0x81, [A, B, C], &body);
    assert_eq!(frames(LinkType::Wifi, &data), [Ok(ethernet(C, B))]);
}

#[test]
fn frames_without_a_form_on_ethernet_are_named_by_their_reason() {
    let ends = [A, B, C];
    let body: [&[u8]; 2] = [SNAP, &v4()];
    let mut fragment = frame(0x08, 1, ends, &body);
    fragment[22] = 0x11;
    for (data, unfit) in [
        (frame(0x80, 0, ends, &body), Unfit::Management),
        (frame(0x0c, 0, ends, &body), Unfit::Management),
        // An acknowledgement is as short.
        (vec![0xd4, 0, 0, 0, 2, 0, 0, 0, 0, 1], Unfit::Control),
        (frame(0x48, 1, ends, &[]), Unfit::NoData),
        (frame(0xc8, 1, ends, &[&[0, 0]]), Unfit::NoData),
        (frame(0x08, 1, ends, &[]), Unfit::NoData),
        (frame(0x08, 0x41, ends, &body), Unfit::Encrypted),
        (frame(0x08, 0x05, ends, &body), Unfit::Fragment),
        (fragment, Unfit::Fragment),
        (frame(0x09, 1, ends, &body), Unfit::NoType),
        (frame(0x08, 1, ends, &body)[..20].to_vec(), Unfit::Cut),
        (frame(0x88, 3, ends, &[&D, &[0]]), Unfit::Cut),
        (vec![8], Unfit::Cut),
    ] {
        assert_eq!(frames(LinkType::Wifi, &data), [Err(unfit)], "{data:x?}");
    }
}

#[test]
fn each_subframe_of_an_a_msdu_is_a_frame_of_its_own() {
    let [ip, arp] = [cat(&[SNAP, &v4()]), [SNAP, &[0; 28]].concat().to_vec()];
    let mut arp = arp;
    arp[7] = 6;
    let three = aggregate(&[(C, A, &ip), (GROUP, B, &arp), (D, A, &ip)]);
    let data = frame(0x88, 1, [A, B, C], &[&[0x80, 0], &three]);
    let on_arp = cat(&[&GROUP, &B, &[8, 6], &[0; 28]]);
    let expected = [Ok(ethernet(C, A)), Ok(on_arp), Ok(ethernet(D, A))];
    assert_eq!(frames(LinkType::Wifi, &data), expected);
    // One that does not fit the egress does not hide the next.
    let ip_only: Vec<_> =
        LinkType::Wifi.frames(&data, data.len(), Layer::Ip).map(|f| f.map(|f| f.rest.to_vec())).collect();
    assert_eq!(ip_only, [Ok(v4()), Err(Unfit::NotIp), Ok(v4())]);
    // A length that leads out of the frame ends it.
    let mut long = data.clone();
    let at = 26 + 12;
    long[at..at + 2].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(frames(LinkType::Wifi, &long), [Err(Unfit::Cut)]);
    let tail = cat(&[&data, &[0; 4], &[9]]);
    assert_eq!(frames(LinkType::Wifi, &tail)[2..], [Ok(ethernet(D, A)), Err(Unfit::Cut)]);
    // And so does one that is longer than the standard allows.
    let many = aggregate(&vec![(C, A, &ip[..]); 400]);
    let data = frame(0x88, 1, [A, B, C], &[&[0x80, 0], &many]);
    let found = frames(LinkType::Wifi, &data);
    assert_eq!((found.len(), found.last()), (11_454 / 46 + 1, Some(&Err(Unfit::Cut))));
}

#[test]
fn a_mesh_control_field_is_left_out_and_its_addresses_are_the_ends() {
    let mesh = |flags: u8| [flags, 31, 1, 0, 0, 0];
    let four = |behind: &[&[u8]]| frame(0x88, 3, [A, B, C], &[&D, &[0, 1], &behind.concat()]);
    assert_eq!(frames(LinkType::Wifi, &four(&[&mesh(0), SNAP, &v4()])), [Ok(ethernet(C, D))]);
    assert_eq!(frames(LinkType::Wifi, &four(&[&mesh(2), &A, &B, SNAP, &v4()])), [Ok(ethernet(A, B))]);
    let three = frame(0x88, 2, [GROUP, B, C], &[&[0, 1], &mesh(1), &D, SNAP, &v4()]);
    assert_eq!(frames(LinkType::Wifi, &three), [Ok(ethernet(GROUP, D))]);
    // Outside of a mesh the bit has other meanings.
    assert_eq!(frames(LinkType::Wifi, &four(&[SNAP, &v4()])), [Ok(ethernet(C, D))]);
    let station = frame(0x88, 2, [A, B, C], &[&[0, 1], SNAP, &v4()]);
    assert_eq!(frames(LinkType::Wifi, &station), [Ok(ethernet(A, C))]);
    let null_sap = [0, 1, 0xaf, 0x81, 1, 0];
    let station = frame(0x88, 2, [A, B, C], &[&[0, 0], &null_sap]);
    assert_eq!(frames(LinkType::Wifi, &station), [Ok(cat(&[&A, &C, &[0, 6], &null_sap]))]);
    let data = four(&[&mesh(2), &A]);
    assert_eq!(frames(LinkType::Wifi, &data), [Err(Unfit::Cut)]);
}

/// A radiotap header with further bitmaps, a time if `time`, flags.
fn radiotap(maps: usize, time: bool, flags: u8) -> Vec<u8> {
    let mut head = vec![0, 0, 0, 0];
    for n in 0..maps {
        let more = if n + 1 < maps { 1 << 31 } else { 0 };
        let fields = if n == 0 { 2 | u32::from(time) } else { 0 };
        head.extend((more | fields).to_le_bytes());
    }
    if time {
        head.resize(head.len().next_multiple_of(8), 0xee);
        head.extend([0xff; 8]);
    }
    head.extend([flags, 0xee, 0xee]);
    let len = (head.len() as u16).to_le_bytes();
    head[2..4].copy_from_slice(&len);
    head
}

#[test]
fn radiotap_tells_of_padding_and_check_sequences() {
    let data = |head: &[u8], behind: &[u8]| cat(&[head, &frame(0x88, 1, [A, B, C], &[&[0, 0], behind])]);
    let (plain, padded) = (cat(&[SNAP, &v4()]), cat(&[&[0, 0], SNAP, &v4()]));
    let with_fcs = cat(&[&plain, &[1, 2, 3, 4]]);
    for (maps, time) in [(1, false), (1, true), (2, true), (3, true), (3, false)] {
        for (flags, body) in [(0, &plain), (0x10, &with_fcs), (0x20, &padded)] {
            let data = data(&radiotap(maps, time, flags), body);
            assert_eq!(frames(LinkType::WifiRadiotap, &data), [Ok(ethernet(C, B))], "{maps} {time} {flags:x}");
        }
        let bad = data(&radiotap(maps, time, 0x50), &with_fcs);
        assert_eq!(frames(LinkType::WifiRadiotap, &bad), [Err(Unfit::BadFcs)]);
    }
    // Without flags there are neither.
    let bare = [0, 0, 8, 0, 0, 0, 0, 0];
    assert_eq!(frames(LinkType::WifiRadiotap, &data(&bare, &plain)), [Ok(ethernet(C, B))]);
    // A bitmap that leads out of the header, and a header that leads out of the record.
    let endless = [0, 0, 8, 0, 2, 0, 0, 0x80];
    assert_eq!(frames(LinkType::WifiRadiotap, &data(&endless, &plain)), [Err(Unfit::Cut)]);
    assert_eq!(frames(LinkType::WifiRadiotap, &[0, 0, 0xff, 0xff, 0, 0, 0, 0]), [Err(Unfit::Cut)]);
    assert_eq!(frames(LinkType::WifiRadiotap, &data(&[1, 0, 8, 0, 0, 0, 0, 0], &plain)), [Err(Unfit::NoType)]);
}

#[test]
fn a_check_sequence_that_the_capture_cut_is_no_part_of_what_is_missing() {
    let whole = cat(&[&radiotap(1, false, 0x10), &frame(0x08, 1, [A, B, C], &[SNAP, &v4(), &[1, 2, 3, 4]])]);
    for cut in 0..10 {
        let data = &whole[..whole.len() - cut];
        let frame = LinkType::WifiRadiotap.frames(data, whole.len(), Layer::Ethernet).next().unwrap().unwrap();
        let missing = cut.saturating_sub(4);
        assert_eq!((frame.to_vec(), frame.missing), (ethernet(C, B)[..14 + 24 - missing].to_vec(), missing));
    }
}

/// A header of PPI before a frame of `link`, with the flags of 802.11 behind another field.
fn ppi(link: u32, aligned: bool, flags: u16) -> Vec<u8> {
    let pad: &[u8] = if aligned { &[0; 3] } else { &[] };
    let other = cat(&[&[0x99, 0, 1, 0, 7], pad]);
    let common = cat(&[&[2, 0, 20, 0], &[0; 8], &flags.to_le_bytes(), &[0; 10]]);
    let len = 8 + other.len() + common.len();
    cat(&[&[0, u8::from(aligned)], &(len as u16).to_le_bytes(), &link.to_le_bytes(), &other, &common])
}

#[test]
fn headers_of_other_cards_stand_before_the_same_frame() {
    let data = frame(0x08, 1, [A, B, C], &[SNAP, &v4()]);
    let avs = cat(&[&0x8021_1001_u32.to_be_bytes(), &64_u32.to_be_bytes(), &[0; 56]]);
    let prism = cat(&[&0x44_u32.to_le_bytes(), &144_u32.to_le_bytes(), &[0; 136]]);
    let swapped = cat(&[&0x44_u32.to_be_bytes(), &144_u32.to_be_bytes(), &[0; 136]]);
    let cooked = |hardware: u16| cat(&[&[0, 3], &hardware.to_be_bytes(), &[0, 6], &[0; 8], &[0, 4]]);
    for (number, head) in [
        (105, vec![]),
        (127, radiotap(1, true, 0)),
        (163, avs.clone()),
        (119, avs),
        (119, prism.clone()),
        (119, swapped),
        (192, ppi(105, true, 0)),
        (192, ppi(105, false, 0)),
        (192, vec![0, 0, 8, 0, 105, 0, 0, 0]),
        (113, cooked(801)),
        (113, cat(&[&cooked(802), &prism])),
        (113, cat(&[&cooked(803), &radiotap(1, false, 0)])),
    ] {
        let link = LinkType::from_number(number).unwrap();
        assert_eq!(frames(link, &cat(&[&head, &data])), [Ok(ethernet(C, B))], "link type {number}: {head:x?}");
    }
    let with_fcs = cat(&[&data, &[1, 2, 3, 4]]);
    assert_eq!(frames(LinkType::WifiPpi, &cat(&[&ppi(105, true, 1), &with_fcs])), [Ok(ethernet(C, B))]);
    for bad in [4, 8] {
        assert_eq!(frames(LinkType::WifiPpi, &cat(&[&ppi(105, true, bad), &data])), [Err(Unfit::BadFcs)]);
    }
    let other = cat(&[&ppi(1, true, 0), &ethernet(A, B)]);
    assert_eq!(frames(LinkType::WifiPpi, &other), [Ok(ethernet(A, B))]);
    assert_eq!(frames(LinkType::WifiPpi, &cat(&[&ppi(192, true, 0), &other])), [Err(Unfit::OtherLink)]);
    assert_eq!(frames(LinkType::WifiAvs, &[7; 80]), [Err(Unfit::NoType)]);
}

/// A data frame, and the Ethernet frames that it holds.
fn data_frame() -> impl Strategy<Value = (Vec<u8>, Vec<Vec<u8>>)> {
    let subframe = (any::<[Mac; 2]>(), vec(any::<u8>(), 1..60));
    let flags = (0u8..4, any::<bool>(), any::<bool>(), any::<bool>());
    (flags, any::<[Mac; 4]>(), vec(subframe, 1..5)).prop_map(|((ds, qos, ht, several), addresses, subframes)| {
        let [one, two, three, four] = addresses;
        let (destination, source) = [(one, two), (three, two), (one, three), (three, four)][usize::from(ds)];
        let ht = qos && ht;
        let several = qos && several;
        let mut head = frame(if qos { 0x88 } else { 0x08 }, ds | u8::from(ht) << 7, [one, two, three], &[]);
        head.extend(four.iter().filter(|_| ds == 3));
        head.extend([u8::from(several) << 7, 0].iter().filter(|_| qos));
        head.extend([9; 4].iter().filter(|_| ht));
        let bodies: Vec<_> = subframes.iter().map(|(_, payload)| cat(&[SNAP, payload])).collect();
        let on_ethernet = |[d, s]: [Mac; 2], payload: &[u8]| cat(&[&d, &s, &[8, 0], payload]);
        if !several {
            let expected = vec![on_ethernet([destination, source], &subframes[0].1)];
            return (cat(&[&head, &bodies[0]]), expected);
        }
        let parts: Vec<_> = subframes.iter().zip(&bodies).map(|(([d, s], _), body)| (*d, *s, &body[..])).collect();
        let expected = subframes.iter().map(|(ends, payload)| on_ethernet(*ends, payload)).collect();
        (cat(&[&head, &aggregate(&parts)]), expected)
    })
}

proptest! {
    #[test]
    fn a_data_frame_is_what_it_was_made_of_and_a_cut_one_its_beginning(
        (data, expected) in data_frame(), cut in any::<prop::sample::Index>(),
    ) {
        let found: Result<Vec<_>, _> = frames(LinkType::Wifi, &data).into_iter().collect();
        prop_assert_eq!(found.as_ref(), Ok(&expected));
        let len = cut.index(data.len() + 1);
        let mut ends = 0;
        for (frame, whole) in LinkType::Wifi.frames(&data[..len], data.len(), Layer::Ethernet).zip(&expected) {
            let Ok(frame) = frame else {
                ends += 1;
                continue;
            };
            let had = frame.to_vec();
            prop_assert_eq!(&had, &whole[..had.len()]);
            prop_assert_eq!(had.len() + frame.missing, whole.len());
            ends += usize::from(frame.missing > 0);
        }
        // What is missing shows in exactly one frame, or in no frame if it is the padding of one.
        prop_assert!(ends <= 1 && (ends == 1) == (len < data.len()), "{ends} at {len} of {}", data.len());
    }

    #[test]
    fn changed_bytes_of_a_frame_give_frames_of_their_own_bytes_or_reasons(
        (data, _) in data_frame(),
        head in prop_oneof![
            Just((127u32, radiotap(2, true, 0x10))), Just((192, ppi(105, true, 1))), Just((105, vec![])),
        ],
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        original in 0usize..600,
        ip in any::<bool>(),
    ) {
        let mut data = cat(&[&head.1, &data]);
        for (at, byte) in changes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        check(LinkType::from_number(head.0).unwrap(), &data, original, ip)?;
    }
}
