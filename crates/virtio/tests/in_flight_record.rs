//! Devices that are killed, at any store, and followed by others over the same memory and record:
//! each chain is taken again until it is used, in the order of availability, and used once.

mod naive;

use naive::{BASE, Buffer, DATA, DESC, DEVICE, DRIVER, LEN, Ram, Shape, TABLE, TABLES};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_virtio::{
    Area, Areas, Base, Chain, Device, Driver, Features, Format, InFlightRecord, QueueError, RegionPlace, Regions,
    RingWords, Segment, Tables, Token,
};

/// Words to which a device writes as long as it lives: each store costs one of `lives`.
#[derive(Debug, Clone)]
struct Mortal {
    area: Area,
    lives: Rc<Cell<u32>>,
}

impl Mortal {
    fn lives(&self) -> bool {
        self.lives.replace(self.lives.get().saturating_sub(1)) > 0
    }
}

impl RingWords for Mortal {
    fn bytes(&self, width: usize) -> usize {
        self.area.bytes(width)
    }
    fn load16(&self, index: usize, order: Ordering) -> u16 {
        self.area.load16(index, order)
    }
    fn load32(&self, index: usize, order: Ordering) -> u32 {
        self.area.load32(index, order)
    }
    fn load64(&self, index: usize, order: Ordering) -> u64 {
        self.area.load64(index, order)
    }
    fn store16(&self, index: usize, value: u16, order: Ordering) {
        if self.lives() {
            self.area.store16(index, value, order);
        }
    }
    fn store32(&self, index: usize, value: u32, order: Ordering) {
        if self.lives() {
            self.area.store32(index, value, order);
        }
    }
    fn store64(&self, index: usize, value: u64, order: Ordering) {
        if self.lives() {
            self.area.store64(index, value, order);
        }
    }
}

fn format(shape: Shape) -> Format {
    if shape.packed { Format::Packed } else { Format::Split }
}

fn areas<W>(ram: &Ram, shape: Shape, words: impl Fn(Area) -> W) -> Areas<W> {
    let [desc, driver, device] = format(shape).lengths(shape.n);
    let area = |at, len| words(Area::new(&ram.0, at, len).unwrap());
    Areas { desc: area(DESC, desc), driver: area(DRIVER, driver), device: area(DEVICE, device) }
}

/// A chain that the driver has not got back.
#[derive(Debug, Clone)]
struct Sent {
    id: u16,
    buffers: Vec<Buffer>,
    len: Option<u32>,
}

struct World {
    shape: Shape,
    ram: Ram,
    regions: Regions,
    record: UntrustedMem,
    lives: Rc<Cell<u32>>,
    driver: Driver,
    device: Device<Mortal>,
    chain: Chain<RegionPlace>,
    /// Added and not made available.
    added: Vec<Sent>,
    /// In the order of availability.
    sent: VecDeque<Sent>,
    /// Those that the device has, by id.
    taken: Vec<(u16, Option<Token>)>,
    /// Chains that were taken since the last publication.
    unmarked: usize,
    next: u64,
}

impl World {
    fn new(shape: Shape) -> World {
        let (ram, lives) = (Ram::new(), Rc::new(Cell::new(u32::MAX)));
        let record = UntrustedMem::new(Region::new(1 << 16, Backing::Memfd).unwrap());
        let mut regions = Regions::new();
        regions.add(BASE, LEN as u64, ram.0.clone(), 0).unwrap();
        let features = Features::from_bits(shape.bits());
        let mut driver = Driver::new(format(shape), areas(&ram, shape, |area| area), shape.n, features).unwrap();
        let words = Area::new(&ram.0, TABLES, Tables::<Area>::bytes(shape.n, TABLE as u16)).unwrap();
        driver.set_tables(Tables::new(words, BASE + TABLES as u64, TABLE as u16)).unwrap();
        let device = resume(shape, &ram, &record, &lives).unwrap();
        let (added, sent, taken) = (Vec::new(), VecDeque::new(), Vec::new());
        let chain = Chain::new(64);
        World { shape, ram, regions, record, lives, driver, device, chain, added, sent, taken, unmarked: 0, next: 0 }
    }

