use super::depot::{Depot, Mag};
use super::recent::RECENT;
use super::*;
use crate::{Batch, Packet};
use proptest::prelude::*;

fn pool(capacity: usize) -> Pool {
    Pool::new(PoolConfig::default().capacity(capacity).chunk(256).headroom(64).backing(Backing::Anonymous)).unwrap()
}

#[test]
fn a_new_packet_is_empty_with_the_pools_headroom() {
    let mut cache = pool(8).cache(Direction::Rx).unwrap();
    let p = cache.alloc().unwrap();
    assert_eq!((p.len(), p.headroom(), p.tailroom(), p.frags()), (0, 64, 192, 0));
    assert_eq!(p.truesize(), 256 + 64);
}

#[test]
fn every_chunk_can_be_out_at_once_and_none_twice() {
    for capacity in [1, 2, 15, 64, 1000, 5000] {
        let pool = pool(capacity);
        let mut cache = pool.cache(Direction::Rx).unwrap();
        let mut out = Vec::new();
        while let Some(mut p) = cache.alloc() {
            p.push_back(8).unwrap().copy_from_slice(&(out.len() as u64).to_le_bytes());
            out.push(p);
        }
        assert_eq!(out.len(), capacity);
        for (i, p) in out.iter().enumerate() {
            assert_eq!(p.linear(), (i as u64).to_le_bytes(), "two packets shared a chunk");
        }
        assert_eq!(pool.stats().free, 0);
        assert_eq!(pool.stats().shortages, 1);
        out.into_iter().for_each(|p| cache.free(p));
        drop(cache);
        assert_eq!(pool.stats().free, capacity);
    }
}

#[test]
fn magazines_of_one_chunk_go_to_another_cache_one_at_a_time() {
    let config = PoolConfig::default().capacity(1000).chunk(256).magazine(1).backing(Backing::Anonymous);
    let pool = Pool::new(config).unwrap();
    let (mut a, mut b) = (pool.cache(Direction::Rx).unwrap(), pool.cache(Direction::Rx).unwrap());
    let packets: Vec<Packet> = std::iter::from_fn(|| a.alloc()).collect();
    assert_eq!(packets.len(), 1000);
    for (n, packet) in packets.into_iter().enumerate() {
        a.free(packet);
        // Two magazines stay with the cache that freed.
        assert_eq!(pool.stats().free, (n + 1).saturating_sub(2));
    }
    let packets: Vec<Packet> = std::iter::from_fn(|| b.alloc()).collect();
    assert_eq!(packets.len(), 998);
    drop((packets, a, b));
    assert_eq!(pool.stats().free, 1000);
}

#[test]
fn chunks_that_one_cache_frees_are_the_next_that_another_on_its_core_allocates() {
    let turns = || {
        towpath_sys::affinity::pin(towpath_sys::affinity::allowed_cores()[0]).unwrap();
        let pool = pool(4096);
        let (mut from, mut to) = (pool.cache(Direction::Tx).unwrap(), pool.cache(Direction::Tx).unwrap());
        let mut used = std::collections::HashSet::new();
        for turn in 0..100 {
            let mut batch: Batch = Batch::new();
            assert_eq!(from.alloc_bulk(&mut batch, MAGAZINE), MAGAZINE);
            if turn >= 50 {
                used.extend(batch.iter().map(|packet| packet.as_meta() as *const _ as usize));
            }
            to.free_bulk(&mut batch);
        }
        assert!(used.len() <= 2 * MAGAZINE, "{} chunks take turns, too many for a core's cache", used.len());
    };
    std::thread::spawn(turns).join().unwrap();
}

/// The magazines of a depot, each with one chunk that is its number.
fn depot(magazines: usize) -> (Depot, Vec<Mag>) {
    let depot = Depot::new(magazines as u32, 1);
    let mags = (1..=magazines).map(|number| {
        let mut mag = depot.take_empty().unwrap();
        let magazine = depot.open(&mut mag);
        (magazine.len, magazine.slots[0]) = (1, std::ptr::without_provenance_mut(number));
        mag
    });
    let mags = mags.collect();
    (depot, mags)
}

fn taken(depot: &Depot, core: usize) -> Option<usize> {
    depot.take_full(core, 0).map(|mut mag| depot.open(&mut mag).slots[0].addr())
}

#[test]
fn a_core_gets_back_the_magazine_that_it_filled_last() {
    let (depot, mags) = depot(100);
    mags.into_iter().for_each(|mag| depot.put_full(3, mag));
    assert_eq!([taken(&depot, 3), taken(&depot, 3), taken(&depot, 3)], [Some(100), Some(99), Some(98)]);
}

