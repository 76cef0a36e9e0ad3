//! The sandbox by the library: what a worker thread may still do, and what the page says about it.
//!
//! A sandbox is for good and for the whole process. So a test starts this program again, with the
//! name of an ignored test, which runs in the sandbox.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;
use std::sync::{Arc, Mutex};
use towpath::engine::rules::Verdict;
use towpath::packet::port::{Calls, Capability, Needs, PathUse, Port};
use towpath::sandbox::{Level, enforce, group_table, refused};
use towpath::{Forward, KINDS, Opener, Role, Verdicts};
use towpath_testing::{Namespace, Need, needs};

const EPERM: i32 = libc::EPERM;

/// Runs an ignored test of this program in a process of its own; its lines `seen KEY: VALUE`.
fn in_a_process(test: &str, level: &str) -> BTreeMap<String, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]).env("SANDBOX_TEST", level);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once("seen ")?.1.split_once(": "));
    let seen: BTreeMap<_, _> = lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(!seen.is_empty(), "{text}");
    seen
}

/// The level for the process of an ignored test; `None` if it was not started by a test.
fn level() -> Option<Level> {
    Some(if std::env::var("SANDBOX_TEST").ok()? == "off" { Level::Off } else { Level::Require })
}

fn errno<T>(result: Result<T, impl Into<std::io::Error>>) -> i32 {
    result.map_or_else(|error| error.into().raw_os_error().unwrap_or(-1), |_| 0)
}

/// What an application that took over a parser would try, and the error.
fn attempts(level: Level) -> Vec<(&'static str, i32)> {
    let internet = || socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None);
    let mut all = vec![
        ("open", errno(File::open("/etc/passwd"))),
        ("socket", errno(internet())),
        ("thread", errno(std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join()))),
    ];
    if level != Level::Off {
        let nothing: [&std::ffi::CStr; 0] = [];
        all.extend([
            ("execve", errno(nix::unistd::execve(c"/bin/true", &nothing, &nothing))),
            ("ptrace", errno(nix::sys::ptrace::traceme())),
            ("kill", errno(nix::sys::signal::kill(nix::unistd::getpid(), None))),
            ("unix", errno(socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None))),
        ]);
    }
    all
}

/// A datapath whose classifier, on the worker's thread, makes the attempts at its first packet.
#[test]
#[ignore = "restricts its process for good: the tests below start it"]
fn a_worker_that_attempts_everything() {
    let Some(level) = level() else { return };
    let mut opener = Opener::new();
    let from = opener.open(&"gen:count=1000".parse().unwrap(), Role::Ingress).unwrap();
    let to = opener.open(&"null:".parse().unwrap(), Role::Egress).unwrap();
    let seen: Arc<Mutex<Vec<_>>> = Arc::default();
    let found = seen.clone();
    let mut plan = Forward::default();
    plan.directions = towpath::Directions::OneWay;
    plan.at_rx = Verdicts::Classifier(Arc::new(move |_| {
        let found = found.clone();
        Box::new(move |_: &_, _: &_| {
            let mut found = found.lock().unwrap();
            if found.is_empty() {
                *found = attempts(level);
            }
            Verdict::Pass
        })
    }));
    let ready = plan.prepare(from, to).unwrap();
    enforce(ready.needs(), level).unwrap();
    let running = ready.launch().unwrap();
    while !running.is_finished() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("seen received: {}", running.stop().reading.balance().received);
    seen.lock().unwrap().iter().for_each(|(call, error)| println!("seen {call}: {error}"));
    refused().iter().for_each(|(call, times)| println!("seen refused {call}: {times}"));
}

#[test]
fn a_worker_in_the_sandbox_is_refused_files_sockets_programs_and_other_processes_and_goes_on() {
    let seen = in_a_process("a_worker_that_attempts_everything", "require");
    let number = |key: &str| seen[key].parse::<i32>().unwrap();
    for call in ["open", "socket", "execve", "ptrace", "kill", "unix"] {
        assert_eq!(number(call), EPERM, "{call}: {seen:?}");
    }
    assert_eq!((number("thread"), number("received")), (0, 1000), "{seen:?}");
    for (call, times) in [("openat", 1), ("socket", 2), ("execve", 1), ("ptrace", 1), ("kill", 1)] {
        assert_eq!(number(&format!("refused {call}")), times, "{call}: {seen:?}");
    }
}

#[test]
fn without_the_sandbox_the_same_worker_opens_files_and_sockets() {
    let seen = in_a_process("a_worker_that_attempts_everything", "off");
    assert_eq!([&seen["open"], &seen["socket"], &seen["thread"]], ["0", "0", "0"], "{seen:?}");
}