    fn step(&mut self, what: u8, a: u8, b: u8) {
        match what % 12 {
            0..3 => self.add(a % 4, b % 4),
            3 => {
                let _ = self.driver.publish();
                self.sent.extend(self.added.drain(..));
            }
            4..6 => self.take(),
            6 | 7 => self.complete(a.into()),
            8 => {
                let _ = self.device.publish();
                self.unmarked = 0;
            }
            9 => self.reap(),
            10 => self.untake(),
            _ => {
                // It is killed somewhere in a publication, or behind it.
                self.lives.set(u32::from(a) % 100);
                let _ = self.device.publish();
                self.replace(u32::from(b) % 6);
            }
        }
    }

    fn add(&mut self, readable: u8, writable: u8) {
        let place =
            |i: u8| (BASE + DATA as u64 + (self.next + u64::from(i)) % 0x4000 * 16, 1 + u32::from(i), i >= readable);
        let buffers: Vec<Buffer> = (0..readable + writable).map(place).collect();
        self.next += 8;
        if buffers.is_empty() || buffers.len() > self.shape.n.into() {
            return;
        }
        let segments: Vec<_> = buffers.iter().map(|&(addr, len, writable)| Segment { addr, len, writable }).collect();
        if let Ok(id) = self.driver.add(&segments) {
            self.added.push(Sent { id, buffers, len: None });
        }
    }

    /// The next chain is the first of those that the driver waits for and the device does not have.
    fn take(&mut self) {
        let token = self.device.take(&self.regions, &mut self.chain).unwrap();
        let expected = self.sent.iter().find(|sent| self.taken.iter().all(|taken| taken.0 != sent.id));
        let Some(expected) = expected else { return assert_eq!(token, None) };
        let pieces = |pieces: &[towpath_virtio::Piece<RegionPlace>], writable| {
            pieces.iter().map(|piece| (BASE + piece.place.offset as u64, piece.len, writable)).collect::<Vec<_>>()
        };
        let got = [pieces(self.chain.readable(), false), pieces(self.chain.writable(), true)].concat();
        assert_eq!(got, expected.buffers);
        self.taken.push((expected.id, Some(token.expect("a chain"))));
        self.unmarked += 1;
    }

    fn complete(&mut self, which: usize) {
        let open: Vec<_> = (0..self.taken.len()).filter(|&i| self.taken[i].1.is_some()).collect();
        let Some(&which) = open.get(which % open.len().max(1)) else { return };
        let (id, token) = &mut self.taken[which];
        let sent = self.sent.iter_mut().find(|sent| sent.id == *id).unwrap();
        let len = naive::writable(&sent.buffers);
        sent.len = Some(len);
        self.device.add_used(token.take().unwrap(), len);
    }

    /// A chain is given back only before it is marked.
    fn untake(&mut self) {
        if self.unmarked > 0
            && let Some((_, token @ Some(_))) = self.taken.last_mut()
        {
            self.device.untake(token.take().unwrap()).unwrap();
            self.taken.pop();
            self.unmarked -= 1;
        }
    }

    fn reap(&mut self) {
        while let Some(used) = self.driver.next_used().unwrap() {
            let at = self.sent.iter().position(|sent| sent.id == used.id).expect("a chain that was sent");
            let sent = self.sent.remove(at).unwrap();
            assert_eq!(sent.len, Some(used.len), "it was completed");
            self.taken.retain(|taken| taken.0 != used.id);
        }
    }

    /// Another device, which may be killed as well while it is made.
    fn replace(&mut self, lives: u32) {
        self.lives.set(lives);
        let _ = resume(self.shape, &self.ram, &self.record, &self.lives).unwrap();
        self.lives.set(u32::MAX);
        self.device = resume(self.shape, &self.ram, &self.record, &self.lives).unwrap();
        self.reap();
        self.taken.clear();
        self.unmarked = 0;
        self.sent.iter_mut().for_each(|sent| sent.len = None);
    }

