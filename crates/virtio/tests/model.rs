//! Random operations of a driver and a device, ours and naive ones in every pairing, against a list
//! of the chains: what is published arrives once, in order, as it was added, and comes back as it
//! was completed. A side that sleeps misses no notification.

mod naive;

use naive::{BASE, Buffer, DATA, DESC, DEVICE, DRIVER, LEN, NaiveDevice, NaiveDriver, Ram, Shape, TABLE, TABLES};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use towpath_virtio::{
    AddError, Area, Areas, Base, Chain, Device, Driver, Features, Format, Piece, RegionPlace, Regions, Segment, Single,
    SingleBuffers, Tables, Token,
};

fn format(shape: Shape) -> Format {
    if shape.packed { Format::Packed } else { Format::Split }
}

fn areas(ram: &Ram, shape: Shape) -> Areas {
    let [desc, driver, device] = format(shape).lengths(shape.n);
    let area = |at, len| Area::new(&ram.0, at, len).unwrap();
    Areas { desc: area(DESC, desc), driver: area(DRIVER, driver), device: area(DEVICE, device) }
}

enum AnyDriver {
    Ours(Driver),
    Naive(NaiveDriver),
}

impl AnyDriver {
    fn new(ram: &Ram, shape: Shape, ours: bool) -> AnyDriver {
        if !ours {
            return AnyDriver::Naive(NaiveDriver::new(ram, shape));
        }
        let mut driver =
            Driver::new(format(shape), areas(ram, shape), shape.n, Features::from_bits(shape.bits())).unwrap();
        let len = Tables::<Area>::bytes(shape.n, TABLE as u16);
        let words = Area::new(&ram.0, TABLES, len).unwrap();
        driver.set_tables(Tables::new(words, BASE + TABLES as u64, TABLE as u16)).unwrap();
        AnyDriver::Ours(driver)
    }
    fn add(&mut self, chain: &[Buffer]) -> Option<u16> {
        match self {
            AnyDriver::Ours(ours) => {
                let segments: Vec<_> =
                    chain.iter().map(|&(addr, len, writable)| Segment { addr, len, writable }).collect();
                match ours.add(&segments) {
                    Ok(id) => Some(id),
                    Err(AddError::Full) => None,
                    Err(error) => panic!("{error}"),
                }
            }
            AnyDriver::Naive(naive) => naive.add(chain),
        }
    }
    /// Adds chains of one buffer each, as long as there is room.
    fn add_singles(&mut self, writable: bool, buffers: &[Buffer]) -> Vec<u16> {
        match self {
            AnyDriver::Ours(ours) => {
                let mut singles = Singles { left: buffers, ids: Vec::new() };
                let added = ours.add_singles(writable, &mut singles);
                assert_eq!((added, singles.left.len()), (singles.ids.len(), buffers.len() - added));
                singles.ids
            }
            AnyDriver::Naive(naive) => buffers.iter().map_while(|&buffer| naive.add(&[buffer])).collect(),
        }
    }
    fn publish(&mut self) -> bool {
        match self {
            AnyDriver::Ours(ours) => ours.publish(),
            AnyDriver::Naive(naive) => naive.publish(),
        }
    }
    fn next_used(&mut self) -> Option<(u16, u32)> {
        match self {
            AnyDriver::Ours(ours) => ours.next_used().unwrap().map(|used| (used.id, used.len)),
            AnyDriver::Naive(naive) => naive.next_used(),
        }
    }
    fn num_free(&self) -> u16 {
        match self {
            AnyDriver::Ours(ours) => ours.num_free(),
            AnyDriver::Naive(naive) => naive.free(),
        }
    }
    fn disable_calls(&mut self) {
        match self {
            AnyDriver::Ours(ours) => ours.disable_calls(),
            AnyDriver::Naive(naive) => naive.disable_calls(),
        }
    }
    fn enable_calls(&mut self) -> bool {
        match self {
            AnyDriver::Ours(ours) => ours.enable_calls(),
            AnyDriver::Naive(naive) => naive.enable_calls(),
        }
    }
}

/// Buffers of one kind, and the ids that they get.
struct Singles<'a> {
    left: &'a [Buffer],
    ids: Vec<u16>,
}

