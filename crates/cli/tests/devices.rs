//! Models of network devices as ports of the command: real traffic, changes of settings under load,
//! addresses.

mod support;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use support::traffic::{ping, tcp};
use support::{Cable, Hosts, Towpath, datapath, until, until_some};

/// Ping and TCP, both ways.
fn traffic(hosts: &Hosts, bytes: &str) {
    ping(hosts, "", "10.0.0.2");
    ping(hosts, "-s 1472 -M do", "10.0.0.2");
    tcp(hosts, "10.0.0.2", bytes);
    tcp(hosts, "fd00::2", bytes);
}

#[test]
fn hosts_reach_each_other_through_the_model_of_a_nic_under_every_policy() {
    require!("hosts_reach_each_other_through_the_model_of_a_nic_under_every_policy", "ping", "iperf3");
    for device in [
        "e1000e:model?policy=persistent",
        "e1000e:model?policy=strict",
        "e1000e:model?policy=deferred,copybreak=0",
        "e1000e:model?iommu=off,interrupts=on",
        "virtio:model?policy=persistent",
        "virtio:model?policy=strict,packed=on,copybreak=256",
    ] {
        let hosts = Hosts::new();
        let (a, b) = (hosts.port(1, Cable::Tap, 1500, ""), hosts.port(2, Cable::Tap, 1500, ""));
        let towpath = Towpath::start(&["fwd", &format!("{device}@{a}"), &b]);
        traffic(&hosts, "8M");
        let summary = towpath.stop().code(0).summary();
        summary.is_balanced();
        assert!(summary.events.is_empty(), "{device}: {summary:#?}");
    }
}

