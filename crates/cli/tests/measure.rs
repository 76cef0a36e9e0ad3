//! `towpath measure` through devices: another towpath, a kernel bridge, a lossy one, none.

mod support;

use serde::Deserialize;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{Namespace, Towpath, run, until, until_some};

/// The object of `--json`.
#[derive(Debug, Deserialize)]
struct Report {
    a: String,
    b: String,
    interrupted: bool,
    failures: Vec<String>,
    results: Vec<SizeResult>,
}

#[derive(Debug, Deserialize)]
struct SizeResult {
    size: String,
    max_rate: u64,
    goals: Vec<Goal>,
    latencies: Vec<AtRate>,
    trials: Vec<Trial>,
}

#[derive(Debug, Deserialize)]
struct Goal {
    loss: f64,
    lower: Option<u64>,
    upper: Option<u64>,
    throughput: Option<f64>,
    complete: bool,
    limited_by: String,
}

#[derive(Debug, Deserialize)]
struct Trial {
    rate: u64,
    seconds: f64,
    generator_limited: bool,
    ways: Vec<DirectionCounts>,
}

#[derive(Debug, Deserialize)]
struct DirectionCounts {
    count: u64,
    made: u64,
    given_up: u64,
    unsent: u64,
    arrived: u64,
    twice: u64,
    loss: f64,
}

#[derive(Debug, Deserialize)]
struct AtRate {
    percent: u32,
    rate: u64,
    way: String,
    latency_us: Option<LatencyUs>,
}

#[derive(Debug, Deserialize)]
struct LatencyUs {
    samples: u64,
    min: f64,
    p50: f64,
    max: f64,
}

fn measure(a: &str, b: &str, more: &[&str]) -> Output {
    let quick = ["measure", a, b, "--trial", "100ms", "--goal-duration", "300ms", "--width", "10%", "--json"];
    run(Command::new(env!("CARGO_BIN_EXE_towpath")).args(quick).args(more))
}

#[track_caller]
fn report(output: &Output, code: i32) -> Report {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"))
}

impl Report {
    /// Asserts what holds for every result: the counts of trials add up, and a lower bound of a
    /// goal has no more loss in half of the time.
    #[track_caller]
    fn is_sane(&self) {
        for result in &self.results {
            for trial in &result.trials {
                for direction in &trial.ways {
                    assert_eq!(direction.made + direction.given_up, direction.count, "{self:#?}");
                    assert!(direction.arrived <= direction.made && direction.loss <= 1.0, "{self:#?}");
                    assert!(
                        trial.generator_limited == (direction.given_up + direction.unsent > 0) || trial.ways.len() > 1,
                        "{self:#?}"
                    );
                }
            }
            for goal in result.goals.iter().filter(|goal| goal.complete) {
                let Some(lower) = goal.lower else { continue };
                assert!(goal.throughput.unwrap() <= lower as f64 && goal.throughput.unwrap() > 0.0, "{self:#?}");
                let at = result.trials.iter().filter(|trial| trial.rate == lower && trial.seconds > 0.099);
                let met = |trial: &&Trial| trial.ways.iter().all(|direction| direction.loss <= goal.loss);
                let (good, bad): (Vec<_>, Vec<_>) = at.partition(met);
                assert!(!good.is_empty() && good.len() >= bad.len(), "{self:#?}");
            }
        }
    }
}

/// Two pairs of interfaces: `a0` and `a1` in the namespace that measures, `b0` and `b1` in that of
/// the device.
struct Device {
    tester: Namespace,
    device: Namespace,
}

impl Device {
    fn new() -> Device {
        let (tester, device) = (Namespace::new("tester"), Namespace::new("device"));
        for namespace in [&tester, &device] {
            namespace.set("ipv6/conf/default/disable_ipv6", "1");
        }
        for i in 0..2 {
            tester.ip(&format!("link add a{i} type veth peer b{i} netns {}", device.name()));
            tester.ip(&format!("link set a{i} up"));
            device.ip(&format!("link set b{i} up"));
        }
        Device { tester, device }
    }

    fn ports(&self) -> [String; 2] {
        ["a0", "a1"].map(|name| format!("packet:{name}?netns={}", self.tester.name()))
    }

    /// Joins the far ends by a towpath; `fault` stands in front of the first one.
    fn forward(&self, fault: &str) -> Towpath {
        let [b0, b1] = ["b0", "b1"].map(|name| format!("packet:{name}?netns={}", self.device.name()));
        Towpath::start(&["fwd", &format!("{fault}{b0}"), &b1])
    }
}

#[test]
fn the_throughput_of_a_forwarding_towpath_is_found_with_latencies_for_each_size() {
    require!("measure: the throughput of a forwarding towpath is found",);
    let device = Device::new();
    let towpath = device.forward("");
    let [a, b] = device.ports();
    let options = [
        "--drain",
        "2s",
        "--min-rate",
        "100",
        "--max-rate",
        "20k",
        "--size",
        "100",
        "--size",
        "imix",
        "--latency",
        "--goal-loss",
        "0",
        "--goal-loss",
        "1%",
    ];
    let found = report(&measure(&a, &b, &options), 0);
    found.is_sane();
    assert_eq!((found.a.as_str(), found.b.as_str(), found.interrupted), ("packet:a0", "packet:a1", false));
    assert_eq!(found.results.iter().map(|result| result.size.as_str()).collect::<Vec<_>>(), ["100", "imix"]);
    for result in &found.results {
        assert_eq!((result.max_rate, result.goals.iter().map(|goal| goal.loss).collect()), (20_000, vec![0.0, 0.01]));
        assert!(
            result.goals.iter().all(|goal| goal.complete && goal.lower.is_some_and(|lower| lower >= 100)),
            "{found:#?}"
        );
        let parts: Vec<_> = result.latencies.iter().map(|at| (at.percent, at.way.as_str())).collect();
        assert_eq!(parts, [(10, "a-to-b"), (50, "a-to-b"), (90, "a-to-b")].repeat(2));
        for at in &result.latencies {
            let latency = at.latency_us.as_ref().unwrap();
            assert!(at.rate > 0 && latency.samples > 0 && latency.min > 0.0, "{found:#?}");
            assert!(latency.min <= latency.p50 && latency.p50 <= latency.max, "{found:#?}");
        }
    }
    towpath.signal(libc::SIGTERM);
    towpath.wait().code(0);
}

