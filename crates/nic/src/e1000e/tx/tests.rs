//! Descriptors as the device reads them, and the packets behind them.

use super::super::control::Control;
use super::super::descriptors::tx;
use super::super::fake::{FakeDma, Script};
use super::*;
use crate::common::end::EndedRing;
use crate::common::ring::{Words, next};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use towpath_bus::{DmaPolicy, Domain, Flush};
use towpath_packet::{Backing, Batch, Checksum, Direction, DropReason, Gso, GsoKind, Packet, Pool, PoolConfig, Vlan};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};

const RING: u32 = 80;
const BURST: usize = Batch::<64>::CAPACITY;
const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };

struct Rig {
    ring: TxRing<FakeDma>,
    script: Arc<Script>,
    pool: Pool,
    cache: Cache,
    control: Control,
    log: FaultLog,
    /// The next descriptor that the device reads.
    device: u32,
}

fn rig_with(policy: DmaPolicy, config: Config) -> Rig {
    let script = Arc::new(Script::default());
    let domain = Domain::new(FakeDma::new(script.clone(), true), policy).unwrap();
    let config_of_pool = PoolConfig::default().capacity(1024).chunk(2048).backing(Backing::Anonymous);
    let pool = Pool::new(config_of_pool).unwrap();
    // SAFETY: no device is there.
    unsafe { domain.register(pool.region().unwrap()) }.unwrap();
    let control = Control::new(&config);
    let parts = TxParts {
        ring: DescRing::new(&domain, RING).unwrap(),
        mapper: DmaMapper::new(&domain, RING, 4096).unwrap(),
        cache: pool.cache(Direction::Tx).unwrap(),
        copy_all: false,
        shares_context: false,
    };
    let log = FaultLog::new(&control);
    let ring = TxRing::new(parts, &config, log.clone());
    let cache = pool.cache(Direction::Tx).unwrap();
    Rig { ring, script, pool, cache, control, log, device: 0 }
}

fn rig(policy: DmaPolicy) -> Rig {
    rig_with(policy, Config::default())
}

impl Rig {
    fn packet(&mut self, bytes: &[u8]) -> Packet {
        Packet::copy_from(&mut self.cache, bytes).unwrap()
    }

    fn batch(&mut self, n: usize) -> Batch {
        let mut batch = Batch::new();
        (0..n).for_each(|i| drop(batch.push(self.packet(&[i as u8; 60]))));
        batch
    }

    fn send(&mut self, packet: Packet) -> usize {
        let mut batch = Batch::new();
        batch.push(packet).unwrap();
        let taken = self.ring.send(&mut batch, BURST, 0);
        self.ring.announce();
        taken
    }

    fn words(&self, index: u32) -> Words {
        [self.ring.ring.first(index), self.ring.ring.status(index)]
    }

    /// The device sends all announced frames, and writes back the descriptors with RS.
    fn run(&mut self) -> usize {
        let mut reports = 0;
        while self.device != self.ring.tail {
            let [address, command] = self.words(self.device);
            if command & tx::RS != 0 && command & tx::DTYP_DATA != 0 {
                self.ring.ring.store(self.device, [address, command | tx::DD]);
                reports += 1;
            }
            self.device = next(self.device, RING);
        }
        reports
    }

    fn end(self) -> usize {
        self.ring.release();
        drop(self.cache);
        self.pool.stats().capacity - self.pool.stats().free
    }
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let transport = Transport::Udp(Udp { src_port: 1, dst_port: 2 });
    frame(Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), transport, payload)
}

fn tcp(ip: Ip, payload: &[u8]) -> Vec<u8> {
    frame(ip, Transport::Tcp(Tcp { src_port: 1, dst_port: 2, ..Tcp::default() }), payload)
}

fn frame(ip: Ip, transport: Transport, payload: &[u8]) -> Vec<u8> {
    let headers = Headers { link: Some(Link::default()), network: Network::Ip(ip, transport) };
    let mut bytes = vec![0; payload.len() + 200];
    let len = headers.emit(&mut bytes, payload, Checksums::Partial).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn a_plain_frame_is_one_descriptor_with_rs_at_the_end_of_its_burst() {
    let mut b = rig(STRICT);
    let mut batch = b.batch(3);
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 3);
    assert_eq!(b.ring.announce(), Some(3));
    assert_eq!(b.ring.announce(), None);
    let commands: Vec<_> = (0..3).map(|i| b.words(i)[1]).collect();
    assert_eq!(commands, [0x2310_003c, 0x2310_003c, 0x2b10_003c]);
    assert_eq!(b.ring.pending, 3);
    b.run();
    assert_eq!(b.ring.reclaim(), 3);
    assert_eq!((b.ring.pending, b.script.live.lock().unwrap().len()), (0, 0));
    let sent = b.log.counters.snapshot();
    assert_eq!((sent.packets, sent.bytes), (3, 180));
    assert_eq!(b.end(), 0);
}

