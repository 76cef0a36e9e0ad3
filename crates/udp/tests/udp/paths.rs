//! Addresses, interfaces and traffic classes.

use crate::common::{LOOPBACK, address, bind, flush};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use towpath_testing::{Namespace, Need, needs};
use towpath_udp::{Ecn, Path, TrafficClass, UdpBatch, UdpConfig};

/// Sends two datagrams along the path; returns where they came from, and their destination.
fn arrives(a: &mut UdpBatch, b: &mut UdpBatch, path: &Path) -> (Path, Option<IpAddr>) {
    a.sender.push(path, b"one").unwrap();
    a.sender.push(path, b"two").unwrap();
    flush(a);
    assert_eq!(a.sender.stats().dropped, 0, "{:?}", a.sender.take_error());
    assert!(b.receiver.receive().unwrap() > 0);
    let message = b.receiver.messages().next().unwrap();
    (message.path, message.destination)
}

fn index() -> Option<NonZeroU32> {
    NonZeroU32::new(towpath_sys::netdev::Control::new().unwrap().index("lo").unwrap() as u32)
}

#[test]
fn source_destination_interface_and_class_arrive_over_ipv4() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind("0.0.0.0:0", &config), bind("0.0.0.0:0", &config));
    for class in [TrafficClass::new(46, Ecn::Ect0), Ecn::Ce.into(), Ecn::Ect1.into(), TrafficClass(0)] {
        let peer = SocketAddr::new([127, 0, 0, 9].into(), address(&b).port());
        let path = Path::to(peer).from([127, 0, 0, 5].into()).marked(class);
        let (seen, destination) = arrives(&mut a, &mut b, &path);
        assert_eq!(seen.peer, SocketAddr::new([127, 0, 0, 5].into(), address(&a).port()));
        assert_eq!(seen.local, Some(IpAddr::from([127, 0, 0, 9])));
        assert_eq!((destination, seen.interface, seen.class), (seen.local, index(), Some(class)));
    }
}

#[test]
fn an_answer_leaves_from_the_address_that_was_asked() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind("0.0.0.0:0", &config));
    let peer = SocketAddr::new([127, 0, 0, 9].into(), address(&b).port());
    let (seen, _) = arrives(&mut a, &mut b, &Path::to(peer));
    let (back, _) = arrives(&mut b, &mut a, &seen.reply());
    assert_eq!(back.peer, peer);
}

#[test]
fn a_broadcast_datagram_has_a_destination_and_an_address_to_answer_from() {
    let config = UdpConfig::default();
    let (mut a, mut b) = (bind(LOOPBACK, &config), bind("0.0.0.0:0", &config));
    a.socket().set_broadcast(true).unwrap();
    let everyone = IpAddr::from([127, 255, 255, 255]);
    let path = Path::to((everyone, address(&b).port()).into());
    let (seen, destination) = arrives(&mut a, &mut b, &path);
    assert_eq!(destination, Some(everyone));
    let (back, _) = arrives(&mut b, &mut a, &seen.reply());
    assert_eq!(back.peer.port(), address(&b).port());
}

#[test]
fn an_ipv6_socket_carries_both_families_each_with_its_own_addresses() {
    if !needs("an_ipv6_socket_carries_both_families_each_with_its_own_addresses", &[Need::Root]) {
        return;
    }
    let namespace = Namespace::new("dual");
    namespace.ip("addr add 2001:db8::5/128 dev lo");
    namespace.ip("addr add 2001:db8::9/128 dev lo");
    namespace.inside(|| {
        let config = UdpConfig::default();
        let (mut a, mut b) = (bind("[::]:0", &config), bind("[::]:0", &config));
        assert!(b.info().v6 && b.info().v4);
        let ends: [(IpAddr, IpAddr); 2] = [
            ("2001:db8::5".parse().unwrap(), "2001:db8::9".parse().unwrap()),
            ([127, 0, 0, 5].into(), [127, 0, 0, 9].into()),
        ];
        for (from, to) in ends {
            let class = TrafficClass::new(10, Ecn::Ect1);
            let path = Path::to((to, address(&b).port()).into()).from(from).marked(class);
            let (seen, destination) = arrives(&mut a, &mut b, &path);
            assert_eq!((seen.peer.ip(), seen.local, destination), (from, Some(to), Some(to)));
            assert_eq!((seen.class, seen.interface), (Some(class), index()));
            let (back, _) = arrives(&mut b, &mut a, &seen.reply().marked(Ecn::Ce.into()));
            assert_eq!((back.peer.ip(), back.class), (to, Some(Ecn::Ce.into())));
        }
    });
}

#[test]
fn a_datagram_leaves_through_the_interface_that_it_names() {
    if !needs("a_datagram_leaves_through_the_interface_that_it_names", &[Need::Root]) {
        return;
    }
    let (near, far) = (Namespace::new("near"), Namespace::new("far"));
    // Two links with the same addresses: routes know only the first.
    for link in ["v0", "v1"] {
        near.ip(&format!("link add {link} type veth peer name {link} netns {}", far.name()));
        for (namespace, address) in [(&near, "10.0.0.1/24"), (&far, "10.0.0.2/24")] {
            namespace.ip(&format!("link set {link} up"));
            namespace.ip(&format!("addr add {address} dev {link}"));
            namespace.set(&format!("ipv4/conf/{link}/rp_filter"), "0");
        }
    }
    far.set("ipv4/conf/all/rp_filter", "0");
    let of = |namespace: &Namespace, link: &'static str| {
        namespace.inside(|| towpath_sys::netdev::Control::new().unwrap().index(link).unwrap() as u32)
    };
    let mut a = near.inside(|| bind("0.0.0.0:0", &UdpConfig::default()));
    let mut b = far.inside(|| bind("0.0.0.0:0", &UdpConfig::default()));
    let path = Path::to(SocketAddr::new([10, 0, 0, 2].into(), address(&b).port()));
    for link in ["v1", "v0", "v1"] {
        let (seen, _) = arrives(&mut a, &mut b, &path.through(of(&near, link)));
        assert_eq!(seen.interface.map(NonZeroU32::get), Some(of(&far, link)), "{link}");
    }
}