#[test]
fn a_core_gets_magazines_that_another_one_has_not_filled_lately() {
    let (depot, mags) = depot(100);
    for (number, mag) in (1..=100).zip(mags) {
        depot.put_full(3, mag);
        if number > 64 {
            let taken = taken(&depot, 4).unwrap();
            assert!(number - taken >= RECENT, "{taken} is taken when {number} has been filled");
        }
    }
    // If there is nothing else, the oldest.
    let rest: Vec<usize> = std::iter::from_fn(|| taken(&depot, 4)).collect();
    assert_eq!(rest[rest.len() - RECENT..], Vec::from_iter(101 - RECENT..=100));
}

proptest! {
    #[test]
    fn a_depot_has_each_magazine_that_was_put_and_not_taken_once(
        count in 1..80usize,
        steps in prop::collection::vec((any::<bool>(), 0..200usize), 1..400),
    ) {
        let (depot, mut held) = depot(count);
        let mut inside = 0;
        for (put, core) in steps {
            if put && let Some(mag) = held.pop() {
                depot.put_full(core, mag);
                inside += 1;
            } else if !put {
                let mag = depot.take_full(core, 0);
                prop_assert_eq!(mag.is_some(), inside > 0);
                inside -= usize::from(mag.is_some());
                held.extend(mag);
            }
            prop_assert_eq!(depot.chunks(), inside);
        }
        held.extend(std::iter::from_fn(|| depot.take_full(0, 0)));
        let mut numbers: Vec<usize> = held.iter_mut().map(|mag| depot.open(mag).slots[0].addr()).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, Vec::from_iter(1..=count));
    }
}

#[test]
fn packets_dropped_without_a_cache_return_to_the_pool_and_are_allocated_again() {
    let pool = pool(200);
    let mut cache = pool.cache(Direction::Rx).unwrap();
    for _ in 0..5 {
        let all: Vec<Packet> = std::iter::from_fn(|| cache.alloc()).collect();
        assert_eq!(all.len(), 200);
        drop(all);
        assert_eq!(pool.stats().free, 200);
    }
}

#[test]
fn packets_freed_through_a_cache_of_another_pool_go_to_their_own() {
    let (a, b) = (pool(100), pool(100));
    let (mut ca, mut cb) = (a.cache(Direction::Rx).unwrap(), b.cache(Direction::Rx).unwrap());
    let mut batch: Batch = Batch::new();
    ca.alloc_bulk(&mut batch, 20);
    cb.alloc_bulk(&mut batch, 20);
    ca.alloc_bulk(&mut batch, 20);
    cb.free_bulk(&mut batch);
    drop((ca, cb));
    assert_eq!((a.stats().free, b.stats().free), (100, 100));
}

#[test]
fn a_pool_outlives_its_handles_until_the_last_buffer_is_free() {
    let pool = pool(64);
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let mut kept: Vec<Packet> = (0..40).map(|_| Packet::copy_from(&mut cache, b"still here").unwrap()).collect();
    drop((pool, cache));
    kept.truncate(20);
    let other = std::thread::spawn(move || {
        kept.iter().for_each(|p| assert_eq!(p.linear(), b"still here"));
        drop(kept);
    });
    other.join().unwrap();
}

#[test]
fn caches_on_many_threads_lose_nothing() {
    let pool = pool(4096);
    let (mut to, mut from) = crate::spsc::ring::<Packet>(256);
    std::thread::scope(|s| {
        // One thread only allocates, the other only frees, a third does both and drops some without
        // its cache.
        s.spawn(|| {
            let mut cache = pool.cache(Direction::Rx).unwrap();
            let mut sent = 0;
            while sent < 50_000 {
                let mut batch: Batch = Batch::new();
                cache.alloc_bulk(&mut batch, 48);
                sent += to.push_batch(&mut batch);
                cache.free_bulk(&mut batch);
                std::thread::yield_now();
            }
            drop(to);
        });
        s.spawn(|| {
            let mut cache = pool.cache(Direction::Tx).unwrap();
            while !from.is_closed() {
                let mut batch: Batch = Batch::new();
                from.pop_batch(&mut batch);
                cache.free_bulk(&mut batch);
                std::thread::yield_now();
            }
        });
        s.spawn(|| {
            let mut cache = pool.cache(Direction::Tx).unwrap();
            for i in 0..2000 {
                let mut batch: Batch = Batch::new();
                cache.alloc_bulk(&mut batch, 64);
                cache.free_first(&mut batch, i % 64);
            }
        });
    });
    assert_eq!(pool.stats().free, 4096);
}

