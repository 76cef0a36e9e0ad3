//! What a reload changes, and that it leaves nothing behind.

use crate::Instance;
use crate::support::datapath::run;
use crate::support::process::{files, memory};
use crate::support::{Towpath, until};
use std::collections::BTreeSet;

/// A generator that a bridge passes to a port that counts; options of the bridge, its ports.
fn units(options: &str, ports: &[&str], more: &str) -> String {
    let lines: Vec<_> = ports.iter().map(|port| format!("{port}\n")).collect();
    format!(
        "[bridge.lan]\nbuffers = 2048\n{options}\n[bridge.lan.ports]\n{}\
         [pair.feed]\na = 'gen:rate=20000,size=100'\nb = 'veth:x'\nbuffers = 2048\n{more}",
        lines.concat()
    )
}

const PORTS: [&str; 2] = ["feed = 'veth:x'", "out = 'null:'"];

/// Packets that a port of a unit sent so far.
fn sent(instance: &Instance, unit: &str, port: &str) -> u64 {
    let state = instance.state();
    let unit = state["units"].as_array().unwrap().iter().find(|found| found["name"] == unit).unwrap().clone();
    let port = unit["ports"].as_array().unwrap().iter().find(|found| found["name"] == port).unwrap().clone();
    port["tx"]["packets"].as_u64().unwrap()
}

fn threads(towpath: &Towpath) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", towpath.pid())).unwrap().count()
}

#[test]
fn what_is_the_same_goes_on_and_what_differs_is_changed() {
    let instance = Instance::new();
    let file = instance.path("all.pcapng");
    let tee = format!("tee = '{};snaplen=64'", file.display());
    let first = units(&format!("ageing = '60s'\n{tee}"), &PORTS, "");
    let towpath = instance.start(&first);
    assert_eq!(instance.reload(&first), [] as [&str; 0]);
    let more = "[pair.more]\na = 'gen:rate=1000'\nb = 'null:'\noneway = true\nbuffers = 2048\n";
    let options = format!("ageing = '5s'\nrule = ['drop udp dport 53']\n{tee}");
    let second = units(&options, &PORTS, more);
    assert_eq!(instance.reload(&second), ["more: started", "lan: ageing changed", "lan: rule changed"]);
    let third = units(&options, &[PORTS[0], PORTS[1], "two = 'null:accept=all'"], "");
    let done = instance.reload(&third);
    assert_eq!(done[0], "more: ended", "{done:?}");
    assert!(done.contains(&"lan: null:two attached".to_owned()), "{done:?}");
    let before = sent(&instance, "lan", "null:out");
    until("packets go on", || sent(&instance, "lan", "null:out") > before + 1000);
    // Of the feed everything is sent, whatever the bridge's other ports do.
    let finished = towpath.stop().code(0);
    for summary in finished.summaries() {
        summary.is_balanced();
    }
    // The tee has the port that came later.
    let has = |bytes: &[u8], name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
    assert!(has(&std::fs::read(&file).unwrap(), b"null:two"));
}

#[test]
fn an_end_of_a_pair_that_is_opened_anew_takes_the_other_one_along() {
    let instance = Instance::new();
    let towpath = instance.start(&units("", &PORTS, ""));
    let other = units("", &PORTS, "").replace("size=100", "size=200");
    assert_eq!(instance.reload(&other), ["lan: veth:x detached", "feed: started anew", "lan: veth:x attached"]);
    let before = sent(&instance, "lan", "null:out");
    until("packets pass the new pair", || sent(&instance, "lan", "null:out") > before + 1000);
    // A unit that must be stopped for it takes the pair along as well.
    let workers = units("max-entries = 1000", &PORTS, "").replace("size=100", "size=200");
    assert_eq!(instance.reload(&workers), ["feed: started anew", "lan: started anew"]);
    until("packets pass again", || sent(&instance, "lan", "null:out") > 1000);
    let finished = towpath.stop().code(0);
    assert!(finished.summaries().iter().all(|summary| summary.in_flight == 0 && summary.buffers_away == 0));
}

