//! Which figures a report has. Each kind of report is known by its keys.

use super::axis::Scale;
use super::{Figure, Kind};
use serde_json::Value;
use std::collections::BTreeMap;

/// All figures of a report.
pub(super) fn all(report: &Value) -> Vec<Figure> {
    let of: [fn(&Value) -> Vec<Figure>; 10] =
        [gro, cpumap, xsk, vm, copybreak, latency, batch, neighbours, measure, instructions];
    of.into_iter().flat_map(|of| of(report)).collect()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The text of a value: that of a string, or of a number.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The number of a value; NaN for none.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn bars(title: String, unit: &str, series: &[&str], rows: Vec<(String, Vec<f64>)>, log: bool) -> Vec<Figure> {
    let series = series.iter().map(|name| (*name).to_owned()).collect();
    let kind = Kind::Bars { series, rows, log };
    let is_empty = matches!(&kind, Kind::Bars { rows, .. } if rows.is_empty());
    if is_empty { Vec::new() } else { vec![Figure { title, unit: unit.to_owned(), kind }] }
}

fn lines(
    title: String,
    unit: &str,
    x: &str,
    scales: [Scale; 2],
    series: Vec<(String, Vec<(f64, f64)>)>,
) -> Vec<Figure> {
    let drawn = |points: &Vec<(f64, f64)>| points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()).count() > 0;
    let series: Vec<_> = series.into_iter().filter(|(_, points)| drawn(points)).collect();
    if series.is_empty() {
        return Vec::new();
    }
    let [x_scale, y_scale] = scales;
    vec![Figure { title, unit: unit.to_owned(), kind: Kind::Lines { x: x.to_owned(), x_scale, y_scale, series } }]
}

/// By sizes, rates, times.
const LINEAR: [Scale; 2] = [Scale::Span, Scale::Linear];
/// By batches.
const BY_DOUBLINGS: [Scale; 2] = [Scale::Doublings, Scale::Linear];
/// By flows, where merging makes factors.
const BY_FLOWS: [Scale; 2] = [Scale::Doublings, Scale::Tens];

/// Points gathered by the names of their series, in the order of their first appearance.
#[derive(Default)]
struct Series(Vec<(String, Vec<(f64, f64)>)>);

impl Series {
    fn add(&mut self, name: String, x: f64, y: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((x, y)),
            None => self.0.push((name, vec![(x, y)])),
        }
    }
}

fn gro(report: &Value) -> Vec<Figure> {
    let tables =
        list(report, "tables").iter().filter(|table| list(table, "rows").iter().any(|row| row["consumer"].is_string()));
    let (mut figures, mut by_flows) = (Vec::new(), <[Series; 3]>::default());
    for table in tables {
        let traffic = text(&table["traffic"]);
        let rows = list(table, "rows");
        let bar = |row: &Value| (text(&row["consumer"]), vec![number(&row["off"]["mpps"]), number(&row["on"]["mpps"])]);
        figures.extend(bars(traffic.clone(), "Mpps", &["GRO off", "GRO on"], rows.iter().map(bar).collect(), true));
        let flows =
            traffic.split(['?', ',', ':']).find_map(|option| option.strip_prefix("flows=")?.parse::<f64>().ok());
        let udp = flows.filter(|_| traffic.contains("proto=udp"));
        for (row, flows) in rows.iter().filter_map(|row| Some((row, udp?))) {
            let [off, on] = ["off", "on"].map(|mode| &row[mode]);
            let values = [number(&on["mpps"]), number(&on["mpps"]) / number(&off["mpps"]), number(&on["cpu_ns"])];
            by_flows
                .iter_mut()
                .zip(values)
                .for_each(|(series, value)| series.add(text(&row["consumer"]), flows, value));
        }
    }
    if by_flows[0].0.iter().any(|(_, points)| points.len() > 1) {
        let what =
            [("rate, GRO on", "Mpps"), ("rate, GRO on by off", "times"), ("cost, GRO on", "ns of all cores each")];
        for (series, (what, unit)) in by_flows.into_iter().zip(what) {
            figures.extend(lines(format!("UDP by flows: {what}"), unit, "flows", BY_FLOWS, series.0));
        }
    }
    figures
}

