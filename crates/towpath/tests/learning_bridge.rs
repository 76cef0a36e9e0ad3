//! The bridge beside the kernel's: the same frames in the same order through both, and what comes
//! out of which port is the same. And ports that come and go under traffic.

#[path = "support/random.rs"]
mod random;
#[path = "support/tap.rs"]
mod tap;

use random::Random;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tap::Tap;
use towpath::engine::bridge::{PortMode, StormLimits, VlanSet};
use towpath::{Bridge, BridgePort, Opener, Role, Running};
use towpath_testing::{Namespace, Need, PATIENCE, needs, skip, until};

const PORTS: usize = 4;

/// The type of the test's frames, behind up to two tags.
fn is_ours(frame: &[u8]) -> bool {
    frame.get(12..frame.len().min(26)).is_some_and(|types| types.windows(2).step_by(2).any(|two| two == [0x88, 0xb5]))
}

/// The frames of the test that have left a tap since the last call.
fn ours(tap: &mut Tap) -> Vec<Vec<u8>> {
    let mut frames = tap.received();
    frames.retain(|frame| is_ours(frame));
    frames
}

/// Taps in a namespace without other traffic.
fn taps(ns: &Namespace) -> Vec<Tap> {
    ns.set("ipv6/conf/all/disable_ipv6", "1");
    ns.set("ipv6/conf/default/disable_ipv6", "1");
    (0..PORTS).map(|n| Tap::new(ns, &format!("t{n}"), "")).collect()
}

/// Frames with their ports: stations that talk and move, groups, reserved groups, sources that are
/// none; with tags if `tags`. Each has a number.
fn arrivals(n: u32, tags: bool) -> Vec<(usize, Vec<u8>)> {
    let mut random = Random(std::process::id().into());
    println!("seed {}", random.0);
    let one = |number| {
        let mut address = |group: bool| match random.below(20) {
            0 if group => [0xff; 6],
            1 if group => [1, 0, 0x5e, 1, 2, 3],
            2 | 3 if group => [1, 0x80, 0xc2, 0, 0, random.below(0x12) as u8],
            4 => [3, 0, 0, 0, 0, 1],
            5 => [0; 6],
            _ => [2, 0, 0, 0, 0xaa, random.below(8) as u8],
        };
        let mut frame = [address(true), address(false)].concat();
        if tags && random.below(3) > 0 {
            let tci = (random.below(8) << 13 | [0, 1, 10, 20, 30, 4095][random.below(6) as usize]) as u16;
            frame.extend([[0x81, 0], tci.to_be_bytes()].concat());
        }
        frame.extend([0x88, 0xb5]);
        frame.extend(u32::to_be_bytes(number));
        frame.resize(60 + random.below(500) as usize, number as u8);
        (random.below(PORTS as u64) as usize, frame)
    };
    (0..n).map(one).collect()
}

/// What left by which port.
type Departures = BTreeSet<(usize, Vec<u8>)>;

fn collect(taps: &mut [Tap], into: &mut Departures) {
    for (port, tap) in taps.iter_mut().enumerate() {
        for frame in ours(tap) {
            assert!(into.insert((port, frame)), "a frame left twice by port {port}");
        }
    }
}

/// The kernel's bridge handles a frame before `write` returns, or on its own a little later.
fn through_the_kernel(taps: &mut [Tap], arrivals: &[(usize, Vec<u8>)], expected: usize) -> Departures {
    let mut departures = Departures::new();
    for (port, frame) in arrivals {
        taps[*port].send(frame);
        collect(taps, &mut departures);
    }
    let began = Instant::now();
    while departures.len() < expected && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        collect(taps, &mut departures);
    }
    collect(taps, &mut departures);
    departures
}

fn through_ours(running: &Running, taps: &mut [Tap], arrivals: &[(usize, Vec<u8>)]) -> Departures {
    let mut departures = Departures::new();
    let balance = || running.meter().read().balance();
    for (n, (port, frame)) in (1..).zip(arrivals) {
        taps[*port].send(frame);
        until("the frame is handled", || {
            let now = balance();
            assert!(now.received <= n, "there is other traffic");
            now.received == n && now.in_flight() == 0
        });
        collect(taps, &mut departures);
    }
    departures
}

fn open(ns: &Namespace, ports: [BridgePort; PORTS], bridge: Bridge) -> Running {
    let mut opener = Opener::new();
    let open = |(n, port)| {
        let uri = format!("packet:t{n}?netns={}", ns.name());
        (port, opener.open(&uri.parse().unwrap(), Role::Both).unwrap())
    };
    bridge.start(ports.into_iter().enumerate().map(open).collect()).unwrap()
}

