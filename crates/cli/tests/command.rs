//! Output and exit codes of the command, where neither network nor root is needed.

mod support;

use std::process::Stdio;
use support::datapath::{Line, command, run};
use support::{Finished, Towpath, until, until_some};

fn json_lines(finished: &Finished) -> Vec<Line> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    finished.stdout.lines().map(parse).collect()
}

#[test]
fn fwd_alone_tries_built_in_ports_and_ends_by_itself_with_the_balance() {
    let finished = run(&["fwd", "--duration", "300ms"]).code(0);
    for part in ["gen:", "null:", "balance", "all returned", "packets"] {
        assert!(finished.stdout.contains(part), "{part} is missing: {finished:#?}");
    }
    assert!(!finished.stdout.contains("UNACCOUNTED") && finished.stderr.contains("no root needed"), "{finished:#?}");
}

#[test]
fn every_line_of_json_parses_and_the_last_is_an_exact_summary() {
    let args = ["fwd", "gen:flows=4,size=imix", "null:", "--oneway", "--gro", "off", "--duration", "1s"];
    // A command that the machine holds up for all of the time has no live line.
    let (finished, lines, live) = until_some("a live line", || {
        let finished = run(&[&args[..], &["--interval", "100ms", "--json"]].concat()).code(0);
        let lines = json_lines(&finished);
        let live = lines.iter().filter(|line| matches!(line, Line::Live(_))).count();
        (live >= 1).then_some((finished, lines, live))
    });
    assert!(live + 2 == lines.len() && matches!(lines[0], Line::Start(_)), "{finished:#?}");
    let summary = finished.summary();
    let (made, taken) = (summary.port("gen").rx.packets, summary.port("null").tx.packets);
    assert!(made > 0 && made == taken && summary.balance.received == made, "{summary:#?}");
    summary.is_clean();
}

/// The names of all keys of a document, but for those that are data: the reasons of `flushed`.
fn keys(document: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
    match document {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                found.insert(key.clone());
                if key != "flushed" {
                    keys(value, found);
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|one| keys(one, found)),
        _ => {}
    }
}

#[test]
fn every_key_of_json_is_documented() {
    let page = include_str!("../../../docs/json.md");
    let mut found = std::collections::BTreeSet::new();
    let lines = |args: &[&str], code| run(args).code(code).stdout;
    // A command that the machine holds up for all of the time has no live line.
    let mut text = until_some("a live line", || {
        let args = ["gen", "null:", "--rate", "1k", "--duration", "300ms", "--interval", "50ms", "--json"];
        Some(lines(&args, 0)).filter(|text| text.contains(r#""type":"live""#))
    });
    text += &lines(
        &["fwd", "fault:drop=50%@gen:count=99,stamp=time", "gen:verify=on", "--oneway", "--rule", "drop udp", "--json"],
        0,
    );
    text += &lines(&["gen", "nul:", "--json"], 2);
    let records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.iter().for_each(|record| keys(record, &mut found));
    for kind in ["start", "live", "summary", "error"] {
        assert!(records.iter().any(|record| record["type"] == kind), "{text}");
        assert!(page.contains(&format!("`{kind}`")), "{kind}");
    }
    let unknown: Vec<_> = found.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(unknown.is_empty(), "not in docs/json.md: {unknown:?}");
}

#[test]
fn an_error_comes_as_json_too_with_the_exit_code() {
    for (args, part) in [
        (&["fwd", "tap:a", "tap:b", "--workers", "x", "--json"][..], "--workers"),
        (&["gen", "nul:", "--json"], "null"),
        (&["probe", "nosuch:", "--json"], "nosuch"),
    ] {
        let refused = run(args).code(2);
        let record: serde_json::Value = serde_json::from_str(refused.stdout.lines().last().unwrap()).unwrap();
        assert_eq!((&record["type"], &record["exit_code"]), (&"error".into(), &2.into()), "{refused:#?}");
        let text = record["error"].as_str().unwrap();
        assert!(text.contains(part) && refused.stderr.contains(text), "{refused:#?}");
    }
    assert!(run(&["gen", "--help", "--json"]).code(0).stdout.contains("Usage: towpath gen"));
}

#[test]
fn systemd_is_notified_when_the_ports_are_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let output =
        command(&["gen", "null:", "--count", "10", "--sandbox", "prefer"]).env("NOTIFY_SOCKET", &path).output();
    assert!(output.unwrap().status.success());
    let mut bytes = [0; 256];
    let n = socket.recv(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes[..n]);
    assert!(text.contains("READY=1\n") && text.contains("STATUS=moves packets of gen:, null:"), "{text}");
}

#[test]
fn the_output_for_people_and_for_machines_is_the_same() {
    let args = ["gen", "null:", "--count", "12345", "--size", "100", "--gro", "off"];
    let summary = run(&[&args[..], &["--json"]].concat()).code(0).summary();
    assert_eq!((summary.balance.received, summary.balance.sent), (12_345, 12_345));
    assert_eq!(summary.port("null").tx.bytes, 1_234_500);
    let shown = run(&args).code(0);
    assert!(shown.stdout.contains("12 345 in = 12 345 out"), "{shown:#?}");
}

#[test]
fn a_count_is_kept_to_the_packet_whichever_command_has_it() {
    for args in [&["gen", "null:"][..], &["sink", "gen:flows=3"], &["fwd", "gen:", "null:", "--oneway"]] {
        let summary = run(&[args, &["--count", "1000", "--gro", "off", "--json"]].concat()).code(0).summary();
        assert_eq!(summary.is_balanced().balance.sent, 1000, "{args:?}: {summary:#?}");
    }
}

#[test]
fn a_signal_stops_the_command_in_good_order() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut towpath = Towpath::start(&["fwd", "gen:", "null:", "--oneway"]);
        // On a busy machine the first lines are written before the worker's first turn.
        until("packets move", || towpath.look().ports[0].rx.packets > 0);
        towpath.signal(signal);
        let summary = towpath.wait().code(0).summary();
        assert!(summary.is_clean().balance.received > 0);
    }
}

