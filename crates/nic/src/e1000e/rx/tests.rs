//! The buffers' states, step by step, with descriptors that a test writes back.

use super::super::control::{Control, Faults};
use super::super::fake::{FakeDma, Script};
use super::*;
use crate::common::end::EndedRing;
use crate::common::ring::{distance, next};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use towpath_bus::{DmaPolicy, Domain};
use towpath_packet::{Backing, Direction, Pool, PoolConfig};

mod failures;
mod mixed;

const RING: u32 = 80;
const DONE: u64 = 1;
const END: u64 = 2;
const BROKEN: u64 = 0x0100_0000;

struct Rig {
    ring: RxRing<FakeDma>,
    script: Arc<Script>,
    pool: Pool,
    control: Control,
    out: Batch,
    batch: u32,
    tail: u32,
    /// Descriptors of each tail write.
    announced: Vec<u32>,
    /// The next descriptor that the device writes.
    device: u32,
}

fn rig_with(policy: DmaPolicy, config: Config, capacity: usize) -> Rig {
    let script = Arc::new(Script::default());
    let domain = Domain::new(FakeDma::new(script.clone(), true), policy).unwrap();
    let config_of_pool = PoolConfig::default().capacity(capacity).chunk(2048).backing(Backing::Anonymous);
    let pool = Pool::new(config_of_pool).unwrap();
    // SAFETY: no device is there.
    unsafe { domain.register(pool.region().unwrap()) }.unwrap();
    let control = Control::new(&config);
    let parts = RxParts {
        ring: DescRing::new(&domain, RING).unwrap(),
        mapper: DmaMapper::new(&domain, RING, 2048).unwrap(),
        cache: pool.cache(Direction::Rx).unwrap(),
        copy_cache: None,
        buffer_size: 1920,
    };
    let ring = RxRing::new(parts, &config, 0, FaultLog::new(&control));
    Rig { ring, script, pool, control, out: Batch::new(), batch: 64, tail: 0, announced: Vec::new(), device: 0 }
}

fn rig(policy: DmaPolicy) -> Rig {
    rig_with(policy, Config::default(), 1024)
}

impl Rig {
    fn refill(&mut self) -> usize {
        let (tail, announced) = (&mut self.tail, &mut self.announced);
        self.ring.buffers.refill(self.batch, |index| {
            announced.push(distance(*tail, index, RING));
            *tail = index;
        })
    }

    /// The device writes a descriptor back.
    fn write(&mut self, len: u64, status: u64) {
        self.ring.buffers.ring.store(self.device, [0, len << 32 | status]);
        self.device = next(self.device, RING);
    }

    fn receive(&mut self, copybreak: usize) -> usize {
        self.ring.receive(&mut self.out, BurstOptions { copybreak, keep_tags: true }).0
    }

    fn drain(&mut self) {
        while let Some(packet) = self.out.pop() {
            drop(packet);
        }
    }

    fn faults(&self) -> Faults {
        self.control.faults()
    }

    fn mapped(&self) -> usize {
        self.script.live.lock().unwrap().len()
    }

    /// Ends the ring; returns how many buffers are missing from the pool.
    fn end(mut self) -> usize {
        self.drain();
        self.ring.release();
        let stats = self.pool.stats();
        stats.capacity - stats.free
    }
}

#[test]
fn all_but_one_descriptor_are_filled_and_announced() {
    let mut b = rig(STRICT);
    assert_eq!(b.refill(), 79);
    assert_eq!((b.tail, b.mapped()), (79, 79));
    assert_eq!(b.refill(), 0);
    assert_eq!(b.end(), 0);
}

#[test]
fn descriptors_are_announced_by_batches_and_a_small_rest_waits_while_the_device_has_plenty() {
    for (batch, full, after_20, after_40) in [
        (64, vec![20, 20, 20, 19], vec![20], vec![20]),
        (16, vec![16; 4], vec![16; 2], vec![16]),
        (8, vec![8; 9], vec![8; 3], vec![8; 2]),
        (1, vec![1; 79], vec![1; 20], vec![1; 20]),
    ] {
        let mut b = rig(STRICT);
        b.batch = batch;
        b.refill();
        assert_eq!(b.announced, full);
        for expected in [after_20, after_40] {
            b.announced.clear();
            (0..20).for_each(|_| b.write(100, DONE | END));
            assert_eq!(b.receive(2048), 20);
            b.drain();
            b.refill();
            assert_eq!(b.announced, expected, "batch {batch}");
        }
        assert_eq!(b.end(), 0);
    }
}

