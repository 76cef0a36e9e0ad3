//! Lookups in tables that no test machine has: VLANs, tunnels.

use super::*;
use crate::contents::Outer;
use crate::prefix::Prefix;
use std::net::Ipv4Addr;
use towpath_wire::ethernet::ethertype;

const MAC: Mac = [2, 0, 0, 0, 0, 1];
const NEIGHBOUR: Mac = [2, 0, 0, 0, 0, 2];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Devices: 1 Ethernet with 10.0.0.1/24 and the neighbour 10.0.0.2; others of `kinds`, each
/// with the route 198.18.N.0/24 and the neighbour 198.18.N.2.
fn table(kinds: &[(u32, DeviceKind)]) -> Table {
    let mut contents = Contents::default();
    let mut add = |device: u32, kind, net: &str, own: &str, neighbour: &str, mtu| {
        contents.devices.insert(device, Device { kind, mac: [2, 0, 0, 0, 0, device as u8], mtu, up: true });
        let prefix = Prefix::new(ip(net), 24).unwrap();
        let (address, prefix_len) = (ip(own), 24);
        let (secondary, deprecated, tentative) = (false, false, false);
        contents.addresses.push(Address {
            device,
            address,
            prefix_len,
            prefix,
            scope: 0,
            secondary,
            deprecated,
            tentative,
        });
        let hops = vec![Hop { device, gateway: None, source: None, weight: 1, dead: false }];
        let (kind, scope) = (RouteKind::Unicast, 253);
        contents.routes.push(Route {
            v4: true,
            table: 254,
            prefix,
            metric: 0,
            kind,
            scope,
            source: Some(address),
            mtu: None,
            hops,
        });
        contents.neighbours.insert((device, ip(neighbour)), NEIGHBOUR);
    };
    add(1, DeviceKind::Ethernet, "10.0.0.0", "10.0.0.1", "10.0.0.2", 1500);
    for (device, kind) in kinds {
        let address = |last| format!("198.18.{device}.{last}");
        add(*device, *kind, &address(0), &address(1), &address(2), 1500);
    }
    let (fib, neighbours) = Fib::new(contents);
    Table { fib: Arc::new(fib), neighbours, generation: 1 }
}

const OUTER: Outer = Outer {
    local: Ipv4Addr::UNSPECIFIED,
    remote: Ipv4Addr::new(10, 0, 0, 2),
    ttl: 0,
    tos: 0,
    dont_fragment: true,
    lower: 0,
};

fn vlan(lower: u32, vid: u16) -> DeviceKind {
    DeviceKind::Vlan { lower, tpid: ethertype::VLAN, vid }
}

#[test]
fn the_tag_of_the_lower_vlan_is_the_outer_one() {
    let qinq = DeviceKind::Vlan { lower: 1, tpid: ethertype::QINQ, vid: 7 };
    let table = table(&[(2, vlan(1, 100)), (3, qinq), (4, vlan(3, 200)), (5, vlan(4, 300))]);
    let tags = |dst: &str| {
        let hop = table.next_hop(ip(dst)).unwrap();
        assert_eq!((hop.device, hop.link.dst), (1, NEIGHBOUR));
        hop.link.tags.map(|tag| (tag.tpid, tag.tci.vid()))
    };
    assert_eq!(tags("10.0.0.2"), [(0, 0); 2]);
    assert_eq!(tags("198.18.2.2"), [(ethertype::VLAN, 100), (0, 0)]);
    assert_eq!(tags("198.18.4.2"), [(ethertype::QINQ, 7), (ethertype::VLAN, 200)]);
    assert_eq!(table.next_hop(ip("198.18.4.2")).unwrap().link.src, [2, 0, 0, 0, 0, 4], "that of the VLAN");
    assert!(matches!(table.next_hop(ip("198.18.5.2")), Err(Unreachable::Unsupported(_))));
}

#[test]
fn tunnels_have_the_headers_of_their_device_and_the_link_of_their_remote() {
    let (gre, ipip, sit) = (
        DeviceKind::Gre { key: Some(7), outer: OUTER },
        DeviceKind::IpIp { v6: false, outer: Outer { ttl: 9, dont_fragment: false, ..OUTER } },
        DeviceKind::IpIp { v6: true, outer: OUTER },
    );
    let table = table(&[(2, gre), (3, ipip), (4, sit)]);
    let hop = table.next_hop(ip("198.18.2.9")).unwrap();
    let ip_header = Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]);
    assert_eq!(hop.tunnel, Some(Tunnel::Gre { ip: ip_header, key: Some(7) }));
    assert_eq!((hop.device, hop.link.src, hop.link.dst), (1, MAC, NEIGHBOUR));
    assert_eq!((hop.source, hop.mtu), (ip("198.18.2.1"), 1500 - 28));
    let hop = table.next_hop(ip("198.18.3.9")).unwrap();
    assert_eq!(hop.tunnel, Some(Tunnel::IpIp { ip: Ip { ttl: 9, fragment: 0, ..ip_header } }));
    assert!(matches!(table.next_hop(ip("198.18.4.9")), Err(Unreachable::Unsupported(_))), "IPv4 in a sit tunnel");
}

#[test]
fn a_tunnel_whose_remote_is_behind_itself_or_another_tunnel_is_no_way() {
    let to = |remote: [u8; 4]| Outer { remote: remote.into(), ..OUTER };
    let table = table(&[
        (2, DeviceKind::Gre { key: None, outer: to([198, 18, 2, 9]) }),
        (3, DeviceKind::Gre { key: None, outer: to([198, 18, 2, 9]) }),
        (4, DeviceKind::Gre { key: None, outer: to([192, 0, 2, 9]) }),
        (5, DeviceKind::Gre { key: None, outer: Outer { lower: 2, ..OUTER } }),
        (6, vlan(6, 1)),
        (7, vlan(99, 1)),
    ]);
    for dst in ["198.18.2.2", "198.18.3.2", "198.18.5.2", "198.18.6.2"] {
        assert!(matches!(table.next_hop(ip(dst)), Err(Unreachable::Unsupported(_))), "{dst}");
    }
    assert_eq!(table.next_hop(ip("198.18.4.2")), Err(Unreachable::NoRoute));
    assert_eq!(table.next_hop(ip("198.18.7.2")), Err(Unreachable::Down { device: 99 }));
    let missing = Unreachable::NoNeighbour { device: 1, address: ip("10.0.0.77") };
    assert_eq!(table.next_hop(ip("10.0.0.77")), Err(missing));
}

#[test]
fn multicast_groups_have_addresses_without_neighbours() {
    assert_eq!(multicast_mac(ip("239.129.2.3")), Some([1, 0, 0x5e, 1, 2, 3]));
    assert_eq!(multicast_mac(ip("ff02::1:ff00:17")), Some([0x33, 0x33, 0xff, 0, 0, 0x17]));
    assert_eq!(multicast_mac(ip("255.255.255.255")), Some([0xff; 6]));
    assert_eq!(multicast_mac(ip("10.0.0.1")), None);
}
