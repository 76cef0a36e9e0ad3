//! Order within flows, as taps at both hosts see it, and reordering that TCP reports, with lanes
//! and without.
//!
//! Segments are never reordered. TCP's own counters are unreliable while packets are lost (the
//! kernel's ring of a packet socket overflows): see [`witness`](crate::support::witness). Without
//! losses they must be 0 as well.

use crate::support::datapath::Towpath;
use crate::support::traffic::{Background, Sample, copy, iperf3, ping};
use crate::support::witness::{Comparison, Witness, compare};
use crate::support::{Cable, Hosts, Namespace, Summary, until};
use crate::{bytes, require, two_lanes};
use std::collections::HashMap;
use std::process::Command;

/// Host 1 emits whole segments of the MTU's size, so that there is something to merge.
const OFF: &str = "csum=off,tso=off,uso=off,queues=2";

/// The statistics of a namespace's TCP, by their names in `nstat`.
fn statistics(ns: &Namespace) -> HashMap<String, u64> {
    let text = ns.run("cat", "/proc/net/netstat /proc/net/snmp");
    let lines: Vec<&str> = text.lines().collect();
    let pair = |pair: &[&str]| -> Vec<(String, u64)> {
        let (names, values) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        names.zip(values).filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    };
    lines.chunks_exact(2).flat_map(pair).collect()
}

/// Observations of the witnesses, and TCP statistics of both ends together.
#[derive(Debug)]
struct Noticed {
    order: Comparison,
    /// Times that a sender inferred reordering.
    reordered: u64,
    /// Retransmitted segments.
    again: u64,
}

impl Noticed {
    #[track_caller]
    fn is_in_order(&self) -> &Noticed {
        assert!(self.order.arrived > 100 && self.order.overtaken == 0, "{self:?}");
        assert!(self.reordered == 0 || self.order.lost + self.again > 0, "{self:?}");
        self
    }
}

/// Two hosts, the datapath between them, and the witnesses.
struct Scene {
    hosts: Hosts,
    witnesses: [Witness; 2],
}

impl Scene {
    /// Runs `traffic` between the hosts.
    fn play(&mut self, traffic: impl FnOnce(&Hosts)) -> Noticed {
        traffic(&self.hosts);
        let (one, two) = (statistics(&self.hosts.one), statistics(&self.hosts.two));
        let sum = |names: &[&str]| names.iter().map(|name| one[*name] + two[*name]).sum();
        let [a, b] = self.witnesses.each_mut().map(Witness::stop);
        Noticed {
            order: compare(&a, &b),
            reordered: sum(&["TCPSACKReorder", "TCPTSReorder", "TCPRenoReorder", "TCPDSACKOfoRecv"]),
            again: sum(&["RetransSegs"]),
        }
    }
}

/// A veth receives through the backlog of the core on which the sender runs, and packets of
/// different cores overtake each other: steers all received packets of an interface to one core.
fn one_backlog(ns: &Namespace, interface: &str) {
    let script = format!("echo 1 > /sys/class/net/{interface}/queues/rx-0/rps_cpus");
    crate::support::succeed(Command::new("ip").args(["netns", "exec", ns.name(), "sh", "-c", &script]));
}

/// Ports for two hosts that send whole segments one by one; `start` gets the URIs.
pub(crate) fn between<R>(cables: (Cable, Cable), start: impl FnOnce(&str, &str) -> R) -> (Hosts, R) {
    let hosts = Hosts::new();
    let options = |cable| if cable == Cable::Tap { OFF } else { "queues=2" };
    let (a, b) = (hosts.port(1, cables.0, 1500, options(cables.0)), hosts.port(2, cables.1, 1500, "queues=2"));
    for (host, cable, far) in [(&hosts.one, cables.0, "p1"), (&hosts.two, cables.1, "p2")] {
        if cable == Cable::Packet {
            host.run("ethtool", "-K e0 tso off gso off tx off gro off");
            one_backlog(&hosts.cables, far);
        }
    }
    let running = start(&a, &b);
    // Socket buffers are large enough that a host never drops packets that the lanes hold back.
    for host in [&hosts.one, &hosts.two] {
        host.ip("link set e0 txqueuelen 20000");
    }
    (hosts, running)
}

fn join(cables: (Cable, Cable), args: &[&str]) -> (Scene, Towpath) {
    let (hosts, towpath) = between(cables, |a, b| Towpath::start(&[&["fwd", a, b], args].concat()));
    let witnesses = [&hosts.one, &hosts.two].map(|host| Witness::new(host, "e0"));
    (Scene { hosts, witnesses }, towpath)
}

