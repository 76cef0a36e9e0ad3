//! Messages of every kind, whole and mutilated.

use super::*;
use netlink_packet_core::NetlinkDeserializable;
use netlink_packet_route::link::{GreEncapType, LinkHeader};
use netlink_packet_route::neighbour::NeighbourHeader;
use netlink_packet_route::route::{RouteHeader, RouteNextHop};
use proptest::prelude::*;

fn bytes_of(message: Message) -> Vec<u8> {
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn link(kind: InfoKind, data: InfoData) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header = LinkHeader::default();
    (message.header.index, message.header.link_layer_type) = (9, LinkLayerType::Ether);
    message.header.flags = LinkFlags::Up;
    message.attributes = vec![
        LinkAttribute::Address(vec![2, 0, 0, 0, 0, 9]),
        LinkAttribute::Mtu(1400),
        LinkAttribute::Link(3),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]),
    ];
    message
}

/// The device of a message that was sent and received.
fn through_bytes(message: LinkMessage) -> Device {
    let bytes = bytes_of(Message::NewLink(message));
    let mut contents = Contents::default();
    for message in messages(&bytes) {
        let NetlinkPayload::InnerMessage(message) = message.unwrap().payload else { panic!("another payload") };
        contents.add(message, &Limits::default()).unwrap();
    }
    contents.devices[&9]
}

const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

#[test]
fn vlans_and_tunnels_are_what_their_messages_say() {
    let vlan = vec![InfoVlan::Id(100), InfoVlan::Protocol(VlanProtocol::Ieee8021Ad)];
    let found = through_bytes(link(InfoKind::Vlan, InfoData::Vlan(vlan)));
    let kind = DeviceKind::Vlan { lower: 3, tpid: ethertype::QINQ, vid: 100 };
    assert_eq!(found, Device { kind, mac: [2, 0, 0, 0, 0, 9], mtu: 1400, up: true });

    let outer = Outer { local: LOCAL, remote: REMOTE, ttl: 7, tos: 0, dont_fragment: true, lower: 0 };
    let gre = |flags, more: &[InfoGre]| {
        let mut data = vec![
            InfoGre::Local(LOCAL),
            InfoGre::Remote(REMOTE),
            InfoGre::Ttl(7),
            InfoGre::Tos(1),
            InfoGre::PathMTUDiscovery(true),
            InfoGre::OFlags(flags),
            InfoGre::OKey(77),
            InfoGre::EncapType(GreEncapType::None),
        ];
        data.extend_from_slice(more);
        through_bytes(link(InfoKind::GreTun, InfoData::GreTun(data))).kind
    };
    assert_eq!(gre(GreIOFlags::Key, &[]), DeviceKind::Gre { key: Some(77), outer });
    assert_eq!(gre(GreIOFlags::empty(), &[]), DeviceKind::Gre { key: None, outer });
    assert!(matches!(gre(GreIOFlags::Seq, &[]), DeviceKind::Unsupported(_)));
    let none = [InfoGre::Remote(Ipv4Addr::UNSPECIFIED)];
    assert!(matches!(gre(GreIOFlags::empty(), &none), DeviceKind::Unsupported(_)), "each packet has its remote");

    let tunnel = vec![
        InfoIpTunnel::Local(LOCAL.into()),
        InfoIpTunnel::Remote(REMOTE.into()),
        InfoIpTunnel::Ttl(7),
        InfoIpTunnel::PMtuDisc(true),
    ];
    let found = through_bytes(link(InfoKind::IpIp, InfoData::IpTunnel(tunnel.clone())));
    assert_eq!(found.kind, DeviceKind::IpIp { v6: false, outer });
    let found = through_bytes(link(InfoKind::SitTun, InfoData::IpTunnel(tunnel)));
    assert_eq!(found.kind, DeviceKind::IpIp { v6: true, outer });

    let data = vec![InfoVxlan::Id(42), InfoVxlan::Group(REMOTE), InfoVxlan::Local(LOCAL), InfoVxlan::Port(8472)];
    let found = through_bytes(link(InfoKind::Vxlan, InfoData::Vxlan(data)));
    let outer = Outer { ttl: 0, dont_fragment: false, ..outer };
    assert_eq!(found.kind, DeviceKind::Vxlan { vni: 42, port: 8472, outer });
}

