//! Reception.

use super::*;

#[test]
fn a_frame_is_stored_in_the_next_buffer_and_its_descriptor_written_back() {
    let mut rig = Rig::new(config());
    rig.post(4);
    rig.arrive(&frame(100));
    let (status, len, _) = rig.received(0);
    assert_eq!((status & (rxd::DD | rxd::EOP), len), (rxd::DD | rxd::EOP, 100));
    assert_eq!(rig.bytes(0, 100), frame(100));
    assert_eq!(rig.bar.r32(RDBAL + HEAD), 1);
    rig.clean();
}

#[test]
fn a_long_frame_spans_buffers_and_only_the_last_has_eop() {
    let mut rig = Rig::bare(config());
    rig.enable(RCTL_EN | RCTL_LPE | RCTL_SECRC, RFCTL_EXTEN);
    rig.post(8);
    let sent = frame(5042);
    rig.arrive(&sent);
    let got: Vec<_> = (0..4).map(|i| (rig.received(i).0 & (rxd::DD | rxd::EOP), rig.received(i).1)).collect();
    assert_eq!(got, [(1, 2048), (1, 2048), (3, 946), (0, 0)]);
    assert_eq!([rig.bytes(0, 2048), rig.bytes(1, 2048), rig.bytes(2, 946)].concat(), sent);
    rig.clean();
}

#[test]
fn frames_above_1518_bytes_need_lpe_and_above_9230_are_never_received() {
    let mut rig = Rig::new(config());
    rig.post(4);
    rig.arrive(&frame(1519));
    rig.arrive(&frame(1518));
    assert_eq!(rig.received(0).1, 1518);
    assert_eq!(rig.bar.r32(stats::ROC), 1);
    let mut rig = Rig::bare(config());
    rig.enable(RCTL_EN | RCTL_LPE | RCTL_SECRC, RFCTL_EXTEN);
    rig.post(8);
    rig.arrive(&frame(9231));
    assert_eq!((rig.received(0).0, rig.bar.r32(stats::ROC)), (0, 1));
}

#[test]
fn short_frames_are_padded_and_the_fcs_is_kept_unless_stripped() {
    let mut rig = Rig::bare(config());
    rig.enable(RCTL_EN, RFCTL_EXTEN);
    rig.post(2);
    rig.arrive(&frame(20));
    assert_eq!(rig.received(0).1, 64);
    let mut padded = frame(20);
    padded.resize(60, 0);
    let fcs = crc::fcs(&padded);
    assert_eq!(rig.bytes(0, 64), [padded, fcs.to_vec()].concat());
}

#[test]
fn legacy_descriptors_keep_their_address_and_have_a_byte_of_status() {
    let mut rig = Rig::bare(config());
    rig.enable(RCTL_EN | RCTL_SECRC, 0);
    rig.post(2);
    rig.arrive(&frame(70));
    let [address, second] = rig.rxd(0);
    assert_eq!((address, second & 0xffff, second >> 32 & 3), (rig.buffer(0), 70, 3));
}

#[test]
fn without_descriptors_frames_wait_and_rnbc_counts_them_once() {
    let mut rig = Rig::new(config());
    rig.post(1);
    for _ in 0..3 {
        rig.arrive(&frame(60));
    }
    assert_eq!((rig.device.waiting(), rig.bar.r32(stats::RNBC), rig.bar.r32(stats::MPC)), (2, 1, 0));
    rig.post(2);
    rig.device.run_until_idle();
    assert_eq!((rig.device.waiting(), rig.received(2).1), (0, 60));
    rig.clean();
}

#[test]
fn a_full_packet_buffer_loses_frames_unless_both_ends_agreed_on_pauses() {
    for (pause, flow_control, lost) in [(false, CTRL_TFCE, true), (true, 0, true), (true, CTRL_TFCE, false)] {
        let mut rig = Rig::new(Config { pause, ..config() });
        rig.bar.w32(FCRTH, 0x4800);
        rig.bar.w32(CTRL, rig.bar.r32(CTRL) | flow_control);
        for _ in 0..100 {
            assert!(rig.far.send(&frame(1000)));
        }
        rig.device.run_until_idle();
        let kept = rig.device.waiting();
        assert!((18..=20).contains(&kept), "20 KiB of packet buffer: {kept}");
        assert_eq!(rig.bar.r32(stats::MPC) as usize, if lost { 100 - kept } else { 0 });
    }
}

#[test]
fn bad_checksums_are_errors_and_good_ones_are_confirmed() {
    let mut rig = Rig::new(config());
    rig.post(4);
    let mut udp = udp_frame();
    rig.arrive(&udp);
    udp[50] ^= 1;
    rig.arrive(&udp);
    udp[50] ^= 1;
    udp[24] ^= 1;
    rig.arrive(&udp);
    rig.arrive(&frame(60));
    let mask = rxd::IXSM | rxd::IPCS | rxd::TCPCS | rxd::UDPCS | rxd::TCPE | rxd::IPE;
    let got: Vec<_> = (0..4).map(|i| rig.received(i).0 & mask).collect();
    let good = rxd::IPCS | rxd::TCPCS | rxd::UDPCS;
    assert_eq!(got, [good, good | rxd::TCPE, good | rxd::IPE, rxd::IXSM]);
}

#[test]
fn without_pcsd_the_descriptor_has_ip_id_and_packet_checksum() {
    let mut rig = Rig::new(config());
    rig.post(1);
    let udp = udp_frame();
    rig.arrive(&udp);
    let first = rig.rxd(0)[0];
    assert_eq!(first >> 32 & 0xffff, 0x1234);
    assert_eq!(first >> 48, u64::from(towpath_wire::checksum::sum(&udp)));
    assert!(rig.received(0).0 & rxd::IPIDV != 0);
}