#[test]
fn the_copybreak_threshold_is_changed_while_packets_move() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control");
    let control = format!("--control={}", socket.display());
    let towpath = Towpath::start(&["fwd", "gen:rate=10k,size=128", "e1000e:model?policy=strict,copybreak=0", &control]);
    let set = |args: &[&str]| datapath::run(&[&["set", &control], args].concat());
    assert!(set(&[]).code(0).stdout.contains("copybreak=0 "));
    assert!(set(&["e1000e:model", "copybreak=256"]).code(0).stdout.contains("copybreak=256 "));
    assert!(set(&["e1000e:model", "tx-copybreak=64"]).code(0).stdout.contains("tx-copybreak=64 "));
    assert!(set(&["e1000e:model", "batch=8"]).code(0).stdout.contains("batch=8 "));
    let refused = set(&["e1000e:model", "copybreak=99999"]).code(2);
    assert!(refused.stderr.contains("copybreak=99999: must be from 0 to 16384"), "{refused:#?}");
    let refused = set(&["tap:a", "copybreak=1"]).code(2);
    assert!(refused.stderr.contains("'tap:a'") && refused.stderr.contains("e1000e:model"), "{refused:#?}");
    let report = set(&["--json"]).code(0).stdout;
    assert!(report.contains(r#""name":"copybreak","value":256"#), "{report}");
    towpath.stop().code(0).summary().is_balanced();
    assert!(!socket.exists(), "the socket is gone with the command");
    assert!(set(&[]).code(2).stderr.contains("start towpath with --control"));
}

#[test]
fn address_filter_and_mtu_are_changed_while_packets_move() {
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control={}", dir.path().join("control").display());
    // Generated frames return by the model's loopback plug, and are received as far as the filter
    // lets them.
    let towpath = Towpath::start(&["fwd", "gen:rate=10k,size=128", "e1000e:model?mac=02:00:00:00:00:0a", &control]);
    let set = |args: &[&str]| datapath::run(&[&["set", &control, "e1000e:model"], args].concat());
    let shown = set(&[]).code(0).stdout;
    for setting in ["mtu=1500 ", "mac=02:00:00:00:00:0a ", "receive=all ", "groups=none ", "vlans=all "] {
        assert!(shown.contains(setting), "{setting}: {shown}");
    }
    let changes = [
        "receive=own",
        "vlans=10+100-199",
        "groups=01:00:5e:00:00:fb",
        "mac=02:00:00:00:00:0b",
        "mtu=1400",
        "mtu=9000",
    ];
    for change in changes {
        assert!(set(&[change]).code(0).stdout.contains(&format!("{change} ")), "{change}");
    }
    for (change, part) in [
        ("vlans=5000", "vlans=5000: must be all, none, or VLANs from 1 to 4094"),
        ("receive=all", "choose receive=own or receive=multicast first, or vlans=all"),
        ("mac=01:00:5e:00:00:fb", "must be unicast addresses of six bytes"),
        ("mtu=67", "mtu=67: must be from 68 to 9216"),
        ("mtu=long", "mtu=long: must be a whole number"),
        ("colour=red", "colour: no such setting; there are: copybreak, tx-copybreak, batch, mtu, mac"),
    ] {
        let refused = set(&[change]).code(2);
        assert!(refused.stderr.contains(part), "{refused:#?}");
    }
    let report = set(&["--json"]).code(0).stdout;
    assert!(report.contains(r#""name":"vlans","value":"10+100-199""#), "{report}");
    let ended = towpath.stop();
    ended.summary().is_balanced();
    // Another MTU takes a reset, and the link may still be away: a port that ends so fails.
    let no_link = r#""failures":["e1000e:model: no link"]"#;
    assert!(ended.status.success() || ended.stdout.contains(no_link), "{ended:#?}");
}

/// Sends a byte now and then, but no whole request, until the connection is closed.
fn trickle(socket: &Path) -> std::thread::JoinHandle<()> {
    let mut client = UnixStream::connect(socket).unwrap();
    std::thread::spawn(move || {
        while client.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    })
}

#[test]
fn a_client_that_trickles_delays_neither_another_one_nor_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control");
    let control = format!("--control={}", socket.display());
    let towpath = Towpath::start(&["fwd", "gen:rate=1k", "e1000e:model", &control]);
    until("the socket", || socket.exists());
    let clients: Vec<_> = (0..4).map(|_| trickle(&socket)).collect();
    let set = datapath::run(&["set", &control, "e1000e:model", "batch=8"]).code(0);
    assert!(set.stdout.contains("batch=8 "), "{set:#?}");
    towpath.stop().code(0).summary().is_balanced();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_socket_that_another_towpath_uses_is_left_alone_and_a_stale_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let control = format!("--control={}", dir.path().join("control").display());
    let first = Towpath::start(&["fwd", "gen:rate=1k", "null:", "--oneway", &control]);
    let second = datapath::run(&["fwd", "gen:rate=1k", "null:", "--oneway", "--duration=1s", &control]).code(2);
    assert!(second.stderr.contains("is another towpath, or a file, at this path?"), "{second:#?}");
    first.signal(libc::SIGKILL);
    drop(first);
    let third = Towpath::start(&["fwd", "gen:rate=1k", "null:", "--oneway", &control]);
    third.stop().code(0);
}

#[test]
fn the_table_of_copybreak_shows_the_work_for_each_buffer() {
    let report = datapath::run(&["bench", "copybreak", "--samples", "50", "--rounds", "2", "--json"]).code(0);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 14);
    let of = |rev: &str, copybreak: u64| {
        let found = |row: &&serde_json::Value| {
            row["rev"] == rev && row["protection"] == "on" && row["copybreak"].as_u64() == Some(copybreak)
        };
        &rows.iter().find(found).unwrap()["per_buffer"]
    };
    assert_eq!((of("before", 2048)["maps"].as_f64(), of("after", 2048)["maps"].as_f64()), (Some(1.0), Some(0.0)));
    assert_eq!(report["sizes"].as_array().map(Vec::len), Some(8));
    assert_eq!(report["waits"], serde_json::Value::Null, "an invalidation costs what the model takes");
    let ratios: Vec<_> = report["ratios"].as_array().unwrap().iter().collect();
    let control = ratios.iter().find(|ratio| ratio["protection"] == "off" && ratio["copybreak"] == 2048).unwrap();
    assert!(ratios.len() == 6 && control["before_after"].as_f64().unwrap() > 0.0, "{ratios:?}");
    assert!((control["authors"].as_f64().unwrap() - 1.03).abs() < 0.005, "{control}");
}

#[test]
fn the_table_of_transmission_shows_that_a_copied_frame_costs_no_mapping() {
    let bench = ["bench", "copybreak", "--tx", "--samples", "20", "--rounds", "2", "--json"];
    let report = datapath::run(&bench).code(0);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!((report["size"].as_u64(), report["sizes"].as_array().map(Vec::len)), (Some(64), Some(8)));
    for row in report["rows"].as_array().unwrap() {
        let count = |what: &str| row["per_buffer"][what].as_f64().unwrap();
        let (copied, alone) = (row["tx_copybreak"] == 2048, row["policy"] != "persistent");
        let mapped = if alone && !copied { 1.0 } else { 0.0 };
        assert_eq!((count("maps"), count("copies")), (mapped, if copied { 1.0 } else { 0.0 }), "{row}");
        assert!(row["to_persistent"].as_f64().unwrap() > 0.0, "{row}");
    }
    let refused = datapath::run(&["bench", "copybreak", "--tx", "--wait-ns", "500"]).code(2);
    assert!(refused.stderr.contains("--wait-ns"), "{refused:#?}");
}

/// The times are lower bounds, which hold on any machine.
#[test]
fn the_cost_of_an_invalidation_is_a_parameter_that_buffers_pay_once_each_or_once_a_burst() {
    let args = ["--wait-ns", "6400,0", "--samples", "8", "--rounds", "1", "--no-sizes", "--json"];
    let report = datapath::run(&[&["bench", "copybreak"], &args[..]].concat()).code(0);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    let rows = report["waits"]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["wait_ns"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 6400]);
    let ns = |variant: &str, copybreak: usize| rows[1][variant][copybreak].as_f64().unwrap();
    assert!(ns("before", 0) >= 6400.0 && ns("before", 1) >= 6400.0 && ns("after", 0) >= 6400.0, "{rows:?}");
    assert!(ns("ours", 0) >= 100.0, "{rows:?}");
    let swept = datapath::run(&["bench", "copybreak", "--samples", "1", "--rounds", "1", "--no-sizes", "--wait-ns"]);
    let table = swept.code(0).stdout;
    assert!(table.contains("a parameter of the model") && table.contains("break-even, one wait a burst"), "{table}");
    let device = ["bench", "copybreak", "--port", "e1000e:vfio=0000:03:00.0", "--wait-ns", "500"];
    let refused = datapath::run(&device).code(2);
    assert!(refused.stderr.contains("--wait-ns: a parameter of the model's IOMMU"), "{refused:#?}");
}

