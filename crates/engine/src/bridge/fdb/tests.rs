//! The table against a map, its limits, its ageing, and threads that share it.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn fdb(max_entries: usize, ageing: Duration) -> Fdb {
    Fdb::new(FdbConfig { max_entries, ageing })
}

fn key(n: u64) -> Key {
    Key::new((n % 7) as u16, 0x0200_0000_0000 | n)
}

fn learn(table: &Fdb, key: Key, port: usize, tick: u32) -> Learned {
    let table = table.table();
    table.learn(&table.probe(key), port, tick)
}

fn lookup(table: &Fdb, key: Key) -> Option<usize> {
    let table = table.table();
    table.lookup(&table.probe(key))
}

#[derive(Debug, Clone)]
enum Op {
    Learn(u64, usize),
    Lookup(u64),
    Static(u64, usize),
    Flush(usize, bool),
    /// Milliseconds pass.
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let (address, port) = (0u64..40, 0usize..4);
    prop_oneof![
        8 => (address.clone(), port.clone()).prop_map(|(n, port)| Op::Learn(n, port)),
        8 => address.clone().prop_map(Op::Lookup),
        1 => (address, port.clone()).prop_map(|(n, port)| Op::Static(n, port)),
        1 => (port, any::<bool>()).prop_map(|(port, statics)| Op::Flush(port, statics)),
        1 => (0u64..20_000).prop_map(Op::Wait),
    ]
}

/// What the table is to do, with a map: port, milliseconds of the last packet, static.
#[derive(Default)]
struct Model {
    entries: HashMap<u64, (usize, u64, bool)>,
    now: u64,
}

const LIMIT: usize = 24;
const PORT_LIMIT: usize = 10;
const AGEING: u64 = 10_000;

impl Model {
    fn of(&self, port: usize) -> usize {
        self.entries.values().filter(|entry| entry.0 == port).count()
    }

    fn learn(&mut self, n: u64, port: usize) -> Learned {
        let fits = self.of(port) < PORT_LIMIT;
        let is_full = self.entries.len() >= LIMIT;
        match self.entries.get_mut(&n) {
            Some(entry) if entry.0 == port => {
                entry.1 = self.now;
                Learned::Known
            }
            Some(entry) if entry.2 => Learned::Refused,
            Some(entry) if fits => {
                *entry = (port, self.now, false);
                Learned::Moved
            }
            None if fits && !is_full => {
                self.entries.insert(n, (port, self.now, false));
                Learned::New
            }
            _ => Learned::Refused,
        }
    }

