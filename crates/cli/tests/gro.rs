//! `towpath bench gro` and `towpath bench cpumap`: every row produces figures and names its reader.

mod support;

use serde::Deserialize;
use std::collections::BTreeSet;
use support::datapath;

#[derive(Debug, Deserialize)]
struct Figures {
    mpps: f64,
    lost_percent: Option<f64>,
    datagrams_per_message: Option<f64>,
    cpu_ns: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct GroRow {
    consumer: String,
    off: Figures,
    on: Figures,
}

#[derive(Debug, Deserialize)]
struct GroTable {
    traffic: String,
    rows: Vec<GroRow>,
    skipped: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct GroReport {
    machine: serde_json::Value,
    counted: String,
    tables: Vec<GroTable>,
}

#[test]
fn bench_gro_counts_at_a_plain_socket_and_at_one_with_udp_gro_and_says_which() {
    require!("bench_gro_counts_at_a_plain_socket_and_at_one_with_udp_gro_and_says_which",);
    let args = ["bench", "gro", "--rounds", "1", "--seconds", "150ms", "--flows", "8,64", "--json", "--require"];
    let report: GroReport = serde_json::from_str(&datapath::run(&args).code(0).stdout).unwrap();
    assert!(report.machine.is_object() && !report.counted.is_empty(), "{report:#?}");
    let flows: Vec<_> = report.tables.iter().map(|table| table.traffic.rsplit('=').next().unwrap_or("")).collect();
    assert_eq!(flows, ["8", "64", "8"], "{report:#?}");
    for table in &report.tables {
        assert!(table.skipped.is_empty(), "{table:#?}");
        let udp = table.traffic.contains("proto=udp");
        let sockets: Vec<_> = table.rows.iter().filter(|row| row.consumer.contains("socket")).collect();
        assert_eq!(sockets.len(), if udp { 2 } else { 1 }, "{table:#?}");
        for row in &table.rows {
            for figures in [&row.off, &row.on] {
                assert!(figures.mpps > 0.0, "{row:#?}");
                let at_socket = row.consumer.contains("socket");
                assert_eq!(figures.cpu_ns.is_some(), at_socket, "{row:#?}");
                assert_eq!(figures.lost_percent.is_some(), at_socket && udp, "{row:#?}");
                let merged = figures.datagrams_per_message.unwrap_or(1.0);
                let can_merge = std::ptr::eq(figures, &row.on) && row.consumer.contains("UDP_GRO");
                assert_eq!(merged > 1.0, can_merge, "{row:#?}");
                assert!(figures.lost_percent.is_none_or(|lost| (0.0..=100.0).contains(&lost)), "{row:#?}");
            }
        }
    }
}

#[derive(Debug, Deserialize)]
struct SteeredRow {
    way: String,
    gro: bool,
    delivered_per_second: f64,
    offered_per_second: f64,
    datagrams_per_message: f64,
    by_unsteered: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct SteeredTable {
    traffic: String,
    reader: Option<String>,
    rows: Vec<SteeredRow>,
}

#[derive(Debug, Deserialize)]
struct SteeredReport {
    tables: Vec<SteeredTable>,
    skipped: Vec<String>,
}

#[test]
fn bench_cpumap_measures_every_way_with_gro_off_and_on_for_datagrams_streams_and_transactions() {
    require!("bench_cpumap_measures_every_way_with_gro_off_and_on_for_datagrams_streams_and_transactions", "ethtool");
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        let name = "bench_cpumap_measures_every_way_with_gro_off_and_on_for_datagrams_streams_and_transactions";
        return towpath_testing::skip(name, "it needs two cores");
    }
    let args =
        ["bench", "cpumap", "--rounds", "1", "--seconds", "100ms", "--flows", "8", "--connections", "3", "--json"];
    let report: SteeredReport = serde_json::from_str(&datapath::run(&args).code(0).stdout).unwrap();
    assert!(report.skipped.is_empty(), "{report:#?}");
    let tables: Vec<_> = report.tables.iter().map(|t| (t.traffic.as_str(), t.reader.as_deref())).collect();
    let expected = [("udp", Some("plain")), ("udp", Some("udp-gro")), ("stream", None), ("transactions", None)];
    assert_eq!(tables, expected, "{report:#?}");
    let ways = BTreeSet::from(["kernel", "cpumap", "worker", "lane", "lane-one-by-one"]);
    for table in &report.tables {
        for gro in [false, true] {
            let found: BTreeSet<_> =
                table.rows.iter().filter(|row| row.gro == gro).map(|row| row.way.as_str()).collect();
            // Lists are a kind of GRO for UDP.
            let lists = (gro && table.traffic == "udp").then_some("cpumap-list");
            assert_eq!(found, ways.iter().copied().chain(lists).collect(), "{table:#?}");
        }
        for row in &table.rows {
            assert!(row.delivered_per_second > 0.0, "{row:#?}");
            let can_merge = row.gro && table.reader.as_deref() == Some("udp-gro");
            assert_eq!(row.datagrams_per_message > 1.0, can_merge, "{}, {row:#?}", table.traffic);
            assert_eq!(row.offered_per_second > 0.0, table.traffic == "udp", "{row:#?}");
            assert_eq!(row.by_unsteered.is_some(), !["kernel", "worker"].contains(&row.way.as_str()), "{row:#?}");
        }
    }
}
