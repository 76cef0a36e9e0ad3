//! Views of single headers.

mod common;

use common::exercise;
use proptest::prelude::*;
use towpath_wire::ipv6::Fragment;
use towpath_wire::tcp::TcpOption;
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{
    Arp, Error, Ethernet, Geneve, Gre, Icmp, Ipv4, Ipv6, Tcp, Udp, Vxlan, ethernet, geneve, icmp, ipv4, ipv6, tcp, udp,
    vxlan,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_view_panics_on_any_bytes(bytes in common::any_frame(), first: u8) {
        exercise::every_view(&bytes);
        for at in [14, 18, 34, 54] {
            exercise::every_view(bytes.get(at..).unwrap_or_default());
        }
        let mut bytes = bytes;
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
            exercise::every_view(&bytes);
        }
    }

    #[test]
    fn completing_a_checksum_anywhere_stays_inside_the_frame(
        bytes in common::payload(),
        start in prop_oneof![0usize..400, Just(usize::MAX)],
        offset in prop_oneof![0usize..400, Just(usize::MAX - 1)],
    ) {
        exercise::checksums(&bytes, start, offset);
    }

    #[test]
    fn every_truncation_is_refused_or_read_within_its_bytes(headers in common::any_headers()) {
        let frame = headers.frame(b"data");
        for from in [0, 14, 18, 22, 34, 54] {
            for to in from..frame.len() {
                exercise::every_view(&frame[from..to]);
            }
        }
    }
}

#[test]
fn an_ethernet_header_is_read_and_its_tags_are_walked() {
    let bytes = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0xb0, 0x0a, 0x08, 0x06, 0xaa];
    let view = Ethernet::parse(&bytes).unwrap();
    assert_eq!((view.dst(), view.src(), view.ethertype()), ([1; 6], [2; 6], 0x88a8));
    let mut tags = view.tags();
    assert_eq!(tags.next(), Some(Tag { tpid: 0x88a8, tci: Tci(100) }));
    let inner = tags.next().unwrap();
    assert_eq!((inner.tci.pcp(), inner.tci.dei(), inner.tci.vid()), (5, true, 10));
    assert_eq!(inner.tci, Tci::new(5, true, 10));
    assert_eq!(tags.next(), None);
    assert_eq!((tags.ethertype(), tags.payload()), (0x0806, &[0xaa][..]));
}

#[test]
fn arp_of_other_sizes_is_not_read() {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
    bytes[14..18].copy_from_slice(&[10, 0, 0, 1]);
    let view = Arp::parse(&bytes).unwrap();
    assert_eq!((view.operation(), view.sender_ip()), (2, [10, 0, 0, 1].into()));
    bytes[4] = 8;
    assert_eq!(Arp::parse(&bytes).err(), Some(Error::Unsupported));
}

#[test]
fn ipv4_options_and_padding_are_told_from_payload() {
    let mut bytes = [0u8; 40];
    bytes[..4].copy_from_slice(&[0x46, 0xb9, 0, 30]);
    bytes[6..8].copy_from_slice(&[0x60, 0x01]);
    bytes[20..24].copy_from_slice(&[1, 0x94, 3, 0]);
    let view = Ipv4::parse(&bytes).unwrap();
    assert_eq!((view.header_len(), view.payload().len()), (24, 6));
    assert_eq!((view.dscp(), view.ecn()), (46, 1));
    assert!(view.dont_fragment() && view.more_fragments());
    assert_eq!(view.fragment_offset(), 8);
    let options: Vec<_> = view.options().collect();
    assert_eq!(options.len(), 1);
    assert_eq!(options[0].unwrap().kind, 0x94);
    assert_eq!(options[0].unwrap().data, [0]);
}

#[test]
fn ipv4_lengths_that_cannot_be_are_refused() {
    let parse = |version_ihl: u8, total_len: u8, len: usize| {
        let mut bytes = vec![0; len];
        (bytes[0], bytes[3]) = (version_ihl, total_len);
        Ipv4::parse(&bytes).err()
    };
    assert_eq!(parse(0x45, 20, 20), None);
    assert_eq!(parse(0x65, 20, 20), Some(Error::Version));
    assert_eq!(parse(0x44, 20, 20), Some(Error::HeaderLength));
    assert_eq!(parse(0x45, 19, 20), Some(Error::Length));
    assert_eq!(parse(0x46, 20, 24), Some(Error::Length));
    assert_eq!(parse(0x45, 21, 20), Some(Error::Truncated));
    assert_eq!(Ipv4::parse(&[0x45; 19]).err(), Some(Error::Truncated));
}

