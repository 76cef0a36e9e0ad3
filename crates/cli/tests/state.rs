//! A running instance as others see it: `towpath state`, `--metrics`, `towpath top`.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::datapath::{self, Towpath};
use support::{Need, needs, skip, until};

/// A generator that runs, with its control socket and its metrics at paths.
fn start() -> (tempfile::TempDir, Towpath, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (control, metrics) = (dir.path().join("control"), dir.path().join("metrics"));
    let (control_option, metrics_option) =
        (format!("--control={}", control.display()), format!("--metrics=unix:{}", metrics.display()));
    let args = ["fwd", "gen:rate=1k,flows=3", "null:", "--oneway", &control_option, &metrics_option];
    let towpath = Towpath::start(&args);
    (dir, towpath, control, metrics)
}

/// The status and headers, and the body, of what is answered to `GET`.
fn get(metrics: &Path, target: &str, more: &str) -> (String, String) {
    let mut client = UnixStream::connect(metrics).unwrap();
    write!(client, "GET {target} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_state_of_a_running_instance_has_its_packets_and_its_largest_flows() {
    let (_dir, towpath, control, metrics) = start();
    let option = format!("--control={}", control.display());
    until("three flows in the document", || {
        let json = datapath::run(&["state", &option, "--json"]).code(0).stdout;
        let state: serde_json::Value = serde_json::from_str(&json).unwrap();
        let unit = &state["units"][0];
        let flows = unit["routes"][0]["flows"].as_array().unwrap().len();
        unit["ports"][0]["rx"]["packets"].as_u64().unwrap() > 0 && flows == 3
    });
    let text = datapath::run(&["state", &option]).code(0).stdout;
    assert!(text.contains("unit fwd") && text.contains("route a.0"), "{text}");
    let (head, page) = get(&metrics, "/", "");
    assert!(head.contains("Content-Security-Policy: default-src 'none'") && page.contains("</html>"), "{head}");
    let picture = datapath::run(&["top", &option, "--once", "--interval=100ms", "--view=ports"]).code(0).stdout;
    assert!(picture.contains("rx pps") && picture.contains("gen:"), "{picture}");
    // The sandbox refused none of it.
    towpath.stop().code(0).summary();
    assert!(!metrics.exists() && !control.exists());
}

#[test]
fn a_client_that_is_slow_or_sends_too_much_is_bounded_and_delays_no_other() {
    let (_dir, towpath, _, metrics) = start();
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(&metrics).unwrap()).collect();
    assert!(get(&metrics, "/metrics", "").0.starts_with("HTTP/1.1 200"));
    let mut long = UnixStream::connect(&metrics).unwrap();
    // It may be refused before all of it is written.
    let _ = long.write_all(format!("GET / HTTP/1.1\r\nx: {}", "a".repeat(8192)).as_bytes());
    let mut answer = String::new();
    let _ = long.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    for mut client in silent {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is closed after its time");
    }
    towpath.stop().code(0).summary();
}

#[test]
fn promtool_accepts_the_metrics() {
    const NAME: &str = "promtool_accepts_the_metrics";
    if !needs(NAME, &[Need::Program("promtool")]) {
        return;
    }
    let (_dir, _towpath, _, metrics) = start();
    let text = get(&metrics, "/metrics", "").1;
    checked(Command::new("promtool").args(["check", "metrics"]), &text);
}

#[test]
fn the_parser_of_prometheus_reads_the_metrics() {
    const NAME: &str = "the_parser_of_prometheus_reads_the_metrics";
    const PYTHON: &str = "/usr/bin/python3";
    let module = "from prometheus_client.openmetrics.parser import text_string_to_metric_families as families\n";
    let found = Command::new(PYTHON).args(["-c", module]).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return skip(NAME, "python3-prometheus-client is not installed");
    }
    let (_dir, _towpath, _, metrics) = start();
    let (head, text) = get(&metrics, "/metrics", "Accept: application/openmetrics-text\r\n");
    assert!(head.contains("application/openmetrics-text") && text.ends_with("# EOF\n"), "{head}");
    let program = format!("{module}import sys\nassert len(list(families(sys.stdin.read()))) > 20");
    checked(Command::new(PYTHON).args(["-c", &program]), &text);
}

/// Runs a program that must accept `text` as its input.
fn checked(command: &mut Command, text: &str) {
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_port_of_the_loopback_is_chosen_and_noted() {
    let towpath = Towpath::start(&["fwd", "gen:rate=1k", "null:", "--oneway", "--metrics=0"]);
    let note = towpath.stop().code(0).stderr;
    let at = note.split("metrics: http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
    assert!(at.starts_with("127.0.0.1:"), "{note}");
    assert!(TcpStream::connect(at).is_err(), "it is closed at the end");
}
