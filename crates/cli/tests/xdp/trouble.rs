//! Obstacles at the start and faults while it runs: reported clearly, survived if possible, with
//! nothing left behind.

use crate::others::{program_on, socket_on};
use crate::support::datapath::run;
use crate::support::traffic::{Background, ping};
use crate::support::{Cable, Hosts, Towpath, until};
use crate::{CABLES, programs, require};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Asserts that the interfaces have neither a program nor a socket.
#[track_caller]
fn nothing_is_left(hosts: &Hosts, interfaces: &[&str]) {
    until("no interface has a program", || programs(&hosts.cables) == 0);
    for interface in interfaces {
        until("no socket has the queue", || socket_on(&hosts.cables, interface).is_ok());
    }
}

/// Descriptors of a process by kind and number: from `/proc/PID/fd`, and for links from `fdinfo`.
fn descriptors(towpath: &Towpath) -> BTreeMap<String, usize> {
    let (mut kinds, pid) = (BTreeMap::new(), towpath.pid());
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let kind: String = target.to_string_lossy().chars().filter(|c| !c.is_ascii_digit()).collect();
        let info = std::fs::read_to_string(entry.path().to_string_lossy().replace("/fd/", "/fdinfo/"));
        let link = info.is_ok_and(|info| info.contains("link_type:\txdp"));
        *kinds.entry(format!("{kind}{}", if link { " xdp" } else { "" })).or_insert(0) += 1;
    }
    kinds
}

#[test]
fn a_queue_that_another_socket_uses_is_named() {
    require!("a_queue_that_another_socket_uses_is_named", "ping");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Xdp, 1500, ""), hosts.port(2, Cable::Xdp, 1500, ""));
    let other = socket_on(&hosts.cables, "p2").unwrap();
    let failed = run(&["fwd", &a, &b]).code(2);
    assert!(failed.stderr.contains("another AF_XDP socket has queue 0 of p2"), "{failed:#?}");
    assert_eq!(programs(&hosts.cables), 0);
    drop(other);
    nothing_is_left(&hosts, &["p1", "p2"]);
    let towpath = Towpath::start(&["fwd", &a, &b]);
    ping(&hosts, "", "10.0.0.2");
    assert!(socket_on(&hosts.cables, "p1").is_err(), "the queue is taken");
    towpath.stop().code(0).summary().is_clean();
    nothing_is_left(&hosts, &["p1", "p2"]);
}

#[test]
fn a_foreign_program_is_named_and_stays() {
    require!("a_foreign_program_is_named_and_stays", "ping");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Xdp, 1500, ""), hosts.port(2, Cable::Xdp, 1500, ""));
    let other = program_on(&hosts.cables, "p2");
    let failed = run(&["fwd", &a, &b]).code(2);
    let shows = format!("ip -n {} -d link show dev p2", hosts.cables.name());
    for part in ["another XDP program is attached", &shows] {
        assert!(failed.stderr.contains(part), "{failed:#?}");
    }
    assert_eq!(programs(&hosts.cables), 1, "the other's");
    drop(other);
    nothing_is_left(&hosts, &["p1", "p2"]);
    let towpath = Towpath::start(&["fwd", &a, &b]);
    ping(&hosts, "", "10.0.0.2");
    towpath.stop().code(0).summary().is_clean();
}

#[test]
fn a_process_that_is_killed_leaves_nothing_and_the_next_one_starts() {
    require!("a_process_that_is_killed_leaves_nothing_and_the_next_one_starts", "ping");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Xdp, 1500, ""), hosts.port(2, Cable::Xdp, 1500, ""));
    for _ in 0..3 {
        let mut killed = Command::new(env!("CARGO_BIN_EXE_towpath"));
        let mut killed = Background::start(killed.args(["fwd", &a, &b]).stdout(Stdio::null()).stderr(Stdio::null()));
        until("both interfaces have a program", || programs(&hosts.cables) == 2);
        killed.0.kill().unwrap();
        killed.0.wait().unwrap();
        nothing_is_left(&hosts, &["p1", "p2"]);
    }
    let towpath = Towpath::start(&["fwd", &a, &b]);
    ping(&hosts, "", "10.0.0.2");
    towpath.stop().code(0).summary().is_clean();
    assert_eq!(programs(&hosts.cables), 0);
}

