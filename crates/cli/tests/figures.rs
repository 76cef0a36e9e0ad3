//! `towpath bench`: its figures, and what a signal leaves of it.

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{run, succeed, until};

fn towpath(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(args);
    command
}

#[track_caller]
fn is_drawing(path: &Path, parts: &[&str]) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_bench_draws_what_it_prints_and_the_same_is_drawn_from_its_json() {
    let dir = tempfile::tempdir().unwrap();
    let [direct, json, later] = ["direct.svg", "vm.json", "later.svg"].map(|name| dir.path().join(name));
    let args =
        ["bench", "vm", "--rings", "split", "--sizes", "64,1500", "--rounds", "1", "--bursts", "2", "--json", "--svg"];
    let out = succeed(towpath(&args).arg(&direct));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["partial"], report["rows"].as_array().unwrap().len()), (&Value::Bool(false), 8));
    std::fs::write(&json, out).unwrap();
    succeed(towpath(&["bench", "plot"]).arg(&json).arg("--svg").arg(&later));
    is_drawing(&direct, &["sides of a virtqueue (ns a packet)", "split, driver sends", "bytes of a frame"]);
    assert_eq!(std::fs::read(&direct).unwrap(), std::fs::read(&later).unwrap());
}

#[test]
fn the_figures_of_the_pages_are_drawn_from_their_records() {
    let perf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/perf");
    // The archive of the crate has no pages.
    let Ok(records) = std::fs::read_dir(perf.join("data")) else { return };
    let files = std::fs::read_dir(&perf).unwrap().map(|entry| entry.unwrap().path());
    let pages: String =
        files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let dir = tempfile::tempdir().unwrap();
    let again = dir.path().join("again.svg");
    for record in records.map(|entry| entry.unwrap().path()) {
        let name = record.file_stem().and_then(|name| name.to_str()).unwrap();
        succeed(towpath(&["bench", "plot"]).arg(&record).arg("--svg").arg(&again));
        let kept = perf.join("figures").join(name).with_extension("svg");
        assert!(std::fs::read(&again).unwrap() == std::fs::read(&kept).unwrap(), "benches/figures must draw {name}");
        assert!(pages.contains(&format!("(figures/{name}.svg)")), "no page shows {name}");
    }
}

#[test]
fn what_cannot_be_drawn_is_an_error_with_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let [json, svg] = ["x.json", "x.svg"].map(|name| dir.path().join(name));
    let error = |content: &str| {
        std::fs::write(&json, content).unwrap();
        let output = run(towpath(&["bench", "plot"]).arg(&json).arg("--svg").arg(&svg));
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(error("{}").contains("there is nothing to draw: must be the object that --json"));
    assert!(error("table").contains("must be JSON"));
    let output = run(&mut towpath(&["bench", "vm", "--svg", "/nowhere/x.svg"]));
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "before anything is measured");
    let output = run(towpath(&["bench", "plot"]).arg(&json));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--svg FILE: must name"));
}

/// Interrupts a bench that goes on for hours; returns its output.
fn interrupted(args: &[&str]) -> String {
    let child = towpath(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // The command registers two actions for SIGINT, then those for SIGTERM, which is bit 15 of the
    // signals that it catches: a SIGINT between the first two would be ignored.
    until("it takes the signal", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 << 14 != 0)
    });
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{out}\n{err}");
    out.into_owned()
}

#[test]
fn a_signal_leaves_a_bench_with_what_it_has_measured_and_says_so() {
    let vm = ["bench", "vm", "--bursts", "10", "--rounds", "1000000"];
    let out = interrupted(&vm);
    assert!(out.contains("PARTIAL: interrupted"), "{out}");
    let out = interrupted(&[&vm[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["partial"], true);
    for args in [
        &["bench", "copybreak", "--samples", "1000000", "--rounds", "100000", "--wait-ns", "--json"][..],
        &["bench", "copybreak", "--tx", "--samples", "1000000", "--rounds", "100000", "--json"],
        &["bench", "batch", "--rounds", "100000", "--bursts", "2", "--json"],
        &["bench", "xsk", "--egress", "veth", "--rounds", "100000", "--bursts", "2", "--json"],
    ] {
        let out = interrupted(args);
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"));
        assert_eq!(report["partial"], true, "{args:?}");
    }
}
