//! The table against the kernel: the same answers for random routes, and changes that are followed.

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use towpath_nexthop::{NextHops, Path, Table, Unreachable};
use towpath_sys::poll::wait_readable;
use towpath_sys::route_socket::RouteSocket;
use towpath_testing::{Counting, Namespace, Need, allocations, needs};
use towpath_wire::emit::Tunnel;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NEEDS: &[Need] = &[Need::Root, Need::Program("ip")];
/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);

#[track_caller]
fn until<R>(what: &str, mut found: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Runs a list of commands of `ip`; those that contradict earlier ones fail, and change nothing.
fn batch(ns: &Namespace, commands: &str) {
    let file = std::env::temp_dir().join(format!("{}.batch", ns.name()));
    std::fs::write(&file, commands).unwrap();
    let output = ns.command("ip", &format!("-force -batch {}", file.display())).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    drop(output);
}

/// A namespace with three interfaces that are up, and have addresses of both versions.
fn host() -> Namespace {
    let ns = Namespace::new("routes");
    let mut commands = "link set lo up\n".to_owned();
    for i in 0..3 {
        writeln!(commands, "link add e{i} type veth peer name f{i}\nlink set e{i} up\nlink set f{i} up").unwrap();
    }
    for (address, i) in [
        ("10.0.0.1/24", 0),
        ("10.0.0.5/24", 0),
        ("10.0.1.1/24", 0),
        ("172.16.0.1/16", 1),
        ("192.0.2.1/28", 2),
        ("fd00:0:0:1::1/64", 0),
        ("2001:db8:1::1/64", 0),
        // Of another label than its neighbours in the space.
        ("2002:db8:1::1/64", 0),
        ("fd00:0:0:2::1/64", 1),
        ("2001:db8:2::1/64", 2),
        ("2001:db8:2::99/64", 2),
    ] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        writeln!(commands, "addr add {address} dev e{i}{nodad}").unwrap();
    }
    batch(&ns, &commands);
    ns
}

/// Numbers that are the same in every run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        for shift in [13, -7, 17i32] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        self.0 % below
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.next(of.len() as u64) as usize]
    }

    /// An address of a small part of the space, so that prefixes nest.
    fn address(&mut self, v4: bool) -> IpAddr {
        let (a, b) = (self.next(4) as u16, self.next(1 << 16) as u16);
        match v4 {
            true => Ipv4Addr::from([20 + a as u8, self.next(3) as u8, (b >> 8) as u8 & 0x81, b as u8]).into(),
            false => {
                let first = [0x2001, 0xfd00, 0x2003, 0x2002][usize::from(a)];
                Ipv6Addr::new(first, 0xdb8, b & 0x8001, 0, 0, 0, 0, self.next(4) as u16).into()
            }
        }
    }
}

/// Commands for random routes.
fn routes(numbers: &mut Numbers, n: usize) -> String {
    let mut commands = String::new();
    let gateways = [
        "via 10.0.0.9 dev e0",
        "via 10.0.1.9 dev e0",
        "via 172.16.9.9",
        "dev e1",
        "via 192.0.2.2 dev e2",
        "via inet6 fd00:0:0:1::9 dev e0",
        "via 10.0.0.9 src 10.0.1.1",
        "dev e2 scope link src 172.16.0.1",
    ];
    let gateways6 = [
        "via fd00:0:0:1::9",
        "via 2001:db8:1::9 dev e0",
        "via fd00:0:0:2::9 dev e1",
        "dev e0",
        "dev e2",
        "dev e1",
        "via 2001:db8:2::9 src 2001:db8:2::99",
    ];
    for i in 0..n {
        let v4 = i % 2 == 0;
        let (address, longest) = (numbers.address(v4), if v4 { 33 } else { 129 });
        let len = if numbers.next(3) == 0 { numbers.next(longest) } else { longest - 1 - numbers.next(longest / 2) };
        let kind = numbers.pick(&[
            "unicast",
            "unicast",
            "unicast",
            "unicast",
            "blackhole",
            "unreachable",
            "prohibit",
            "throw",
        ]);
        let way = match kind {
            "unicast" if v4 => numbers.pick(&gateways),
            "unicast" => numbers.pick(&gateways6),
            _ => "",
        };
        let table = numbers.pick(&["main", "main", "main", "default"]);
        // A second route with the same metric comes behind the first one; of IPv6 it would be a
        // second way.
        let verb = if v4 { numbers.pick(&["add", "append"]) } else { "add" };
        let metric = numbers.pick(&["", "metric 10", "metric 20"]);
        // The prefix without the bits behind it.
        let bits = if v4 { 32 } else { 128 };
        let shift = (bits - len) as u32;
        let cut = |n: u128| n.checked_shr(shift).and_then(|n| n.checked_shl(shift)).unwrap_or(0);
        let address: IpAddr = match address {
            IpAddr::V4(a) => Ipv4Addr::from(cut(u32::from(a).into()) as u32).into(),
            IpAddr::V6(a) => Ipv6Addr::from(cut(a.into())).into(),
        };
        writeln!(commands, "route {verb} {kind} {address}/{len} {way} table {table} {metric}").unwrap();
    }
    commands
}

