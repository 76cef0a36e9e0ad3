//! The router beside the kernel's forwarding: the same frames through both, one by one, and what
//! leaves is the same.
//!
//! What differs on purpose, and is not compared:
//!
//! | packet | Linux | this router | reason |
//! |---|---|---|---|
//! | back by the link that it came from | redirect | none | hosts ignore them, and they reveal topology |
//! | TCP, unknown protocols to the router | reset, "protocol unreachable" | dropped as `for-router` | it has no such service, and no socket to speak for |
//! | with a timestamp option | stamped | forwarded as it is | the option is obsolete |
//! | with record route, refused | the error carries the option too | it carries none | RFC 1812 asks for it only with source routes |
//! | many without a route | one error per second | the pace of all errors | `icmp_rate` bounds them together |
//! | identification and flow label of its own packets | random | counted, 0 | nothing depends on them |
//! | to a link-local address of another host | by the same link | dropped as `martian` | such packets are not routed (RFC 4291 section 2.5.6) |

#[path = "support/random.rs"]
mod random;
#[path = "support/tap.rs"]
mod tap;

use random::Random;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use tap::Tap;
use towpath::engine::router::{Action, Hop};
use towpath::wire::{checksum, ipv4};
use towpath::{Opener, Role, Router, RouterInterface, RouterPorts, RouterRoute, Running};
use towpath_testing::{Namespace, Need, PATIENCE, needs, until};

/// The router's interfaces, and a host behind each.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0xa, 0], [2, 0, 0, 0, 0xa, 1]];
const HOSTS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0xb, 0], [2, 0, 0, 0, 0xb, 1]];
const MTUS: [u32; 2] = [1500, 1280];

/// A tap whose other side is interface `n` of a router.
fn tap(ns: &Namespace, n: usize) -> Tap {
    let [a, b, c, d, e, f] = MACS[n];
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    Tap::new(ns, &format!("t{n}"), &format!("address {mac} mtu {}", MTUS[n]))
}

/// What has left since the last call, without what a kernel sends by itself.
fn received(tap: &mut Tap) -> Vec<Vec<u8>> {
    let frames = tap.received().into_iter();
    frames.filter(|frame| is_ours(frame)).map(|frame| normal(&frame)).collect()
}

/// Neither group membership nor router discovery.
fn is_ours(frame: &[u8]) -> bool {
    let is_v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
    let is_membership = frame.get(20) == Some(&0);
    let is_router_discovery = frame.get(20) == Some(&58) && matches!(frame.get(54), Some(130..=134 | 143));
    !is_v6 || !(is_membership || is_router_discovery)
}

/// Without what differs on purpose: identification and flow label of the router's own packets.
fn normal(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let is_own = |address: &[u8]| OWN4.iter().any(|own| own.octets() == address);
    if frame.get(12..14) == Some(&[8, 0]) && frame.len() >= 34 && is_own(&frame[26..30]) {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
        let check = checksum::finish(checksum::sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&check.to_be_bytes());
    }
    if frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58) {
        frame[15] &= 0xf0;
        frame[16..18].fill(0);
    }
    frame
}

const OWN4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 1, 1)];

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// The kernel as the router.
fn theirs(ns: &Namespace) -> Vec<Tap> {
    let taps: Vec<Tap> = (0..2).map(|n| tap(ns, n)).collect();
    for (setting, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv6/icmp/ratelimit", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/all/rp_filter", "0"),
    ] {
        ns.set(setting, value);
    }
    for (n, [a, b, c, d, e, f]) in HOSTS.into_iter().enumerate() {
        for setting in ["send_redirects", "rp_filter"] {
            ns.set(&format!("ipv4/conf/t{n}/{setting}"), "0");
        }
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        ns.ip(&format!("addr add 10.0.{n}.1/24 dev t{n}"));
        ns.ip(&format!("addr add fd0{n}::1/64 dev t{n} nodad"));
        ns.ip(&format!("neigh add 10.0.{n}.2 lladdr {mac} dev t{n}"));
        ns.ip(&format!("neigh add fd0{n}::2 lladdr {mac} dev t{n}"));
    }
    for route in ["20.0.0.0/8 via 10.0.1.2", "blackhole 21.0.0.0/8", "unreachable 22.0.0.0/8", "prohibit 23.0.0.0/8"] {
        ns.ip(&format!("route add {route}"));
    }
    ns.ip("-6 route add 2001:db8:1::/48 via fd01::2");
    ns.ip("-6 route add blackhole 2001:db8:3::/48");
    ns.ip("-6 route add prohibit 2001:db8:4::/48");
    taps
}

