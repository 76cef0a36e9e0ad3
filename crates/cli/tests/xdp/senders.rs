//! Commands that only send on an interface: the host goes on to use it.

use crate::support::{Hosts, Namespace, Towpath, datapath, until};
use crate::{programs, require};
use std::process::Stdio;

/// Two hosts at both ends of a veth pair, without towpath.
fn neighbours() -> (Namespace, Namespace) {
    let hosts = Hosts::new();
    let (one, two) = (hosts.one, hosts.two);
    one.ip(&format!("link add e0 type veth peer name e0 netns {}", two.name()));
    for (host, address) in [(&one, "10.0.0.1/24"), (&two, "10.0.0.2/24")] {
        host.ip(&format!("addr add {address} dev e0"));
        host.ip("link set e0 up");
    }
    (one, two)
}

#[test]
fn a_sender_leaves_the_host_its_traffic_and_loses_no_ping() {
    require!("a_sender_leaves_the_host_its_traffic_and_loses_no_ping", "ping");
    for options in ["", ",rx=off", ",rx=off,csum=off,frags=off"] {
        let (one, two) = neighbours();
        let port = format!("xdp:e0?netns={}{options}", one.name());
        let mut sender = Towpath::start(&["gen", &port, "--rate", "10k"]);
        until("it sends", || sender.look().ports[1].tx.packets > 0);
        assert_eq!(programs(&one), 0, "{options}");
        for (from, to) in [(&one, "10.0.0.2"), (&two, "10.0.0.1")] {
            let ping = from.command("ping", &format!("-q -i 0.01 -c 40 {to}")).stdout(Stdio::piped()).output();
            let report = String::from_utf8_lossy(&ping.expect("ping runs").stdout).into_owned();
            assert!(report.contains(" 0% packet loss"), "{options}: {report}");
        }
        let summary = sender.stop().code(0).summary();
        summary.is_clean();
        assert!(summary.balance.sent > 0 && summary.ports[1].rx.packets == 0, "{summary:#?}");
    }
}

#[test]
fn a_sender_needs_one_capability() {
    require!("a_sender_needs_one_capability", "setpriv");
    let (one, _two) = neighbours();
    // Root that has lost the other capabilities; the memory that is pinned is within its limit.
    let command = "--bounding-set=-all,+net_raw --inh-caps=-all sh -c";
    let towpath = env!("CARGO_BIN_EXE_towpath");
    let script = format!("{towpath} gen xdp:e0?ring=256 --count 1000 --buffers 1024 --json");
    let output = one.command("setpriv", command).arg(&script).output().expect("setpriv runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("\"sent\":1000"), "{text}{errors}");
}

#[test]
fn rx_off_where_packets_are_received_is_refused() {
    require!("rx_off_where_packets_are_received_is_refused", "ip");
    let (one, _two) = neighbours();
    let port = format!("xdp:e0?netns={},rx=off", one.name());
    for (arguments, rule) in [
        (vec!["sink", port.as_str()], "rx=off: can't be given where packets are received"),
        (vec!["gen", &format!("{port},match=udp")], "match= has no meaning"),
        (vec!["gen", &format!("{port},tx=live")], "tx= has no meaning"),
    ] {
        let failed = datapath::run(&arguments).code(2);
        assert!(failed.stderr.contains(rule), "{failed:#?}");
    }
    let shown = datapath::run(&["probe", &port]).code(0);
    assert!(shown.stdout.contains("the port only sends") && shown.stdout.contains("driver veth"), "{shown:#?}");
    let json = datapath::run(&["probe", &port, "--json"]).code(0).stdout;
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let mac = one.run("cat", "/sys/class/net/e0/address");
    assert_eq!((&report["interface"]["name"], &report["interface"]["mac"]), (&"e0".into(), &mac.trim().into()));
}
