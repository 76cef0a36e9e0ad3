//! Sessions that skip invalid descriptors.

use super::*;
use towpath_packet::xsk_ring::RingMemory;

/// A program with `skip_invalid` that both queues have.
fn program(rig: &mut Rig, hello: Hello) -> Program {
    let program = Program::connect(rig, &Hello { skip_invalid: true, rules: "default".to_owned(), ..hello });
    until(|| {
        rig.tx.reclaim();
        rig.rx.rx(&mut Batch::new());
        rig.tx.queue.apps().len() == 1
    });
    program
}

impl Program {
    /// Runs the queue until `n` addresses have come back.
    fn completes(&mut self, rig: &mut Rig, n: u32) -> Vec<u64> {
        until(|| {
            rig.rx.rx(&mut Batch::new());
            self.completion.peek(n) >= n
        });
        let addrs = (0..n).map(|_| self.completion.read()).collect();
        self.completion.release();
        addrs
    }
}

/// The end of the memory.
const END: u64 = 16 * 2048;

#[test]
fn an_invalid_descriptor_is_counted_and_completed_and_the_others_are_sent() {
    for options in ["", "tx=copy"] {
        let mut rig = Rig::new(options);
        let mut program = program(&mut rig, HELLO);
        let wrong = [(END, 60, 0), (u64::MAX, 1, 0), (2000, 49, 0), (0, 0, 0), (0, u32::MAX, 0), (0, 60, 1 << 31)];
        for (i, (addr, len, options)) in wrong.into_iter().enumerate() {
            program.send(&[(2048, 60, 0), (addr, len, options), (4096, 61, 0)]);
            let batch = rig.receive(2);
            assert_eq!(batch.iter().map(Packet::len).collect::<Vec<_>>(), [60, 61]);
            drop(batch);
            let mut back = program.completes(&mut rig, 3);
            back.sort_unstable();
            let mut sent = [2048, addr, 4096];
            sent.sort_unstable();
            assert_eq!(back, sent);
            assert_eq!(program.statistics().tx_invalid_descs, i as u64 + 1);
        }
        assert_eq!((rig.event("descriptors-skipped"), rig.event("sessions-ended")), (6, 0));
        drop(program);
        rig.end();
    }
}

#[test]
fn the_pieces_in_front_of_an_invalid_one_are_lost_with_it_and_the_next_descriptor_begins_a_packet() {
    for options in ["", "tx=copy"] {
        let mut rig = Rig::new(options);
        let mut program = program(&mut rig, HELLO);
        // In one burst, and over several.
        for pause in [false, true] {
            let before = program.statistics().tx_invalid_descs;
            for desc in [(0, 60, 1), (2048, 60, 1), (END, 60, 1), (4096, 70, 0)] {
                program.send(&[desc]);
                if pause && desc.2 == 1 {
                    until(|| {
                        assert_eq!(rig.rx.rx(&mut Batch::new()), 0);
                        program.tx.waiting() == 0
                    });
                }
            }
            let batch = rig.receive(1);
            assert_eq!((batch.len(), batch.as_slice()[0].len()), (1, 70));
            drop(batch);
            let mut back = program.completes(&mut rig, 4);
            back.sort_unstable();
            assert_eq!(back, [0, 2048, 4096, END]);
            assert_eq!(program.statistics().tx_invalid_descs - before, 3);
        }
        drop(program);
        rig.end();
    }
}

#[test]
fn a_packet_of_too_many_pieces_is_lost_wholly() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig, HELLO);
    for _ in 0..2 {
        program.send(&[(0, 60, 1); 10]);
        until(|| {
            rig.rx.rx(&mut Batch::new());
            program.tx.waiting() == 0
        });
    }
    assert_eq!(program.completes(&mut rig, 16), [0; 16]);
    // The twentieth begins another packet.
    program.send(&[(0, 60, 0)]);
    assert_eq!(rig.receive(1).as_slice()[0].len(), 120);
    assert_eq!((program.statistics().tx_invalid_descs, rig.event("descriptors-skipped")), (19, 19));
    assert_eq!(program.completes(&mut rig, 5), [0; 5]);
    drop(program);
    rig.end();
}

#[test]
fn a_frame_may_be_sent_as_often_as_wanted_at_a_time() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig, HELLO);
    program.send(&[(0, 60, 0), (0, 60, 0), (4, 60, 0)]);
    assert_eq!(rig.receive(3).len(), 3);
    assert_eq!(program.completes(&mut rig, 3).len(), 3);
    program.post(&[0, 0]);
    rig.send(&[&udp(1, 60), &udp(2, 60)]);
    assert_eq!(program.rx.peek(2), 2);
    assert_eq!(program.statistics().tx_invalid_descs + program.statistics().rx_invalid_descs, 0);
    drop(program);
    rig.end();
}

#[test]
fn packets_that_do_not_reach_a_program_are_counted_for_it_by_reason() {
    let mut rig = Rig::new("");
    let rings = Sizes { rx: 2, ..Sizes::all(16) };
    let mut program = program(&mut rig, Hello { pieces: false, rings, ..HELLO });
    let packets = [&udp(1, 60)[..], &udp(2, 60), &udp(3, 60)];
    rig.send(&packets[..1]);
    let mut expected = Statistics::default();
    (expected.rx_dropped, expected.rx_fill_ring_empty_descs) = (1, 1);
    assert_eq!(program.statistics(), expected);
    program.post(&[END, 0, u64::MAX, 2048, 4096]);
    rig.send(&packets);
    (expected.rx_invalid_descs, expected.rx_ring_full) = (2, 1);
    assert_eq!(program.statistics(), expected);
    rig.send(&[&[1; 3000]]);
    expected.rx_dropped += 1;
    assert_eq!(program.statistics(), expected);
    assert_eq!(rig.event("descriptors-skipped"), 2);
    drop(program);
    rig.end();
}

#[test]
fn overwritten_statistics_are_right_again_after_the_next_event() {
    let mut rig = Rig::new("");
    let mut program = program(&mut rig, HELLO);
    for n in 1..4 {
        program.send(&[(END, 60, 0)]);
        program.completes(&mut rig, 1);
        let Statistics { tx_invalid_descs, tx_ring_empty_descs, .. } = program.statistics();
        assert_eq!((tx_invalid_descs, tx_ring_empty_descs), (n, n));
        (0..Statistic::ENTRIES).for_each(|entry| program.statistics.write(entry, u64::MAX));
    }
    drop(program);
    rig.end();
}

#[test]
fn an_impossible_counter_ends_a_session_with_skip_invalid_too() {
    let mut rig = Rig::new("");
    let program = program(&mut rig, HELLO);
    program.tx.ring().producer().store(17, std::sync::atomic::Ordering::Release);
    rig.until_event("bad-counter", 1);
    rig.until_event("sessions-ended", 1);
    drop(program);
    rig.end();
}
