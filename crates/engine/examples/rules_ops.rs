//! The cost of verdicts per packet: instructions by a counter, nanoseconds without one.
//!
//! ```text
//! cargo build --release -p towpath-engine --example rules_ops
//! target/release/examples/rules_ops                                       nanoseconds of each case
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/rules_ops 16-miss 1000
//! ```
//!
//! With the counter, run a case for two numbers of batches: the difference divided by the packets
//! between them (64 per batch) is the cost of a packet. `dissect` is included in every case but
//! `0`.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath_engine::filter::FilterRules;
use towpath_engine::rules::{Classifier, Rules, Verdict, classify_batch, dissect_packet};
use towpath_packet::{Backing, Batch, Direction, Packet, Pool, PoolConfig};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Transport, Udp};
use towpath_wire::{Dissected, LinkKind};

/// One batch of UDP datagrams, of eight flows.
fn packets() -> Batch {
    let pool = Pool::new(PoolConfig::default().capacity(256).backing(Backing::Anonymous));
    let mut cache = pool.expect("memory").cache(Direction::Tx).expect("a cache");
    let mut batch = Batch::new();
    for flow in 0..64 {
        let udp = Transport::Udp(Udp { src_port: 40_000 + flow % 8, dst_port: 443 });
        let network = Network::Ip(Ip::v4([10, 0, 0, 1], [10, 1, 0, 2]), udp);
        let headers = Headers { link: Some(Link::default()), network };
        let mut frame = vec![0; headers.len() + 18];
        headers.write(&mut frame, Checksums::Complete).expect("a frame of legal length");
        let packet = Packet::copy_from(&mut cache, &frame).expect("a chunk");
        batch.push(packet).expect("room");
    }
    batch
}

/// A case: its name, and the classification of one batch.
type Case = (&'static str, Box<dyn FnMut(&Batch)>);

fn by_rules(mut rules: Rules) -> Box<dyn FnMut(&Batch)> {
    Box::new(move |batch| {
        let mut out = [Verdict::Pass; 64];
        classify_batch(black_box(&mut rules), batch.as_slice(), LinkKind::Ethernet, &mut out);
        black_box(&out);
    })
}

/// As a route has it.
fn boxed(mut classifier: Box<dyn Classifier>) -> Box<dyn FnMut(&Batch)> {
    Box::new(move |batch| {
        let mut out = [Verdict::Pass; 64];
        classify_batch(&mut **black_box(&mut classifier), batch.as_slice(), LinkKind::Ethernet, &mut out);
        black_box(&out);
    })
}

fn cases() -> Vec<Case> {
    let rules = |texts: &[String]| by_rules(Rules::parse(texts).expect("rules"));
    let filters = |text| boxed(FilterRules::parse([text]).expect("rules").classifier(LinkKind::Ethernet));
    let one = |text: &str| rules(&[text.to_owned()]);
    let ports: Vec<String> = (0..16).map(|n| format!("drop udp dport {}", 1000 + n)).collect();
    let prefixes: Vec<String> = (0..16).map(|n| format!("drop src 192.168.{n}.0/24")).collect();
    let mixed: Vec<String> = (0..16)
        .map(|n| match n % 4 {
            0 => format!("drop tcp dport {}", 1000 + n),
            1 => format!("drop src 2001:db8:{n}::/48"),
            2 => format!("drop vlan {n}"),
            _ => format!("drop udp sport {n}-1023"),
        })
        .collect();
    let mut closure = |_: &Packet, found: &Dissected| match found.flow.dst_port {
        53 => Verdict::Drop,
        _ => Verdict::Pass,
    };
    vec![
        (
            "dissect",
            Box::new(|batch| {
                for packet in batch {
                    black_box(dissect_packet(packet, LinkKind::Ethernet));
                }
            }),
        ),
        ("0", rules(&[])),
        ("1-hit", one("drop udp dport 443")),
        ("1-miss", one("drop udp dport 53")),
        ("1-boxed", boxed(Box::new(Rules::parse(["drop udp dport 53"]).expect("rules")))),
        ("1-counted", filters("drop udp dport 53")),
        ("1-filter", filters("drop udp dst port 53")),
        ("1-mac", one("drop smac 02:00:00:00:00:01")),
        ("16-hit-last", rules(&[&ports[1..], &["drop udp".to_owned()]].concat())),
        ("16-miss", rules(&mixed)),
        ("16-ports", rules(&ports)),
        ("16-prefixes", rules(&prefixes)),
        (
            "closure",
            Box::new(move |batch| {
                let mut out = [Verdict::Pass; 64];
                classify_batch(&mut closure, batch.as_slice(), LinkKind::Ethernet, &mut out);
                black_box(&out);
            }),
        ),
    ]
}

/// Nanoseconds per packet: the median of rounds.
fn time(run: &mut dyn FnMut(&Batch), batch: &Batch) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..2000).for_each(|_| run(black_box(batch)));
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..31).map(|_| round()).collect();
    times.sort_unstable();
    times[15].as_nanos() as f64 / (2000.0 * 64.0)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (batch, mut cases) = (packets(), cases());
    match arguments.as_slice() {
        [] => {
            for (name, run) in &mut cases {
                println!("{name:12} {:6.2} ns/packet", time(run, &batch));
            }
        }
        [name, count] => {
            let chosen = cases.iter_mut().find(|(known, _)| known == name);
            let (Some((_, run)), Ok(count)) = (chosen, count.parse::<u64>()) else {
                eprintln!("usage: rules_ops [CASE BATCHES]");
                return ExitCode::from(2);
            };
            (0..count).for_each(|_| run(black_box(&batch)));
        }
        _ => {
            eprintln!("usage: rules_ops [CASE BATCHES]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
