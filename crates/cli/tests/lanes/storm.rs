//! Order while buckets move between lanes far more often than rebalancing moves them.

use crate::order::between;
use crate::require;
use crate::support::traffic::{iperf3, ping};
use crate::support::witness::{Witness, compare};
use crate::support::{Cable, LONGEST, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath::engine::gro_stage::GroMode;
use towpath::engine::lane::{BUCKETS, LaneTable};
use towpath::{Forward, Opener, Role};

/// Time between two rounds of moves.
const PACE: Duration = Duration::from_millis(2);

/// Moves every eighth bucket to another lane, each time different ones, until `stop` is set;
/// returns the number of moves.
fn shuffle(table: &LaneTable, stop: &AtomicBool) -> u64 {
    let (end, mut moves, mut random) = (Instant::now() + LONGEST, 0, 1u32);
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for bucket in (0..BUCKETS).skip(random as usize >> 29).step_by(8) {
            let lane = (usize::from(table.lane(bucket)) + 1) % table.lanes();
            moves += u64::from(table.set(bucket, lane as u8));
        }
        std::thread::sleep(PACE);
    }
    moves
}

/// Ends [`shuffle`] when it is dropped, by a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn storm(cables: (Cable, Cable), workers: u16, hold: Duration) {
    let cores = towpath::engine::worker::cores();
    let lanes = vec![cores[0], *cores.get(1).unwrap_or(&cores[0])];
    let mut plan = Forward::default();
    (plan.workers, plan.lanes, plan.rebalance) = (workers, lanes, true);
    (plan.gro.mode, plan.gro.hold) = (GroMode::On, hold);
    let (hosts, running) = between(cables, |a, b| {
        let mut opener = Opener::new();
        let mut open = |text: &str| opener.open(&text.parse().unwrap(), Role::Both).unwrap();
        let (a, b) = (open(a), open(b));
        plan.start(a, b).unwrap()
    });
    let mut witnesses = [&hosts.one, &hosts.two].map(|host| Witness::new(host, "e0"));
    let table = running.lane_table().unwrap().clone();
    let stop = AtomicBool::new(false);
    let moves = std::thread::scope(|scope| {
        let moves = scope.spawn(|| shuffle(&table, &stop));
        let end = Stop(&stop);
        ping(&hosts, "", "10.0.0.2");
        let mut bytes = 0;
        // A processor may not run for the whole second.
        until("as many bytes pass as a thousand packets have at most", || {
            let report = iperf3(&hosts, "10.0.0.2", "-t 1 -P 16 --bidir");
            bytes += report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
            bytes > 1000 << 16
        });
        drop(end);
        moves.join().unwrap()
    });
    let [one, two] = witnesses.each_mut().map(Witness::stop);
    let order = compare(&one, &two);
    let balance = running.stop().reading.balance();
    println!("{cables:?}, {workers} worker(s), hold {hold:?}: {moves} moves, {order:?}, {balance:?}");
    assert!(moves > 1000 && order.arrived > 1000 && order.overtaken == 0, "{moves} moves, {order:?}");
}

#[test]
fn flows_between_two_taps_keep_their_order_while_they_move_all_the_time() {
    require!("flows_between_two_taps_keep_their_order_while_they_move_all_the_time", "ping", "iperf3");
    storm((Cable::Tap, Cable::Tap), 1, Duration::ZERO);
    storm((Cable::Tap, Cable::Tap), 2, Duration::from_micros(200));
}

#[test]
fn flows_between_a_tap_and_a_veth_pair_keep_their_order_while_they_move_all_the_time() {
    require!(
        "flows_between_a_tap_and_a_veth_pair_keep_their_order_while_they_move_all_the_time",
        "ping",
        "iperf3",
        "ethtool"
    );
    storm((Cable::Tap, Cable::Packet), 1, Duration::ZERO);
    storm((Cable::Packet, Cable::Tap), 2, Duration::from_micros(200));
}

#[test]
fn flows_between_two_veth_pairs_keep_their_order_while_they_move_all_the_time() {
    require!("flows_between_two_veth_pairs_keep_their_order_while_they_move_all_the_time", "ping", "iperf3", "ethtool");
    storm((Cable::Packet, Cable::Packet), 1, Duration::ZERO);
    storm((Cable::Packet, Cable::Packet), 2, Duration::from_micros(200));
}
