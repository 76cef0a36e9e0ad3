#![doc = include_str!("../README.md")]
//! # Modules
//!
//! | file | content |
//! |---|---|
//! | `lib` | [`enforce`], [`enforce_since`], and what is in force: [`Enforced`] |
//! | `machine` | [`Machine`]: what this kernel could enforce |
//! | `calls` | the system calls of every datapath, and of each group |
//! | `filter` | the seccomp filters |
//! | `rules` | the Landlock rule set |
//! | `pages` | [`group_table`], [`refused`]: the system calls as text for manuals and messages |

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![forbid(unsafe_code)]

mod calls;
mod filter;
mod machine;
mod pages;
mod rules;

pub use machine::{Machine, Missing, Part};
pub use pages::{group_table, refused};
pub use towpath_sys::threads::Threads;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use towpath_packet::port::{Capability, Needs, PathUse};
use towpath_sys::restrict::{self, Restriction};

/// How to fix what is not expected to fail.
const REPORT: &str = "report it, with this line";

/// How much of the sandbox must be in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// All four parts.
    Require,
    /// What the kernel can do.
    #[default]
    Prefer,
    /// Nothing is changed.
    Off,
}

/// Why the sandbox is not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// A part is missing that was required.
    #[error("sandbox=require: {0}; or use sandbox=prefer")]
    Missing(Missing),
}

/// What is in force on the threads that are restricted, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enforced {
    /// The level that was asked for.
    pub level: Level,
    /// Names of the capabilities that they have still.
    pub capabilities: Vec<&'static str>,
    /// How many capabilities the calling thread had before.
    pub capabilities_before: u32,
    /// Whether programs that they execute gain no rights.
    pub no_new_privs: bool,
    /// The number of system calls in the seccomp list; `None` without a list.
    pub system_calls: Option<usize>,
    /// The version of Landlock that is in force.
    pub landlock: Option<u32>,
    missing: Vec<Missing>,
}

impl Enforced {
    /// The parts that are not in force, with the reason and how to fix it. Empty with
    /// [`Level::Off`].
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// What is in force without a sandbox.
    fn off(level: Level) -> Enforced {
        let (kept, missing) = (restrict::capabilities().unwrap_or(u64::MAX), Vec::new());
        let no_new_privs = restrict::no_new_privs();
        let (capabilities, capabilities_before) = (names(kept), kept.count_ones());
        Enforced { level, capabilities, capabilities_before, no_new_privs, system_calls: None, landlock: None, missing }
    }
}

/// Names of capabilities; those that no port needs have one name together.
fn names(bits: u64) -> Vec<&'static str> {
    let known = Capability::ALL.iter().filter(|one| bits & one.bit() != 0).map(|one| one.name());
    let others = bits & !Capability::ALL.iter().fold(0, |all, one| all | one.bit());
    known.chain((others != 0).then_some("others")).collect()
}

/// Restricts the process to what `needs` says, on all threads and for good. Called when ports are
/// started and before the first packet; the sockets and files that are open stay so.
///
/// Threads that run already are interrupted once by a signal, `SIGRTMAX - 3`, which they must not
/// block. A `SIGSYS` handler is installed, which counts refused calls (see [`refused`]). A process
/// can do this once.
///
/// # Errors
/// [`SandboxError::Missing`] with [`Level::Require`]: what the kernel lacks is found before
/// anything is changed; if a step fails nevertheless, what could be restricted stays so.
pub fn enforce(needs: &Needs, level: Level) -> Result<Enforced, SandboxError> {
    enforce_since(&Threads::none(), needs, level)
}

