//! Mappings that fail, a pool that is empty, a device that may go on writing.

use super::*;

#[test]
fn a_mapping_that_fails_leaves_the_slot_with_its_buffer_and_is_tried_again() {
    let mut b = rig(STRICT);
    b.script.fail_maps.store(1, Relaxed);
    assert_eq!(b.refill(), 0);
    assert_eq!((b.tail, b.faults().map_failed), (0, 1), "a descriptor without an address is not announced");
    b.script.fail_maps.store(0, Relaxed);
    assert_eq!(b.refill(), 79);
    assert_eq!(b.pool.stats().shortages, 0);
    b.script.fail_maps.store(1, Relaxed);
    for _ in 0..20 {
        b.write(1000, DONE | END);
    }
    assert_eq!(b.receive(0), 20);
    b.drain();
    assert_eq!(b.refill(), 0);
    assert_eq!(b.refill(), 20);
    assert_eq!(b.end(), 0);
}

#[test]
fn an_empty_pool_leaves_slots_empty_until_buffers_are_freed() {
    let mut b = rig_with(STRICT, Config::default(), 90);
    assert_eq!(b.refill(), 79);
    for _ in 0..40 {
        b.write(1000, DONE | END);
    }
    assert_eq!(b.receive(0), 40);
    assert!(b.refill() < 40);
    assert!(b.faults().no_buffer > 0);
    b.drain();
    while b.refill() > 0 {}
    assert_eq!(b.mapped(), 79);
    assert_eq!(b.end(), 0);
}

#[test]
fn without_a_buffer_for_the_copy_the_frame_itself_is_delivered() {
    let mut b = rig_with(STRICT, Config::default(), 79);
    assert_eq!(b.refill(), 79);
    for _ in 0..3 {
        b.write(64, DONE | END);
    }
    assert_eq!(b.receive(2048), 3);
    let counts = b.ring.counts();
    assert_eq!((counts.copies, counts.handed, counts.unmaps), (0, 3, 3));
    assert_eq!(b.end(), 0);
}

#[test]
fn a_buffer_that_can_not_be_unmapped_is_never_used_again() {
    let mut b = rig(STRICT);
    b.refill();
    b.script.fail_unmaps.store(1, Relaxed);
    b.write(1000, DONE | END);
    b.write(1000, DONE | END);
    assert_eq!(b.receive(0), 1);
    assert_eq!((b.faults().leaked, b.faults().lost_frames), (1, 1));
    assert_eq!(b.refill(), 2);
    assert_eq!(b.end(), 1);
}

#[test]
fn frames_whose_translations_may_still_be_cached_are_not_delivered() {
    let mut b = rig(STRICT);
    b.refill();
    b.script.fail_flushes.store(1, Relaxed);
    for len in [1000, 64, 1000] {
        b.write(len, DONE | END);
    }
    assert_eq!(b.receive(256), 1, "the copy was made of a buffer that stayed mapped");
    assert_eq!((b.faults().leaked, b.faults().lost_frames), (2, 2));
    assert_eq!(b.end(), 2);
}

#[test]
fn a_failure_in_the_pass_that_unmaps_costs_no_buffer_but_the_one_that_the_device_may_reach() {
    let mut b = each_alone(STRICT);
    b.script.fail_maps.store(1, Relaxed);
    (0..2).for_each(|_| b.write(100, DONE | END));
    assert_eq!(b.receive(2048), 2, "the three passes copy what could not be mapped again");
    assert_eq!(b.mapped(), 77);
    b.refill();
    assert_eq!(b.mapped(), 79);
    b.script.fail_flushes.store(1, Relaxed);
    b.write(100, DONE | END);
    assert_eq!(b.receive(2048), 1, "the next flush covers the buffer");
    b.script.fail_unmaps.store(1, Relaxed);
    (0..2).for_each(|_| b.write(100, DONE | END));
    assert_eq!(b.receive(2048), 1);
    assert_eq!((b.faults().leaked, b.faults().lost_frames), (1, 1));
    assert_eq!(b.end(), 1);
}

#[test]
fn a_device_that_may_go_on_writing_keeps_its_buffers_for_ever() {
    let mut b = rig(STRICT);
    b.refill();
    let Rig { ring, pool, control, script, .. } = b;
    let persistent = script.persistent.load(Relaxed);
    ring.abandon();
    assert_eq!((script.persistent.load(Relaxed), persistent), (1, 1), "the device reaches the ring as well");
    assert_eq!(control.faults().leaked, 79);
    assert_eq!(pool.stats().capacity - pool.stats().free, 79);
}
