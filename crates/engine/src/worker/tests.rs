use super::*;
use crate::route::tests::{Sink, Source, setup};
use crate::route::{Route, RouteConfig};
use towpath_packet::DropReason;

/// The ends of a route.
const A: usize = 0;
const B: usize = 1;

fn config() -> WorkerConfig {
    WorkerConfig { drain: Duration::from_millis(20), ..WorkerConfig::default() }
}

#[test]
fn a_worker_ends_by_itself_when_every_route_has_ended() {
    let (pool, mut route) = setup(1000, RouteConfig::default());
    route.rx_mut().state = State::Done;
    let endings = Worker::new(vec![route], config(), StopSignal::new().unwrap()).run().unwrap();
    assert_eq!(endings, [Ending { task: 0, state: State::Done, faults: vec![] }]);
    assert_eq!(pool.stats().free, 1024, "every buffer is freed with the worker");
}

#[test]
fn a_stop_wakes_a_sleeping_worker() {
    let (_pool, route) = setup(0, RouteConfig::default());
    let stop = StopSignal::new().unwrap();
    let worker = Worker::new(vec![route], config(), stop.clone());
    let thread = std::thread::spawn(move || worker.run().unwrap());
    std::thread::sleep(Duration::from_millis(5));
    stop.stop();
    assert_eq!(thread.join().unwrap()[0].state, State::Up);
}

#[test]
fn packets_that_cannot_leave_within_the_drain_are_dropped_as_stopped_and_freed() {
    let (pool, mut route) = setup(64, RouteConfig { egress_wait: Duration::from_secs(60), ..Default::default() });
    route.tx_mut().room = 10;
    route.turn(false);
    let counters = route.counters().clone();
    let stop = StopSignal::new().unwrap();
    stop.stop();
    Worker::new(vec![route], config(), stop).run().unwrap();
    assert_eq!(counters.snapshot().dropped(DropReason::Stopped), 54);
    assert_eq!(pool.stats().free, 1024);
}

#[test]
fn a_core_that_does_not_exist_is_an_error_before_anything_moves() {
    let (_pool, route) = setup(1, RouteConfig::default());
    let bad = WorkerConfig { core: Some(99_999), ..config() };
    assert!(Worker::new(vec![route], bad, StopSignal::new().unwrap()).run().is_err());
}

/// The end of a route whose packets are all sent, after `change`.
fn ending(change: impl FnOnce(&mut Route<Source, Sink>)) -> Ending {
    let (_pool, mut route) = setup(10, RouteConfig::default());
    route.rx_mut().state = State::Done;
    change(&mut route);
    Worker::new(vec![route], config(), StopSignal::new().unwrap()).run().unwrap().remove(0)
}

#[test]
fn an_egress_that_fails_when_it_is_closed_is_how_the_route_ends_also_if_packets_are_stuck() {
    let gone = State::Gone("no space left".into());
    for room in [usize::MAX, 3] {
        let end = ending(|route| {
            (route.tx_mut().failure, route.tx_mut().room) = (Some("no space left"), room);
        });
        assert_eq!((end.state, end.faults), (gone.clone(), vec![(B, gone.clone())]), "{room}");
    }
    let end =
        ending(|route| (route.rx_mut().state, route.tx_mut().failure) = (State::Gone("deleted".into()), Some("")));
    let deleted = State::Gone("deleted".into());
    assert_eq!((end.state, end.faults), (deleted.clone(), vec![(A, deleted)]), "the first failure is kept");
}

#[test]
fn ports_that_are_down_at_the_end_are_faults_and_ports_that_work_or_are_done_are_none() {
    let down = || State::Down("no carrier".into());
    assert_eq!(ending(|_| ()).faults, []);
    assert_eq!(ending(|route| route.tx_mut().state = down()).faults, [(B, down())]);
    let stop = StopSignal::new().unwrap();
    stop.stop();
    let (_pool, mut route) = setup(0, RouteConfig::default());
    (route.rx_mut().state, route.tx_mut().state) = (down(), State::Gone("its peer ended first".into()));
    let ends = Worker::new(vec![route], config(), stop).run().unwrap();
    assert_eq!(ends, [Ending { task: 0, state: State::Up, faults: vec![(A, down())] }]);
}
