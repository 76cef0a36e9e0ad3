use super::*;
use crate::route::RouteConfig;
use crate::route::tests::setup;
use towpath_packet::DropReason;

fn config() -> WorkerConfig {
    WorkerConfig { drain: Duration::from_millis(20), ..WorkerConfig::default() }
}

#[test]
fn a_worker_ends_by_itself_when_every_route_has_ended() {
    let (pool, mut route) = setup(1000, RouteConfig::default());
    route.rx_mut().state = State::Done;
    let endings = Worker::new(vec![route], config(), StopSignal::new().unwrap()).run().unwrap();
    assert_eq!(endings, [Ending { route: 0, state: State::Done }]);
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