impl SingleBuffers for Singles<'_> {
    fn next(&mut self, id: u16) -> Option<(u64, NonZeroU32)> {
        let (&(addr, len, _), left) = self.left.split_first()?;
        self.left = left;
        self.ids.push(id);
        Some((addr, NonZeroU32::new(len)?))
    }
}

enum AnyToken {
    Ours(Token),
    Naive(naive::NaiveTaken),
}

enum AnyDevice {
    Ours(Device, Regions, Box<Chain<RegionPlace>>),
    Naive(NaiveDevice),
}

impl AnyDevice {
    fn new(ram: &Ram, shape: Shape, ours: bool, batches: bool) -> AnyDevice {
        if !ours {
            return AnyDevice::Naive(NaiveDevice::new(ram, shape, batches));
        }
        let features = Features::from_bits(shape.bits());
        let base = Base::start(format(shape));
        let device = Device::new(format(shape), areas(ram, shape), shape.n, features, base).unwrap();
        let mut regions = Regions::new();
        regions.add(BASE, LEN as u64, ram.0.clone(), 0).unwrap();
        AnyDevice::Ours(device, regions, Box::new(Chain::new(64)))
    }
    fn take(&mut self) -> Option<(AnyToken, Vec<Buffer>)> {
        match self {
            AnyDevice::Ours(device, regions, chain) => {
                let token = device.take(regions, chain).unwrap()?;
                let buffers = |pieces: &[Piece<RegionPlace>], writable| {
                    pieces
                        .iter()
                        .map(|piece| (BASE + piece.place.offset as u64, piece.len, writable))
                        .collect::<Vec<_>>()
                };
                let all = [buffers(chain.readable(), false), buffers(chain.writable(), true)].concat();
                let sum = |is: bool| all.iter().filter(|buffer| buffer.2 == is).map(|buffer| buffer.1).sum::<u32>();
                assert_eq!((chain.readable_len(), chain.writable_len()), (sum(false), sum(true)));
                Some((AnyToken::Ours(token), all))
            }
            AnyDevice::Naive(naive) => naive.take().map(|(taken, chain)| (AnyToken::Naive(taken), chain)),
        }
    }
    /// Chains of one buffer, as many as there are in a row, and `most` of them.
    fn take_singles(&mut self, writable: bool, most: usize) -> Vec<(AnyToken, Vec<Buffer>)> {
        let AnyDevice::Ours(device, regions, _) = self else { return Vec::new() };
        let mut singles = vec![Single::vacant(RegionPlace { region: 0, offset: 0 }); most];
        let taken = device.take_singles(regions, writable, &mut singles);
        let buffer = |piece: Piece<RegionPlace>| (BASE + piece.place.offset as u64, piece.len, writable);
        singles[..taken].iter().map(|single| (AnyToken::Ours(single.token()), vec![buffer(single.piece)])).collect()
    }
    fn add_used(&mut self, token: AnyToken, len: u32) {
        match (self, token) {
            // As a number, as with an external buffer.
            (AnyDevice::Ours(device, ..), AnyToken::Ours(token)) => {
                device.add_used(Token::from_raw(token.into_raw()), len);
            }
            (AnyDevice::Naive(naive), AnyToken::Naive(taken)) => naive.complete(taken, len),
            _ => unreachable!(),
        }
    }
    fn untake(&mut self, token: AnyToken) {
        match (self, token) {
            (AnyDevice::Ours(device, ..), AnyToken::Ours(token)) => device.untake(token).unwrap(),
            (AnyDevice::Naive(naive), AnyToken::Naive(taken)) => naive.untake(taken),
            _ => unreachable!(),
        }
    }
    fn publish(&mut self) -> bool {
        match self {
            AnyDevice::Ours(device, ..) => device.publish(),
            AnyDevice::Naive(naive) => naive.publish(),
        }
    }
    fn disable_kicks(&mut self) {
        match self {
            AnyDevice::Ours(device, ..) => device.disable_kicks(),
            AnyDevice::Naive(naive) => naive.disable_kicks(),
        }
    }
    fn enable_kicks(&mut self) -> bool {
        match self {
            AnyDevice::Ours(device, ..) => device.enable_kicks(),
            AnyDevice::Naive(naive) => naive.enable_kicks(),
        }
    }
}