fn cpumap(report: &Value) -> Vec<Figure> {
    let is_way = |table: &&Value| list(table, "rows").iter().any(|row| row["delivered_per_second"].is_number());
    let table = |table: &Value| {
        let mut rows: BTreeMap<usize, (String, Vec<f64>)> = BTreeMap::new();
        for row in list(table, "rows") {
            let way = text(&row["way"]);
            let known = rows.iter().find(|(_, (name, _))| *name == way).map(|(at, _)| *at);
            let at = known.unwrap_or(rows.len());
            let (_, values) = rows.entry(at).or_insert_with(|| (way, vec![f64::NAN; 2]));
            values[usize::from(row["gro"] == true)] = number(&row["delivered_per_second"]);
        }
        let mut title = text(&table["traffic"]);
        for (key, what) in [("flows", "flows"), ("connections", "connections"), ("reader", "")] {
            if !table[key].is_null() {
                title += &format!(", {} {what}", text(&table[key]));
            }
        }
        bars(title, "delivered per second", &["GRO off", "GRO on"], rows.into_values().collect(), false)
    };
    list(report, "tables").iter().filter(is_way).flat_map(table).collect()
}

fn xsk(report: &Value) -> Vec<Figure> {
    let mut gains = Series::default();
    let mut figures = Vec::new();
    for table in list(report, "tables").iter().filter(|table| table["columns"].is_array()) {
        let columns = list(table, "columns");
        let rates = |way: &str| columns.iter().map(|at| (number(&at["size"]), number(&at[way]["pps"]) / 1e6)).collect();
        let mut title = format!("to {}", text(&table["egress"]));
        if table["read"].is_string() {
            title += &format!(", read: {}", text(&table["read"]));
        }
        columns.iter().for_each(|at| gains.add(title.clone(), number(&at["size"]), number(&at["percent"])));
        let series = vec![("copied".to_owned(), rates("copy")), ("by page".to_owned(), rates("page"))];
        figures.extend(lines(title, "Mpps", "bytes of a frame", LINEAR, series));
    }
    figures.extend(lines("by page, over copied".into(), "% more", "bytes of a frame", LINEAR, gains.0));
    figures
}

fn vm(report: &Value) -> Vec<Figure> {
    let mut series = Series::default();
    for row in list(report, "rows").iter().filter(|row| row["ring"].is_string()) {
        let name = format!("{}, {} {}s", text(&row["ring"]), text(&row["side"]), text(&row["way"]));
        series.add(name, number(&row["size"]), number(&row["ns"]));
    }
    lines("sides of a virtqueue".into(), "ns a packet", "bytes of a frame", LINEAR, series.0)
}

fn copybreak(report: &Value) -> Vec<Figure> {
    let row = |row: &Value| {
        let name = match row["policy"].as_str() {
            Some(policy) => format!("{policy}, tx-copybreak {}", row["tx_copybreak"]),
            None => {
                format!("{}, IOMMU {}, copybreak {}", text(&row["rev"]), text(&row["protection"]), row["copybreak"])
            }
        };
        (name, vec![number(&row["median_ns"])])
    };
    let rows = list(report, "rows").iter().filter(|row| row["median_ns"].is_number()).map(row).collect();
    let mut figures = bars("each variant".into(), "ns a buffer", &["median"], rows, false);
    let mut sizes = Series::default();
    for row in list(report, "sizes") {
        for key in ["handed_on", "mapped", "copied"] {
            for (policy, ns) in ["persistent", "deferred", "strict"].into_iter().zip(list(row, key)) {
                sizes.add(format!("{}, {policy}", key.replace('_', " ")), number(&row["size"]), number(ns));
            }
        }
    }
    figures.extend(lines("by size".into(), "ns a buffer", "bytes of a frame", LINEAR, sizes.0));
    let mut waits = Series::default();
    for row in list(&report["waits"], "rows") {
        for key in ["before", "after", "ours"] {
            for (copybreak, ns) in [0, 2048].into_iter().zip(list(row, key)) {
                waits.add(format!("{key}, copybreak {copybreak}"), number(&row["wait_ns"]), number(ns));
            }
        }
    }
    figures.extend(lines(
        "by the cost of an invalidation".into(),
        "ns a buffer",
        "ns of an invalidation",
        LINEAR,
        waits.0,
    ));
    figures
}

