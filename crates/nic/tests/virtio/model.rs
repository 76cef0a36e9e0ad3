//! The driver on the model: every kind of ring, strict; and a device that breaks its own rules.

use crate::qtest::{DEFERRED, STRICT};
use crate::rig::{PATIENCE, Rig, frame};
use std::time::{Duration, Instant};
use towpath_bus::{Bus, Dma, DmaPolicy};
use towpath_model::iommu::Refuse;
use towpath_model::virtio::{self as model, Device, FEATURES, Faults, VirtioBus};
use towpath_model::wire::{Plug, Wire, cable};
use towpath_nic::virtio::{Config, Copybreak, Filter, PciConfig, PciTransport, VirtioNet};
use towpath_packet::port::{Port, PortControl, RxQueue, SettingValue, Start, State, TxQueue};
use towpath_packet::{Batch, Checksum, Offloads, Packet, Pool, PoolConfig};

type Tested = (Rig<PciTransport<VirtioBus>>, Device, Plug);

/// A port on a strict model that is turned by hand.
fn start(config: Config, model: model::Config) -> Tested {
    let (near, far) = cable(256);
    let bus = model::launch(model.strict(true).pairs(config.queues), near).unwrap();
    let device = bus.device();
    let memory = PoolConfig::default().capacity(1024).chunk(2048);
    let region = bus.dma().alloc(memory.capacity * memory.chunk).unwrap();
    // SAFETY: the region is new, and devices write only to buffers that are in flight to them.
    let pool: Pool = unsafe { Pool::in_region(memory, region) }.unwrap();
    // Commands of the control queue are waited for.
    let turning = device.clone();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let rig = std::thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.recv_timeout(Duration::from_micros(50)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                turning.turn();
            }
        });
        let transport = PciTransport::open(bus, PciConfig::new(config.queues, true)).unwrap();
        let rig = Rig::start(VirtioNet::open(transport, "virtio:model", config).unwrap(), pool, Offloads::ALL);
        drop(done);
        rig
    });
    (rig, device, far)
}

fn config(packed: bool, mergeable: bool, policy: DmaPolicy) -> Config {
    let mut config = Config::default();
    (config.packed, config.mergeable, config.policy, config.ring) = (packed, mergeable, policy, 64);
    config
}

