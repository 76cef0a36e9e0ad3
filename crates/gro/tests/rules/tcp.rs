//! TCP: sequence, flags, sizes.

use crate::common::{ACK, CWR, FIN, L4, PSH, RST, SYN, Spec, URG};
use crate::{APART, Left, MERGED, config, data, pair, push_all, specs};
use towpath_gro::{Flush, Gro};

#[test]
fn only_the_next_sequence_number_merges_and_another_begins_anew() {
    let run = data().run(4, 100);
    assert_eq!(specs(&[run[0].clone(), run[2].clone(), run[3].clone()]), [1, 2]);
    assert_eq!(specs(&[run[0].clone(), run[0].clone()]), APART);
    assert_eq!(specs(&[run[1].clone(), run[0].clone()]), APART);
}

#[test]
fn sequence_numbers_wrap() {
    let mut run = data().seq(u32::MAX - 149).run(4, 100);
    assert_eq!(specs(&run), [4]);
    // A packet that is shorter than predicted is evaluated by the rules.
    run.push(run[3].next(50));
    assert_eq!(specs(&run), [5]);
}

#[test]
fn acknowledgment_window_and_options_are_equal_in_an_aggregate() {
    let change = |change: fn(&mut u32, &mut u16, &mut Vec<u8>)| {
        pair(&data(), |s| {
            if let L4::Tcp { ack, window, options, .. } = &mut s.l4 {
                change(ack, window, options);
            }
        })
    };
    assert_eq!(change(|_, _, _| ()), MERGED);
    assert_eq!(change(|ack, _, _| *ack += 1), APART);
    assert_eq!(change(|_, window, _| *window += 1), APART);
    assert_eq!(change(|_, _, options| options[11] += 1), APART);
    assert_eq!(change(|_, _, options| options.clear()), APART);
}

#[test]
fn fin_and_psh_merge_are_ored_into_the_head_and_end_it() {
    for flag in [FIN, PSH] {
        let run = data().run(4, 100);
        let packets = [run[0].clone(), run[1].clone().flags(ACK | flag), run[2].clone(), run[3].clone()];
        assert_eq!(specs(&packets), [2, 2]);
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, packets[..2].iter().map(Spec::build), &mut left);
        assert_eq!(left.packets[0].bytes()[14 + 20 + 13], ACK | flag, "without being flushed");
        assert_eq!(gro.stats().flushed(Flush::Push), 1);
    }
}

#[test]
fn syn_rst_and_urg_end_the_aggregate_and_do_not_merge() {
    for flag in [SYN, RST, URG] {
        let run = data().run(3, 100);
        assert_eq!(specs(&[run[0].clone(), run[1].clone(), run[2].clone().flags(ACK | flag)]), [2, 1]);
        assert_eq!(specs(&run.iter().map(|s| s.clone().flags(ACK | flag)).collect::<Vec<_>>()), [1, 1, 1]);
    }
}

#[test]
fn other_flags_and_cwr_merge_only_when_equal() {
    assert_eq!(pair(&data().flags(ACK | CWR), |_| ()), MERGED);
    assert_eq!(pair(&data(), |s| *s = s.clone().flags(ACK | CWR)), APART);
    assert_eq!(pair(&data().flags(ACK | CWR), |s| *s = s.clone().flags(ACK)), APART);
    assert_eq!(pair(&data(), |s| *s = s.clone().flags(ACK | 0x40)), APART);
}

#[test]
fn pure_acknowledgments_never_merge_and_leave_after_held_packets() {
    let run = data().run(2, 100);
    let ack = run[1].next(0);
    assert_eq!(specs(&[run[0].clone(), run[1].clone(), ack.clone(), ack]), [2, 1, 1]);
}

#[test]
fn a_longer_payload_ends_the_held_one_and_a_shorter_one_merges_and_ends() {
    let first = data().run(1, 100).remove(0);
    let longer = first.next(101);
    assert_eq!(specs(&[first.clone(), longer.clone(), longer.next(101)]), [1, 2]);
    let shorter = first.next(99);
    assert_eq!(specs(&[first.clone(), shorter.clone(), shorter.next(99)]), [2, 1]);
    // One byte is missing after the shorter one, where a packet as long as the first would end.
    let gap = first.next(100).next(100);
    assert_eq!(specs(&[first, shorter, gap]), [2, 1]);
}