/// The value of an entry in a section of a report.
fn entry<'a>(report: &'a serde_json::Value, section: &str, name: &str) -> Option<&'a str> {
    let of = |list: &'a serde_json::Value, name: &str| {
        list.as_array().into_iter().flatten().find(|item| item["name"] == name)
    };
    of(&of(&report["sections"], section)?["entries"], name)?["value"].as_str()
}

#[test]
fn a_report_has_the_machine_the_registers_and_how_the_device_runs() {
    // The link comes in that time, unless the machine is held up for long.
    let report = until_some("the link comes while it runs", || {
        let report = datapath::run(&["report", "e1000e:model?receive=own", "--run", "5s", "--json"]).code(0).stdout;
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        (entry(&report, "running", "link up after") != Some("never")).then_some(report)
    });
    let of = |section: &str, name: &str| entry(&report, section, name).unwrap_or_else(|| panic!("{section}: {name}"));
    assert!(of("towpath", "machine").contains("Linux") && !of("towpath", "version").is_empty());
    assert!(of("board", "kernel").contains("Linux") && !of("iommu", "groups").is_empty());
    // A PHY without power, as Linux's driver leaves it; with power and a link, while the port runs.
    assert_eq!(of("registers as found", "PHY 0 control"), "0x00001940");
    assert_eq!(of("registers while running", "PHY 0 control"), "0x00001140");
    assert_eq!((of("port", "setting receive"), of("running", "queue 0")), ("own", "up"));
    assert!(of("running", "link up after").ends_with(" s") && of("running", "resets") == "0");
    assert!(of("running", "queue 0 received").starts_with("0 packets"));
    assert!(report["sections"].as_array().unwrap().iter().any(|section| section["name"] == "kernel log"));
}

#[test]
fn a_report_of_a_port_that_fails_says_why_and_has_the_rest() {
    for (port, why) in [
        ("e1000e:vfio=00ff:1f:1e.7", "there is no such device"),
        ("e1000e:qtest=/does/not/exist", "connecting"),
        ("e1000e:model?rx=81", "multiple of 8"),
        ("nothing:", "there is no port of kind 'nothing'"),
        ("tap", "tap"),
    ] {
        let text = datapath::run(&["report", port, "--run", "0s"]).code(0).stdout;
        assert!(text.contains(why) && text.contains("[board]") && text.contains("[kernel log]"), "{port}: {text}");
    }
    let text = datapath::run(&["report", "null:"]).code(0).stdout;
    assert!(text.contains("[port]") && !text.contains("[running]"), "{text}");
}

#[test]
fn the_error_for_an_address_without_a_device_shows_how_to_name_one() {
    let cases = [
        ("e1000e:eth0", "e1000e:vfio=0000:03:00.0"),
        ("e1000e:vfio=eth0", "vfio=eth0"),
        ("e1000e:vfio=0000:03:00.0@null:", "only a model's wire"),
        ("e1000e:qtest=/does/not/exist", "connecting"),
        ("e1000e:model?copybreak=99999", "from 0 to 16384"),
        ("e1000e:model?tx-copybreak=2049", "from 0 to 2048"),
        ("e1000e:model?rx=81", "multiple of 8"),
    ];
    for (port, part) in cases {
        refused(port, part);
    }
}

#[test]
fn a_wire_that_carries_ip_packets_is_refused() {
    require!("a_wire_that_carries_ip_packets_is_refused",);
    refused("e1000e:model@tun:x", "use a tap");
}

/// The command refuses a port, with an error that contains `part`.
fn refused(port: &str, part: &str) {
    let refused = datapath::run(&["fwd", port, "null:", "--duration", "1s"]).code(2);
    assert!(refused.stderr.contains(part), "{port}: {}", refused.stderr);
}