    /// Removes what is surely too old; returns what may have been removed, or not.
    fn age(&mut self) -> Vec<u64> {
        // A walk takes a second, and time is counted in ticks.
        let now = self.now;
        let is_old = |seen: u64, slack: u64| now > seen + AGEING + slack;
        self.entries.retain(|_, entry| entry.2 || !is_old(entry.1, 1100));
        self.entries.iter().filter(|(_, entry)| !entry.2 && is_old(entry.1, 0)).map(|(n, _)| *n).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_table_does_what_a_map_does(ops in proptest::collection::vec(op(), 1..300)) {
        let table = fdb(LIMIT, Duration::from_millis(AGEING));
        (0..4).for_each(|port| table.set_port_limit(port, Some(PORT_LIMIT as u32)));
        let mut model = Model::default();
        let at = |now: u64| table.started + Duration::from_millis(now);
        for op in ops {
            match op {
                Op::Learn(n, port) => {
                    prop_assert_eq!(learn(&table, key(n), port, table.tick_of(at(model.now))), model.learn(n, port));
                }
                Op::Lookup(n) => {
                    prop_assert_eq!(lookup(&table, key(n)), model.entries.get(&n).map(|entry| entry.0));
                }
                Op::Static(n, port) => {
                    model.entries.remove(&n);
                    let fits = model.of(port) < PORT_LIMIT;
                    prop_assert_eq!(table.add_static(key(n), port), fits);
                    if fits {
                        model.entries.insert(n, (port, 0, true));
                    }
                }
                Op::Flush(port, statics) => {
                    let before = model.entries.len();
                    model.entries.retain(|_, entry| entry.0 != port || (entry.2 && !statics));
                    prop_assert_eq!(table.flush(port, statics), (before - model.entries.len()) as u64);
                }
                Op::Wait(ms) => {
                    model.now += ms;
                    table.tick(at(model.now));
                    for n in model.age() {
                        if lookup(&table, key(n)).is_none() {
                            model.entries.remove(&n);
                        }
                    }
                }
            }
            prop_assert_eq!(table.stats().entries, model.entries.len() as u64);
            for port in 0..4 {
                prop_assert_eq!(table.port_entries(port), model.of(port) as u64);
            }
        }
        let mut entries: Vec<_> = table.entries().iter().map(|e| (e.vlan, e.mac, e.port, e.is_static)).collect();
        let mut expected: Vec<_> =
            model.entries.iter().map(|(n, e)| (key(*n).vlan(), key(*n).mac(), e.0, e.2)).collect();
        entries.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(entries, expected);
    }
}

#[test]
fn a_hundred_thousand_addresses_are_learned_and_found_and_one_more_than_the_limit_is_refused() {
    const N: u64 = 100_000;
    let table = fdb(N as usize, Duration::from_secs(300));
    for n in 0..N {
        assert_eq!(learn(&table, key(n), (n % 5) as usize, 0), Learned::New, "{n}");
    }
    assert!((0..N).all(|n| lookup(&table, key(n)) == Some((n % 5) as usize)));
    assert_eq!(learn(&table, key(N), 1, 0), Learned::Refused);
    assert!((0..N).all(|n| lookup(&table, key(n)).is_some()), "a flood of addresses evicts none");
    let stats = table.stats();
    assert_eq!((stats.entries, stats.learned, stats.refused), (N, N, 1));
}

#[test]
fn a_table_takes_as_many_addresses_as_its_limit_allows_also_if_that_fills_half_of_it() {
    let config = FdbConfig::default();
    let table = Fdb::new(config);
    for n in 0..config.max_entries as u64 {
        assert_eq!(learn(&table, key(n), 0, 0), Learned::New, "{n}");
    }
    assert_eq!(learn(&table, key(config.max_entries as u64), 0, 0), Learned::Refused);
}

#[test]
fn addresses_that_count_up_are_spread_whatever_the_key_of_the_hash_is() {
    let third = u64::MAX / 3;
    for multiplier in [1, 3, third, (third * 2) | 1, u64::MAX / 5, (1 << 63) | 1, u64::MAX, 0xffff_0000_0000_0001] {
        for stride in [1, 0x100, 0x1_0000] {
            let mut table = fdb(20_000, Duration::ZERO);
            table.multiplier = multiplier;
            for n in 0..20_000 {
                assert_eq!(learn(&table, key(n * stride), 0, 0), Learned::New, "{multiplier:#x}, {stride}: {n}");
            }
        }
    }
}

#[test]
fn entries_age_within_a_second_of_their_time_unless_they_are_used_static_or_ageing_is_off() {
    let table = fdb(1000, Duration::from_secs(10));
    let at = |ms: u64| table.started + Duration::from_millis(ms);
    for n in 0..100 {
        learn(&table, key(n), 0, table.tick_of(at(0)));
    }
    assert!(table.add_static(key(100), 0));
    (0..=9_900).step_by(100).for_each(|ms| table.tick(at(ms)));
    assert_eq!(table.stats().entries, 101);
    learn(&table, key(7), 0, table.tick_of(at(9_900)));
    (10_000..=11_200).step_by(100).for_each(|ms| table.tick(at(ms)));
    assert_eq!((table.stats().entries, table.stats().aged), (2, 99));
    table.set_ageing(Duration::ZERO);
    table.tick(at(1_000_000));
    assert_eq!(lookup(&table, key(7)), Some(0));
    // A worker that slept for long walks the whole table at once.
    table.set_ageing(Duration::from_secs(5));
    table.tick(at(2_000_000));
    assert_eq!((lookup(&table, key(7)), lookup(&table, key(100))), (None, Some(0)));
}

#[test]
fn addresses_of_one_bucket_overflow_into_the_next_and_beyond_all_of_them_are_refused() {
    let table = fdb(16, Duration::ZERO);
    // As many buckets of four as an entry may be in.
    let learned = (0..40).filter(|n| learn(&table, key(*n), 0, 0) == Learned::New).count();
    assert_eq!(learned, 16, "the limit, although some buckets overflow");
    assert_eq!((0..40).filter(|n| lookup(&table, key(*n)).is_some()).count(), 16);
}

/// Threads learn, move, flush and age the same addresses. What a lookup returns was learned for
/// that address, and the counts are right at the end.
#[test]
fn threads_that_share_the_table_never_find_an_address_where_it_never_was() {
    let table = fdb(64, Duration::from_millis(50));
    const ROUNDS: u64 = 60_000;
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let n = (round * 7 + thread * 13) % 128;
                    // An address is behind one of two ports, which its number tells.
                    learn(table, key(n), (n % 8) as usize * 2 + (round % 2) as usize, round as u32);
                    let n = (round * 11 + thread) % 128;
                    if let Some(port) = lookup(table, key(n)) {
                        assert_eq!(port / 2, (n % 8) as usize, "{n}");
                    }
                    if round % 64 == 0 {
                        table.flush((round / 64 % 16) as usize, true);
                    }
                }
            });
        }
    });
    let entries = table.entries();
    assert_eq!(table.stats().entries, entries.len() as u64);
    for port in 0..16 {
        let of = entries.iter().filter(|entry| entry.port == port).count();
        assert_eq!(table.port_entries(port), of as u64, "{port}");
    }
    let mut keys: Vec<_> = entries.iter().map(|entry| (entry.vlan, entry.mac)).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), entries.len(), "no address is there twice");
}