#[test]
fn a_changed_ipv4_header_gets_a_valid_checksum() {
    let mut bytes = [0u8; 20];
    bytes[0] = 0x45;
    bytes[3] = 20;
    let (mut header, _) = ipv4::Header::split_mut(&mut bytes).unwrap();
    header.set_ttl(63);
    header.set_src([192, 0, 2, 1].into());
    header.fill_checksum();
    assert_eq!((header.ttl(), header.src()), (63, [192, 0, 2, 1].into()));
    assert!(Ipv4::parse(&bytes).unwrap().is_checksum_valid());
    bytes[ipv4::offset::TTL] = 62;
    assert!(!Ipv4::parse(&bytes).unwrap().is_checksum_valid());
}

#[test]
fn ipv6_fields_share_their_word() {
    let mut header = ipv6::Header::zeroed();
    header.set_class_and_flow(0xb9, 0xabcde);
    assert_eq!(header.version(), 6);
    assert_eq!((header.traffic_class(), header.dscp(), header.ecn()), (0xb9, 46, 1));
    assert_eq!(header.flow_label(), 0xabcde);
    header.set_class_and_flow(0, u32::MAX);
    assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0, 0xf_ffff));
}

#[test]
fn ipv6_extension_headers_lead_to_the_upper_layer() {
    let mut bytes = vec![0x60, 0, 0, 0, 0, 20, 0, 64];
    bytes.extend([0; 32]);
    bytes.extend([44, 0, 1, 4, 0, 0, 0, 0]);
    bytes.extend([17, 0, 0x05, 0xa9, 0, 0, 0, 7]);
    bytes.extend([1, 2, 3, 4]);
    let view = Ipv6::parse(&bytes).unwrap();
    let kinds: Vec<u8> = view.extensions().map(|ext| ext.unwrap().kind).collect();
    assert_eq!(kinds, [0, 44]);
    let upper = view.upper().unwrap();
    assert_eq!((upper.protocol, upper.payload), (17, &[1, 2, 3, 4][..]));
    assert_eq!(upper.fragment, Some(Fragment { offset: 1448, more: true, id: 7 }));
    assert!(upper.fragment.unwrap().is_fragment());

    bytes[4..6].copy_from_slice(&[0, 9]);
    assert_eq!(Ipv6::parse(&bytes).unwrap().upper().err(), Some(Error::Truncated));
    bytes[4..6].copy_from_slice(&[0, 200]);
    assert_eq!(Ipv6::parse(&bytes).err(), Some(Error::Truncated));
}

#[test]
fn tcp_options_are_decoded() {
    let options = [
        2, 4, 0x05, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 5, 10, 0, 0, 0, 3, 0, 0, 0, 4, 254, 4, 9, 9,
        0, 77,
    ];
    let mut bytes = [0; 60];
    bytes[12] = 0xe0;
    bytes[20..56].copy_from_slice(&options);
    let view = Tcp::parse(&bytes).unwrap();
    assert_eq!(view.payload().len(), 4);
    let options: Vec<_> = view.options().map(Result::unwrap).collect();
    assert_eq!(options[0], TcpOption::Mss(1460));
    assert_eq!(options[1], TcpOption::WindowScale(7));
    assert_eq!(options[2], TcpOption::SackPermitted);
    assert_eq!(options[3], TcpOption::Timestamps { value: 1, echo: 2 });
    let TcpOption::Sack(blocks) = options[4] else { panic!("{options:?}") };
    assert_eq!(blocks.collect::<Vec<_>>(), [(3, 4)]);
    let TcpOption::Other(other) = options[5] else { panic!("{options:?}") };
    assert_eq!((other.kind, other.data), (254, &[9, 9][..]));
    assert_eq!(options.len(), 6, "the list ends at the end mark");
}

#[test]
fn a_tcp_option_with_an_impossible_length_ends_the_walk_after_an_error() {
    for (options, error) in [
        ([1, 1, 8, 1], Error::HeaderLength),
        ([1, 1, 8, 0], Error::HeaderLength),
        ([1, 1, 8, 10], Error::Truncated),
        ([1, 1, 1, 8], Error::Truncated),
    ] {
        let mut bytes = [0; 24];
        bytes[12] = 0x60;
        bytes[20..].copy_from_slice(&options);
        let found: Vec<_> = Tcp::parse(&bytes).unwrap().options().collect();
        assert_eq!(found, [Err(error)], "{options:?}");
    }
    let mut bytes = [0; 20];
    bytes[12] = 0x40;
    assert_eq!(Tcp::parse(&bytes).err(), Some(Error::HeaderLength));
}

#[test]
fn a_known_tcp_option_of_another_length_is_handed_on_raw() {
    let mut bytes = [0; 24];
    bytes[12] = 0x60;
    bytes[20..].copy_from_slice(&[2, 3, 5, 0]);
    let found = Tcp::parse(&bytes).unwrap().options().next();
    assert!(matches!(found, Some(Ok(TcpOption::Other(_)))), "{found:?}");
}