/// This router with the same addresses, routes and neighbours.
fn ours(ns: &Namespace) -> (Vec<Tap>, Running) {
    ns.set("ipv6/conf/all/disable_ipv6", "1");
    ns.set("ipv6/conf/default/disable_ipv6", "1");
    let taps: Vec<Tap> = (0..2).map(|n| tap(ns, n)).collect();
    let mut opener = Opener::new();
    let mut router = Router::default();
    let mut ports = Vec::new();
    for n in 0..2u8 {
        let uri = format!("packet:t{n}?netns={}", ns.name());
        let mut interface = RouterInterface::default();
        interface.mac = Some(MACS[usize::from(n)]);
        interface.addresses = vec![([10, 0, n, 1].into(), 24), (v6(&format!("fd0{n}::1")).into(), 64)];
        ports.push(RouterPorts::new(interface, opener.open(&uri.parse().unwrap(), Role::Both).unwrap()));
        let host = HOSTS[usize::from(n)];
        router.neighbours.push((n.into(), [10, 0, n, 2].into(), host));
        router.neighbours.push((n.into(), v6(&format!("fd0{n}::2")).into(), host));
    }
    let route = |prefix: IpAddr, len, action, gateway: Option<IpAddr>| RouterRoute {
        prefix,
        len,
        action,
        hops: gateway.map(|gateway| Hop { port: 1, gateway: Some(gateway), weight: 1 }).into_iter().collect(),
        mtu: None,
    };
    router.routes = vec![
        route([20, 0, 0, 0].into(), 8, Action::Forward, Some([10, 0, 1, 2].into())),
        route([21, 0, 0, 0].into(), 8, Action::Blackhole, None),
        route([22, 0, 0, 0].into(), 8, Action::Unreachable, None),
        route([23, 0, 0, 0].into(), 8, Action::Prohibit, None),
        route(v6("2001:db8:1::").into(), 48, Action::Forward, Some(v6("fd01::2").into())),
        route(v6("2001:db8:3::").into(), 48, Action::Blackhole, None),
        route(v6("2001:db8:4::").into(), 48, Action::Prohibit, None),
    ];
    router.config.icmp_rate = 0;
    (taps, router.start(ports).unwrap())
}

/// Changes to a plain packet.
#[derive(Clone)]
struct V4 {
    to_mac: [u8; 6],
    src: [u8; 4],
    dst: [u8; 4],
    ttl: u8,
    tos: u8,
    fragment: u16,
    protocol: u8,
    options: Vec<u8>,
    payload: Vec<u8>,
    /// Ethernet padding behind the packet.
    padding: usize,
    total_len: Option<u16>,
    bad_checksum: bool,
}

impl V4 {
    fn to(dst: [u8; 4]) -> V4 {
        V4 {
            to_mac: MACS[0],
            src: [10, 0, 0, 2],
            dst,
            ttl: 64,
            tos: 0,
            fragment: 0,
            protocol: 17,
            options: Vec::new(),
            payload: [&[0x30, 0x39, 0x30, 0x3a, 0, 40, 0, 0][..], &[7; 32]].concat(),
            padding: 0,
            total_len: None,
            bad_checksum: false,
        }
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = [&self.to_mac[..], &HOSTS[0], &[8, 0]].concat();
        let mut ip = vec![0u8; 20];
        ip.extend(&self.options);
        let len = (ip.len() + self.payload.len()) as u16;
        let (mut header, _) = ipv4::Header::split_mut(&mut ip).unwrap();
        header.set_version_ihl(0x45 + (self.options.len() / 4) as u8);
        header.set_tos(self.tos);
        header.set_total_len(self.total_len.unwrap_or(len));
        header.set_id(0x1234);
        header.set_fragment(self.fragment);
        header.set_ttl(self.ttl);
        header.set_protocol(self.protocol);
        header.set_src(self.src.into());
        header.set_dst(self.dst.into());
        let check = checksum::finish(checksum::sum(&ip)) ^ u16::from(self.bad_checksum);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        frame.extend(ip);
        frame.extend(&self.payload);
        frame.resize(frame.len() + self.padding, 0xee);
        frame
    }