/// The same frames through both; the kernel's bridge is made by `make`.
fn compare(name: &str, make: impl FnOnce(&Namespace), tags: bool, ports: [BridgePort; PORTS]) {
    let (theirs, ours) = (Namespace::new("kernel"), Namespace::new("ours"));
    let (mut their_taps, mut our_taps) = (taps(&theirs), taps(&ours));
    make(&theirs);
    theirs.ip("link set br0 up");
    until("all ports forward", || {
        theirs.run("ip", "-d link show type tun").matches("state forwarding").count() == PORTS
    });
    let mut bridge = Bridge::default();
    let bridges_vlans = ports.iter().any(|port| port.mode != PortMode::Plain);
    bridge.vlans = bridges_vlans;
    let running = open(&ours, ports, bridge);
    let arrivals = arrivals(500, tags);
    let out = through_ours(&running, &mut our_taps, &arrivals);
    let kernel = through_the_kernel(&mut their_taps, &arrivals, out.len());
    for (port, frame) in kernel.symmetric_difference(&out) {
        let side = if out.contains(&(*port, frame.clone())) { "only ours" } else { "only the kernel's" };
        println!("{side}: port {port}: {:02x?}", &frame[..24]);
    }
    assert_eq!(out.len(), kernel.len(), "{name}");
    assert!(out == kernel, "{name}");
    // With VLANs most frames have a tag that their port does not take.
    let least = arrivals.len() / if bridges_vlans { 10 } else { 2 };
    assert!(out.len() > least, "{} frames left", out.len());
    let summary = running.stop();
    assert_eq!(summary.failures(), []);
    assert!(summary.fdb.unwrap().moved > 0, "stations moved");
}

#[test]
fn what_leaves_by_which_port_is_what_leaves_the_bridge_of_the_kernel() {
    const NAME: &str = "what_leaves_by_which_port_is_what_leaves_the_bridge_of_the_kernel";
    if !needs(NAME, &[Need::Root, Need::Tun, Need::Program("ip")]) {
        return;
    }
    let make = |ns: &Namespace| {
        // Snooping would learn where groups are.
        ns.ip("link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0");
        (0..PORTS).for_each(|n| drop(ns.ip(&format!("link set t{n} master br0"))));
    };
    // A bridge that ignores VLANs passes tags as they are.
    for tags in [false, true] {
        compare(NAME, make, tags, Default::default());
    }
}

#[test]
fn with_vlans_too_what_leaves_by_which_port_is_what_leaves_the_bridge_of_the_kernel() {
    const NAME: &str = "with_vlans_too_what_leaves_by_which_port_is_what_leaves_the_bridge_of_the_kernel";
    if !needs(NAME, &[Need::Root, Need::Tun, Need::Program("ip"), Need::Program("bridge")]) {
        return;
    }
    let probe = Namespace::new("probe");
    let made = probe.command("ip", "link add br0 type bridge vlan_filtering 1").output().unwrap();
    if !made.status.success() {
        // Also with TOWPATH_REQUIRE=all: the kernel decides, and a plain model checks VLANs anyway.
        // The machine that `towpath-cli`'s tests boot has such a kernel, and runs this test.
        if !towpath_testing::all_required() {
            skip(NAME, "the kernel's bridge does not filter VLANs (CONFIG_BRIDGE_VLAN_FILTERING)");
        }
        return;
    }
    let make = |ns: &Namespace| {
        ns.ip("link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0 vlan_filtering 1 vlan_default_pvid 0");
        (0..PORTS).for_each(|n| drop(ns.ip(&format!("link set t{n} master br0"))));
        for vlan in [
            "dev t0 vid 10 pvid untagged",
            "dev t1 vid 20 pvid untagged",
            "dev t2 vid 10",
            "dev t2 vid 20",
            "dev t2 vid 30 pvid untagged",
            "dev t3 vid 10",
            "dev t3 vid 30",
        ] {
            ns.run("bridge", &format!("vlan add {vlan}"));
        }
    };
    let trunk = |vlans: &str, native| PortMode::Trunk { vlans: vlans.parse::<VlanSet>().unwrap(), native };
    let modes = [PortMode::Access(10), PortMode::Access(20), trunk("10+20", Some(30)), trunk("10+30", None)];
    let port = |mode| {
        let mut port = BridgePort::default();
        port.mode = mode;
        port
    };
    compare(NAME, make, true, modes.map(port));
}