#[test]
fn receiving_leaves_the_floor_of_transmission() {
    let config = PoolConfig::default().capacity(1024).chunk(64).headroom(0).backing(Backing::Anonymous);
    let pool = Pool::new(config.floors(Floors { rx: 0, tx: 200 })).unwrap();
    let mut rx = pool.cache(Direction::Rx).unwrap();
    let mut tx = pool.cache(Direction::Tx).unwrap();
    let received: Vec<Packet> = std::iter::from_fn(|| rx.alloc()).collect();
    let left: Vec<Packet> = std::iter::from_fn(|| tx.alloc()).collect();
    assert_eq!(received.len() + left.len(), 1024);
    assert!(left.len() >= 200, "only {} were left", left.len());
    assert!(left.len() < 200 + 2 * MAGAZINE, "{} were kept from reception", left.len());
    drop(left);
    assert!(tx.alloc().is_some());
    drop(received);
    assert!(rx.alloc().is_some(), "reception goes on when its packets are free");
}

#[test]
fn caches_beyond_the_configured_number_are_refused_until_one_goes() {
    let config = PoolConfig::default().capacity(4).max_caches(2).backing(Backing::Anonymous);
    let pool = Pool::new(config).unwrap();
    let a = pool.cache(Direction::Rx).unwrap();
    let _b = a.another(Direction::Tx).unwrap();
    assert!(matches!(pool.cache(Direction::Rx), Err(PoolError::Caches(2))));
    drop(a);
    assert!(pool.cache(Direction::Rx).is_ok());
}

#[test]
fn a_bad_configuration_is_refused_by_name() {
    let bad = |c: PoolConfig| Pool::new(c).unwrap_err().to_string();
    let d = PoolConfig::default();
    assert_eq!(bad(d.capacity(0)), "pool: capacity=0: must be from 1 to 2^24");
    assert!(bad(d.chunk(100)).contains("chunk=100"));
    assert!(bad(d.headroom(4096)).contains("headroom=4096"));
    assert!(bad(d.max_caches(0)).contains("max_caches"));
    for magazine in [0, 65] {
        assert!(bad(d.magazine(magazine)).contains(&format!("magazine={magazine}: must be from 1 to 64")));
    }
    assert!(bad(d.floors(Floors { rx: 9000, tx: 0 })).contains("floors.rx"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn free_buffers_and_buffers_in_use_always_add_up(
        capacity in 1usize..300,
        steps in proptest::collection::vec((0u8..5, 0usize..80), 0..100),
    ) {
        let pool = pool(capacity);
        let mut caches = vec![pool.cache(Direction::Rx).unwrap()];
        let mut out: Vec<Packet> = Vec::new();
        for (kind, n) in steps {
            let at = n % caches.len();
            match kind {
                0 | 1 => {
                    let mut batch: Batch = Batch::new();
                    let got = caches[at].alloc_bulk(&mut batch, n);
                    prop_assert_eq!(got, batch.len());
                    prop_assert!(got <= n.min(64));
                    out.extend(batch.drain_front(64));
                }
                2 => for _ in 0..n.min(out.len()) { let p = out.pop().unwrap(); caches[at].free(p); },
                3 => out.truncate(out.len().saturating_sub(n)),
                _ if caches.len() < 4 => caches.push(pool.cache(Direction::Tx).unwrap()),
                _ => { caches.remove(at.max(1)); }
            }
            prop_assert!(out.len() <= capacity);
        }
        caches.clear();
        prop_assert_eq!(pool.stats().free + out.len(), capacity);
        drop(out);
        prop_assert_eq!(pool.stats().free, capacity);
    }
}

#[test]
fn a_pool_can_be_made_of_existing_memory_if_there_is_enough_of_it() {
    let config = PoolConfig::default().capacity(4).chunk(2048);
    let region = || Region::new(8192, Backing::Memfd).unwrap();
    // SAFETY: the region was just made and is mapped nowhere else.
    let pool = unsafe { Pool::in_region(config, region()) }.unwrap();
    let mut cache = pool.cache(Direction::Rx).unwrap();
    let packets: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
    assert_eq!(packets.len(), 4);
    // SAFETY: as above.
    let err = unsafe { Pool::in_region(config.capacity(5), region()) }.unwrap_err();
    assert!(matches!(err, PoolError::Config { field: "capacity", value: 5, .. }), "{err}");
}
