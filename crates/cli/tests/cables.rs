//! Two hosts in namespaces, `towpath fwd` between them, and real traffic through it.

mod support;

use support::traffic::{Sample, copy, ping, tcp, udp};
use support::{Cable, Hosts, Summary};

/// Ping, TCP and UDP over both versions of IP.
fn everything(hosts: &Hosts, mtu: u32, bytes: &str) {
    ping(hosts, "", "10.0.0.2");
    ping(hosts, "", "fd00::2");
    // The longest packet that fits without fragmentation.
    ping(hosts, &format!("-M do -s {}", mtu - 28), "10.0.0.2");
    tcp(hosts, "10.0.0.2", bytes);
    tcp(hosts, "fd00::2", bytes);
    udp(hosts, "10.0.0.2");
    udp(hosts, "fd00::2");
}

/// All kinds of traffic through one pair of ports; the balance must be exact and nothing may be
/// dropped.
fn works(cables: (Cable, Cable), mtu: u32, options: &str, bytes: &str) -> Summary {
    let hosts = Hosts::new();
    let towpath = hosts.join(cables, mtu, options, &[]);
    println!("{cables:?}, MTU {mtu} {options}");
    everything(&hosts, mtu, bytes);
    let summary = towpath.stop().code(0).summary();
    summary.is_clean();
    summary
}

const OFF: &str = "csum=off,tso=off,uso=off";

#[test]
fn two_taps_are_a_cable() {
    require!("two_taps_are_a_cable", "ping", "iperf3");
    for mtu in [1500, 9000] {
        let summary = works((Cable::Tap, Cable::Tap), mtu, "", "64M");
        assert_eq!(summary.balance.split, 0, "super-packets pass whole where both ends take them");
        let mean = summary.balance.received.max(1);
        let bytes: u64 = summary.ports.iter().map(|p| p.rx.bytes).sum();
        assert!(bytes / mean > u64::from(mtu) / 2, "super-packets are used: {} bytes in the mean", bytes / mean);
    }
}

#[test]
fn interfaces_of_one_name_in_two_namespaces_have_rows_of_their_own() {
    require!("interfaces_of_one_name_in_two_namespaces_have_rows_of_their_own",);
    let hosts = Hosts::new();
    let ports = [&hosts.one, &hosts.two].map(|ns| format!("tap:same?netns={}", ns.name()));
    let summary =
        support::datapath::run(&["fwd", &ports[0], &ports[1], "--duration", "100ms", "--json"]).code(0).summary();
    assert_eq!(summary.ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>(), ports);
}

#[test]
fn two_taps_are_a_cable_without_any_offload() {
    require!("two_taps_are_a_cable_without_any_offload", "ping", "iperf3");
    for mtu in [1500, 9000] {
        works((Cable::Tap, Cable::Tap), mtu, OFF, "16M");
    }
}

#[test]
fn a_tap_without_offloads_gets_finished_packets_from_one_that_has_them() {
    require!("a_tap_without_offloads_gets_finished_packets_from_one_that_has_them", "ping", "iperf3");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Tap, 1500, ""), hosts.port(2, Cable::Tap, 1500, OFF));
    let towpath = support::Towpath::start(&["fwd", &a, &b]);
    everything(&hosts, 1500, "16M");
    towpath.stop().code(0).summary().is_clean();
}

#[test]
fn hosts_that_switch_their_own_offloads_off_get_through() {
    require!("hosts_that_switch_their_own_offloads_off_get_through", "ping", "iperf3", "ethtool");
    for cables in [(Cable::Tap, Cable::Tap), (Cable::Packet, Cable::Packet)] {
        let hosts = Hosts::new();
        let towpath = hosts.join(cables, 1500, "", &[]);
        for host in [&hosts.one, &hosts.two] {
            host.run("ethtool", "-K e0 tso off gso off gro off tx off");
        }
        everything(&hosts, 1500, "16M");
        towpath.stop().code(0).summary().is_clean();
    }
}

#[test]
fn the_far_ends_of_two_veth_pairs_are_a_cable() {
    require!("the_far_ends_of_two_veth_pairs_are_a_cable", "ping", "iperf3");
    for mtu in [1500, 9000] {
        works((Cable::Packet, Cable::Packet), mtu, "", "64M");
    }
    works((Cable::Packet, Cable::Packet), 1500, OFF, "16M");
}

#[test]
fn a_tap_and_the_far_end_of_a_veth_pair_are_a_cable() {
    require!("a_tap_and_the_far_end_of_a_veth_pair_are_a_cable", "ping", "iperf3");
    for mtu in [1500, 9000] {
        works((Cable::Tap, Cable::Packet), mtu, "", "32M");
        works((Cable::Packet, Cable::Tap), mtu, "", "32M");
    }
    works((Cable::Tap, Cable::Packet), 1500, OFF, "16M");
}

#[test]
fn two_tuns_are_a_cable() {
    require!("two_tuns_are_a_cable", "ping", "iperf3");
    for mtu in [1500, 9000] {
        works((Cable::Tun, Cable::Tun), mtu, "", "64M");
    }
    works((Cable::Tun, Cable::Tun), 1500, OFF, "16M");
}

#[test]
fn several_workers_give_the_same_guarantees() {
    require!("several_workers_give_the_same_guarantees", "ping", "iperf3");
    for cables in [(Cable::Tap, Cable::Tap), (Cable::Packet, Cable::Packet)] {
        let hosts = Hosts::new();
        let towpath = hosts.join(cables, 1500, "queues=2", &["--workers", "2"]);
        everything(&hosts, 1500, "32M -P 4");
        towpath.stop().code(0).summary().is_clean();
    }
}

fn copies(cables: (Cable, Cable), options: &str, address: &str) {
    let hosts = Hosts::new();
    let towpath = hosts.join(cables, 1500, options, &[]);
    copy(&hosts, address, Sample::big());
    let summary = towpath.stop().code(0).summary();
    summary.is_clean();
}

#[test]
fn a_big_file_is_the_same_after_two_taps() {
    require!("a_big_file_is_the_same_after_two_taps", "socat", "sha256sum");
    copies((Cable::Tap, Cable::Tap), "", "10.0.0.2");
}

#[test]
fn a_big_file_is_the_same_after_two_taps_without_offloads() {
    require!("a_big_file_is_the_same_after_two_taps_without_offloads", "socat", "sha256sum");
    copies((Cable::Tap, Cable::Tap), OFF, "fd00::2");
}

#[test]
fn a_big_file_is_the_same_after_two_veth_pairs() {
    require!("a_big_file_is_the_same_after_two_veth_pairs", "socat", "sha256sum");
    copies((Cable::Packet, Cable::Packet), "", "10.0.0.2");
}

#[test]
fn a_big_file_is_the_same_after_a_tap_and_a_veth_pair() {
    require!("a_big_file_is_the_same_after_a_tap_and_a_veth_pair", "socat", "sha256sum");
    copies((Cable::Tap, Cable::Packet), "", "fd00::2");
}

#[test]
fn a_big_file_is_the_same_after_two_tuns() {
    require!("a_big_file_is_the_same_after_two_tuns", "socat", "sha256sum");
    copies((Cable::Tun, Cable::Tun), "", "10.0.0.2");
}
