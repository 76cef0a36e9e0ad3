use super::*;
use std::collections::HashMap;
use towpath_packet::port::{RxBarrier, RxQueue, State, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Packet, Pool, PoolConfig};

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(8192).chunk(256).backing(Backing::Anonymous)).unwrap()
}

/// A UDP frame of a flow, with a number in its payload.
fn frame(cache: &mut Cache, flow: u16, number: u32, back: bool) -> Packet {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 38, 0, 0, 0, 0, 64, 17, 0, 0];
    let ends = [[198, 18, 0, 1], [198, 19, 0, 1]];
    let ports = [flow + 1000, 9];
    let (i, o) = if back { (1, 0) } else { (0, 1) };
    f.extend(ends[i].into_iter().chain(ends[o]));
    f.extend(ports[i].to_be_bytes().into_iter().chain(ports[o].to_be_bytes()));
    f.extend([0, 18, 0, 0]);
    f.extend(flow.to_be_bytes().into_iter().chain(number.to_be_bytes()).chain([0; 4]));
    Packet::copy_from(cache, &f).unwrap()
}

fn tag(packet: &Packet) -> (u16, u32) {
    let b = &packet.linear()[42..];
    (u16::from_be_bytes([b[0], b[1]]), u32::from_be_bytes([b[2], b[3], b[4], b[5]]))
}

fn make(config: LaneConfig, senders: usize, lanes: usize) -> (Arc<LaneTable>, Lanes) {
    let table = Arc::new(LaneTable::new(lanes).unwrap());
    let made = connect(&config, &table, senders).unwrap();
    (table, made)
}

fn take(lane: &mut LaneRx) -> Vec<(u16, u32)> {
    let mut out = Vec::new();
    let mut batch = Batch::new();
    while lane.rx(&mut batch) > 0 {
        out.extend(batch.drain_front(64).map(|p| tag(&p)));
    }
    out
}

#[test]
fn a_flow_and_its_other_direction_meet_in_one_lane_and_flows_spread() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let (_, mut made) = make(LaneConfig::default(), 2, 4);
    for flow in 0..64 {
        for back in [false, true] {
            let mut batch = Batch::new();
            batch.push(frame(&mut cache, flow, 0, back)).unwrap();
            // The other direction arrives at another worker.
            assert_eq!(made.steers[usize::from(back)].tx(&mut batch), 1);
        }
    }
    let got: Vec<_> = made.lanes.iter_mut().map(take).collect();
    for flow in 0..64 {
        let lanes: Vec<_> = (0..4).filter(|&l| got[l].contains(&(flow, 0))).collect();
        assert_eq!(lanes.len(), 1, "flow {flow} is in lanes {lanes:?}");
    }
    assert!(got.iter().all(|lane| lane.len() > 8), "{:?}", got.iter().map(Vec::len).collect::<Vec<_>>());
}

#[test]
fn every_way_of_steering_goes_where_it_says() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let mut spread = |steering: Steering| {
        let (_, mut made) = make(LaneConfig { steering, ..Default::default() }, 1, 3);
        for flow in 0..60 {
            let mut batch = Batch::new();
            batch.push(frame(&mut cache, flow, 0, false)).unwrap();
            made.steers[0].tx(&mut batch);
        }
        made.lanes.iter_mut().map(|lane| take(lane).len()).collect::<Vec<_>>()
    };
    assert_eq!(spread(Steering::Lane(2)), [0, 0, 60]);
    assert_eq!(spread(Steering::RoundRobin), [20, 20, 20]);
    let rss = spread(Steering::Rss(Box::new(towpath_wire::Toeplitz::new(&towpath_wire::Toeplitz::MICROSOFT_KEY))));
    assert!(rss.iter().all(|&n| n > 5) && rss.iter().sum::<usize>() == 60, "{rss:?}");
}

#[test]
fn a_verdict_that_names_a_lane_comes_before_the_table() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let (_, mut made) = make(LaneConfig::default(), 1, 4);
    for flow in 0..20 {
        let mut packet = frame(&mut cache, flow, 0, false);
        packet.set_lane(Some(3));
        let mut batch = Batch::new();
        batch.push(packet).unwrap();
        made.steers[0].tx(&mut batch);
    }
    assert_eq!(take(&mut made.lanes[3]).len(), 20);
}

fn fill(steer: &mut Steer, cache: &mut Cache, n: u32) -> u32 {
    let mut sent = 0;
    while sent < n {
        let mut batch = Batch::new();
        for i in 0..64 {
            batch.push(frame(cache, 1, sent + i, false)).unwrap();
        }
        let taken = steer.tx(&mut batch) as u32;
        sent += taken;
        if taken < 64 {
            break;
        }
    }
    sent
}

