//! The cost of a batch in register accesses and system calls, as the command prints it. Times are
//! not asserted.

mod support;

use serde_json::Value;
use std::process::Command;
use support::{NETWORK, Namespace, Need, datapath, needs};

fn report(args: &[&str]) -> Value {
    let report = datapath::run(&[&["bench", "batch", "--json"], args].concat()).code(0);
    serde_json::from_str(&report.stdout).unwrap()
}

/// The sum of both kinds of accesses.
fn accesses(cost: &Value) -> f64 {
    cost["writes"].as_f64().unwrap() + cost["reads"].as_f64().unwrap()
}

#[test]
fn the_table_of_batches_shows_the_accesses_for_each_packet() {
    let report = report(&["--only", "sweep", "--bursts", "8", "--rounds", "1"]);
    let rows = report["sweep"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 2 * 9);
    for row in rows.iter().filter(|row| row["batch"] == 32) {
        assert!(accesses(&row["tx"]) <= 0.09, "{row}");
    }
    assert_eq!((report["scenarios"].as_array().unwrap().len(), &report["qemu"]), (0, &Value::Null));
}

/// Without batches: two writes per packet, and two reads for the 64 packets of a poll.
#[test]
fn the_scenarios_of_the_series_cost_two_writes_a_packet_before_and_less_after() {
    let report = report(&["--only", "scenarios", "--bursts", "40", "--rounds", "1"]);
    let rows = report["scenarios"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let before = accesses(&row["before"]);
        assert!((1.9..=2.0 + 2.0 / 64.0).contains(&before), "{row}");
        let scenario = row["scenario"].as_str().unwrap();
        // Free descriptors that are passed by messages have a write each.
        let most = if scenario.starts_with("J784S4") && scenario.ends_with(" in") { 1.1 } else { 0.09 };
        assert!(accesses(&row["after"]) <= most, "{row}");
        // The series batches what is sent.
        assert_eq!(row["series"]["batched"], scenario.ends_with("UDP out"), "{row}");
        assert!(row["break_even_ns"].as_f64().is_some_and(|ns| ns >= 0.0), "{row}");
        // A dearer write takes throughput and adds load.
        let at = row["at"].as_array().unwrap();
        assert_eq!(at.len(), 4);
        for pair in at.windows(2) {
            for side in 0..2 {
                let of = |at: &Value, key: &str| at[key][side].as_f64().unwrap();
                assert!(of(&pair[0], "mbps") > of(&pair[1], "mbps"), "{row}");
                assert!(of(&pair[0], "cpu_percent") < of(&pair[1], "cpu_percent"), "{row}");
            }
        }
    }
}

#[test]
fn on_qemu_a_batch_costs_one_tail_write_each_way() {
    let name = "on_qemu_a_batch_costs_one_tail_write_each_way";
    if !needs(name, &[Need::Program("qemu-system-x86_64"), Need::Program("timeout")]) {
        return;
    }
    let report = report(&["--only", "qemu", "--bursts", "6"]);
    let rows = report["qemu"]["measured"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        let batch = row["batch"].as_f64().unwrap();
        let doorbells = |direction: &str| row[direction]["doorbells"].as_f64().unwrap();
        assert!((doorbells("tx") * batch - 1.0).abs() < 1e-9, "{row}");
        // Larger batches return buffers by 16 or more; fewer than 16 wait for the next sample,
        // which has at least 96.
        assert!(doorbells("rx") <= (1.0 + 16.0 / 96.0) / batch.min(16.0), "{row}");
        for direction in ["tx", "rx"] {
            // Only the timed checks read registers (link and statistics), in a sample of at least
            // 96 frames.
            assert!(row[direction]["reads"].as_f64().unwrap() < 0.5, "{row}");
            assert!(row[direction]["frames_per_second"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn without_qemu_the_table_says_which_package_has_it_and_the_command_fails_only_if_it_is_required() {
    let name = "without_qemu_the_table_says_which_package_has_it_and_the_command_fails_only_if_it_is_required";
    if !needs(name, &[Need::Program("timeout")]) {
        return;
    }
    let nothing = tempfile::tempdir().unwrap();
    for (args, code) in [(&["--json"][..], 0), (&[], 0), (&["--require"], 1), (&["--require", "--json"], 1)] {
        let mut command = Command::new("timeout");
        command.args(["60", "/usr/bin/env", &format!("PATH={}", nothing.path().display())]);
        command.args([env!("CARGO_BIN_EXE_towpath"), "bench", "batch", "--only", "qemu"]).args(args);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text.contains("apt-get install qemu-system-x86"), "{output:?}");
    }
}

/// System calls of a port for 6400 short packets: the formulas of `docs/batching.md`.
#[test]
fn a_burst_is_one_system_call_where_the_kernel_takes_one() {
    let calls = |port: &str| {
        let summary = datapath::run(&["gen", port, "--count", "6400", "--size", "64", "--json"]).code(0);
        let summary: Value = serde_json::from_str(summary.stdout.lines().last().unwrap()).unwrap();
        let tx = &summary["ports"][1]["tx"];
        assert_eq!(tx["packets"], 6400, "{summary}");
        tx["calls"].as_u64().unwrap()
    };
    let file = tempfile::tempdir().unwrap();
    assert_eq!(calls("null:"), 0);
    // 6400 records of 80 bytes are two pieces of 256 KiB. The file's header is another write, and
    // one more follows if the disk exceeds the flush interval.
    assert!((3..20).contains(&calls(&format!("pcap:{}", file.path().join("x.pcap").display()))));
    if !needs("a_burst_is_one_system_call_where_the_kernel_takes_one", NETWORK) {
        return;
    }
    let ns = Namespace::new("calls");
    ns.ip("link add near type veth peer name far");
    ["near", "far"].iter().for_each(|end| drop(ns.ip(&format!("link set {end} up"))));
    // A call takes 64 packets, or fewer while the interface is full.
    assert!((100..640).contains(&calls(&format!("packet:near?netns={}", ns.name()))));
    assert_eq!(calls(&format!("tap:t0?netns={},addr=10.0.0.1/24", ns.name())), 6400);
}