/// Files may be opened, by the list of system calls: what Landlock allows is seen.
#[test]
#[ignore = "restricts its process for good: the tests below start it"]
fn a_process_that_makes_files_in_one_directory() {
    let Some(level) = level() else { return };
    let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(other.path().join("there"), "").unwrap();
    // A thread that runs before.
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let earlier = std::thread::spawn(move || {
        let _ = asked.recv();
        errno(File::open("/etc/passwd"))
    });
    let needs = Needs::none().path(ours.path(), PathUse::MakeFiles);
    enforce(&needs, level).unwrap();
    println!("seen made: {}", errno(File::create(ours.path().join("new"))));
    println!("seen removed: {}", errno(std::fs::remove_file(ours.path().join("new"))));
    println!("seen elsewhere: {}", errno(File::create(other.path().join("new"))));
    println!("seen remove: {}", errno(std::fs::remove_file(other.path().join("there"))));
    println!("seen read: {}", errno(File::open("/etc/passwd")));
    drop(ask);
    println!("seen earlier: {}", earlier.join().unwrap());
    std::mem::forget((ours, other));
}

#[test]
fn files_are_made_and_removed_only_where_a_port_said_so_by_threads_that_ran_before_too() {
    let seen = in_a_process("a_process_that_makes_files_in_one_directory", "require");
    let denied = libc::EACCES.to_string();
    assert_eq!([&seen["made"], &seen["removed"]], ["0", "0"], "{seen:?}");
    let refused = [&seen["elsewhere"], &seen["remove"], &seen["read"], &seen["earlier"]];
    assert_eq!(refused, [&denied; 4], "{seen:?}");
}

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sandbox.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_page_has_the_system_calls_as_the_code_has_them() {
    let table = group_table();
    assert!(page().contains(&table), "docs/sandbox.md should have this table:\n{table}");
}

/// A row of the page's table of ports: URI, capabilities, groups of calls.
fn rows() -> Vec<[String; 3]> {
    let page = page();
    let rows = page.lines().skip_while(|line| !line.starts_with("| port")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    rows.map(cells).map(|cells| std::array::from_fn(|i| cells[i].clone())).collect()
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[test]
fn the_page_says_of_every_kind_of_port_what_the_port_says_itself() {
    let rows = rows();
    // A port behind faults needs what it needs without them.
    for kind in KINDS.iter().filter(|kind| kind.name != "fault") {
        let prefix = format!("{}:", kind.name);
        assert!(rows.iter().any(|[port, ..]| port.starts_with(&prefix)), "no row of {}", kind.name);
    }
    let name = "the_page_says_of_every_kind_of_port_what_the_port_says_itself";
    let kernel = needs(name, &[Need::Root, Need::Tun, Need::Program("ip")]);
    let namespace = kernel.then(|| {
        let namespace = Namespace::new("needs");
        namespace.ip("link add eth1 type veth peer name far");
        namespace.ip("link set eth1 up");
        namespace.ip("link set far up");
        namespace
    });
    let directory = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for [port, capabilities, calls] in &rows {
        let in_kernel = ["tap:", "tun:", "packet:", "xdp:"].iter().any(|scheme| port.starts_with(scheme));
        // A device of the machine, a QEMU, and a back end: their needs have tests beside the code.
        // That of vhost-net is in the machine that the command's tests boot.
        let in_machine = ["e1000e:", "cpsw:", "virtio:"].iter().any(|scheme| port.starts_with(scheme))
            && !port.contains(":model")
            || port.contains("?vhost=");
        if in_machine || in_kernel && namespace.is_none() {
            continue;
        }
        let uri = port.replace("/run/", &format!("{}/", directory.path().display()));
        let uri = uri.replace("pcap:", &format!("pcap:{}/", directory.path().display()));
        let role = if port.starts_with("pcap:") { Role::Egress } else { Role::Both };
        let opened = match &namespace {
            Some(namespace) => {
                let uri = uri.replace("netns=x", &format!("netns={}", namespace.name()));
                namespace.inside(|| Opener::new().open(&uri.parse().unwrap(), role).map(|port| port.needs()))
            }
            None => Opener::new().open(&uri.parse().unwrap(), role).map(|port| port.needs()),
        };
        let needs = opened.unwrap_or_else(|error| panic!("{port}: {error}"));
        let found = [names(needs.capabilities().map(Capability::name)), names(needs.groups().map(Calls::name))];
        assert_eq!([capabilities, calls], [&found[0], &found[1]], "{port}");
        compared += 1;
    }
    assert!(compared >= if kernel { 13 } else { 8 }, "{compared}");
}