#[test]
fn what_cannot_be_done_changes_nothing_or_is_put_back() {
    let instance = Instance::new();
    let sound = units("", &PORTS, "");
    let towpath = instance.start(&sound);
    let wrong = [
        (units("ageng = 1", &PORTS, ""), "there is no 'ageng'"),
        (units("", &PORTS, "[pair.more]\na = 'packet:nonesuch0'\nb = 'null:'\n"), "more: packet:nonesuch0: "),
    ];
    for (units, part) in wrong {
        instance.write(&units);
        let error = instance.ask().unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    instance.write(&sound.replace("gen:rate=20000,size=100", "packet:nonesuch0"));
    let (changes, failures) = instance.ask().unwrap();
    assert_eq!(changes, ["lan: veth:x detached", "lan: veth:x attached"]);
    assert!(failures[0].starts_with("feed: started anew as it was before: packet:nonesuch0"), "{failures:?}");
    let before = sent(&instance, "lan", "null:out");
    until("packets go on", || sent(&instance, "lan", "null:out") > before + 1000);
    // The next reload compares with what runs.
    assert_eq!(instance.reload(&sound), [] as [&str; 0]);
    towpath.stop().code(0);
}

#[test]
fn sighup_reads_the_file_again_and_the_command_tells_what_changed() {
    let instance = Instance::new();
    let towpath = instance.start(&units("", &PORTS, ""));
    instance.write(&units("rule = 'drop udp'", &PORTS, ""));
    towpath.signal(libc::SIGHUP);
    let rules = || instance.state().to_string().contains("drop udp");
    until("the rule is there", rules);
    let control = instance.path("control");
    let control = control.to_str().unwrap();
    instance.write(&units("rule = 'drop tcp'", &PORTS, ""));
    assert_eq!(run(&["reload", "--control", control]).code(0).stdout, "lan: rule changed\n");
    assert_eq!(run(&["reload", "--control", control]).code(0).stdout, "nothing has changed\n");
    instance.write("x = 1\n");
    let refused = run(&["reload", "--control", control]).code(2);
    assert!(refused.stderr.contains("file.toml:3:1: there is no 'x' here"), "{refused:?}");
    let finished = towpath.stop().code(0);
    assert!(finished.stderr.contains("reload: lan: rule changed"), "{}", finished.stderr);
}

#[test]
fn every_thread_of_a_unit_is_confined_also_after_a_reload() {
    let instance = Instance::new();
    let sock = |name: &str| format!("app = 'sock:{}'", instance.path(name).display());
    let (one, two) = (sock("one"), sock("two"));
    let towpath = instance.start(&units("", &[PORTS[0], PORTS[1], &one], ""));
    let confined = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", towpath.pid())).unwrap();
        let texts = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
        let field = |text: &str, name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
        };
        let is_main = |text: &String| field(text, "Pid:") == towpath.pid().to_string();
        let all: Vec<_> = texts.filter(|text| !is_main(text)).collect();
        let has = |text: &String| field(text, "CapEff:") == "0000000000000000" && field(text, "Seccomp:") == "2";
        let names: BTreeSet<_> = all.iter().map(|text| field(text, "Name:")).collect();
        assert!(all.iter().all(has), "{names:?}");
        names
    };
    assert!(confined().contains("towpath-sock"));
    instance.reload(&units(
        "",
        &[PORTS[0], PORTS[1], &two],
        "[pair.more]\na = 'gen:rate=10'\nb = 'null:'\noneway = true\n",
    ));
    assert!(confined().contains("towpath-sock"));
    assert!(!instance.path("one").exists() && instance.path("two").exists());
    let finished = towpath.stop().code(0);
    assert!(!instance.path("two").exists() && !instance.path("control").exists());
    assert!(finished.summaries().iter().all(|summary| summary.sandbox.refused.is_empty()));
}

