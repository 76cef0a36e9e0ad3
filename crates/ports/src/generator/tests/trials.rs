//! A generator that sends when it is asked.

use super::*;

/// Moves packets of `queues` from generator to sink until `done`.
fn pump(queues: &mut Queues<GenRx, GenTx>, mut done: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < end);
        for (rx, tx) in queues.rx.iter_mut().zip(&mut queues.tx) {
            let mut batch = Batch::new();
            rx.rx(&mut batch);
            tx.tx(&mut batch);
        }
    }
}

#[test]
fn a_generator_with_trials_waits_and_sends_each_with_numbers_of_its_own() {
    let pool = pool();
    let mut port = open(config("flows=3,size=100,stamp=time,verify=on,count=5")).unwrap();
    let trials = port.trials(&[Size::Fixed(100), Size::Fixed(1000)]).unwrap();
    assert!(!port.info().finite && port.info().mtu == 986);
    let mut queues = port.start(Start { pool: pool.clone(), queues: 2, accept: Offloads::NONE }).unwrap();
    assert_eq!((queues.rx[0].rx(&mut Batch::new()), queues.rx[0].state()), (0, State::Up));
    assert!(matches!(queues.rx[0].wake(), Wake::At(_)));
    let mut bytes = 0;
    for (number, size, len) in [(7, 0, 100), (8, 1, 1000), (9, 0, 100), (10, 1, 1000)] {
        trials.expect(number);
        trials.begin(Trial { number, rate: 1_000_000, count: 1001, size });
        assert!(!trials.progress().complete);
        pump(&mut queues, || trials.progress().complete);
        let (progress, mut found) = (trials.progress(), trials.verified());
        assert_eq!(progress.made + progress.given_up, 1001);
        let all = queues.rx.iter().map(|rx| rx.counters().snapshot().bytes).sum::<u64>();
        assert_eq!(all - std::mem::replace(&mut bytes, all), progress.made * len);
        assert!(
            progress.made > 0
                && found.latency.take().unwrap().samples == progress.made
                && trials.latency(0.9) > Some(0)
        );
        assert_eq!(found, verified! { arrived: progress.made });
    }
}

#[test]
fn a_trial_that_stands_still_gives_packets_up_and_does_not_send_them_all_at_once() {
    let pool = pool();
    let mut port = open(config("flows=1,size=100,stamp=time")).unwrap();
    let trials = port.trials(&[]).unwrap();
    let mut queues = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE }).unwrap();
    trials.begin(Trial { number: 1, rate: 100_000, count: 20_000, size: 0 });
    assert!(queues.rx[0].rx(&mut Batch::new()) > 0);
    // As long as the whole trial: only what is caught up with in ten milliseconds is still sent.
    std::thread::sleep(std::time::Duration::from_millis(300));
    pump(&mut queues, || trials.progress().complete);
    let progress = trials.progress();
    assert!(progress.made <= 1100 && progress.made + progress.given_up == 20_000, "{progress:?}");
}
