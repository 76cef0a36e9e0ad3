//! A sandbox for some threads of a process: what they and all others may do afterwards.
//!
//! Threads of other tests in the same process would be restricted too: each test is alone.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use towpath_packet::port::Needs;
use towpath_sandbox::{Level, Machine, Threads, enforce_since, refused};
use towpath_testing::{alone, skip};

/// A thread that waits until it is asked, and then opens a file for writing.
struct Asked {
    ask: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Asked {
    /// `first` runs before this returns.
    fn start(name: &str, first: impl FnOnce() + Send + 'static) -> Asked {
        let (ask, asked) = channel::<()>();
        let (tell, told) = channel();
        let run = move || {
            first();
            tell.send(()).unwrap();
            let _ = asked.recv();
            can_write()
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap();
        told.recv().unwrap();
        Asked { ask, thread }
    }

    fn can_write(self) -> bool {
        drop(self.ask);
        self.thread.join().unwrap()
    }
}

fn can_write() -> bool {
    std::fs::OpenOptions::new().write(true).open("/dev/null").is_ok()
}

/// Runs `f` on a thread of this name.
fn on<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.to_owned()).spawn(f).unwrap()
}

/// The fields of `/proc/self/task/*/status`, by the thread's name.
fn threads() -> BTreeMap<String, BTreeMap<String, String>> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let fields = |text: String| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let fields: BTreeMap<_, _> = lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect();
        (fields["Name"].clone(), fields)
    };
    texts.map(fields).collect()
}

/// What the sandbox changes of a thread.
fn rights(name: &str) -> Vec<String> {
    let threads = threads();
    let of = |key: &str| threads[name][key].clone();
    ["CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp"].map(of).into()
}

const NONE: &str = "0000000000000000";
const CONFINED: [&str; 6] = [NONE, NONE, NONE, NONE, "1", "2"];

/// A filter on the calling thread: one call fails.
fn fails(call: libc::c_long, errno: libc::c_int) {
    let rules = [(call, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

#[test]
fn threads_that_were_started_since_are_confined_and_all_others_keep_their_rights() {
    if !alone("threads_that_were_started_since_are_confined_and_all_others_keep_their_rights") {
        return;
    }
    let earlier = Asked::start("earlier", || ());
    let had = rights("earlier");
    let (ask, asked) = channel::<()>();
    let (tell, told) = channel();
    let unit = on("unit", move || {
        let before = Threads::now().unwrap();
        let between = Asked::start("between", || ());
        let enforced = enforce_since(&before, &Needs::none(), Level::Prefer).unwrap();
        let after = Asked::start("after", || ());
        tell.send(enforced).unwrap();
        let _ = asked.recv();
        [can_write(), between.can_write(), after.can_write()]
    });
    let enforced = told.recv().unwrap();
    let machine = Machine::probe();
    assert_eq!(enforced.missing(), machine.missing());
    assert_eq!((enforced.capabilities.len(), enforced.landlock), (0, machine.landlock.ok()));
    assert!(enforced.no_new_privs && enforced.system_calls > Some(50), "{enforced:?}");
    for name in ["unit", "between", "after"] {
        assert_eq!(rights(name), CONFINED, "{name}");
    }
    assert_eq!(rights("earlier"), had);
    drop(ask);
    assert_eq!(unit.join().unwrap(), [false; 3]);
    assert!(can_write() && earlier.can_write());
    assert_eq!(refused(), [("openat".to_owned(), 3)]);
}

#[test]
fn a_process_does_it_again_and_again_and_no_thread_is_restricted_twice() {
    if !alone("a_process_does_it_again_and_again_and_no_thread_is_restricted_twice") {
        return;
    }
    // More than the rule sets that a thread can have (16). All threads run until the end.
    const ROUNDS: usize = 100;
    let missing = Machine::probe().missing();
    let mut running = Vec::new();
    for round in 0..ROUNDS {
        let (ask, asked) = channel::<()>();
        let (tell, told) = channel();
        let unit = on(&format!("unit {round}"), move || {
            let before = Threads::now().unwrap();
            let between = Asked::start(&format!("between {round}"), || ());
            // A directory whose permissions are looked at with fewer capabilities.
            let needs = Needs::none().path("/tmp", towpath_packet::port::PathUse::MakeFiles);
            tell.send(enforce_since(&before, &needs, Level::Prefer)).unwrap();
            let _ = asked.recv();
            between.can_write()
        });
        assert_eq!(told.recv().unwrap().unwrap().missing(), missing, "round {round}");
        running.push((ask, unit));
    }
    let threads = threads();
    let filters = |name: &str, round: usize| threads[&format!("{name} {round}")]["Seccomp_filters"].clone();
    for round in 0..ROUNDS {
        assert_eq!([filters("unit", round), filters("between", round)], ["2", "2"], "round {round}");
    }
    for (ask, unit) in running {
        drop(ask);
        assert!(!unit.join().unwrap());
    }
    assert!(can_write());
}

#[test]
fn what_is_required_and_missing_is_an_error_and_changes_no_thread() {
    if !alone("what_is_required_and_missing_is_an_error_and_changes_no_thread") {
        return;
    }
    let unit = on("unit", || {
        let before = Threads::now().unwrap();
        let between = Asked::start("between", || ());
        let had = [rights("unit"), rights("between")];
        assert!(!enforce_since(&before, &Needs::none(), Level::Off).unwrap().no_new_privs);
        assert_eq!([rights("unit"), rights("between")], had);
        // A kernel without Landlock.
        fails(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
        let had = [rights("unit"), rights("between")];
        let missing = enforce_since(&before, &Needs::none(), Level::Require).unwrap_err().to_string();
        assert_eq!([rights("unit"), rights("between")], had);
        assert!(can_write() && between.can_write());
        missing
    });
    let missing = unit.join().unwrap();
    assert!(missing.starts_with("sandbox=require: landlock is missing: this kernel is built without it"), "{missing}");
}

#[test]
fn a_thread_that_a_step_fails_on_is_an_error_and_all_others_are_confined() {
    let test = "a_thread_that_a_step_fails_on_is_an_error_and_all_others_are_confined";
    if Machine::probe().landlock.is_err() {
        return skip(test, "Landlock");
    }
    if !alone(test) {
        return;
    }
    let unit = on("unit", || {
        let before = Threads::now().unwrap();
        let fails = || fails(libc::SYS_landlock_restrict_self, libc::E2BIG);
        let between = [Asked::start("failing", fails), Asked::start("between", || ())];
        let missing = enforce_since(&before, &Needs::none(), Level::Require).unwrap_err().to_string();
        (missing, can_write(), between.map(Asked::can_write))
    });
    let (missing, unit, between) = unit.join().unwrap();
    assert!(missing.starts_with("sandbox=require: capabilities is missing: Argument list too long"), "{missing}");
    // The list of calls is in force on the thread that failed too.
    assert_eq!((unit, between), (false, [false; 2]));
    assert!(can_write());
}