#[test]
fn a_copied_frame_costs_two_syncs_and_no_mapping() {
    let mut b = rig(STRICT);
    b.refill();
    for _ in 0..10 {
        for _ in 0..10 {
            b.write(100, DONE | END);
        }
        assert_eq!(b.receive(2048), 10);
        assert!(b.out.iter().all(|p| p.len() == 100));
        b.drain();
        b.refill();
    }
    let counts = b.ring.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.flushes), (80, 0, 0), "each slot was filled once");
    assert_eq!((counts.syncs_for_cpu, counts.syncs_for_device), (100, 100));
    assert_eq!((counts.copies, counts.recycled, counts.handed), (100, 100, 0));
    assert_eq!(b.end(), 0);
}

#[test]
fn a_delivered_buffer_costs_one_unmapping_and_one_mapping_and_a_burst_one_flush() {
    let mut b = rig(STRICT);
    b.refill();
    for _ in 0..10 {
        b.write(1522, DONE | END);
    }
    assert_eq!(b.receive(256), 10);
    assert_eq!(b.mapped(), 69);
    b.refill();
    let counts = b.ring.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.flushes, counts.handed, counts.copies), (89, 10, 1, 10, 0));
    assert_eq!(b.end(), 0);
}

#[test]
fn unmap_first_maps_and_unmaps_every_buffer() {
    let mut b = rig_with(STRICT, Config { recycle: RecycleMode::UnmapFirst, ..Config::default() }, 1024);
    b.refill();
    for status in [DONE | END, DONE | END | BROKEN, DONE | END] {
        b.write(100, status);
    }
    assert_eq!(b.receive(2048), 2);
    assert_eq!(b.mapped(), 76);
    b.refill();
    let counts = b.ring.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.flushes, counts.copies), (82, 3, 1, 2));
    assert_eq!((counts.syncs_for_cpu, counts.syncs_for_device), (3, 0));
    assert_eq!(b.end(), 0);
}

/// A ring that unmaps first and, under strict protection, flushes the IOTLB for each buffer.
fn each_alone(policy: DmaPolicy) -> Rig {
    let config = Config { recycle: RecycleMode::UnmapFirst, wait_each: true, ..Config::default() };
    let mut rig = rig_with(policy, config, 1024);
    rig.refill();
    rig
}

#[test]
fn unmap_first_copies_in_one_pass_where_no_buffer_shares_a_flush() {
    let mut b = each_alone(STRICT);
    (0..3).for_each(|_| b.write(100, DONE | END));
    assert_eq!(b.receive(2048), 3);
    assert_eq!(b.mapped(), 79, "the same pass maps again what it unmapped");
    let counts = b.ring.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.flushes, counts.copies), (82, 3, 3, 3));
    assert_eq!((counts.syncs_for_cpu, counts.syncs_for_device), (3, 0));
    b.refill();
    assert_eq!(b.ring.counts().maps, 83, "only the slot that was never filled is");
    b.write(1000, DONE | END);
    assert_eq!(b.receive(256), 1);
    let counts = b.ring.counts();
    assert_eq!((counts.unmaps, counts.flushes, counts.handed), (4, 4, 1), "a buffer is unmapped once");
    assert_eq!(b.end(), 0);
}

#[test]
fn without_protection_neither_mode_maps_a_buffer() {
    for recycle in [RecycleMode::KeepMapped, RecycleMode::UnmapFirst] {
        let mut b = rig_with(DmaPolicy::Persistent, Config { recycle, ..Config::default() }, 1024);
        b.refill();
        b.write(100, DONE | END);
        b.write(1500, DONE | END);
        assert_eq!(b.receive(256), 2);
        b.refill();
        let counts = b.ring.counts();
        assert_eq!((counts.maps, counts.unmaps, counts.flushes, counts.copies, counts.handed), (0, 0, 0, 1, 1));
        assert_eq!((counts.syncs_for_cpu, counts.syncs_for_device), (2, 1), "{recycle:?}: the copy's way is the same");
        assert_eq!(b.end(), 0);
    }
}

#[test]
fn broken_frames_and_parts_of_endless_ones_go_back_without_a_mapping() {
    let mut b = rig(STRICT);
    b.refill();
    b.write(100, DONE | END | BROKEN);
    for _ in 0..70 {
        b.write(1000, DONE);
    }
    assert_eq!(b.receive(0), 0);
    b.refill();
    b.write(1000, DONE | END);
    b.write(60, DONE | END);
    assert_eq!(b.receive(0), 1, "what follows the end of the endless frame is received");
    let (counts, faults) = (b.ring.counts(), b.faults());
    assert_eq!((counts.unmaps, counts.recycled), (1, 72));
    assert_eq!((faults.broken_frames, faults.endless_frames), (1, 1));
    assert_eq!(b.end(), 0);
}