#[test]
fn rs_is_set_every_few_frames() {
    let mut b = rig_with(DmaPolicy::Persistent, Config { report_every: 16, ..Config::default() });
    let mut batch = b.batch(40);
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 40);
    b.ring.announce();
    assert_eq!(b.run(), 3, "after 16, 32, and at the end");
    assert_eq!(b.ring.reclaim(), 40);
    assert_eq!(b.end(), 0);
}

#[test]
fn no_quarter_of_a_ring_is_without_rs() {
    let mut b = rig_with(DmaPolicy::Persistent, Config { report_every: 64, ..Config::default() });
    let mut batch = b.batch(64);
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 64);
    b.ring.announce();
    let reports: Vec<_> = (0..64).filter(|&i| b.words(i)[1] & tx::RS != 0).collect();
    assert!(reports.windows(2).all(|pair| pair[1] - pair[0] <= RING / 4), "{reports:?}");
    assert_eq!(b.end(), 0);
}

#[test]
fn a_full_ring_takes_no_more_and_keeps_one_descriptor_free() {
    let mut b = rig(DmaPolicy::Persistent);
    let mut batch = b.batch(64);
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 64);
    let mut more = b.batch(64);
    assert_eq!(b.ring.send(&mut more, BURST, 0), 15);
    assert_eq!(more.len(), 49, "refused packets stay, in order");
    assert_eq!(more.as_slice()[0].linear()[0], 15);
    b.ring.announce();
    b.run();
    assert_eq!(b.ring.reclaim(), 79);
    assert_eq!(b.ring.send(&mut more, BURST, 0), 49);
    assert_eq!(b.end(), 0, "frames that were still in the ring are freed");
    drop(more);
}

#[test]
fn each_fragment_has_a_descriptor_and_all_have_the_same_command() {
    let mut b = rig(STRICT);
    // The pieces do not lie side by side.
    let mut gap = Vec::new();
    let mut packet = b.cache.alloc().unwrap();
    for piece in [5, 700, 300] {
        let part = b.packet(&vec![1; piece]);
        packet.append(part).unwrap();
        gap.extend((0..4).map(|_| b.cache.alloc().unwrap()));
    }
    assert_eq!(packet.linear().len(), 0, "an empty linear part is sent as it is");
    assert_eq!(b.send(packet), 1);
    let commands: Vec<_> = (0..3).map(|i| b.words(i)[1]).collect();
    assert_eq!(commands, [0x2210_0005, 0x2210_02bc, 0x2b10_012c]);
    b.run();
    assert_eq!(b.ring.reclaim(), 1);
    let counts = b.ring.mapper.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.flushes), (3, 3, 1));
    drop(gap);
    assert_eq!(b.end(), 0);
}

#[test]
fn more_pieces_than_the_device_takes_are_gathered() {
    let mut b = rig(STRICT);
    let mut packet = b.cache.alloc().unwrap();
    for i in 0..65 {
        let part = b.packet(&[i; 10]);
        packet.append(part).unwrap();
    }
    assert_eq!(b.send(packet), 1);
    assert_eq!(b.words(0)[1], 0x2b10_028a);
    assert_eq!(b.control.faults().linearised, 1);
    assert_eq!(b.end(), 0);
}

#[test]
fn frames_that_are_too_short_or_too_long_are_padded_or_dropped() {
    let mut b = rig(STRICT);
    // Chunks with bytes of earlier packets.
    let earlier: Vec<_> = (0..8).map(|_| b.packet(&[0xff; 1000])).collect();
    earlier.into_iter().for_each(|packet| b.cache.free(packet));
    let lens = [13, 14, 16, 17, 1522, 1523];
    for len in lens {
        let packet = b.packet(&vec![7; len]);
        assert_eq!(b.send(packet), 1);
    }
    let sent: Vec<_> = (0..4).map(|i| b.words(i)[1] & 0xf_ffff).collect();
    assert_eq!(sent, [17, 17, 17, 1522]);
    let padded = b.ring.slots.get_mut(0).and_then(|slot| slot.frame.as_ref()).unwrap();
    assert_eq!(padded.chunks().next().unwrap().bytes(), Some(&[[7; 14].as_slice(), &[0; 3]].concat()[..]));
    let drops = b.log.counters.snapshot();
    assert_eq!((drops.dropped(DropReason::Malformed), drops.dropped(DropReason::TooLong)), (1, 1));
    assert_eq!(b.end(), 0);
}

