//! How much of what applications send is copied: what the egress needs linear, and no byte more.

use super::*;
use towpath_packet::port::TxLayout;

const LEN: usize = 100;
const N: usize = 10;

/// The result of sending to an egress with `linear`.
struct Seen {
    /// Linear bytes and fragments of each packet.
    shape: (usize, usize),
    headroom: usize,
    /// Frames that were completed while their packets were in flight.
    early: usize,
    copies: u64,
    copied_bytes: u64,
}

fn send(options: &str, linear: TxLinear) -> Seen {
    let mut rig = Rig::new(options);
    rig.rx.set_tx_layout(TxLayout { linear, headroom: 32, tailroom: 8 });
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.tx(&mut frames(&umem, N as u8, LEN)).unwrap();
    let mut batch = rig.receive(N);
    for (i, packet) in batch.iter().enumerate() {
        assert_eq!(packet.to_vec(), [i as u8; LEN]);
    }
    let first = &batch.as_slice()[0];
    let (shape, headroom) = ((first.linear().len(), first.frags()), first.headroom());
    assert!(batch.iter().all(|packet| (packet.linear().len(), packet.frags()) == shape));
    let mut back = Vec::new();
    let early = app.completions(&mut back).unwrap();
    batch.drain_front(N).for_each(drop);
    rig.rx.rx(&mut batch);
    app.completions(&mut back).unwrap();
    assert_eq!(back.len(), N, "all are completed in the end");
    rig.completes(&mut app, 0);
    let (copies, copied_bytes) = (rig.event("copies"), rig.event("copied-bytes"));
    let counted = rig.rx.counters().snapshot();
    assert_eq!((counted.copied, counted.copied_bytes), (copies, copied_bytes));
    drop(app);
    rig.end();
    Seen { shape, headroom, early, copies, copied_bytes }
}

#[test]
fn a_page_costs_no_copy_and_is_completed_when_its_packet_is_gone() {
    for (options, linear) in [("", TxLinear::None), ("tx=page", TxLinear::None), ("tx=page", TxLinear::Whole)] {
        let seen = send(options, linear);
        assert_eq!((seen.shape, seen.early), ((0, 1), 0), "{options} {linear:?}");
        assert_eq!((seen.copies, seen.copied_bytes), (0, 0), "{options} {linear:?}");
    }
}

#[test]
fn a_copy_costs_one_copy_of_each_byte_into_the_headroom_that_the_egress_wants_and_is_completed_at_once() {
    for (options, linear) in [("tx=copy", TxLinear::None), ("", TxLinear::Whole), ("", TxLinear::Header(200))] {
        let seen = send(options, linear);
        assert_eq!((seen.shape, seen.headroom, seen.early), ((LEN, 0), 32, N), "{options} {linear:?}");
        assert_eq!((seen.copies, seen.copied_bytes), (N as u64, (N * LEN) as u64), "{options} {linear:?}");
    }
}

#[test]
fn of_a_packet_whose_header_must_be_linear_only_the_header_is_copied() {
    let seen = send("", TxLinear::Header(14));
    assert_eq!((seen.shape, seen.headroom, seen.early), ((14, 1), 32, 0));
    assert_eq!((seen.copies, seen.copied_bytes), (N as u64, N as u64 * 14));
}

#[test]
fn bytes_that_a_buffer_has_no_room_for_stay_in_the_page() {
    let mut rig = Rig::new("tx=copy,mtu=9000");
    let (headroom, tailroom) = (64, 100);
    rig.rx.set_tx_layout(TxLayout { linear: TxLinear::Whole, headroom, tailroom });
    let umem = Umem::new(8, 4096).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.tx(&mut frames(&umem, 1, 4000)).unwrap();
    let batch = rig.receive(1);
    let packet = &batch.as_slice()[0];
    assert_eq!((packet.linear().len(), packet.tailroom(), packet.frags()), (2048 - 164, 100, 1));
    assert_eq!(packet.to_vec(), [0; 4000]);
    drop(batch);
    rig.completes(&mut app, 1);
    drop(app);
    rig.end();
}

#[test]
fn copies_wait_for_room_in_the_completion_ring() {
    let mut rig = Rig::new("tx=copy");
    let umem = Umem::new(64, 2048).unwrap();
    let rings = Sizes { completion: 4, ..Sizes::all(64) };
    let mut app = rig.ask(&umem, "default", rings).unwrap();
    app.tx(&mut frames(&umem, 10, LEN)).unwrap();
    let (mut got, mut back) = (rig.receive(4), Vec::new());
    rig.rx.rx(&mut got);
    assert_eq!(got.len(), 4);
    until(|| {
        app.completions(&mut back).unwrap();
        rig.rx.rx(&mut got);
        back.len() == 10
    });
    assert_eq!(got.len(), 10);
    rig.completes(&mut app, 0);
    drop((got, back, app));
    rig.end();
}

