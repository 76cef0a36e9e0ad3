use super::*;

const MAC: Mac = [2, 0, 0, 0, 0, 1];
const OTHER: Mac = [2, 0, 0, 0, 0, 2];

fn key() -> Key {
    Key { port: 0, address: "fd00::2".parse().unwrap() }
}

fn state(neighbours: &Neighbours) -> Option<(State, Option<Mac>)> {
    neighbours.list().first().map(|known| (known.state, known.mac))
}

fn heard(mac: Option<Mac>, solicited: bool, overrides: bool) -> Heard {
    Heard { key: key(), mac, solicited, overrides, creates: false, is_arp: false }
}

/// A set with the neighbour in a state, at a time.
fn known(solicited: bool, now: Instant) -> Neighbours {
    let neighbours = Neighbours::new(NeighbourConfig::default()).unwrap();
    let mut out = Outcome::default();
    assert_eq!(neighbours.lookup(key(), &mut None, now, &mut out), Found::Waits);
    assert_eq!(out.solicitations, [Solicitation { key: key(), to: None }]);
    neighbours.hear(&heard(Some(MAC), solicited, true), now, &mut out);
    neighbours
}

/// RFC 4861, appendix C: the rows about advertisements.
#[test]
fn advertisements_change_states_as_the_table_of_rfc_4861_says() {
    let now = Instant::now();
    let after = |reachable: bool, message: Heard| {
        let neighbours = known(reachable, now);
        neighbours.hear(&message, now, &mut Outcome::default());
        state(&neighbours).unwrap()
    };
    assert_eq!(state(&known(true, now)), Some((State::Reachable, Some(MAC))), "incomplete, solicited");
    assert_eq!(state(&known(false, now)), Some((State::Stale, Some(MAC))), "incomplete, not solicited");
    assert_eq!(after(true, heard(Some(OTHER), true, false)), (State::Stale, Some(MAC)), "another one, no override");
    assert_eq!(after(false, heard(Some(OTHER), true, false)), (State::Stale, Some(MAC)));
    assert_eq!(after(false, heard(Some(MAC), true, false)), (State::Reachable, Some(MAC)));
    assert_eq!(after(false, heard(Some(OTHER), true, true)), (State::Reachable, Some(OTHER)));
    assert_eq!(after(true, heard(Some(MAC), false, true)), (State::Reachable, Some(MAC)), "nothing new");
    assert_eq!(after(true, heard(Some(OTHER), false, true)), (State::Stale, Some(OTHER)));
    assert_eq!(after(false, heard(None, true, false)), (State::Reachable, Some(MAC)), "without an address");
}

#[test]
fn a_neighbour_that_is_used_is_probed_and_one_without_an_answer_fails() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let neighbours = known(true, begin);
    let mut out = Outcome::default();
    neighbours.tick(at(31), &mut out);
    assert_eq!(state(&neighbours), Some((State::Stale, Some(MAC))));
    assert!(matches!(neighbours.lookup(key(), &mut None, at(31), &mut out), Found::Mac(MAC, _)));
    assert_eq!(state(&neighbours), Some((State::Delay, Some(MAC))));
    for second in 36..39 {
        out = Outcome::default();
        neighbours.tick(at(second), &mut out);
        assert_eq!(out.solicitations, [Solicitation { key: key(), to: Some(MAC) }], "{second}");
    }
    let generation = neighbours.generation();
    neighbours.tick(at(39), &mut out);
    assert_eq!(state(&neighbours), Some((State::Failed, None)));
    assert!(neighbours.generation() > generation, "workers forget it");
    assert_eq!(neighbours.lookup(key(), &mut None, at(39), &mut out), Found::Failed);
    assert_eq!(neighbours.lookup(key(), &mut None, at(41), &mut out), Found::Waits, "asked again");
}

#[test]
fn strangers_make_no_entries_and_the_limit_holds() {
    let now = Instant::now();
    let config = NeighbourConfig { limit: 3, ..NeighbourConfig::default() };
    let neighbours = Neighbours::new(config).unwrap();
    let mut out = Outcome::default();
    neighbours.hear(&heard(Some(MAC), true, true), now, &mut out);
    assert!(neighbours.list().is_empty(), "an answer that was not asked for");
    let nth = |n: u8| Key { port: 0, address: [10, 0, 0, n].into() };
    for n in 0..3 {
        assert_eq!(neighbours.lookup(nth(n), &mut None, now, &mut out), Found::Waits);
    }
    assert_eq!(neighbours.lookup(nth(9), &mut None, now, &mut out), Found::Full);
}
