//! A driver and a device on one virtqueue, split or packed, while the input writes any words into
//! their memory: neither reads or writes outside of it, each returns what it was given once, and a
//! breach of the rules is an error that stays.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;
use towpath_fuzz::Input;
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_virtio::{
    AddError, Area, Areas, Base, Chain, Device, Driver, Features, Format, Layout, RegionPlace, Regions, Segment,
    Single, Tables, Token,
};

/// Bytes of the memory: queue, indirect tables, and buffers at its end.
const MEMORY: usize = 8192;
const TABLES: usize = 2048;
/// What the two sides call its first byte; there is a border of two regions in its middle.
const BASE: u64 = 0xffff_0000;
const MIDDLE: usize = MEMORY / 2 + 8;
/// Descriptors of an indirect table, and most pieces of a chain.
const TABLE: u16 = 4;
const PIECES: usize = 40;

struct Sides {
    memory: UntrustedMem,
    size: u16,
    driver: Driver,
    /// Chains in flight by id: whether they are published, writable bytes, descriptors.
    flight: HashMap<u16, (bool, u32, u16)>,
    device: Device,
    regions: Regions,
    chain: Chain<RegionPlace>,
    tokens: Vec<(Token, u32)>,
    indirect: bool,
}

impl Sides {
    fn new(input: &mut Input<'_>, memory: &UntrustedMem) -> Option<Sides> {
        let (how, size) = (input.byte(), u16::from(input.byte() % 33));
        let format = if how & 1 != 0 { Format::Packed } else { Format::Split };
        let bits = u64::from(how >> 1 & 1) << 28 | u64::from(how >> 2 & 1) << 29 | u64::from(how >> 3 & 1) << 35;
        let features = Features::from_bits(bits);
        let layout = Layout::new(format, size).ok()?;
        assert!(layout.bytes <= TABLES);
        let areas = || Areas::new(memory, 0, &layout).unwrap();
        let mut driver = Driver::new(format, areas(), size, features).unwrap();
        if how & 16 != 0 {
            let words = Area::new(memory, TABLES, Tables::<Area>::bytes(size, TABLE)).unwrap();
            driver.set_tables(Tables::new(words, BASE + TABLES as u64, TABLE)).unwrap();
        }
        let base = match how & 32 {
            0 => Base::start(format),
            _ => Base::from_vring(format, input.int()),
        };
        let device = Device::new(format, areas(), size, features, base).ok()?;
        assert!(device.outstanding() <= size);
        let mut regions = Regions::new();
        regions.add(BASE, MIDDLE as u64, memory.clone(), 0).unwrap();
        regions.add(BASE + MIDDLE as u64, (MEMORY - MIDDLE) as u64, memory.clone(), MIDDLE).unwrap();
        Some(Sides {
            memory: memory.clone(),
            size,
            driver,
            flight: HashMap::new(),
            device,
            regions,
            chain: Chain::new(PIECES),
            tokens: Vec::new(),
            indirect: how & 18 == 18,
        })
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 10 {
            0 | 1 => self.add(input),
            2 => {
                let _ = self.driver.publish();
                self.flight.values_mut().for_each(|chain| chain.0 = true);
            }
            3 => self.reap(),
            4 => self.take(),
            5 => self.take_singles(input),
            6 => {
                if !self.tokens.is_empty() {
                    let (token, most) = self.tokens.swap_remove(usize::from(input.byte()) % self.tokens.len());
                    self.device.add_used(Token::from_raw(token.into_raw()), u32::from(input.byte()).min(most));
                }
            }
            7 => {
                let _ = match input.byte() % 5 {
                    0 => self.device.publish(),
                    1 => self.driver.enable_calls(),
                    2 => self.device.enable_kicks(),
                    3 => {
                        self.driver.disable_calls();
                        self.device.disable_kicks();
                        false
                    }
                    _ => self.untake(),
                };
            }
            _ => {
                let at = usize::from(input.word()) % (MEMORY - 8);
                let bytes = input.long().to_le_bytes();
                let n = 1 << (input.byte() % 4);
                assert!(self.memory.put(at & !(n - 1), &bytes[..n]));
            }
        }
        let used: u16 = self.flight.values().map(|chain| chain.2).sum();
        assert_eq!(usize::from(self.driver.in_flight()), self.flight.len());
        assert_eq!(self.driver.num_free(), self.size - used);
        assert!(self.device.outstanding() <= self.size);
    }

