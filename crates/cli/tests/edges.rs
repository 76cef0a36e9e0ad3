//! Packets that the kernel drops around a port are in the summary: as many as the kernel counts,
//! with the place and the remedy.

mod support;

use std::net::UdpSocket;
use support::datapath::{Flow, MissedAt, command, run};
use support::{Cable, Hosts, Namespace, Towpath, until};

/// Datagrams of one flood.
const FLOOD: u64 = 3000;

/// Two hosts that send nothing by themselves.
fn quiet_hosts() -> Hosts {
    let hosts = Hosts::new();
    for host in [&hosts.one, &hosts.two] {
        host.inside(|| {
            for of in ["all", "default"] {
                // Without IPv6 there is nothing to switch off.
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
            }
        });
    }
    hosts
}

/// The port of host 1, without IPv6, which would send packets by itself.
fn first_port(hosts: &Hosts, cable: Cable, options: &str) -> String {
    let scheme = match cable {
        Cable::Tap | Cable::Tun => {
            return format!("tap:e0?netns={},addr=10.0.0.1/24,{options}", hosts.one.name());
        }
        Cable::Packet => "packet",
        Cable::Xdp => "xdp",
    };
    hosts.cables.ip(&format!("link add p1 type veth peer e0 netns {}", hosts.one.name()));
    hosts.cables.ip("link set p1 up");
    hosts.one.ip("addr add 10.0.0.1/24 dev e0");
    hosts.one.ip("link set e0 up");
    format!("{scheme}:p1?netns={},{options}", hosts.cables.name())
}

/// The port of host 2.
fn second_port(hosts: &Hosts) -> String {
    format!("tap:e0?netns={},addr=10.0.0.2/24", hosts.two.name())
}

/// Sends [`FLOOD`] datagrams from host 1 to an address without ARP.
fn flood(hosts: &Hosts) {
    hosts.one.ip("neigh replace 10.0.0.9 dev e0 lladdr 02:00:00:00:00:09 nud permanent");
    let socket = hosts.one.inside(|| UdpSocket::bind("10.0.0.1:0").expect("a socket"));
    for _ in 0..FLOOD {
        // A full queue is no error of the call that fills it.
        let _ = socket.send_to(&[7; 100], "10.0.0.9:9");
    }
}

/// A flood while the datapath is stopped; then it runs until it has received or missed everything.
fn flood_while_stopped(hosts: &Hosts, towpath: &mut Towpath) {
    let before = seen(&towpath.look().ports[0].rx);
    towpath.signal(libc::SIGSTOP);
    until("the datapath stops", || state_of(towpath.pid()) == 'T');
    flood(hosts);
    towpath.signal(libc::SIGCONT);
    until("everything is received or missed", || seen(&towpath.look().ports[0].rx) >= before + FLOOD);
}

fn seen(rx: &Flow) -> u64 {
    rx.packets + rx.missed
}

/// The scheduler's state of a process.
fn state_of(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).expect("a state")
}

fn dropped_by_kernel(ns: &Namespace, interface: &str) -> u64 {
    let counter = ns.run("cat", &format!("/sys/class/net/{interface}/statistics/tx_dropped"));
    counter.trim().parse().expect("a number")
}

fn at(flow: &Flow) -> Vec<(&str, u64)> {
    flow.missed_at.iter().map(|MissedAt { place, packets, .. }| (place.as_str(), *packets)).collect()
}

#[test]
fn what_a_short_queue_of_a_tap_loses_is_missed_as_the_kernel_counts_it() {
    require!("what_a_short_queue_of_a_tap_loses_is_missed_as_the_kernel_counts_it",);
    let hosts = quiet_hosts();
    let (a, b) = (first_port(&hosts, Cable::Tap, "txqueuelen=50"), second_port(&hosts));
    let mut towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    flood_while_stopped(&hosts, &mut towpath);
    let lost = dropped_by_kernel(&hosts.one, "e0");
    assert!(lost >= FLOOD / 2, "the kernel lost {lost}");
    let summary = towpath.stop().code(0).summary();
    summary.is_clean();
    let tap = summary.port("tap:e0");
    assert_eq!((at(&tap.rx), tap.rx.missed, tap.rx.packets), (vec![("tun-queue", lost)], lost, FLOOD - lost));
    assert!(tap.rx.missed_at[0].remedy.contains("txqueuelen="), "{tap:#?}");
    assert_eq!(summary.ports[1].rx.missed, 0);
}