#[test]
fn both_directions_of_a_kernel_bridge_are_measured_at_the_same_time() {
    require!("measure: both directions of a kernel bridge are measured",);
    let device = Device::new();
    device.device.ip("link add br0 type bridge");
    for name in ["b0", "b1"] {
        device.device.ip(&format!("link set {name} master br0"));
    }
    device.device.ip("link set br0 up");
    let [a, b] = device.ports();
    let addresses = "dst-mac=02:00:00:00:00:09,src-ip=10.0.0.0/28,dst-port=53";
    let options = ["--drain", "2s", "--bidirectional", "--min-rate", "100", "--max-rate", "5k", "--gen", addresses];
    let found = report(&measure(&a, &b, &options), 0);
    found.is_sane();
    let result = &found.results[0];
    assert!(result.goals[0].complete && result.goals[0].lower.is_some(), "{found:#?}");
    assert!(result.trials.iter().all(|trial| trial.ways.len() == 2), "{found:#?}");
    assert!(result.trials.iter().flat_map(|trial| &trial.ways).all(|direction| direction.twice == 0), "{found:#?}");
}

#[test]
fn a_device_that_loses_a_fifth_meets_a_goal_of_half_and_no_goal_of_nothing() {
    require!("measure: a device that loses a fifth meets a goal of half",);
    let device = Device::new();
    let towpath = device.forward("fault:drop=20%@");
    let [a, b] = device.ports();
    let options = ["--goal-loss", "0", "--goal-loss", "50%", "--min-rate", "2k", "--max-rate", "2k"];
    // A machine that is held up for longer than some trials loses the packets of these.
    let half = until_some("half of the packets arrive", || {
        let mut found = report(&measure(&a, &b, &options), 0);
        found.is_sane();
        let [none, _] = found.results[0].goals.as_slice() else { panic!("{found:#?}") };
        // Of 200 packets in a trial none is lost once in 10^19 times.
        assert_eq!((none.complete, none.lower, none.upper, none.throughput), (true, None, Some(2000), None));
        found.results[0].goals.pop().filter(|half| half.lower.is_some())
    });
    assert_eq!((half.lower, half.upper, half.limited_by.as_str()), (Some(2000), None, "max-rate"));
    assert!(half.throughput.unwrap() < 2000.0, "{half:#?}");
    towpath.signal(libc::SIGTERM);
    towpath.wait();
}

#[test]
fn a_rate_that_the_generator_cannot_make_is_its_limit_and_not_the_devices() {
    let found = report(&measure("veth:w", "veth:w", &["--max-rate", "10G", "--drain", "30s"]), 0);
    found.is_sane();
    let result = &found.results[0];
    assert_eq!((result.goals[0].complete, result.goals[0].limited_by.as_str()), (true, "generator"), "{found:#?}");
    assert!(result.trials[0].generator_limited && result.trials[0].rate == 10_000_000_000, "{found:#?}");
    let unnamed = report(&measure("veth:w", "veth:w", &["--drain", "30s"]), 0);
    unnamed.is_sane();
    assert_eq!(unnamed.results[0].goals[0].limited_by, "generator", "{unnamed:#?}");
}

#[test]
fn a_signal_ends_the_search_with_what_was_found_so_far() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args([
        "measure",
        "veth:w",
        "veth:w",
        "--max-rate",
        "1k",
        "--trial",
        "300ms",
        "--goal-duration",
        "1h",
        "--json",
    ]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // It handles the signal before its workers run.
    until("the workers run", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
            .any(|name| name.starts_with("towpath-"))
    });
    let asked = Instant::now();
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(60));
    let found = report(&output, 1);
    assert!(found.interrupted && found.failures.is_empty(), "{found:#?}");
    assert!(
        found
            .results
            .iter()
            .flat_map(|result| &result.goals)
            .all(|goal| !goal.complete && goal.limited_by == "unknown")
    );
}

#[test]
fn ports_that_nothing_joins_are_an_error_that_names_them() {
    let found = report(&measure("null:", "null:", &[]), 1);
    assert!(found.failures[0].starts_with("no packet from null: arrives at null: (64 sent"), "{found:#?}");
    assert!(found.results.is_empty());
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_is_sent() {
    for (more, part) in [
        (&["--goal-loss", "1"][..], "must be from 0 to less than 1"),
        (&["--trial", "1s", "--initial-trial", "2s"], "--initial-trial 2s: must be at most --trial"),
        (&["--trial", "1s", "--goal-duration", "1ms"], "--goal-duration 1ms: must be at least --trial"),
        (&["--min-rate", "2k", "--max-rate", "1k"], "--max-rate 1000: must be at least --min-rate"),
        (&["--size", "63-"], "size=63-"),
        (&["--size", "50"], "size=50: must be from 62"),
        (&["--size", "70000"], "size=70000: must be from 43"),
        (&["--gen", "rate=5"], "--gen rate=: is not for measure"),
        (&["--gen", "colour=5"], "colour=5: no such option"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        let output = run(command.args(["measure", "veth:w", "veth:w"]).args(more));
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(part), "{more:?}: {err}");
    }
}
