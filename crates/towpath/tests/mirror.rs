//! A router that mirrors a kernel: addresses, routes and neighbours are those of the namespace that
//! its control ports are in, and what is for the router itself reaches that kernel.

use std::process::{Child, Command, Stdio};
use towpath::{Opener, Role, Router, RouterInterface, RouterPorts, Running};
use towpath_testing::{Namespace, Need, needs, until};

/// A cable between two hosts' namespaces, or a host and a router's side: `a` in `left`, `b` in
/// `right`.
fn cable(left: &Namespace, a: &str, right: &Namespace, b: &str) {
    left.ip(&format!("link add {a} type veth peer name {b} netns {}", right.name()));
    left.ip(&format!("link set {a} up"));
    right.ip(&format!("link set {b} up"));
    // Segments of the kernel's stack have their checksums.
    for (ns, device) in [(left, a), (right, b)] {
        let _ = ns.command("ethtool", &format!("-K {device} tx off tso off gso off gro off")).output();
    }
}

/// A router on `ports` (devices in `wires`), each with a tap of its name in `plane`.
fn router(wires: &Namespace, plane: &Namespace, ports: &[&str]) -> Running {
    let mut router = Router::default();
    router.netns = Some(plane.name().to_owned());
    router.start(ports.iter().map(|name| open(wires, plane, name)).collect()).unwrap()
}

/// A port, with its tap.
fn open(wires: &Namespace, plane: &Namespace, name: &str) -> RouterPorts {
    let mut opener = Opener::new();
    let port = format!("packet:{name}?netns={}", wires.name()).parse().unwrap();
    let tap = format!("tap:{name}?netns={}", plane.name()).parse().unwrap();
    let port = opener.open(&port, Role::Both).unwrap();
    RouterPorts::new(RouterInterface::named(name), port).with_control(opener.open(&tap, Role::Both).unwrap())
}

fn pings(from: &Namespace, to: &str) -> bool {
    let output = from.command("ping", &format!("-n -c 1 -W 1 {to}")).output().unwrap();
    output.status.success()
}

/// No port of the wires' namespace takes part in a protocol: the router's side is silent.
fn silent(ns: &Namespace) {
    ns.set("ipv6/conf/all/disable_ipv6", "1");
    ns.set("ipv6/conf/default/disable_ipv6", "1");
    ns.set("ipv4/conf/all/arp_ignore", "8");
}

