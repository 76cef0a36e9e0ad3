//! Three hosts on `towpath bridge`, and the addresses that it shows.

mod support;

use serde_json::Value;
use support::datapath::run;
use support::traffic::{iperf3, tcp};
use support::{Cable, Hosts, Namespace, Towpath, succeed, until};

/// The hosts, host 3 with the addresses 10.0.0.3 and fd00::3, and their ports.
struct Three {
    hosts: Hosts,
    three: Namespace,
    ports: Vec<String>,
}

impl Three {
    fn new(cable: Cable, options: &str) -> Three {
        let (hosts, three) = (Hosts::new(), Namespace::new("three"));
        let mut ports = vec![hosts.port(1, cable, 1500, options), hosts.port(2, cable, 1500, options)];
        let more = if options.is_empty() { String::new() } else { format!(",{options}") };
        ports.push(format!("tap:e0?netns={},addr=10.0.0.3/24+fd00::3/64{more}", three.name()));
        Three { hosts, three, ports }
    }

    fn start(&self, args: &[&str]) -> Towpath {
        let mut all = vec!["bridge"];
        all.extend(self.ports.iter().map(String::as_str).chain(args.iter().copied()));
        Towpath::start(&all)
    }

    fn all(&self) -> [&Namespace; 3] {
        [&self.hosts.one, &self.hosts.two, &self.three]
    }

    /// Every host pings every other one.
    fn ping(&self) {
        for (host, ns) in (1..).zip(self.all()) {
            for other in (1..=3).filter(|other| *other != host) {
                for address in [format!("10.0.0.{other}"), format!("fd00::{other}")] {
                    succeed(&mut ns.command("ping", &format!("-q -c 3 -i 0.02 -W 5 {address}")));
                }
            }
        }
    }
}

/// Whether a host answers another one within a second.
fn answers(from: &Namespace, address: &str) -> bool {
    support::run(&mut from.command("ping", &format!("-q -c 1 -W 1 {address}"))).status.success()
}

#[test]
fn three_hosts_on_a_bridge_reach_each_other_and_super_packets_pass_whole() {
    require!("three_hosts_on_a_bridge_reach_each_other_and_super_packets_pass_whole", "ping", "iperf3");
    let three = Three::new(Cable::Tap, "");
    let towpath = three.start(&[]);
    three.ping();
    tcp(&three.hosts, "10.0.0.2", "64M");
    tcp(&three.hosts, "fd00::2", "64M");
    let summary = towpath.stop().code(0).summary();
    summary.is_clean();
    assert_eq!(summary.balance.split, 0, "super-packets pass whole");
    assert!(summary.balance.flooded > 0, "who has 10.0.0.2?");
    // The third host gets what is flooded alone. iperf3 ends as soon as it has passed its bytes to
    // the kernel: some of them may not have left.
    let [one, _, third] = &summary.ports[..] else { panic!("{summary:#?}") };
    assert!(one.rx.bytes > 64 << 20 && third.tx.bytes < 1 << 20, "{summary:#?}");
    assert!(one.rx.bytes / one.rx.packets > 3000, "super-packets are used");
    let fdb = summary.fdb.unwrap();
    assert_eq!((&fdb["learned"], &fdb["moved"], &fdb["refused"]), (&3.into(), &0.into(), &0.into()));
}

#[test]
fn hosts_behind_ports_of_different_kinds_and_offloads_reach_each_other() {
    require!("hosts_behind_ports_of_different_kinds_and_offloads_reach_each_other", "ping", "iperf3");
    for (cable, options) in [(Cable::Packet, ""), (Cable::Tap, "csum=off,tso=off,uso=off")] {
        let mut three = Three::new(cable, options);
        three.ports[2] = format!("tap:e0?netns={},addr=10.0.0.3/24+fd00::3/64", three.three.name());
        let towpath = three.start(&[]);
        three.ping();
        tcp(&three.hosts, "10.0.0.2", "16M");
        let summary = towpath.stop().code(0).summary();
        summary.is_clean();
    }
}

