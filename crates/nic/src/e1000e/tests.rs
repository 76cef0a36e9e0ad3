//! The port as a whole, over a fake device.

use super::fake::{FakePci, Script};
use super::regs::*;
use super::*;
use crate::batching::BatchSize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use towpath_bus::{Flush, Reg};
use towpath_packet::port::{RxQueue, State, TxQueue};
use towpath_packet::{Batch, Packet, Pool, PoolConfig};

const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };

fn config() -> Config {
    let rx_ring = RingSize::new("rx", 80).unwrap();
    Config { rx_ring, pauses: Pauses::None, stall: Duration::from_millis(10), ..Config::default() }
}

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(2048).backing(Backing::Anonymous)).unwrap()
}

type Both = Queues<E1000eRx<FakePci>, E1000eTx<FakePci>>;

fn started(config: Config) -> (Both, Arc<Script>, Pool, Control) {
    started_on(FakePci::new(0x10d3, true), config)
}

fn started_on(bus: FakePci, config: Config) -> (Both, Arc<Script>, Pool, Control) {
    let script = bus.script.clone();
    let queues = config.queues;
    let port = E1000e::open(bus, "e1000e:fake", config).unwrap();
    let (pool, control) = (pool(), port.control());
    let queues = port.start(Start { pool: pool.clone(), queues, accept: Offloads::ALL }).unwrap();
    (queues, script, pool, control)
}

fn missing(pool: &Pool) -> usize {
    pool.stats().capacity - pool.stats().free
}

#[test]
fn a_device_is_opened_by_its_id_and_has_an_address_and_a_link() {
    let port = E1000e::open(FakePci::new(0x10f6, true), "e1000e:fake", config()).unwrap();
    assert_eq!((port.mac(), port.info().max_queues), ([0x52, 2, 0, 0, 0, 1], 1));
    let names: Vec<_> = port.info().tx_offloads.names().collect();
    assert_eq!(names, ["csum", "tso4", "tso6", "vlan"]);
    let other = E1000e::open(FakePci::new(0x100e, true), "e1000e:fake", config()).unwrap_err();
    assert_eq!(other.to_string(), "fake: 8086:100e is no 82574L, 82574LA or 82583V");
    let two = E1000e::open(FakePci::new(0x150c, true), "e1000e:fake", Config { queues: 2, ..config() }).unwrap_err();
    assert_eq!(two.to_string(), "queues=2: must be at most 1 on a 82583V");
    let bare = E1000e::open(FakePci::new(0x10d3, false), "e1000e:fake", Config { policy: STRICT, ..config() });
    assert!(bare.unwrap_err().to_string().contains("IOMMU"));
}

#[test]
fn reception_is_enabled_after_the_descriptor_format_is_set_and_before_the_first_tail_write() {
    let (mut queues, script, ..) = started(config());
    queues.rx[0].refill();
    let writes = script.writes.lock().unwrap();
    let last = |reg: Reg, bits: u32| writes.iter().rposition(|&(at, v)| at == reg.at() && v & bits == bits).unwrap();
    let enabled = last(RCTL, rctl::ENABLE);
    assert!(last(RFCTL, rfctl::EXTENDED) < enabled && last(RDLEN, 80 * 16) < enabled);
    assert!(enabled < last(RDT, 79));
    let ctrl = writes.iter().rfind(|(at, _)| *at == CTRL.at()).unwrap().1;
    assert_eq!(ctrl & (ctrl::MASTER_DISABLE | ctrl::RESERVED | ctrl::RESET), 0);
}

#[test]
fn the_packet_buffer_is_split_before_the_reset_that_makes_it_so_and_never_after() {
    let (_queues, script, ..) = started(config());
    let writes = script.writes.lock().unwrap();
    let split: Vec<_> = (0..).zip(writes.iter()).filter(|(_, (at, _))| *at == PBA.at()).collect();
    let reset = writes.iter().position(|&(at, v)| at == CTRL.at() && v & ctrl::RESET != 0).unwrap();
    assert!(split.len() == 1 && split[0].0 < reset, "{split:?}, reset at {reset}");
}

#[test]
fn the_settings_of_a_device_that_is_gone_are_not_changed() {
    let (mut queues, script, _pool, control) = started(config());
    control.set_mtu(1400).unwrap();
    script.dead.store(true, Relaxed);
    let begun = std::time::Instant::now();
    while !matches!(queues.rx[0].state(), State::Gone(_)) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        queues.rx[0].rx(&mut Batch::new());
    }
    let refused = control.set_mtu(1500).unwrap_err().to_string();
    assert_eq!((refused.as_str(), control.mtu()), ("mtu=1500: the device does not answer, and was given up", 1400));
}

