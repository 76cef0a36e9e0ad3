//! `towpath bench latency`: every path in every mode produces figures.

mod support;

use serde::Deserialize;
use support::datapath;

#[derive(Debug, Deserialize)]
struct Row {
    way: String,
    mode: String,
    messages: u64,
    p50_us: f64,
    p99_us: f64,
}

#[derive(Debug, Deserialize)]
struct Report {
    rows: Vec<Row>,
    skipped: Vec<String>,
}

#[test]
fn latency_is_measured_through_the_datapath_and_through_the_kernel_spinning_and_sleeping() {
    require!("latency_is_measured_through_the_datapath_and_through_the_kernel_spinning_and_sleeping",);
    let args = ["bench", "latency", "--messages", "50", "--rounds", "1", "--json", "--require"];
    let report: Report = serde_json::from_str(&datapath::run(&args).code(0).stdout).unwrap();
    assert!(report.skipped.is_empty(), "{report:#?}");
    let rows: Vec<_> = report.rows.iter().map(|row| format!("{} {}", row.way, row.mode)).collect();
    let ways: [(_, &[_]); 4] = [
        ("towpath: ends on two cores", &["spin", "sleep", "adaptive"]),
        ("towpath: ends on one core", &["spin", "sleep", "adaptive"]),
        ("kernel: UDP over veth", &["spin", "sleep"]),
        ("kernel: AF_XDP over veth", &["spin", "sleep"]),
    ];
    let expected: Vec<_> =
        ways.iter().flat_map(|(way, modes)| modes.iter().map(move |mode| format!("{way} {mode}"))).collect();
    assert_eq!(rows, expected);
    for row in &report.rows {
        assert!(row.messages > 0 && row.p50_us > 0.0 && row.p99_us >= row.p50_us, "{row:#?}");
    }
}
