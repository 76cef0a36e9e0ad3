//! The command under test: start, observation, stop, and the parsed summary.

use super::{LONGEST, until};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The summary: the last line of `--json`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Summary {
    pub(crate) seconds: f64,
    pub(crate) ports: Vec<Port>,
    pub(crate) balance: Balance,
    pub(crate) in_flight: i64,
    pub(crate) buffers_away: u64,
    pub(crate) pages: u64,
    pub(crate) pages_away: u64,
    pub(crate) copied: u64,
    pub(crate) pool_shortages: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) rates: Vec<Rate>,
    pub(crate) verified: Vec<Check>,
    pub(crate) users: Vec<UserUsage>,
    pub(crate) rules: Vec<RuleHits>,
    pub(crate) gone: Vec<String>,
    pub(crate) failed: Vec<String>,
    pub(crate) failures: Vec<String>,
    pub(crate) fdb: Option<serde_json::Value>,
    pub(crate) sandbox: Sandbox,
}

/// What of the sandbox was in force.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Sandbox {
    pub(crate) level: String,
    pub(crate) capabilities: Vec<String>,
    pub(crate) no_new_privs: bool,
    pub(crate) system_calls: Option<usize>,
    pub(crate) landlock: Option<u32>,
    pub(crate) missing: Vec<String>,
    pub(crate) refused: BTreeMap<String, u64>,
}

/// What a user's applications had of a resource of a port; all users together without one.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct UserUsage {
    pub(crate) port: String,
    pub(crate) user: Option<u32>,
    pub(crate) resource: String,
    pub(crate) now: u64,
    pub(crate) peak: u64,
    pub(crate) limit: u64,
}

/// How many packets a rule decided on.
#[derive(Debug, Clone, Deserialize, PartialEq)]
pub(crate) struct RuleHits {
    pub(crate) rule: String,
    pub(crate) packets: u64,
}

/// How a generator kept its rate.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rate {
    pub(crate) port: String,
    pub(crate) asked: f64,
    pub(crate) reached: f64,
    pub(crate) given_up: u64,
}

/// What was found in sequence numbers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Check {
    pub(crate) port: String,
    pub(crate) arrived: u64,
    pub(crate) lost: u64,
    pub(crate) outstanding: u64,
    pub(crate) late: u64,
    pub(crate) twice: u64,
    pub(crate) foreign: u64,
}

/// An event that a port survived.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Event {
    pub(crate) port: String,
    pub(crate) event: String,
    pub(crate) times: u64,
}

/// A live line.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Live {
    pub(crate) seconds: f64,
    pub(crate) ports: Vec<Port>,
    pub(crate) events: Vec<Event>,
    pub(crate) rates: Vec<Rate>,
    pub(crate) verified: Vec<Check>,
}

/// Any line of `--json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Line {
    Start(Box<serde_json::Value>),
    Live(Live),
    Summary(Box<Summary>),
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) rx: Flow,
    pub(crate) tx: Flow,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Flow {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) retries: u64,
    pub(crate) errors: u64,
    pub(crate) missed: u64,
    pub(crate) missed_at: Vec<MissedAt>,
    pub(crate) drops: Vec<Drops>,
}

/// Packets that were lost at one place outside of the datapath.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct MissedAt {
    pub(crate) place: String,
    pub(crate) packets: u64,
    pub(crate) remedy: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Balance {
    pub(crate) received: u64,
    pub(crate) split: u64,
    /// Copies for several egresses.
    pub(crate) flooded: u64,
    /// Made by a router.
    pub(crate) originated: u64,
    pub(crate) sent: u64,
    pub(crate) merged: u64,
    pub(crate) drops: Vec<Drops>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Drops {
    pub(crate) reason: String,
    pub(crate) packets: u64,
}

impl Summary {
    /// Asserts that all packets are accounted for and that every buffer is back in its pool.
    #[track_caller]
    pub(crate) fn is_balanced(&self) -> &Summary {
        assert_eq!(
            (self.in_flight, self.buffers_away, self.pages_away),
            (0, 0, 0),
            "the balance is not exact: {self:#?}"
        );
        let Balance { received, split, flooded, originated, sent, merged, drops } = &self.balance;
        let dropped: u64 = drops.iter().map(|d| d.packets).sum();
        let made = split + flooded + originated;
        assert_eq!(received + made, sent + merged + dropped, "the balance does not add up: {self:#?}");
        self
    }

    /// Asserts that nothing was dropped, nothing failed and no port is gone.
    #[track_caller]
    pub(crate) fn is_clean(&self) -> &Summary {
        self.is_balanced();
        assert!(self.balance.drops.is_empty() && self.failures.is_empty(), "{self:#?}");
        self
    }

    /// Packets dropped for a reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        self.balance.drops.iter().filter(|d| d.reason == reason).map(|d| d.packets).sum()
    }

    /// How often an event happened on all ports.
    pub(crate) fn happened(&self, event: &str) -> u64 {
        times(&self.events, event)
    }

    /// The port whose name begins with `name`.
    #[track_caller]
    pub(crate) fn port(&self, name: &str) -> &Port {
        self.ports.iter().find(|p| p.name.starts_with(name)).unwrap_or_else(|| panic!("no port {name}: {self:#?}"))
    }
}