#[test]
fn routes_and_neighbours_of_a_kernel_forward_packets_and_its_addresses_answer() {
    const NAME: &str = "routes_and_neighbours_of_a_kernel_forward_packets_and_its_addresses_answer";
    if !needs(NAME, &[Need::Root, Need::Tun, Need::Program("ip"), Need::Program("ping")]) {
        return;
    }
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let (wires, plane) = (Namespace::new("wires"), Namespace::new("plane"));
    silent(&wires);
    cable(&a, "e0", &wires, "p0");
    cable(&b, "e0", &wires, "p1");
    let running = router(&wires, &plane, &["p0", "p1"]);
    let control = running.router().unwrap().clone();
    for n in 0..2 {
        plane.ip(&format!("addr add 10.0.{n}.1/24 dev p{n}"));
        plane.ip(&format!("addr add fd0{n}::1/64 dev p{n} nodad"));
        plane.ip(&format!("link set p{n} up"));
    }
    for (n, host) in [&a, &b].into_iter().enumerate() {
        host.ip(&format!("addr add 10.0.{n}.2/24 dev e0"));
        host.ip(&format!("addr add fd0{n}::2/64 dev e0 nodad"));
        host.ip(&format!("route add default via 10.0.{n}.1"));
        host.ip(&format!("-6 route add default via fd0{n}::1"));
    }
    // The kernel itself forwards nothing: what crosses is forwarded by the router.
    assert_eq!(plane.run("cat", "/proc/sys/net/ipv4/ip_forward").trim(), "0");
    until("the kernel answers for its address", || pings(&a, "10.0.0.1"));
    until("a packet crosses", || pings(&a, "10.0.1.2"));
    until("a packet crosses by IPv6", || pings(&a, "fd01::2"));
    assert!(control.neighbours().iter().any(|known| known.mac.is_some()), "{:?}", control.neighbours());
    // A host behind a gateway appears and disappears with the kernel's route.
    b.ip("addr add 20.0.0.1/32 dev lo");
    assert!(!pings(&a, "20.0.0.1"), "there is no route");
    plane.ip("route add 20.0.0.0/8 via 10.0.1.2");
    until("the route is used", || pings(&a, "20.0.0.1"));
    plane.ip("route del 20.0.0.0/8");
    until("the route is gone", || !pings(&a, "20.0.0.1"));
    plane.ip("route add unreachable 30.0.0.0/8");
    until("its error arrives", || {
        let output = a.command("ping", "-n -c 1 -W 1 30.0.0.1").output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("Destination Host Unreachable")
    });
    assert!(control.set_routes(Vec::new()).unwrap_err().to_string().contains("mirrors a kernel"));
    // A port that comes later, with its tap; and it leaves with the routes of that.
    let c = Namespace::new("c");
    cable(&c, "e0", &wires, "p2");
    c.ip("addr add 10.0.2.2/24 dev e0");
    c.ip("route add default via 10.0.2.1");
    for _ in 0..2 {
        let number = control.attach(open(&wires, &plane, "p2")).unwrap();
        plane.ip("addr add 10.0.2.1/24 dev p2");
        plane.ip("link set p2 up");
        until("a packet crosses to the new port", || pings(&a, "10.0.2.2"));
        let hop = control.resolve([10, 0, 2, 2].into(), 0).and_then(|(_, hop)| hop);
        assert_eq!(hop.map(|hop| hop.port), Some(number));
        control.detach("p2").unwrap();
        assert!(control.resolve([10, 0, 2, 2].into(), 0).is_none(), "its routes have left with it");
        assert!(control.neighbours().iter().all(|known| known.key.port != number), "{:?}", control.neighbours());
        until("the others go on", || pings(&a, "10.0.1.2"));
        // A program that was started meanwhile holds the closed tap until its `exec`.
        until("the tap is gone", || !plane.ip("-o link").contains(" p2:"));
    }
    let summary = running.stop();
    assert_eq!((summary.buffers_away, summary.reading.balance().in_flight()), (0, 0));
}

/// A daemon in its own mount and PID namespaces: it has directories of its own, and ends with the
/// test.
struct Daemon(Child);

