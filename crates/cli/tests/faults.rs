//! Faults: signals, exhausted memory, link failures, deleted interfaces, missing rights. In each
//! case the datapath names the fault, accounts for every packet and buffer, and goes on with the
//! remaining ports.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use support::datapath::{Port, command, run};
use support::files::copy_program;
use support::process::is_quiet;
use support::traffic::{Background, Sample, copy, has_interface, ping, tcp, wait_until_gone};
use support::{Cable, Hosts, Namespace, Towpath, until};

/// A generator at full speed into a tap that is a host's interface.
fn flood(ns: &Namespace) -> Towpath {
    let tap = format!("tap:e0?netns={}", ns.name());
    Towpath::start(&["fwd", "gen:flows=16,size=64", &tap, "--gro", "off"])
}

/// The number of users that hold an interface in promiscuous mode.
fn promiscuity(ns: &Namespace, name: &str) -> u64 {
    let links: serde_json::Value = serde_json::from_str(&ns.ip(&format!("-d -j link show {name}"))).unwrap();
    links[0]["promiscuity"].as_u64().unwrap_or_else(|| panic!("{links:#}"))
}

#[test]
fn sigterm_in_the_middle_of_a_flood_into_a_tap_leaks_nothing_and_takes_the_tap_away() {
    require!("sigterm_in_the_middle_of_a_flood_into_a_tap_leaks_nothing_and_takes_the_tap_away",);
    let ns = Namespace::new("term");
    let mut towpath = flood(&ns);
    until("some packets", || towpath.look().ports[1].tx.packets > 20_000);
    let summary = towpath.stop().code(0).summary();
    println!("{:.2} Mpps", summary.port("tap").tx.packets as f64 / summary.seconds / 1e6);
    summary.is_clean();
    wait_until_gone(&ns, "e0");
}

#[test]
fn sigterm_in_the_middle_of_a_flood_into_a_veth_leaks_nothing_and_releases_it() {
    require!("sigterm_in_the_middle_of_a_flood_into_a_veth_leaks_nothing_and_releases_it",);
    let hosts = Hosts::new();
    let port = hosts.port(1, Cable::Packet, 1500, "");
    let mut towpath = Towpath::start(&["fwd", "gen:flows=16,size=64", &port, "--gro", "off"]);
    until("some packets", || towpath.look().ports[1].tx.packets > 20_000);
    assert_eq!(promiscuity(&hosts.cables, "p1"), 1);
    let summary = towpath.stop().code(0).summary();
    println!("{:.2} Mpps", summary.port("packet").tx.packets as f64 / summary.seconds / 1e6);
    summary.is_balanced();
    assert_eq!(promiscuity(&hosts.cables, "p1"), 0);
}

#[test]
fn sigkill_leaves_nothing_attached() {
    require!("sigkill_leaves_nothing_attached", "ping");
    let hosts = Hosts::new();
    let mut towpath = hosts.join((Cable::Tap, Cable::Packet), 1500, "", &[]);
    assert!(has_interface(&hosts.one, "e0") && promiscuity(&hosts.cables, "p2") == 1);
    ping(&hosts, "", "10.0.0.2");
    towpath.look();
    towpath.signal(libc::SIGKILL);
    assert_eq!(towpath.wait().status.code(), None);
    wait_until_gone(&hosts.one, "e0");
    assert_eq!(promiscuity(&hosts.cables, "p2"), 0);
    // The name is free again at once.
    let tap = hosts.port(1, Cable::Tap, 1500, "");
    let packet = format!("packet:p2?netns={}", hosts.cables.name());
    let again = Towpath::start(&["fwd", &tap, &packet]);
    ping(&hosts, "", "10.0.0.2");
    again.stop().code(0).summary().is_clean();
}

#[test]
fn a_pool_that_is_far_too_small_slows_the_datapath_but_loses_nothing() {
    require!("a_pool_that_is_far_too_small_slows_the_datapath_but_loses_nothing", "ping", "iperf3");
    for buffers in ["16", "64"] {
        let hosts = Hosts::new();
        let towpath = hosts.join((Cable::Tap, Cable::Tap), 1500, "", &["--buffers", buffers]);
        ping(&hosts, "", "10.0.0.2");
        tcp(&hosts, "10.0.0.2", "8M");
        towpath.stop().code(0).summary().is_balanced();
    }
}

#[test]
fn buffers_of_any_size_carry_every_byte() {
    require!("buffers_of_any_size_carry_every_byte", "ping", "iperf3");
    for size in ["4096", "9024", "65472"] {
        let hosts = Hosts::new();
        let towpath = hosts.join((Cable::Tap, Cable::Packet), 1500, "", &["--buffer-size", size]);
        ping(&hosts, "", "10.0.0.2");
        tcp(&hosts, "10.0.0.2", "8M");
        towpath.stop().code(0).summary().is_balanced();
    }
}

