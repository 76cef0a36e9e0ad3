//! What is wrong with a file is shown before a port is opened.

use crate::Instance;
use crate::support::datapath::run;

/// The lines of `--check`, without the path.
#[track_caller]
fn check(text: &str) -> Vec<String> {
    let instance = Instance::new();
    let path = instance.path("file.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let checked = run(&["run", path, "--check"]).code(2);
    let lines = checked.stderr.trim_start_matches("towpath: ").lines();
    lines.map(|line| line.strip_prefix(&format!("{path}:")).unwrap_or(line).to_owned()).collect()
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_line_and_column() {
    let lines = check(
        "contol = '/x'\n\
         sandbox = 'maybe'\n\
         [bridge.lan]\n\
         agein = '3s'\n\
         [bridge.lan.ports]\n\
         a = 'tpa:ta'\n\
         b = { port = 'tap:tb?mtuu=9', access = 10 }\n\
         c = { port = 'tap:tb', acces = 10 }\n\
         d = { access = 10 }\n\
         [pair.x]\n\
         a = 'tap:tb'\n\
         [router.r]\n\
         route = ['default via 10.9.0.2']\n\
         [router.r.ports]\n\
         a = 'veth:q'\n\
         [bridge.x]\n\
         ports = 3\n",
    );
    let expected = [
        "1:1: there is no 'contol' here; did you mean control?",
        "2:11: sandbox = 'maybe': must be one of require, prefer, off",
        "4:1: there is no 'agein' here; did you mean ageing?",
        "6:5: tpa:ta: there is no port of kind 'tpa'",
        "7:14: tap:tb?mtuu=9: mtuu=9: no such option",
        "8:24: there is no 'acces' here; did you mean access?",
        "9:1: d: must be a port",
        "10:7: 'x' is the name of another unit",
        "13:10: route=default via 10.9.0.2: 10.9.0.2 is in no subnet",
        "15:5: veth:q: needs its other end",
        "17:1: must be a table of ports",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
}

#[test]
fn values_are_checked_as_those_of_the_command_line() {
    let unit =
        |options: &str| check(&format!("[pair.p]\na = 'gen:'\nb = 'null:'\noneway = true\n{options}\n")).remove(0);
    for (options, expected) in [
        ("gro = 'oui'", "5:7: gro = 'oui': must be one of on, off, auto"),
        ("egress-wait = 'soon'", "5:15: egress-wait = 'soon': must be a time such as 250us"),
        ("rule = ['pass any', 'drop udp dprt 53']", "5:9: rule 'drop udp dprt 53'"),
        ("lane-rule = 'drop udp'", "1:7: lanes: is missing"),
        ("workers = [1, 2]", "5:15: workers: must be one value"),
        ("rebalance = 1", "5:1: rebalance: must be true or false"),
        ("control = '/x'", "5:1: there is no 'control' here"),
        ("address = '10.0.0.1/24'", "5:1: there is no 'address' here"),
        ("workers = {}", "5:1: workers: must be a text, a number"),
        ("workers = 1979-05-27", "5:11: must be a text, a number"),
        ("workers = 1\nworkers = 2", "6:1: duplicate key"),
    ] {
        let line = unit(options);
        assert!(line.starts_with(expected), "{options}: {line}");
    }
    let of_port = check("[bridge.b]\naccess = 10\n[bridge.b.ports]\na = { port = 'tap:a', ageing = 1 }\n");
    assert!(of_port[0].starts_with("2:1: access: is an option of a port"), "{of_port:?}");
    assert!(of_port[1].starts_with("4:23: ageing: is an option of the unit"), "{of_port:?}");
}

#[test]
fn a_device_has_one_user_and_an_in_memory_pair_two_ends() {
    let lines = check(
        "[pair.p]\na = 'tap:a'\nb = 'veth:x'\n[pair.q]\na = 'tap:a'\nb = 'veth:x'\n[pair.r]\na = 'veth:x'\nb = 'null:'\n",
    );
    assert_eq!(lines[0], "5:5: tap:a: has one user, and line 2 has it already");
    assert_eq!(lines[1], "8:5: veth:x: has two ends, and line 3 has it already");
}

#[test]
fn a_sound_file_is_summed_up_and_an_empty_or_missing_one_refused() {
    let instance = Instance::new();
    let path = instance.path("file.toml");
    let text = path.to_str().unwrap();
    instance.write(
        "[bridge.lan]\n[bridge.lan.ports]\na = { port = 'tap:a', trunk = [10, '20-29'], native = 1 }\nb = 'veth:x'\n\
         [router.edge]\nroute = 'default via 10.0.0.2'\n[router.edge.ports]\n\
         lan = { port = 'veth:x', address = ['10.0.0.1/24', 'fd00::1/64'] }\n",
    );
    let checked = run(&["run", text, "--check"]).code(0);
    assert!(checked.stdout.ends_with(": 1 bridge, 1 router, 3 ports\n"), "{checked:?}");
    assert!(check("# nothing\n")[0].contains("1:1: nothing is to be done"));
    assert!(check("[bridge]\nageing = 3\n")[0].starts_with("2:1: 'ageing' belongs to no bridge: name one"));
    std::fs::remove_file(&path).unwrap();
    let missing = run(&["run", text]).code(2);
    assert!(missing.stderr.contains("file.toml: No such file"), "{missing:?}");
}