#[test]
fn the_command_stops_in_good_order_when_its_output_has_no_reader() {
    for more in [&["--json", "--interval", "20ms"][..], &["--duration", "200ms"]] {
        let mut command = command(&[&["fwd", "gen:", "null:", "--oneway"], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{more:?}: {output:?}");
    }
}

#[test]
fn coalesced_packets_are_accounted_for() {
    let args = ["fwd", "gen:count=5000,flows=7,size=1448,proto=tcp", "null:", "--oneway", "--gro", "on", "--json"];
    let balance = run(&args).code(0).summary().is_clean().balance.clone();
    assert!(balance.received == 5000 && balance.merged > 0 && balance.sent + balance.merged == 5000, "{balance:?}");
}

#[test]
fn a_generator_that_falls_behind_its_rate_says_what_was_asked_reached_and_given_up() {
    let args = ["gen", "null:", "--rate", "10G", "--size", "9000", "--duration", "2s"];
    until("a live line says so", || {
        let finished = run(&[&args[..], &["--json", "--interval", "50ms"]].concat()).code(0);
        let summary = finished.summary();
        let [rate] = &summary.rates[..] else { panic!("{summary:#?}") };
        assert!(
            rate.port == "gen:" && rate.asked == 1e10 && rate.reached < 1e9 && rate.given_up > 1_000_000,
            "{rate:?}"
        );
        let live = |line| matches!(line, Line::Live(live) if live.rates.iter().any(|rate| rate.given_up > 0));
        json_lines(&finished).into_iter().any(live)
    });
    let shown = run(&args).code(0);
    for part in ["asked 10.0 Gpps", "FELL BEHIND", "given up", "--idle spin"] {
        assert!(shown.stdout.contains(part), "{part} is missing: {shown:#?}");
    }
    // At the end of a count nothing is due any more. What it gave up, because the machine was held
    // up, counts.
    let summary = run(&["gen", "null:", "--rate", "1M", "--count", "50", "--json"]).code(0).summary();
    let [rate] = &summary.rates[..] else { panic!("{summary:#?}") };
    let due = (50 + rate.given_up) as f64;
    assert!(rate.asked == 1e6 && rate.reached == 1e6 * 50.0 / due, "{rate:?}");
    assert!(run(&["gen", "null:", "--count", "10", "--json"]).code(0).summary().rates.is_empty());
}

#[test]
fn a_check_of_generated_packets_shows_lost_late_and_twice_and_is_no_failure() {
    let sink = "fault:on=tx,drop=2%,duplicate=2%,reorder=2%,seed=5@gen:verify=on,count=20000";
    let args = ["fwd", "gen:count=20000,flows=7", sink, "--oneway", "--gro", "off"];
    let summary = run(&[&args[..], &["--json"]].concat()).code(0).summary();
    let [found] = &summary.is_balanced().verified[..] else { panic!("{summary:#?}") };
    assert_eq!(found.arrived + found.lost + found.outstanding, 20_000, "{found:?}");
    assert_eq!((found.lost + found.outstanding, found.foreign), (summary.dropped("fault"), 0), "{found:?}");
    assert!(found.port.starts_with("fault") && found.lost > 0 && found.late > 0 && found.twice > 0, "{found:?}");
    let shown = run(&args).code(0);
    for part in ["verify ", "arrived", "lost", "late", "twice"] {
        assert!(shown.stdout.contains(part), "{part} is missing: {shown:#?}");
    }
    let args = ["sink", "gen:count=1000,flows=3", "--verify", "--expect", "1200", "--json"];
    let summary = run(&args).code(0).summary();
    let [found] = &summary.verified[..] else { panic!("{summary:#?}") };
    let numbers = (found.arrived, found.lost, found.late, found.twice, found.outstanding);
    assert_eq!(numbers, (1000, 0, 0, 0, 200), "{found:?}");
}

#[test]
fn an_egress_that_sends_none_of_what_reaches_it_is_code_1_and_one_that_nothing_reaches_is_not() {
    // The device takes no frames as long as these.
    let args = ["gen", "e1000e:model", "--size", "20000", "--count", "100"];
    let summary = run(&[&args[..], &["--json"]].concat()).code(1).summary();
    assert_eq!(summary.is_balanced().dropped("too-long"), 100);
    assert!(summary.failures.len() == 1 && summary.failures[0].contains("sent none of 100 packets: 100 too-long"));
    let shown = run(&args).code(1);
    assert!(shown.stdout.contains("FAILED   e1000e:model: sent none of 100 packets"), "{shown:#?}");
    // Rules and faults drop what they are asked to.
    for args in [
        &["fwd", "gen:count=100", "null:", "--oneway", "--rule", "drop any"][..],
        &["fwd", "gen:count=100", "fault:on=tx,drop=100%@null:", "--oneway"],
        &["sink", "null:", "--duration", "50ms"],
        &["fwd", "null:", "null:", "--duration", "50ms"],
    ] {
        let summary = run(&[args, &["--json"]].concat()).code(0).summary();
        assert!(summary.is_balanced().balance.sent == 0 && summary.failures.is_empty(), "{args:?}: {summary:#?}");
    }
}

#[test]
fn errors_name_the_option_the_value_and_the_rule() {
    let long = "tap:a-name-that-is-too-long";
    let table: &[(&[&str], &[&str])] = &[
        (&["fwd", "tap", "null:"], &["tap", "scheme:target"]),
        (&["fwd", "tp:a", "null:"], &["tp:a", "no port of kind 'tp'", "tap", "null"]),
        (&["fwd", "null:"], &["<B>"]),
        (&["fwd", "tap:a?mtu=70000", "null:"], &["mtu=70000", "from 68 to 65521"]),
        (&["fwd", "tap:a?mtu", "null:"], &["'mtu' has no value", "mtu=…"]),
        (&["fwd", "tap:a?mtu=1500,mtu=1500", "null:"], &["'mtu'", "twice"]),
        (&["fwd", "tap:a?colour=red", "null:"], &["colour=red", "no such option", "mtu"]),
        (&["fwd", "tap:a?tso=perhaps", "null:"], &["tso=perhaps", "require, prefer or off"]),
        (&["fwd", long, "null:"], &["a-name-that-is-too-long", "1 to 15 bytes"]),
        (&["fwd", "packet:", "null:"], &["interface=''", "1 to 15 bytes"]),
        (&["gen", "null:", "--size", "huge"], &["size=huge", "number of bytes or imix"]),
        (&["gen", "null:", "--proto", "sctp"], &["proto=sctp", "udp", "tcp"]),
        (&["gen", "null:", "--with", "nothing=1"], &["nothing=1", "no such option"]),
        (&["fwd", "--duration", "soon"], &["--duration", "soon", "250us, 10ms, 5s"]),
        (&["fwd", "--count", "0"], &["--count", "0", "above 0"]),
        (&["fwd", "--buffers", "none"], &["--buffers", "none", "whole number"]),
        (&["fwd", "--buffers", "7"], &["buffers=7", "8 or more"]),
        (&["fwd", "--buffer-size", "2000"], &["buffer-size=2000", "multiple of 64 from 2048 to 65472"]),
        (&["fwd", "--buffer-size", "65536"], &["buffer-size=65536", "multiple of 64"]),
        (&["fwd", "--idle", "doze"], &["--idle", "doze", "spin, yield, adaptive, sleep"]),
        (&["fwd", "--workers", "0"], &["workers"]),
        (&["fwd", "--workers", "9999"], &["workers=9999", "each of the workers needs one"]),
        (
            &["fwd", "veth:x?queues=1", "veth:x?queues=1", "--workers", "2"],
            &["workers=2", "1 queue", "open it with ?queues=2"],
        ),
        (&["fwd", "--cores", "4095"], &["cores=4095", "among the cores"]),
        (&["fwd", "--lanes", "4095"], &["lanes=4095", "among the cores"]),
        (&["fwd", "--cores", "1-0"], &["--cores", "1-0", "ranges of them, such as 0-1,3"]),
        (&["fwd", "--rebalance"], &["--lanes <CORES>"]),
        (&["fwd", "--duration", "0s"], &["--duration", "0s", "above 0"]),
        (&["fwd", "sock:/a/missing/directory/s", "null:"], &["make the directory first"]),
        (&["fwd", "--steer", "left"], &["--steer", "left", "round-robin"]),
        (&["fwd", "--gro-max-size", "1"], &["--gro-max-size", "1280..=65535"]),
        (&["frwd"], &["frwd", "fwd"]),
        (&["help", "pakcet"], &["pakcet", "did you mean packet?"]),
        (&["fwd", "pakcet:eth1", "null:"], &["pakcet", "did you mean packet?"]),
        (&["probe", "tap:a?mut=9000"], &["mut=9000", "no such option", "did you mean mtu?"]),
        (&["probe", "tap:a?netns="], &["'netns' has no value"]),
        (&["probe", "what:"], &["no port of kind 'what'"]),
    ];
    for (args, parts) in table {
        let finished = run(args).code(2);
        assert!(finished.stdout.is_empty() && !finished.stderr.contains("panicked"), "{args:?}: {finished:#?}");
        for part in *parts {
            assert!(finished.stderr.contains(part), "{args:?}: '{part}' is missing in: {}", finished.stderr);
        }
    }
}

const COMMANDS: [&str; 8] = ["fwd", "gen", "sink", "record", "replay", "probe", "completions", "man"];

#[test]
fn help_names_every_command_and_shows_how_ports_are_written() {
    let help = run(&["--help"]).code(0).stdout;
    for part in COMMANDS.iter().chain(&["tap:", "packet:", "gen:", "null:", "scheme:target"]) {
        assert!(help.contains(part), "{part} is missing in:\n{help}");
    }
    for name in COMMANDS {
        let one = run(&[name, "--help"]).code(0).stdout;
        assert!(one.contains("Usage: towpath"), "{name}: {one}");
    }
    assert!(run(&["fwd", "-h"]).code(0).stdout.contains("Examples:"));
    assert!(run(&["--version"]).code(0).stdout.starts_with("towpath "));
}

#[test]
fn completions_know_every_command_in_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).code(0).stdout;
        for name in COMMANDS {
            assert!(script.contains(name), "{shell}: {name} is missing");
        }
    }
}