/// What the kernel answers about a destination.
fn kernel_path(socket: &RouteSocket, dst: IpAddr) -> Result<Path2, Unreachable> {
    let mut message = RouteMessage::default();
    let (family, bits, address) = match dst {
        IpAddr::V4(v4) => (AddressFamily::Inet, 32, RouteAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(v6)),
    };
    (message.header.address_family, message.header.destination_prefix_length) = (family, bits);
    message.attributes.push(RouteAttribute::Destination(address));
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetRoute(message)));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes).unwrap();
    assert!(wait_readable(socket.as_fd(), Some(PATIENCE)).unwrap());
    let mut buffer = vec![0; 1 << 15];
    let len = socket.receive(&mut buffer).unwrap().unwrap();
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&buffer[..len]).unwrap();
    let route = match answer.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => route,
        NetlinkPayload::Error(error) => {
            return Err(match -error.code.unwrap().get() {
                libc::ENETUNREACH => Unreachable::NoRoute,
                libc::EHOSTUNREACH => Unreachable::Refused("unreachable"),
                libc::EACCES => Unreachable::Refused("prohibit"),
                libc::EINVAL => Unreachable::Refused("blackhole"),
                code => panic!("{dst}: error {code}"),
            });
        }
        other => panic!("{dst}: {other:?}"),
    };
    match route.header.kind {
        RouteType::Unicast | RouteType::Multicast => {}
        RouteType::Local | RouteType::Anycast => return Err(Unreachable::Local),
        other => panic!("{dst}: {other:?}"),
    }
    let mut path = Path2 { device: 0, gateway: None, source: None };
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(device) => path.device = *device,
            RouteAttribute::Gateway(gateway) => path.gateway = address(gateway),
            RouteAttribute::Via(netlink_packet_route::route::RouteVia::Inet6(v6)) => path.gateway = Some((*v6).into()),
            RouteAttribute::PrefSource(source) => path.source = address(source),
            _ => {}
        }
    }
    Ok(path)
}

/// The part of a [`Path`] that the kernel's answer has.
#[derive(Debug, PartialEq, Eq)]
struct Path2 {
    device: u32,
    gateway: Option<IpAddr>,
    source: Option<IpAddr>,
}

fn found(table: &Table, dst: IpAddr) -> Result<Path2, Unreachable> {
    let of = |path: Path| Path2 { device: path.device, gateway: path.gateway, source: Some(path.source) };
    table.path(dst).map(of)
}

