//! Filters against libpcap's own: tcpdump reads a capture with an expression, and keeps exactly the
//! packets that [`Filter`] matches.
//!
//! | file | content |
//! |---|---|
//! | `main` | the comparison |
//! | `expressions` | random expressions, and a list of written ones |
//! | `packets` | random packets, whole and damaged |

mod expressions;
mod packets;

use expressions::WRITTEN;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_engine::filter::Filter;
use towpath_testing::{Need, needs};
use towpath_wire::LinkKind;

const EXPRESSIONS: usize = 500;
/// Verdicts that libpcap's optimiser changes.
static OPTIMISED: AtomicUsize = AtomicUsize::new(0);
const PACKETS: usize = 1000;

/// A small generator of random numbers (splitmix64), so that a seed reproduces a run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn seed() -> u64 {
    match std::env::var("TOWPATH_FILTER_SEED") {
        Ok(seed) => seed.parse().expect("TOWPATH_FILTER_SEED must be a number"),
        Err(_) => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(),
    }
}

/// A capture whose packets have their number as time.
fn capture(packets: &[Vec<u8>], link_type: u32) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, link_type] {
        file.extend(u32::to_le_bytes(word));
    }
    for (number, packet) in packets.iter().enumerate() {
        let len = packet.len() as u32;
        for word in [number as u32, 0, len, len] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(packet);
    }
    file
}

/// The packets that tcpdump keeps; an error is what it says of the expression.
fn kept_by_tcpdump(file: &Path, expression: &str, unoptimised: bool) -> Result<Vec<usize>, String> {
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-w", "-", "-r"]).arg(file);
    if unoptimised {
        command.arg("-O");
    }
    let output = command.arg("--").arg(expression).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains("expression rejects all packets") {
        return Ok(Vec::new());
    }
    if !output.status.success() {
        return Err(text);
    }
    let word = |at: usize| u32::from_le_bytes(output.stdout[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut kept) = (24, Vec::new());
    while at < output.stdout.len() {
        kept.push(word(at));
        at += 16 + word(at + 8);
    }
    Ok(kept)
}

/// Compares all expressions on all packets; returns how many verdicts were a match.
fn compare(expressions: &[String], packets: &[Vec<u8>], link: LinkKind) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("packets.pcap");
    std::fs::write(&file, capture(packets, if link == LinkKind::Ip { 101 } else { 1 })).unwrap();
    let halves = expressions.chunks(expressions.len().div_ceil(2).max(1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = halves
            .map(|half| scope.spawn(|| half.iter().map(|one| compare_one(one, packets, link, &file)).sum::<usize>()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn compare_one(expression: &str, packets: &[Vec<u8>], link: LinkKind, file: &Path) -> usize {
    let kept = match kept_by_tcpdump(file, expression, false) {
        Ok(kept) => kept,
        // libpcap takes ip[8] / ip[0] for one, because the index comes first in its code. Its
        // optimiser refuses 7 % (1 / 2), which rejects each packet here.
        Err(text) if text.contains(" by zero") => return 0,
        Err(text) => panic!("'{expression}': {text}"),
    };
    let filter: Filter = expression.parse().unwrap_or_else(|error| panic!("{error}"));
    filter.check(link).unwrap();
    let matching = |packet: &Vec<u8>| filter.matches_bytes(packet, link);
    let ours: Vec<usize> = packets.iter().enumerate().filter(|(_, packet)| matching(packet)).map(|(n, _)| n).collect();
    if ours != kept {
        // libpcap's optimiser may leave out a read whose value does not matter. The read decides on
        // packets that end before it.
        let plain = kept_by_tcpdump(file, expression, true).unwrap();
        let differs = |n: &usize| ours.contains(n) != plain.contains(n);
        let first = (0..packets.len()).find(differs);
        assert_eq!(first, None, "'{expression}': packet {:02x?}", first.map(|n| &packets[n]));
        let changed = (0..packets.len()).filter(|n| ours.contains(n) != kept.contains(n)).count();
        OPTIMISED.fetch_add(changed, Ordering::Relaxed);
    }
    ours.len()
}

#[test]
fn random_expressions_give_libpcaps_verdict_on_random_packets() {
    if !needs("random_expressions_give_libpcaps_verdict_on_random_packets", &[Need::Program("tcpdump")]) {
        return;
    }
    let seed = seed();
    println!("TOWPATH_FILTER_SEED={seed}");
    let mut random = Random(seed);
    let packets: Vec<_> = (0..PACKETS).map(|_| packets::frame(&mut random)).collect();
    let expressions: Vec<_> = (0..EXPRESSIONS).map(|_| expressions::expression(&mut random, 3)).collect();
    let matches = compare(&expressions, &packets, LinkKind::Ethernet);
    let optimised = OPTIMISED.load(Ordering::Relaxed);
    println!("{EXPRESSIONS} expressions on {PACKETS} packets: {matches} matches, {optimised} changed by the optimiser");
    let all = EXPRESSIONS * PACKETS;
    assert!((all / 20..all * 19 / 20).contains(&matches), "{matches} of {all} verdicts are matches: too one-sided");
}

#[test]
fn written_expressions_give_libpcaps_verdict_on_random_packets() {
    if !needs("written_expressions_give_libpcaps_verdict_on_random_packets", &[Need::Program("tcpdump")]) {
        return;
    }
    let seed = seed();
    println!("TOWPATH_FILTER_SEED={seed}");
    let mut random = Random(seed);
    let packets: Vec<_> = (0..PACKETS).map(|_| packets::frame(&mut random)).collect();
    let expressions: Vec<_> = WRITTEN.iter().map(|text| (*text).to_owned()).collect();
    compare(&expressions, &packets, LinkKind::Ethernet);
}

#[test]
fn bare_ip_packets_get_libpcaps_verdict() {
    if !needs("bare_ip_packets_get_libpcaps_verdict", &[Need::Program("tcpdump")]) {
        return;
    }
    let seed = seed();
    println!("TOWPATH_FILTER_SEED={seed}");
    let mut random = Random(seed);
    let packets: Vec<_> = (0..PACKETS).map(|_| packets::bare(&mut random)).collect();
    let expressions: Vec<_> = (0..60)
        .map(|_| {
            loop {
                let expression = expressions::expression(&mut random, 2);
                let filter: Filter = expression.parse().unwrap();
                if filter.check(LinkKind::Ip).is_ok() {
                    break expression;
                }
            }
        })
        .collect();
    compare(&expressions, &packets, LinkKind::Ip);
}

#[test]
fn what_libpcap_refuses_is_refused() {
    if !needs("what_libpcap_refuses_is_refused", &[Need::Program("tcpdump")]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("empty.pcap");
    std::fs::write(&file, capture(&[], 1)).unwrap();
    for text in expressions::REFUSED {
        assert!(kept_by_tcpdump(&file, text, false).is_err(), "tcpdump takes '{text}'");
        assert!(text.parse::<Filter>().is_err(), "'{text}' is accepted");
    }
}
