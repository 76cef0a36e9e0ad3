//! Transmission.

use super::*;
use proptest::prelude::*;
use towpath_wire::verify::Check;
use towpath_wire::{LinkKind, verify};

#[test]
fn a_frame_leaves_and_its_descriptor_is_written_back_on_request() {
    let mut rig = Rig::new(config());
    rig.fill(20, &frame(100));
    let buffer = rig.buffer(20);
    let sent = rig.transmit(0, &[data(buffer, 100, txd::EOP | txd::RS), data(buffer, 80, txd::EOP)]);
    assert_eq!(sent, [&frame(100)[..], &frame(100)[..80]]);
    assert_eq!((rig.txd(0)[1] & txd::DD, rig.txd(1)[1] & txd::DD), (txd::DD, 0));
    assert_eq!(rig.bar.r32(TDBAL + HEAD), 2);
    rig.clean();
}

#[test]
fn a_frame_is_gathered_from_many_descriptors() {
    let mut rig = Rig::new(config());
    let whole = frame(600);
    let mut descriptors = Vec::new();
    for (i, piece) in whole.chunks(60).enumerate() {
        rig.fill(20 + i, piece);
        let last = if i == 9 { txd::EOP | txd::RS } else { 0 };
        descriptors.push(data(rig.buffer(20 + i), 60, last));
    }
    assert_eq!(rig.transmit(0, &descriptors), [whole]);
    rig.clean();
}

#[test]
fn a_link_that_is_lost_with_frames_in_the_ring_stops_transmission_until_a_reset() {
    let mut rig = Rig::new(config());
    rig.fill(20, &frame(60));
    rig.device.run_until_idle();
    rig.far.set_carrier(false);
    rig.device.turn();
    let descriptor = data(rig.buffer(20), 60, txd::EOP | txd::RS);
    assert!(rig.transmit(0, &[descriptor]).is_empty());
    rig.far.set_carrier(true);
    rig.device.run_until_idle();
    assert_eq!((rig.bar.r32(STATUS) & STATUS_LU, rig.far.drain().len()), (STATUS_LU, 0));
    assert_eq!(rig.txd(0)[1] & txd::DD, 0);
    rig.clean();
}

#[test]
fn a_link_that_is_lost_with_empty_rings_costs_nothing() {
    let mut rig = Rig::new(config());
    rig.fill(20, &frame(60));
    rig.device.run_until_idle();
    rig.far.set_carrier(false);
    rig.device.run_until_idle();
    rig.far.set_carrier(true);
    rig.device.run_until_idle();
    assert_eq!(rig.transmit(0, &[data(rig.buffer(20), 60, txd::EOP)]).len(), 1);
}

#[test]
fn errors_of_symbols_and_sequence_grow_without_a_link() {
    let rig = Rig::new(config());
    rig.device.run_until_idle();
    let read = || (rig.bar.r32(stats::SYMERRS), rig.bar.r32(stats::SEC));
    assert_eq!(read(), (0, 0));
    rig.far.set_carrier(false);
    (0..5).for_each(|_| _ = rig.device.turn());
    let (symbols, sequence) = read();
    assert!(symbols > 5 && sequence > 1, "{symbols} {sequence}");
}

#[test]
fn short_frames_are_padded() {
    let mut rig = Rig::new(config());
    rig.fill(20, &frame(20));
    let sent = rig.transmit(0, &[data(rig.buffer(20), 20, txd::EOP)]);
    assert_eq!(sent[0].len(), 60);
}

#[test]
fn a_legacy_descriptor_sends_and_inserts_its_checksum() {
    let mut rig = Rig::new(config());
    let mut plain = frame(60);
    plain[50..52].fill(0);
    rig.fill(20, &plain);
    let command = 60 | 50 << 16 | txd::EOP | txd::LEGACY_IC | txd::RS | 14 << 40;
    let sent = rig.transmit(0, &[[rig.buffer(20), command]]);
    assert_eq!(towpath_wire::checksum::sum(&sent[0][14..]), towpath_wire::checksum::VALID);
    assert!(rig.txd(0)[1] & txd::DD != 0);
}

