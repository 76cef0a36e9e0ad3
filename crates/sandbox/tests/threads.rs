//! A sandbox for some threads of a process: what they and all others may do afterwards.
//!
//! Threads of other tests in the same process would be restricted too: each test is alone.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use towpath_packet::port::{Needs, PathUse};
use towpath_sandbox::{Enforced, Level, Machine, SandboxError, Threads, enforce_since, refused};
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
        let (sender, receiver) = channel();
        let run = move || {
            first();
            sender.send(()).unwrap();
            let _ = asked.recv();
            can_write()
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap();
        receiver.recv().unwrap();
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

/// A thread `unit`, which starts others by `between`, restricts them and itself, and starts
/// `after`. All of them wait, in this order.
fn unit(
    needs: Needs,
    level: Level,
    between: impl FnOnce() -> Vec<Asked> + Send + 'static,
) -> (Result<Enforced, SandboxError>, Vec<Asked>) {
    let (sender, receiver) = channel();
    let unit = Asked::start("unit", move || {
        let before = Threads::now().unwrap();
        let mut threads = between();
        let enforced = enforce_since(&before, &needs, level);
        threads.push(Asked::start("after", || ()));
        sender.send((enforced, threads)).unwrap();
    });
    let (enforced, mut threads) = receiver.recv().unwrap();
    threads.insert(0, unit);
    (enforced, threads)
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
    let (enforced, threads) = unit(Needs::none(), Level::Prefer, || vec![Asked::start("between", || ())]);
    let (enforced, machine) = (enforced.unwrap(), Machine::probe());
    assert_eq!(enforced.missing(), machine.missing());
    assert_eq!((enforced.capabilities.len(), enforced.landlock), (0, machine.landlock.ok()));
    assert!(enforced.no_new_privs && enforced.system_calls > Some(50), "{enforced:?}");
    for name in ["unit", "between", "after"] {
        assert_eq!(rights(name), CONFINED, "{name}");
    }
    assert_eq!(rights("earlier"), had);
    assert!(!threads.into_iter().any(Asked::can_write));
    assert!(can_write() && earlier.can_write());
    assert_eq!(refused(), [("openat".to_owned(), 3)]);
}

#[test]
fn a_process_does_it_again_and_again_and_no_thread_is_restricted_twice() {
    if !alone("a_process_does_it_again_and_again_and_no_thread_is_restricted_twice") {
        return;
    }
    let missing = Machine::probe().missing();
    let mut running = Vec::new();
    // All threads run until the end. A thread can have 16 rule sets of Landlock.
    for round in 0..100 {
        // Whether the directory can be written is tried with fewer capabilities.
        let needs = Needs::none().path("/tmp", PathUse::MakeFiles);
        let between = move || vec![Asked::start(&format!("between {round}"), || ())];
        let (enforced, threads) = unit(needs, Level::Prefer, between);
        assert_eq!(enforced.unwrap().missing(), missing, "round {round}");
        running.extend(threads);
    }
    let threads = threads();
    for round in 0..100 {
        assert_eq!(threads[&format!("between {round}")]["Seccomp_filters"], "2", "round {round}");
    }
    assert!(!running.into_iter().any(Asked::can_write));
    assert!(can_write());
}

#[test]
fn what_is_required_and_missing_is_an_error_and_changes_no_thread() {
    if !alone("what_is_required_and_missing_is_an_error_and_changes_no_thread") {
        return;
    }
    let earlier = Asked::start("earlier", || ());
    let had = rights("earlier");
    // A kernel without Landlock, for the unit's own thread.
    let (enforced, threads) = unit(Needs::none(), Level::Require, || {
        let between = vec![Asked::start("between", || ())];
        fails(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
        between
    });
    let missing = enforced.unwrap_err().to_string();
    assert!(missing.starts_with("sandbox=require: landlock is missing: this kernel is built without it"), "{missing}");
    assert_eq!(rights("between"), had);
    assert_eq!(rights("unit")[..4], had[..4]);
    assert!(threads.into_iter().chain([earlier]).all(Asked::can_write));
}

#[test]
fn the_level_off_changes_no_thread() {
    if !alone("the_level_off_changes_no_thread") {
        return;
    }
    let earlier = Asked::start("earlier", || ());
    let had = rights("earlier");
    let (enforced, threads) = unit(Needs::none(), Level::Off, || vec![Asked::start("between", || ())]);
    assert_eq!(enforced.unwrap().system_calls, None);
    for name in ["unit", "between", "after"] {
        assert_eq!(rights(name), had, "{name}");
    }
    assert!(threads.into_iter().chain([earlier]).all(Asked::can_write));
}

#[test]
fn a_thread_that_a_step_fails_on_is_an_error_and_all_others_are_confined() {
    let test = "a_thread_that_a_step_fails_on_is_an_error_and_all_others_are_confined";
    if let Err(why) = Machine::probe().landlock {
        return skip(test, why);
    }
    if !alone(test) {
        return;
    }
    let (enforced, threads) = unit(Needs::none(), Level::Require, || {
        let fails = || fails(libc::SYS_landlock_restrict_self, libc::E2BIG);
        vec![Asked::start("failing", fails), Asked::start("between", || ())]
    });
    let missing = enforced.unwrap_err().to_string();
    assert!(missing.starts_with("sandbox=require: capabilities is missing: Argument list too long"), "{missing}");
    // The other steps are done on the thread that one fails on.
    for name in ["unit", "failing", "between", "after"] {
        assert_eq!(rights(name), CONFINED, "{name}");
    }
    assert!(!threads.into_iter().any(Asked::can_write));
    assert!(can_write());
}
