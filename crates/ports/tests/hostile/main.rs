//! Applications that break every rule, beside one that keeps to them. The datapath survives. A
//! session that breaks the protocol ends for a named reason. An application that is slow delays
//! only itself. The honest application loses nothing.
//!
//! The queues are stepped by hand, and the tests compare counts: nothing depends on how fast or
//! busy the machine is.
//!
//! | module | what |
//! |---|---|
//! | `doors` | before there is a session: messages, descriptors, connections |
//! | `script` | actions of an application in any order, beside an honest one |
//! | `users` | applications of several users |
//! | `rogue`, `rig` | an application that writes any word; a port whose queues are stepped by hand |

mod doors;
mod rig;
mod rogue;
mod script;
mod users;

use proptest::prelude::*;
use rig::{Honest, Rig, udp, until};
use rogue::{CHUNK, COUNT, PORT, Rogue, super_packet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_client::Umem;
use towpath_client::protocol::{Hello, MAX_PIECES, Sizes};
use towpath_packet::xsk_ring::{Desc, RingMemory};
use towpath_packet::{Batch, DropReason};
use towpath_sys::seqpacket;

/// Packets that the honest application offers each way at each step: a quarter of what a step can
/// carry.
const OFFER: u32 = 16;

#[test]
fn a_breach_of_the_protocol_ends_the_session_and_affects_no_other() {
    type Crime = fn(&mut Rogue);
    const WHOLE: u64 = COUNT as u64 * CHUNK;
    let crimes: [(&str, Crime); 29] = [
        // Counters: ahead by one too many, far ahead, behind, half way round.
        ("bad-counter", |r| r.tx.ring().producer().store(1 + COUNT + 1, Ordering::Release)),
        ("bad-counter", |r| r.tx.ring().producer().store(0, Ordering::Release)),
        ("bad-counter", |r| r.tx.ring().producer().store(u32::MAX, Ordering::Release)),
        ("bad-counter", |r| r.fill.ring().producer().store(1 + COUNT + 1, Ordering::Release)),
        ("bad-counter", |r| r.fill.ring().producer().store(0, Ordering::Release)),
        ("bad-counter", |r| r.fill.ring().producer().store(1 << 31, Ordering::Release)),
        // Lengths: none, too long, over the end of the chunk, over that of the address space.
        ("bad-descriptor", |r| r.send(&[(0, 0, 0)])),
        ("bad-descriptor", |r| r.send(&[(0, CHUNK as u32 + 1, 0)])),
        ("bad-descriptor", |r| r.send(&[(CHUNK - 1, 2, 0)])),
        ("bad-descriptor", |r| r.send(&[(0, u32::MAX, 0)])),
        ("bad-descriptor", |r| r.send(&[(CHUNK / 2, u32::MAX - 1000, 0)])),
        // Addresses: behind the memory, far behind, of another kind.
        ("bad-descriptor", |r| r.send(&[(WHOLE, 60, 0)])),
        ("bad-descriptor", |r| r.send(&[(u64::MAX, 1, 0)])),
        ("bad-descriptor", |r| r.send(&[(1 << 63, 60, 0)])),
        ("bad-descriptor", |r| r.send(&[(1 << 48, 60, 0)])),
        ("bad-descriptor", |r| r.post(&[WHOLE])),
        ("bad-descriptor", |r| r.post(&[0, u64::MAX])),
        // Unknown options.
        ("bad-descriptor", |r| r.send(&[(0, 60, 1 << 31)])),
        ("bad-descriptor", |r| r.send(&[(0, 60, Desc::METADATA << 1)])),
        // Requests: where none may be, for a field outside, of another packet.
        ("bad-descriptor", |r| r.send(&[(0, 60, Desc::METADATA)])),
        ("bad-descriptor", |r| {
            let (header, start) = super_packet(7);
            let at = r.describe(0, &header, &start);
            r.send(&[(at, 2000, Desc::METADATA)]);
        }),
        ("bad-descriptor", |r| {
            let (header, mut start) = super_packet(500);
            start[23] = 17;
            let at = r.describe(0, &header, &start);
            r.send(&[(at, 2000, Desc::METADATA)]);
        }),
        // Chunks that the datapath has: sent twice, posted twice, posted and sent.
        ("bad-chunk", |r| r.send(&[(0, 60, Desc::CONTINUED), (0, 60, 0)])),
        ("bad-chunk", |r| r.send(&[(5, 60, Desc::CONTINUED), (100, 60, 0)])),
        ("bad-chunk", |r| r.post(&[0, 2 * CHUNK, 17])),
        ("bad-chunk", |r| r.post(&[CHUNK])),
        ("bad-chunk", |r| r.send(&[(CHUNK, 60, 0)])),
        // A packet without an end.
        ("bad-descriptor", |r| {
            let chunks = 2..=2 + MAX_PIECES as u64;
            r.send(&chunks.map(|chunk| (chunk * CHUNK, 60, Desc::CONTINUED)).collect::<Vec<_>>());
        }),
        // Words at any place.
        ("sessions-ended", |r| seqpacket::send(r.connection.as_fd(), b"what?", &[]).unwrap()),
    ];
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut honest = Honest::new(&mut rig, &umem);
    for (i, (event, crime)) in crimes.iter().enumerate() {
        let mut rogue = Rogue::new(&mut rig);
        let (before, ended) = (rig.event(event), rig.event("sessions-ended"));
        crime(&mut rogue);
        until(|| {
            drop(honest.turn(&mut rig, OFFER, &[]));
            rig.event(event) > before && rig.event("sessions-ended") > ended
        });
        assert_eq!((rig.event(event), rig.event("sessions-ended")), (before + 1, ended + 1), "crime {i}");
        rogue.is_disconnected();
    }
    assert_eq!((honest.sent, honest.got), (honest.offered, honest.expected));
    honest.end(&mut rig);
    rig.end();
}

#[test]
fn unaligned_chunks_must_lie_inside() {
    type Crime = fn(&mut Rogue);
    const WHOLE: u64 = COUNT as u64 * CHUNK;
    let crimes: [Crime; 8] = [
        |r| r.send(&[(WHOLE - 59, 60, 0)]),
        |r| r.send(&[((WHOLE - 100) | (41 << 48), 60, 0)]),
        |r| r.send(&[(u64::MAX, 60, 0)]),
        |r| r.send(&[(0, CHUNK as u32 + 1, 0)]),
        |r| r.send(&[(0, 0, 0)]),
        |r| r.post(&[WHOLE - CHUNK + 1]),
        |r| r.post(&[(1 << 48) - 1]),
        |r| r.post(&[u64::MAX]),
    ];
    let mut rig = Rig::new("");
    for (i, crime) in crimes.iter().enumerate() {
        let mut rogue = Rogue::connect(&rig, &Hello { unaligned: true, ..rogue::hello() });
        // Valid: across chunks, twice, to the last byte.
        rogue.send(&[(CHUNK - 10, 60, 0), (CHUNK - 10, 60, 0), ((WHOLE - 100) | (40 << 48), 60, 0)]);
        rogue.post(&[1, 1, WHOLE - CHUNK]);
        drop(rig.receive(3));
        assert_eq!(rig.event("bad-descriptor"), i as u64);
        crime(&mut rogue);
        rig.until_event("bad-descriptor", i as u64 + 1);
        rig.until_event("sessions-ended", i as u64 + 1);
        rogue.is_disconnected();
    }
    rig.end();
}

/// How an application that keeps to the protocol may still be a burden, at each step.
type Burden = fn(&mut Rogue, u64);

const BURDENS: [(&str, Burden); 10] = [
    ("sends as much as it can", |r, turn| {
        let all: Vec<_> = r.spare(turn).iter().map(|addr| (*addr, 60, 0)).collect();
        r.send(&all);
    }),
    ("sends packets of many small pieces", |r, turn| {
        for packet in r.spare(turn).chunks(MAX_PIECES) {
            let mut pieces: Vec<_> = packet.iter().map(|addr| (*addr, 5, Desc::CONTINUED)).collect();
            pieces.last_mut().unwrap().2 = 0;
            r.send(&pieces);
        }
    }),
    ("sends super-packets of many segments", |r, turn| {
        let (header, start) = super_packet(16);
        let all: Vec<_> = r.spare(turn).iter().map(|addr| addr & !(CHUNK - 1)).collect();
        r.send(
            &all.iter().map(|chunk| (r.describe(*chunk, &header, &start), 2000, Desc::METADATA)).collect::<Vec<_>>(),
        );
    }),
    ("sends what is too short", |r, turn| {
        let all: Vec<_> = r.spare(turn).iter().map(|addr| (*addr, 1, 0)).collect();
        r.send(&all);
    }),
    ("takes nothing back", |r, turn| {
        if turn == 0 {
            r.send(&[(0, 60, 0), (2 * CHUNK, 60, 0)]);
        }
    }),
    ("posts much and takes nothing of what comes", |r, turn| {
        if turn == 0 {
            let all = r.spare(turn);
            r.post(&all);
        }
    }),
    ("takes what comes and posts nothing", |r, _| drop(r.drain())),
    ("never ends a packet", |r, turn| {
        if turn == 0 {
            r.send(&[(0, 60, Desc::CONTINUED)]);
        }
    }),
    ("wakes, and wants to be woken, all the time", |r, _| {
        r.rx.ring().set_needs_wakeup(true);
        r.kick();
    }),
    ("changes flags that are not its own", |r, turn| {
        for ring in [r.layout.tx, r.layout.fill, r.layout.completion] {
            r.scribble(ring.flags as usize, (turn as u32).wrapping_mul(0x9e37_79b9));
        }
    }),
];

/// Packets for the rogues, which take them or not.
fn unwanted() -> Vec<Vec<u8>> {
    (0..8).map(|number| udp(PORT, 100, number)).collect()
}

#[test]
fn an_application_that_is_a_burden_takes_nothing_from_the_others() {
    const TURNS: u64 = 300;
    for (what, burden) in BURDENS {
        let mut rig = Rig::new("");
        let umem = Umem::new(256, 2048).unwrap();
        let mut honest = Honest::new(&mut rig, &umem);
        let mut rogue = Rogue::new(&mut rig);
        for turn in 0..TURNS {
            burden(&mut rogue, turn);
            drop(honest.turn(&mut rig, OFFER, &unwanted()));
        }
        honest.has_at_least(95, TURNS as u32 * OFFER, what);
        assert_eq!(rig.event("sessions-ended"), 0, "the burden {what:?} keeps to the protocol");
        honest.end(&mut rig);
        rogue.end(&mut rig);
        rig.end();
    }
}

#[test]
fn all_burdens_together_take_nothing_from_an_application_within_its_share() {
    const TURNS: u64 = 300;
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut honest = Honest::new(&mut rig, &umem);
    let mut rogues: Vec<_> = BURDENS.iter().map(|(_, burden)| (Rogue::new(&mut rig), *burden)).collect();
    // They and the honest one share a batch.
    let share = (Batch::<64>::CAPACITY / (BURDENS.len() + 1)) as u32;
    for turn in 0..TURNS {
        rogues.iter_mut().for_each(|(rogue, burden)| burden(rogue, turn));
        drop(honest.turn(&mut rig, share, &unwanted()));
    }
    honest.has_at_least(95, TURNS as u32 * share, "all of them");
    honest.end(&mut rig);
    rogues.into_iter().for_each(|(rogue, _)| rogue.end(&mut rig));
    rig.end();
}

#[test]
fn a_burst_takes_at_most_as_many_descriptors_of_an_application_as_it_has_room_for() {
    let mut rig = Rig::new("");
    let mut rogue = Rogue::connect(&rig, &Hello { umem: 1024 * CHUNK, rings: Sizes::all(1024), ..rogue::hello() });
    rogue.send(&(0..1024).map(|chunk| (chunk * CHUNK, 1, 0)).collect::<Vec<_>>());
    let mut seen = 0;
    until(|| {
        assert_eq!(rig.step().len(), 0);
        let now = rig.event("frame-length");
        assert!(now - seen <= 64, "{} at once", now - seen);
        seen = now;
        seen == 1024
    });
    rogue.end(&mut rig);
    rig.end();
}

#[test]
fn an_application_that_sends_and_posts_garbage_with_skip_invalid_takes_nothing_from_the_others() {
    const TURNS: u64 = 300;
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut honest = Honest::new(&mut rig, &umem);
    let mut rogue = Rogue::connect(&rig, &Hello { skip_invalid: true, ..rogue::hello() });
    let (mut seen, mut most) = (0, 0);
    for turn in 0..TURNS {
        let random = |i: u64| (turn << 8 | i | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let descs = 0..u64::from(rogue.tx.reserve(COUNT));
        let descs: Vec<_> = descs.map(|i| (random(i), random(i + 32) as u32, random(i + 64) as u32)).collect();
        rogue.send(&descs);
        let addrs: Vec<_> = (0..u64::from(rogue.fill.reserve(COUNT))).map(|i| random(i) | 1 << 63).collect();
        rogue.post(&addrs);
        drop(honest.turn(&mut rig, OFFER, &unwanted()));
        rogue.reap();
        let now = rig.event("descriptors-skipped");
        (seen, most) = (now, most.max(now - seen));
    }
    assert!(seen > 20 * TURNS && most <= 64 + u64::from(COUNT), "{seen} in all, {most} at once");
    honest.has_at_least(95, TURNS as u32 * OFFER, "sends garbage");
    assert_eq!(rig.event("sessions-ended"), 0, "it may");
    honest.end(&mut rig);
    rogue.end(&mut rig);
    rig.end();
}

#[test]
fn an_application_that_takes_no_completions_sends_no_more_and_loses_nothing() {
    let mut rig = Rig::new("");
    let rings = Sizes { completion: 8, ..Sizes::all(COUNT) };
    let mut rogue = Rogue::connect(&rig, &Hello { rings, ..rogue::hello() });
    rogue.send(&(0..u64::from(COUNT)).map(|chunk| (chunk * CHUNK, 60, 0)).collect::<Vec<_>>());
    drop(rig.receive(COUNT as usize));
    let mut back = Vec::new();
    until(|| {
        (0..3).for_each(|_| drop(rig.step()));
        let some = rogue.reap();
        assert!(some.len() <= 8);
        back.extend(some);
        back.len() == COUNT as usize
    });
    back.sort_unstable();
    assert!(back.iter().zip(0..).all(|(addr, chunk)| *addr == chunk * CHUNK), "{back:?}");
    rogue.end(&mut rig);
    rig.end();
}

#[test]
fn a_counter_of_entries_that_never_were_is_noticed_when_the_ring_seems_full() {
    let mut rig = Rig::new("");
    let mut rogue = Rogue::new(&mut rig);
    rogue.completion.ring().consumer().store(1 << 31, Ordering::Release);
    let mut chunks = (0..u64::from(COUNT)).cycle();
    until(|| {
        if rogue.tx.reserve(1) > 0 {
            let chunk = chunks.find(|chunk| *chunk != 1).unwrap();
            rogue.send(&[(chunk * CHUNK, 60, 0)]);
        }
        drop(rig.step());
        rig.event("bad-counter") == 1
    });
    rogue.is_disconnected();
    let mut rogue = Rogue::new(&mut rig);
    rogue.rx.ring().consumer().store(1 << 31, Ordering::Release);
    let all = rogue.spare(0);
    rogue.post(&all);
    until(|| {
        rig.send(&unwanted());
        rig.event("bad-counter") == 2
    });
    rig.end();
}

#[test]
fn packets_that_an_application_does_not_take_are_counted_by_reason() {
    let mut rig = Rig::new("");
    let mut rogue = Rogue::new(&mut rig);
    // One chunk is posted.
    rig.send(&unwanted());
    assert_eq!(rig.dropped(DropReason::NoBuffer), 7);
    let all = rogue.spare(0);
    rogue.post(&all);
    // It has taken one entry of its ring of eight, and does not release it.
    rig.send(&unwanted());
    assert_eq!((rig.dropped(DropReason::NoBuffer), rig.dropped(DropReason::EgressFull)), (7, 1));
    assert_eq!(rogue.drain().len(), 8);
    rig.send(&unwanted());
    assert_eq!(rogue.drain().len(), 8);
    rogue.end(&mut rig);
    rig.end();
}

#[test]
fn a_later_session_takes_no_packets_of_an_earlier_one_even_when_others_leave() {
    let mut rig = Rig::new("");
    let (first, umem) = (Rogue::new(&mut rig), Umem::new(256, 2048).unwrap());
    let mut honest = Honest::new(&mut rig, &umem);
    let mut greedy = Rogue::connect(&rig, &Hello { rules: "udp".into(), ..rogue::hello() });
    greedy.post(&[0, CHUNK]);
    rig.until(|_| greedy.fill.ring().consumer().load(Ordering::Acquire) == 2);
    drop(first);
    rig.until_event("sessions-ended", 1);
    drop(honest.turn(&mut rig, OFFER, &[]));
    assert_eq!(honest.got, honest.expected);
    assert!(greedy.drain().is_empty());
    honest.end(&mut rig);
    greedy.end(&mut rig);
    rig.end();
}

#[test]
fn changes_of_shared_memory_during_a_read_harm_no_other() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut honest = Honest::new(&mut rig, &umem);
    for round in 0..40u64 {
        let rogue = Rogue::new(&mut rig);
        let (rings, memory, at) = (rogue.rings.clone(), &rogue.umem, rogue.layout);
        let (stop, ended) = (AtomicBool::new(false), rig.event("sessions-ended"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                while !stop.load(Ordering::Relaxed) {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (pick, value) = (seed >> 33, (seed >> 17) as u32);
                    let entry = pick as usize / 8 % COUNT as usize;
                    // Descriptors that may be valid, so that the session lives for a while;
                    // counters now and then.
                    match pick % 8 {
                        0 => rogue::scribble(&rings, at.tx.desc as usize + 16 * entry, (value % (COUNT + 1)) << 11),
                        1 => rogue::scribble(&rings, at.tx.desc as usize + 16 * entry + 8, value % 2100),
                        2 => rogue::scribble(&rings, at.tx.desc as usize + 16 * entry + 12, value & 1),
                        3 => rogue::scribble(&rings, at.fill.desc as usize + 8 * entry, (value % COUNT) << 11),
                        4 => rogue::scribble(&rings, at.completion.desc as usize + 8 * entry, value),
                        5 => rogue::scribble(&rings, at.rx.desc as usize + 4 * entry, value),
                        6 if round % 4 == 0 => rogue::scribble(&rings, value as usize, value),
                        _ => rogue::scribble(memory, value as usize, value),
                    }
                }
            });
            for turn in 1..200u32 {
                rogue.tx.ring().producer().store(1 + turn, Ordering::Release);
                rogue.fill.ring().producer().store(1 + turn / 8, Ordering::Release);
                let batch = honest.turn(&mut rig, OFFER, &unwanted());
                for packet in batch.iter() {
                    let len = packet.to_vec().len();
                    assert!(len == packet.len() && (14..=1522).contains(&len) && packet.frags() <= MAX_PIECES);
                }
                if rig.event("sessions-ended") > ended {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(rogue);
        rig.until_event("sessions-ended", round + 1);
    }
    assert_eq!((honest.sent, honest.got), (honest.offered, honest.expected));
    honest.end(&mut rig);
    rig.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_honest_application_loses_nothing_and_every_buffer_is_returned(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let (kind, script) = bytes.split_first().unwrap_or((&0, &[]));
        let mut stage = script::Stage::new(*kind);
        stage.follow(script);
        stage.end();
    }
}
