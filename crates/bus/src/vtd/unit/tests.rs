//! The unit against registers that a test plays: in which order it is told what, and what happens if it does not listen.

use super::*;
use crate::dma::{Access, Window};
use crate::vtd::identity::Identity;
use crate::vtd::registers::{IQA, PPF, VER};
use std::collections::HashMap;
use towpath_packet::{Backing, Region};

/// What a unit is played like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Play {
    /// It does what it is told.
    Obedient,
    /// It never says that translation is enabled.
    NeverEnables,
    /// Its queue has stopped with an error.
    QueueStopped,
    /// It is not there any more.
    Gone,
}

struct State {
    play: Play,
    registers: HashMap<usize, u32>,
    head: u64,
    /// The queue is worked off by a thread of its own, not by the doorbell.
    slow: bool,
    /// First halves of what the queue was given, waits left out.
    heard: Vec<u64>,
    waits: usize,
}

#[derive(Clone)]
struct Fake(Arc<Mutex<State>>);

impl Fake {
    fn new() -> Fake {
        let registers = HashMap::from([(0, 0x10), (8, 0x2226_0206), (12, 0xd2_008c), (16, 0xf0_0f4a)]);
        let play = Play::Obedient;
        Fake(Arc::new(Mutex::new(State { play, registers, head: 0, slow: false, heard: vec![], waits: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    fn heard(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().heard)
    }
}

impl State {
    /// One step after the other, until the queue is empty.
    fn work_off(&mut self) {
        let tail = u64::from(self.registers[&IQT.at()]);
        let base = u64::from(self.registers[&(IQA.at() + 4)]) << 32 | u64::from(self.registers[&IQA.at()]);
        let word = |at: u64| {
            // SAFETY: `Identity`: the address is that of a word of the queue, or of its status, which the unit under test holds.
            unsafe { &*(at as *const AtomicU64) }
        };
        while self.head != tail {
            let at = (base & !0xfff) + self.head;
            let (first, second) = (word(at).load(Ordering::Relaxed), word(at + 8).load(Ordering::Relaxed));
            match first & 0xf {
                5 => {
                    word(second).store(first >> 32, Ordering::Release);
                    self.waits += 1;
                }
                _ => self.heard.push(first),
            }
            self.head = (self.head + 16) % PAGE;
        }
    }
}

impl Mmio for Fake {
    fn len(&self) -> usize {
        LEN
    }

    fn r32(&self, at: usize) -> u32 {
        let state = self.state();
        match (state.play, at) {
            (Play::Gone, _) => u32::MAX,
            (Play::QueueStopped, 0x34) => 0x10,
            _ => state.registers.get(&at).copied().unwrap_or(0),
        }
    }

    fn w32(&self, at: usize, value: u32) {
        let mut state = self.state();
        // What went wrong is cleared by writing ones.
        let cleared = if at == FSTS.at() { state.registers.get(&at).copied().unwrap_or(0) & !value } else { value };
        state.registers.insert(at, cleared);
        if at == GCMD.at() {
            let ignored = if state.play == Play::NeverEnables { TE } else { 0 };
            // One-shots are reported until the next command.
            state.registers.insert(GSTS.at(), value & !ignored);
        }
        if at == IQT.at() && state.registers.get(&GSTS.at()).is_some_and(|s| s & QIE != 0) {
            let works = !matches!(state.play, Play::QueueStopped | Play::Gone) && !state.slow;
            if works {
                state.work_off();
            }
        }
    }
}

const NIC: SourceId = SourceId::new(0, 4, 0);

fn unit(fake: &Fake) -> Unit<Fake, Identity> {
    Unit::new("fake", fake.clone(), Identity).unwrap()
}

#[test]
fn translation_is_enabled_last_and_disabled_at_the_end() {
    let fake = Fake::new();
    let unit = unit(&fake);
    assert_eq!(fake.heard(), [0x11, 0xd2], "all contexts, then all translations");
    assert_eq!(GSTS.read(&fake) & (TE | QIE), TE | QIE);
    assert_eq!(FECTL.read(&fake), FECTL_MASKED);
    assert!(Unit::<Fake, Identity>::is_at(&fake));
    drop(unit);
    assert_eq!(GSTS.read(&fake) & (TE | QIE), 0);
    VER.write(&fake, 0);
    assert!(!Unit::<Fake, Identity>::is_at(&fake));
    assert!(Unit::new("fake", fake, Identity).err().unwrap().to_string().contains("no remapping unit"));
}

#[test]
fn a_unit_that_was_on_is_switched_off_first() {
    let fake = Fake::new();
    GSTS.write(&fake, TE | QIE);
    let unit = unit(&fake);
    assert_eq!(fake.heard(), [0x11, 0xd2]);
    drop(unit);
}

#[test]
fn a_device_comes_and_goes_with_its_context_and_its_domain() {
    let fake = Fake::new();
    let unit = unit(&fake);
    fake.heard();
    let first = unit.attach(NIC).unwrap();
    assert_eq!(fake.heard(), [0x20_0000_0031, 0x1_00e2], "the absent entry, then what its id stood for before");
    let error = unit.attach(NIC).err().unwrap().to_string();
    assert!(error.contains("has tables already"), "{error}");
    let second = unit.attach(SourceId::new(7, 0, 1)).unwrap();
    assert_eq!(fake.heard(), [0x701_0000_0031, 0x2_00e2]);
    drop(first);
    assert_eq!(fake.heard(), [0x20_0001_0031, 0x1_00e2], "its tables are freed after that, not before");
    assert_eq!(lock(&unit.0.contexts).attached.len(), 1);
    drop((unit, second));
    assert_eq!(fake.heard(), [0x701_0002_0031, 0x2_00e2]);
    assert_eq!(GSTS.read(&fake) & TE, 0, "off when its last device is gone");
}

/// The ring turns many times, with batches on their way: none is overwritten before it was worked off.
#[test]
fn a_slow_queue_loses_nothing() {
    let fake = Fake::new();
    let unit = unit(&fake);
    fake.heard();
    fake.state().slow = true;
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| {
            scope.spawn(|| {
                for n in 1..=300u64 {
                    let page = |i| Invalidation::Pages { did: 9, iova: (n << 20 | i) * PAGE, mask: 0 };
                    // Two batches, and one wait.
                    let pages: Vec<_> = (0..n % 120 + 1).map(page).collect();
                    unit.0.invalidate(&pages).unwrap();
                }
            })
        });
        while threads.iter().any(|thread| !thread.is_finished()) {
            fake.state().work_off();
            std::thread::yield_now();
        }
    });
    fake.state().slow = false;
    assert_eq!(fake.heard().len() as u64, (1..=300).map(|n| n % 120 + 1).sum::<u64>() * 4);
    assert_eq!(fake.state().waits as u64, unit.invalidations().batches);
}

#[test]
fn what_a_unit_does_not_do_is_named() {
    let fake = Fake::new();
    fake.state().play = Play::NeverEnables;
    let error = Unit::new("fake", fake, Identity).err().unwrap().to_string();
    assert!(error.contains("enabling translation"), "{error}");
    let fake = Fake::new();
    fake.state().play = Play::Gone;
    assert!(Unit::new("fake", fake.clone(), Identity).is_err());
}

#[test]
fn what_can_not_be_confirmed_is_an_error_and_is_not_used_again() {
    for play in [Play::QueueStopped, Play::Gone] {
        let fake = Fake::new();
        let unit = unit(&fake);
        let space = unit.attach(NIC).unwrap();
        let memory = Region::new(8192, Backing::Anonymous).unwrap();
        // SAFETY: nothing walks the tables of this unit.
        let iova = unsafe { space.map(memory.base(), 4096, Access::Both) }.unwrap();
        let mut window = space.window(4, 2048).unwrap();
        // SAFETY: as above.
        unsafe { window.map(0, memory.base(), 2048, Access::Read) }.unwrap();
        window.unmap(0).unwrap();
        fake.state().play = play;
        assert!(window.flush().is_err());
        assert!(space.unmap(iova, 4096).is_err());
        fake.state().play = Play::Obedient;
        // SAFETY: as above.
        let next = unsafe { space.map(memory.base(), 4096, Access::Both) }.unwrap();
        assert_ne!(next, iova, "addresses that may still lead somewhere are not given out");
    }
}

#[test]
fn pages_are_invalidated_in_aligned_pieces_or_by_their_domain() {
    let fake = Fake::new();
    let unit = unit(&fake);
    let pieces = |start: u64, pages: u64| -> Vec<(u64, u8)> {
        let pieces = unit.0.covering(3, start * PAGE, pages * PAGE).into_iter();
        pieces
            .map(|i| if let Invalidation::Pages { iova, mask, .. } = i { (iova / PAGE, mask) } else { (0, 0xff) })
            .collect()
    };
    assert_eq!(pieces(5, 1), [(5, 0)]);
    assert_eq!(pieces(8, 8), [(8, 3)]);
    assert_eq!(pieces(7, 10), [(7, 0), (8, 3), (16, 0)]);
    // As large as the unit takes: 2^18 pages.
    assert_eq!(pieces(1 << 20, 1 << 19), [(1 << 20, 18), ((1 << 20) + (1 << 18), 18)]);
    assert_eq!(pieces((1 << 18) + 1, 1 << 26), [(0, 0xff)], "more than a batch: the domain");
}

#[test]
fn faults_are_read_from_every_record_and_cleared() {
    let fake = Fake::new();
    let unit = unit(&fake);
    let record = 0x220;
    for (at, value) in
        [(0x34, PPF), (record, 0x5678_9000), (record + 4, 1), (record + 8, 0x20), (record + 12, 1 << 31 | 5)]
    {
        fake.state().registers.insert(at, value);
    }
    let faults = unit.faults();
    let fault = faults.records[0];
    assert_eq!((fault.source, fault.page, fault.access), (NIC, 0x1_5678_9000, Access::Write));
    assert_eq!(fault.to_string(), "device 00:04.0 tried to write at 0x156789000: page is not mapped for writing (0x5)");
    assert_eq!(
        (fake.r32(record + 8), fake.r32(record + 12)),
        (0, 1 << 31),
        "the record is given back by writing its F"
    );
}
