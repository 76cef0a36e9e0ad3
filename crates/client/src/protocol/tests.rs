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
        (rings.statistics, 8 * 8, end),
    ];
    for (at, bytes, next) in ends {
        assert!(at.desc + bytes <= next && next.is_multiple_of(128), "{at:?} {bytes} {next}");
    }
}