fn latency(report: &Value) -> Vec<Figure> {
    let rows = || list(report, "rows").iter().filter(|row| row["p999_us"].is_number());
    let row = |row: &Value| {
        let figures = ["p50_us", "p99_us", "p999_us"].map(|key| number(&row[key]));
        (format!("{}, {}", text(&row["way"]), text(&row["mode"])), figures.to_vec())
    };
    let mut figures = bars("one way".into(), "µs", &["p50", "p99", "p99.9"], rows().map(row).collect(), true);
    for (mode, title) in [
        ("spin", "distribution, threads that spin"),
        ("sleep", "distribution, threads that sleep"),
        ("adaptive", "distribution, applications that sleep"),
    ] {
        let mut curves = Series::default();
        for row in rows().filter(|row| row["mode"] == mode) {
            for at in list(row, "distribution") {
                curves.add(text(&row["way"]), number(&at["percent"]), number(&at["us"]));
            }
        }

        figures.extend(lines(
            title.into(),
            "µs",
            "messages that took at most so long",
            [Scale::Nines, Scale::Tens],
            curves.0,
        ));
    }
    figures
}

fn batch(report: &Value) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (way, title) in [("tx", "transmit"), ("rx", "receive")] {
        for (key, unit) in [("ns", "ns of the driver a packet"), ("writes", "writes of registers a packet")] {
            let mut series = Series::default();
            for row in list(report, "sweep") {
                let name = format!("{}, {}", text(&row["family"]), text(&row["descriptors"]));
                series.add(name, number(&row["batch"]), number(&row[way][key]));
            }
            figures.extend(lines(title.into(), unit, "batch", BY_DOUBLINGS, series.0));
        }
    }
    let row = |row: &Value| (text(&row["scenario"]), vec![number(&row["before"]["ns"]), number(&row["after"]["ns"])]);
    let rows = list(report, "scenarios").iter().map(row).collect();
    figures.extend(bars(
        "the series' measurements".into(),
        "ns of the driver a packet",
        &["before", "after"],
        rows,
        false,
    ));
    let mut speed = Series::default();
    for row in list(&report["qemu"]["measured"], "rows") {
        for way in ["tx", "rx"] {
            speed.add(way.into(), number(&row["batch"]), number(&row[way]["frames_per_second"]));
        }
    }
    figures.extend(lines("on QEMU's e1000e".into(), "frames a second", "batch", BY_DOUBLINGS, speed.0));
    figures
}

fn neighbours(report: &Value) -> Vec<Figure> {
    let rows = || list(report, "rows").iter().filter(|row| row["p99_us"].is_array());
    let both = |key: &'static str| {
        rows().map(|row| (text(&row["name"]), list(row, key).iter().map(number).collect())).collect()
    };
    let series = &["alone", "beside"];
    let mut figures = bars("rate of an honest application".into(), "packets a second", series, both("rate"), false);
    figures.extend(bars("latency, p99".into(), "µs", series, both("p99_us"), true));
    figures
}

/// The name of a goal.
fn goal(loss: &Value) -> String {
    format!("{} % loss", (number(loss) * 1e6).round() / 1e4)
}