/// A context: IP at 14, L4 at 34, the L4 checksum at `at` bytes into the L4 header.
fn context(at: u64, flags: u64) -> [u64; 2] {
    [14 | 24 << 8 | 33 << 16 | 34 << 32 | (34 + at) << 40, txd::DEXT | flags]
}

#[test]
fn checksums_are_inserted_by_context_which_persists() {
    let mut rig = Rig::new(config());
    let good = rx::udp_frame();
    let mut partial = good.clone();
    partial[24..26].fill(0);
    let pseudo = towpath_wire::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 26);
    partial[40..42].copy_from_slice(&pseudo.to_be_bytes());
    rig.fill(20, &partial);
    let one = data(rig.buffer(20), 60, txd::EOP | txd::RS | txd::IXSM | txd::TXSM);
    let sent = rig.transmit(0, &[context(6, txd::IPV4), one, one]);
    assert_eq!(sent, [good.clone(), good]);
    assert_eq!(rig.txd(0)[1] & txd::DD, 0, "a context is not written back");
    rig.clean();
}

#[test]
fn a_tag_is_inserted_with_vle_and_ctrl_vme() {
    let mut rig = Rig::new(config());
    rig.fill(20, &frame(64));
    let tagged = data(rig.buffer(20), 64, txd::EOP | txd::VLE | 0x2123 << 48);
    assert_eq!(rig.transmit(0, &[tagged])[0], frame(64), "CTRL.VME is off");
    rig.bar.w32(CTRL, CTRL_SLU | CTRL_VME);
    let sent = rig.transmit(1, &[tagged]);
    assert_eq!(sent[0], [&frame(64)[..12], &[0x81, 0, 0x21, 0x23], &frame(64)[12..]].concat());
}

/// TCP over IPv4 with `payload` bytes, prepared for segmentation: no lengths, and only the checksum
/// of the pseudo-header.
fn tcp_frame(payload: usize) -> Vec<u8> {
    let mut tcp = frame(54 + payload);
    tcp[12..14].copy_from_slice(&[8, 0]);
    tcp[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    tcp[34..54].copy_from_slice(&[0x10, 0, 0x20, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9, 0x50, 0x19, 1, 0, 0, 0, 0, 0]);
    let pseudo = towpath_wire::checksum::pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 0);
    tcp[50..52].copy_from_slice(&pseudo.to_be_bytes());
    tcp
}

#[test]
fn a_segmented_frame_leaves_as_valid_segments_that_join_to_its_payload() {
    let mut rig = Rig::new(config());
    let whole = tcp_frame(3700);
    for (i, piece) in whole.chunks(BUFFER).enumerate() {
        rig.fill(20 + i, piece);
    }
    let [low, high] = context(16, txd::IPV4 | txd::TCP | txd::TSE);
    let flags = txd::TSE | txd::IXSM | txd::TXSM;
    let sent = rig.transmit(
        0,
        &[
            [low, high | 3700 | 54 << 40 | 1448 << 48],
            data(rig.buffer(20), BUFFER, flags),
            data(rig.buffer(21), whole.len() - BUFFER, flags | txd::EOP | txd::RS),
        ],
    );
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1502, 1502, 858]);
    let joined: Vec<u8> = sent.iter().flat_map(|s| s[54..].to_vec()).collect();
    assert_eq!(joined, whole[54..]);
    for (i, segment) in sent.iter().enumerate() {
        let verdict = verify::verify(segment, LinkKind::Ethernet);
        assert!(verdict.is_sound() && verdict.transport == Check::Good, "{i}: {verdict:?}");
        let sequence = u32::from_be_bytes(segment[38..42].try_into().unwrap());
        assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(1448 * i as u32));
        assert_eq!(u16::from_be_bytes(segment[18..20].try_into().unwrap()), 0x1234 + i as u16);
        assert_eq!(segment[47], if i == 2 { 0x19 } else { 0x10 }, "only the last one has FIN and PSH");
    }
    assert_eq!(rig.bar.r32(stats::TSCTC), 1);
    rig.clean();
}