    fn with(mut self, change: impl FnOnce(&mut V4)) -> Vec<u8> {
        change(&mut self);
        self.frame()
    }
}

fn icmp(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(data);
    let check = checksum::finish(checksum::sum(&message));
    message[2..4].copy_from_slice(&check.to_be_bytes());
    message
}

fn v6_frame(src: &str, dst: &str, hop_limit: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&MACS[0][..], &HOSTS[0], &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, hop_limit]);
    frame.extend(v6(src).octets());
    frame.extend(v6(dst).octets());
    frame.extend(payload);
    frame
}

fn icmp6(src: &str, dst: &str, kind: u8, data: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(data);
    let pseudo = checksum::pseudo_v6(v6(src), v6(dst), 58, message.len() as u32);
    let check = checksum::finish(checksum::add(pseudo, checksum::sum(&message)));
    message[2..4].copy_from_slice(&check.to_be_bytes());
    message
}

fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &HOSTS[0], &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend(HOSTS[0]);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

/// Named packets: each has the rule that it tries.
fn named() -> Vec<(&'static str, Vec<u8>)> {
    let far = [20, 1, 2, 3];
    let udp = || V4::to(far);
    let long = |n: usize| vec![0x55; n];
    let error = icmp(3, &udp().frame()[14..]);
    let far6 = "2001:db8:1::7";
    let host6 = "fd00::2";
    let udp6 = |len: usize| {
        [&[0x30, 0x39, 0x30, 0x3a][..], &((len + 8) as u16).to_be_bytes(), &[1, 1], &vec![9; len]].concat()
    };
    let ns = |target: &str| [&[0; 4][..], &v6(target).octets(), &[1, 1], &HOSTS[0]].concat();
    let mut solicitation =
        v6_frame(host6, "ff02::1:ff00:1", 255, 58, &icmp6(host6, "ff02::1:ff00:1", 135, &ns("fd00::1")));
    solicitation[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 1]);
    vec![
        ("a packet by a gateway", udp().frame()),
        ("a packet to a host on a link", V4::to([10, 0, 1, 2]).frame()),
        ("padding is cut", udp().with(|p| p.padding = 10)),
        ("type of service stays", udp().with(|p| p.tos = 0xb9)),
        ("TTL 2", udp().with(|p| p.ttl = 2)),
        ("TTL 1", udp().with(|p| p.ttl = 1)),
        ("TTL 0", udp().with(|p| p.ttl = 0)),
        ("TTL 1 with a type of service", udp().with(|p| (p.ttl, p.tos) = (1, 0xff))),
        ("TTL 1, an error", udp().with(|p| (p.ttl, p.protocol, p.payload) = (1, 1, error.clone()))),
        ("TTL 1, an echo request", udp().with(|p| (p.ttl, p.protocol, p.payload) = (1, 1, icmp(8, &[0; 8])))),
        ("TTL 1, a later fragment", udp().with(|p| (p.ttl, p.fragment) = (1, 5))),
        ("TTL 1, a first fragment", udp().with(|p| (p.ttl, p.fragment) = (1, 0x2000))),
        ("TTL 1, a long packet is quoted in part", udp().with(|p| (p.ttl, p.payload) = (1, long(1200)))),
        ("no route", V4::to([99, 0, 0, 1]).frame()),
        ("no route, an error", V4::to([99, 0, 0, 1]).with(|p| (p.protocol, p.payload) = (1, error.clone()))),
        ("a blackhole", V4::to([21, 0, 0, 1]).frame()),
        ("an unreachable route", V4::to([22, 0, 0, 1]).frame()),
        ("a prohibited route", V4::to([23, 0, 0, 1]).frame()),
        ("the MTU exactly", udp().with(|p| p.payload = long(1260))),
        ("a byte more than the MTU", udp().with(|p| p.payload = long(1261))),
        ("a byte more, not to be fragmented", udp().with(|p| (p.payload, p.fragment) = (long(1261), 0x4000))),
        ("the MTU exactly, not to be fragmented", udp().with(|p| (p.payload, p.fragment) = (long(1260), 0x4000))),
        ("a fragment is fragmented", udp().with(|p| (p.payload, p.fragment) = (long(1400), 0x2010))),
        ("the last fragment is fragmented", udp().with(|p| (p.payload, p.fragment) = (long(1400), 0x10))),
        (
            "options in fragments",
            udp().with(|p| {
                (p.payload, p.options) = (long(1400), vec![148, 4, 0, 0, 136, 4, 1, 2]);
            }),
        ),
        ("an unknown option", udp().with(|p| p.options = vec![136, 4, 1, 2])),
        ("record route", udp().with(|p| p.options = vec![7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("record route, full", udp().with(|p| p.options = vec![7, 7, 8, 1, 2, 3, 4, 0])),
        ("record route, a wrong pointer", udp().with(|p| p.options = vec![7, 7, 3, 1, 2, 3, 4, 0])),
        ("an option that is too long", udp().with(|p| p.options = vec![136, 9, 1, 2])),
        ("loose source route", udp().with(|p| p.options = vec![131, 7, 4, 1, 2, 3, 4, 0])),
        ("a wrong checksum", udp().with(|p| p.bad_checksum = true)),
        ("longer than the frame", udp().with(|p| p.total_len = Some(900))),
        ("shorter than its header", udp().with(|p| p.total_len = Some(19))),
        ("from the loopback network", udp().with(|p| p.src = [127, 0, 0, 1])),
        ("from a group", udp().with(|p| p.src = [224, 0, 0, 1])),
        ("from nowhere", udp().with(|p| p.src = [0; 4])),
        ("from all", udp().with(|p| p.src = [255; 4])),
        ("from the router", udp().with(|p| p.src = [10, 0, 0, 1])),
        ("from another subnet", udp().with(|p| p.src = [10, 0, 1, 77])),
        ("to the loopback network", V4::to([127, 0, 0, 1]).frame()),
        ("to this network", V4::to([0, 0, 0, 1]).frame()),
        ("to a group", V4::to([239, 1, 1, 1]).with(|p| p.to_mac = [1, 0, 0x5e, 1, 1, 1])),
        ("to all", V4::to([255; 4]).with(|p| p.to_mac = [0xff; 6])),
        ("to a host in a frame to all", udp().with(|p| p.to_mac = [0xff; 6])),
        ("to another station", udp().with(|p| p.to_mac = [2, 9, 9, 9, 9, 9])),
        ("to the broadcast address of a subnet", V4::to([10, 0, 1, 255]).frame()),
        (
            "an echo request to the router",
            V4::to([10, 0, 0, 1]).with(|p| (p.protocol, p.payload) = (1, icmp(8, &[5; 40]))),
        ),
        (
            "to its other address",
            V4::to([10, 0, 1, 1]).with(|p| (p.protocol, p.payload, p.ttl) = (1, icmp(8, &[5; 40]), 1)),
        ),
        ("UDP to the router", V4::to([10, 0, 0, 1]).frame()),
        ("ARP for the router", arp(1, [10, 0, 0, 2], [10, 0, 0, 1])),
        ("ARP for its other address", arp(1, [10, 0, 0, 2], [10, 0, 1, 1])),
        ("ARP for another host", arp(1, [10, 0, 0, 2], [10, 0, 0, 9])),
        ("ARP, a probe", arp(1, [0; 4], [10, 0, 0, 1])),
        ("ARP, an announcement", arp(1, [10, 0, 0, 2], [10, 0, 0, 2])),
        ("IPv6 by a gateway", v6_frame(host6, far6, 64, 17, &udp6(50))),
        ("IPv6 to a host on a link", v6_frame(host6, "fd01::2", 64, 17, &udp6(50))),
        ("hop limit 1", v6_frame(host6, far6, 1, 17, &udp6(50))),
        ("hop limit 0", v6_frame(host6, far6, 0, 17, &udp6(50))),
        ("hop limit 1, an error", v6_frame(host6, far6, 1, 58, &icmp6(host6, far6, 1, &[0; 48]))),
        ("hop limit 1, an echo request", v6_frame(host6, far6, 1, 58, &icmp6(host6, far6, 128, &[0; 48]))),
        ("IPv6 no route", v6_frame(host6, "2001:db8:9::1", 64, 17, &udp6(50))),
        ("IPv6 blackhole", v6_frame(host6, "2001:db8:3::1", 64, 17, &udp6(50))),
        ("IPv6 prohibited", v6_frame(host6, "2001:db8:4::1", 64, 17, &udp6(50))),
        ("IPv6, the MTU exactly", v6_frame(host6, far6, 64, 17, &udp6(1232))),
        ("IPv6, a byte more", v6_frame(host6, far6, 64, 17, &udp6(1233))),
        ("IPv6 from nowhere", v6_frame("::", far6, 64, 17, &udp6(50))),
        ("IPv6 from loopback", v6_frame("::1", far6, 64, 17, &udp6(50))),
        ("IPv6 to loopback", v6_frame(host6, "::1", 64, 17, &udp6(50))),
        ("IPv6 from a group", v6_frame("ff02::1", far6, 64, 17, &udp6(50))),
        (
            "IPv6, an unknown hop-by-hop option",
            v6_frame(host6, far6, 64, 0, &[&[17, 0, 0xbe, 4, 0, 0, 0, 0][..], &udp6(50)].concat()),
        ),
        (
            "IPv6, one that is skipped",
            v6_frame(host6, far6, 64, 0, &[&[17, 0, 0x3e, 4, 0, 0, 0, 0][..], &udp6(50)].concat()),
        ),
        (
            "IPv6, one that drops",
            v6_frame(host6, far6, 64, 0, &[&[17, 0, 0x7e, 4, 0, 0, 0, 0][..], &udp6(50)].concat()),
        ),
        (
            "an echo request to the router by IPv6",
            v6_frame(host6, "fd00::1", 64, 58, &icmp6(host6, "fd00::1", 128, &[5; 40])),
        ),
        ("a neighbour solicitation", solicitation),
    ]
}

/// Sends frames one by one through both, and compares what leaves.
///
/// The kernel paces errors about routes (`net.ipv4.route.error_cost`, which namespaces do not
/// have). With `patient` the packet is sent to it again until it answers, otherwise its silence is
/// no difference.
fn compare(frames: Vec<(String, Vec<u8>)>, patient: bool) {
    let (kernel, mine) = (Namespace::new("kernel"), Namespace::new("ours"));
    let mut their_taps = theirs(&kernel);
    let (mut our_taps, running) = ours(&mine);
    let balance = || running.meter().read().balance();
    let collect = |taps: &mut [Tap]| {
        let mut all: Vec<(usize, Vec<u8>)> = Vec::new();
        taps.iter_mut().enumerate().for_each(|(n, tap)| all.extend(received(tap).into_iter().map(|f| (n, f))));
        all.sort();
        all
    };
    collect(&mut their_taps);
    let (mut wrong, mut left) = (Vec::new(), 0);
    for (name, frame) in frames {
        let before = balance().received;
        their_taps[0].send(&frame);
        our_taps[0].send(&frame);
        until("the frame is handled", || balance().received == before + 1 && balance().in_flight() == 0);
        let ours = collect(&mut our_taps);
        let mut kernels = collect(&mut their_taps);
        let is_paced = ours.len() == 1 && is_about_a_route(&ours[0].1);
        // The kernel may be late, but what it sends must be what was sent here.
        let late = Duration::from_secs(if is_paced { 2 } else { 20 });
        let began = Instant::now();
        while kernels.len() < ours.len() && began.elapsed() < late {
            std::thread::sleep(Duration::from_millis(1));
            kernels.extend(collect(&mut their_taps));
            kernels.sort();
        }
        let began = Instant::now();
        while is_paced && patient && kernels.is_empty() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(500));
            their_taps[0].send(&frame);
            kernels.extend(collect(&mut their_taps));
        }
        left += ours.len();
        if ours != kernels && !(is_paced && !patient && kernels.is_empty()) {
            println!("{name}: {frame:02x?}");
            kernels.iter().for_each(|(port, frame)| println!("    kernel, port {port}: {frame:02x?}"));
            ours.iter().for_each(|(port, frame)| println!("    ours, port {port}: {frame:02x?}"));
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(left > 20, "{left} frames left");
    let summary = running.stop();
    assert_eq!((summary.failures(), summary.buffers_away), (vec![], 0));
}

/// An ICMP error that a route is missing or refuses.
fn is_about_a_route(frame: &[u8]) -> bool {
    let is_icmp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&1);
    is_icmp && matches!(frame.get(34..36), Some([3, 0 | 1 | 13]))
}

const NEEDS: [Need; 3] = [Need::Root, Need::Tun, Need::Program("ip")];

#[test]
fn named_packets_leave_as_they_leave_the_forwarding_of_the_kernel() {
    if needs("named_packets_leave_as_they_leave_the_forwarding_of_the_kernel", &NEEDS) {
        let named = named().into_iter().map(|(name, frame)| (name.to_owned(), frame));
        // No error is about an error: the kernel has its list of those.
        let message =
            |kind| V4::to([20, 1, 2, 3]).with(|p| (p.ttl, p.protocol, p.payload) = (1, 1, icmp(kind, &[0; 8])));
        let messages = (0..=20).chain([255]).map(|kind| (format!("TTL 1, ICMP of type {kind}"), message(kind)));
        compare(named.chain(messages).collect(), true);
    }
}

impl Random {
    /// One of the values.
    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

#[test]
fn randomly_changed_packets_leave_as_they_leave_the_forwarding_of_the_kernel() {
    if !needs("randomly_changed_packets_leave_as_they_leave_the_forwarding_of_the_kernel", &NEEDS) {
        return;
    }
    let mut random = Random(std::process::id().into());
    println!("seed {}", random.0);
    let one = |n: usize| {
        let mut packet =
            V4::to(random.one(&[[20, 1, 2, 3], [10, 0, 1, 2], [22, 0, 0, 1], [99, 0, 0, 1], [23, 1, 1, 1]]));
        packet.src =
            random.one(&[[10, 0, 0, 2], [10, 0, 0, 2], [20, 0, 0, 9], [127, 0, 0, 1], [0, 0, 0, 0], [240, 0, 0, 1]]);
        packet.ttl = random.one(&[0, 1, 2, 64, 255]);
        packet.tos = random.below(256) as u8;
        packet.fragment = random.one(&[0, 0, 0x4000, 0x2000, 0x2003, 0x8000, 7]);
        packet.protocol = random.one(&[17, 17, 6, 1, 89, 253]);
        packet.options = random.one(&[vec![], vec![], vec![1, 1, 1, 0], vec![136, 4, 1, 2], vec![148, 4, 0, 0]]);
        packet.payload =
            (0..random.one(&[8, 40, 500, 1230, 1260, 1261, 1400])).map(|_| random.below(256) as u8).collect();
        packet.padding = random.one(&[0, 0, 6]);
        packet.bad_checksum = random.below(12) == 0;
        if random.below(12) == 0 {
            packet.total_len = Some(random.below(1500) as u16);
        }
        (format!("packet {n}"), packet.frame())
    };
    compare((0..300).map(one).collect(), false);
}