#[test]
fn help_of_a_kind_of_port_lists_its_options_with_default_and_example() {
    let shown = run(&["help", "tap"]).code(0).stdout;
    for part in ["tap:tp0", "txqueuelen=PACKETS", "default: unchanged; example: mtu=9000"] {
        assert!(shown.contains(part), "{part} is missing in:\n{shown}");
    }
    // A command and a kind of port have this name.
    assert!(run(&["help", "gen"]).code(0).stdout.contains("Generate packets into a port"));
    assert!(run(&["help", "gen:"]).code(0).stdout.contains("payload=random|stale"));
}

#[test]
fn bash_completes_ports_behind_the_breaks_of_its_words() {
    let complete = |line: &str, word: &str| {
        let script = format!(
            "compopt() {{ :; }}; towpath() {{ {} \"$@\"; }}; source <(towpath completions bash)
             COMP_LINE=\"{line}\" COMP_POINT=${{#COMP_LINE}} COMP_WORDS=({line}) COMP_CWORD=2
             _towpath_words towpath \"{word}\" x; echo \"${{COMPREPLY[*]}}\"",
            env!("CARGO_BIN_EXE_towpath")
        );
        support::succeed(std::process::Command::new("bash").args(["-c", &script])).trim().to_owned()
    };
    assert_eq!(complete("towpath probe ve", "ve"), "veth:");
    assert_eq!(complete("towpath fwd tap:x?txq", "x?txq"), "x?txqueuelen=");
    assert_eq!(complete("towpath fwd tap:x?mtu=1500,persist=of", "of"), "off");
    assert_eq!(complete("towpath help pac", "pac"), "packet");
}

