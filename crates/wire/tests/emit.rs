//! Emitted headers parse to the same fields, with right checksums.

mod common;

use common::{any_headers, payload};
use proptest::prelude::*;
use towpath_wire::dissect::Stop;
use towpath_wire::emit::{self, Checksums, Headers, Ip, IpAddresses, Link, Network, Transport, Udp};
use towpath_wire::ip::mapped;
use towpath_wire::verify::{Check, Verdict, verify};
use towpath_wire::{Arp, Error, Ethernet, Icmp, Ipv4, Ipv6, LinkKind, Tcp, arp, checksum, dissect, icmp};

fn kind(headers: &Headers<'_>) -> LinkKind {
    if headers.link.is_some() { LinkKind::Ethernet } else { LinkKind::Ip }
}

fn ip_and_transport<'a>(headers: &Headers<'a>) -> (Ip, Transport<'a>) {
    match headers.network {
        Network::Ip(ip, transport) => (ip, transport),
        Network::Arp(_) => unreachable!("the strategy makes IP"),
    }
}

/// Where in its transport header each protocol has its checksum.
fn checksum_offset(transport: &Transport<'_>) -> usize {
    match transport {
        Transport::Tcp(_) => 16,
        Transport::Udp(_) => 6,
        _ => 2,
    }
}

