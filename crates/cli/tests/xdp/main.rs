//! `towpath` on AF_XDP ports: hosts in namespaces, each behind one end of a veth pair, and real
//! traffic between them.
//!
//! ```text
//!   others    other users of an interface: a socket on its queue, a program
//!   senders   ports that only send
//!   trouble   obstacles at the start, and faults while it runs
//! ```

mod others;
mod senders;
#[path = "../support/mod.rs"]
mod support;
mod trouble;

use support::traffic::{Sample, copy, ping, tcp, udp};
use support::{Cable, Hosts, Namespace, Summary, Towpath, until, until_some};

const CABLES: (Cable, Cable) = (Cable::Xdp, Cable::Xdp);

/// Ping, TCP both ways, UDP and a file; the balance must be exact, and only overruns of TCP's
/// bursts may be dropped.
fn works(mtu: u32, options: &str) -> Summary {
    let hosts = Hosts::new();
    println!("MTU {mtu} {options}");
    let towpath = hosts.join(CABLES, mtu, options, &[]);
    ping(&hosts, "", "10.0.0.2");
    ping(&hosts, "", "fd00::2");
    ping(&hosts, &format!("-M do -s {}", mtu - 28), "10.0.0.2");
    for address in ["10.0.0.2", "fd00::2"] {
        tcp(&hosts, address, "16M");
        tcp(&hosts, address, "16M -R");
        udp(&hosts, address);
    }
    copy(&hosts, "10.0.0.2", &Sample::new("32M"));
    let summary = towpath.stop().code(0).summary();
    summary.is_clean();
    summary
}

/// The programs that `ip` lists in a namespace.
fn programs(namespace: &Namespace) -> usize {
    namespace.ip("-d link show").matches("prog/xdp").count()
}

#[test]
fn two_hosts_reach_each_other_with_the_program_in_the_driver() {
    require!("two_hosts_reach_each_other_with_the_program_in_the_driver", "ping", "iperf3", "socat");
    for mtu in [1500, 3900] {
        works(mtu, "mode=native");
    }
}

#[test]
fn two_hosts_reach_each_other_with_the_program_in_the_stack() {
    require!("two_hosts_reach_each_other_with_the_program_in_the_stack", "ping", "iperf3", "socat");
    for mtu in [1500, 3900] {
        let summary = works(mtu, "mode=generic");
        assert!(summary.balance.split > 0, "the segments that a stack left to its device are cut");
    }
}

#[test]
fn checksums_are_right_without_the_help_of_the_kernel() {
    require!("checksums_are_right_without_the_help_of_the_kernel", "ping", "iperf3", "socat", "ethtool");
    works(1500, "csum=off,busypoll=20us");
}

#[test]
fn frames_of_a_program_carry_everything_that_a_socket_does() {
    require!("frames_of_a_program_carry_everything_that_a_socket_does", "ping", "iperf3", "ethtool");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Xdp, 1500, "tx=live"), hosts.port(2, Cable::Xdp, 1500, "tx=live"));
    for host in [&hosts.one, &hosts.two] {
        host.run("ethtool", "-K e0 gro on");
    }
    let towpath = Towpath::start(&["fwd", &a, &b]);
    ping(&hosts, "", "10.0.0.2");
    tcp(&hosts, "10.0.0.2", "16M");
    tcp(&hosts, "fd00::2", "16M -R");
    towpath.stop().code(0).summary().is_clean();
}

/// A namespace whose interfaces send nothing by themselves.
fn quiet(what: &str) -> Namespace {
    let ns = Namespace::new(what);
    ns.set("ipv6/conf/default/disable_ipv6", "1");
    ns
}

/// A pair of interfaces, `v0` and `v1`, in a namespace without other packets.
fn wire(what: &str) -> Namespace {
    let ns = quiet(what);
    ns.ip("link add v0 type veth peer name v1");
    ns.ip("link set v0 up");
    ns.ip("link set v1 up");
    ns
}

/// Frames that the kernel dropped on the way from `v0` to `v1`: its ring between them holds 256,
/// and what empties it may wait for a processor that is held up.
fn dropped_on_the_wire(ns: &Namespace) -> u64 {
    ns.run("cat", "/sys/class/net/v0/statistics/tx_dropped").trim().parse().expect("a number")
}