    /// Everything comes back.
    fn finish(mut self) {
        self.step(3, 0, 0);
        self.replace(u32::MAX);
        while self.taken.len() < self.sent.len() {
            self.take();
        }
        self.take();
        (0..self.sent.len()).for_each(|i| self.complete(7 * i));
        let _ = self.device.publish();
        self.reap();
        assert!(self.sent.is_empty() && self.device.outstanding() == 0);
        assert_eq!((self.driver.num_free(), self.driver.in_flight()), (self.shape.n, 0));
    }
}

fn resume(shape: Shape, ram: &Ram, record: &UntrustedMem, lives: &Rc<Cell<u32>>) -> Result<Device<Mortal>, QueueError> {
    let mortal = |area| Mortal { area, lives: lives.clone() };
    let format = format(shape);
    let words = mortal(Area::new(record, 64, InFlightRecord::<Area>::bytes(format, shape.n)).unwrap());
    let features = Features::from_bits(shape.bits());
    let (areas, record) = (areas(ram, shape, mortal), InFlightRecord::new(words));
    Device::resume(format, areas, shape.n, features, Base::start(format), record)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_chain_is_taken_again_until_it_is_used_however_often_devices_are_killed(
        shape in proptest::sample::select(Shape::all(&[1, 2, 8, 64], &[1, 3, 7, 64])),
        steps in proptest::collection::vec((0u8..12, any::<u8>(), any::<u8>()), 1..300),
    ) {
        let mut world = World::new(shape);
        for (what, a, b) in steps {
            world.step(what, a, b);
        }
        world.finish();
    }

    #[test]
    fn any_words_in_a_record_make_an_error_or_a_device_that_stays_inside(
        shape in proptest::sample::select(Shape::all(&[4, 64], &[3, 64])),
        words in proptest::collection::vec((any::<u16>(), any::<u16>(), any::<bool>()), 0..40),
        honest: bool,
    ) {
        let mut world = World::new(shape);
        for i in 0..40 {
            world.step(i, i, i / 3);
        }
        world.lives.set(20);
        let _ = world.device.publish();
        let bytes = InFlightRecord::<Area>::bytes(format(shape), shape.n);
        for (at, value, small) in words {
            let at = if small { at % 40 } else { at } as usize * 2 % bytes;
            // Version and size stay, mostly.
            if !honest || !(8..12).contains(&at) {
                let value = if small { value % (shape.n + 1) } else { value };
                assert!(world.record.put(64 + at, &value.to_le_bytes()));
            }
        }
        world.lives.set(u32::MAX);
        if let Ok(mut device) = resume(shape, &world.ram, &world.record, &world.lives) {
            let mut tokens = Vec::new();
            while let Ok(Some(token)) = device.take(&world.regions, &mut world.chain) {
                tokens.push(token);
                assert!(tokens.len() <= shape.n.into());
            }
            if let Some(token) = tokens.pop() {
                device.untake(token).unwrap();
            }
            tokens.drain(..).rev().for_each(|token| device.add_used(token, 1));
            let _ = (device.publish(), device.enable_kicks());
            let _ = resume(shape, &world.ram, &world.record, &world.lives);
        }
    }
}

fn plain(packed: bool, n: u16) -> Shape {
    Shape { packed, n, indirect: false, event_idx: false, in_order: false }
}

