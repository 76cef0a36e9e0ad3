//! Frames that are copied to be sent: they cost no mapping, are right byte by byte, and their
//! packets are free before the device has them.

use super::rig::*;
use proptest::prelude::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use towpath_model::iommu::{self, LateWrite};
use towpath_nic::e1000e::{Config, RingSize, TxCopybreak};
use towpath_packet::port::TxQueue;
use towpath_packet::{
    Backing, Batch, Checksum, DropReason, ExtBufOwner, ExtBufPool, Packet, Region, UntrustedMem, Vlan,
};
use towpath_wire::checksum::complete_partial;
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Transport, Udp};

const PROTECTED: [towpath_bus::DmaPolicy; 2] = [STRICT, DEFERRED];

fn copying(policy: towpath_bus::DmaPolicy, below: u64) -> Config {
    with(|c| (c.policy, c.tx_copybreak) = (policy, Some(TxCopybreak::new(below).unwrap())))
}

/// Mappings and invalidations until now.
fn translations(r: &Rig) -> [u64; 5] {
    let counts = r.device.iommu().counts();
    [counts.maps, counts.unmaps, counts.page_invalidations, counts.full_invalidations, counts.waits]
}

/// A packet of pieces: the first is its linear part.
fn chain(r: &mut Rig, pieces: &[&[u8]]) -> Packet {
    let mut packet = r.packet(pieces[0]);
    for piece in &pieces[1..] {
        let part = r.packet(piece);
        packet.append(part).unwrap();
    }
    packet
}

fn udp(payload: usize, checksums: Checksums) -> Vec<u8> {
    let transport = Transport::Udp(Udp { src_port: 4000, dst_port: 53 });
    let headers =
        Headers { link: Some(Link::default()), network: Network::Ip(Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), transport) };
    let mut bytes = vec![0; payload + 200];
    let len = headers.emit(&mut bytes, &vec![9; payload], checksums).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn a_short_frame_of_any_shape_is_sent_without_a_mapping_or_an_invalidation() {
    for policy in PROTECTED {
        // A device that works on bounce buffers of its own sees only what was synced.
        for bounce in [false, true] {
            let iommu = iommu::Config::default().bounce(bounce);
            let mut r = rig(copying(policy, 512), strict().iommu(iommu));
            r.settle();
            let before = translations(&r);
            let mut expected = Vec::new();
            for round in 0..100 {
                let (plain, long) = (frame(60, round), frame(511, round));
                let tagged = [&plain[..12], &[0x81, 0, 0x20, 7], &plain[12..]].concat();
                let mut tag = r.packet(&plain);
                tag.set_vlan(Some(Vlan { tci: 0x2007, service: false }));
                let partial = udp(90, Checksums::Partial);
                let mut sum = chain(&mut r, &[&partial[..40], &partial[40..]]);
                sum.set_csum(Checksum::Partial { start: 34, offset: 6 });
                let packets = [
                    r.packet(&plain),
                    r.packet(&plain[..15]),
                    chain(&mut r, &[&long[..1], &long[1..200], &long[200..203], &long[203..]]),
                    chain(&mut r, &[&[], &long]),
                    tag,
                    sum,
                ];
                r.send(0, packets);
                let padded = [&plain[..15], &[0; 2]].concat();
                let full = udp(90, Checksums::Complete);
                expected.extend([plain, padded, long.clone(), long, tagged, full]);
            }
            r.settle();
            let sent = r.far.drain();
            assert_eq!(sent.len(), expected.len());
            for (sent, expected) in sent.iter().zip(&expected) {
                // The device pads a short frame with zeros to the shortest frame on the wire.
                let (bytes, padding) = sent.split_at(expected.len());
                assert_eq!((bytes, padding.iter().all(|&byte| byte == 0)), (&expected[..], true));
            }
            assert_eq!(translations(&r), before, "{policy:?}, bounce {bounce}");
            let dma = r.tx[0].dma_counts();
            assert_eq!((dma.copies, dma.maps, dma.unmaps, dma.flushes), (600, 0, 0, 0));
            let counted = r.tx[0].counters().snapshot();
            assert_eq!((counted.packets, counted.copied, counted.copied_bytes), (600, 600, counted.bytes));
            assert_eq!((r.faults(), r.tx[0].pending()), (0, 0));
            r.end();
        }
    }
}

#[test]
fn a_frame_of_the_threshold_is_mapped_and_one_byte_less_is_copied() {
    let mut r = rig(copying(STRICT, 0), strict());
    for (threshold, len, copies) in [(0, 60, 0), (100, 100, 0), (101, 100, 1), (2048, 1514, 1), (0, 60, 0)] {
        r.control.set_tx_copybreak(threshold).unwrap();
        let before = r.tx[0].dma_counts();
        let packet = r.packet(&frame(len, threshold));
        r.send(0, [packet]);
        r.settle();
        assert_eq!(r.far.drain(), [frame(len, threshold)]);
        let after = r.tx[0].dma_counts();
        assert_eq!((after.copies - before.copies, after.maps - before.maps), (copies, 1 - copies), "{threshold}");
    }
    r.end();
}

