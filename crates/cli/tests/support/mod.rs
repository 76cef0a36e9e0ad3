//! Support for the end-to-end tests: namespaces, the command under test, and programs that generate
//! and check traffic.
//!
//! ```text
//!   namespace   ip netns, deleted on drop; the rule for tests that a machine can't run
//!   control_group  a limit of memory
//!   datapath    the running `towpath`, ended on drop; its summary
//!   files       a directory of a test
//!   front_end   a vhost-user front end with one pair of queues
//!   guests      hostile front ends, in processes of `strangers`
//!   hosts       two isolated hosts
//!   process     what a process uses: memory, descriptors, processor time
//!   strangers   applications of other users, in processes
//!   traffic     ping, iperf3, file transfers, captures checked by tshark
//!   victims     applications that are killed under full load
//!   witness     detects reordered segments of a connection
//! ```
//!
//! A program that exceeds [`LONGEST`] is killed: no test hangs.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub(crate) mod control_group;
pub(crate) mod datapath;
pub(crate) mod files;
pub(crate) mod front_end;
pub(crate) mod guests;
pub(crate) mod hosts;
pub(crate) mod process;
pub(crate) mod strangers;
pub(crate) mod traffic;
pub(crate) mod victims;
pub(crate) mod witness;

pub(crate) use datapath::{Finished, Summary, Towpath};
pub(crate) use hosts::{Cable, Hosts};
pub(crate) use towpath_testing::{Namespace, Need, all_required, needs, skip};

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit of anything that a test starts.
pub(crate) const LONGEST: Duration = Duration::from_secs(240);

/// Requirements of every test with namespaces and taps.
pub(crate) const NETWORK: &[Need] = &[Need::Root, Need::Tun, Need::Program("ip"), Need::Program("timeout")];

/// Skips the test by name if the machine can't run it.
#[macro_export]
macro_rules! require {
    ($name:literal, $($program:literal),*) => {
        let mut all = $crate::support::NETWORK.iter().chain(&[$($crate::support::Need::Program($program)),*]);
        if !all.all(|need| $crate::support::needs($name, std::slice::from_ref(need))) {
            return;
        }
    };
}

/// Runs a program to its end; returns its output, whatever its exit code.
pub(crate) fn run(command: &mut Command) -> Output {
    let mut bounded = Command::new("timeout");
    bounded
        .args(["--kill-after=1", &LONGEST.as_secs().to_string()])
        .arg(command.get_program())
        .args(command.get_args());
    bounded.stdin(Stdio::null());
    for (key, value) in command.get_envs() {
        bounded.env(key, value.unwrap_or_default());
    }
    let output = bounded.output().unwrap_or_else(|e| panic!("{bounded:?}: {e}"));
    assert_ne!(output.status.code(), Some(124), "took too long: {command:?}");
    output
}

/// Runs a program that must succeed; returns its output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Waits until a condition is true.
#[track_caller]
pub(crate) fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let end = Instant::now() + LONGEST / 4;
    while !true_now() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tries until there is a result. For what a processor that does not run for a while spoils: each
/// attempt begins anew.
#[track_caller]
pub(crate) fn until_some<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until(what, || {
        found = attempt();
        found.is_some()
    });
    found.expect("it was waited for")
}
