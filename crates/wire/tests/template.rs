//! Headers written from a template are those that the emitter writes layer by layer.

mod common;

use common::payload;
use proptest::prelude::*;
use towpath_wire::Error;
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Template, Transport, Tunnel, Udp, UdpChecksum};
use towpath_wire::ethernet::ethertype;
use towpath_wire::vlan::{Tag, Tci};

fn emit(link: Option<Link>, ip: Ip, transport: Transport<'_>, payload: &[u8]) -> Vec<u8> {
    let headers = Headers { link, network: Network::Ip(ip, transport) };
    let mut frame = vec![0; headers.len() + payload.len()];
    headers.emit(&mut frame, payload, Checksums::Complete).unwrap();
    frame
}

/// The frame, layer by layer, each as the payload of the next.
fn layers(link: Option<Link>, tunnel: Option<Tunnel>, ip: Ip, udp: Udp, checksum: UdpChecksum, data: &[u8]) -> Vec<u8> {
    let inner = |link: Option<Link>| {
        let mut packet = emit(link, ip, Transport::Udp(udp), data);
        if checksum == UdpChecksum::None {
            let at = link.map_or(0, |link| link.header_len()) + ip.header_len() + 6;
            packet[at..at + 2].fill(0);
        }
        packet
    };
    let ethertype = if ip.is_v4() { ethertype::IPV4 } else { ethertype::IPV6 };
    match tunnel {
        None => inner(link),
        Some(Tunnel::IpIp { ip: outer }) => {
            emit(link, outer, Transport::Raw(if ip.is_v4() { 4 } else { 41 }), &inner(None))
        }
        Some(Tunnel::Gre { ip: outer, key }) => {
            let mut gre = if key.is_some() { vec![0x20, 0] } else { vec![0, 0] };
            gre.extend(ethertype.to_be_bytes());
            gre.extend(key.iter().flat_map(|key| key.to_be_bytes()));
            gre.extend(inner(None));
            emit(link, outer, Transport::Raw(47), &gre)
        }
        Some(Tunnel::Vxlan { ip: outer, udp, vni, inner: inside }) => {
            let mut vxlan = vec![8, 0, 0, 0];
            vxlan.extend((vni << 8).to_be_bytes());
            vxlan.extend(inner(Some(inside)));
            let mut frame = emit(link, outer, Transport::Udp(udp), &vxlan);
            let at = link.map_or(0, |link| link.header_len()) + outer.header_len() + 6;
            frame[at..at + 2].fill(0);
            frame
        }
    }
}

fn any_ip() -> impl Strategy<Value = Ip> {
    let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| Ip::v4(src, dst));
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| Ip::v6(src, dst));
    let base = prop_oneof![v4, v6];
    (base, any::<u8>(), any::<u8>(), any::<u16>()).prop_map(|(ip, ttl, tos, id)| Ip { ttl, tos, id, ..ip })
}

fn any_link() -> impl Strategy<Value = Link> {
    (any::<[u8; 6]>(), any::<[u8; 6]>(), 0..=2usize).prop_map(|(dst, src, tags)| {
        let tag = |tpid, vid| Tag { tpid, tci: Tci::new(0, false, vid) };
        let all = [tag(ethertype::QINQ, 7), tag(ethertype::VLAN, 100)];
        let none = Tag::default();
        let tags = [[none, none], [all[1], none], all][tags];
        Link { dst, src, tags }
    })
}

fn any_udp() -> impl Strategy<Value = Udp> {
    any::<(u16, u16)>().prop_map(|(src_port, dst_port)| Udp { src_port, dst_port })
}

fn any_tunnel() -> impl Strategy<Value = Tunnel> {
    prop_oneof![
        any_ip().prop_map(|ip| Tunnel::IpIp { ip }),
        (any_ip(), any::<Option<u32>>()).prop_map(|(ip, key)| Tunnel::Gre { ip, key }),
        (any_ip(), any_udp(), 0..1u32 << 24, any_link()).prop_map(|(ip, udp, vni, inner)| Tunnel::Vxlan {
            ip,
            udp,
            vni,
            inner
        }),
    ]
}

proptest! {
    #[test]
    fn a_template_writes_what_the_emitter_writes_layer_by_layer(
        link in prop::option::of(any_link()), tunnel in prop::option::of(any_tunnel()), ip in any_ip(), udp in any_udp(),
        full: bool, data in prop::collection::vec(payload(), 1..3),
    ) {
        let checksum = if full || !ip.is_v4() { UdpChecksum::Full } else { UdpChecksum::None };
        let template = Template::udp(link, tunnel, ip, udp, checksum).unwrap();
        prop_assert_eq!(
            template.len(),
            link.map_or(0, |link| link.header_len()) + tunnel.map_or(0, |t| t.header_len()) + ip.header_len() + 8
        );
        // The same template for payloads of several lengths; what was in the room is overwritten.
        for data in data {
            let mut frame = vec![0xa5; template.len()];
            frame.extend(&data);
            template.write(&mut frame).unwrap();
            prop_assert_eq!(frame, layers(link, tunnel, ip, udp, checksum, &data));
        }
    }
}

#[test]
fn a_frame_that_is_too_short_or_too_long_and_ipv6_without_a_checksum_are_refused() {
    let (v4, v6) = (Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), Ip::v6([1; 16], [2; 16]));
    let none = Template::udp(None, None, v6, Udp::default(), UdpChecksum::None);
    assert_eq!(none.unwrap_err(), Error::Unsupported);
    let template = Template::udp(None, None, v4, Udp::default(), UdpChecksum::None).unwrap();
    assert_eq!(template.write(&mut [0; 27]), Err(Error::Truncated));
    assert_eq!(template.write(&mut vec![0; 65_536]), Err(Error::Length));
    template.write(&mut vec![0; 65_535]).unwrap();
}