/// A frame to an address from another one.
fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.resize(60, 0);
    frame
}

#[test]
fn ports_are_attached_and_detached_under_traffic_and_one_that_is_deleted_leaves_by_itself() {
    const NAME: &str = "ports_are_attached_and_detached_under_traffic_and_one_that_is_deleted_leaves_by_itself";
    if !needs(NAME, &[Need::Root, Need::Tun, Need::Program("ip")]) {
        return;
    }
    let ns = Namespace::new("bridge");
    let mut taps = taps(&ns);
    let running = open(&ns, Default::default(), Bridge::default());
    let bridge = running.bridge().unwrap().clone();
    let open_again = |n: usize| {
        let uri = format!("packet:t{n}?netns={}", ns.name());
        Opener::new().open(&uri.parse().unwrap(), Role::Both).unwrap()
    };
    taps[3].send(&frame(9, 3));
    taps[0].send(&frame(9, 1));
    until("both are known", || bridge.fdb().len() == 2);
    assert_eq!(bridge.fdb()[1].port, "packet:t3");
    assert_eq!(bridge.fdb()[1].mac, [2, 0, 0, 0, 0, 3]);
    // Frames between ports 0 and 1 while port 3 comes and goes.
    taps[1].send(&frame(1, 2));
    until("port 1 is known", || bridge.fdb().len() == 3);
    let mut sent = 0;
    taps.iter_mut().for_each(|tap| drop(tap.received()));
    for round in 0..5 {
        for _ in 0..50 {
            taps[0].send(&frame(2, 1));
            sent += 1;
        }
        bridge.detach("packet:t3").unwrap();
        assert_eq!(bridge.ports().len(), 3, "round {round}");
        assert!(bridge.fdb().iter().all(|entry| entry.port != "packet:t3"));
        bridge.attach(BridgePort::default(), open_again(3)).unwrap();
    }
    let mut received = 0;
    until("all frames arrive", || {
        received += ours(&mut taps[1]).len();
        received == sent
    });
    let twice = bridge.attach(BridgePort::named("packet:t3"), open_again(2)).unwrap_err().to_string();
    assert!(twice.contains("another port"), "{twice}");
    let unknown = bridge.detach("packet:t9").unwrap_err().to_string();
    assert!(unknown.contains("packet:t0, packet:t1, packet:t2, packet:t3"), "{unknown}");
    let mut access = BridgePort::named("t");
    access.mode = PortMode::Access(7);
    assert!(bridge.attach(access, open_again(2)).unwrap_err().to_string().contains("ignores VLANs"));

    taps[3].send(&frame(9, 3));
    until("it is known again", || bridge.fdb().iter().any(|entry| entry.port == "packet:t3"));
    assert_eq!(bridge.flush("packet:t3").unwrap(), 1);
    drop(taps.pop());
    until("it left", || bridge.ports()[3].lost.is_some());
    taps[0].send(&frame(2, 1));
    until("the others go on", || !ours(&mut taps[1]).is_empty());
    let summary = running.stop();
    let failures: Vec<_> = summary.failures().iter().map(ToString::to_string).collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].starts_with("packet:t3: "), "{failures:?}");
    assert_eq!(summary.reading.balance().in_flight(), 0);
    assert_eq!(summary.reading.ports.len(), 4, "a port that returns continues its line");
    let after = bridge.detach("packet:t0");
    assert!(after.is_ok(), "{after:?}");
}

#[test]
fn frames_that_would_be_flooded_are_bounded_by_the_limit_of_their_port() {
    // Nothing of the system is needed: generators and a sink.
    let mut opener = Opener::new();
    let mut port = |uri: &str| opener.open(&uri.parse().unwrap(), Role::Both).unwrap();
    let mut limited = BridgePort::named("limited");
    limited.storm = StormLimits::all(1);
    let ports = vec![(limited, port("gen:count=5000")), (BridgePort::named("sink"), port("null:"))];
    let running = Bridge::default().start(ports).unwrap();
    let summary = running.join();
    let balance = summary.reading.balance();
    assert_eq!((balance.received, balance.in_flight()), (5000, 0));
    let storm = balance.drops.iter().find(|drops| drops.reason == "storm").unwrap();
    assert!((4800..5000).contains(&storm.packets), "{}", storm.packets);
}