fn times(events: &[Event], event: &str) -> u64 {
    events.iter().filter(|happened| happened.event == event).map(|happened| happened.times).sum()
}

impl Live {
    /// How often an event has happened on all ports so far.
    pub(crate) fn happened(&self, event: &str) -> u64 {
        times(&self.events, event)
    }
}

/// Exit status and output.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The summary, which must be the last line. The sandbox refused the datapath nothing.
    #[track_caller]
    pub(crate) fn summary(&self) -> Summary {
        let last = self.stdout.lines().next_back().unwrap_or_default();
        match serde_json::from_str(last) {
            Ok(Line::Summary(summary)) => {
                assert!(summary.sandbox.refused.is_empty(), "{:?}", summary.sandbox);
                *summary
            }
            other => panic!("the last line is no summary: {other:?}: {self:#?}"),
        }
    }

    /// All summaries: one for each unit of `run` that has ended.
    pub(crate) fn summaries(&self) -> Vec<Summary> {
        let all = self.stdout.lines().filter_map(|line| match serde_json::from_str(line) {
            Ok(Line::Summary(summary)) => Some(*summary),
            _ => None,
        });
        all.collect()
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Finished {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }
}

/// The binary under test.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub(crate) fn run(args: &[&str]) -> Finished {
    let output = super::run(&mut command(args));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Finished { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// A running `towpath`; killed on drop.
pub(crate) struct Towpath {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Option<(JoinHandle<()>, JoinHandle<String>)>,
}

impl Towpath {
    /// Starts a command that moves packets and waits for its first line.
    #[track_caller]
    pub(crate) fn start(args: &[&str]) -> Towpath {
        Towpath::start_by(&mut command(args))
    }

    /// The same for a modified [`command`].
    #[track_caller]
    pub(crate) fn start_by(command: &mut Command) -> Towpath {
        command.args(["--json", "--interval", "50ms"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (stdout, mut stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let filled = lines.clone();
        let out = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                filled.lock().expect("no panic").push(line);
            }
        });
        let err = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut towpath = Towpath { child, lines, readers: Some((out, err)) };
        until("a first line, or the end", || towpath.lines() > 0 || towpath.has_ended());
        if towpath.lines() == 0 {
            panic!("{command:?} does not run: {:#?}", towpath.wait());
        }
        towpath
    }

    fn lines(&self) -> usize {
        self.lines.lock().expect("no panic").len()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child to wait for").is_some()
    }

    /// The next live line, newer than the call.
    #[track_caller]
    pub(crate) fn look(&mut self) -> Live {
        // The first line is that of the start.
        let seen = self.lines().max(1);
        until("another line", || self.lines() > seen || self.has_ended());
        let lines = self.lines.lock().expect("no panic");
        match serde_json::from_str(lines.last().expect("a line")) {
            Ok(Line::Live(live)) => live,
            other => panic!("it does not run: {other:?}"),
        }
    }

    /// Sends a signal: `SIGTERM`, `SIGKILL`.
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill takes no pointer. The process is a child that was not waited for, so its
        // number is not another's.
        let sent = unsafe { libc::kill(self.pid() as libc::pid_t, signal) };
        assert_eq!(sent, 0, "kill: {}", std::io::Error::last_os_error());
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Finished {
        let end = Instant::now() + LONGEST;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                break status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let (out, err) = self.readers.take().expect("taken only here");
        out.join().expect("no panic");
        let stdout = self.lines.lock().expect("no panic").join("\n");
        Finished { status, stdout, stderr: err.join().expect("no panic") }
    }

    /// Stops the command with SIGTERM and waits for its end.
    #[track_caller]
    pub(crate) fn stop(self) -> Finished {
        self.signal(libc::SIGTERM);
        self.wait()
    }
}

impl Drop for Towpath {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