#[test]
fn a_full_lane_holds_back_or_drops_by_name_and_nothing_is_lost_unnamed() {
    for (full, lanes) in [FullPolicy::Hold, FullPolicy::Drop].into_iter().flat_map(|full| [(full, 1), (full, 2)]) {
        let pool = pool();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let (table, mut made) = make(LaneConfig { full, ring: 64, ..Default::default() }, 1, lanes);
        (0..BUCKETS).for_each(|bucket| assert!(table.set(bucket, 0)));
        let taken = fill(&mut made.steers[0], &mut cache, 640);
        let dropped = made.counters[0].snapshot().dropped(DropReason::LaneFull);
        assert_eq!(dropped > 0, full == FullPolicy::Drop);
        let got = take(&mut made.lanes[0]);
        assert_eq!(got.len() as u64 + dropped, u64::from(taken));
        assert!(got.windows(2).all(|w| w[0].1 < w[1].1), "in order");
    }
}

#[test]
fn a_single_lane_has_the_packets_of_all_flows_in_order_and_no_flow_is_looked_for() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let rss = Steering::Rss(Box::new(towpath_wire::Toeplitz::new(&towpath_wire::Toeplitz::MICROSOFT_KEY)));
    for steering in [Steering::Flow, rss, Steering::Lane(7), Steering::RoundRobin] {
        let (table, mut made) = make(LaneConfig { steering, ..Default::default() }, 1, 1);
        let mut batch = Batch::new();
        for i in 0..40 {
            let mut packet = frame(&mut cache, i % 5, i.into(), false);
            packet.set_lane((i % 3 == 0).then_some(9));
            batch.push(packet).unwrap();
        }
        assert_eq!((made.steers[0].tx(&mut batch), batch.len()), (40, 0));
        assert_eq!(made.lanes[0].rx(&mut batch), 40);
        assert!(batch.iter().enumerate().all(|(i, packet)| tag(packet) == (i as u16 % 5, i as u32)), "in order");
        assert!(batch.iter().all(|packet| packet.flow_hash().is_none()));
        assert_eq!(table.loads().iter().sum::<u64>(), 40);
    }
}

#[test]
fn a_lane_that_sleeps_is_woken_once_a_burst_and_also_for_packets_that_waited_for_room() {
    for lanes in [1, 2] {
        wake_ups(lanes);
    }
}

fn wake_ups(lanes: usize) {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let (table, mut made) = make(LaneConfig { ring: 64, ..Default::default() }, 1, lanes);
    (0..BUCKETS).for_each(|bucket| assert!(table.set(bucket, 0)));
    let (steer, lane) = (&mut made.steers[0], &mut made.lanes[0]);
    let notified = |lane: &LaneRx| towpath_testing::eventfd_count(lane.notifier().fd());
    let mut batch = Batch::new();
    (0..60).for_each(|i| drop(batch.push(frame(&mut cache, 1, i, false))));
    assert_eq!(steer.tx(&mut batch), 60);
    (0..10).for_each(|i| drop(batch.push(frame(&mut cache, 1, 60 + i, false))));
    assert_eq!((steer.tx(&mut batch), batch.len()), (4, 6), "the ring is full");
    steer.kick();
    assert_eq!(notified(lane), 0, "no lane sleeps");
    assert_eq!(take(lane).len(), 64);
    lane.wake();
    assert_eq!(notified(lane), 0, "the ring is empty");
    // The packets that had no room are tried again.
    assert_eq!((steer.tx(&mut batch), batch.len(), steer.pending()), (6, 0, 0));
    steer.kick();
    assert_eq!(notified(lane), 1);
    assert_eq!(take(lane), (64..70).map(|number| (1, number)).collect::<Vec<_>>());
    lane.wake();
    for burst in 0..2 {
        (0..20).for_each(|i| drop(batch.push(frame(&mut cache, 1, burst * 20 + i, false))));
        assert_eq!(steer.tx(&mut batch), 20);
        assert_eq!(notified(lane), u64::from(burst), "not before the burst's end");
        steer.kick();
        assert_eq!(notified(lane), 1, "once for its sleep, however many bursts");
    }
}

#[test]
fn packets_left_in_a_ring_are_counted_and_freed_when_both_sides_are_dropped() {
    for lanes in [1, 2] {
        let pool = pool();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let (table, mut made) = make(LaneConfig { ring: 128, ..Default::default() }, 1, lanes);
        (0..BUCKETS).for_each(|bucket| assert!(table.set(bucket, 0)));
        let taken = fill(&mut made.steers[0], &mut cache, 640);
        let mut batch = Batch::new();
        let got = made.lanes[0].rx(&mut batch);
        let counters = made.counters.clone();
        drop(made);
        assert_eq!((taken, got), (128, 64), "the ring was full");
        assert_eq!(counters[0].snapshot().dropped(DropReason::Stopped), 64);
        drop((batch, cache));
        assert_eq!(pool.stats().free, 8192);
    }
}

