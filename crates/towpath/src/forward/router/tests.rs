//! Routers whose ports come and go.

use super::*;
use crate::{Opener, Role, Summary};
use towpath_engine::router::{Action, Hop};
use towpath_packet::DropReason;

/// A port with an address.
fn port(name: &str, uri: &str, address: &str) -> RouterPorts {
    let mut interface = RouterInterface::named(name);
    interface.addresses = vec![(address.parse().unwrap(), 24)];
    RouterPorts::new(interface, Opener::new().open(&uri.parse().unwrap(), Role::Both).unwrap())
}

/// A router that gets packets to `to` by its first port; behind its second one is 10.1.0.2.
fn running(to: &str) -> Running {
    let neighbours = vec![(1, [10, 1, 0, 2].into(), [2, 0, 0, 0, 0, 2])];
    let router = Router { endless: true, neighbours, ..Router::default() };
    let feed = format!("gen:rate=20000,size=100,dst-mac=02:74:70:00:00:00,dst-ip={to}");
    router.start(vec![port("in", &feed, "10.0.0.1"), port("out", "null:", "10.1.0.1")]).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sent(running: &Running, port: usize) -> u64 {
    running.meter().read().ports[port].tx.packets
}

fn drops(summary: &Summary, reason: DropReason) -> u64 {
    summary.reading.ports.iter().map(|port| port.routes.dropped(reason)).sum()
}

#[test]
fn ports_come_and_go_with_their_routes_and_the_others_lose_nothing() {
    let running = running("10.1.0.2");
    let router = running.router().unwrap().clone();
    let wan = || port("wan", "null:", "10.9.0.1");
    let to = |host: &str| router.resolve(host.parse().unwrap(), 0).and_then(|(_, hop)| Some(hop?.port));
    for _ in 0..3 {
        let before = sent(&running, 1);
        let number = router.attach(wan()).unwrap();
        assert_eq!((to("10.9.0.7"), to("10.1.0.7")), (Some(number), Some(1)));
        let hop = |port| Hop { port, gateway: None, weight: 1 };
        let route = |third: u8, hops: Vec<Hop>| RouterRoute {
            prefix: [20, 0, third, 0].into(),
            len: 24,
            action: Action::Forward,
            hops,
            mtu: None,
        };
        router.set_routes(vec![route(0, vec![hop(number)]), route(1, vec![hop(number), hop(1)])]).unwrap();
        assert_eq!(to("20.0.0.1"), Some(number));
        router.detach("wan").unwrap();
        // A route by another port as well stays by that one.
        assert_eq!((to("10.9.0.7"), to("20.0.0.1"), to("20.0.1.1")), (None, None, Some(1)));
        assert_eq!(router.configured_routes().len(), 1);
        until("packets go on", || sent(&running, 1) > before + 100);
    }
    assert_eq!(router.ports().iter().map(|port| port.interface.name.as_str()).collect::<Vec<_>>(), ["in", "out"]);
    let summary = running.stop();
    let balance = summary.reading.balance();
    assert_eq!((balance.in_flight(), balance.dropped() - drops(&summary, DropReason::Stopped)), (0, 0), "{balance:?}");
    assert!(router.attach(wan()).unwrap_err().to_string().contains("the router has ended"));
}

#[test]
fn what_waits_for_a_neighbour_at_a_port_that_is_detached_is_dropped_by_name() {
    let running = running("10.9.0.2");
    let router = running.router().unwrap().clone();
    router.attach(port("wan", "null:", "10.9.0.1")).unwrap();
    let of_wan = || router.neighbours().iter().filter(|known| known.key.port == 2).count();
    until("a packet waits", || of_wan() == 1);
    router.detach("wan").unwrap();
    until("the neighbour is forgotten", || of_wan() == 0);
    let summary = running.stop();
    let most = NeighbourConfig::default().queue as u64;
    assert!((1..=most).contains(&drops(&summary, DropReason::PortGone)), "{:?}", summary.reading);
    assert_eq!((summary.reading.balance().in_flight(), summary.buffers_away), (0, 0));
}

#[test]
fn a_port_that_does_not_fit_changes_nothing() {
    let running = running("10.1.0.2");
    let router = running.router().unwrap();
    let before = (router.routes(), router.ports());
    let control = || Opener::new().open(&"null:".parse().unwrap(), Role::Both).unwrap();
    for (ports, part) in [
        (port("out", "null:", "10.9.0.1"), "another port of the router"),
        (port("wan", "null:", "224.0.0.1"), "must be of a host"),
        (port("wan", "null:", "10.9.0.1").with_control(control()), "or none has"),
    ] {
        let error = router.attach(ports).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = router.detach("wan").unwrap_err().to_string();
    assert!(error.contains("must be a port of the router: in, out"), "{error}");
    assert_eq!((router.routes(), router.ports()), before);
}