/// As [`enforce`], for the calling thread and those that were started since `before`. Threads that
/// they start later inherit the restrictions; all others keep their rights. So a program that opens
/// ports while it runs has a thread for each group of them:
///
/// ```no_run
/// # use towpath_packet::port::Needs;
/// use towpath_sandbox::{Level, Threads, enforce_since};
///
/// # fn open() -> (Vec<std::net::UdpSocket>, Needs) { (Vec::new(), Needs::none()) }
/// let unit = std::thread::spawn(|| {
///     let before = Threads::now()?;
///     // It may start threads.
///     let (ports, needs) = open();
///     enforce_since(&before, &needs, Level::Prefer)?;
///     // Workers are started here.
///     Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// });
/// # let _ = unit;
/// ```
///
/// A thread calls it once. Who started a thread is not known to the kernel: between
/// [`Threads::now`] and this call, no other thread may start threads that are to keep their rights.
/// Threads share their memory, so what takes over a restricted thread can write what the others
/// act on: `enforce` is stronger, for a process that opens nothing more.
///
/// # Errors
/// Those of [`enforce`].
pub fn enforce_since(before: &Threads, needs: &Needs, level: Level) -> Result<Enforced, SandboxError> {
    let unchanged = Enforced::off(level);
    if level == Level::Off {
        return Ok(unchanged);
    }
    let machine = Machine::probe();
    if let Some(missing) = machine.missing().first().filter(|_| level == Level::Require) {
        return Err(SandboxError::Missing(missing.clone()));
    }
    warm_up();
    let mut missing = machine.missing();
    let rules = machine.landlock.as_ref().ok().and_then(|_| {
        let report = |error| missing.push(Missing::new(Part::Landlock, error, REPORT));
        rules::make(needs).map_err(report).ok().flatten()
    });
    let filters = machine.seccomp.ok().and_then(|()| {
        let report = |error| missing.push(Missing::new(Part::Seccomp, error, REPORT));
        filter::prepare(needs).map_err(report).ok()
    });
    let (has_rules, has_filters) = (rules.is_some(), filters.is_some());
    let restriction = Restriction { kept: kept(needs), rules, filters: filters.unwrap_or_default() };
    let others = restriction.reach_since(before);
    let limited = others.limited.and(restriction.limit());
    // The filters refuse the question.
    let limits = Enforced::off(level);
    let filtered = others.filtered.and(restriction.filter());
    if let Err(error) = &limited {
        let hint = match error.kind() {
            // The threads are found in /proc/self/task.
            io::ErrorKind::NotFound => "mount -t proc proc /proc",
            io::ErrorKind::TimedOut => "let every thread take signals",
            _ => REPORT,
        };
        missing.push(Missing::new(Part::Capabilities, error, hint));
    }
    if let Err(error) = &filtered {
        missing.push(Missing::new(Part::Seccomp, error, REPORT));
    }
    if let Some(first) = missing.first().filter(|_| level == Level::Require) {
        return Err(SandboxError::Missing(first.clone()));
    }
    let calls = || filter::list(needs).map(|call| call.number).collect::<BTreeSet<_>>().len();
    Ok(Enforced {
        capabilities_before: unchanged.capabilities_before,
        landlock: machine.landlock.ok().filter(|_| has_rules && limited.is_ok()),
        system_calls: (has_filters && filtered.is_ok()).then(calls),
        missing,
        ..limits
    })
}

/// Has the C library do what it does once. When the heap of a thread shrinks for the first time,
/// glibc reads `/proc/sys/vm/overcommit_memory`, and manages without it if it must.
fn warm_up() {
    const BLOCK: usize = 16 << 10;
    let shrink = || {
        let blocks: Vec<_> = (0..64).map(|_| std::hint::black_box(Vec::<u8>::with_capacity(BLOCK))).collect();
        drop(blocks);
    };
    // Without a thread nothing is read in advance, and the call is counted as refused.
    let _ = std::thread::Builder::new().spawn(shrink).map(std::thread::JoinHandle::join);
}

/// The capabilities that the ports need. Files of other users are among them only if a directory
/// of theirs can't be written otherwise.
fn kept(needs: &Needs) -> u64 {
    let kept = needs.capabilities().fold(0, |all, one| all | one.bit());
    let written: Vec<&Path> =
        needs.paths().filter(|(_, usage)| *usage != PathUse::Read).map(|(path, _)| path).collect();
    if written.is_empty() {
        return kept;
    }
    let all = || written.iter().all(|path| restrict::is_writable(path));
    match restrict::with_capabilities(kept, all) {
        Ok(true) => kept,
        _ => kept | Capability::DacOverride.bit(),
    }
}