/// iperf3 connections for a second: the observations and the summary.
fn flows(cables: (Cable, Cable), address: &str, connections: u32, args: &[&str]) -> (Noticed, Summary) {
    let (mut scene, towpath) = join(cables, args);
    let mut rate = None;
    let noticed = scene.play(|hosts| {
        ping(hosts, "", address);
        // A machine that is held up may lose the whole second.
        until("a megabyte passes", || {
            let report = iperf3(hosts, address, &format!("-t 1 -P {connections}"));
            let received = &report["end"]["sum_received"];
            rate = received["bits_per_second"].as_f64();
            received["bytes"].as_u64() > Some(1 << 20)
        });
    });
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    let gigabits = rate.unwrap_or(0.0) / 1e9;
    println!("{cables:?} {address} x{connections:<3} {args:?}: {gigabits:.2} Gb/s, {noticed:?}");
    (noticed, summary)
}

/// Segments between these hosts stay in order, without lanes and with them.
fn order_is_kept(cables: (Cable, Cable)) {
    flows(cables, "10.0.0.2", 16, &["--gro", "on"]).0.is_in_order();
    for (address, connections) in [("10.0.0.2", 1), ("10.0.0.2", 16), ("fd00::2", 128)] {
        let (noticed, summary) = flows(cables, address, connections, &["--gro", "on", "--lanes", two_lanes()]);
        noticed.is_in_order();
        assert!(summary.balance.merged > 0, "nothing merged: {summary:#?}");
    }
}

#[test]
fn two_lanes_between_two_taps_keep_the_order_of_every_connection() {
    require!("two_lanes_between_two_taps_keep_the_order_of_every_connection", "ping", "iperf3");
    order_is_kept((Cable::Tap, Cable::Tap));
}

#[test]
fn two_lanes_between_two_veth_pairs_keep_the_order_of_every_connection() {
    require!("two_lanes_between_two_veth_pairs_keep_the_order_of_every_connection", "ping", "iperf3", "ethtool");
    order_is_kept((Cable::Packet, Cable::Packet));
}

#[test]
fn two_lanes_between_a_tap_and_a_veth_pair_keep_the_order_of_every_connection() {
    require!("two_lanes_between_a_tap_and_a_veth_pair_keep_the_order_of_every_connection", "ping", "iperf3", "ethtool");
    order_is_kept((Cable::Tap, Cable::Packet));
}

#[test]
fn connections_keep_their_order_while_they_are_rebalanced() {
    require!("connections_keep_their_order_while_they_are_rebalanced", "ping", "iperf3", "ethtool");
    for cables in [(Cable::Tap, Cable::Tap), (Cable::Packet, Cable::Packet)] {
        for hold in ["0", "200"] {
            let args = ["--gro", "on", "--lanes", two_lanes(), "--rebalance", "--gro-flush-us", hold];
            let (noticed, summary) = flows(cables, "10.0.0.2", 16, &args);
            noticed.is_in_order();
            assert!(summary.balance.drops.is_empty() && summary.balance.merged > 0, "{summary:#?}");
        }
    }
}

#[test]
fn every_way_of_steering_that_keeps_flows_together_keeps_their_order() {
    require!("every_way_of_steering_that_keeps_flows_together_keeps_their_order", "ping", "iperf3");
    for how in ["rss", "lane:1"] {
        let args = ["--gro", "on", "--lanes", two_lanes(), "--steer", how];
        flows((Cable::Tap, Cable::Tap), "10.0.0.2", 16, &args).0.is_in_order();
    }
}

/// A self-test of the tests above: packets that alternate between lanes are reordered, and both TCP
/// and the witnesses notice it.
#[test]
fn round_robin_reports_that_it_breaks_the_order_and_does() {
    require!("round_robin_reports_that_it_breaks_the_order_and_does", "ping", "iperf3");
    let args = ["--gro", "on", "--lanes", two_lanes(), "--steer", "round-robin"];
    // On a busy machine both lanes may share one core for a while, and nothing is reordered.
    until("the order is broken", || {
        let (noticed, _) = flows((Cable::Tap, Cable::Tap), "10.0.0.2", 1, &args);
        noticed.order.overtaken > 0 && noticed.reordered > 0
    });
}