#[test]
fn a_context_comes_before_the_first_frame_that_needs_it_and_not_again() {
    let mut b = rig(STRICT);
    for _ in 0..3 {
        let mut packet = b.packet(&udp(&[1; 100]));
        packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(b.send(packet), 1);
    }
    assert_eq!(b.words(0), [0x0000_2822_0021_180e, 0x2200_0000]);
    let commands: Vec<_> = (1..4).map(|i| b.words(i)[1]).collect();
    assert_eq!(commands, [0x0000_0200_2b10_008e; 3]);
    b.run();
    assert_eq!(b.ring.reclaim(), 3);
    b.ring.restart(DropReason::Refused);
    b.device = 0;
    let mut packet = b.packet(&udp(&[1; 100]));
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    b.send(packet);
    assert_eq!(b.words(0)[1], 0x2200_0000, "after a reset the context is written again");
    assert_eq!(b.end(), 0);
}

#[test]
fn a_frame_that_needs_a_context_waits_for_two_descriptors() {
    let mut b = rig(STRICT);
    for n in [64, 14] {
        let mut batch = b.batch(n);
        assert_eq!(b.ring.send(&mut batch, BURST, 0), n);
    }
    b.ring.announce();
    for taken in [0, 1] {
        let mut packet = b.packet(&udp(&[1; 100]));
        packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(b.send(packet), taken);
        b.run();
        b.ring.reclaim();
    }
    assert_eq!(b.end(), 0);
}

#[test]
fn a_checksum_that_the_device_would_not_find_is_completed_in_software() {
    let mut b = rig(STRICT);
    // In a UDP tunnel: the device would find the outer headers.
    let inner = udp(&[9; 30]);
    let bytes = udp(&[&[0; 8], &inner[..]].concat());
    let mut packet = b.packet(&bytes);
    packet.set_csum(Checksum::Partial { start: 50 + 34, offset: 6 });
    assert_eq!(b.send(packet), 1);
    assert_eq!(b.words(0)[1] & tx::TXSM, 0);
    let packet = b.ring.slots.get_mut(0).unwrap().frame.take().unwrap().complete();
    let mut expected = bytes.clone();
    towpath_wire::checksum::complete_partial(&mut expected, 84, 6).unwrap();
    assert_eq!(packet.to_vec(), expected);
    drop(packet);
    let mut cut_short = b.packet(&bytes);
    cut_short.set_csum(Checksum::Partial { start: bytes.len() as u16 - 7, offset: 6 });
    assert_eq!(b.send(cut_short), 1);
    assert_eq!(b.log.counters.snapshot().dropped(DropReason::Malformed), 1);
    assert_eq!(b.end(), 0);
}

#[test]
fn a_super_packet_has_its_headers_and_a_little_payload_in_the_first_descriptor() {
    for (ip, kind, l4) in
        [(Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), GsoKind::Tcp4, 34usize), (Ip::v6([1; 16], [2; 16]), GsoKind::Tcp6, 54)]
    {
        let mut b = rig(STRICT);
        let bytes = tcp(ip, &[5; 5000]);
        let headers = bytes.len() - 5000;
        // All bytes in fragments, the headers in two.
        let mut packet = b.cache.alloc().unwrap();
        for piece in [&bytes[..30], &bytes[30..headers], &bytes[headers..headers + 1500], &bytes[headers + 1500..]] {
            let part = b.packet(piece);
            packet.append(part).unwrap();
        }
        packet.set_csum(Checksum::Partial { start: l4 as u16, offset: 16 });
        packet.set_gso(Some(Gso { kind, ecn: false, size: 1400, segs: 4, hdr_len: headers as u16 }));
        assert_eq!(b.send(packet), 1);
        let [_, context] = b.words(0);
        assert_eq!(context & 0xf_ffff, 5000);
        assert_eq!(context >> 40, (1400 << 8 | headers) as u64);
        let [_, first] = b.words(1);
        assert_eq!(first & 0xf_ffff, headers as u64 + 4);
        assert_ne!(first & tx::TSE, 0);
        assert_eq!(first & tx::IXSM != 0, kind == GsoKind::Tcp4);
        let last = before_tail(&b);
        let packet = b.ring.slots.get_mut(last).unwrap().frame.take().unwrap().complete();
        let sent = packet.to_vec();
        let sum = &sent[l4 + 16..l4 + 18];
        let expected = if kind == GsoKind::Tcp4 {
            assert_eq!((&sent[16..18], &sent[24..26]), (&[0, 0][..], &[0, 0][..]));
            towpath_wire::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 0)
        } else {
            assert_eq!(&sent[18..20], [0, 0]);
            towpath_wire::checksum::pseudo_v6([1; 16].into(), [2; 16].into(), 6, 0)
        };
        assert_eq!(sum, expected.to_be_bytes());
        drop(packet);
        assert_eq!(b.end(), 0);
    }
}

