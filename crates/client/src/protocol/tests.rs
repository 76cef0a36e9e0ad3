use super::*;

#[test]
fn rings_lie_behind_each_other_and_do_not_overlap() {
    let (rings, end) = Rings::lay_out(&Sizes { fill: 2, completion: 4, rx: 2, tx: 32768 });
    assert_eq!(rings.fill, Layout { producer: 0, consumer: 128, flags: 196, desc: 320 });
    let ends = [
        (rings.fill, 2 * 8, rings.completion.producer),
        (rings.completion, 4 * 8, rings.rx.producer),
        (rings.rx, 2 * 16, rings.tx.producer),
        (rings.tx, 32768 * 16, rings.statistics.producer),
        (rings.statistics, 16 * 8, end),
    ];
    for (at, bytes, next) in ends {
        assert!(at.desc + bytes <= next && next.is_multiple_of(128), "{at:?} {bytes} {next}");
    }
}

#[test]
fn the_counters_begin_with_those_of_af_xdp_and_each_has_an_entry_and_a_name() {
    let counters = Statistics::read(|entry| 100 + u64::from(entry));
    let Statistics { rx_dropped, tx_invalid_descs, tx_ring_empty_descs, tx_too_short, .. } = counters;
    assert_eq!([rx_dropped, tx_invalid_descs, tx_ring_empty_descs, tx_too_short], [100, 102, 105, 106]);
    let entries: Vec<_> = Statistic::ALL.iter().map(|which| *which as u32).collect();
    assert_eq!(entries, (0..10).collect::<Vec<_>>());
    assert_eq!(Statistic::TxInvalidRequests.name(), "tx_invalid_requests");
}