/// Whether a side expects notifications.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Attention {
    /// From the beginning, or after it was woken: either.
    Any,
    Sleeps,
    Polls,
}

impl Attention {
    /// A publication of at least one chain, which notifies or does not.
    fn published(&mut self, notified: bool) {
        match self {
            Attention::Sleeps => assert!(notified, "a lost notification"),
            Attention::Polls => assert!(!notified, "a notification to a side that polls"),
            Attention::Any => {}
        }
        if *self == Attention::Sleeps {
            *self = Attention::Any;
        }
    }
}

struct Record {
    id: u16,
    slots: u16,
    buffers: Vec<Buffer>,
}

struct World {
    shape: Shape,
    driver: AnyDriver,
    device: AnyDevice,
    added: Vec<Record>,
    available: VecDeque<Record>,
    /// Chains that the device has, in the order in which it took them; with a length if completed.
    taken: VecDeque<(Record, Option<AnyToken>, Option<u32>)>,
    /// Not in order: completed, in the order of completion.
    completed: Vec<(u16, u32, u16)>,
    used: VecDeque<(u16, u32, u16)>,
    free: u16,
    device_attention: Attention,
    driver_attention: Attention,
    has_called: bool,
    /// Chains were published early since the last publication.
    early: bool,
    /// Ids in the order in which they were taken; the last one can be taken back while it is open.
    takes: Vec<(u16, bool)>,
    next_addr: u64,
}

impl World {
    fn new(shape: Shape, ours: (bool, bool), batches: bool) -> World {
        let ram = Ram::new();
        World {
            shape,
            driver: AnyDriver::new(&ram, shape, ours.0),
            device: AnyDevice::new(&ram, shape, ours.1, batches),
            added: Vec::new(),
            available: VecDeque::new(),
            taken: VecDeque::new(),
            completed: Vec::new(),
            used: VecDeque::new(),
            free: shape.n,
            device_attention: Attention::Any,
            driver_attention: Attention::Any,
            has_called: false,
            early: false,
            takes: Vec::new(),
            next_addr: 0,
        }
    }

    fn step(&mut self, what: u8, a: u8, b: u8) {
        match what % 16 {
            0..3 => self.add(a % 4, b % 4, u32::from(a) + 1),
            3 => self.add_singles(a.is_multiple_of(2), b % 6, u32::from(a) + 1),
            4 | 5 => self.publish_avail(),
            6 | 7 => self.take(),
            8 => self.take_singles(a.is_multiple_of(2), usize::from(b % 5)),
            9 | 10 => self.complete(a.into(), b),
            11 if a.is_multiple_of(3) => self.publish_used_early(),
            11 => self.publish_used(),
            12 => self.reap(),
            13 => {
                self.takes.pop();
                let (record, token, _) = self.taken.pop_back().unwrap();
                self.device.untake(token.unwrap());
                self.available.push_front(record);
            }
            14 if a.is_multiple_of(2) => {
                self.device.disable_kicks();
                self.device_attention = Attention::Any;
                // An event of the past may notify once more, about the next publication.
                if !self.shape.event_idx || self.shape.packed {
                    self.device_attention = Attention::Polls;
                }
            }
            14 => {
                assert_eq!(self.device.enable_kicks(), !self.available.is_empty());
                self.device_attention = if self.available.is_empty() { Attention::Sleeps } else { Attention::Any };
            }
            _ if a.is_multiple_of(2) => {
                self.driver.disable_calls();
                self.driver_attention = Attention::Any;
                if !self.shape.event_idx || self.shape.packed {
                    self.driver_attention = Attention::Polls;
                }
            }
            _ => {
                assert_eq!(self.driver.enable_calls(), !self.used.is_empty());
                self.driver_attention = if self.used.is_empty() { Attention::Sleeps } else { Attention::Any };
            }
        }
        assert_eq!(self.driver.num_free(), self.free);
    }

    /// Buffers that no chain has; the lengths differ, from `len` on.
    fn buffers(&mut self, writable: impl IntoIterator<Item = bool>, len: u32) -> Vec<Buffer> {
        let buffer = |(len, writable)| {
            self.next_addr = (self.next_addr + 1) % 0x8000;
            (BASE + DATA as u64 + self.next_addr * 16, len, writable)
        };
        (len..).zip(writable).map(buffer).collect()
    }