/// Sends 20 000 packets; returns the summaries of both ends, unless the kernel dropped some.
fn generated(options: &str) -> Option<(Summary, Summary)> {
    let ns = wire("gen");
    let to = format!("xdp:v1?netns={},match=udp dport 9,ring=32768", ns.name());
    let mut sink = Towpath::start(&["sink", &to, "--buffers", "131072"]);
    until("the other end has its program", || programs(&ns) == 1);
    let from = format!("xdp:v0?netns={}{options}", ns.name());
    let finished = support::datapath::run(&["gen", &from, "--count", "20000", "--json"]);
    let dropped = dropped_on_the_wire(&ns);
    until("all of it is received", || sink.look().ports[0].rx.packets + dropped >= 20_000);
    let (made, got) = (finished.code(0).summary(), sink.stop().code(0).summary());
    made.is_balanced();
    got.is_clean();
    (dropped == 0).then_some((made, got))
}

#[test]
fn generated_packets_arrive_and_are_counted_by_the_other_end() {
    require!("generated_packets_arrive_and_are_counted_by_the_other_end", "ethtool");
    for options in ["", ",timestamps=require,csum=off", ",tx=live", ",tx=template"] {
        let (made, got) = until_some("the kernel drops nothing", || generated(options));
        made.is_clean();
        assert_eq!((made.balance.sent, got.balance.received), (20_000, 20_000), "{options}");
        assert_eq!(made.happened("tx-timestamps") > 0, options.contains("timestamps"), "{made:#?}");
        assert!(made.happened("tx-delay-ns-p50") <= made.happened("tx-delay-ns-p99"), "{made:#?}");
    }
}

#[test]
fn the_program_has_a_function_that_others_can_name() {
    require!("the_program_has_a_function_that_others_can_name", "bpftool");
    let ns = quiet("btf");
    ns.ip("link add v0 type veth peer name v1");
    ns.ip("link set v0 up");
    ns.ip("link set v1 up");
    let sink = Towpath::start(&["sink", &format!("xdp:v1?netns={}", ns.name())]);
    until("it has its program", || programs(&ns) == 1);
    let shown = ns.ip("-d link show v1");
    let id = shown.split_once("prog/xdp id ").and_then(|(_, rest)| rest.split(' ').next()).expect("its number");
    let code = ns.run("bpftool", &format!("prog dump xlated id {id}"));
    assert!(code.starts_with("int towpath(struct xdp_md * ctx):"), "{code}");
    sink.stop().code(0).summary().is_clean();
}

/// The bytes of packets that arrive at `v1` from `v0`, opened with `options`; `None` if the kernel
/// dropped some of them.
fn recorded(options: &str, generate: &[&str]) -> Option<Vec<Vec<u8>>> {
    let ns = wire("eq");
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let file = dir.path().join("seen.pcap");
    let to = format!("xdp:v1?netns={}", ns.name());
    let mut record = Towpath::start(&["record", &to, file.to_str().expect("UTF-8")]);
    until("the other end has its program", || programs(&ns) == 1);
    let from = format!("xdp:v0?netns={}{options}", ns.name());
    let mut all = vec!["gen", &from, "--count", "700", "--json"];
    all.extend(generate);
    let finished = support::datapath::run(&all);
    let (made, dropped) = (finished.code(0).summary(), dropped_on_the_wire(&ns));
    made.is_balanced();
    until("all of it is received", || record.look().ports[0].rx.packets + dropped >= 700);
    record.stop().code(0).summary().is_clean();
    if dropped > 0 {
        return None;
    }
    made.is_clean();
    let bytes = std::fs::read(&file).expect("the capture");
    // A header of 24 bytes, then packets behind 16 bytes each, of which the third word is the
    // length.
    let (mut rest, mut seen) = (&bytes[24..], Vec::new());
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (data, next) = behind.split_at(len);
        rest = next;
        // Only generated packets, none of those that a new interface sends.
        if data.get(..12) == Some(&[0, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1]) {
            seen.push(data.to_vec());
        }
    }
    Some(seen)
}

fn frames(options: &str, generate: &[&str]) -> Vec<Vec<u8>> {
    until_some("the kernel drops nothing", || recorded(options, generate))
}

#[test]
fn frames_made_in_the_kernel_are_those_of_the_generator_byte_by_byte() {
    require!("frames_made_in_the_kernel_are_those_of_the_generator_byte_by_byte", "ip");
    let kinds: [&[&str]; 5] = [
        &["--size", "64", "--flows", "3"],
        &["--size", "1500"],
        &["--size", "90", "--proto", "tcp", "--flows", "5"],
        &["--size", "100", "--ip", "6"],
        &["--size", "46"],
    ];
    for kind in kinds {
        let (socket, live, template) = (frames("", kind), frames(",tx=live", kind), frames(",tx=template", kind));
        assert_eq!(socket.len(), 700);
        assert!(socket == live, "{kind:?}: tx=live");
        assert!(socket == template, "{kind:?}: tx=template");
    }
}