#[test]
fn zsh_completes_ports_as_whole_words_and_flags_as_before() {
    if !support::needs("zsh_completes_ports_as_whole_words_and_flags_as_before", &[support::Need::Program("zsh")]) {
        return;
    }
    let complete = |command: &str, word: &str| {
        let script = format!(
            "compdef() {{ :; }}; compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -r -- \"$@\"; }}
             towpath() {{ {} \"$@\"; }}; eval \"$(towpath completions zsh)\"; _towpath_clap() {{ print clap; }}
             words=(towpath {command} '{word}') CURRENT=3 PREFIX='{word}'; _towpath",
            env!("CARGO_BIN_EXE_towpath")
        );
        support::succeed(std::process::Command::new("zsh").args(["-f", "-c", &script])).trim().to_owned()
    };
    assert_eq!(complete("probe", "ve"), "veth:");
    assert_eq!(complete("fwd", "tap:x?mtu=1500,persist=of"), "tap:x?mtu=1500,persist=off");
    assert_eq!(complete("fwd", "tap:x\\?txq"), "tap:x?txqueuelen=");
    assert_eq!((complete("fwd", "--wo").as_str(), complete("bind", "00").as_str()), ("clap", "clap"));
}

#[test]
fn fish_completes_ports_as_whole_words_and_flags_as_before() {
    if !support::needs("fish_completes_ports_as_whole_words_and_flags_as_before", &[support::Need::Program("fish")]) {
        return;
    }
    let complete = |line: &str| {
        let program = env!("CARGO_BIN_EXE_towpath");
        let script = format!(
            "function towpath; {program} $argv; end; towpath completions fish | source; complete -C \"{line}\""
        );
        let home = tempfile::tempdir().unwrap();
        let mut fish = std::process::Command::new("fish");
        support::succeed(fish.args(["--no-config", "-c", &script]).env("HOME", home.path())).trim().to_owned()
    };
    assert_eq!(complete("towpath probe ve"), "veth:");
    assert_eq!(complete("towpath fwd tap:x?mtu=1500,persist=of"), "tap:x?mtu=1500,persist=off");
    assert!(complete("towpath fwd --worker").starts_with("--workers"));
}

#[test]
fn an_output_that_is_full_is_an_error_of_code_1() {
    for args in [
        &["rules"][..],
        &["--help"],
        &["help", "tap"],
        &["probe", "null:", "--json"],
        &["completions", "bash"],
        &["gen", "null:", "--count", "10"],
        &["gen", "null:", "--json", "--interval", "10ms", "--duration", "20s"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("towpath: standard output can't be written: No space left"), "{args:?}: {stderr}");
    }
}

#[test]
fn every_command_has_a_man_page_and_a_directory_that_is_missing_is_named() {
    let directory = tempfile::tempdir().unwrap();
    run(&["man", directory.path().to_str().unwrap()]).code(0);
    for name in COMMANDS {
        let page = std::fs::read_to_string(directory.path().join(format!("towpath-{name}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    assert!(std::fs::read_to_string(directory.path().join("towpath.1")).unwrap().contains("scheme:target"));
    let tap = std::fs::read_to_string(directory.path().join("towpath-tap.7")).unwrap();
    assert!(tap.contains(".TH towpath-tap 7") && tap.contains("MTU that the interface is given"), "{tap}");
    let refused = run(&["man", "/a/directory/that/is/missing"]).code(2);
    assert!(refused.stderr.contains("/a/directory/that/is/missing"), "{}", refused.stderr);
}

#[test]
fn probe_prints_the_abilities_of_a_port_for_people_and_for_machines() {
    for port in ["null:", "gen:flows=2"] {
        let shown = run(&["probe", port]).code(0).stdout;
        assert!(shown.contains("mtu") && shown.contains("queues") && shown.contains("towpath help "), "{shown}");
        let report: serde_json::Value = serde_json::from_str(&run(&["probe", port, "--json"]).code(0).stdout).unwrap();
        assert!(report["abilities"].is_array() && report["mtu"].is_number(), "{report:#}");
    }
}

#[test]
fn the_probe_of_a_guests_port_prints_the_commands_of_machines_with_its_options() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vm0").display().to_string();
    for (options, parts) in [
        ("", ["{path},reconnect=1", "queues=1 -device", "vhost_mode=client", "host_dev_name", "packet:fc0"]),
        (
            "?server=off,queues=2",
            ["{path},server=on", "queues=2 -device", "vhost_mode=server", "mq=on", "num_queues=4"],
        ),
        (
            "?packed=on,mtu=9000",
            ["packed=on,host_mtu=9000", "qemu-system", "cloud-hypervisor", "testpmd", "firecracker"],
        ),
    ] {
        let shown = run(&["probe", &format!("vhost:{path}{options}")]).code(0).stdout;
        for part in parts.map(|part| part.replace("{path}", &path)) {
            assert!(shown.contains(&part), "'{part}' of '{options}' is not in:\n{shown}");
        }
    }
}

#[test]
fn cores_are_given_as_ranges_and_rates_with_a_fraction() {
    let args = ["gen", "null:", "--rate", "1.5M", "--count", "50", "--cores", "0-0", "--json"];
    let summary = run(&args).code(0).summary();
    assert_eq!(summary.rates[0].asked, 1.5e6);
}

#[test]
fn a_limit_of_the_process_is_named_with_what_helps() {
    for (limit, command, part) in [
        ("-v 300000", "gen null: --buffers 4M", "ask for less memory (--buffers), or raise the limit: ulimit -v"),
        ("-n 9", "fwd veth:a veth:a", "raise the limit on open files"),
    ] {
        let script = format!("ulimit {limit}; exec {} {command}", env!("CARGO_BIN_EXE_towpath"));
        let output = support::run(std::process::Command::new("bash").args(["-c", &script]));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(part), "{output:?}");
    }
}

#[test]
fn a_note_on_the_mtu_is_made_only_of_a_generator_whose_packets_are_longer() {
    let notes = |size: &str| run(&["gen", "e1000e:model", "--count", "1", "--size", size]).stderr;
    assert!(!notes("1514").contains("has an MTU of"), "{}", notes("1514"));
    assert!(notes("1515").contains("gen: has an MTU of 1501, e1000e:model of 1500"), "{}", notes("1515"));
}

#[test]
fn a_capture_that_is_overwritten_is_named_and_one_that_is_probed_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcap");
    let path = file.to_str().unwrap();
    let record = |count: &str| run(&["record", &format!("gen:count={count}"), path]).code(0).stderr;
    assert!(!record("3").contains("overwritten"));
    let before = std::fs::read(&file).unwrap();
    let shown = run(&["probe", &format!("pcap:{path}")]).code(0).stdout;
    assert!(shown.contains("layer         ethernet") && std::fs::read(&file).unwrap() == before, "{shown}");
    for wrong in [["--filter", "tcp prot 80"], ["--rule", "drop nothing"]] {
        let refused = run(&["record", "gen:count=3", path, wrong[0], wrong[1]]).code(2).stderr;
        assert!(!refused.contains("overwritten") && std::fs::read(&file).unwrap() == before, "{refused}");
    }
    assert!(record("3").contains(&format!("pcap:{path}: the file had {} bytes, and is overwritten", before.len())));
}

#[test]
fn a_capture_that_was_rotated_is_named_by_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap").to_str().unwrap().to_owned();
    run(&["record", "gen:count=100", &path, "--with", "rotate-size=2k"]).code(0);
    let refused = run(&["replay", &path, "null:"]).code(2).stderr;
    assert!(refused.contains("it was rotated: its files are") && refused.contains("a-00001.pcap"), "{refused}");
}

#[test]
fn a_sound_capture_with_an_empty_record_is_not_called_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcap");
    run(&["record", "gen:count=1", file.to_str().unwrap()]).code(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.extend([0; 16]);
    std::fs::write(&file, &bytes).unwrap();
    let summary = run(&["replay", file.to_str().unwrap(), "null:", "--json"]).code(0).summary();
    assert_eq!((summary.port("pcap").rx.packets, summary.port("pcap").rx.missed), (1, 1));
    assert_eq!(summary.port("pcap").rx.missed_at[0].place, "unreadable");
    bytes.truncate(bytes.len() - 3);
    std::fs::write(&file, &bytes).unwrap();
    let summary = run(&["replay", file.to_str().unwrap(), "null:", "--json"]).code(1).summary();
    assert!(summary.failures[0].contains("damaged file"), "{summary:#?}");
}

#[test]
fn a_reader_that_disconnects_ends_the_command_without_a_panic() {
    use std::process::Stdio;
    let mut command =
        command(&["fwd", "gen:", "null:", "--oneway", "--json", "--interval", "20ms", "--duration", "20s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked") && output.status.code().is_some(), "{output:?}");
}