impl Daemon {
    fn start(ns: &Namespace, script: &str) -> Daemon {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", ns.name(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
        Daemon(command.arg(script).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// FRR's zebra and ospfd with private directories.
fn frr(ns: &Namespace, directory: &std::path::Path, id: &str, networks: &[&str]) -> Daemon {
    let mut ospf = String::new();
    for port in ["p1", "p2"] {
        ospf += &format!(
            "interface {port}\n ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n"
        );
    }
    ospf += &format!("router ospf\n ospf router-id {id}\n timers throttle spf 10 50 200\n");
    networks.iter().for_each(|network| ospf += &format!(" network {network} area 0\n"));
    std::fs::write(directory.join("ospfd.conf"), ospf).unwrap();
    std::fs::write(directory.join("zebra.conf"), "hostname z\n").unwrap();
    let at = directory.display();
    let script = format!(
        "mount -t tmpfs none /var/run/frr 2>/dev/null || {{ mkdir -p /var/run/frr; mount -t tmpfs none /var/run/frr; }}
         mkdir -p /var/tmp/frr; mount -t tmpfs none /var/tmp/frr
         chmod 777 /var/run/frr /var/tmp/frr {at}
         /usr/lib/frr/zebra -u frr -g frr -P 0 -f {at}/zebra.conf -i {at}/zebra.pid -z {at}/zserv & sleep 0.5
         /usr/lib/frr/ospfd -u frr -g frr -P 0 -f {at}/ospfd.conf -i {at}/ospfd.pid -z {at}/zserv & wait"
    );
    Daemon::start(ns, &script)
}

fn bird(ns: &Namespace, directory: &std::path::Path, id: &str) -> Daemon {
    let links = ["p1", "p2"].map(|port| format!("interface \"{port}\" {{ type ptp; hello 1; dead 4; }};")).join("\n");
    let config = format!(
        "router id {id};
         protocol device {{ scan time 1; }}
         protocol direct {{ ipv4; interface \"p*\"; }}
         protocol kernel {{ ipv4 {{ export all; import none; }}; }}
         protocol ospf v2 {{ ipv4 {{ import all; export none; }}; area 0 {{ {links} interface \"p0\" {{ stub; }}; }}; }}"
    );
    std::fs::write(directory.join("bird.conf"), config).unwrap();
    let at = directory.display();
    Daemon::start(ns, &format!("exec bird -f -c {at}/bird.conf -s {at}/bird.ctl -P {at}/bird.pid"))
}

#[test]
fn frr_and_bird_run_unchanged_beside_two_routers_and_reroute_when_a_link_fails() {
    const NAME: &str = "frr_and_bird_run_unchanged_beside_two_routers_and_reroute_when_a_link_fails";
    let programs = ["ip", "ping", "sh", "unshare", "mount", "bird", "/usr/lib/frr/zebra", "/usr/lib/frr/ospfd"];
    let all: Vec<Need> = [Need::Root, Need::Tun].into_iter().chain(programs.into_iter().map(Need::Program)).collect();
    if !needs(NAME, &all) {
        return;
    }
    let (a, b) = (Namespace::new("a"), Namespace::new("b"));
    let (left, right) = (Namespace::new("left"), Namespace::new("right"));
    let (frr_plane, bird_plane) = (Namespace::new("frr"), Namespace::new("bird"));
    silent(&left);
    silent(&right);
    cable(&a, "e0", &left, "p0");
    cable(&b, "e0", &right, "p0");
    cable(&left, "p1", &right, "p1");
    cable(&left, "p2", &right, "p2");
    let one = router(&left, &frr_plane, &["p0", "p1", "p2"]);
    let two = router(&right, &bird_plane, &["p0", "p1", "p2"]);
    for (side, plane, host) in [(1, &frr_plane, &a), (2, &bird_plane, &b)] {
        plane.ip(&format!("addr add 10.{side}.0.1/24 dev p0"));
        for link in 1..3 {
            plane.ip(&format!("addr add 192.168.{link}.{side}/24 dev p{link}"));
        }
        (0..3).for_each(|port| drop(plane.ip(&format!("link set p{port} up"))));
        host.ip(&format!("addr add 10.{side}.0.2/24 dev e0"));
        host.ip(&format!("route add default via 10.{side}.0.1"));
    }
    let directory = tempfile::tempdir().unwrap();
    // The daemons of FRR run as a user of their own.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let make = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let _frr = frr(&frr_plane, &make("frr"), "1.1.1.1", &["10.1.0.0/24", "192.168.1.0/24", "192.168.2.0/24"]);
    let _bird = bird(&bird_plane, &make("bird"), "2.2.2.2");
    until("OSPF converges", || pings(&a, "10.2.0.2") && pings(&b, "10.1.0.2"));
    let route = |plane: &Namespace, to: &str| plane.ip(&format!("route show {to}"));
    until("both links are used", || {
        let found = route(&frr_plane, "10.2.0.0/24");
        found.contains("192.168.1.2") && found.contains("192.168.2.2")
    });
    // Frames on the first link are lost; OSPF notices by its timer.
    left.ip("link set p1 down");
    until("the other link is used", || {
        let found = route(&frr_plane, "10.2.0.0/24");
        !found.contains("192.168.1.2") && found.contains("192.168.2.2")
    });
    until("packets cross by it", || pings(&a, "10.2.0.2") && pings(&b, "10.1.0.2"));
    left.ip("link set p1 up");
    until("the link is used again", || route(&frr_plane, "10.2.0.0/24").contains("192.168.1.2"));
    until("packets cross by it again", || pings(&a, "10.2.0.2"));
    for running in [one, two] {
        let summary = running.stop();
        assert_eq!((summary.buffers_away, summary.reading.balance().in_flight()), (0, 0));
    }
}