#[test]
fn a_unit_that_ends_by_itself_leaves_the_others_alone() {
    let instance = Instance::new();
    let more = "[pair.short]\na = 'gen:count=1000'\nb = 'null:'\noneway = true\nbuffers = 2048\n";
    let towpath = instance.start(&units("", &PORTS, more));
    let names = || {
        let state = instance.state();
        state["units"]
            .as_array()
            .unwrap()
            .iter()
            .map(|unit| unit["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until("it has ended", || names() == ["feed", "lan"]);
    // A reload starts it again.
    assert_eq!(instance.reload(&units("", &PORTS, more)), ["short: started"]);
    let finished = towpath.stop().code(0);
    let short = finished.summaries().into_iter().filter(|summary| summary.balance.received == 1000).count();
    assert!(short >= 1, "{}", finished.stdout);
}

/// A router that gets packets by one port and sends them by another one to a second router; more of
/// its ports, with options of its own.
fn routers(options: &str, more: &str) -> String {
    format!(
        "[pair.feed]\na = 'gen:rate=20000,size=100,dst-mac=02:74:70:00:00:00,dst-ip=20.0.0.1'\nb = 'veth:x'\n\
         buffers = 2048\n[router.far]\nbuffers = 2048\nroute = 'blackhole 20.0.0.0/8'\n\
         [router.far.ports]\nin = {{ port = 'veth:y', address = '10.1.0.2/24' }}\n\
         [router.edge]\nbuffers = 2048\negress-wait = '60s'\n{options}\n[router.edge.ports]\n\
         in = {{ port = 'veth:x', address = '10.0.0.1/24' }}\nout = {{ port = 'veth:y', address = '10.1.0.1/24' }}\n{more}"
    )
}

#[test]
fn ports_of_a_router_come_and_go_and_the_others_lose_nothing() {
    let instance = Instance::new();
    let route = "route = ['20.0.0.0/8 via 10.1.0.2']";
    let towpath = instance.start(&routers(route, ""));
    let dropped = || {
        let state = instance.state();
        let edge = state["units"].as_array().unwrap().iter().find(|unit| unit["name"] == "edge").unwrap().clone();
        let ports = edge["ports"].as_array().unwrap().iter();
        ports
            .flat_map(|port| port["egress"]["drops"].as_object().unwrap().values().cloned().collect::<Vec<_>>())
            .fold(0, |sum, n| sum + n.as_u64().unwrap())
    };
    until("packets pass", || sent(&instance, "edge", "veth:y") > 1000);
    let before = dropped();
    let app = format!("app = {{ port = 'sock:{}', address = '10.2.0.1/24' }}\n", instance.path("app").display());
    let wan = "wan = { port = 'null:', address = '10.9.0.1/24' }\n";
    let with_wan = "route = ['20.0.0.0/8 via 10.1.0.2', '30.0.0.0/8 via 10.9.0.2']";
    assert_eq!(instance.reload(&routers(with_wan, wan)), ["edge: null:wan attached", "edge: route changed"]);
    // Another address: the port is opened anew, and the route by it stays.
    let other = wan.replace("10.9.0.1", "10.9.0.3");
    assert_eq!(instance.reload(&routers(with_wan, &other)), ["edge: null:wan detached", "edge: null:wan attached"]);
    assert_eq!(instance.reload(&routers(route, "")), ["edge: null:wan detached", "edge: route changed"]);
    let passed = sent(&instance, "edge", "veth:y");
    until("packets go on", || sent(&instance, "edge", "veth:y") > passed + 1000);
    assert_eq!(dropped(), before, "the ports that stay have lost nothing");
    // A port whose rights the threads have given up starts the router anew.
    let done = instance.reload(&routers(route, &app));
    assert!(done.contains(&"edge: started anew".to_owned()), "{done:?}");
    assert!(instance.path("app").exists());
    until("packets pass again", || sent(&instance, "edge", "veth:y") > 1000);
    let finished = towpath.stop().code(0);
    for summary in finished.summaries() {
        summary.is_balanced();
    }
}

#[test]
fn a_thousand_reloads_leave_no_descriptor_thread_or_memory_behind() {
    let instance = Instance::new();
    let more = "[pair.more]\na = 'gen:rate=1000'\nb = 'veth:y'\nbuffers = 1024\n\
                [router.edge]\nbuffers = 1024\nroute = 'default via 10.0.0.9'\n\
                [router.edge.ports]\nin = { port = 'veth:y', address = '10.0.0.1/24' }\n";
    let sock = format!("app = 'sock:{}'", instance.path("app").display());
    let all = [
        units("", &PORTS, ""),
        units("rule = 'drop udp dport 53'", &PORTS, more),
        units("rule = 'drop udp dport 54'", &[PORTS[0], PORTS[1], &sock], &more.replace("10.0.0.9", "10.0.0.8")),
        units("", &PORTS, &more.replace("rate=1000", "rate=2000")),
    ];
    // What is tried is the reloads: the packets of a unit need not keep a core busy.
    let all =
        all.map(|units| units.replace("rate=20000", "rate=1000").replace("buffers =", "idle = 'sleep'\nbuffers ="));
    let towpath = instance.start(&all[0]);
    let turn = |n: usize| {
        instance.write(&all[n % all.len()]);
        let (_, failures) = instance.ask().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
    };
    let used = || (files(towpath.pid()), threads(&towpath));
    (1..=100).for_each(turn);
    let (before, (rss, _)) = (used(), memory(towpath.pid()));
    (101..=1000).for_each(turn);
    // What a client or an ended unit had is closed a moment later, also at the first look. What 900
    // reloads leave behind would be more than a few.
    until("nothing is left behind", || used().0 < before.0 + 4 && used().1 < before.1 + 4);
    let grown = memory(towpath.pid()).0.saturating_sub(rss);
    // The C library keeps some memory for each thread that it has seen at a time; 900 pools are
    // more.
    assert!(grown < 64 << 10, "{grown} KiB more");
    let finished = towpath.stop().code(0);
    for summary in finished.summaries() {
        assert_eq!((summary.in_flight, summary.buffers_away), (0, 0), "{summary:#?}");
    }
}
