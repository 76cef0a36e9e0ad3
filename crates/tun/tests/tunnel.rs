//! The example `wireguard` between two namespaces, by the script that measures it.

use std::path::Path;
use std::process::Command;
use towpath_testing::{Need, needs, skip};

/// Runs the script for a second; returns its last line, and all lines.
fn measured(program: &Path, variants: &[&str]) -> (String, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/tunnel");
    let output = Command::new(script)
        .args(["--seconds", "1", "--rounds", "1", "--program"])
        .arg(program)
        .args(variants)
        .output()
        .expect("bash");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    (text.lines().last().unwrap_or_default().to_owned(), text)
}

#[test]
fn bytes_flow_through_the_tunnel_with_both_offloads_and_without_and_retransmissions_are_reported() {
    let name = "bytes_flow_through_the_tunnel_with_both_offloads_and_without_and_retransmissions_are_reported";
    let programs = ["ip", "ping", "iperf3", "jq", "ss", "setpriv"].map(Need::Program);
    if !needs(name, &[Need::Root, Need::Tun]) || !needs(name, &programs) {
        return;
    }
    // cargo builds the examples of a package with its tests, unless single tests are asked for.
    let tests = std::env::current_exe().expect("this program");
    let program = tests.parent().and_then(Path::parent).expect("target/debug").join("examples/wireguard");
    if !program.is_file() {
        skip(name, "the example is not built: cargo build -p towpath-tun --example wireguard");
        return;
    }
    let (json, text) = measured(&program, &["none", "both"]);
    for variant in ["none", "both"] {
        assert!(json.contains(&format!("\"variant\":\"{variant}\"")), "{text}");
    }
    assert_eq!(json.matches("\"retransmissions\":[").count(), 2, "{text}");
    assert!(!json.contains("\"gbps\":[0]"), "{text}");
}