fn before_tail(b: &Rig) -> u32 {
    b.ring.next_to_use.checked_sub(1).unwrap()
}

#[test]
fn a_super_packet_that_does_not_fit_stays_as_it_was() {
    let mut b = rig(DmaPolicy::Persistent);
    let mut fill = b.batch(64);
    b.ring.send(&mut fill, BURST, 0);
    let mut fill = b.batch(13);
    b.ring.send(&mut fill, BURST, 0);
    let bytes = tcp(Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), &[5; 5000]);
    let mut packet = b.packet(&bytes);
    packet.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1400, segs: 4, hdr_len: 54 }));
    let mut batch: Batch = Batch::new();
    batch.push(packet).unwrap();
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 0);
    assert_eq!(batch.as_slice()[0].to_vec(), bytes, "its headers are changed only when it is queued");
    drop(batch);
    assert_eq!(b.end(), 0);
}

#[test]
fn a_tag_beside_the_packet_is_inserted_by_the_device_or_here() {
    for (vlan, service) in [(true, false), (true, true), (false, false)] {
        let mut b = rig_with(STRICT, Config { vlan, ..Config::default() });
        let mut packet = b.packet(&[3; 60]);
        packet.set_vlan(Some(Vlan { tci: 0x2007, service }));
        assert_eq!(b.send(packet), 1);
        let [_, command] = b.words(0);
        let by_device = vlan && !service;
        assert_eq!(command >> 48 == 0x2007 && command & tx::VLE != 0, by_device);
        assert_eq!(command & 0xf_ffff, if by_device { 60 } else { 64 });
        assert_eq!(b.end(), 0);
    }
}

#[test]
fn a_mapping_that_fails_leaves_the_packet_in_the_batch_and_nothing_mapped() {
    let mut b = rig(STRICT);
    let mut packet = b.packet(&[1; 900]);
    // The second piece does not lie beside the first.
    let gap: Vec<_> = (0..4).map(|_| b.cache.alloc().unwrap()).collect();
    let part = b.packet(&[2; 100]);
    packet.append(part).unwrap();
    drop(gap);
    b.script.pass_maps.store(1, Relaxed);
    b.script.fail_maps.store(1, Relaxed);
    let mut batch: Batch = Batch::new();
    batch.push(packet).unwrap();
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 0);
    assert_eq!((b.control.faults().map_failed, b.script.live.lock().unwrap().len()), (1, 0));
    assert_eq!(b.ring.send(&mut batch, BURST, 0), 1);
    assert_eq!(b.end(), 0);
}

#[test]
fn unregistered_memory_is_copied() {
    let mut b = rig(STRICT);
    let other = Pool::new(PoolConfig::default().capacity(4).backing(Backing::Anonymous)).unwrap();
    let packet = Packet::copy_from(&mut other.cache(Direction::Tx).unwrap(), &[6; 100]).unwrap();
    assert_eq!(b.send(packet), 1);
    assert_eq!(b.control.faults().bounced, 1);
    assert_eq!(other.stats().free, 4, "the original is freed at once");
    assert_eq!(b.words(0)[1] & 0xf_ffff, 100);
    assert_eq!(b.end(), 0);
}

#[test]
fn frames_in_the_ring_are_dropped_by_name_after_a_reset() {
    let mut b = rig(STRICT);
    let mut batch = b.batch(5);
    b.ring.send(&mut batch, BURST, 0);
    b.ring.restart(DropReason::LinkDown);
    assert_eq!(b.log.counters.snapshot().dropped(DropReason::LinkDown), 5);
    assert_eq!((b.ring.pending, b.script.live.lock().unwrap().len()), (0, 0));
    assert_eq!(b.end(), 0);
}

#[test]
fn a_packet_that_can_not_be_unmapped_never_returns_to_its_pool() {
    let mut b = rig(STRICT);
    let mut batch = b.batch(2);
    b.ring.send(&mut batch, BURST, 0);
    b.ring.announce();
    b.run();
    b.script.fail_unmaps.store(1, Relaxed);
    b.ring.reclaim();
    assert_eq!(b.control.faults().leaked, 1);
    assert_eq!(b.log.counters.snapshot().packets, 2, "the leaked frame was sent as well");
    assert_eq!(b.end(), 1);
}