#[test]
fn bursts_cost_one_register_write_and_no_read() {
    let (mut queues, script, pool, control) = started(config());
    let mut cache = pool.cache(Direction::Tx).unwrap();
    queues.rx[0].refill();
    let (reads, writes) = (script.reads.load(Relaxed), script.writes.lock().unwrap().len());
    let mut batch: Batch = Batch::new();
    for _ in 0..2 {
        (0..32).for_each(|_| drop(batch.push(Packet::copy_from(&mut cache, &[0; 60]).unwrap())));
        assert_eq!(queues.tx[0].tx(&mut batch), 32);
        queues.tx[0].kick();
    }
    assert_eq!((script.reads.load(Relaxed), script.writes.lock().unwrap().len()), (reads, writes + 2));
    assert_eq!(queues.tx[0].counters().snapshot().calls, 2);
    assert_eq!(control.faults().iter().map(|(_, n)| n).sum::<u64>(), 0);
    drop((queues, cache));
    assert_eq!(missing(&pool), 0);
}

#[test]
fn every_full_batch_is_announced_at_once_and_the_rest_with_its_burst() {
    let tails = |script: &Script| -> Vec<u32> {
        script.writes.lock().unwrap().iter().filter(|(at, _)| *at == TDT.at()).map(|(_, tail)| *tail).collect()
    };
    for (size, mid_burst, at_its_end) in [
        (64, vec![], vec![40]),
        (32, vec![32], vec![32, 40]),
        (8, vec![8, 16, 24, 32, 40], vec![8, 16, 24, 32, 40]),
        (1, (1..=40).collect(), (1..=40).collect::<Vec<_>>()),
    ] {
        let (mut queues, script, pool, control) = started(config());
        control.batching().resize(BatchSize::new(size).unwrap());
        let before = tails(&script).len();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut batch: Batch = Batch::new();
        (0..40).for_each(|_| drop(batch.push(Packet::copy_from(&mut cache, &[0; 60]).unwrap())));
        assert_eq!(queues.tx[0].tx(&mut batch), 40);
        assert_eq!(tails(&script)[before..], mid_burst, "batch {size}");
        queues.tx[0].kick();
        queues.tx[0].kick();
        assert_eq!(tails(&script)[before..], at_its_end, "batch {size}");
        drop((queues, cache));
        assert_eq!(missing(&pool), 0);
    }
}

#[test]
fn staged_packets_are_announced_when_the_ring_is_full_and_when_batches_become_smaller() {
    let tx_ring = RingSize::new("tx", 80).unwrap();
    let (mut queues, script, pool, control) = started(Config { tx_ring, batch: BatchSize::MAX, ..config() });
    let last = || script.writes.lock().unwrap().iter().rfind(|(at, _)| *at == TDT.at()).unwrap().1;
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let mut send = |n: usize| {
        let mut batch: Batch = Batch::new();
        (0..n).for_each(|_| drop(batch.push(Packet::copy_from(&mut cache, &[0; 60]).unwrap())));
        queues.tx[0].tx(&mut batch)
    };
    assert_eq!((send(30), last()), (30, 0));
    control.batching().resize(BatchSize::new(16).unwrap());
    assert_eq!((send(1), last()), (1, 30));
    control.batching().resize(BatchSize::MAX);
    assert_eq!((send(20), last()), (20, 30));
    assert_eq!((send(40), last()), (28, 79), "one descriptor stays free");
    drop((queues, cache));
    assert_eq!(missing(&pool), 0);
}