#[test]
fn by_default_a_tap_queues_a_flood_that_once_was_lost() {
    require!("by_default_a_tap_queues_a_flood_that_once_was_lost",);
    let hosts = quiet_hosts();
    let (a, b) = (first_port(&hosts, Cable::Tap, ""), second_port(&hosts));
    let mut towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
    let len: u64 = hosts.one.run("cat", "/sys/class/net/e0/tx_queue_len").trim().parse().expect("a number");
    flood_while_stopped(&hosts, &mut towpath);
    let lost = dropped_by_kernel(&hosts.one, "e0");
    let summary = towpath.stop().code(0).summary();
    assert_eq!((summary.ports[0].rx.missed, lost), (lost, FLOOD.saturating_sub(len)));
}

#[test]
fn what_the_sockets_of_packet_and_xdp_lose_is_missed_with_the_ring_as_the_remedy() {
    require!("what_the_sockets_of_packet_and_xdp_lose_is_missed_with_the_ring_as_the_remedy",);
    for (cable, places) in [(Cable::Packet, &["socket-ring"][..]), (Cable::Xdp, &["xsk-rx-ring", "xsk-fill-ring"])] {
        let hosts = quiet_hosts();
        let (a, b) = (first_port(&hosts, cable, "ring=64"), second_port(&hosts));
        let mut towpath = Towpath::start(&["fwd", &a, &b, "--gro", "off"]);
        flood_while_stopped(&hosts, &mut towpath);
        let summary = towpath.stop().code(0).summary();
        summary.is_clean();
        let rx = &summary.ports[0].rx;
        assert!(rx.missed > FLOOD / 2 && seen(rx) == FLOOD, "{cable:?}: {rx:#?}");
        for MissedAt { place, remedy, .. } in &rx.missed_at {
            assert!(places.contains(&place.as_str()) && remedy.contains("ring="), "{cable:?}: {place}: {remedy}");
        }
    }
}

#[test]
fn people_read_the_place_and_the_remedy_while_it_runs_and_at_the_end() {
    require!("people_read_the_place_and_the_remedy_while_it_runs_and_at_the_end",);
    let hosts = quiet_hosts();
    let a = first_port(&hosts, Cable::Tap, "txqueuelen=50");
    let mut child = command(&["sink", &a, "--interval", "50ms"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = child.id();
    until("the tap is up", || {
        hosts.one.ip("-br link").lines().any(|line| line.starts_with("e0") && line.contains(",UP"))
    });
    // SAFETY: kill takes no pointer, and the child is not waited for yet.
    let signal = |number| assert_eq!(unsafe { libc::kill(pid.cast_signed(), number) }, 0);
    signal(libc::SIGSTOP);
    until("it stops", || state_of(pid) == 'T');
    flood(&hosts);
    signal(libc::SIGCONT);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().expect("a pipe")));
    let live = lines.find_map(|line| line.ok().filter(|line| line.starts_with("missed:"))).expect("a line of the loss");
    assert!(live.starts_with("missed: tap:e0 rx: ") && live.contains("txqueuelen="), "{live}");
    signal(libc::SIGTERM);
    let output = child.wait_with_output().expect("it ends");
    let summary = String::from_utf8_lossy(&output.stdout);
    let line = summary.lines().find(|line| line.starts_with("missed ")).unwrap_or_else(|| panic!("{summary}"));
    assert!(line.contains("tap:e0 rx: ") && line.contains(" at tun-queue: ") && line.contains("txqueuelen="), "{line}");
}

#[test]
fn the_probe_tells_the_length_of_queues_and_what_it_costs() {
    require!("the_probe_tells_the_length_of_queues_and_what_it_costs",);
    let hosts = quiet_hosts();
    let tap = run(&["probe", &format!("tap:t0?netns={},txqueuelen=2000", hosts.one.name())]).code(0);
    assert!(tap.stdout.contains("txqueuelen") && tap.stdout.contains("2000 packets"), "{}", tap.stdout);
    let port = first_port(&hosts, Cable::Packet, "ring=1024,rcvbuf=8M");
    let packet = run(&["probe", &port]).code(0);
    for part in ["ring", "1024 packets", "rcvbuf", "8.0 MB"] {
        assert!(packet.stdout.contains(part), "{part}: {}", packet.stdout);
    }
}