#[test]
fn a_lane_is_done_when_every_worker_has_closed_and_its_rings_are_empty() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let (_, mut made) = make(LaneConfig::default(), 2, 1);
    fill(&mut made.steers[0], &mut cache, 64);
    made.steers[0].close().unwrap();
    assert_eq!(made.lanes[0].state(), State::Up, "the other worker is still there");
    made.steers[1].close().unwrap();
    assert_eq!(made.lanes[0].state(), State::Up, "packets are still there");
    take(&mut made.lanes[0]);
    assert_eq!(made.lanes[0].state(), State::Done);
}

#[test]
fn a_bucket_moves_only_after_the_old_lane_has_sent_its_last_packet() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let (table, mut made) = make(LaneConfig::default(), 1, 2);
    let mut send = |steer: &mut Steer, number| {
        let mut batch = Batch::new();
        batch.push(frame(&mut cache, 7, number, false)).unwrap();
        steer.tx(&mut batch)
    };
    assert_eq!(send(&mut made.steers[0], 0), 1);
    let old = usize::from(take(&mut made.lanes[1]).len() == 1);
    if old == 0 {
        assert_eq!(take(&mut made.lanes[0]).len(), 1);
    }
    for bucket in 0..BUCKETS {
        assert!(table.set(bucket, 1 - old as u8));
    }
    assert_eq!(send(&mut made.steers[0], 1), 0, "taken by the old lane, but not sent yet");
    made.lanes[old].begin();
    made.lanes[old].passed();
    assert_eq!(send(&mut made.steers[0], 2), 1);
    assert_eq!(take(&mut made.lanes[1 - old]), [(7, 2)]);
    assert!(!table.set(BUCKETS, 0) && !table.set(0, 2), "no such bucket, no such lane");
}

#[test]
fn order_within_every_flow_survives_rebalancing_under_load() {
    let pool = pool();
    let (table, made) = make(LaneConfig { ring: 64, ..Default::default() }, 1, 2);
    let Lanes { mut steers, lanes, .. } = made;
    let mut steer = steers.remove(0);
    let seen = std::sync::Mutex::new(HashMap::<u16, u32>::new());
    const ROUNDS: u32 = 4000;
    std::thread::scope(|s| {
        for mut lane in lanes {
            let seen = &seen;
            s.spawn(move || {
                let mut batch = Batch::new();
                while !lane.state().ended() {
                    lane.begin();
                    lane.passed();
                    lane.rx(&mut batch);
                    for packet in batch.drain_front(64) {
                        let (flow, number) = tag(&packet);
                        let before = seen.lock().unwrap().insert(flow, number);
                        assert!(before.is_none_or(|b| b + 1 == number), "flow {flow}: {number} after {before:?}");
                    }
                    std::thread::yield_now();
                }
            });
        }
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut random = 1u32;
        for number in 0..ROUNDS {
            let mut batch = Batch::new();
            for flow in 0..16 {
                batch.push(frame(&mut cache, flow, number, false)).unwrap();
            }
            while !batch.is_empty() {
                if steer.tx(&mut batch) == 0 {
                    std::thread::yield_now();
                }
                steer.reclaim();
                steer.kick();
            }
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if number % 8 == 0 {
                for bucket in 0..BUCKETS {
                    table.set(bucket, ((random >> (bucket % 31)) & 1) as u8);
                }
            }
        }
        while steer.pending() > 0 {
            steer.reclaim();
            std::thread::yield_now();
        }
        steer.close().unwrap();
    });
    assert_eq!(seen.into_inner().unwrap().values().copied().collect::<Vec<_>>(), [ROUNDS - 1; 16]);
}

#[test]
fn the_balancer_evens_out_the_lanes_and_leaves_a_single_heavy_flow_alone() {
    let table = Arc::new(LaneTable::new(2).unwrap());
    let mut balancer = Balancer::new(table.clone());
    for bucket in (0..BUCKETS).filter(|b| b % 2 == 0) {
        table.count(bucket, 10);
    }
    let moved = balancer.step().unwrap();
    assert_eq!((moved % 2, table.lane(moved)), (0, 1));
    table.count(4, 1_000_000);
    assert_eq!(balancer.step(), None, "to move it would only turn the lanes round");
    assert_eq!(balancer.step(), None, "nothing to do without traffic");
}
