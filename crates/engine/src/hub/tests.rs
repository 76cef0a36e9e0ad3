//! Hubs with egresses that refuse, ports that end, come and go.

use crate::bridge::BridgePort;
use crate::bridge::tests::{Rig, frame, mac};
use crate::route::RouteConfig;
use crate::samples::QueueState;
use crate::worker::{StopSignal, Task, Worker, WorkerConfig};
use std::time::Duration;
use towpath_packet::port::State;
use towpath_packet::{DropReason, Offloads};

fn patient() -> RouteConfig {
    RouteConfig { egress_wait: Duration::from_secs(3600), ..RouteConfig::default() }
}

fn rig(ports: usize, config: RouteConfig) -> Rig {
    let mut rig = Rig::new(false, &vec![BridgePort::default(); ports], Offloads::ALL, config);
    for port in 1..ports {
        rig.receives(port, &frame(mac(99), mac(port as u8), 0), None);
    }
    rig.turn();
    rig
}

#[test]
fn an_egress_that_refuses_delays_no_other_one_and_its_backlog_is_bounded() {
    let mut rig = rig(3, patient());
    rig.hub.port_mut(1).unwrap().tx_mut().room = 0;
    for n in 0..800 {
        rig.receives(0, &frame(mac(1), mac(50), n), None);
        rig.receives(0, &frame(mac(2), mac(50), n), None);
    }
    // A hub with packets that wait is never idle.
    for _ in 0..200 {
        rig.hub.turn(false);
    }
    assert_eq!(rig.sent(2).len(), 800);
    let (held, dropped) = (rig.hub.port_mut(1).unwrap().in_port(), rig.dropped(1, DropReason::EgressFull));
    assert_eq!(held, 64 + 512);
    assert_eq!(dropped, 800 - held as u64);
    rig.balances();
    rig.hub.port_mut(1).unwrap().tx_mut().room = usize::MAX;
    let sent = rig.turn().swap_remove(1);
    assert_eq!(sent.len(), held);
    assert!(sent.is_sorted(), "what waited leaves in order");
    rig.balances();
}

#[test]
fn what_waits_is_dropped_by_name_after_the_wait() {
    let mut rig = rig(3, RouteConfig { egress_wait: Duration::ZERO, ..RouteConfig::default() });
    rig.hub.port_mut(1).unwrap().tx_mut().room = 10;
    for n in 0..50 {
        rig.receives(0, &frame(mac(1), mac(50), n), None);
    }
    rig.turn();
    assert_eq!(rig.dropped(1, DropReason::EgressFull), 40);
    rig.hub.port_mut(1).unwrap().tx_mut().state = State::Down("no carrier".into());
    rig.receives(0, &frame(mac(1), mac(50), 0), None);
    rig.turn();
    assert_eq!(rig.dropped(1, DropReason::LinkDown), 1);
    rig.balances();
}

#[test]
fn a_port_that_is_gone_leaves_by_itself_is_reported_and_the_others_go_on() {
    let mut rig = rig(3, RouteConfig::default());
    rig.hub.port_mut(1).unwrap().rx_mut().state = State::Gone("deleted".into());
    rig.hub.turn(false);
    let control = rig.hub.control();
    assert_eq!(control.lost(), [(1, State::Gone("deleted".into()))]);
    rig.receives(0, &frame(mac(1), mac(50), 7), None);
    rig.receives(0, &frame(mac(2), mac(50), 8), None);
    let sent = rig.turn();
    assert_eq!((sent[1].len(), sent[2].len()), (0, 2), "its addresses are forgotten");
    assert!(!rig.hub.is_exhausted());
    rig.balances();
    assert_eq!(rig.hub.end(0).faults, [(1, State::Gone("deleted".into()))]);
}

#[test]
fn a_link_that_goes_down_flushes_the_addresses_behind_it_once() {
    let mut rig = rig(3, RouteConfig::default());
    assert_eq!(rig.fdb.port_entries(1), 1);
    rig.hub.port_mut(1).unwrap().rx_mut().state = State::Down("no carrier".into());
    rig.hub.turn(false);
    assert_eq!((rig.fdb.port_entries(1), rig.fdb.port_entries(2)), (0, 1));
    rig.receives(1, &frame(mac(99), mac(1), 0), None);
    rig.turn();
    assert_eq!(rig.fdb.port_entries(1), 1, "only the change flushes");
}