#[test]
fn sent_frames_are_counted() {
    let mut rig = Rig::new(config());
    rig.fill(20, &[0xff; 100]);
    rig.transmit(0, &[data(rig.buffer(20), 100, txd::EOP)]);
    let read = |at| rig.bar.r32(at);
    assert_eq!((read(stats::GPTC), read(stats::TPT), read(stats::BPTC), read(stats::GOTC)), (1, 1, 1, 104));
    assert_eq!(read(stats::PTC64 + 4), 1);
}

#[test]
fn the_ring_wraps() {
    let mut rig = Rig::new(config());
    for i in 0..40u32 {
        let sent = frame(60 + i as usize);
        rig.fill(20, &sent);
        let one = data(rig.buffer(20), sent.len(), txd::EOP | txd::RS);
        assert_eq!(rig.transmit(i % RING, &[one]), [sent]);
    }
    rig.clean();
}

#[test]
fn a_full_wire_loses_nothing() {
    let (near, mut far) = cable(2);
    let mut rig = Rig::on(config(), near, cable(1).0);
    rig.enable(0, 0);
    for i in 0..6 {
        rig.fill(20 + i, &frame(60 + i));
        rig.set_txd(i as u32, data(rig.buffer(20 + i), 60 + i, txd::EOP | txd::RS));
    }
    rig.bar.w32(TDBAL + TAIL, 6);
    let mut sent = Vec::new();
    for done in [2, 4, 6] {
        rig.device.run_until_idle();
        assert_eq!((0..6).filter(|i| rig.txd(*i)[1] & txd::DD != 0).count(), done);
        sent.extend(far.drain());
    }
    assert_eq!(sent, (0..6).map(|i| frame(60 + i)).collect::<Vec<_>>());
}

#[test]
fn without_a_link_frames_wait_and_their_descriptors_stay_pending() {
    let mut rig = Rig::new(config());
    rig.fill(20, &frame(60));
    rig.far.set_carrier(false);
    rig.device.turn();
    let one = data(rig.buffer(20), 60, txd::EOP | txd::RS);
    assert!(rig.transmit(0, &[one]).is_empty(), "without a link it waits");
    assert_eq!(rig.txd(0)[1] & txd::DD, 0);
    rig.far.set_carrier(true);
    rig.device.run_until_idle();
    assert_eq!(rig.far.drain().len(), 1);
    assert_eq!(rig.txd(0)[1] & txd::DD, txd::DD);
}

#[test]
fn in_loopback_sent_frames_are_received() {
    let mut rig = Rig::bare(config());
    rig.enable(RCTL_EN | RCTL_SECRC | 0x40, RFCTL_EXTEN);
    rig.post(2);
    rig.fill(20, &frame(77));
    assert!(rig.transmit(0, &[data(rig.buffer(20), 77, txd::EOP)]).is_empty());
    assert_eq!(rig.received(0).1, 77);
}

#[test]
fn any_order_of_steps_sends_the_same_in_order() {
    for seed in 0..50 {
        let mut rig = Rig::new(config());
        for i in 0..10 {
            rig.fill(20 + i, &frame(60 + i));
            rig.set_txd(i as u32, data(rig.buffer(20 + i), 60 + i, txd::EOP | txd::RS));
        }
        rig.bar.w32(TDBAL + TAIL, 10);
        rig.device.steps(10_000, seed);
        assert_eq!(rig.far.drain(), (0..10).map(|i| frame(60 + i)).collect::<Vec<_>>(), "seed {seed}");
        assert!((0..10).all(|i| rig.txd(i)[1] & txd::DD != 0));
        rig.clean();
    }
}