/// Turns all queues until `until` is true, at most for some seconds.
fn turn(queues: &mut Both, mut until: impl FnMut() -> bool) {
    let mut out: Batch = Batch::new();
    let begun = std::time::Instant::now();
    while !until() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain");
        for rx in &mut queues.rx {
            rx.refill();
            rx.rx(&mut out);
        }
        queues.tx.iter_mut().for_each(|tx| {
            let _ = tx.reclaim();
        });
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_device_that_does_not_send_is_reset_and_its_frames_are_dropped_by_name() {
    let (mut queues, _, pool, control) = started(Config { queues: 2, policy: STRICT, ..config() });
    let mut batch: Batch = Batch::new();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    batch.push(Packet::copy_from(&mut cache, &[0; 60]).unwrap()).unwrap();
    queues.tx[1].tx(&mut batch);
    queues.tx[1].kick();
    turn(&mut queues, || control.faults().resets == 1);
    turn(&mut queues, || true);
    let mut spins = 0;
    turn(&mut queues, || {
        spins += 1;
        spins > 4
    });
    assert_eq!((queues.tx[1].pending(), control.faults().hangs), (0, 1));
    assert_eq!(queues.tx[1].counters().snapshot().dropped(towpath_packet::DropReason::Refused), 1);
    turn(&mut queues, || control.link().up);
    drop((queues, cache));
    assert_eq!(missing(&pool), 0);
}

#[test]
fn a_device_that_hangs_after_every_reset_is_given_up() {
    let (mut queues, _, pool, control) = started(config());
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let begun = std::time::Instant::now();
    while !matches!(queues.tx[0].state(), State::Gone(_)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the device is not given up");
        let mut batch: Batch = Batch::new();
        batch.push(Packet::copy_from(&mut cache, &[0; 60]).unwrap()).unwrap();
        queues.tx[0].tx(&mut batch);
        queues.tx[0].kick();
        let mut n = 0;
        turn(&mut queues, || {
            n += 1;
            n > 20
        });
    }
    assert_eq!((control.faults().resets, control.faults().function_resets), (9, 1));
    drop((queues, cache));
    assert_eq!(missing(&pool), 0, "the device could still be stopped");
}

#[test]
fn a_device_that_was_removed_is_gone_and_behind_no_iommu_all_that_it_could_reach_is_leaked() {
    for (iommu, leaked) in [(true, 0), (false, 79)] {
        let (mut queues, script, pool, control) = started_on(FakePci::new(0x10d3, iommu), config());
        queues.rx[0].refill();
        script.dead.store(true, Relaxed);
        turn(&mut queues, || control.link() == LinkStatus { up: false, speed: 1000, full_duplex: true });
        assert_eq!(queues.rx[0].state(), State::Gone("the device was removed".into()));
        drop(queues);
        assert_eq!((control.faults().leaked, missing(&pool)), (leaked, leaked as usize));
        assert_eq!(script.persistent.load(Relaxed) > 0, leaked > 0, "leaked memory stays mapped");
    }
}

#[test]
fn a_device_that_can_not_be_seen_idle_keeps_what_it_can_reach() {
    let (mut queues, script, pool, control) = started(config());
    queues.rx[0].refill();
    script.restless.store(true, Relaxed);
    drop(queues);
    assert_eq!((control.faults().leaked, missing(&pool)), (79, 79));
}

#[test]
fn queues_may_end_in_any_order_and_all_is_returned_after_the_last() {
    for first in 0..4 {
        let (queues, script, pool, _) = started(Config { queues: 2, policy: STRICT, ..config() });
        let Queues { mut rx, mut tx } = queues;
        rx.iter_mut().for_each(|rx| {
            let _ = rx.refill();
        });
        match first {
            0 => drop((rx, tx)),
            1 => drop((tx, rx)),
            2 => drop((rx.pop(), tx.pop(), rx, tx)),
            _ => drop((tx.pop(), rx.pop(), tx, rx)),
        }
        assert_eq!((missing(&pool), script.live.lock().unwrap().len(), script.persistent.load(Relaxed)), (0, 0, 0));
        assert_eq!(script.registers.lock().unwrap()[&RCTL.at()], 0);
    }
}

#[test]
fn a_reset_does_not_wait_for_queues_that_have_ended() {
    let (mut queues, _, pool, control) = started(Config { queues: 2, ..config() });
    queues.rx.pop();
    queues.tx.remove(0);
    let mut batch: Batch = Batch::new();
    batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[0; 60]).unwrap()).unwrap();
    queues.tx[0].tx(&mut batch);
    queues.tx[0].kick();
    turn(&mut queues, || control.faults().resets == 1);
    drop(queues);
    assert_eq!(missing(&pool), 0);
}

#[test]
fn without_a_link_nothing_is_taken() {
    let (mut queues, script, pool, control) = started(config());
    script.registers.lock().unwrap().insert(STATUS.at(), 0);
    turn(&mut queues, || control.faults().link_losses == 1);
    let mut batch: Batch = Batch::new();
    batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[0; 60]).unwrap()).unwrap();
    assert_eq!(queues.tx[0].tx(&mut batch), 0);
    assert!(matches!(queues.tx[0].state(), State::Down(_)));
}

#[test]
fn a_device_that_does_not_reach_the_pool_has_one_of_its_own_and_packets_are_copied() {
    for policy in [DmaPolicy::Persistent, STRICT] {
        let bus = FakePci::new(0x10d3, true);
        let script = bus.script.clone();
        script.foreign.store(true, Relaxed);
        // Frames are not copied to bounce memory.
        let config = Config { policy, tx_copybreak: Some(TxCopybreak::OFF), ..config() };
        let port = E1000e::open(bus, "e1000e:fake", config).unwrap();
        let zero_copy = port.info().abilities.iter().find(|a| a.name == "zerocopy").unwrap();
        assert!(!zero_copy.on && zero_copy.why.contains("copy of every packet"));
        let (pool, control) = (pool(), port.control());
        let mut queues = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap();
        let own = queues.rx[0].memory().pool.unwrap();
        queues.rx[0].refill();
        assert!(own.stats().free < own.stats().capacity);
        let mut batch: Batch = Batch::new();
        batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[1; 300]).unwrap()).unwrap();
        assert_eq!(queues.tx[0].tx(&mut batch), 1);
        assert_eq!(control.faults().bounced, 1);
        drop(queues);
        assert_eq!((missing(&own), missing(&pool), script.live.lock().unwrap().len()), (0, 0, 0));
    }
}

#[test]
fn a_port_that_is_never_started_leaves_its_device_stopped() {
    let bus = FakePci::new(0x10d3, true);
    let script = bus.script.clone();
    drop(E1000e::open(bus, "e1000e:fake", config()).unwrap());
    assert_eq!(script.registers.lock().unwrap()[&TCTL.at()] & tctl::ENABLE, 0);
    assert_eq!(script.persistent.load(Relaxed), 0);
}