#[test]
fn udp_ends_where_its_length_says() {
    let bytes = [0, 1, 0, 2, 0, 10, 0, 0, 5, 6, 7];
    let view = Udp::parse(&bytes).unwrap();
    assert_eq!((view.src_port(), view.dst_port(), view.payload()), (1, 2, &[5, 6][..]));
    assert_eq!(Udp::parse(&bytes[..9]).err(), Some(Error::Truncated));
    assert_eq!(Udp::parse(&[0; 8]).err(), Some(Error::Length));
}

#[test]
fn an_icmp_error_gives_its_mtu_and_the_packet_it_is_about() {
    let bytes = [3, 4, 0, 0, 0, 0, 0x05, 0xdc, 0x45];
    let view = Icmp::parse(&bytes).unwrap();
    assert_eq!((view.kind(), view.code()), (icmp::v4::UNREACHABLE, icmp::v4::FRAGMENTATION_NEEDED));
    assert_eq!((view.seq(), view.rest(), view.payload()), (1500, 1500, &[0x45][..]));
}

#[test]
fn vxlan_needs_a_valid_identifier_and_ethernet() {
    let mut header = vxlan::Header::zeroed();
    assert_eq!(Vxlan::parse(header.bytes()).err(), Some(Error::Unsupported));
    header.set_flags(vxlan::FLAG_VNI);
    header.set_vni(0xff_abcdef);
    assert_eq!(Vxlan::parse(header.bytes()).unwrap().vni(), 0xabcdef);
    header.set_flags(vxlan::FLAG_VNI | vxlan::FLAG_NEXT_PROTOCOL);
    assert_eq!(Vxlan::parse(header.bytes()).err(), Some(Error::Unsupported));
}

#[test]
fn geneve_options_are_walked() {
    let bytes = [2, 0, 0x65, 0x58, 0, 1, 2, 0, 1, 2, 0x83, 1, 9, 9, 9, 9, 0xee];
    let view = Geneve::parse(&bytes).unwrap();
    assert_eq!((view.vni(), view.protocol(), view.payload()), (0x102, 0x6558, &[0xee][..]));
    let option = view.options().next().unwrap().unwrap();
    assert_eq!((option.class, option.kind, option.data), (0x102, 0x83, &[9, 9, 9, 9][..]));
    assert_eq!(view.options().count(), 1);

    let mut bytes = bytes;
    bytes[11] = 2;
    let found: Vec<_> = Geneve::parse(&bytes).unwrap().options().collect();
    assert_eq!(found, [Err(Error::Truncated)]);
    bytes[0] = 0x42;
    assert_eq!(Geneve::parse(&bytes).err(), Some(Error::Version));
    let mut header = geneve::Header::zeroed();
    header.set_vni(7);
    assert_eq!((header.vni(), header.header_len()), (7, 8));
}

#[test]
fn gre_reads_the_optional_fields_its_flags_name() {
    let bytes = [0xb0, 0, 8, 0, 1, 2, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0x45];
    let view = Gre::parse(&bytes).unwrap();
    assert_eq!((view.checksum(), view.key(), view.seq()), (Some(0x102), Some(3), Some(4)));
    assert_eq!((view.protocol(), view.payload()), (0x0800, &[0x45][..]));
    let view = Gre::parse(&[0x20, 0, 8, 0, 0, 0, 0, 3]).unwrap();
    assert_eq!((view.checksum(), view.key(), view.seq()), (None, Some(3), None));
    assert_eq!(Gre::parse(&[0x20, 0, 8, 0, 0, 0, 0]).err(), Some(Error::Truncated));
    assert_eq!(Gre::parse(&[0x00, 1, 8, 0]).err(), Some(Error::Version));
    assert_eq!(Gre::parse(&[0x40, 0, 8, 0, 0, 0, 0, 0]).err(), Some(Error::Unsupported));
}

#[test]
fn setters_change_their_field_and_no_other() {
    let mut bytes = [0u8; 40];
    let (mut header, rest) = tcp::Header::split_mut(&mut bytes).unwrap();
    assert_eq!(rest.len(), 20);
    header.set_seq(0x0102_0304);
    header.set_header_len(32);
    assert_eq!((header.seq(), header.header_len()), (0x0102_0304, 32));
    let mut expected = [0u8; 40];
    expected[tcp::offset::SEQ..][..4].copy_from_slice(&[1, 2, 3, 4]);
    expected[tcp::offset::DATA_OFFSET] = 0x80;
    assert_eq!(bytes, expected);

    let mut header = udp::Header::zeroed();
    header.set_length(0x1234);
    assert_eq!(header.bytes(), &[0, 0, 0, 0, 0x12, 0x34, 0, 0]);
    let mut header = ethernet::Header::zeroed();
    header.set_src([9; 6]);
    assert_eq!(header.bytes(), &[0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 0, 0]);
}