#[test]
fn the_table_and_the_kernel_agree_on_random_routes() {
    if !needs("the_table_and_the_kernel_agree_on_random_routes", NEEDS) {
        return;
    }
    for seed in [7, 11] {
        let ns = host();
        ns.inside(|| {
            let next_hops = NextHops::watch().unwrap();
            let socket = RouteSocket::new(0).unwrap();
            let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 + seed);
            let mut reader = next_hops.reader();
            for round in 0..3 {
                batch(&ns, &routes(&mut numbers, 300));
                if round == 2 {
                    // With the interface go its routes, without a notification for each.
                    ns.ip("link set e1 down");
                }
                let marker = format!("203.0.113.{round}");
                ns.ip(&format!("route add {marker}/32 via 10.0.0.9 dev e0 metric 5"));
                until("the last route is there", || {
                    reader.refresh();
                    reader.table().path(ip(&marker)).ok()
                });
                // With a gateway, without one, refused, other errors; late.
                let mut answers = [0; 5];
                for i in 0..1500 {
                    let dst = numbers.address(i % 2 == 0);
                    let kernel = kernel_path(&socket, dst);
                    if found(reader.table(), dst) != kernel {
                        // The kernel may go on to change things for a moment.
                        until(&format!("seed {seed}, round {round}, {dst}: {kernel:?}"), || {
                            reader.refresh();
                            (found(reader.table(), dst) == kernel).then_some(())
                        });
                        answers[4] += 1;
                    }
                    answers[match kernel {
                        Ok(Path2 { gateway: Some(_), .. }) => 0,
                        Ok(_) => 1,
                        Err(Unreachable::Refused(_)) => 2,
                        Err(_) => 3,
                    }] += 1;
                }
                assert!(answers[4] < 10, "the table follows at once: {answers:?}");
                assert!(answers.iter().take(3).all(|n| *n > 20), "every kind of answer occurs: {answers:?}");
            }
            assert_eq!((reader.table().unreadable(), next_hops.overruns()), (0, 0));
        });
    }
}

#[test]
fn several_ways_are_used_by_their_weights_and_one_that_is_down_is_not() {
    if !needs("several_ways_are_used_by_their_weights_and_one_that_is_down_is_not", NEEDS) {
        return;
    }
    let ns = host();
    ns.ip("route add 198.18.0.0/15 nexthop via 10.0.0.9 dev e0 weight 1 nexthop via 172.16.0.9 dev e1 weight 3");
    ns.inside(|| {
        let next_hops = NextHops::watch().unwrap();
        let count = || {
            let table = next_hops.table();
            let via = |gateway| {
                let all = (0..1000u32).map(|i| IpAddr::from(Ipv4Addr::from(0xc612_0000 + i)));
                all.filter(|dst| table.path(*dst).is_ok_and(|path| path.gateway == Some(ip(gateway)))).count()
            };
            (via("10.0.0.9"), via("172.16.0.9"))
        };
        let (one, three) = count();
        assert_eq!(one + three, 1000);
        assert!((200..300).contains(&one), "{one} and {three}");
        ns.ip("link set e1 down");
        until("the other way takes all", || (count() == (1000, 0)).then_some(()));
    });
}

/// Two hosts on a link.
fn neighbours() -> (Namespace, Namespace) {
    let (one, two) = (Namespace::new("one"), Namespace::new("two"));
    one.ip(&format!(
        "link add e0 address 02:00:00:00:00:01 type veth peer name e0 address 02:00:00:00:00:02 netns {}",
        two.name()
    ));
    for (ns, n) in [(&one, 1), (&two, 2)] {
        batch(
            ns,
            &format!(
                "link set lo up\naddr add 10.0.0.{n}/24 dev e0\naddr add fd00::{n}/64 dev e0 nodad\nlink set e0 up\n"
            ),
        );
    }
    one.ip("route add 198.51.100.0/24 via 10.0.0.2");
    (one, two)
}

#[test]
fn a_neighbour_is_resolved_followed_and_forgotten() {
    if !needs("a_neighbour_is_resolved_followed_and_forgotten", NEEDS) {
        return;
    }
    let (one, _two) = neighbours();
    one.inside(|| {
        let next_hops = NextHops::watch().unwrap();
        let mut reader = next_hops.reader();
        for (dst, neighbour) in [("10.0.0.2", "10.0.0.2"), ("198.51.100.7", "10.0.0.2"), ("fd00::2", "fd00::2")] {
            one.ip("neigh flush dev e0");
            let missing = until("the neighbour is forgotten", || {
                reader.refresh();
                reader.table().next_hop(ip(dst)).err()
            });
            let Unreachable::NoNeighbour { device, address } = missing else { panic!("{dst}: {missing}") };
            assert_eq!(address, ip(neighbour));
            next_hops.resolve(device, address).unwrap();
            let hop = until("the neighbour is found", || {
                reader.refresh();
                reader.table().next_hop(ip(dst)).ok()
            });
            assert_eq!((hop.device, hop.link.dst, hop.link.src), (device, [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]));
            assert_eq!((hop.mtu, hop.tunnel), (1500, None));
        }
        one.ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:77 dev e0 nud permanent");
        until("another address is followed", || {
            reader.refresh();
            (reader.table().next_hop(ip("10.0.0.2")).ok()?.link.dst[5] == 0x77).then_some(())
        });
        let dumps = next_hops.dumps();
        one.ip("neigh del 10.0.0.2 dev e0");
        until("a deleted one is forgotten", || {
            reader.refresh();
            reader.table().next_hop(ip("10.0.0.2")).err()
        });
        assert_eq!(next_hops.dumps(), dumps, "a neighbour's change reads nothing else again");
    });
}

