//! How much of what applications send is copied: what the egress wants linear, and no byte more.

use super::*;
use towpath_packet::port::TxShape;

const LEN: usize = 100;
const N: usize = 10;

/// What became of one way of sending to an egress that wants `linear`.
struct Seen {
    /// Linear bytes and fragments of each packet.
    shape: (usize, usize),
    headroom: usize,
    /// Frames that were completed while their packets were still on their way.
    early: usize,
    copies: u64,
    copied_bytes: u64,
}

fn send(options: &str, linear: TxLinear) -> Seen {
    let mut rig = Rig::new(options);
    rig.rx.shape(TxShape { linear, headroom: 32, tailroom: 8 });
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
fn of_a_header_that_the_egress_wants_linear_only_that_is_copied() {
    let seen = send("", TxLinear::Header(14));
    assert_eq!((seen.shape, seen.headroom, seen.early), ((14, 1), 32, 0));
    assert_eq!((seen.copies, seen.copied_bytes), (N as u64, N as u64 * 14));
}

#[test]
fn what_a_buffer_has_no_room_for_stays_a_page() {
    let mut rig = Rig::new("tx=copy,mtu=9000");
    let (headroom, tailroom) = (64, 100);
    rig.rx.shape(TxShape { linear: TxLinear::Whole, headroom, tailroom });
    let umem = Umem::new(8, 4096).unwrap();
    let mut app = rig.connect(&umem, "default");
    app.tx(&mut frames(&umem, 1, 4000)).unwrap();
    let batch = rig.receive(1);
    let packet = &batch.as_slice()[0];
    assert_eq!((packet.linear().len(), packet.tailroom(), packet.frags()), (2048 - 164, 100, 1));
    assert_eq!(packet.to_vec(), [0; 4000]);
    drop((batch, app));
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
    drop((got, back, app));
    rig.end();
}
