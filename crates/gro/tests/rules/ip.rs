//! IPv4 and IPv6 headers.

use crate::common::chain::Chain;
use crate::common::{Spec, tcp, v6};
use crate::{APART, Left, MERGED, config, data, pair, push_all, segs, specs, trusted};
use towpath_gro::Gro;

#[test]
fn ipv4_options_and_fragments_never_merge() {
    assert_eq!(pair(&data(), |s| s.ip.options = vec![1; 4]), APART);
    let with_options = data().with(|s| s.ip.options = vec![1; 4]);
    assert_eq!(pair(&with_options, |_| ()), APART);
    assert_eq!(pair(&data(), |s| s.ip.fragment = 0x2000), APART);
    assert_eq!(pair(&data().with(|s| s.ip.fragment = 0x2000), |_| ()), APART);
    assert_eq!(pair(&data().with(|s| s.ip.fragment = 0x10), |_| ()), APART);
}

#[test]
fn padding_of_short_frames_is_not_data() {
    let mut packets: Vec<_> = data().run(3, 10).iter().map(Spec::build).collect();
    packets[1].extend([0; 4]);
    assert_eq!(segs(config(), &packets), [1, 1, 1]);
    packets[0].extend([0; 4]);
    assert_eq!(segs(config(), &packets), [1, 1, 1]);
    // The second packet begins where the first one ends with its padding. A checksum that the port
    // verified does not cover that.
    let first = data().run(1, 10).remove(0);
    let padded = [first.clone(), first.next(10).seq(1014)].map(|spec| [spec.build(), vec![0; 4]].concat());
    let (mut gro, mut left) = (Gro::new(config()), Left::default());
    gro.push_batch(padded.into_iter().map(|b| Chain::new(b, trusted())), 0, &mut left);
    gro.flush_all(&mut left);
    assert_eq!(left.segs, APART);
}

#[test]
fn ttl_tos_and_df_are_equal_in_an_aggregate() {
    assert_eq!(pair(&data(), |s| s.ip.ttl -= 1), APART);
    assert_eq!(pair(&data(), |s| s.ip.tos = 4), APART);
    assert_eq!(pair(&data(), |s| s.ip.tos = 3), APART, "ECN");
    assert_eq!(pair(&data(), |s| s.ip.df = false), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.ttl -= 1), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.tos = 4), APART);
}

#[test]
fn identifications_count_up_or_stay_as_the_second_packet_decides() {
    let run = |ids: [u16; 4], df| {
        let mut run = data().with(|s| s.ip.df = df).run(4, 100);
        run.iter_mut().zip(ids).for_each(|(s, id)| s.ip.id = id);
        specs(&run)
    };
    assert_eq!(run([65_534, 65_535, 0, 1], true), [4]);
    assert_eq!(run([7, 7, 7, 7], true), [4]);
    assert_eq!(run([7, 8, 8, 9], true), [2, 2]);
    assert_eq!(run([7, 7, 8, 9], true), [2, 2]);
    assert_eq!(run([7, 9, 10, 11], true), [1, 3]);
    assert_eq!(run([7, 7, 7, 7], false), [1, 1, 1, 1], "what may be fragmented needs identifications");
    for step in [0, 1] {
        let mut run = data().run(3, 100);
        run.iter_mut().zip(0..).for_each(|(s, n)| s.ip.id = n * step);
        let (mut gro, mut left) = (Gro::new(config()), Left::default());
        push_all(&mut gro, run.iter().map(Spec::build), &mut left);
        gro.flush_all(&mut left);
        assert_eq!((left.segs.len(), left.packets[0].offload.fixed_id), (1, step == 0));
    }
}

#[test]
fn an_ip_checksum_that_begins_anew_does_not_end_the_aggregate() {
    // Adding one to the identification subtracts one from the checksum, until that is 0.
    let first = data().build();
    let check = u16::from_be_bytes([first[14 + 10], first[14 + 11]]);
    let mut run = data().with(|s| s.ip.id = s.ip.id.wrapping_add(check).wrapping_sub(4)).run(8, 100);
    assert_eq!(specs(&run), [8]);
    assert!(run.iter().any(|s| s.build()[14 + 10..14 + 12] == [0, 0]), "it was 0");
    run[6].ip.ttl -= 1;
    assert_eq!(specs(&run), [6, 1, 1]);
}

#[test]
fn extension_headers_merge_only_when_byte_equal_and_a_fragment_header_never() {
    let spec = tcp(v6(), 100).with(|s| s.ip.options = vec![1, 4, 0, 0, 0, 0]);
    assert_eq!(pair(&spec, |_| ()), MERGED);
    assert_eq!(pair(&spec, |s| s.ip.options[5] = 1), APART);
    assert_eq!(pair(&spec, |s| s.ip.options.clear()), APART);
    assert_eq!(pair(&tcp(v6(), 100), |s| s.ip.fragment = 1), APART);
    assert_eq!(pair(&tcp(v6(), 100).with(|s| s.ip.fragment = 1), |_| ()), APART);
}

#[test]
fn runts_pass() {
    let whole = data().build();
    for len in 0..66 {
        assert_eq!(segs(config(), &[whole[..len].to_vec(), whole[..len].to_vec()]), APART, "{len}");
    }
}