#[test]
fn a_vlan_tag_is_stripped_into_the_descriptor_with_ctrl_vme() {
    let mut rig = Rig::new(config());
    rig.post(2);
    let mut tagged = frame(68);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0x21, 0x23]);
    rig.arrive(&tagged);
    rig.bar.w32(CTRL, CTRL_SLU | CTRL_VME);
    rig.arrive(&tagged);
    assert_eq!((rig.received(0).1, rig.received(0).0 & rxd::VP), (68, 0));
    let (status, len, vlan) = rig.received(1);
    assert_eq!((status & rxd::VP, len, vlan), (rxd::VP, 64, 0x2123));
    assert_eq!(rig.bytes(1, 64), [&tagged[..12], &tagged[16..]].concat());
    rig.clean();
}

#[test]
fn received_frames_are_counted_by_kind_and_size() {
    let mut rig = Rig::bare(config());
    rig.enable(RCTL_EN | RCTL_BAM | RCTL_MPE | RCTL_SECRC, RFCTL_EXTEN);
    rig.post(8);
    rig.arrive(&frame(60));
    for first in [0xff, 0x01] {
        let mut cast = frame(200);
        cast[..6].fill(first);
        rig.arrive(&cast);
    }
    rig.arrive(&[2; 60]);
    let read = |at| rig.bar.r32(at);
    assert_eq!((read(stats::GPRC), read(stats::BPRC), read(stats::MPRC), read(stats::TPR)), (3, 1, 1, 4));
    assert_eq!((read(stats::GORC), read(stats::PRC64), read(stats::PRC64 + 8)), (64 + 204 * 2, 1, 2));
    assert_eq!(read(stats::GPRC), 0, "cleared by reading");
}

#[test]
fn the_hash_selects_one_of_two_queues() {
    let mut rig = Rig::bare(config());
    // The second queue's ring lies after the first one.
    let second = rig.iova + 2048;
    rig.bar.w32(RDBAL + QUEUE, second as u32);
    rig.bar.w32(RDBAL + QUEUE + BAH, (second >> 32) as u32);
    rig.bar.w32(RDBAL + QUEUE + LEN, RING * 16);
    for i in 0..10 {
        rig.bar.w32(RSSRK + 4 * i, 0x5a6d_5a6d);
    }
    for i in 0..32 {
        rig.bar.w32(RETA + 4 * i, 0x8080_8080);
    }
    rig.bar.w32(MRQC, 1 | 1 << 17);
    rig.enable(RCTL_EN | RCTL_SECRC, RFCTL_EXTEN);
    rig.bar.w32(RXCSUM, RXCSUM_PCSD);
    rig.post(2);
    rig.set_rxd(128, [rig.buffer(30), 0]);
    rig.bar.w32(RDBAL + QUEUE + TAIL, 1);
    rig.arrive(&udp_frame());
    rig.arrive(&frame(60));
    assert_eq!(rig.received(0).1, 60, "frames without a hash go to queue 0");
    let [first, _] = rig.rxd(128);
    assert_eq!((first & 0xf, first >> 8 & 0x1f), (2, 1));
    assert_ne!(first >> 32, 0);
    rig.clean();
}

#[test]
fn a_received_frame_fires_its_queues_vector() {
    let mut rig = Rig::new(config());
    let irqs = rig.bus.irqs(2).unwrap();
    rig.bar.w32(IVAR, 8 | 1);
    rig.bar.w32(IMS, cause::RXQ0);
    rig.post(4);
    rig.arrive(&frame(60));
    assert_eq!((irqs[0].take(), irqs[1].take()), (0, 1));
}

#[test]
fn frames_delivered_together_are_as_if_from_the_wire() {
    let mut rig = Rig::new(config());
    rig.post(15);
    let sent = frame(64);
    assert_eq!(rig.device.deliver((0..10).map(|_| &sent[..])), 10);
    assert!((0..10).all(|i| rig.received(i).1 == 64 && rig.bytes(i as usize, 64) == sent));
    rig.clean();
}

#[test]
fn any_order_of_steps_receives_the_same() {
    for seed in 0..50 {
        let mut rig = Rig::new(config());
        rig.post(15);
        for i in 0..10 {
            rig.far.send(&frame(60 + i));
        }
        rig.device.steps(10_000, seed);
        let got: Vec<_> = (0..10).map(|i| (rig.received(i).0 & 3, rig.received(i).1)).collect();
        assert_eq!(got, (0..10).map(|i| (3, 60 + i)).collect::<Vec<_>>(), "seed {seed}");
        rig.clean();
    }
}

#[test]
fn a_step_can_end_between_the_data_and_its_descriptor() {
    let rig = {
        let mut rig = Rig::new(config());
        rig.post(4);
        rig.far.send(&frame(60));
        rig
    };
    // One unit at a time: the buffer is filled before the descriptor is written back.
    let mut filled_first = false;
    for seed in 0..100 {
        rig.device.step(seed);
        filled_first |= rig.bytes(0, 60) == frame(60) && rig.received(0).0 == 0;
    }
    assert!(filled_first && rig.received(0).0 & rxd::DD != 0);
}

/// UDP over IPv4 with correct checksums and identification 0x1234.
pub(super) fn udp_frame() -> Vec<u8> {
    let mut frame = frame(60);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0x12, 0x34, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..42].copy_from_slice(&[0x10, 0, 0x20, 0, 0, 26, 0, 0]);
    let check = !towpath_wire::checksum::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    let pseudo = towpath_wire::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 26);
    let check = !towpath_wire::checksum::add(pseudo, towpath_wire::checksum::sum(&frame[34..60]));
    frame[40..42].copy_from_slice(&check.to_be_bytes());
    frame
}
