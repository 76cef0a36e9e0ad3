//! `towpath bench latency`: the time of a message from one application to another, through the
//! datapath and, in the same run, through the kernel.
//!
//! ```text
//!                             first core                            second core
//!   sock → sock, two cores    application, TX ring, datapath ─────► RX ring, application
//!   sock → sock, one core     application, TX ring ───────────────► datapath
//!                             RX ring, application ◄─────────────── datapath
//!   UDP over veth             sendto, stack, veth pair, stack ────► recv in another namespace
//!   AF_XDP over veth          sendto on an XDP socket, veth pair ─► XDP socket in another namespace
//! ```
//!
//! Sender and receiver have a core each, as the kernel's have; with *one core* the ends share one
//! and the datapath has the other.
//!
//! *Spinning*: two threads never yield their cores, and each message is sent when the previous one
//! has arrived. With *two cores* the sender's thread turns the datapath's route, as it runs the
//! kernel's stack in its system calls. *Sleeping*: a message is sent after a pause in which all
//! threads go to sleep, the datapath's too. Each of them must be woken: by an eventfd and a byte
//! on the connection, or by the kernel. *Adaptive*: the same applications, and a datapath that stays
//! awake while messages come closely, as it does by default. Voluntary context switches per message,
//! without the sender's pauses, show who slept.
//!
//! A message carries its time of sending. Paths and modes take turns, round by round, so that a
//! slow moment of the machine affects all of them. The percentiles are over all rounds.
//!
//! | file | content |
//! |---|---|
//! | `exchange` | messages with time stamps |
//! | `sock` | through the datapath |
//! | `udp` | through the kernel's stack |
//! | `xdp` | through AF_XDP |

mod exchange;
mod sock;
mod udp;
mod xdp;

use super::netns::Namespace;
use super::show;
use crate::args::BenchLatency;
use crate::bench::interrupt::until_interrupted;
use exchange::{Mode, Sample};
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::process::{Command, ExitCode};

const COUNTED: &str = "one way, from before the sender's call to after the receiver's, by one clock";

/// One round of a path, with the sender on the first core and the other thread on the second.
type Round = fn(Mode, &BenchLatency, [usize; 2]) -> Result<Sample, Box<dyn Error>>;

/// The kernel's ways have no datapath of their own that could stay awake.
const PATHS: [(&str, Round, &[Mode]); 4] = [
    ("towpath: ends on two cores", sock::two_cores, &[Mode::Spin, Mode::Sleep, Mode::Adaptive]),
    ("towpath: ends on one core", sock::one_core, &[Mode::Spin, Mode::Sleep, Mode::Adaptive]),
    ("kernel: UDP over veth", udp::round, &[Mode::Spin, Mode::Sleep]),
    ("kernel: AF_XDP over veth", xdp::round, &[Mode::Spin, Mode::Sleep]),
];

/// One path in one mode.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(rename = "way")]
    path: &'static str,
    mode: &'static str,
    messages: u64,
    lost: u64,
    /// Percentiles, in microseconds.
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// The curve that the percentiles are points of.
    distribution: Vec<Percentile>,
    /// Sleeps of a thread per message.
    sleeps: f64,
}

/// The part of the messages that took at most so long.
#[derive(Debug, Serialize)]
struct Percentile {
    percent: f64,
    us: f64,
}

/// Those of the curve, as far as there are messages beyond them.
const PERCENTS: [f64; 13] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95, 99.99];

