//! Teardown of a channel (M15, M16, M17).

use super::host::Host;
use towpath_model::cpsw::{Config, Rule, Soc};

const ON: u32 = 1 << 31;
const DOWN: u32 = 1 << 30;

#[test]
fn m15_fetched_packets_complete_and_others_stay_in_the_ring_before_the_marker_shows() {
    for soc in [Soc::Am64x, Soc::J784s4] {
        for fetched in 0..4 {
            let mut host = Host::with(Config::default().soc(soc).ports(1).lag(false).prefetch(16), false);
            (0..4).for_each(|index| host.send(index));
            // The first possible action is always the fetch.
            (0..fetched).for_each(|_| assert!(host.model.step(0)));
            host.control(ON | DOWN, ON);
            host.model.settle();
            assert!(!host.is_enabled());
            assert_eq!(host.plug.drain().len(), fetched);
            assert_eq!(host.occupancy(host.submit()), 4 - fetched as u32);
            let done = host.completions();
            if host.pktdma() {
                assert_eq!(done, 1 << 31 | fetched as u32);
            } else {
                assert_eq!(done, fetched as u32 + 1);
                assert_eq!(host.completion(fetched) & 0xf, 1, "the record comes last");
            }
            // The host owns the rest again.
            host.doorbell(host.submit(), (fetched as u32).wrapping_sub(4) & 0xff);
            if fetched > 0 {
                host.reverse_doorbell((fetched as u32).wrapping_neg() & 0xff);
            }
            if host.pktdma() {
                host.reverse_doorbell(1 << 31);
            } else {
                host.reverse_doorbell(0xff);
            }
            host.assert_clean();
            assert_eq!((host.completions(), host.model.owned_descriptors()), (0, 0));
        }
    }
}

#[test]
fn m15_doorbells_during_teardown_are_accepted_and_nothing_is_fetched() {
    let mut host = Host::new(Soc::Am64x, false);
    host.control(ON | DOWN, ON);
    host.send(0);
    host.model.settle();
    assert_eq!((host.occupancy(host.submit()), host.plug.drain().len()), (1, 0));
    host.assert_clean();
}

#[test]
fn m16_disabling_a_channel_with_packets_in_flight_is_reported() {
    for soc in [Soc::Am64x, Soc::J784s4] {
        let mut host = Host::new(soc, false);
        host.send(0);
        assert!(host.model.step(0));
        host.control(0, 0);
        host.assert_violated(Rule::DisabledInFlight);
    }
}

#[test]
fn m17_a_stalled_port_does_not_delay_completions() {
    let mut host = Host::new(Soc::Am64x, false);
    host.send(0);
    host.model.settle();
    host.model.stall(1, true);
    (1..4).for_each(|index| host.send(index));
    host.model.settle();
    assert!(host.completions() >= 1);
    host.reverse_doorbell(0xff);
    host.assert_clean();
}
