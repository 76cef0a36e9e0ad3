//! `towpath bench xsk`, as the command prints it: every row names the reader and the writer of the
//! bytes. Times are not asserted.

mod support;

use serde_json::Value;
use support::{Need, datapath, needs};

const QUICK: [&str; 8] = ["bench", "xsk", "--sizes", "64,1500", "--rounds", "1", "--bursts", "8"];

fn tables(args: &[&str]) -> Vec<Value> {
    let report = datapath::run(&[&QUICK, args, &["--json", "--require"]].concat()).code(0);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    report["tables"].as_array().unwrap().clone()
}

#[test]
fn each_table_names_the_reader_and_the_writer_of_its_bytes_and_counts_the_copies() {
    let tables = tables(&["--egress", "veth,e1000e", "--write"]);
    let rows: Vec<_> = tables.iter().map(|table| (table["egress"].clone(), table["read"].clone())).collect();
    let veth = |read: &str| (Value::from("veth"), Value::from(read));
    assert_eq!(rows, [veth("none"), veth("head"), veth("all"), (Value::from("e1000e"), Value::Null)]);
    let readers =
        ["reads nothing", "reads 64 bytes of each frame", "reads every byte", "the device reads every byte by DMA"];
    let read = |table: usize, size: f64| [Some(0.0), Some(size.min(64.0)), Some(size), None][table];
    for (i, (table, reader)) in tables.iter().zip(readers).enumerate() {
        assert!(table["reader"].as_str().unwrap().contains(reader), "{table}");
        assert!(table["writer"].as_str().unwrap().contains("writes every byte"), "{table}");
        for column in table["columns"].as_array().unwrap() {
            let size = column["size"].as_f64().unwrap();
            for way in ["copy", "page"] {
                assert_eq!(column[way]["read_bytes"].as_f64(), read(i, size), "{way}: {table}");
            }
            let copied = (column["copy"]["copies"].as_f64(), column["copy"]["copied_bytes"].as_f64());
            assert_eq!(copied, (Some(1.0), Some(size)));
            assert_eq!((column["page"]["copies"].as_f64(), &column["page"]["reader_ns"]), (Some(0.0), &Value::Null));
        }
    }
}

#[test]
fn a_reader_with_a_core_of_its_own_has_its_own_time_and_the_slower_core_is_the_rate() {
    let tables = tables(&["--egress", "veth", "--read", "all", "--read-core", "0"]);
    assert_eq!(tables.len(), 1);
    assert!(tables[0]["reader"].as_str().unwrap().contains("a thread of its own on core 0"), "{}", tables[0]);
    for column in tables[0]["columns"].as_array().unwrap() {
        for way in ["copy", "page"] {
            let of = |key: &str| column[way][key].as_f64().unwrap();
            assert!(of("reader_ns") > 0.0, "{column}");
            assert_eq!(of("read_bytes"), column["size"].as_f64().unwrap());
            assert!((of("pps") * of("ns").max(of("reader_ns")) / 1e9 - 1.0).abs() < 1e-9, "{column}");
        }
    }
}

/// What the back end behind the virtio driver has read is what was sent, copied or by page; and its
/// count is the rate.
fn back_end_reads_all(egress: &str, reader: &str) {
    let tables = tables(&["--egress", egress]);
    assert_eq!(tables.len(), 1);
    assert!(tables[0]["reader"].as_str().unwrap().contains(reader), "{}", tables[0]);
    for column in tables[0]["columns"].as_array().unwrap() {
        for (way, copies) in [("copy", 1.0), ("page", 0.0)] {
            let of = |key: &str| column[way][key].as_f64().unwrap();
            assert_eq!((of("read_bytes"), of("copies")), (column["size"].as_f64().unwrap(), copies), "{column}");
            assert!((of("pps") * of("reader_ns") / 1e9 - 1.0).abs() < 1e-9, "{column}");
        }
    }
}

#[test]
fn an_application_behind_vhost_reads_every_byte_that_the_virtio_driver_sends() {
    back_end_reads_all("virtio", "an application copies every byte");
}

#[test]
fn dpdk_reads_every_byte_that_the_virtio_driver_sends() {
    let name = "dpdk_reads_every_byte_that_the_virtio_driver_sends";
    if needs(name, &[Need::Program("dpdk-testpmd"), Need::Program("taskset"), Need::Program("stdbuf")]) {
        back_end_reads_all("virtio-dpdk", "DPDK copies every byte");
    }
}

#[test]
fn a_reader_must_be_one_of_three_and_a_report_begins_with_the_machine() {
    let refused = datapath::run(&[&QUICK[..], &["--read", "some"]].concat()).code(2);
    assert!(refused.stderr.contains("none, head, all"), "{refused:#?}");
    let quick = [&QUICK[..], &["--egress", "veth", "--read", "head"]].concat();
    let text = datapath::run(&quick).code(0).stdout;
    let heads: Vec<_> = text.lines().take(2).filter_map(|line| line.split_once(": ")).map(|(key, _)| key).collect();
    assert_eq!(heads, ["machine", "counted"], "{text}");
    let json = datapath::run(&[&quick[..], &["--json"]].concat()).code(0).stdout;
    assert!(json.starts_with("{\"machine\":{\"cpu\":\"") && json.contains("},\"version\":\""), "{json}");
    assert!(json.contains("\"counted\":\"nanoseconds"), "{json}");
}