/// An application that looks, when it has a page again, whether the device can read it.
struct Watcher {
    iommu: iommu::ModelDma,
    reached: AtomicU64,
}

impl ExtBufOwner for Watcher {
    fn on_free(&self) {
        self.reached.fetch_add(self.iommu.late(LateWrite::Repeat).reads, Relaxed);
    }
}

/// The pages are never in the device's reach: the application writes the next frame at once.
#[test]
fn an_application_has_the_page_of_a_copied_frame_at_once_and_may_overwrite_it() {
    const PAGES: usize = 32;
    let mut r = rig(copying(STRICT, 2048), strict());
    r.device.iommu().remember_late(None);
    r.settle();
    let before = translations(&r);
    let watcher = Arc::new(Watcher { iommu: r.device.iommu().clone(), reached: AtomicU64::new(0) });
    let region = UntrustedMem::new(Region::new(PAGES * 2048, Backing::Memfd).unwrap());
    let file: File = region.fd().unwrap().try_clone_to_owned().unwrap().into();
    let mut pages = ExtBufPool::new(PAGES, region, watcher.clone()).unwrap();
    for round in 0..20 {
        let mut batch: Batch = Batch::new();
        let mut expected = Vec::new();
        for i in 0..PAGES {
            let (bytes, at) = (frame(1000, round * 100 + i as u64), i * 2048);
            file.write_all_at(&bytes, at as u64).unwrap();
            // With and without a linear part in front of the page.
            let packet = if i % 2 == 0 {
                expected.push(bytes);
                pages.packet(at, 1000, i as u64).unwrap()
            } else {
                let head = frame(54, i as u64);
                let mut packet = r.packet(&head);
                packet.append_buf(pages.attach(at, 1000, i as u64).unwrap()).unwrap();
                expected.push([head, bytes].concat());
                packet
            };
            batch.push(packet).unwrap();
        }
        assert_eq!(r.tx[0].tx(&mut batch), PAGES);
        let mut back = Vec::new();
        pages.drain_freed(2 * PAGES, |token, _| back.push(token));
        back.sort_unstable();
        assert!(back.iter().copied().eq(0..PAGES as u64), "each once, before the device ran: {back:?}");
        file.write_all_at(&[0xee; PAGES * 2048], 0).unwrap();
        assert_eq!(r.tx[0].pending(), PAGES, "the frames are not sent yet");
        r.tx[0].kick();
        r.settle();
        assert_eq!((r.far.drain(), r.tx[0].pending()), (expected, 0));
    }
    assert_eq!((translations(&r), watcher.reached.load(Relaxed)), (before, 0));
    drop(pages);
    r.end();
}

/// With VFIO, each of these mappings is a system call.
#[test]
fn pieces_of_a_long_frame_that_lie_side_by_side_are_mapped_as_one() {
    let mut config = copying(STRICT, 2048);
    config.mtu = 9000;
    let mut r = rig(config, strict());
    for round in 0..20 {
        let bytes = frame(9000, round);
        let packets: Vec<_> = bytes.chunks(1500).map(|piece| r.packet(piece)).collect();
        let mut addresses: Vec<_> = packets.iter().map(|packet| packet.linear().as_ptr().addr()).collect();
        addresses.sort_unstable();
        let gaps = addresses.windows(2).filter(|pair| pair[1] - pair[0] != 2048).count() as u64;
        let mut packet = r.cache.alloc().unwrap();
        packets.into_iter().for_each(|piece| packet.append(piece).unwrap());
        let before = r.tx[0].dma_counts();
        r.send(0, [packet]);
        r.settle();
        assert_eq!(r.far.drain(), [bytes]);
        let after = r.tx[0].dma_counts();
        let (maps, unmaps) = (after.maps - before.maps, after.unmaps - before.unmaps);
        assert!(maps == unmaps && (gaps > 0 || maps == 1), "{maps} mappings, {unmaps} removed, {gaps} gaps");
    }
    assert_eq!(r.faults(), 0);
    r.end();
}

#[test]
fn copied_frames_that_a_reset_or_the_end_finds_in_the_ring_are_dropped_by_name() {
    let mut r = rig(copying(STRICT, 2048), strict());
    r.settle();
    let send = |r: &mut Rig, n: u64| {
        let mut batch: Batch = Batch::new();
        (0..n).for_each(|i| batch.push(r.packet(&frame(60 + i as usize * 40, i))).unwrap());
        assert_eq!(r.tx[0].tx(&mut batch), n as usize);
    };
    send(&mut r, 7);
    r.tx[0].kick();
    r.settle();
    send(&mut r, 30);
    let counters = r.tx[0].counters().clone();
    let Rig { device, rx, tx, pool, cache, .. } = r;
    drop((rx, tx, cache));
    let counted = counters.snapshot();
    assert_eq!((counted.packets, counted.dropped(DropReason::Stopped)), (7, 30));
    let (stats, counts) = (pool.stats(), device.iommu().counts());
    assert_eq!((stats.free, counts.maps), (stats.capacity, counts.unmaps), "nothing is missing or reachable");
}

