//! What applications of other users can take from an honest one: its rate and its latency, and what
//! the datapath uses meanwhile. Root alone can start processes of other users.
//!
//! ```sh
//! cargo bench -p towpath-cli --bench neighbours
//! cargo bench -p towpath-cli --bench neighbours -- --only flood --rounds 9 --json
//! ```
//!
//! ```text
//!   first core    the datapath, with all of its threads and processes, alone
//!   last core     the honest application; strangers, and a process that uses what is left, both of
//!                 which run only while the honest application does not (SCHED_IDLE)
//! ```
//!
//! A stranger costs a machine processor time by being a process, with a datapath or without: that
//! the kernel's scheduler shares. Here it takes none from the honest application, and all that it
//! makes the datapath do is on the datapath's core, where the honest application's packets wait for
//! it. The last core is never idle, with strangers or without, so that both cases wake up alike.
//!
//! | file | content |
//! |---|---|
//! | `honest` | the honest application |
//! | `guest` | an honest guest in its place |
//! | `table` | the figures, and how they are printed |
//! | `../../tests/support/strangers` | the strangers, which the tests start too |
//! | `../../tests/support/guests` | those of them that are guests |

mod guest;
mod honest;
mod table;

#[allow(dead_code, unused_imports, reason = "its unit tests have no harness here")]
#[path = "../../src/bench/machine.rs"]
mod machine;
#[path = "../../tests/support/mod.rs"]
mod support;

use clap::Parser;
use honest::{Honest, Plan, Sample};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use support::control_group::Group;
use support::process;
use support::strangers::{self, Stranger};
use support::{Towpath, datapath};
use table::{Report, Row};

/// Bytes of the datapath's control group where memory is scarce.
const LITTLE: usize = 60 << 20;

/// The honest neighbour's rate and latency, alone and with strangers in turns.
#[derive(Debug, Parser)]
struct Args {
    /// Rounds of alone and beside; the medians count
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Time of a measurement of the rate, and of one of the latency
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
    /// Frames a second that the honest application offers
    #[arg(long, value_name = "N", default_value_t = 200_000.0)]
    rate: f64,
    /// The user of the strangers; the honest application's is the number below, and that of further
    /// strangers the one below that
    #[arg(long, value_name = "UID", default_value_t = 65_534, value_parser = clap::value_parser!(u32).range(3..))]
    user: u32,
    /// Only those whose names contain this
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// One short round
    #[arg(long, alias = "test")]
    quick: bool,
    /// Fail if anything had to be skipped
    #[arg(long)]
    require: bool,
    /// Fail if a target is missed
    #[arg(long)]
    targets: bool,
    /// For machines
    #[arg(long)]
    json: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// The time in which a datapath becomes quiet, and in which it is watched then.
const SETTLE: Duration = Duration::from_millis(500);

/// Strangers, and the datapath that they find.
struct Scenario {
    name: &'static str,
    /// The roles, each of another user if there are two.
    roles: &'static [&'static str],
    /// Options of the first socket.
    options: &'static str,
    /// The honest application is a guest, and so are the strangers, at the second socket.
    guests: bool,
    /// Whether the datapath has little memory.
    little: bool,
}

const fn scenario(name: &'static str, roles: &'static [&'static str]) -> Scenario {
    Scenario { name, roles, options: "", guests: false, little: false }
}

const fn guests(name: &'static str, roles: &'static [&'static str]) -> Scenario {
    Scenario { guests: true, ..scenario(name, roles) }
}

const SCENARIOS: [Scenario; 21] = [
    scenario("no stranger", &[]),
    scenario("lingering sockets as kicks", &["kicks"]),
    scenario("a lingering socket in the Hello", &["hello"]),
    scenario("a FUSE file in the Hello", &["fuse"]),
    scenario("an O_PATH descriptor in the Hello", &["opath"]),
    scenario("64 sessions", &["sessions 64", "sessions 64"]),
    scenario("512 rules", &["rules 512", "rules 512"]),
    Scenario { little: true, ..scenario("sparse memory, 60 MiB", &["sparse"]) },
    scenario("starved lines", &["starved"]),
    scenario("shut lines", &["shut"]),
    Scenario { options: ",sessions=128", ..scenario("a flood by 40 sessions", &["flood 40"]) },
    guests("guest: no stranger", &[]),
    guests("guest: wild words in rings", &["guest wild"]),
    guests("guest: endless chains without a frame", &["guest endless"]),
    guests("guest: kicks", &["guest kicks"]),
    guests("guest: full counters of calls", &["guest calls"]),
    guests("guest: truncated memory", &["guest truncates"]),
    guests("guest: connections with rings", &["guest connects"]),
    guests("guest: connections without a word", &["guest silent"]),
    guests("guest: tables of memory", &["guest tables"]),
    guests("guest: rings stopped and started", &["guest stops"]),
];

/// Pins this thread to a core.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).unwrap();
}

/// Begins a stranger's process: it runs on a core that nothing else uses.
fn begin_stranger() {
    let cores = towpath::engine::worker::cores();
    pin(cores[cores.len() - 1]);
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure lives across the call.
    assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) }, 0);
}

