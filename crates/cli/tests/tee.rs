//! Tees: files, ports and connections that watch packets; what is dropped, with its reason;
//! Wireshark's interfaces.

mod support;

use serde::Deserialize;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::datapath::{Finished, command, run};
use support::files::Files;
use support::process::files;
use support::{Namespace, Need, Towpath, needs, succeed, until};

/// A tee in the summary.
#[derive(Debug, Deserialize)]
struct TeeTotals {
    sink: String,
    matched: u64,
    written: u64,
    missed: u64,
    failure: Option<String>,
}

fn tees(finished: &Finished) -> Vec<TeeTotals> {
    #[derive(Deserialize)]
    struct Last {
        tees: Vec<TeeTotals>,
    }
    finished.summary().is_balanced();
    let last = finished.stdout.lines().next_back().unwrap();
    serde_json::from_str::<Last>(last).unwrap().tees
}

/// An instance that moves packets until it is stopped, with a control socket, under all of the
/// sandbox.
fn instance(files: &Files, rate: &str) -> (Towpath, String) {
    let control = format!("--control={}", files.text("control"));
    let from = format!("gen:flows=8,{rate}");
    (Towpath::start(&["fwd", &from, "null:", "--oneway", "--rule=drop udp src port 49153", &control]), control)
}

/// `towpath tee` with these arguments, and its output in a pipe.
fn tee(control: &str, args: &[&str]) -> Child {
    let mut command = command(&[&["tee", control], args].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// matched, written, missed, as `towpath tee` prints them.
fn printed(stderr: &str) -> [u64; 3] {
    let line = stderr.lines().next_back().unwrap_or_default();
    let number = |part: &str| part.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok();
    let numbers: Vec<u64> = line.split(',').filter_map(number).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("no counts: {stderr}"))
}

/// The fields of the packets in a capture, a line each.
fn fields(file: &Path, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args(["-r", file.to_str().unwrap(), "-T", "fields"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    succeed(&mut command).lines().map(str::to_owned).collect()
}

#[test]
fn a_file_has_every_packet_that_was_received_and_sent_with_its_port_and_direction() {
    let name = "a_file_has_every_packet_that_was_received_and_sent_with_its_port_and_direction";
    if !needs(name, &[Need::Program("tshark")]) {
        return;
    }
    let files = Files::new();
    let [all, some, old] = ["all.pcapng", "some.pcapng", "old.pcap"].map(|name| files.text(name));
    let (some_spec, old_spec) = (format!("{some};at=tx;snaplen=40;filter=udp src port 49152"), format!("{old};at=rx"));
    let finished = run(&[
        "gen",
        "null:",
        "--count=4000",
        "--flows=4",
        "--json",
        "--tee",
        &all,
        "--tee",
        &some_spec,
        "--tee",
        &old_spec,
        "--tee",
        "null:;at=tx",
    ])
    .code(0);
    let tees = tees(&finished);
    let counted: Vec<_> = tees.iter().map(|tee| (tee.matched, tee.written, tee.missed)).collect();
    let whole = |n| (n, n, 0);
    assert!(tees.iter().all(|tee| tee.failure.is_none() && tee.matched == tee.written + tee.missed), "{tees:?}");
    assert_eq!(counted.iter().map(|count| count.0).collect::<Vec<_>>(), [8000, 1000, 4000, 4000], "{tees:?}");
    assert_eq!(tees[3].sink, "null:");
    let shown = fields(files.path("all.pcapng").as_path(), &["frame.interface_name", "frame.packet_flags_direction"]);
    assert_eq!(shown.len() as u64, counted[0].1);
    if counted[0] == whole(8000) {
        let of = |line: &str| shown.iter().filter(|shown| shown.as_str() == line).count();
        let received = shown.iter().filter(|line| line.starts_with("gen:")).count();
        assert_eq!((received, of(&shown[0])), (4000, 4000), "{:?}", &shown[..4]);
    }
    let some = fields(Path::new(&some), &["frame.len", "frame.cap_len", "udp.srcport"]);
    assert_eq!(some.len() as u64, counted[1].1);
    assert!(some.iter().all(|line| line == "60\t40\t49152" || line == "64\t40\t49152"), "{:?}", some.first());
    assert_eq!(fields(Path::new(&old), &["frame.number"]).len() as u64, counted[2].1);
}

#[test]
fn tshark_reads_a_live_pipe_of_a_running_instance_and_the_counts_are_equal() {
    let name = "tshark_reads_a_live_pipe_of_a_running_instance_and_the_counts_are_equal";
    if !needs(name, &[Need::Program("tshark")]) {
        return;
    }
    let files = Files::new();
    let (towpath, control) = instance(&files, "rate=5k");
    let mut tee = tee(&control, &["--count=3000", "--at=rx", "gen:"]);
    let pipe = tee.stdout.take().unwrap();
    let mut tshark = Command::new("tshark");
    let shown = tshark.args(["-r", "-", "-T", "fields", "-e", "udp.srcport"]).stdin(pipe).output().unwrap();
    let stderr = tee.wait_with_output().unwrap().stderr;
    let [matched, written, missed] = printed(&String::from_utf8_lossy(&stderr));
    let lines = String::from_utf8_lossy(&shown.stdout).lines().filter(|line| line.starts_with("491")).count();
    assert_eq!((lines as u64, written), (3000, 3000));
    assert!(matched >= written + missed.min(1), "{matched} {missed}");
    tees(&towpath.stop().code(0));
}

#[test]
fn a_watch_ends_with_the_instance_and_has_all_that_matched() {
    let files = Files::new();
    let control = format!("--control={}", files.text("control"));
    let towpath = Towpath::start(&["fwd", "gen:rate=2k,flows=8", "null:", "--oneway", &control]);
    let out = files.text("out.pcap");
    let filter = "udp src port 49152";
    let tee = tee(&control, &["-w", &out, "--filter", filter, "--snaplen=42"]);
    until("packets are written", || std::fs::metadata(&out).is_ok_and(|file| file.len() > 24 + 20 * 58));
    tees(&towpath.stop().code(0));
    let output = tee.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let [matched, written, missed] = printed(&String::from_utf8_lossy(&output.stderr));
    assert_eq!(matched, written + missed);
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 24 + written * 58);
}

#[test]
fn what_is_dropped_is_shown_with_its_reason_and_its_port() {
    let name = "what_is_dropped_is_shown_with_its_reason_and_its_port";
    if !needs(name, &[Need::Program("tshark")]) {
        return;
    }
    let files = Files::new();
    let drops = files.text("drops.pcapng");
    let rule = "--rule=drop udp src port 49153";
    let run =
        run(&["fwd", "gen:flows=4,count=1000", "fault:drop=10%@null:", "--oneway", "--json", rule, "--drops", &drops]);
    let finished = run.code(0);
    let (summary, tees) = (finished.summary(), tees(&finished));
    let dropped = summary.dropped("filtered") + summary.dropped("fault");
    assert_eq!((tees[0].matched, tees[0].written), (dropped, dropped - tees[0].missed));
    let shown = fields(Path::new(&drops), &["frame.comment"]);
    let of =
        |reason: &str| shown.iter().filter(|line| line.starts_with(&format!("dropped: {reason}, at "))).count() as u64;
    assert_eq!(shown.len() as u64, tees[0].written);
    if tees[0].missed == 0 {
        assert_eq!((of("filtered"), of("fault")), (summary.dropped("filtered"), summary.dropped("fault")));
        assert_eq!(of("filtered"), 250);
    }
    // The same of a running instance.
    let (towpath, control) = instance(&files, "rate=5k");
    let live = files.text("live.pcapng");
    let status = tee(&control, &["--drops", "--count=50", "-w", &live]).wait().unwrap();
    assert!(status.success());
    let shown = fields(Path::new(&live), &["frame.comment", "udp.srcport"]);
    assert_eq!(shown, vec!["dropped: filtered, at null:\t49153"; 50]);
    drop(towpath);
}

#[test]
fn a_client_that_is_killed_or_does_not_read_costs_the_instance_nothing() {
    let at = Files::new();
    let (mut towpath, control) = instance(&at, "rate=200k,size=1000");
    let before = files(towpath.pid());
    let mut killed = tee(&control, &[]);
    let mut first = [0; 1000];
    killed.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    until("the tee of the killed client has ended", || files(towpath.pid()) == before);
    // One that reads nothing, and one that sends what no request has, all the time.
    let silent = UnixStream::connect(at.path("control")).unwrap();
    (&silent).write_all(b"{\"tee\":{\"options\":\"at=both\"}}\n").unwrap();
    let talks = silent.try_clone().unwrap();
    talks.set_nonblocking(true).unwrap();
    for _ in 0..20 {
        let _ = (&talks).write(&[b'x'; 1000]);
        assert!(towpath.look().ports[1].tx.packets > 0);
    }
    // Others watch beside it.
    let out = at.text("out.pcapng");
    assert!(tee(&control, &["--count=10", "-w", &out]).wait().unwrap().success());
    // It does not delay the end by more than its time.
    let finished = towpath.stop().code(0);
    finished.summary().is_balanced();
    drop(silent);
}

#[test]
fn no_more_connections_watch_than_may_and_wrong_requests_are_answered() {
    let at = Files::new();
    let (towpath, control) = instance(&at, "rate=1k");
    let before = files(towpath.pid());
    let watchers: Vec<_> = (0..4)
        .map(|_| {
            let mut watcher = tee(&control, &[]);
            watcher.stdout.as_mut().unwrap().read_exact(&mut [0; 28]).unwrap();
            watcher
        })
        .collect();
    let refused = run(&["tee", &control]).code(2);
    assert!(refused.stderr.contains("4 watch already"), "{}", refused.stderr);
    for mut watcher in watchers {
        watcher.kill().unwrap();
        watcher.wait().unwrap();
    }
    until("all tees have ended", || files(towpath.pid()) == before);
    for (args, part) in [
        (&["--filter=upd"][..], "filter 'upd', column 1"),
        (&["tap:nowhere"], "port=tap:nowhere: must be a port that runs; there are gen:, null:"),
    ] {
        let refused = run(&[&["tee", &control], args].concat()).code(2);
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert!(run(&["tee", "--control", "/nowhere"]).code(2).stderr.contains("start towpath with --control"));
    let finished = towpath.stop().code(0);
    finished.summary().is_balanced();
    for (spec, part) in [
        ("a;at=top", "at=top: must be rx, tx, both or drops"),
        ("/nowhere/a.pcapng", "tee /nowhere/a.pcapng: create"),
        ("null:;port=tap:x", "port=tap:x: must be a port that runs; there are gen:, null:"),
    ] {
        assert!(run(&["gen", "null:", "--count=1", "--tee", spec]).code(2).stderr.contains(part), "{spec}");
    }
}

#[test]
fn a_hundred_watches_come_and_go_under_traffic_without_a_leak() {
    let at = Files::new();
    let (mut towpath, _) = instance(&at, "rate=100k");
    let threads = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    let before = (files(towpath.pid()), threads(towpath.pid()));
    for i in 0..100 {
        let stream = UnixStream::connect(at.path("control")).unwrap();
        (&stream).write_all(b"{\"tee\":{\"options\":\"snaplen=64;ring=65536\"}}\n").unwrap();
        let mut answer = vec![0; 200];
        (&stream).read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"{\"tee\":"), "{i}: {}", String::from_utf8_lossy(&answer));
        if i % 2 == 0 {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            (&stream).read_to_end(&mut rest).unwrap();
            // The totals are the last block, of 68 bytes with its three counts.
            let len = u32::from_le_bytes(*rest.last_chunk().unwrap()) as usize;
            let kind = rest[rest.len() - len..].first_chunk().map(|kind| u32::from_le_bytes(*kind));
            assert_eq!(kind, Some(5), "{i}");
        }
        // Tees that end by themselves end a little later.
        drop(stream);
        let limit = before.0 + 2;
        until("the tee has ended", || files(towpath.pid()) <= limit);
    }
    until("all is given back", || (files(towpath.pid()), threads(towpath.pid())) == before);
    assert!(towpath.look().ports[1].tx.packets > 0);
    tees(&towpath.stop().code(0));
}

#[test]
fn tees_see_each_packet_once_behind_lanes_and_at_an_echo() {
    let files = Files::new();
    let out = files.text("lanes.pcapng");
    let lanes =
        ["fwd", "gen:flows=8,count=3000", "null:", "--oneway", "--lanes=0", "--gro=off", "--json", "--tee", &out];
    let counts = tees(&run(&lanes).code(0));
    assert_eq!(counts[0].matched, 6000, "{counts:?}");
    let counts = tees(&run(&["echo", "gen:flows=8,count=3000", "--json", "--tee", &out]).code(0));
    assert_eq!(counts[0].matched, 6000, "{counts:?}");
}

#[test]
fn a_tap_shows_tcpdump_what_passes() {
    require!("a_tap_shows_tcpdump_what_passes", "tcpdump");
    let net = Namespace::new("tee");
    let tee = format!("tap:mon?netns={};at=tx;filter=udp src port 49152", net.name());
    let towpath = Towpath::start(&["fwd", "gen:rate=500,flows=4", "null:", "--oneway", "--tee", &tee]);
    let shown = net.run("tcpdump", "-i mon -n -c 5 udp");
    assert_eq!(shown.lines().filter(|line| line.contains(".49152 > ")).count(), 5, "{shown}");
    let finished = towpath.stop().code(0);
    let tees = tees(&finished);
    assert!(tees[0].written > 0 && tees[0].failure.is_none(), "{tees:?}");
}

#[test]
fn a_sink_that_fails_ends_its_tee_and_not_the_path() {
    let finished = run(&["gen", "null:", "--count=100000", "--json", "--tee", "/dev/full"]).code(1);
    let tees = tees(&finished);
    assert!(tees[0].failure.as_deref().is_some_and(|why| why.contains("No space left")), "{tees:?}");
    assert_eq!(finished.summary().balance.sent, 100_000);
}

#[test]
fn wireshark_finds_instances_as_interfaces_and_captures_from_them() {
    let name = "wireshark_finds_instances_as_interfaces_and_captures_from_them";
    if !needs(name, &[Need::Root]) || !needs(name, &["tshark", "dumpcap", "unshare", "mount"].map(Need::Program)) {
        return;
    }
    let at = Files::new();
    let (run_dir, plugins) = (at.path("run"), at.path("extcap"));
    std::fs::create_dir_all(run_dir.join("towpath")).unwrap();
    std::fs::create_dir_all(&plugins).unwrap();
    let plugin = plugins.join("towpath-extcap");
    std::fs::write(&plugin, format!("#!/bin/sh\nexec {} extcap \"$@\"\n", env!("CARGO_BIN_EXE_towpath"))).unwrap();
    std::fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).unwrap();
    let control = format!("--control={}", run_dir.join("towpath/test-eth").display());
    let towpath = Towpath::start(&["fwd", "gen:rate=2k,flows=4", "null:", "--oneway", &control]);
    let extcap = |args: &[&str]| {
        let mut command = command(&[&["extcap"], args].concat());
        succeed(command.env("XDG_RUNTIME_DIR", &run_dir))
    };
    let interface = "--extcap-interface=towpath-test-eth";
    assert!(extcap(&["--extcap-interfaces", "--extcap-version=4.0"]).contains("{value=towpath-test-eth}"));
    assert!(extcap(&["--extcap-dlts", interface]).contains("{number=1}{name=EN10MB}"));
    assert!(extcap(&["--extcap-config", interface]).contains("{call=--snaplen}"));
    assert_eq!(extcap(&[interface, "--extcap-capture-filter=udp port 49152"]), "");
    assert!(extcap(&[interface, "--extcap-capture-filter=upd"]).contains("column 1"));
    // The directory of plugins is a part of the program: in a mount namespace it is this one.
    let folders = succeed(Command::new("tshark").args(["-G", "folders"]));
    let global = folders.lines().find_map(|line| line.strip_prefix("Extcap path:")).unwrap().trim();
    let script = format!("mount --bind {} {global} && exec tshark \"$@\"", plugins.display());
    let tshark = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, "tshark"]).args(args).env("XDG_RUNTIME_DIR", &run_dir);
        succeed(&mut command)
    };
    let listed = tshark(&["-D"]);
    assert!(listed.contains("towpath-test-eth (Towpath: gen: ⇄ null:)"), "{listed}");
    let shown = tshark(&[
        "-i",
        "towpath-test-eth",
        "-f",
        "udp src port 49152",
        "-c",
        "10",
        "-T",
        "fields",
        "-e",
        "udp.srcport",
    ]);
    assert_eq!(shown.lines().collect::<Vec<_>>(), ["49152"; 10]);
    tees(&towpath.stop().code(0));
}