    fn add(&mut self, readable: u8, writable: u8, len: u32) {
        let buffers = self.buffers((0..readable + writable).map(|i| i >= readable), len);
        if buffers.is_empty() || buffers.len() > self.shape.n.into() {
            return;
        }
        let slots = if self.shape.indirect && buffers.len() > 1 { 1 } else { buffers.len() as u16 };
        match self.driver.add(&buffers) {
            Some(id) => self.added(id, slots, buffers),
            None => assert!(slots > self.free, "full with {} free", self.free),
        }
    }

    fn add_singles(&mut self, writable: bool, n: u8, len: u32) {
        let buffers = self.buffers((0..n).map(|_| writable), len);
        let ids = self.driver.add_singles(writable, &buffers);
        assert_eq!(ids.len(), buffers.len().min(self.free.into()));
        for (id, buffer) in ids.into_iter().zip(buffers) {
            self.added(id, 1, vec![buffer]);
        }
    }

    fn added(&mut self, id: u16, slots: u16, buffers: Vec<Buffer>) {
        assert!(slots <= self.free && id < self.shape.n);
        let ids = self.added.iter().chain(&self.available).map(|record| record.id);
        let ids = ids.chain(self.taken.iter().map(|taken| taken.0.id));
        let mut ids = ids.chain(self.completed.iter().chain(&self.used).map(|used| used.0));
        assert!(ids.all(|other| other != id), "an id in flight is given again");
        self.free -= slots;
        self.added.push(Record { id, slots, buffers });
    }

    fn publish_avail(&mut self) {
        let any = !self.added.is_empty();
        self.available.extend(self.added.drain(..));
        let kick = self.driver.publish();
        if any {
            self.device_attention.published(kick);
        } else {
            assert!(!kick);
        }
    }

    fn take(&mut self) {
        match (self.device.take(), self.available.pop_front()) {
            (Some((token, buffers)), Some(record)) => {
                assert_eq!(buffers, record.buffers);
                self.takes.push((record.id, true));
                self.taken.push_back((record, Some(token), None));
            }
            (None, None) => {}
            (got, expected) => panic!("taken: {}, available: {}", got.is_some(), expected.is_some()),
        }
    }

    fn take_singles(&mut self, writable: bool, most: usize) {
        let fits = |record: &&Record| matches!(record.buffers[..], [(_, _, is)] if is == writable);
        let expected = self.available.iter().take_while(fits).count().min(most);
        let singles = self.device.take_singles(writable, most);
        if matches!(self.device, AnyDevice::Ours(..)) {
            // A split queue looks at the index only when it has taken all that it has seen.
            let least = if self.shape.packed { expected } else { expected.min(1) };
            assert!((least..=expected).contains(&singles.len()), "{} of {expected}", singles.len());
        }
        for (token, buffers) in singles {
            let record = self.available.pop_front().unwrap();
            assert_eq!(buffers, record.buffers);
            self.takes.push((record.id, true));
            self.taken.push_back((record, Some(token), None));
        }
    }

    fn complete(&mut self, which: usize, how: u8) {
        let open: Vec<_> = (0..self.taken.len()).filter(|&i| self.taken[i].2.is_none()).collect();
        let Some(&which) = open.get(which % open.len().max(1)) else { return };
        let most = naive::writable(&self.taken[which].0.buffers);
        // Mostly all of it, as chains without writable buffers: that is what batches are made of.
        let len = if how.is_multiple_of(4) { u32::from(how).min(most) } else { most };
        let token = self.taken[which].1.take().unwrap();
        let id = self.taken[which].0.id;
        self.takes.iter_mut().rfind(|take| take.0 == id && take.1).unwrap().1 = false;
        self.device.add_used(token, len);
        if self.shape.in_order {
            self.taken[which].2 = Some(len);
        } else {
            let (record, ..) = self.taken.remove(which).unwrap();
            self.completed.push((record.id, len, record.slots));
        }
    }

    /// Moves the completed chains to those that the driver gets back; returns whether there are any.
    fn use_completed(&mut self) -> bool {
        while let Some(&(ref record, _, Some(len))) = self.taken.front() {
            self.completed.push((record.id, len, record.slots));
            self.taken.pop_front();
        }
        let any = !self.completed.is_empty();
        self.used.extend(self.completed.drain(..));
        any
    }

