//! Shared parts of the tests of several crates: network namespaces, files that are slow to close,
//! an allocator that counts, processes of single tests, and the rule for tests that a machine can't
//! run.
//!
//! A test calls [`needs`] first, then makes [`Namespace`]s: each has a unique name, and is deleted
//! on drop, also after a panic.
//!
//! | file | content |
//! |---|---|
//! | `needs` | what a test needs, and what a run leaves out |
//! | `alone` | a test in a process of its own |
//! | `counting` | an allocator that counts |
//! | `files` | files and memory to send to another process; the file of a socket |
//! | `frames` | frames that a test recognizes |
//! | `wait` | waiting for a condition; whether a program listens |

mod alone;
mod counting;
mod files;
mod frames;
mod needs;
mod wait;

pub use alone::alone;
pub use counting::{Counting, allocations};
pub use files::{abandoned_socket, lingering, sealed_memory, silent_file};
pub use frames::addressed;
pub use needs::{Need, all_required, needs, skip};
pub use wait::{PATIENCE, listens, until};

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The count of an eventfd, which is not reset.
pub fn eventfd_count(fd: i32) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("the descriptor is open");
    let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).expect("an eventfd");
    u64::from_str_radix(count.trim(), 16).expect("a number")
}

/// A network namespace with its loopback up, deleted on drop together with its interfaces.
pub struct Namespace {
    name: String,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Namespace {
    /// A new namespace; `purpose` becomes part of its name.
    pub fn new(purpose: &str) -> Namespace {
        Namespace::try_new(purpose).expect("a network namespace")
    }

    fn try_new(purpose: &str) -> Result<Namespace, String> {
        let name = format!("tpt-{}-{}-{purpose}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        try_run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Namespace { name };
        try_run(&mut namespace.command("ip", "link set lo up"))?;
        // Only the test's packets: no router solicitations, and addresses that can be used at once.
        for setting in ["all/accept_dad", "default/accept_dad", "default/router_solicitations"] {
            let _ = namespace.try_set(&format!("ipv6/conf/{setting}"), "0");
        }
        Ok(namespace)
    }

    /// The name, for `netns=`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs inside; `args` are separated by blanks.
    pub fn command(&self, program: &str, args: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).args(args.split_whitespace());
        command
    }

    /// Runs a command inside, which must succeed; returns its output.
    pub fn run(&self, program: &str, args: &str) -> String {
        let output = try_run(&mut self.command(program, args)).unwrap_or_else(|e| panic!("{program} {args}: {e}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `ip ARGS` inside.
    pub fn ip(&self, args: &str) -> String {
        self.run("ip", args)
    }

    /// Sets a parameter of the kernel: `setting` is a path below `/proc/sys/net`.
    pub fn set(&self, setting: &str, value: &str) {
        self.try_set(setting, value).unwrap_or_else(|e| panic!("{setting}: {e}"));
    }

    fn try_set(&self, setting: &str, value: &str) -> std::io::Result<()> {
        self.inside(|| std::fs::write(PathBuf::from("/proc/sys/net").join(setting), value))
    }

    /// Runs `f` on a thread inside: its sockets belong to the namespace.
    pub fn inside<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let file = std::fs::File::open(PathBuf::from("/run/netns").join(&self.name)).expect("the namespace's file");
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                use std::os::fd::AsRawFd;
                // SAFETY: setns takes no pointer.
                let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(entered, 0, "setns: {}", std::io::Error::last_os_error());
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

fn try_run(command: &mut Command) -> Result<Output, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if output.status.success() { Ok(output) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}
