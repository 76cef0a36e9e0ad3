//! Verdicts, applied to pings.

use crate::support::datapath::run;
use crate::support::{Hosts, Namespace, Summary, Towpath, until};
use crate::{require, two_lanes};

/// Host 1 sends three pings, answered or not, and no other packet is let through. Waits until the
/// requests were received and `left` packets have left by each end; returns the summary.
fn pings(args: &[&str], answered: bool, left: [u64; 2]) -> Summary {
    let hosts = Hosts::new();
    // Packets behind the rules are counted, so there must be no others: no neighbour discovery, no
    // router solicitation.
    for ns in [&hosts.one, &hosts.two] {
        ns.set("ipv6/conf/default/disable_ipv6", "1");
        ns.set("ipv6/conf/all/disable_ipv6", "1");
    }
    let port = |host: u8, ns: &str| format!("tap:e0?netns={ns},addr=10.0.0.{host}/24,queues=2");
    let (a, b) = (port(1, hosts.one.name()), port(2, hosts.two.name()));
    let mut towpath = Towpath::start(&[&["fwd", &a, &b], args].concat());
    let mac = |ns: &Namespace| ns.run("cat", "/sys/class/net/e0/address").trim().to_owned();
    let (one, two) = (mac(&hosts.one), mac(&hosts.two));
    hosts.one.ip(&format!("neigh replace 10.0.0.2 lladdr {two} dev e0 nud permanent"));
    hosts.two.ip(&format!("neigh replace 10.0.0.1 lladdr {one} dev e0 nud permanent"));
    let wait = if answered { 5 } else { 1 };
    let mut ping = hosts.one.command("ping", &format!("-q -c 3 -i 0.02 -W {wait} 10.0.0.2"));
    let output = crate::support::run(&mut ping);
    assert_eq!(output.status.success(), answered, "{args:?}: {output:?}");
    // ping does not wait long for the last one, and what is in a tap when the command ends is not
    // received.
    until("all packets have passed", || {
        let ports = towpath.look().ports;
        ports[0].rx.packets >= 3 && [ports[0].tx.packets, ports[1].tx.packets] == left
    });
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert_eq!([summary.ports[0].tx.packets, summary.ports[1].tx.packets], left, "{args:?}: {summary:#?}");
    summary
}

/// With the rules at rx without lanes, at rx in front of lanes, and in the lanes.
fn everywhere(rules: &[&str], check: impl Fn(&[&str])) {
    let with = |option| -> Vec<&str> { rules.iter().flat_map(|rule| [option, *rule]).collect() };
    check(&with("--rule"));
    let lanes = ["--gro", "on", "--lanes", two_lanes()];
    check(&[&lanes[..], &with("--rule")].concat());
    check(&[&lanes[..], &with("--lane-rule")].concat());
}

#[test]
fn only_packets_that_a_rule_passes_get_through() {
    require!("only_packets_that_a_rule_passes_get_through", "ping");
    everywhere(&["pass icmp", "default drop"], |args| {
        pings(args, true, [3, 3]);
    });
}

#[test]
fn packets_that_a_rule_drops_are_dropped_and_counted() {
    require!("packets_that_a_rule_drops_are_dropped_and_counted", "ping");
    everywhere(&["drop icmp"], |args| {
        let summary = pings(args, false, [0, 0]);
        assert_eq!(summary.dropped("filtered"), 3, "{args:?}: {summary:#?}");
    });
}

#[test]
fn packets_that_a_rule_reflects_come_back() {
    require!("packets_that_a_rule_reflects_come_back", "ping");
    everywhere(&["tx icmp", "default drop"], |args| {
        pings(args, false, [3, 0]);
    });
}

#[test]
fn redirected_packets_leave_by_the_named_end_whatever_their_ingress() {
    require!("redirected_packets_leave_by_the_named_end_whatever_their_ingress", "ping");
    everywhere(&["redirect b icmp", "default drop"], |args| {
        // Three requests across, and three replies back to their sender.
        pings(args, false, [0, 6]);
    });
}

#[test]
fn packets_pinned_to_a_lane_still_arrive() {
    require!("packets_pinned_to_a_lane_still_arrive", "ping");
    for lane in ["lane 0 icmp", "lane 1 icmp"] {
        let args = ["--lanes", two_lanes(), "--rule", lane, "--rule", "default drop", "--lane-rule", "drop udp"];
        pings(&args, true, [3, 3]);
    }
}

#[test]
fn rules_that_cannot_be_applied_are_refused_with_the_reason() {
    let table: [(&[&str], &str); 4] = [
        (&["--rule", "lane 0 udp"], "no lanes"),
        (&["--lanes", two_lanes(), "--rule", "lane 2 udp"], "lanes are 0 to 1"),
        (&["--lanes", two_lanes(), "--lane-rule", "lane 1 udp"], "has its lane already"),
        (&["--lanes", two_lanes(), "--steer", "lane:2"], "2 lane(s)"),
    ];
    for (args, why) in table {
        let finished = run(&[&["fwd", "gen:count=1", "null:", "--oneway"], args].concat()).code(2);
        assert!(finished.stderr.contains(why), "{args:?}: {}", finished.stderr);
    }
}