#[derive(Debug, Serialize)]
struct Report {
    size: usize,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

pub(crate) fn run(args: &BenchLatency) -> Result<ExitCode, Box<dyn Error>> {
    let cores = towpath::engine::worker::cores();
    let cores = [cores[0], cores[cores.len() - 1]];
    if cores[0] == cores[1] {
        return Err("two cores are needed: one for the application, one for the datapath".into());
    }
    let mut found: Vec<(&str, Mode, Result<Sample, String>)> = Vec::new();
    for round in 0..args.rounds {
        let all = PATHS.iter().flat_map(|(path, measure, modes)| modes.iter().map(move |mode| (*path, *mode, measure)));
        for (i, (path, mode, measure)) in until_interrupted(all.enumerate()) {
            if round == 0 {
                found.push((path, mode, Sample::new().map_err(|error| error.to_string())));
            }
            if let Some((_, _, sum)) = found.get_mut(i)
                && let Ok(all) = sum
            {
                match measure(mode, args, cores) {
                    Ok(sample) => all.add(&sample),
                    Err(error) => *sum = Err(error.to_string()),
                }
            }
        }
    }
    let mut report = Report { size: args.size, rows: Vec::new(), skipped: Vec::new() };
    for (path, mode, sample) in found {
        match sample {
            Ok(sample) => report.rows.push(row(path, mode, &sample)),
            Err(error) => report.skipped.push(format!("{path}, {}: {error}", mode.name())),
        }
    }
    show(args.json, COUNTED, &report, || print(&report, args))?;
    Ok(if args.require && !report.skipped.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn row(path: &'static str, mode: Mode, sample: &Sample) -> Row {
    let us = |quantile| sample.ns.value_at_quantile(quantile) as f64 / 1e3;
    let messages = sample.ns.len();
    let beyond = |percent: &&f64| (100.0 - **percent) / 100.0 * messages as f64 >= 1.0;
    let distribution =
        PERCENTS.iter().filter(beyond).map(|&percent| Percentile { percent, us: us(percent / 100.0) }).collect();
    Row {
        path,
        mode: mode.name(),
        messages,
        lost: sample.lost,
        p50_us: us(0.5),
        p99_us: us(0.99),
        p999_us: us(0.999),
        distribution,
        sleeps: sample.sleeps as f64 / (messages + sample.lost).max(1) as f64,
    }
}

fn print(report: &Report, args: &BenchLatency) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:26} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6}",
        "one way, microseconds", "mode", "p50", "p99", "p99.9", "messages", "sleeps", "lost"
    )?;
    for Row { path, mode, messages, lost, p50_us, p99_us, p999_us, sleeps, .. } in &report.rows {
        writeln!(
            out,
            "{path:26} {mode:>8} {p50_us:>9.2} {p99_us:>9.2} {p999_us:>9.2} {messages:>9} {sleeps:>8.2} {lost:>6}"
        )?;
    }
    for skipped in &report.skipped {
        writeln!(out, "skipped: {skipped}")?;
    }
    writeln!(
        out,
        "\n{} rounds of {} messages of {} bytes, {} us of pause before each where threads sleep; sleeps: for each message",
        args.rounds, args.messages, args.size, args.pause
    )
}

/// Two namespaces joined by a veth pair with addresses.
struct Pair {
    near: Namespace,
    far: Namespace,
}

impl Pair {
    /// Makes the namespaces and the pair.
    fn new() -> Result<Pair, Box<dyn Error>> {
        let (near, far) = (Namespace::new(None)?, Namespace::new(None)?);
        let peer = far.run(nix::unistd::gettid)?;
        let ends = [
            (
                &near,
                vec![
                    format!("link add v0 type veth peer name v0 netns {peer}"),
                    "addr add 198.18.0.1/24 dev v0".into(),
                ],
            ),
            (&far, vec!["addr add 198.18.0.2/24 dev v0".into()]),
        ];
        for (end, commands) in ends {
            let up = ["link set lo up".to_owned(), "link set v0 up".to_owned()];
            end.run(move || commands.iter().chain(&up).try_for_each(|command| ip(command)))??;
        }
        Ok(Pair { near, far })
    }
}

/// Runs `ip` in the namespace of this thread.
fn ip(command: &str) -> Result<(), String> {
    let done = Command::new("ip").args(command.split_whitespace()).output();
    let done = done.map_err(|error| format!("ip, of iproute2, does not run: {error}"))?;
    let stderr = || String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(format!("ip {command}: {}", stderr())) }
}