#[test]
fn routes_that_no_packet_of_ours_takes_are_left_out() {
    let mut message = RouteMessage::default();
    message.header =
        RouteHeader { address_family: AddressFamily::Inet, kind: RouteType::Unicast, ..Default::default() };
    message.attributes.push(RouteAttribute::Oif(3));
    assert!(route(&message).is_some());
    let changed = |change: &dyn Fn(&mut RouteHeader)| {
        let mut message = message.clone();
        change(&mut message.header);
        route(&message)
    };
    assert_eq!(changed(&|header| header.tos = 4), None);
    assert_eq!(changed(&|header| header.source_prefix_length = 8), None);
    assert_eq!(changed(&|header| header.flags |= RouteFlags::Cloned), None);
    assert_eq!(changed(&|header| header.destination_prefix_length = 33), None);
    assert_eq!(changed(&|header| header.address_family = AddressFamily::Mpls), None);
    let mut ways = message.clone();
    let mut way = RouteNextHop::default();
    (way.hops, way.interface_index) = (2, 5);
    ways.attributes = vec![RouteAttribute::MultiPath(vec![way])];
    assert_eq!(route(&ways).unwrap().hops, [Hop { device: 5, gateway: None, source: None, weight: 3, dead: false }]);
}

#[test]
fn only_neighbours_with_a_known_address_have_one() {
    let of = |state, mac: &[u8]| {
        let mut message = NeighbourMessage::default();
        message.header = NeighbourHeader { family: AddressFamily::Inet, ifindex: 3, state, ..Default::default() };
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(REMOTE)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        neighbour(&message)
    };
    let (key, mac) = ((3, IpAddr::V4(REMOTE)), [2, 0, 0, 0, 0, 1]);
    for state in [NeighbourState::Reachable, NeighbourState::Stale, NeighbourState::Permanent] {
        assert_eq!(of(state, &mac), Some((key, Some(mac))));
    }
    for state in [NeighbourState::Incomplete, NeighbourState::Failed, NeighbourState::None] {
        assert_eq!(of(state, &mac), Some((key, None)));
    }
    assert_eq!(of(NeighbourState::Reachable, &mac[..4]), Some((key, None)), "an address of another length");
}

#[test]
fn more_than_the_limit_is_an_error() {
    let limits = Limits { devices: 1, ..Limits::default() };
    let mut contents = Contents::default();
    contents.add(Message::NewLink(LinkMessage::default()), &limits).unwrap();
    let error = contents.add(Message::NewLink(LinkMessage::default()), &limits).unwrap_err();
    assert_eq!(error.to_string(), "more than 1 devices: Limits::devices sets how many are kept");
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(received: Vec<u8>, cut: prop::sample::Index, flip: prop::sample::Index, to: u8) {
        messages(&received).count();
        // Also those that begin like a message.
        let mut bytes = bytes_of(Message::NewLink(link(InfoKind::Vlan, InfoData::Vlan(vec![InfoVlan::Id(1)]))));
        bytes.extend(bytes_of(Message::NewRoute(RouteMessage::default())));
        let at = flip.index(bytes.len());
        bytes[at] = to;
        bytes.truncate(cut.index(bytes.len()));
        let mut contents = Contents::default();
        for message in messages(&bytes).flatten() {
            if let NetlinkPayload::InnerMessage(message) = message.payload {
                let _ = contents.add(message, &Limits::default());
            }
        }
    }

    #[test]
    fn any_payload_of_any_type_is_parsed_without_a_panic(kind in 16..112u16, payload: Vec<u8>) {
        let mut header = NetlinkHeader::default();
        (header.message_type, header.length) = (kind, 16 + payload.len() as u32);
        if let Ok(message) = Message::deserialize(&header, &payload) {
            let _ = Contents::default().add(message, &Limits::default());
        }
    }
}