#[test]
fn a_frame_through_a_vxlan_interface_arrives_behind_the_other_one() {
    const NAME: &str = "a_frame_through_a_vxlan_interface_arrives_behind_the_other_one";
    if !needs(NAME, NEEDS) {
        return;
    }
    let (one, two) = neighbours();
    for (ns, n, m) in [(&one, 1, 2), (&two, 2, 1)] {
        ns.ip(&format!(
            "link add vx0 address 02:00:00:00:01:0{n} type vxlan id 42 local 10.0.0.{n} remote 10.0.0.{m} dstport 4789"
        ));
        ns.ip(&format!("addr add 10.9.0.{n}/24 dev vx0"));
        ns.ip("link set vx0 up");
    }
    one.ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev e0 nud permanent");
    one.ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:01:02 dev vx0 nud permanent");
    let listener = two.inside(|| UdpSocket::bind("10.9.0.2:8001").unwrap());
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    one.inside(|| {
        let next_hops = NextHops::watch().unwrap();
        let dst = ip("10.9.0.2");
        let hop = next_hops.table().next_hop(dst).unwrap();
        let Some(Tunnel::Vxlan { vni: 42, inner, udp, .. }) = hop.tunnel else { panic!("{hop:?}") };
        assert_eq!((inner.dst, udp.dst_port, hop.source, hop.mtu), ([2, 0, 0, 0, 1, 2], 4789, ip("10.9.0.1"), 1450));
        let udp = towpath_wire::emit::Udp { src_port: 5000, dst_port: 8001 };
        let headers = hop.template(dst, udp, towpath_wire::emit::UdpChecksum::None).unwrap();
        let mut frame = vec![0; headers.len()];
        frame.extend(b"inside");
        headers.write(&mut frame).unwrap();
        let socket = towpath_sys::af_packet::Socket::new().unwrap();
        send_frame(&socket, hop.device, &frame);
        let mut buffer = [0; 100];
        let (len, from) = listener.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (&b"inside"[..], "10.9.0.1:5000".parse().unwrap()));
    });
}

/// Sends a frame; the socket takes a virtio-net header in front of it.
fn send_frame(socket: &towpath_sys::af_packet::Socket, device: u32, frame: &[u8]) {
    use std::os::fd::AsRawFd;
    let frame = [&[0; 10], frame].concat();
    // SAFETY: sockaddr_ll is plain data.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (to.sll_family, to.sll_ifindex) = (libc::AF_PACKET as u16, device as i32);
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: both addresses and lengths describe values that live across the call.
    let sent = unsafe {
        libc::sendto(socket.as_fd().as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), len)
    };
    assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_lookup_allocates_nothing() {
    if !needs("a_lookup_allocates_nothing", NEEDS) {
        return;
    }
    let (one, _two) = neighbours();
    one.ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev e0 nud permanent");
    one.inside(|| {
        let next_hops = NextHops::watch().unwrap();
        let mut reader = next_hops.reader();
        let all = ["10.0.0.2", "198.51.100.7", "fd00::9", "10.0.0.1", "8.8.8.8"].map(ip);
        let turn = || {
            reader.refresh();
            let round = || all.iter().filter(|dst| reader.table().next_hop(**dst).is_ok()).count();
            (0..15).map(|_| round()).sum()
        };
        assert_eq!(allocations(turn), 0);
    });
}
