//! The end of a channel (M15, M16).

use super::host::Host;
use towpath_model::cpsw::{Config, Rule, Soc};

const ON: u32 = 1 << 31;
const DOWN: u32 = 1 << 30;

#[test]
fn m15_what_was_fetched_is_finished_and_what_was_not_stays_and_then_the_marker_shows() {
    for soc in [Soc::Am64x, Soc::J784s4] {
        for fetched in 0..4 {
            let mut host = Host::with(Config { soc, ports: 1, lag: false, prefetch: 16, ..Config::default() }, false);
            (0..4).for_each(|index| host.send(index));
            // The first action that is possible is always the fetch.
            (0..fetched).for_each(|_| assert!(host.model.step(0)));
            host.control(ON | DOWN, ON);
            host.model.settle();
            assert!(!host.is_enabled());
            assert_eq!(host.plug.drain().len(), fetched);
            assert_eq!(host.occupancy(host.submit()), 4 - fetched as u32);
            let done = host.done();
            if host.pktdma() {
                assert_eq!(done, 1 << 31 | fetched as u32);
            } else {
                assert_eq!(done, fetched as u32 + 1);
                assert_eq!(host.completion(fetched) & 0xf, 1, "the record comes last");
            }
            // The rest is the host's again.
            host.ring(host.submit(), (fetched as u32).wrapping_sub(4) & 0xff);
            if fetched > 0 {
                host.ring_back((fetched as u32).wrapping_neg() & 0xff);
            }
            if host.pktdma() {
                host.ring_back(1 << 31);
            } else {
                host.ring_back(0xff);
            }
            host.assert_clean();
            assert_eq!((host.done(), host.model.owned_descriptors()), (0, 0));
        }
    }
}

#[test]
fn m15_doorbells_during_teardown_are_taken_and_nothing_is_fetched() {
    let mut host = Host::new(Soc::Am64x, false);
    host.control(ON | DOWN, ON);
    host.send(0);
    host.model.settle();
    assert_eq!((host.occupancy(host.submit()), host.plug.drain().len()), (1, 0));
    host.assert_clean();
}

#[test]
fn m16_a_channel_is_not_switched_off_with_packets_in_flight() {
    for soc in [Soc::Am64x, Soc::J784s4] {
        let mut host = Host::new(soc, false);
        host.send(0);
        assert!(host.model.step(0));
        host.control(0, 0);
        host.assert_broken(Rule::DisabledInFlight);
    }
}

#[test]
fn m17_a_stalled_port_does_not_keep_completions_from_being_counted() {
    let mut host = Host::new(Soc::Am64x, false);
    host.send(0);
    host.model.settle();
    host.model.stall(1, true);
    (1..4).for_each(|index| host.send(index));
    host.model.settle();
    assert!(host.done() >= 1);
    host.ring_back(0xff);
    host.assert_clean();
}