#[test]
fn several_workers_share_the_addresses() {
    require!("several_workers_share_the_addresses", "ping", "iperf3");
    let three = Three::new(Cable::Tap, "queues=2");
    let towpath = three.start(&["--workers", "2"]);
    three.ping();
    let report = iperf3(&three.hosts, "10.0.0.2", "-n 32M -P 4");
    assert!(report["end"]["sum_received"]["bytes"].as_u64() > Some(0));
    let summary = towpath.stop().code(0).summary();
    summary.is_clean();
    assert_eq!(summary.fdb.unwrap()["entries"], 3);
}

#[test]
fn hosts_reach_those_of_their_vlan_alone() {
    require!("hosts_reach_those_of_their_vlan_alone", "ping");
    let three = Three::new(Cable::Tap, "");
    let [a, b, c] = [0, 1, 2].map(|n| three.ports[n].as_str());
    let vlans = [format!("{a}=10"), format!("{b}=20"), format!("{c}=10")];
    let towpath = three.start(&["--access", &vlans[0], "--access", &vlans[1], "--access", &vlans[2]]);
    until("host 3 answers host 1", || answers(&three.hosts.one, "10.0.0.3"));
    assert!(!answers(&three.hosts.one, "10.0.0.2") && !answers(&three.three, "10.0.0.2"));
    towpath.stop().code(0).summary().is_balanced();
}

/// `towpath fdb --json` of a socket.
fn fdb(socket: &str, args: &[&str]) -> Value {
    let mut all = vec!["fdb", "--control", socket, "--json"];
    all.extend(args);
    serde_json::from_str(&run(&all).code(0).stdout).unwrap()
}

#[test]
fn addresses_are_shown_flushed_and_aged_by_the_control_socket() {
    require!("addresses_are_shown_flushed_and_aged_by_the_control_socket", "ping");
    let three = Three::new(Cable::Tap, "");
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control");
    let socket = socket.to_str().unwrap();
    let towpath = three.start(&["--control", socket]);
    three.ping();
    let mac = three.three.run("cat", "/sys/class/net/e0/address");
    // Hosts say something by themselves now and then.
    let known = |addresses: &Value| {
        let all = addresses["addresses"].as_array().unwrap();
        all.iter().find(|line| line["mac"] == mac.trim()).cloned()
    };
    let all = fdb(socket, &[]);
    assert_eq!(all["addresses"].as_array().unwrap().len(), 3, "{all}");
    let line = known(&all).unwrap();
    assert_eq!((&line["vlan"], &line["static"]), (&0.into(), &false.into()));
    let port = line["port"].as_str().unwrap();
    assert!(port.contains(three.three.name()), "{line}");
    until("it is forgotten", || known(&fdb(socket, &["--flush", port])).is_none());
    until("it answers again", || answers(&three.hosts.one, "10.0.0.3"));
    until("it ages", || known(&fdb(socket, &["--ageing", "1s"])).is_none());
    let text = run(&["fdb", "--control", socket]).code(0).stdout;
    assert!(text.contains("ageing 1 s"), "{text}");
    let wrong = run(&["fdb", "--control", socket, "--flush", "tap:none"]).code(2);
    assert!(wrong.stderr.contains("must be a port of the bridge"), "{}", wrong.stderr);
    towpath.stop().code(0).summary().is_clean();
}

#[test]
fn what_is_wrong_is_named_before_anything_moves() {
    let wrong = |args: &[&str], part: &str| {
        let mut all = vec!["bridge", "gen:count=1", "null:"];
        all.extend(args);
        let stderr = run(&all).code(2).stderr;
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    };
    wrong(&["--access", "tap:x=1"], "must name a port: gen:, null:");
    wrong(&["--access", "null:=0"], "1 to 4094");
    wrong(&["--trunk", "null:=10-5"], "10+100-199");
    wrong(&["--lanes", "0"], "a bridge has no lanes");
    wrong(&["--rule", "tx icmp"], "its rules pass or drop");
    wrong(&["--workers", "9999"], "queue");
    wrong(&["tun:x"], "tun:x");
    let one = run(&["bridge", "null:"]).code(2).stderr;
    assert!(one.contains("PORT"), "{one}");
    assert!(run(&["bridge", "gen:count=10", "null:"]).code(0).stdout.contains("fdb "));
}