    fn add(&mut self, input: &mut Input<'_>) {
        let (count, readable) = (input.byte() % 7, input.byte() % 4);
        let chain: Vec<Segment> = (0..count)
            .map(|i| {
                let at = BASE + 0x1000 + u64::from(input.byte()) * 16;
                let len = u32::from(input.byte());
                if i < readable { Segment::readable(at, len) } else { Segment::writable(at, len) }
            })
            .collect();
        match self.driver.add(&chain) {
            Ok(id) => {
                let writable = chain.iter().filter(|segment| segment.writable).map(|segment| segment.len).sum();
                let table = self.indirect && (2..=usize::from(TABLE)).contains(&chain.len());
                let slots = if table { 1 } else { chain.len() as u16 };
                assert!(id < self.size);
                assert!(self.flight.insert(id, (false, writable, slots)).is_none(), "an id in flight");
            }
            Err(AddError::Full) => assert!(usize::from(self.driver.num_free()) < chain.len()),
            Err(_) => {}
        }
    }

    fn reap(&mut self) {
        match self.driver.next_used() {
            Ok(Some(used)) => {
                let (published, writable, _) = self.flight.remove(&used.id).expect("a chain in flight");
                assert!(published && used.len <= writable);
            }
            Ok(None) => {}
            Err(error) => {
                assert_eq!(self.driver.next_used(), Err(error));
                self.driver.reset(|id| assert!(self.flight.remove(&id).is_some()));
                assert!(self.flight.is_empty());
            }
        }
    }

    fn take(&mut self) {
        match self.device.take(&self.regions, &mut self.chain) {
            Ok(Some(token)) => {
                let mut lens = [0u64; 2];
                assert!(self.chain.readable().len() + self.chain.writable().len() <= PIECES);
                for (pieces, len) in [self.chain.readable(), self.chain.writable()].into_iter().zip(&mut lens) {
                    for piece in pieces {
                        let ends = [MIDDLE, MEMORY];
                        let end = ends[piece.place.region as usize];
                        assert!(piece.len > 0 && piece.place.offset + piece.len as usize <= end);
                        *len += u64::from(piece.len);
                    }
                }
                assert_eq!(lens, [self.chain.readable_len(), self.chain.writable_len()].map(u64::from));
                self.tokens.push((token, self.chain.writable_len()));
            }
            Ok(None) => {}
            Err(error) => assert_eq!(self.device.take(&self.regions, &mut self.chain), Err(error)),
        }
    }

    fn take_singles(&mut self, input: &mut Input<'_>) {
        let (how, nowhere) = (input.byte(), RegionPlace { region: 0, offset: 0 });
        let mut singles = [Single::vacant(nowhere); 7];
        let most = usize::from(how / 2) % 8;
        let taken = self.device.take_singles(&self.regions, how % 2 == 1, &mut singles[..most]);
        for single in &singles[..taken] {
            let (token, piece) = (single.token(), single.piece);
            assert!(piece.len > 0 && self.regions.bytes(piece).is_some());
            self.tokens.push((token, if how % 2 == 1 { piece.len } else { 0 }));
        }
    }

    fn untake(&mut self) -> bool {
        let Some((token, writable)) = self.tokens.pop() else { return false };
        if let Err(token) = self.device.untake(token) {
            self.tokens.push((token, writable));
        }
        false
    }
}

thread_local! {
    static MAPPED: UntrustedMem = UntrustedMem::new(Region::new(MEMORY, Backing::Memfd).unwrap());
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    MAPPED.with(|memory| {
        assert!(memory.put(0, &[0; MEMORY]));
        let Some(mut sides) = Sides::new(&mut input, memory) else { return };
        while !input.0.is_empty() {
            sides.step(&mut input);
        }
        for (token, _) in std::mem::take(&mut sides.tokens) {
            sides.device.add_used(token, 0);
        }
        let _ = sides.device.publish();
        sides.driver.reset(|id| assert!(sides.flight.remove(&id).is_some()));
        assert!(sides.flight.is_empty(), "chains that did not come back");
    });
});