proptest! {
    #[test]
    fn the_dissector_reads_back_what_was_written(any in any_headers(), payload in payload()) {
        let headers = any.headers();
        let frame = any.frame(&payload);
        let found = dissect(&frame, kind(&headers));
        let (ip, transport) = ip_and_transport(&headers);

        prop_assert_eq!(found.stop, Stop::Complete);
        prop_assert_eq!(usize::from(found.l3), headers.link.map_or(0, |link| link.header_len()));
        prop_assert_eq!(usize::from(found.l4), headers.transport_offset());
        prop_assert_eq!(usize::from(found.payload), headers.len());
        prop_assert_eq!(&frame[usize::from(found.payload)..found.end as usize], &payload[..]);
        prop_assert_eq!(found.tags, headers.link.unwrap_or_default().tags);
        let (src, dst) = match ip.addresses {
            IpAddresses::V4 { src, dst } => (mapped(src), mapped(dst)),
            IpAddresses::V6 { src, dst } => (src, dst),
        };
        prop_assert_eq!((found.flow.src, found.flow.dst), (src, dst));
        let ports = match transport {
            Transport::Tcp(emit::Tcp { src_port, dst_port, .. }) => (src_port, dst_port),
            Transport::Udp(Udp { src_port, dst_port }) => (src_port, dst_port),
            _ => (0, 0),
        };
        prop_assert_eq!((found.flow.src_port, found.flow.dst_port), ports);
    }

    #[test]
    fn the_views_read_back_what_was_written(any in any_headers(), payload in payload()) {
        let headers = any.headers();
        let frame = any.frame(&payload);
        let (ip, transport) = ip_and_transport(&headers);
        let mut packet = &frame[..];
        if let Some(link) = headers.link {
            let view = Ethernet::parse(packet).unwrap();
            prop_assert_eq!((view.dst(), view.src()), (link.dst, link.src));
            let mut tags = view.tags();
            let expected: Vec<_> = link.tags.into_iter().filter(|tag| tag.tpid != 0).collect();
            prop_assert_eq!(tags.by_ref().collect::<Vec<_>>(), expected);
            packet = tags.payload();
        }
        let segment = if ip.is_v4() {
            let view = Ipv4::parse(packet).unwrap();
            prop_assert!(view.is_checksum_valid());
            prop_assert_eq!((view.ttl(), view.tos(), view.id()), (ip.ttl, ip.tos, ip.id));
            prop_assert_eq!(view.fragment(), ip.fragment);
            view.payload()
        } else {
            let view = Ipv6::parse(packet).unwrap();
            prop_assert_eq!((view.hop_limit(), view.traffic_class()), (ip.ttl, ip.tos));
            prop_assert_eq!(view.flow_label(), ip.flow_label);
            view.payload()
        };
        match transport {
            Transport::Tcp(tcp) => {
                let view = Tcp::parse(segment).unwrap();
                prop_assert_eq!((view.seq(), view.ack(), view.flags()), (tcp.seq, tcp.ack, tcp.flags));
                prop_assert_eq!(view.window(), tcp.window);
                prop_assert_eq!(view.raw_options().bytes(), tcp.options);
                prop_assert!(view.options().all(|option| option.is_ok()));
            }
            Transport::Echo(echo) => {
                let view = Icmp::parse(segment).unwrap();
                prop_assert_eq!((view.id(), view.seq()), (echo.id, echo.seq));
                let kind = match (ip.is_v4(), echo.reply) {
                    (true, false) => icmp::v4::ECHO_REQUEST,
                    (true, true) => icmp::v4::ECHO_REPLY,
                    (false, false) => icmp::v6::ECHO_REQUEST,
                    (false, true) => icmp::v6::ECHO_REPLY,
                };
                prop_assert_eq!(view.kind(), kind);
            }
            _ => {}
        }
    }

    #[test]
    fn full_checksums_are_right_and_any_flipped_bit_of_the_payload_is_noticed(
        any in any_headers(), payload in payload(), bit in any::<prop::sample::Index>(),
    ) {
        let headers = any.headers();
        let mut frame = any.frame(&payload);
        let network = if ip_and_transport(&headers).0.is_v4() { Check::Good } else { Check::Absent };
        prop_assert_eq!(
            verify(&frame, kind(&headers)),
            Verdict { network, transport: Check::Good }
        );
        if !payload.is_empty() {
            let bit = bit.index(8 * payload.len());
            frame[headers.len() + bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(verify(&frame, kind(&headers)).transport, Check::Bad);
        }
    }

    #[test]
    fn writing_before_a_payload_in_place_gives_the_same_frame(any in any_headers(), payload in payload()) {
        let headers = any.headers();
        let mut frame = vec![0xee; headers.len()];
        frame.extend(&payload);
        headers.write(&mut frame, Checksums::Complete).unwrap();
        prop_assert_eq!(frame, any.frame(&payload));
    }

    #[test]
    fn a_partial_checksum_completed_is_the_full_one(any in any_headers(), payload in payload()) {
        let headers = any.headers();
        let (ip, transport) = ip_and_transport(&headers);
        let mut frame = vec![0; headers.len() + payload.len()];
        headers.emit(&mut frame, &payload, Checksums::Partial).unwrap();
        let mut in_place = vec![0; headers.len()];
        in_place.extend(&payload);
        headers.write(&mut in_place, Checksums::Partial).unwrap();
        prop_assert_eq!(&in_place, &frame);
        if !(ip.is_v4() && matches!(transport, Transport::Echo(_))) {
            let start = headers.transport_offset();
            checksum::complete_partial(&mut frame, start, checksum_offset(&transport)).unwrap();
        }
        prop_assert_eq!(verify(&frame, kind(&headers)).transport, Check::Good);
    }

    #[test]
    fn a_buffer_too_short_is_refused(any in any_headers(), payload in payload()) {
        let headers = any.headers();
        let len = headers.len() + payload.len();
        for short in [0, headers.len() - 1, len.saturating_sub(1)] {
            if short < len {
                let refused = headers.emit(&mut vec![0; short], &payload, Checksums::Complete);
                prop_assert_eq!(refused, Err(Error::Truncated));
            }
        }
        let refused = headers.write(&mut vec![0; headers.len() - 1], Checksums::Complete);
        prop_assert_eq!(refused, Err(Error::Truncated));
    }
}

#[test]
fn what_ip_cannot_say_is_refused() {
    let udp = |ip| Headers { link: None, network: Network::Ip(ip, Transport::Udp(Udp::default())) };
    let v4 = udp(Ip::v4([1; 4], [2; 4]));
    assert_eq!(v4.write(&mut vec![0; 65_535], Checksums::Complete), Ok(()));
    assert_eq!(v4.write(&mut vec![0; 65_536], Checksums::Complete), Err(Error::Length));
    let v6 = udp(Ip::v6([1; 16], [2; 16]));
    assert_eq!(v6.write(&mut vec![0; 65_575], Checksums::Complete), Ok(()));
    assert_eq!(v6.write(&mut vec![0; 65_576], Checksums::Complete), Err(Error::Length));

    let tcp = emit::Tcp { options: &[1; 41], ..Default::default() };
    let network = Network::Ip(Ip::v4([1; 4], [2; 4]), Transport::Tcp(tcp));
    let tcp = Headers { link: None, network };
    assert_eq!(tcp.write(&mut [0; 100], Checksums::Complete), Err(Error::HeaderLength));
}

#[test]
fn tcp_options_are_padded_to_whole_words() {
    let tcp = emit::Tcp { options: &[3, 3, 7], ..Default::default() };
    let network = Network::Ip(Ip::v4([1; 4], [2; 4]), Transport::Tcp(tcp));
    let headers = Headers { link: None, network };
    let mut frame = [0xff; 44];
    headers.write(&mut frame, Checksums::Complete).unwrap();
    assert_eq!(frame[40..], [3, 3, 7, 0]);
    assert!(verify(&frame, LinkKind::Ip).is_sound());
}

#[test]
fn an_arp_request_is_read_back() {
    let request = emit::Arp {
        operation: arp::REQUEST,
        sender_mac: [2; 6],
        sender_ip: [10, 0, 0, 1].into(),
        target_mac: [0; 6],
        target_ip: [10, 0, 0, 2].into(),
    };
    let headers = Headers { link: Some(Link::default()), network: Network::Arp(request) };
    let mut frame = [0xee; 60];
    headers.write(&mut frame, Checksums::Complete).unwrap();
    assert_eq!(headers.len(), 42);
    let view = Ethernet::parse(&frame).unwrap();
    assert_eq!(view.ethertype(), 0x0806);
    let arp = Arp::parse(view.payload()).unwrap();
    assert_eq!((arp.operation(), arp.sender_mac()), (1, [2; 6]));
    assert_eq!((arp.sender_ip(), arp.target_ip()), (request.sender_ip, request.target_ip));
}

#[test]
fn a_udp_checksum_that_comes_to_zero_is_sent_as_all_ones() {
    let udp = Transport::Udp(Udp { src_port: 0, dst_port: 0 });
    let headers = Headers { link: None, network: Network::Ip(Ip::v4([0; 4], [0; 4]), udp) };
    let mut frame = [0; 30];
    // Protocol 17, length 10 twice, and what is missing to all ones.
    headers.emit(&mut frame, &(0xffff_u16 - 17 - 20).to_be_bytes(), Checksums::Complete).unwrap();
    assert_eq!(frame[26..28], [0xff, 0xff]);
    assert_eq!(verify(&frame, LinkKind::Ip).transport, Check::Good);
}

#[test]
fn verification_says_nothing_about_what_it_cannot_see() {
    let udp = Transport::Udp(Udp { src_port: 1, dst_port: 2 });
    let headers = |ip| Headers { link: None, network: Network::Ip(ip, udp) };
    let ip = Ip::v4([1; 4], [2; 4]);
    let mut frame = [0; 60];
    headers(ip).write(&mut frame, Checksums::Complete).unwrap();
    assert_eq!(verify(&frame[..50], LinkKind::Ip).transport, Check::Absent, "cut short");
    let mut silent = frame;
    silent[26..28].fill(0);
    assert_eq!(verify(&silent, LinkKind::Ip).transport, Check::Absent, "no checksum");
    headers(Ip { fragment: 0x2000, ..ip }).write(&mut frame, Checksums::Complete).unwrap();
    let verdict = verify(&frame, LinkKind::Ip);
    assert_eq!(verdict, Verdict { network: Check::Good, transport: Check::Absent });
    frame[8] ^= 1;
    assert!(!verify(&frame, LinkKind::Ip).is_sound());
}

#[test]
fn verification_does_not_judge_a_checksum_over_an_address_still_to_come() {
    let ip = Ip::v6([1; 16], [2; 16]);
    let routed = Headers { link: None, network: Network::Ip(ip, Transport::Raw(43)) };
    let mut frame = [0; 72];
    let mut payload = [0; 32];
    payload[..4].copy_from_slice(&[17, 2, 0, 1]);
    payload[24..].copy_from_slice(&[0, 1, 0, 2, 0, 8, 0xab, 0xcd]);
    routed.emit(&mut frame, &payload, Checksums::Complete).unwrap();
    assert_eq!(verify(&frame, LinkKind::Ip).transport, Check::Absent);
    frame[43] = 0;
    assert_eq!(verify(&frame, LinkKind::Ip).transport, Check::Bad);
}