#[test]
fn frames_of_one_piece_are_pages_without_a_head_unless_the_egress_needs_headroom_and_all_stay_in_order() {
    for (headroom, alone) in [(0, true), (32, false)] {
        let mut rig = Rig::new("");
        rig.rx.set_tx_layout(TxLayout { linear: TxLinear::None, headroom, tailroom: 0 });
        let umem = Umem::new(64, 2048).unwrap();
        let mut app = rig.connect(&umem, "default");
        let mut sent = frames(&umem, 6, LEN);
        // The second and the third are one packet.
        sent[1].set_continues(true);
        app.tx(&mut sent).unwrap();
        let mut batch = rig.receive(5);
        let bytes: Vec<_> = batch.iter().map(|packet| (packet.to_vec()[0], packet.len(), packet.frags())).collect();
        assert_eq!(bytes, [(0, LEN, 1), (1, 2 * LEN, 2), (3, LEN, 1), (4, LEN, 1), (5, LEN, 1)]);
        assert!(batch.iter().all(|packet| packet.linear().is_empty() && packet.headroom() >= headroom.into()));
        // Behind a packet in pieces the burst continues with heads; the next burst begins without.
        assert_eq!((batch.as_slice()[0].is_extbuf(), batch.as_slice()[1].is_extbuf()), (alone, false));
        drop(std::mem::take(&mut batch));
        rig.rx.rx(&mut batch);
        let mut back = Vec::new();
        assert_eq!(app.completions(&mut back).unwrap(), 6);
        app.tx(&mut frames(&umem, 2, LEN)).unwrap();
        let batch = rig.receive(2);
        assert!(batch.iter().all(|packet| packet.is_extbuf() == alone));
        drop((batch, back));
        rig.completes(&mut app, 2);
        drop(app);
        rig.end();
    }
}

#[test]
fn copies_of_frames_in_one_piece_and_in_several_stay_in_order_and_one_too_long_leaves_its_buffer_to_the_next() {
    let mut rig = Rig::new("tx=copy,mtu=500");
    rig.rx.set_tx_layout(TxLayout { linear: TxLinear::Whole, headroom: 32, tailroom: 8 });
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect_unchecked(&umem);
    let mut sent = frames(&umem, 9, LEN);
    assert!(sent[1].set_range(0, 600));
    // The fifth and the sixth are one packet.
    sent[4].set_continues(true);
    app.tx(&mut sent).unwrap();
    let batch = rig.receive(7);
    let seen: Vec<_> = batch.iter().map(|packet| (packet.to_vec()[0], packet.len(), packet.frags())).collect();
    let expected = [0, 2, 3, 4, 6, 7, 8].map(|i| (i, if i == 4 { 2 * LEN } else { LEN }, 0));
    assert_eq!(seen, expected);
    assert!(batch.iter().all(|packet| packet.headroom() == 32 && packet.linear().len() == packet.len()));
    let mut back = Vec::new();
    assert_eq!(app.completions(&mut back).unwrap(), 9);
    assert_eq!((rig.event("frame-length"), rig.event("copies")), (1, 9));
    let bytes = rig.rx.counters().snapshot().bytes;
    assert_eq!(bytes as usize, 8 * LEN, "what is not sent is not counted");
    drop((batch, back, app));
    rig.end();
}

#[test]
fn without_buffers_copies_wait_and_none_is_lost() {
    let mut rig = Rig::new("tx=copy");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut cache = rig.pool.cache(Direction::Tx).unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
    app.tx(&mut frames(&umem, 4, LEN)).unwrap();
    let mut out = Batch::new();
    assert_eq!((0..10).map(|_| rig.rx.rx(&mut out)).sum::<usize>(), 0);
    all.truncate(all.len() - 2);
    until(|| {
        rig.rx.rx(&mut out);
        out.len() == 2
    });
    drop((all, cache));
    until(|| {
        rig.rx.rx(&mut out);
        out.len() == 4
    });
    assert_eq!(out.iter().map(|packet| packet.to_vec()[0]).collect::<Vec<_>>(), [0, 1, 2, 3]);
    drop((out, app));
    rig.end();
}

#[test]
fn without_buffers_pages_without_heads_are_sent_and_frames_in_pieces_wait() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut cache = rig.pool.cache(Direction::Tx).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
    let mut sent = frames(&umem, 4, LEN);
    sent[2].set_continues(true);
    app.tx(&mut sent).unwrap();
    let batch = rig.receive(2);
    let mut more = Batch::new();
    assert_eq!((0..10).map(|_| rig.rx.rx(&mut more)).sum::<usize>(), 0, "the third is read again, and not lost");
    drop((all, cache));
    let pieces = rig.receive(1);
    assert_eq!((batch.len(), pieces.as_slice()[0].to_vec()), (2, [[2; LEN], [3; LEN]].concat()));
    drop((batch, pieces));
    rig.completes(&mut app, 4);
    drop(app);
    rig.end();
}