fn measure(report: &Value) -> Vec<Figure> {
    let results = list(report, "results");
    let goals: Vec<_> = results.first().map(|result| list(result, "goals")).unwrap_or_default().iter().collect();
    let names: Vec<_> = goals.iter().map(|at| goal(&at["loss"])).collect();
    let row = |result: &Value| {
        let values = list(result, "goals").iter().map(|goal| number(&goal["throughput"]));
        (
            format!("{} bytes", text(&result["size"])),
            values.chain(std::iter::repeat(f64::NAN)).take(names.len()).collect(),
        )
    };
    let series: Vec<_> = names.iter().map(String::as_str).collect();
    let mut figures = bars("throughput".into(), "packets a second", &series, results.iter().map(row).collect(), false);
    for result in results {
        let mut points = Series::default();
        for at in list(result, "latencies") {
            for (key, name) in [("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")] {
                let way =
                    if report["bidirectional"] == true { format!(", {}", text(&at["way"])) } else { String::new() };
                let goal = if names.len() > 1 { format!(", {}", goal(&at["goal_loss"])) } else { String::new() };
                points.add(format!("{name}{way}{goal}"), number(&at["rate"]), number(&at["latency_us"][key]));
            }
        }
        let title = format!("latency, size {}", text(&result["size"]));
        points.0.iter_mut().for_each(|(_, points)| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        figures.extend(lines(title, "µs", "packets a second", LINEAR, points.0));
    }
    figures
}

/// What `benches/instructions` counts: rows of `GROUP/WHAT`, some of them `GROUP/WHAT-N-flows`.
fn instructions(report: &Value) -> Vec<Figure> {
    let (mut each, mut by_flows) = (Vec::new(), Series::default());
    for row in list(report, "rows").iter().filter(|row| row["instructions"].is_number()) {
        let (name, count) = (text(&row["name"]), number(&row["instructions"]));
        let split = name.strip_suffix("-flows").and_then(|name| name.rsplit_once('-'));
        match split.and_then(|(what, flows)| Some((what, flows.parse::<f64>().ok()?))) {
            Some((what, flows)) => by_flows.add(what.to_owned(), flows, count),
            None => each.push((name, vec![count])),
        }
    }
    let mut figures = lines("by flows".into(), "instructions a packet", "flows", BY_DOUBLINGS, by_flows.0);
    figures.extend(bars("each path".into(), "instructions a packet", &["here"], each, false));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn titles(report: &Value) -> Vec<String> {
        all(report).into_iter().map(|figure| figure.title).collect()
    }

    #[test]
    fn each_kind_of_report_is_known_by_its_keys() {
        let figures = json!({"mpps": 2.0});
        let gro = |flows: u32| json!({"traffic": format!("gen:proto=udp,size=64,flows={flows}"), "rows": [{"consumer": "sink", "off": figures, "on": figures}]});
        assert_eq!(titles(&json!({"tables": [gro(8), gro(64)]})).len(), 4);
        let cpumap = json!({"traffic": "udp", "flows": 8, "reader": "plain", "rows": [
            {"way": "kernel", "gro": false, "delivered_per_second": 1.0}, {"way": "kernel", "gro": true, "delivered_per_second": 2.0}]});
        assert_eq!(titles(&json!({"tables": [cpumap]})), ["udp, 8 flows, plain "]);
        let xsk = json!({"egress": "veth", "read": "all", "columns": [{"size": 64, "copy": {"pps": 1}, "page": {"pps": 2}, "percent": 9}]});
        assert_eq!(titles(&json!({"tables": [xsk]})), ["to veth, read: all", "by page, over copied"]);
        let vm = json!([{"ring": "split", "side": "driver", "way": "send", "size": 64, "ns": 3.0}]);
        assert_eq!(titles(&json!({"rows": vm})), ["sides of a virtqueue"]);
        let copybreak = json!({"rows": [{"rev": "ours", "protection": "on", "copybreak": 0, "median_ns": 3.0}],
            "sizes": [{"size": 64, "handed_on": [1, 2, 3], "copied": [1, 2, 3]}],
            "waits": {"rows": [{"wait_ns": 0, "before": [1, 2], "after": [1, 2], "ours": [1, 2]}]}});
        assert_eq!(titles(&copybreak), ["each variant", "by size", "by the cost of an invalidation"]);
        let latency = json!([{"way": "kernel", "mode": "spin", "p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0,
            "distribution": [{"percent": 50.0, "us": 1.0}]}]);
        assert_eq!(titles(&json!({"rows": latency})), ["one way", "distribution, threads that spin"]);
        let counted = ["hub/one", "gro/chained-8-flows"].map(|name| json!({"name": name, "instructions": 9.0}));
        assert_eq!(titles(&json!({"rows": counted})), ["by flows", "each path"]);
        let row = json!({"family": "PKTDMA", "descriptors": "pool", "batch": 1, "tx": {"ns": 1, "writes": 2}, "rx": {"ns": 1, "writes": 2}});
        assert_eq!(titles(&json!({"sweep": [row]})), ["transmit", "transmit", "receive", "receive"]);
        let both = json!([1.0, 2.0]);
        assert_eq!(titles(&json!({"rows": [{"name": "flood", "rate": both, "p99_us": both}]})).len(), 2);
        let measured = json!({"results": [{"size": "64", "goals": [{"loss": 0.005, "throughput": 5.0}],
            "latencies": [{"rate": 10, "way": "a-to-b", "latency_us": {"p50": 1, "p99": 2, "p999": 3, "max": 4}}]}]});
        assert_eq!(titles(&measured), ["throughput", "latency, size 64"]);
        assert_eq!(titles(&json!({"ports": []})), Vec::<String>::new());
    }

    #[test]
    fn points_are_gathered_by_series_and_a_missing_value_is_none() {
        let measured =
            json!({"results": [{"size": "64", "goals": [{"loss": 0.0, "throughput": null}], "latencies": []}]});
        let [figure] = all(&measured).try_into().unwrap();
        let Kind::Bars { series, rows, .. } = figure.kind else { panic!() };
        assert!(series == ["0 % loss"] && rows[0].1[0].is_nan());
    }
}