#[test]
fn frames_pass_both_ways_in_every_kind_of_ring_and_no_rule_is_broken() {
    for packed in [false, true] {
        for (features, mergeable) in [
            (FEATURES, true),
            (FEATURES, false),
            (FEATURES & !(1 << 28 | 1 << 29), true),
            (FEATURES & !(1 << 35), true),
        ] {
            for policy in [DmaPolicy::Persistent, STRICT, DEFERRED] {
                let what = format!("packed {packed}, features {features:#x}, mergeable {mergeable}, {policy:?}");
                let model = model::Config::default().features(features);
                let (mut rig, device, mut far) = start(config(packed, mergeable, policy), model);
                for round in 0..30 {
                    let frames: Vec<_> =
                        (0..16).map(|i| frame(round * 16 + i, 60 + (round * 16 + i) * 97 % 1455)).collect();
                    for (i, bytes) in frames.iter().enumerate() {
                        let (a, b) = bytes.split_at(30);
                        let pieces: &[&[u8]] = if i % 3 == 0 { &[a, b] } else { &[bytes] };
                        let packet = rig.packet(pieces);
                        assert!(rig.send(0, packet));
                        assert!(far.send(bytes));
                    }
                    device.run_until_idle();
                    assert_eq!(far.drain(), frames, "{what}");
                    let got: Vec<_> = rig.receive(0).iter().map(Packet::to_vec).collect();
                    assert_eq!(got, frames, "{what}");
                    rig.tx[0].reclaim();
                }
                rig.end();
                assert_eq!(device.violation(), None, "{what}");
                assert!(device.iommu().take_faults().is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn a_frame_of_several_mergeable_buffers_comes_whole() {
    for packed in [false, true] {
        let mut config = config(packed, true, STRICT);
        config.mtu = 9000;
        let (mut rig, device, mut far) = start(config, model::Config::default());
        for len in [60, 2036, 2037, 4100, 9014] {
            assert!(far.send(&frame(len, len)));
            device.run_until_idle();
            let got = rig.receive(0);
            assert_eq!(got.iter().map(Packet::to_vec).collect::<Vec<_>>(), [frame(len, len)], "{len}");
        }
        rig.end();
        assert_eq!(device.violation(), None);
    }
}

#[test]
fn a_super_packet_that_is_not_mergeable_comes_in_a_chain_under_every_policy() {
    for kind in 0..8u32 {
        let has = |bit: u32| kind >> bit & 1 != 0;
        for policy in [DmaPolicy::Persistent, STRICT, DEFERRED] {
            let what = format!("{kind:#b}, {policy:?}");
            let mut config = config(has(0), false, policy);
            (config.indirect, config.ring) = (has(1), 256);
            config.copybreak = Some(Copybreak::new(if has(2) { 300 } else { 0 }).unwrap());
            let model = model::Config::default().features(FEATURES | 1 << 7);
            let (mut rig, device, mut far) = start(config, model);
            for round in 0..30 {
                let frames = [60, 65_550 - round, 250, 1514, 9000].map(|len| frame(len, len));
                frames.iter().for_each(|bytes| assert!(far.send(bytes)));
                device.run_until_idle();
                let got = rig.receive(0);
                assert!(got.iter().map(Packet::to_vec).eq(frames), "{what}");
                assert_eq!(got.iter().filter(|packet| packet.gso().is_some()).count(), 2, "{what}");
            }
            let counts = rig.rx[0].counts();
            assert_eq!(counts.copies, if has(2) { 60 } else { 0 }, "{what}");
            // Only those buffers are unmapped to which the device has written.
            let written = counts.completed - counts.copies;
            assert_eq!(counts.unmaps, if policy == DmaPolicy::Persistent { 0 } else { written }, "{what}");
            rig.end();
            assert_eq!(device.violation(), None, "{what}");
            assert!(device.iommu().take_faults().is_empty(), "{what}");
        }
    }
}

#[test]
fn chains_whose_translations_may_still_be_cached_become_no_packets() {
    let mut config = config(false, false, STRICT);
    (config.ring, config.copybreak) = (256, Some(Copybreak::new(0).unwrap()));
    let model = model::Config::default().features(FEATURES | 1 << 7);
    let (mut rig, device, mut far) = start(config, model);
    let mut lost = 0;
    for (refused, len) in [(Refuse::Never, 9000), (Refuse::Always, 5000), (Refuse::Always, 200), (Refuse::Never, 1000)]
    {
        device.iommu().refuse_flushes(refused);
        assert!(far.send(&frame(len, len)));
        device.run_until_idle();
        let got: Vec<_> = rig.receive(0).iter().map(Packet::to_vec).collect();
        let whole = refused == Refuse::Never;
        assert!(got == if whole { vec![frame(len, len)] } else { vec![] }, "{len}");
        lost += u64::from(!whole);
        assert_eq!(rig.control.faults().lost_frames, lost, "{len}");
    }
    // Three buffers have the longer of the lost frames, one has the other.
    assert_eq!(rig.control.faults().leaked, 4);
    assert_eq!(device.violation(), None);
}

#[test]
fn several_pairs_are_switched_on_and_flows_are_spread_over_them() {
    for packed in [false, true] {
        let mut config = config(packed, true, STRICT);
        config.queues = 4;
        let (mut rig, device, mut far) = start(config, model::Config::default());
        assert_eq!((rig.rx.len(), device.pairs()), (4, 4));
        for n in 0..64 {
            let mut bytes = frame(1, 100);
            bytes[26] = n;
            assert!(far.send(&bytes));
            let packet = rig.packet(&[&bytes]);
            assert!(rig.send(usize::from(n) % 4, packet));
        }
        device.run_until_idle();
        assert_eq!(far.drain().len(), 64);
        for pair in 0..4 {
            assert_eq!(rig.receive(pair).len(), 16, "pair {pair}");
            rig.tx[pair].reclaim();
        }
        rig.end();
        assert_eq!(device.violation(), None);
    }
}

#[test]
fn a_device_that_refuses_the_command_for_its_pairs_is_not_started() {
    let (near, _far) = cable(256);
    let faults = Faults::default().command(1_000_000);
    let bus = model::launch(model::Config::default().pairs(2).faults(faults).threaded(true), near).unwrap();
    let pool = bus.dma().alloc(1 << 20).unwrap();
    // SAFETY: the region is new, and devices write only to buffers that are in flight to them.
    let pool = unsafe { Pool::in_region(PoolConfig::default().capacity(512).chunk(2048), pool) }.unwrap();
    let transport = PciTransport::open(bus, PciConfig::new(2, false)).unwrap();
    let mut config = config(false, true, STRICT);
    config.queues = 2;
    let port = VirtioNet::open(transport, "virtio:model", config).unwrap();
    let error = port.start(Start { pool, queues: 2, accept: Offloads::NONE }).unwrap_err().to_string();
    assert!(error.contains("it refuses 2 pairs of queues (VIRTIO_NET_CTRL_MQ): queues=1 needs no command"), "{error}");
}

#[test]
fn the_device_completes_a_partial_checksum() {
    let (mut rig, device, mut far) = start(config(true, true, STRICT), model::Config::default());
    let mut bytes = frame(1, 98);
    // UDP over IPv4, its checksum that of the pseudo-header.
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34].copy_from_slice(&[0x45, 0, 0, 84, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..42].copy_from_slice(&[0, 1, 0, 2, 0, 64, 0, 0]);
    let sum = |bytes: &[u8]| bytes.chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum::<u32>();
    let fold = |sum: u32| (sum & 0xffff) as u16 + (sum >> 16) as u16;
    let pseudo = fold(sum(&bytes[26..34]) + 17 + 64);
    bytes[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let mut packet = rig.packet(&[&bytes]);
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    assert!(rig.send(0, packet));
    device.run_until_idle();
    let sent = far.drain().remove(0);
    assert_eq!(fold(sum(&sent[34..]) + sum(&sent[26..34]) + 17 + 64), 0xffff);
    rig.end();
    assert_eq!(device.violation(), None);
}

#[test]
fn the_link_the_announcement_and_the_filter_go_through_the_device() {
    let model = model::Config::default().threaded(true);
    let mac = model.mac;
    let (mut rig, device, mut far) = start(config(false, true, STRICT), model);
    let mut to = |mac: [u8; 6]| {
        let mut bytes = frame(7, 60);
        bytes[..6].copy_from_slice(&mac);
        assert!(far.send(&bytes));
    };
    let mut filter = Filter::default();
    filter.receive = towpath_nic::virtio::Receive::Own;
    rig.control.set_filter(filter).unwrap();
    to([2, 9, 9, 9, 9, 9]);
    to(mac);
    assert_eq!(rig.receive_some(0, 1)[0][..6], mac);
    assert_eq!(device.counts().filtered, 1);
    rig.control.set("mac", &SettingValue::Text("02:00:00:00:00:33".into())).unwrap();
    to([2, 0, 0, 0, 0, 0x33]);
    assert_eq!(rig.receive_some(0, 1)[0][..6], [2, 0, 0, 0, 0, 0x33]);
    device.ask_for_announcement();
    device.set_link(false);
    let begun = Instant::now();
    while matches!(rig.rx[0].state(), State::Up) {
        assert!(begun.elapsed() < PATIENCE);
        rig.receive(0);
    }
    device.set_link(true);
    while !matches!(rig.rx[0].state(), State::Up) || !device.is_announced() {
        assert!(begun.elapsed() < PATIENCE);
        rig.receive(0);
        rig.tx[0].reclaim();
    }
    rig.end();
    assert_eq!(device.violation(), None);
}

/// Sends and receives until `event` is counted. Afterwards every buffer is back, and the driver has
/// broken no rule. Chains are of one buffer, or of several.
fn survives(faults: Faults, event: &str, packed: bool, policy: DmaPolicy, chains: bool) {
    let mut config = config(packed, !chains, policy);
    config.stall = if faults.stall > 0 { Duration::from_millis(20) } else { PATIENCE };
    config.copybreak = Some(Copybreak::new(300).unwrap());
    let features = FEATURES | if chains { 1 << 7 } else { 0 };
    let model = model::Config::default().faults(faults).features(features).threaded(true);
    let (mut rig, device, mut far) = start(config, model);
    let (begun, mut received, mut sent) = (Instant::now(), 0, 0);
    let count = |rig: &Rig<_>| rig.control.events().iter().find(|(name, _)| *name == event).unwrap().1;
    for n in 0.. {
        assert!(begun.elapsed() < PATIENCE, "{faults:?}: {event} {}, {received} received, {sent} sent", count(&rig));
        far.send(&frame(n, 60 + n * 131 % 1440));
        let mut batch: Batch = Batch::new();
        batch.push(rig.packet(&[&frame(n, 60 + n * 37 % 1400)])).unwrap();
        sent += rig.tx[0].tx(&mut batch);
        rig.tx[0].kick();
        rig.tx[0].reclaim();
        received += rig.receive(0).len();
        far.drain();
        if count(&rig) >= 5 && received > 100 && sent > 100 {
            break;
        }
    }
    rig.end();
    assert_eq!(device.violation(), None, "{faults:?}");
}

#[test]
fn a_device_that_breaks_its_rules_costs_no_buffer_and_is_reset() {
    // These two happen in a turn of the device, which moves more frames the busier the machine is.
    let faults = [
        (Faults::default().needs_reset(10_000), "resets"),
        (Faults::default().stall(10_000), "resets"),
        (Faults::default().used_id(3_000), "broken_rings"),
        (Faults::default().used_len(3_000), "bad_frames"),
        (Faults::default().num_buffers(5_000), "bad_lengths"),
        (Faults::default().header(20_000), "bad_headers"),
    ];
    std::thread::scope(|scope| {
        for (i, (fault, event)) in faults.into_iter().enumerate() {
            let fault = fault.seed(7 + i as u64);
            scope.spawn(move || survives(fault, event, i % 2 == 0, [STRICT, DEFERRED][i / 2 % 2], false));
        }
    });
}

#[test]
fn chains_of_several_buffers_are_bounded_and_survive_resets() {
    let faults = [
        (Faults::default().needs_reset(10_000), "resets"),
        (Faults::default().used_id(10_000), "broken_rings"),
        (Faults::default().used_len(10_000), "bad_lengths"),
    ];
    std::thread::scope(|scope| {
        for (i, (fault, event)) in faults.into_iter().enumerate() {
            let fault = fault.seed(3 + i as u64);
            scope.spawn(move || survives(fault, event, i % 2 == 0, [STRICT, DEFERRED][i / 2 % 2], true));
        }
    });
}