#[test]
fn a_hub_ends_when_no_port_can_receive_and_waits_for_ports_when_it_has_none() {
    let mut rig = rig(2, RouteConfig::default());
    for port in 0..2 {
        rig.hub.port_mut(port).unwrap().rx_mut().state = State::Done;
    }
    rig.hub.turn(false);
    assert!(rig.hub.is_exhausted() && rig.hub.control().lost().is_empty());
    assert!(!Rig::plain(0).hub.is_exhausted());
}

#[test]
fn ports_come_and_go_while_a_worker_runs_and_every_buffer_is_freed() {
    let Rig { hub, pool, cache, .. } = rig(3, patient());
    let rig = Rig::plain(0);
    let control = hub.control();
    let stop = StopSignal::new().unwrap();
    let worker = Worker::new(vec![hub], WorkerConfig::default(), stop.clone());
    let thread = std::thread::spawn(move || worker.run().unwrap());
    for number in 3..20 {
        control.attach(number, rig.port(&BridgePort::default(), Offloads::ALL, patient())).recv().unwrap();
    }
    for number in (3..20).chain(0..3) {
        assert_eq!(control.detach(number, Duration::from_secs(60)).recv().unwrap().failure, None);
    }
    // There is none of that number.
    assert_eq!(control.detach(7, Duration::from_secs(60)).recv().unwrap().failure, None);
    stop.stop();
    assert_eq!(thread.join().unwrap()[0].faults, []);
    assert!(control.detach(0, Duration::ZERO).recv().is_err(), "the hub has ended");
    drop(cache);
    assert_eq!(pool.stats().free, 2048);
}

#[test]
fn a_port_that_is_detached_sends_what_it_holds_or_drops_it_as_stopped_when_its_time_is_over() {
    for (room, drain) in [(usize::MAX, Duration::from_secs(60)), (0, Duration::ZERO)] {
        let mut rig = rig(3, patient());
        rig.hub.port_mut(1).unwrap().tx_mut().room = 0;
        for n in 0..10 {
            rig.receives(0, &frame(mac(1), mac(50), n), None);
        }
        for _ in 0..3 {
            rig.hub.turn(false);
        }
        assert_eq!(rig.hub.port_mut(1).unwrap().in_port(), 10);
        let counters = rig.hub.port_mut(1).unwrap().counters().clone();
        rig.hub.port_mut(1).unwrap().tx_mut().room = room;
        let left = rig.hub.control().detach(1, drain);
        rig.hub.turn(false);
        left.try_recv().unwrap();
        assert!(rig.hub.port_mut(1).is_none());
        let expected = if room == 0 { 10 } else { 0 };
        assert_eq!(counters.snapshot().dropped(DropReason::Stopped), expected);
    }
}

#[test]
fn a_sample_ends_when_the_egresses_of_its_burst_are_empty_whatever_others_hold() {
    for (stuck, timed) in [(2, 128), (1, 0)] {
        let mut rig = rig(3, patient());
        rig.hub.port_mut(stuck).unwrap().tx_mut().room = 0;
        rig.receives(0, &frame(mac(2), mac(50), 0), None);
        rig.hub.turn(false);
        for n in 0..128 {
            rig.receives(0, &frame(mac(1), mac(50), n), None);
            rig.hub.turn(false);
        }
        let samples = rig.hub.port_mut(0).unwrap().samples().clone();
        let packets = || samples.latency().buckets.iter().sum::<u64>();
        assert_eq!((samples.packets(), samples.bursts(), packets()), (129, 129, timed));
        rig.hub.port_mut(stuck).unwrap().tx_mut().room = usize::MAX;
        rig.hub.turn(false);
        assert!(packets() >= 64, "what waited has left");
    }
}

#[test]
fn the_links_of_ports_are_seen_and_one_that_left_is_gone() {
    let mut rig = rig(4, patient());
    let samples: Vec<_> = (0..4).map(|port| rig.hub.port_mut(port).unwrap().samples().clone()).collect();
    rig.hub.port_mut(1).unwrap().rx_mut().state = State::Down("no carrier".into());
    rig.hub.port_mut(2).unwrap().rx_mut().state = State::Gone("deleted".into());
    let left = rig.hub.control().detach(3, Duration::ZERO);
    rig.hub.turn(false);
    left.try_recv().unwrap();
    let seen: Vec<_> = samples.iter().map(|samples| samples.queue_states().0).collect();
    assert_eq!(seen, [QueueState::Up, QueueState::Down, QueueState::Gone, QueueState::Gone]);
    rig.hub.port_mut(1).unwrap().rx_mut().state = State::Up;
    rig.hub.turn(false);
    assert_eq!(samples[1].queue_states(), (QueueState::Up, QueueState::Up));
}