#[test]
fn a_split_record_lies_as_the_specification_has_it() {
    let mut world = World::new(plain(false, 8));
    (0..3).for_each(|_| world.add(1, 1));
    world.step(3, 0, 0);
    (0..3).for_each(|_| world.take());
    let heads: Vec<_> = world.sent.iter().map(|sent| usize::from(sent.id)).collect();
    let (record, at) = (Ram(world.record.clone()), |head: usize| 64 + 16 + 16 * head);
    assert_eq!((record.r64(64), record.r16(72), record.r16(74)), (0, 1, 8), "features, version, desc_num");
    assert_eq!(record.r16(at(heads[0])), 0, "not before the publication");
    world.complete(1);
    let _ = world.device.publish();
    assert_eq!(heads.iter().map(|&head| record.r16(at(head))).collect::<Vec<_>>(), [1, 0, 1], "inflight");
    assert_eq!(heads.iter().map(|&head| record.r64(at(head) + 8)).collect::<Vec<_>>(), [0, 1, 2], "counter");
    assert_eq!((usize::from(record.r16(76)), record.r16(78)), (heads[1], 1), "last_batch_head, used_idx");
    world.complete(0);
    let _ = world.device.publish();
    assert_eq!((usize::from(record.r16(76)), record.r16(78)), (heads[0], 2));
    assert_eq!(usize::from(record.r16(at(heads[0]) + 6)), heads[1], "next");
}

#[test]
fn a_packed_record_lies_as_the_specification_has_it() {
    let mut world = World::new(plain(true, 8));
    (0..3).for_each(|_| world.add(1, 1));
    world.step(3, 0, 0);
    (0..3).for_each(|_| world.take());
    let _ = world.device.publish();
    let (record, at) = (Ram(world.record.clone()), |key: usize| 64 + 32 + 32 * key);
    let header = |record: &Ram| [72, 74, 76, 78, 80, 82, 84].map(|at| record.r16(at));
    assert_eq!(header(&record), [1, 8, 6, 6, 0, 0, 0x101], "version, desc_num, free heads, used indices, wraps");
    for (key, sent) in world.sent.iter().enumerate() {
        let head = at(2 * key);
        assert_eq!((record.r16(head), record.r64(head + 8)), (1, key as u64), "inflight, counter");
        assert_eq!([2, 4, 6].map(|part| record.r16(head + part)), [2 * key as u16 + 1, 2 * key as u16 + 1, 2]);
        for (i, &(addr, len, writable)) in sent.buffers.iter().enumerate() {
            let entry = head + 32 * i;
            assert_eq!((record.r64(entry + 24), record.r32(entry + 20), record.r16(entry + 16)), (addr, len, sent.id));
            assert_eq!(record.r16(entry + 18) & 3, if writable { 2 } else { 1 }, "flags");
        }
    }
    world.complete(1);
    let _ = world.device.publish();
    assert_eq!(header(&record), [1, 8, 2, 2, 2, 2, 0x101]);
    assert_eq!((record.r16(at(2)), record.r16(at(3) + 2)), (0, 6), "inflight, next of the last one");
}

#[test]
fn a_record_of_another_queue_makes_no_device() {
    for packed in [false, true] {
        let world = World::new(plain(packed, 8));
        let failed = |shape| resume(shape, &world.ram, &world.record, &world.lives).unwrap_err();
        assert!(matches!(failed(plain(packed, 4)), QueueError::Record(_)));
        assert!(world.record.put(64 + 8, &2u16.to_le_bytes()));
        assert!(matches!(failed(plain(packed, 8)), QueueError::Record(_)), "an unknown version");
    }
}

#[test]
fn a_record_that_was_cleared_begins_where_the_front_end_says() {
    let mut world = World::new(plain(true, 8));
    (0..3).for_each(|_| world.add(1, 0));
    world.step(3, 0, 0);
    (0..3).for_each(|_| world.take());
    (0..3).for_each(|_| world.complete(0));
    let _ = world.device.publish();
    assert_eq!(world.device.base(), Base { avail: 0x8003, used: 0x8003 });
    world.replace(0);
    assert_eq!(world.device.base(), Base { avail: 0x8003, used: 0x8003 }, "that of the record");
    let words = Area::new(&world.record, 64, InFlightRecord::<Area>::bytes(Format::Packed, 8)).unwrap();
    InFlightRecord::new(words).clear();
    world.replace(0);
    assert_eq!(world.device.base(), Base::start(Format::Packed));
}