/// Host 1 pings as fast as it can until the process is dropped.
fn flood(hosts: &Hosts) -> Background {
    Background::start(hosts.one.command("ping", "-q -f -s 1400 10.0.0.2").stdout(Stdio::null()).stderr(Stdio::null()))
}

#[test]
fn an_interface_that_is_deleted_under_load_ends_the_command_with_its_name() {
    require!("an_interface_that_is_deleted_under_load_ends_the_command_with_its_name", "ping");
    let hosts = Hosts::new();
    let mut towpath = hosts.join(CABLES, 1500, "", &[]);
    ping(&hosts, "", "10.0.0.2");
    let load = flood(&hosts);
    until("some packets", || towpath.look().ports[0].rx.packets > 1000);
    hosts.cables.ip("link del p2");
    let summary = towpath.wait().code(1).summary();
    drop(load);
    summary.is_balanced();
    assert!(
        summary.gone.len() == 1 && summary.gone[0].ends_with("xdp:p2: the interface p2 was deleted"),
        "{summary:#?}"
    );
    nothing_is_left(&hosts, &["p1"]);
}

#[test]
fn a_link_that_goes_down_under_load_and_comes_up_again_costs_packets_and_nothing_else() {
    require!("a_link_that_goes_down_under_load_and_comes_up_again_costs_packets_and_nothing_else", "ping");
    let hosts = Hosts::new();
    let mut towpath = hosts.join(CABLES, 1500, "", &[]);
    ping(&hosts, "", "10.0.0.2");
    let before = descriptors(&towpath);
    assert!(before.iter().any(|(kind, n)| kind.ends_with(" xdp") && *n == 2), "{before:?}");
    for _ in 0..2 {
        let load = flood(&hosts);
        let dropped = |towpath: &mut Towpath| -> u64 {
            towpath
                .look()
                .ports
                .iter()
                .flat_map(|p| &p.tx.drops)
                .filter(|d| d.reason == "link-down")
                .map(|d| d.packets)
                .sum()
        };
        let earlier = dropped(&mut towpath);
        hosts.cables.ip("link set p2 down");
        until("packets are dropped for it", || dropped(&mut towpath) > earlier);
        hosts.cables.ip("link set p2 up");
        drop(load);
        until("it works again", || {
            hosts.one.command("ping", "-q -c 1 -W 1 10.0.0.2").output().is_ok_and(|o| o.status.success())
        });
    }
    assert_eq!(descriptors(&towpath), before);
    assert_eq!(programs(&hosts.cables), 2);
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert_eq!((summary.gone.len(), summary.failed.len(), summary.happened("stalled")), (0, 0, 0));
    nothing_is_left(&hosts, &["p1", "p2"]);
}

#[test]
fn a_queue_that_stalls_is_reported_while_it_runs_and_recreated() {
    require!("a_queue_that_stalls_is_reported_while_it_runs_and_recreated", "ping", "tc");
    let hosts = Hosts::new();
    let (a, _) = (hosts.port(1, Cable::Xdp, 1500, ""), hosts.port(2, Cable::Xdp, 1500, ""));
    // Packets to host 2 wait below, once there is a rate, and stay uncompleted as long.
    hosts.cables.ip("link add m2 link p2 type macvlan mode passthru");
    hosts.cables.ip("link set m2 up");
    let b = format!("xdp:m2?netns={},stall=200ms", hosts.cables.name());
    let mut towpath = Towpath::start(&["fwd", &a, &b]);
    ping(&hosts, "", "10.0.0.2");
    let before = descriptors(&towpath);
    hosts.cables.run("tc", "qdisc add dev p2 root tbf rate 80bit burst 1540 limit 1000000");
    let load = flood(&hosts);
    until("the stall is reported", || towpath.look().happened("stalled") > 0);
    drop(load);
    hosts.cables.run("tc", "qdisc del dev p2 root");
    until("it is made anew", || {
        let now = towpath.look();
        now.happened("made-anew") == now.happened("stalled")
    });
    ping(&hosts, "", "10.0.0.2");
    assert_eq!(descriptors(&towpath), before);
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert!(summary.dropped("refused") > 0 && summary.gone.is_empty(), "{summary:#?}");
    assert_eq!(summary.happened("fell-back-to-generic"), 0, "it was there already");
    nothing_is_left(&hosts, &["p1", "m2"]);
}
