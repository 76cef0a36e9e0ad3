//! Frames that are longer than a buffer, and devices with corrupt descriptors.

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use towpath_model::cpsw::{self as model, Corruption, Injected};
use towpath_nic::cpsw::{ConfigError, CpswError, FreeRing, open};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, Packet, Pool, PoolConfig};

/// The variants with chains: UDMA only with free rings in message mode.
const CHAINED: [Variant; 3] = [Variant::Pktdma, Variant::PktdmaUntagged, Variant::UdmaMessages];
const LONGEST: usize = 9000;
/// Bytes of a frame that fit into a buffer.
const BUFFER: usize = 2048 - 128;

/// Jumbo frames in buffers of less than 2 KiB: up to five per frame.
fn jumbo(variant: Variant, rx_ring: u32) -> Rig {
    let config = config(variant, 1).rx_ring(rx_ring).tx_descriptors(32).max_len(9018).rx_buffers(6);
    Rig::with(config, model_config(variant, 1).host_depth(1024))
}

fn inject(rig: &Rig, number: u32, len: usize, corruption: Corruption) {
    assert!(rig.model.inject(1, &stamp(0, number, len), Injected { corruption, ..Injected::default() }));
}

#[test]
fn a_frame_of_any_length_arrives_whole_in_any_number_of_buffers() {
    for variant in CHAINED {
        let mut rig = jumbo(variant, 24);
        let edges = (1..=4).flat_map(|buffers| [-1, 0, 1].map(|off| (buffers * BUFFER).strict_add_signed(off)));
        let lengths = (60..=LONGEST).step_by(57).chain(edges).chain([LONGEST]);
        let mut number = 0;
        for len in lengths {
            inject(&rig, number, len, Corruption::None);
            number += 1;
            rig.run(number as usize % 9);
            rig.model.settle();
            let frames = rig.receive(0);
            assert_stamps(&frames, 0, number - 1);
            assert_eq!(frames.len(), 1, "{variant:?}: frame of {len} bytes");
        }
        let counts = rig.ports[0].rx[0].counts()[0];
        assert_eq!((counts.received, counts.broken, counts.strays), (u64::from(number), 0, 0));
        assert_eq!(rig.model.starved(), 0);
        rig.finish();
        rig.assert_no_leak();
    }
}

#[test]
fn short_frames_between_long_ones_leave_the_rest_of_their_chains_for_the_next() {
    let mut rig = jumbo(Variant::Pktdma, 24);
    let posted = |rig: &Rig| rig.pool.stats().capacity - rig.pool.stats().free;
    rig.receive(0);
    let before = posted(&rig);
    for number in 0..100 {
        inject(&rig, number, if number % 3 == 0 { 6000 } else { 70 }, Corruption::None);
        rig.model.settle();
        assert_stamps(&rig.receive(0), 0, number);
    }
    // Each buffer is in the ring or in a cache: none was lost.
    assert!(posted(&rig) <= before + 64, "{} buffers in use, {before} before", posted(&rig));
    rig.finish();
    rig.assert_no_leak();
}

#[test]
fn long_frames_are_sent_whole() {
    for variant in CHAINED {
        let mut rig = jumbo(variant, 24);
        for number in 0..20 {
            let packet = rig.fragmented(&stamp(0, number, 8000), 5);
            rig.send(0, packet);
            rig.settle();
        }
        let sent = rig.plugs[0].drain();
        assert_eq!(sent.len(), 20, "{variant:?}");
        assert_stamps(&sent, 0, 0);
        rig.finish();
    }
}

#[test]
fn a_frame_that_finds_too_few_buffers_is_dropped_and_the_next_finds_them() {
    let mut rig = jumbo(Variant::UdmaMessages, 24);
    // There are 24 buffers. Five frames take four each; a sixth needs five and finds four.
    (0..5).for_each(|number| inject(&rig, number, 7000, Corruption::None));
    inject(&rig, 5, 8900, Corruption::None);
    inject(&rig, 5, 7000, Corruption::None);
    rig.model.settle();
    assert_eq!(rig.model.starved(), 1);
    let frames = rig.receive(0);
    assert_eq!(frames.len(), 6);
    assert_stamps(&frames, 0, 0);
    rig.finish();
    rig.assert_no_leak();
}

