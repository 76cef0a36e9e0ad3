//! What a test needs, what a run of the tests leaves out, and how that is seen.
//!
//! libtest captures what the print macros write and shows it for failed tests only. So a skipped
//! test writes its line to standard error directly, and each program of tests writes the count of
//! the run when it exits. `cargo test` starts one program after the other: the count is kept in a
//! file of the target directory, which lists the skipped tests of the latest run.

use crate::Namespace;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// A requirement of a test.
pub enum Need {
    /// Root, or the capabilities of root for networks.
    Root,
    /// A program.
    Program(&'static str),
    /// TUN/TAP devices.
    Tun,
}

/// Whether the test `name` can run here. If not, it is [`skip`]ped.
#[must_use]
#[track_caller]
pub fn needs(name: &str, needs: &[Need]) -> bool {
    count_at_exit();
    let why = needs.iter().find_map(missing);
    if let Some(why) = &why {
        skip(name, why);
    }
    why.is_none()
}

fn missing(need: &Need) -> Option<String> {
    match need {
        Need::Root => {
            let probe = Namespace::try_new("probe");
            probe.err().map(|e| format!("no network namespace can be made: {e}"))
        }
        Need::Program(program) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
            (!found).then(|| format!("{program} is not installed, or not in PATH"))
        }
        Need::Tun => {
            let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
            opened.err().map(|e| format!("/dev/net/tun: {e}"))
        }
    }
}

/// The tests that this program skipped.
static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Whether a test that can't run fails: `TOWPATH_REQUIRE=all`.
pub fn all_required() -> bool {
    std::env::var("TOWPATH_REQUIRE").as_deref() == Ok("all")
}

/// Reports that the test `name` can't run on this machine, by a line on standard error.
///
/// # Panics
///
/// With `TOWPATH_REQUIRE=all`: the test fails.
#[track_caller]
pub fn skip(name: &str, why: impl Display) {
    assert!(!all_required(), "{name} can't run: {why}");
    count_at_exit();
    SKIPPED.fetch_add(1, Ordering::Relaxed);
    let line = format!("skipped: {name}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    List::of_this_run().inspect(|list| list.add(&line));
}

/// From now on, the program writes the count of skipped tests when it exits.
fn count_at_exit() {
    static ONCE: Once = Once::new();
    extern "C" fn count() {
        let here = SKIPPED.load(Ordering::Relaxed);
        let list = List::of_this_run();
        let all = list.as_ref().map_or(here, |list| list.len().max(here));
        if all > 0 {
            let place = list.map(|list| format!("; {} lists them", list.path.display())).unwrap_or_default();
            let text = format!("skipped tests: {all} in this run until now, {here} of them in this program{place}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
    ONCE.call_once(|| {
        // SAFETY: atexit takes a function that lives as long as the program and does not unwind:
        // errors of writing are ignored.
        unsafe { libc::atexit(count) };
    });
}

/// The file with the skipped tests of a run of cargo. Its first line identifies the run.
struct List {
    path: PathBuf,
    run: String,
}

impl List {
    /// The list of the run that this program belongs to: `TOWPATH_SKIPPED`, or `skipped-tests` in
    /// the directory of the profile. `None` if cargo did not start this program.
    fn of_this_run() -> Option<List> {
        std::env::var_os("CARGO")?;
        let path = match std::env::var_os("TOWPATH_SKIPPED") {
            Some(path) => path.into(),
            // target/debug/deps/PROGRAM
            None => std::env::current_exe().ok()?.parent()?.with_file_name("skipped-tests"),
        };
        let cargo = std::os::unix::process::parent_id();
        // Process numbers are used again. The time of the start, in ticks since boot, is the 20th
        // field after the name (proc(5)).
        let stat = std::fs::read_to_string(format!("/proc/{cargo}/stat")).ok()?;
        let began = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
        Some(List { path, run: format!("# cargo {cargo}, started at {began}\n") })
    }

    /// The number of tests in the list.
    fn len(&self) -> u32 {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        text.strip_prefix(&self.run).map_or(0, |tests| tests.lines().count() as u32)
    }

    /// Appends a line; the list of another run is replaced.
    fn add(&self, line: &str) {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let text = if text.starts_with(&self.run) { text } else { self.run.clone() };
        // A list that can't be written leaves the count of this program.
        let _ = std::fs::write(&self.path, text + line);
    }
}