/// TCP over IPv6 with a VLAN tag, prepared for segmentation, with `options` words of TCP options.
fn tcp6_frame(payload: &[u8], options: usize) -> (Vec<u8>, u64) {
    let mut tcp = frame(18);
    tcp[12..18].copy_from_slice(&[0x81, 0, 0, 7, 0x86, 0xdd]);
    let (from, to) = ([0x20; 16], [0x30; 16]);
    tcp.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, 6, 64]);
    tcp.extend_from_slice(&[from, to].concat());
    tcp.extend_from_slice(&[0x10, 0, 0x20, 0, 1, 2, 3, 4, 0, 0, 0, 9, 0x50 + (options << 4) as u8, 0x18, 1, 0]);
    tcp.extend_from_slice(&towpath_wire::checksum::pseudo_v6(from.into(), to.into(), 6, 0).to_be_bytes());
    tcp.extend_from_slice(&[0, 0]);
    tcp.resize(tcp.len() + 4 * options, 1);
    let header = tcp.len() as u64;
    tcp.extend_from_slice(payload);
    (tcp, header)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn segments_are_valid_and_join_to_the_payload(len in 1usize..20_000, mss in 17u64..3000, options in 0usize..10, piece in 200usize..2048) {
        let mut rig = Rig::bare(Config { strict: true, ..config() });
        rig.bar.w32(TDBAL + LEN, 128 * 16);
        rig.enable(0, 0);
        let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let (whole, header) = tcp6_frame(&payload, options);
        let flags = txd::TSE | txd::TXSM;
        let low = 18 | 58 << 32 | 74 << 40;
        let context = len as u64 | txd::TCP | txd::TSE | txd::DEXT | header << 40 | mss << 48;
        let mut ring = vec![[low, context]];
        let first = piece.max(header as usize + 1).min(whole.len());
        let (head, tail) = whole.split_at(first);
        let mut pieces = vec![head];
        pieces.extend(tail.chunks(piece));
        // Long frames would reuse buffers: there must be enough.
        prop_assume!(pieces.len() <= 60 && len.div_ceil(mss as usize) <= CABLE);
        for (i, bytes) in pieces.iter().enumerate() {
            rig.fill(i, bytes);
            let last = if i + 1 == pieces.len() { txd::EOP | txd::RS } else { 0 };
            ring.push(data(rig.buffer(i), bytes.len(), flags | last));
        }
        for (i, words) in ring.iter().enumerate() {
            rig.set_txd(i as u32, *words);
        }
        rig.bar.w32(TDBAL + TAIL, ring.len() as u32);
        rig.device.run_until_idle();
        let sent = rig.far.drain();
        prop_assert_eq!(rig.device.violation(), None);
        prop_assert_eq!(sent.len(), len.div_ceil(mss as usize));
        let mut joined = Vec::new();
        for (i, segment) in sent.iter().enumerate() {
            let found = towpath_wire::dissect(segment, LinkKind::Ethernet);
            prop_assert_eq!(verify::verify(segment, LinkKind::Ethernet).transport, Check::Good);
            let sequence = u32::from_be_bytes(segment[62..66].try_into().unwrap());
            prop_assert_eq!(sequence, 0x0102_0304 + joined.len() as u32);
            prop_assert_eq!(segment[71] & 8 != 0, i + 1 == sent.len());
            joined.extend_from_slice(&segment[usize::from(found.payload)..found.end as usize]);
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn a_frame_in_any_buffers_leaves_unchanged(len in 14usize..9000, cuts in prop::collection::vec(1usize..2000, 1..14)) {
        let mut rig = Rig::new(config());
        let whole = frame(len);
        let (mut rest, mut ring) = (&whole[..], Vec::new());
        for (i, cut) in cuts.iter().enumerate() {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            if piece.is_empty() {
                break;
            }
            rest = after;
            rig.fill(20 + i, piece);
            ring.push(data(rig.buffer(20 + i), piece.len(), 0));
        }
        ring.last_mut().unwrap()[1] |= txd::EOP | txd::RS;
        let mut expected = whole[..whole.len() - rest.len()].to_vec();
        expected.resize(expected.len().max(60), 0);
        prop_assert_eq!(rig.transmit(0, &ring), [expected]);
        prop_assert_eq!(rig.device.violation(), None);
    }
}