/// Corrupt frames between good ones: only they are lost, and after the end nothing is missing.
fn corrupt_frames(variant: Variant, corruption: Corruption, len: usize) {
    let mut rig = jumbo(variant, 64);
    let mut batch = Batch::new();
    for round in 0..4 {
        inject(&rig, 2 * round, 5000, Corruption::None);
        inject(&rig, 2 * round, len, corruption);
        inject(&rig, 2 * round + 1, 100, Corruption::None);
        rig.model.settle();
        assert_eq!(rig.ports[0].rx[0].rx(&mut batch), 2, "{variant:?} {corruption:?} in round {round}");
        let frames: Vec<_> = batch.iter().map(Packet::to_vec).collect();
        assert_stamps(&frames, 0, 2 * round);
        rig.cache.free_bulk(&mut batch);
        rig.ports[0].rx[0].refill();
    }
    assert_eq!(rig.ports[0].rx[0].counts()[0].broken, 4, "{variant:?} {corruption:?}");
    rig.model.set_steps_per_read(4);
    rig.stop();
    for stop in rig.control.stops() {
        assert!(stop.orderly && stop.free == stop.descriptors, "{variant:?} {corruption:?}: {stop:?}");
    }
    rig.assert_no_leak();
}

#[test]
fn a_frame_that_claims_to_be_longer_than_its_buffers_is_dropped() {
    for variant in CHAINED {
        for (len, excess) in [(100, 20_000), (3000, 9000), (9000, 4_000_000), (BUFFER, 1)] {
            corrupt_frames(variant, Corruption::TooLong(excess), len);
        }
    }
}

#[test]
fn a_chain_that_leaves_the_descriptors_or_loops_or_ends_before_the_frame_is_dropped() {
    for corruption in [Corruption::NextUnknown, Corruption::NextLoop, Corruption::NextMissing] {
        corrupt_frames(Variant::UdmaMessages, corruption, 3000);
    }
    // A frame that is complete and has a next descriptor is dropped too.
    for corruption in [Corruption::NextUnknown, Corruption::NextLoop] {
        corrupt_frames(Variant::UdmaMessages, corruption, 9000);
    }
}

#[test]
fn a_frame_of_one_buffer_with_a_next_descriptor_is_dropped_if_frames_have_one_buffer() {
    let mut rig = Rig::new(Variant::UdmaMessages, 1);
    inject(&rig, 0, 100, Corruption::NextLoop);
    inject(&rig, 0, 100, Corruption::None);
    rig.model.settle();
    assert_stamps(&rig.receive(0), 0, 0);
    assert_eq!(rig.ports[0].rx[0].counts()[0].broken, 1);
    rig.finish();
}

#[test]
fn an_exposed_ring_of_udma_takes_no_chains() {
    let model = model::Cpsw::new(model_config(Variant::Udma, 1)).unwrap();
    let config = config(Variant::Udma, 1).rx_buffers(2);
    assert_eq!(config.soc.free_ring, FreeRing::Exposed);
    let error = open(model.bus(), std::sync::Arc::new(model.firmware()), config).unwrap_err();
    assert!(matches!(error, CpswError::Config(ConfigError { option: "buffers", .. })), "{error}");
}

#[test]
fn small_buffers_take_ordinary_frames_in_several_chunks() {
    for variant in CHAINED {
        let config = config(variant, 1).rx_ring(32).rx_buffers(8);
        let pool = Pool::new(PoolConfig::default().chunk(512).capacity(1024).backing(Backing::Anonymous));
        let mut rig = Rig::with_pool(config, model_config(variant, 1), pool.unwrap());
        for number in 0..40 {
            inject(&rig, number, 64 + number as usize * 35, Corruption::None);
            rig.model.settle();
            assert_stamps(&rig.receive(0), 0, number);
        }
        assert_eq!(rig.ports[0].tx[0].pending(), 0);
        rig.finish();
        rig.assert_no_leak();
    }
}