#[test]
fn a_long_frame_becomes_a_chain_and_waits_for_its_end() {
    let mut b = rig_with(STRICT, Config { mtu: 9000, ..Config::default() }, 1024);
    b.refill();
    b.write(1920, DONE);
    b.write(0, DONE);
    b.write(1920, DONE);
    assert_eq!(b.receive(0), 0);
    assert_eq!(b.ring.counts().unmaps, 0, "a frame that has begun keeps its buffers");
    b.write(60, DONE | END);
    assert_eq!(b.receive(0), 1);
    let packet = b.out.pop().unwrap();
    assert_eq!((packet.len(), packet.frags()), (3900, 2), "a buffer without bytes is no fragment");
    drop(packet);
    assert_eq!(b.end(), 0);
}

#[test]
fn a_chain_below_the_threshold_is_copied_into_one_buffer() {
    let mut b = rig_with(STRICT, Config { mtu: 9000, ..Config::default() }, 1024);
    b.ring.buffer_size = 1024;
    b.refill();
    b.write(1024, DONE);
    b.write(300, DONE | END);
    assert_eq!(b.receive(16384), 1);
    let packet = b.out.pop().unwrap();
    assert_eq!((packet.len(), packet.frags(), b.ring.counts().unmaps), (1324, 0, 0));
    drop(packet);
    assert_eq!(b.end(), 0);
}

#[test]
fn impossible_lengths_are_counted_and_cost_no_buffer() {
    let mut b = rig(STRICT);
    b.refill();
    b.write(0xffff, DONE | END);
    b.write(13, DONE | END);
    b.write(1600, DONE | END);
    b.write(60, DONE | END);
    assert_eq!(b.receive(0), 1);
    let faults = b.faults();
    assert_eq!((faults.bad_lengths, faults.runts, faults.oversize), (1, 1, 1));
    assert_eq!(b.end(), 0);
}

#[test]
fn a_descriptor_that_was_not_announced_is_not_read() {
    let mut b = rig(STRICT);
    for _ in 0..79 {
        b.write(100, DONE | END);
    }
    assert_eq!(b.receive(0), 0);
    assert_eq!(b.end(), 0);
}

#[test]
fn a_descriptor_that_is_completed_out_of_order_is_noticed() {
    let mut b = rig(STRICT);
    b.refill();
    assert!(!b.ring.buffers.is_out_of_order());
    b.device = 5;
    b.write(100, DONE | END);
    assert_eq!(b.receive(0), 0);
    assert!(b.ring.buffers.is_out_of_order());
    b.ring.restart(1920);
    assert_eq!(b.mapped(), 79, "buffers stay mapped over a reset");
    b.device = 0;
    assert_eq!(b.refill(), 79);
    b.write(100, DONE | END);
    assert_eq!(b.receive(0), 1);
    assert_eq!(b.end(), 0);
}

#[test]
fn a_few_buffers_are_announced_at_once_if_the_device_has_none_and_old_descriptors_are_not_read_again() {
    let mut b = rig_with(STRICT, Config::default(), 79);
    assert_eq!(b.refill(), 79);
    (0..79).for_each(|_| b.write(100, DONE | END));
    let mut held = Vec::new();
    while b.receive(0) > 0 {
        held.extend(b.out.drain_front(64));
    }
    assert_eq!((held.len(), b.refill()), (79, 0));
    b.announced.clear();
    held.truncate(74);
    assert_eq!((b.refill(), &b.announced[..]), (5, &[5][..]));
    // Behind the tail are descriptors of the first round, which were not rewritten.
    let faults = b.faults();
    (0..5).for_each(|_| b.write(100, DONE | END));
    assert_eq!((b.receive(0), b.faults()), (5, faults));
    drop(held);
    assert_eq!(b.end(), 0);
}

#[test]
fn tails_are_announced_by_batches_unless_the_device_runs_dry() {
    let mut b = rig(DmaPolicy::Persistent);
    b.refill();
    let mut writes = 0;
    for _ in 0..64 {
        b.write(64, DONE | END);
        b.receive(256);
        b.drain();
        b.ring.buffers.refill(64, |_| writes += 1);
    }
    assert_eq!(writes, 4);
    assert_eq!(b.end(), 0);
}