#[derive(Debug, Clone)]
enum Action {
    /// A frame: its length, in how many pieces, with a tag, with a checksum to be completed.
    Send {
        len: usize,
        pieces: usize,
        tag: bool,
        csum: bool,
    },
    Threshold(u64),
    Kick,
    Reclaim,
    Steps(usize, u64),
    Settle,
}

fn action() -> impl Strategy<Value = Action> {
    let len = prop_oneof![3 => 14..200usize, 1 => 200..1450usize];
    prop_oneof![
        12 => (len, 1..5usize, any::<bool>(), any::<bool>())
            .prop_map(|(len, pieces, tag, csum)| Action::Send { len, pieces, tag, csum }),
        2 => (0..2049u64).prop_map(Action::Threshold),
        3 => Just(Action::Kick),
        2 => Just(Action::Reclaim),
        4 => (1..40usize, any::<u64>()).prop_map(|(n, seed)| Action::Steps(n, seed)),
        1 => Just(Action::Settle),
    ]
}

/// The frame on the wire: with its tag, its checksum, and the driver's padding.
fn reference(bytes: &[u8], tag: bool, csum: bool) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    if csum {
        complete_partial(&mut frame, 34, 6).unwrap();
    }
    if tag {
        frame.splice(12..12, [0x81, 0, 0x20, 7]);
    }
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever is copied or mapped, in any order: the wire has the frames that were taken, in
    /// their order, and the counters say how many were copied.
    #[test]
    fn the_wire_has_what_was_sent_in_order_at_any_threshold(
        policy in 0..3usize, bounce in any::<bool>(), start in 1..2049u64,
        actions in proptest::collection::vec(action(), 1..150),
    ) {
        let mut config = copying(POLICIES[policy], start);
        config.tx_ring = RingSize::new("tx", 80).unwrap();
        let iommu = iommu::Config::default().bounce(bounce);
        let mut r = rig(config, strict().iommu(iommu));
        let (mut threshold, mut expected, mut copies, mut copied_bytes) = (start as usize, Vec::new(), 0, 0);
        for (i, action) in actions.iter().enumerate() {
            match *action {
                Action::Send { len, pieces, tag, csum } => {
                    // A chain is padded only in a copy.
                    let pieces = if len < 17 { 1 } else { pieces };
                    let bytes = if csum { udp(len, Checksums::Partial) } else { frame(len, i as u64) };
                    let cut: Vec<_> = bytes.chunks(bytes.len().div_ceil(pieces)).collect();
                    let mut packet = chain(&mut r, &cut);
                    if csum {
                        packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
                    }
                    if tag {
                        packet.set_vlan(Some(Vlan { tci: 0x2007, service: false }));
                    }
                    let mut batch: Batch = Batch::new();
                    batch.push(packet).unwrap();
                    if r.tx[0].tx(&mut batch) == 1 {
                        if bytes.len() < threshold {
                            copies += 1;
                            copied_bytes += bytes.len().max(17) as u64;
                        }
                        expected.push(reference(&bytes, tag, csum));
                    }
                }
                Action::Threshold(bytes) => {
                    r.control.set_tx_copybreak(bytes).unwrap();
                    threshold = bytes as usize;
                }
                Action::Kick => r.tx[0].kick(),
                Action::Reclaim => _ = r.tx[0].reclaim(),
                Action::Steps(n, seed) => _ = r.device.steps(n, seed),
                Action::Settle => drop(r.settle()),
            }
        }
        r.tx[0].kick();
        r.settle();
        let sent = r.far.drain();
        prop_assert_eq!(sent.len(), expected.len());
        for (sent, expected) in sent.iter().zip(&expected) {
            prop_assert!(sent.starts_with(expected) && sent[expected.len()..].iter().all(|&byte| byte == 0));
        }
        let (dma, counted) = (r.tx[0].dma_counts(), r.tx[0].counters().snapshot());
        prop_assert_eq!((dma.copies, counted.copied, counted.copied_bytes), (copies, copies, copied_bytes));
        prop_assert_eq!((counted.packets, r.tx[0].pending(), r.faults()), (expected.len() as u64, 0, 0));
        if POLICIES[policy] != towpath_bus::DmaPolicy::Persistent {
            // Every piece of a frame that is not copied is mapped.
            prop_assert_eq!(dma.maps, dma.unmaps);
        }
        r.end();
    }
}
