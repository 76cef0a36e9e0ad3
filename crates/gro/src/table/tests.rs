use super::*;

fn open(table: &mut Table<u64>, hash: u64, now: u64) {
    let (shape, chain) = (Shape::ANY, table.chain(hash));
    table.set_now(now);
    let opening = Opening { vlan: 0, shape, layout: 0, size: 1 };
    assert_eq!(table.open(hash, chain, hash, opening), None);
}

fn held(table: &mut Table<u64>, hash: u64) -> Option<u64> {
    let at = table.find(hash).ok()?;
    table.flow(at)?.segment
}

#[test]
fn a_flow_with_a_handle_is_two_cache_lines() {
    assert_eq!(size_of::<Flow<Box<u8>>>(), 128);
}

#[test]
fn flows_of_one_chain_are_distinguished_whichever_is_closed() {
    let hashes = [1, 2, 3, 4].map(|n| n * HEADS as u64);
    for ends in hashes {
        let mut table = Table::new(8);
        for hash in hashes {
            assert_eq!(held(&mut table, hash), None);
            open(&mut table, hash, 0);
        }
        let at = table.find(ends).unwrap_or(0);
        assert_eq!(table.close(at).map(|(segment, _)| segment), Some(ends));
        for hash in hashes {
            assert_eq!(held(&mut table, hash), (hash != ends).then_some(hash));
        }
        open(&mut table, ends, 0);
        assert!(hashes.iter().all(|hash| held(&mut table, *hash) == Some(*hash)));
    }
}

#[test]
fn flows_are_opened_again_in_any_order() {
    let mut table = Table::new(8);
    (1..=3).for_each(|hash| open(&mut table, hash, 0));
    while table.close_all().is_some() {}
    for hash in [3, 1, 2] {
        assert_eq!(held(&mut table, hash), None);
        let at = table.heads[hash as usize];
        assert_eq!(table.reopen(at, hash), None);
        assert_eq!(held(&mut table, hash), Some(hash));
    }
    assert!((0..3).all(|at| table.flows[usize::from(at)].trail.is_of(at)));
    let all: Vec<u64> = core::iter::from_fn(|| table.close_all().map(|(hash, _)| hash)).collect();
    assert_eq!(all, [3, 1, 2], "in the order of arrival");
}

#[test]
fn a_flow_is_not_opened_again_beside_another_of_its_chain() {
    let mut table = Table::new(8);
    [2, 1].into_iter().for_each(|hash| open(&mut table, hash, 0));
    while table.close_all().is_some() {}
    let at = table.heads[1];
    open(&mut table, 1 + HEADS as u64, 0);
    assert_eq!((table.reopen(at, 1), table.held()), (Some(1), 1));
}

#[test]
fn any_sequence_of_openings_and_closings_finds_held_flows_and_no_others() {
    let mut table = Table::new(8);
    let mut model: Vec<u64> = vec![];
    let mut random = 1_u64;
    for step in 0..100_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Few chains, and hashes that come back.
        let hash = (random >> 60) * HEADS as u64 + ((random >> 40) & 1);
        match (random >> 50) % 64 {
            0 => {
                let all: Vec<u64> = core::iter::from_fn(|| table.close_all().map(|(hash, _)| hash)).collect();
                assert_eq!(all, model);
                model.clear();
            }
            1..20 => {
                if let Ok(at) = table.find(hash) {
                    table.close(at);
                }
                model.retain(|held| *held != hash);
            }
            _ if !model.contains(&hash) => {
                if let Some(victim) = table.victim() {
                    assert_eq!(table.close(victim).map(|(hash, _)| hash), Some(model.remove(0)));
                }
                open(&mut table, hash, step);
                model.push(hash);
            }
            _ => {}
        }
        assert_eq!(table.held(), model.len());
        for hash in (0..16).flat_map(|high| [high * HEADS as u64, high * HEADS as u64 + 1]) {
            assert_eq!(held(&mut table, hash), model.contains(&hash).then_some(hash));
        }
    }
}