#[test]
fn connections_by_the_hundreds_get_their_bytes_in_order_through_small_rings() {
    require!("connections_by_the_hundreds_get_their_bytes_in_order_through_small_rings", "ping", "ethtool");
    for (cables, full) in [
        ((Cable::Tap, Cable::Tap), "hold"),
        ((Cable::Packet, Cable::Packet), "hold"),
        ((Cable::Tap, Cable::Tap), "drop"),
    ] {
        let args = ["--gro", "on", "--lanes", two_lanes(), "--lane-ring", "64", "--lane-full", full];
        let (mut scene, towpath) = join(cables, &args);
        let noticed = scene.play(|hosts| {
            ping(hosts, "", "10.0.0.2");
            bytes::streams(hosts, "10.0.0.2", 256, 200_000, None);
        });
        let summary = towpath.stop().code(0).summary();
        println!("{cables:?} {full}: {noticed:?} {:?}", summary.balance);
        summary.is_balanced();
        noticed.is_in_order();
    }
}

#[test]
fn a_big_file_is_the_same_after_lanes_and_gro_on_every_pair_of_ports() {
    require!("a_big_file_is_the_same_after_lanes_and_gro_on_every_pair_of_ports", "socat", "sha256sum", "ethtool");
    let sample = Sample::new("64M");
    let table = [
        ((Cable::Tap, Cable::Tap), "10.0.0.2", &["--rebalance"][..]),
        ((Cable::Packet, Cable::Packet), "fd00::2", &[]),
        ((Cable::Tap, Cable::Packet), "10.0.0.2", &[]),
        ((Cable::Packet, Cable::Tap), "fd00::2", &["--rebalance"]),
    ];
    for (cables, address, more) in table {
        let (mut scene, towpath) = join(cables, &[&["--gro", "on", "--lanes", two_lanes()], more].concat());
        let noticed = scene.play(|hosts| copy(hosts, address, &sample));
        let summary = towpath.stop().code(0).summary();
        println!("{cables:?} {address} {more:?}: {noticed:?}, {} merged", summary.balance.merged);
        assert!(summary.is_balanced().balance.merged > 0, "{summary:#?}");
        noticed.is_in_order();
    }
}

#[test]
fn sigterm_in_the_middle_of_everything_leaks_nothing() {
    require!("sigterm_in_the_middle_of_everything_leaks_nothing", "iperf3", "ss");
    for more in [&[][..], &["--rebalance", "--gro-flush-us", "500"], &["--steer", "rss", "--lane-full", "drop"]] {
        let args = [&["--gro", "on", "--lanes", two_lanes(), "--lane-ring", "64"], more].concat();
        let (Scene { hosts, .. }, mut towpath) = join((Cable::Tap, Cable::Tap), &args);
        let quiet = || std::process::Stdio::null();
        let _server = Background::start(hosts.two.command("iperf3", "-s -1").stdout(quiet()).stderr(quiet()));
        until("iperf3 listens", || hosts.two.run("ss", "-Hltn sport = 5201").contains("LISTEN"));
        let mut client = hosts.one.command("iperf3", "-c 10.0.0.2 -t 30 -P 8 --bidir");
        let _client = Background::start(client.stdout(quiet()).stderr(quiet()));
        until("some packets", || towpath.look().ports[1].tx.packets > 5_000);
        let summary = towpath.stop().code(0).summary();
        println!("{more:?}: {:?}", summary.balance);
        summary.is_balanced();
    }
}

#[test]
fn lanes_end_with_their_ports_also_while_rebalancing() {
    let args = ["fwd", "gen:flows=64,count=50k", "null:", "--oneway", "--lanes", two_lanes(), "--rebalance", "--json"];
    let summary = crate::support::datapath::run(&args).code(0).summary();
    assert_eq!(summary.is_clean().balance.received, 50_000);
}

#[test]
fn rebalancing_is_refused_where_the_kernel_would_break_the_order() {
    require!("rebalancing_is_refused_where_the_kernel_would_break_the_order",);
    let ns = Namespace::new("refused");
    let tap = format!("tap:e0?netns={},queues=2,steering=off", ns.name());
    let lanes = ["--lanes", two_lanes(), "--rebalance"];
    let refused = crate::support::datapath::run(&[&["fwd", &tap, "null:"][..], &lanes].concat()).code(2);
    for part in ["rebalance=on", "tap:e0: steering is off", "overtake", "steering=prefer"] {
        assert!(refused.stderr.contains(part), "'{part}' is missing: {}", refused.stderr);
    }
    // As an egress alone the port reorders nothing.
    let args = [&["fwd", "gen:flows=64,count=5k", &tap, "--oneway"][..], &lanes].concat();
    crate::support::datapath::run(&args).code(0);
}