    fn publish_used_early(&mut self) {
        if let AnyDevice::Ours(device, ..) = &mut self.device {
            device.publish_early();
            self.early |= self.use_completed();
        }
    }

    fn publish_used(&mut self) {
        let any = self.use_completed();
        let early = std::mem::take(&mut self.early);
        let call = self.device.publish();
        if (any || early) && !self.has_called {
            // The first call of ours comes in any case.
            assert!(call || matches!(self.device, AnyDevice::Naive(_)) && self.driver_attention != Attention::Sleeps);
            self.has_called = true;
            self.driver_attention = Attention::Any;
        } else if any {
            self.driver_attention.published(call);
        } else if early {
            // The driver may have got all of them before it went to sleep.
            assert!(!call || self.driver_attention != Attention::Polls, "a notification to a side that polls");
            if call {
                self.driver_attention = Attention::Any;
            }
        } else {
            assert!(!call);
        }
    }

    fn reap(&mut self) {
        let expected = self.used.pop_front();
        assert_eq!(self.driver.next_used(), expected.map(|(id, len, _)| (id, len)));
        self.free += expected.map_or(0, |(.., slots)| slots);
    }

    /// Everything comes back.
    fn finish(mut self) {
        self.publish_avail();
        while !self.available.is_empty() {
            self.take();
        }
        self.take();
        while self.taken.iter().any(|taken| taken.2.is_none()) {
            self.complete(self.taken.len() / 2, 1);
        }
        self.publish_used();
        while !self.used.is_empty() {
            self.reap();
        }
        self.reap();
        assert_eq!((self.driver.num_free(), self.free), (self.shape.n, self.shape.n));
    }

    /// Only what was taken last, and is not completed, can be taken back.
    fn allowed(&self, what: u8) -> bool {
        what % 16 != 13 || self.takes.last().is_some_and(|last| last.1)
    }
}

/// Which side is ours: driver, device.
const PAIRS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// Up to step `reads` no chain has buffers that the device writes.
fn run(shape: Shape, ours: (bool, bool), batches: bool, reads: usize, steps: &[(u8, u8, u8)]) {
    let mut world = World::new(shape, ours, batches);
    for (i, &(what, a, b)) in steps.iter().enumerate() {
        let (a, b) = match what % 16 {
            0..3 if i < reads => (a, 0),
            3 if i < reads => (a | 1, b),
            _ => (a, b),
        };
        if world.allowed(what) {
            world.step(what, a, b);
        }
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_pair_of_sides_does_what_the_specification_says(
        shape in proptest::sample::select(Shape::all(&[1, 2, 8, 64], &[1, 3, 7, 64])),
        batches: bool,
        reads in 0usize..400,
        steps in proptest::collection::vec((0u8..16, any::<u8>(), any::<u8>()), 1..400),
    ) {
        for ours in PAIRS {
            run(shape, ours, batches, reads, &steps);
        }
    }
}

#[test]
fn every_queue_goes_around_the_ring_and_its_indices() {
    // Indirect tables have no part in it.
    for shape in Shape::all(&[16], &[5]).into_iter().filter(|shape| !shape.indirect) {
        for (ours, writes) in PAIRS[..3].iter().flat_map(|ours| [(ours, true), (ours, false)]) {
            let mut world = World::new(shape, *ours, true);
            // The indices of a split queue wrap after 65 536 chains.
            for round in 0..if shape.packed { 300 } else { 8300 } {
                // As many descriptors as there are: 12, then 4.
                let buffers = |i: u32| ((round + i) as u8 % 2, 1 + i as u8 % 2);
                let chain = |i| if writes { buffers(i) } else { (buffers(i).0 + buffers(i).1, 0) };
                (0..6).for_each(|i| world.add(chain(i).0, chain(i).1, round % 700 + 1));
                world.add_singles(writes && round.is_multiple_of(2), 4, round % 700 + 1);
                world.publish_avail();
                while !world.available.is_empty() {
                    world.take();
                }
                while world.taken.iter().any(|taken| taken.2.is_none()) {
                    world.complete(round as usize, round as u8);
                }
                world.publish_used();
                while !world.used.is_empty() {
                    world.reap();
                }
            }
            world.finish();
        }
    }
}