#[test]
fn an_exhausted_pool_is_counted_and_reported() {
    let args = ["fwd", "gen:flows=8,size=64", "null:", "--oneway", "--gro", "off", "--buffers", "8"];
    let args = [&args[..], &["--duration", "2s"]].concat();
    let summary = run(&[&args[..], &["--json"]].concat()).code(0).summary();
    assert!(summary.is_clean().balance.sent > 100 && summary.pool_shortages > 0, "{summary:#?}");
    assert!(run(&args).code(0).stdout.contains("the pool was dry"));
}

#[test]
fn a_link_that_goes_down_and_comes_back_drops_by_name_and_goes_on() {
    require!("a_link_that_goes_down_and_comes_back_drops_by_name_and_goes_on", "ping");
    for cables in [(Cable::Tap, Cable::Tap), (Cable::Tap, Cable::Packet), (Cable::Packet, Cable::Packet)] {
        let hosts = Hosts::new();
        let mut towpath = hosts.join(cables, 1500, "", &[]);
        ping(&hosts, "", "10.0.0.2");
        hosts.one.ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev e0 nud permanent");
        let mut flood = hosts.one.command("ping", "-q -f -i 0.002 10.0.0.2");
        let flood = Background::start(flood.stdout(std::process::Stdio::null()));
        hosts.two.ip("link set e0 down");
        // The kernel reports a lost carrier up to a second late, and the port checks ten times a
        // second.
        let dropped = |port: &Port| port.tx.drops.iter().any(|drops| drops.reason == "link-down");
        until("packets are dropped for it", || towpath.look().ports.iter().any(dropped));
        hosts.two.ip("link set e0 up");
        drop(flood);
        hosts.one.ip("neigh del 10.0.0.2 dev e0");
        let asks = || hosts.one.command("ping", "-q -c 1 -W 1 10.0.0.2").output();
        until("it works again", || asks().is_ok_and(|output| output.status.success()));
        ping(&hosts, "", "10.0.0.2");
        let summary = towpath.stop().code(0).summary();
        summary.is_balanced();
        assert!(summary.dropped("link-down") > 0 && summary.gone.is_empty(), "{cables:?}: {summary:#?}");
    }
}

/// A namespace with a pair of interfaces, e0 and e1, both down.
fn pair(name: &str) -> Namespace {
    let ns = Namespace::new(name);
    ns.ip("link add e0 type veth peer e1");
    ns
}

#[test]
fn an_interface_that_is_down_is_code_1_with_the_port_and_the_command_that_brings_it_up() {
    require!("an_interface_that_is_down_is_code_1_with_the_port_and_the_command_that_brings_it_up",);
    let (ns, dir) = (pair("down"), tempfile::tempdir().unwrap());
    let port = format!("packet:e0?netns={}", ns.name());
    let hint = format!("the interface is not up (ip -n {} link set dev e0 up)", ns.name());
    let file = dir.path().join("a.pcap");
    for args in [
        &["gen", &port, "--count", "1000"][..],
        &["sink", &port, "--duration", "300ms"],
        &["record", &port, file.to_str().unwrap(), "--duration", "300ms"],
        &["fwd", "tap:", &port, "--duration", "300ms"],
    ] {
        let tap = format!("tap:t0?netns={}", ns.name());
        let args: Vec<&str> = args.iter().map(|arg| if arg.starts_with("tap:") { &tap[..] } else { arg }).collect();
        let finished = run(&[&args[..], &["--json"]].concat()).code(1);
        let summary = finished.summary();
        summary.is_balanced();
        let line = summary.failures.iter().find(|line| line.contains(&hint));
        assert!(line.is_some_and(|line| line.starts_with("packet:e0")), "{args:?}: {summary:#?}");
        let sent_none = summary.failures.iter().any(|line| line.contains("sent none of 1000 packets: 1000 link-down"));
        assert_eq!(sent_none, args[0] == "gen", "{args:?}: {summary:#?}");
    }
    let shown = run(&["gen", &port, "--count", "1000"]).code(1);
    assert!(shown.stdout.contains("down     packet:e0") && shown.stdout.contains(&hint), "{shown:#?}");
    assert!(shown.stderr.contains("note: packet:e0") && shown.stderr.contains("link set dev e0 up"), "{shown:#?}");
    // The other end is down: there is no carrier, and the command would not help.
    ns.ip("link set e0 up");
    let summary = run(&["gen", &port, "--count", "1000", "--json"]).code(1).summary();
    assert!(summary.failures.iter().any(|line| line.ends_with(": no carrier")), "{summary:#?}");
    // Without traffic, a link that is up is no failure.
    ns.ip("link set e1 up");
    run(&["sink", &port, "--duration", "300ms", "--json"]).code(0).summary().is_clean();
}

