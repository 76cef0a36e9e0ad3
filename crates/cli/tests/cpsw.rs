//! MAC ports of the CPSW model as ports of the command: real traffic, and changes of the batch size
//! under load.

mod support;

use support::traffic::{ping, tcp, udp};
use support::{Cable, Hosts, Towpath, datapath};

#[test]
fn hosts_reach_each_other_through_a_mac_port_of_every_system() {
    require!("hosts_reach_each_other_through_a_mac_port_of_every_system", "ping", "iperf3");
    for options in
        ["ports=2", "ports=2,soc=j784s4,batch=127", "ports=1,soc=j7200,batch=1", "ports=8,channels=1,flows=4"]
    {
        let hosts = Hosts::new();
        let (a, b) = (hosts.port(1, Cable::Tap, 1500, ""), hosts.port(2, Cable::Tap, 1500, ""));
        let towpath = Towpath::start(&["fwd", &format!("cpsw:model?{options}@{a}"), &b]);
        ping(&hosts, "", "10.0.0.2");
        ping(&hosts, "-s 1472 -M do", "10.0.0.2");
        tcp(&hosts, "10.0.0.2", "8M");
        tcp(&hosts, "fd00::2", "8M");
        udp(&hosts, "10.0.0.2");
        let summary = towpath.stop().code(0).summary();
        summary.is_balanced();
    }
}

#[test]
fn both_mac_ports_of_one_device_carry_traffic_between_their_wires() {
    require!("both_mac_ports_of_one_device_carry_traffic_between_their_wires", "ping", "iperf3");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Tap, 1500, ""), hosts.port(2, Cable::Tap, 1500, ""));
    let towpath = Towpath::start(&["fwd", &format!("cpsw:model?ports=2@{a}"), &format!("cpsw:model?ports=2@{b}")]);
    ping(&hosts, "", "10.0.0.2");
    tcp(&hosts, "10.0.0.2", "8M");
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
}

#[test]
fn the_batch_size_is_changed_while_packets_move() {
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control={}", dir.path().join("control").display());
    let towpath = Towpath::start(&["fwd", "gen:rate=10k,size=128", "cpsw:model?ports=2,batch=8", &control]);
    let set = |args: &[&str]| datapath::run(&[&["set", &control], args].concat());
    assert!(set(&[]).code(0).stdout.contains("batch=8 "));
    assert!(set(&["cpsw:model.1", "batch=64"]).code(0).stdout.contains("batch=64 "));
    let refused = set(&["cpsw:model.1", "batch=128"]).code(2);
    assert!(refused.stderr.contains("batch=128: must be from 1 to 127"), "{refused:#?}");
    towpath.stop().code(0).summary().is_balanced();
}