fn main() -> ExitCode {
    strangers::play(begin_stranger);
    honest::play();
    let mut args = Args::parse();
    if args.quick {
        (args.rounds, args.seconds) = (1, 0.1);
    }
    let mut report = Report::new(args.rounds, args.seconds, args.rate);
    let cores = towpath::engine::worker::cores();
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        report.skipped.push("all: processes of other users need root".into());
    } else if cores.len() < 2 {
        report.skipped.push("all: two cores are needed".into());
    } else {
        let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| name.contains(only.as_str()));
        for scenario in SCENARIOS.iter().filter(|scenario| wanted(scenario.name)) {
            match measure(scenario, &args, [cores[0], cores[cores.len() - 1]]) {
                Ok(row) => report.rows.push(row),
                Err(why) => report.skipped.push(format!("{}: {why}", scenario.name)),
            }
        }
    }
    report.print(args.json);
    let failed = (args.require && !report.skipped.is_empty()) || (args.targets && !report.missed().is_empty());
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The command that starts the datapath, in the control group if there is one.
fn command(sockets: &[String; 2], scenario: &Scenario, group: Option<&Group>) -> Command {
    let kind = if scenario.guests { "vhost" } else { "sock" };
    let ports = [scenario.options, ""].map(|options| format!("?mode=666{options}"));
    let ports: Vec<_> = sockets.iter().zip(ports).map(|(path, options)| format!("{kind}:{path}{options}")).collect();
    let mut arguments = vec!["fwd", &ports[0], &ports[1]];
    if scenario.guests {
        arguments.extend(["--rule", "tx udp dport 7", "--rule", "default drop"]);
    }
    let Some(group) = group else { return datapath::command(&arguments) };
    let mut command = group.command(env!("CARGO_BIN_EXE_towpath"));
    command.args(arguments).args(["--buffers", "2048"]).stdin(Stdio::null());
    command
}

fn measure(scenario: &Scenario, args: &Args, [core, other]: [usize; 2]) -> Result<Row, String> {
    if scenario.roles.contains(&"fuse") && !std::path::Path::new("/dev/fuse").exists() {
        return Err("there is no /dev/fuse".into());
    }
    let group = if scenario.little { Some(Group::new(LITTLE).ok_or("no control group")?) } else { None };
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).map_err(|error| error.to_string())?;
    let sockets = ["a", "b"].map(|name| dir.path().join(name).display().to_string());
    // The datapath inherits this thread's core.
    pin(core);
    let towpath = Towpath::start_by(&mut command(&sockets, scenario, group.as_ref()));
    pin(other);
    let pid = towpath.pid();
    let guest = scenario.guests;
    let plan = Plan { user: args.user - 1, core: other, sockets: sockets.clone(), guest, rate: args.rate };
    let mut honest = Honest::start(&plan);
    let theirs = &sockets[usize::from(guest)];
    let start = |(n, role): (usize, &&str)| Stranger::start(args.user - 2 * n as u32, role, theirs, "");
    let burner = Stranger::start(args.user, "burn", &sockets[0], "");
    burner.ready();
    let time = Duration::from_secs_f64(args.seconds);
    // A warm-up.
    honest.measure(time / 4)?;
    let (mut pairs, mut beside, mut got, mut files): (Vec<[Sample; 2]>, Vec<Stranger>, _, _) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..args.rounds {
        beside.clear();
        let alone = honest.measure(time)?;
        beside.extend(scenario.roles.iter().enumerate().map(start));
        got = beside.iter().map(Stranger::ready).collect();
        pairs.push([alone, honest.measure(time)?]);
        files = files.max(process::files(pid));
    }
    let [idle_percent, wakeups] = idle(pid, &beside, if args.quick { time } else { time.max(SETTLE) });
    let (rss, peak) = process::memory(pid);
    let begun = Instant::now();
    towpath.signal(libc::SIGINT);
    let finished = towpath.wait();
    let end = begun.elapsed();
    // A port without a guest at the end of a run is down.
    let summary = if guest { finished.summary() } else { finished.code(0).summary() };
    summary.is_balanced();
    let refused = summary.happened("sessions-refused");
    got.retain(|got| !got.is_empty());
    let got = got.join(" + ");
    Ok(Row::new(scenario.name, &pairs, got)
        .used([rss, peak].map(|kib| kib as f64 / 1024.0), files, [idle_percent, wakeups])
        .ended(end, refused))
}

/// Processor time in percent of a core, and wake-ups a second, of the datapath while strangers are
/// stopped in whatever they were doing.
fn idle(pid: u32, strangers: &[Stranger], time: Duration) -> [f64; 2] {
    let signal = |signal| strangers.iter().for_each(|stranger| stranger.signal(signal));
    signal(libc::SIGSTOP);
    std::thread::sleep(time.min(SETTLE));
    let ((ns, sleeps), begun) = (process::work(pid), Instant::now());
    std::thread::sleep(time);
    let ((ns_after, sleeps_after), took) = (process::work(pid), begun.elapsed().as_secs_f64());
    signal(libc::SIGCONT);
    [ns_after.saturating_sub(ns) as f64 / 1e7 / took, sleeps_after.saturating_sub(sleeps) as f64 / took]
}