#[test]
fn an_interface_that_goes_down_in_the_middle_is_code_1_and_one_that_comes_back_is_not() {
    require!("an_interface_that_goes_down_in_the_middle_is_code_1_and_one_that_comes_back_is_not",);
    for comes_back in [false, true] {
        let ns = pair("middle");
        ns.ip("link set e0 up");
        ns.ip("link set e1 up");
        let port = format!("packet:e0?netns={}", ns.name());
        let mut towpath = Towpath::start(&["fwd", "gen:rate=2k,size=64", &port, "--oneway"]);
        let dropped = |port: &Port| port.tx.drops.iter().any(|drops| drops.reason == "link-down");
        until("packets leave", || towpath.look().ports[1].tx.packets > 20);
        ns.ip("link set e0 down");
        until("packets are dropped", || dropped(&towpath.look().ports[1]));
        if comes_back {
            let sent = towpath.look().ports[1].tx.packets;
            ns.ip("link set e0 up");
            until("packets leave again", || towpath.look().ports[1].tx.packets > sent + 200);
        }
        let summary = towpath.stop().code(i32::from(!comes_back)).summary();
        summary.is_balanced();
        let lines = &summary.failures;
        let named = lines.len() == 1 && lines[0].starts_with("packet:e0") && lines[0].contains("link set dev e0 up");
        assert!(if comes_back { lines.is_empty() } else { named }, "{summary:#?}");
    }
}

#[test]
fn a_deleted_interface_ends_its_routes_with_code_1_and_is_named() {
    require!("a_deleted_interface_ends_its_routes_with_code_1_and_is_named", "ping");
    for cables in [(Cable::Tap, Cable::Tap), (Cable::Packet, Cable::Packet)] {
        let hosts = Hosts::new();
        let towpath = hosts.join(cables, 1500, "", &[]);
        ping(&hosts, "", "10.0.0.2");
        hosts.two.ip("link del e0");
        // Without traffic: the loss of the interface must be noticed without a send.
        let summary = towpath.wait().code(1).summary();
        summary.is_balanced();
        assert!(summary.gone.iter().any(|g| g.contains("deleted")), "{cables:?}: {summary:#?}");
    }
}

#[test]
fn an_interface_deleted_during_a_flood_loses_no_count() {
    require!("an_interface_deleted_during_a_flood_loses_no_count",);
    let ns = Namespace::new("gone");
    let mut towpath = flood(&ns);
    until("some packets", || towpath.look().ports[1].tx.packets > 10_000);
    ns.ip("link del e0");
    let summary = towpath.wait().code(1).summary();
    summary.is_balanced();
    assert_eq!(summary.gone.len(), 1, "{summary:#?}");
}

/// The faults of `fault:` between two taps, and the counters that must show them. TCP repairs all
/// of them.
#[test]
fn tcp_gets_its_bytes_through_storms_of_eagain_and_unruly_ports() {
    require!("tcp_gets_its_bytes_through_storms_of_eagain_and_unruly_ports", "socat", "sha256sum");
    let table = [
        ("stall=0.2,seed=1", "1M", None),
        ("drop=1%,seed=2", "1M", Some("fault")),
        ("drop=0.5%,duplicate=2%,reorder=2%,seed=3", "1M", Some("fault")),
        ("flap=10%,episode=200,seed=4", "1M", Some("link-down")),
    ];
    for (faults, size, named) in table {
        let (hosts, sample) = (Hosts::new(), Sample::new(size));
        // Without super-packets there are enough packets for faults.
        let (a, b) = (hosts.port(1, Cable::Tap, 1500, "tso=off"), hosts.port(2, Cable::Tap, 1500, "tso=off"));
        let towpath = Towpath::start(&["fwd", &format!("fault:{faults}@{a}"), &b, "--gro", "off"]);
        copy(&hosts, "10.0.0.2", &sample);
        let finished = towpath.stop();
        let summary = finished.summary();
        summary.is_balanced();
        assert!(summary.balance.received > 500, "{summary:#?}");
        assert!(
            finished.status.success() && named.is_none_or(|name| summary.dropped(name) > 0),
            "{faults}: {finished:#?}"
        );
    }
}

#[test]
fn a_port_that_vanishes_after_some_packets_is_named_and_counted() {
    let finished = run(&["fwd", "fault:vanish=1000@gen:", "null:", "--oneway", "--gro", "off", "--json"]).code(1);
    let summary = finished.summary();
    assert!(summary.is_balanced().balance.sent >= 1000 && summary.gone.len() == 1, "{summary:#?}");
}

/// Runs the command without any rights: `setpriv` of util-linux drops all of them.
fn nobody(args: &[&str]) -> Command {
    let towpath = command(args);
    let mut all = Command::new("setpriv");
    all.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]);
    all.arg(readable(towpath.get_program().into())).args(towpath.get_args());
    all
}

/// A copy of the binary that is readable without rights.
fn readable(program: PathBuf) -> PathBuf {
    static COPY: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let copy = COPY.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("towpath-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = dir.join("towpath");
        copy_program(program, &copy);
        copy
    });
    copy.clone()
}

#[test]
fn a_missing_right_is_reported_with_the_step_the_reason_and_a_remedy() {
    let name = "a_missing_right_is_reported_with_the_step_the_reason_and_a_remedy";
    require!("a_missing_right_is_reported_with_the_step_the_reason_and_a_remedy", "setpriv");
    // udev lets everyone open the device; where it does not, that is the step that fails.
    let mode = std::fs::metadata("/dev/net/tun").map_or(0, |m| m.permissions().mode());
    let step = if mode & 0o6 == 0o6 { "TUNSETIFF" } else { "open /dev/net/tun" };
    let table = [
        ("tap:tpnobody", &[step, "root"][..]),
        ("tun:tpnobody", &[step, "root"]),
        ("packet:lo", &["AF_PACKET", "root", "cap_net_raw"]),
    ];
    for (port, parts) in table {
        let output = support::run(&mut nobody(&["fwd", port, "null:"]));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        for part in parts.iter().chain(&[port]) {
            assert!(stderr.contains(part), "{port}: '{part}' is missing in: {stderr}");
        }
    }
    // Ports that need no rights work.
    let output = support::run(&mut nobody(&["fwd", "--duration", "100ms"]));
    assert!(output.status.success(), "{output:?}");
    let _ = std::fs::remove_dir_all(readable(PathBuf::new()).parent().unwrap());
}

/// A wake-up costs more on a loaded machine, but there are no more of them. A queue that is polled
/// while it is quiet sleeps a thousand times a second, or never.
#[test]
fn a_quiet_datapath_sleeps() {
    require!("a_quiet_datapath_sleeps",);
    for cables in [(Cable::Tap, Cable::Tap), (Cable::Packet, Cable::Packet)] {
        let hosts = Hosts::new();
        let (a, b) = (hosts.port(1, cables.0, 1500, ""), hosts.port(2, cables.1, 1500, ""));
        let mut quiet = Towpath::start(&["fwd", &a, &b]);
        // The hosts exchange some packets at first.
        until("it is quiet", || {
            let sleeps = is_quiet(quiet.pid());
            assert!(!quiet.has_ended(), "it ended");
            sleeps
        });
        quiet.stop().code(0).summary().is_balanced();
    }
}

/// The round trip of a ping has the delay of both directions, and never less.
#[test]
fn a_delay_is_seen_by_ping_and_a_rate_is_not_exceeded() {
    require!("a_delay_is_seen_by_ping_and_a_rate_is_not_exceeded", "ping");
    let hosts = Hosts::new();
    let (a, b) = (hosts.port(1, Cable::Tap, 1500, ""), hosts.port(2, Cable::Tap, 1500, ""));
    let towpath = Towpath::start(&["fwd", &a, &format!("fault:delay=50ms@{b}")]);
    // ping waits long only for the first reply: those of the last requests may come after its end.
    let heard = hosts.one.run("ping", "-c 6 -i 0.3 -W 60 10.0.0.2");
    let times: Vec<f64> =
        heard.split("time=").skip(1).filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).collect();
    assert!(times.len() >= 3 && times.iter().all(|ms| *ms >= 100.0), "{heard}");
    towpath.stop().code(0).summary().is_balanced();

    // 200 kB at 8 Mbit/s: a fifth of a second, without the burst.
    let begin = std::time::Instant::now();
    let shaped =
        ["fwd", "gen:count=200,size=1000", "fault:rate=8mbit,burst=2k@null:", "--oneway", "--gro", "off", "--json"];
    let summary = run(&shaped).code(0).summary();
    assert_eq!(summary.is_balanced().balance.sent, 200);
    assert!(begin.elapsed() >= std::time::Duration::from_millis(197), "{:?}", begin.elapsed());
}
