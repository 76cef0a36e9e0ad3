//! What a driver may not write.

use crate::naive::{BASE, DATA, DESC, DEVICE, DRIVER, LEN, Ram};
use crate::{ALL, N, areas};
use towpath_virtio::{Base, Chain, Device, Features, Format, RegionPlace, Regions, RingError, Single, Token};

struct Victim {
    ram: Ram,
    device: Device,
    regions: Regions,
    chain: Chain<RegionPlace>,
}

impl Victim {
    fn new(format: Format, bits: u64) -> Victim {
        let ram = Ram::new();
        let base = Base::start(format);
        let device = Device::new(format, areas(&ram, format, N), N, Features::from_bits(bits), base).unwrap();
        let mut regions = Regions::new();
        regions.add(BASE, LEN as u64, ram.0.clone(), 0).unwrap();
        Victim { ram, device, regions, chain: Chain::new(8) }
    }

    /// Takes the next chain. What breaks a rule is none of one buffer.
    fn take(&mut self) -> Result<Option<Token>, RingError> {
        let mut singles = [Single::vacant(RegionPlace { region: 0, offset: 0 })];
        for writable in [false, true] {
            if self.device.take_singles(&self.regions, writable, &mut singles) > 0 {
                let _ = self.device.untake(singles[0].token());
            }
        }
        self.device.take(&self.regions, &mut self.chain)
    }

    /// Split: descriptor `i`.
    fn split(&self, i: usize, addr: u64, len: u32, flags: u16, next: u16) {
        self.ram.desc(DESC + 16 * i, addr, len, flags, next);
    }

    /// Packed: descriptor `i`, available in the first round.
    fn packed(&self, i: usize, addr: u64, len: u32, flags: u16, id: u16) {
        self.ram.desc(DESC + 16 * i, addr, len, id, flags | 0x80);
    }

    /// Split: heads that are available.
    fn offer(&self, heads: &[u16]) {
        for (i, &head) in heads.iter().enumerate() {
            self.ram.w16(DRIVER + 4 + 2 * i, head);
        }
        self.ram.w16(DRIVER + 2, heads.len() as u16);
    }

    /// The error comes, and stays when memory is as it should be.
    fn breaks(mut self, error: RingError) {
        assert_eq!(self.take(), Err(error));
        self.split(0, data(0), 8, 0, 0);
        self.offer(&[0]);
        assert_eq!(self.take(), Err(error), "a breach is final");
        assert!(!self.device.publish());
        assert_eq!(self.device.outstanding(), 0);
    }
}

fn data(i: u64) -> u64 {
    BASE + DATA as u64 + 4096 * i
}

/// Descriptors from 0 on: address, length, flags, next.
type Split<'a> = &'a [(u64, u32, u16, u16)];
/// Address, length, flags.
type Packed<'a> = &'a [(u64, u32, u16)];

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;

#[test]
fn a_split_chain_that_breaks_a_rule_breaks_the_queue_and_names_the_rule() {
    let end = BASE + LEN as u64;
    let refused = |addr, len| RingError::Address { addr, len };
    let cases: [(Split<'_>, u16, u64, RingError); 18] = [
        (&[], 4, ALL, RingError::Index(4)),
        (&[], 0xffff, ALL, RingError::Index(0xffff)),
        (&[(data(0), 8, NEXT, 4)], 0, ALL, RingError::Index(4)),
        (&[(data(0), 8, NEXT, 0)], 0, ALL, RingError::ChainLength),
        (&[(data(0), 8, NEXT, 1), (data(0), 8, NEXT, 0)], 0, ALL, RingError::ChainLength),
        (&[(data(0), 8, WRITE | NEXT, 1), (data(0), 8, 0, 0)], 0, ALL, RingError::Order),
        (&[(data(0), u32::MAX, NEXT, 1), (data(0), 1, 0, 0)], 0, ALL, refused(data(0), u32::MAX)),
        (&[(BASE - 1, 1, 0, 0)], 0, ALL, refused(BASE - 1, 1)),
        (&[(end, 0, 0, 0)], 0, ALL, refused(end, 0)),
        (&[(end - 8, 9, 0, 0)], 0, ALL, refused(end - 8, 9)),
        (&[(u64::MAX, 2, WRITE, 0)], 0, ALL, refused(u64::MAX, 2)),
        (&[(data(0), 16, TABLE, 0)], 0, 0, RingError::Indirect),
        (&[(data(0), 16, TABLE | NEXT, 0)], 0, ALL, RingError::Indirect),
        (&[(data(0), 0, TABLE, 0)], 0, ALL, RingError::IndirectLength(0)),
        (&[(data(0), 17, TABLE, 0)], 0, ALL, RingError::IndirectLength(17)),
        (&[(data(0), u32::MAX - 15, TABLE, 0)], 0, ALL, RingError::ChainLength),
        (&[(end - 8, 16, TABLE, 0)], 0, ALL, refused(end - 8, 16)),
        (&[(u64::MAX - 7, 32, TABLE, 0)], 0, ALL, refused(u64::MAX - 7, 32)),
    ];
    for (descs, head, bits, error) in cases {
        let victim = Victim::new(Format::Split, bits);
        for (i, &(addr, len, flags, next)) in descs.iter().enumerate() {
            victim.split(i, addr, len, flags, next);
        }
        victim.offer(&[head]);
        victim.breaks(error);
    }
}

#[test]
fn a_split_table_that_breaks_a_rule_breaks_the_queue() {
    let cases: [(Split<'_>, RingError); 5] = [
        (&[(data(0), 8, NEXT, 2), (data(0), 8, 0, 0)], RingError::Index(2)),
        (&[(data(0), 8, NEXT, 1), (data(0), 8, NEXT, 0)], RingError::ChainLength),
        (&[(data(1), 16, TABLE, 0)], RingError::Indirect),
        (&[(data(0), 8, WRITE | NEXT, 1), (data(0), 8, 0, 0)], RingError::Order),
        (&[(0, 8, 0, 0)], RingError::Address { addr: 0, len: 8 }),
    ];
    for (table, error) in cases {
        let victim = Victim::new(Format::Split, ALL);
        for (i, &(addr, len, flags, next)) in table.iter().enumerate() {
            victim.ram.desc(DATA + 4096 + 16 * i, addr, len, flags, next);
        }
        victim.split(0, data(1), 16 * table.len() as u32, TABLE, 0);
        victim.offer(&[0]);
        victim.breaks(error);
    }
}

#[test]
fn a_packed_chain_that_breaks_a_rule_breaks_the_queue_and_names_the_rule() {
    let cases: [(Packed<'_>, u64, RingError); 9] = [
        (&[(data(0), 8, NEXT); 4], ALL, RingError::ChainLength),
        (&[(data(0), 8, WRITE | NEXT), (data(0), 8, 0)], ALL, RingError::Order),
        (&[(BASE - 1, 1, 0)], ALL, RingError::Address { addr: BASE - 1, len: 1 }),
        (&[(data(0), 16, TABLE)], 0, RingError::Indirect),
        (&[(data(0), 16, TABLE | NEXT), (data(0), 8, 0)], ALL, RingError::Indirect),
        (&[(data(0), 8, NEXT), (data(0), 16, TABLE)], ALL, RingError::Indirect),
        (&[(data(0), 24, TABLE)], ALL, RingError::IndirectLength(24)),
        (&[(data(0), 16 * 1025, TABLE)], ALL, RingError::ChainLength),
        (&[(0, 32, TABLE)], ALL, RingError::Address { addr: 0, len: 32 }),
    ];
    for (descs, bits, error) in cases {
        let victim = Victim::new(Format::Packed, bits);
        for (i, &(addr, len, flags)) in descs.iter().enumerate() {
            victim.packed(i, addr, len, flags, 7);
        }
        victim.breaks(error);
    }
}

#[test]
fn a_chain_of_more_bytes_than_32_bits_count_breaks_the_queue() {
    let ram = Ram::new();
    let device = Device::new(
        Format::Split,
        areas(&ram, Format::Split, N),
        N,
        Features::from_bits(0),
        Base::start(Format::Split),
    );
    /// Every address is good.
    struct Endless;
    impl towpath_virtio::AddressSpace for Endless {
        type Place = u64;
        fn translate(&self, addr: u64, len: u32, _write: bool) -> Option<(u64, u32)> {
            Some((addr, len))
        }
        fn read_desc(&self, _addr: u64) -> Option<[u64; 2]> {
            None
        }
    }
    ram.desc(DESC, 0, u32::MAX, NEXT, 1);
    ram.desc(DESC + 16, 0, 1, WRITE, 0);
    ram.w16(DRIVER + 2, 1);
    assert_eq!(device.unwrap().take(&Endless, &mut Chain::new(8)), Err(RingError::ChainBytes));
}

#[test]
fn an_available_index_that_jumps_or_goes_back_breaks_the_queue() {
    for index in [5, 0x8000, 0xffff] {
        let victim = Victim::new(Format::Split, ALL);
        victim.ram.w16(DRIVER + 2, index);
        victim.breaks(RingError::AvailIndex);
    }
    // All four are taken, and a fifth is available that can't be.
    let mut victim = Victim::new(Format::Split, ALL);
    (0..4).for_each(|i| victim.split(i, data(0), 8, 0, 0));
    victim.offer(&[0, 1, 2, 3]);
    let tokens: Vec<_> = (0..4).map(|_| victim.take().unwrap().unwrap()).collect();
    victim.ram.w16(DRIVER + 2, 5);
    assert_eq!(victim.take(), Err(RingError::AvailIndex));
    // What was taken before can be returned.
    tokens.into_iter().for_each(|token| victim.device.add_used(token, 0));
    assert!(victim.device.publish());
    assert_eq!(victim.ram.r16(DEVICE + 2), 4);
}

#[test]
fn packed_descriptors_that_are_available_twice_break_the_queue() {
    let mut victim = Victim::new(Format::Packed, ALL);
    (0..4).for_each(|i| victim.packed(i, data(0), 8, 0, i as u16));
    let tokens: Vec<_> = (0..4).map(|_| victim.take().unwrap().unwrap()).collect();
    assert_eq!(victim.take(), Ok(None));
    // The second round's flags, with nothing used.
    victim.ram.desc(DESC, data(0), 8, 9, 0x8000);
    assert_eq!(victim.take(), Err(RingError::AvailIndex));
    tokens.into_iter().for_each(|token| victim.device.add_used(token, 0));
    assert!(victim.device.publish());
}

#[test]
fn in_order_one_used_entry_stands_for_chains_that_were_read_and_for_none_that_was_written() {
    // The ids of used entries 0 and 1: that of the second chain, or those of both.
    for (flags, ids) in [(0, [1, 0xbeef]), (WRITE, [0, 1])] {
        let mut victim = Victim::new(Format::Split, 1 << 35);
        (0..2).for_each(|i| victim.split(i, data(0), 8, flags, 0));
        victim.offer(&[0, 1]);
        victim.ram.w32(DEVICE + 12, 0xbeef);
        let (first, second) = (victim.take().unwrap().unwrap(), victim.take().unwrap().unwrap());
        let len = victim.chain.writable_len();
        victim.device.add_used(second, len);
        assert!(!victim.device.publish(), "it waits for the first one");
        victim.device.add_used(first, len);
        assert!(victim.device.publish());
        assert_eq!(victim.ram.r16(DEVICE + 2), 2);
        assert_eq!([4, 12].map(|at| victim.ram.r32(DEVICE + at)), ids);
    }
}

#[test]
fn in_order_one_used_entry_ends_with_the_first_chain_that_was_written() {
    let mut victim = Victim::new(Format::Split, 1 << 35);
    for (i, flags) in [0, WRITE, WRITE].into_iter().enumerate() {
        victim.split(i, data(0), 8, flags, 0);
    }
    victim.offer(&[0, 1, 2]);
    (0..3).for_each(|i| victim.ram.w32(DEVICE + 4 + 8 * i, 0xbeef));
    for _ in 0..3 {
        let token = victim.take().unwrap().unwrap();
        let len = victim.chain.writable_len();
        victim.device.add_used(token, len);
    }
    assert!(victim.device.publish());
    assert_eq!(victim.ram.r16(DEVICE + 2), 3);
    // The entry of the first two, and that of the third.
    assert_eq!([4, 12, 20].map(|at| victim.ram.r32(DEVICE + at)), [1, 0xbeef, 2]);
}

#[test]
fn a_packed_chain_that_runs_into_one_that_is_outstanding_breaks_the_queue() {
    let mut victim = Victim::new(Format::Packed, ALL);
    (0..4).for_each(|i| victim.packed(i, data(0), 8, if i > 0 { NEXT } else { 0 }, 1));
    let first = victim.take().unwrap().unwrap();
    assert_eq!(victim.take(), Err(RingError::ChainLength));
    victim.device.add_used(first, 0);
}

#[test]
fn an_empty_buffer_is_checked_and_left_out() {
    for format in [Format::Split, Format::Packed] {
        let mut victim = Victim::new(format, ALL);
        match format {
            Format::Split => {
                victim.split(0, data(0), 0, NEXT, 1);
                victim.split(1, data(1), 0, NEXT | WRITE, 2);
                victim.split(2, data(2), 3, WRITE, 0);
                victim.offer(&[0]);
            }
            Format::Packed => {
                victim.packed(0, data(0), 0, NEXT, 0);
                victim.packed(1, data(1), 0, NEXT | WRITE, 0);
                victim.packed(2, data(2), 3, WRITE, 0);
            }
        }
        let token = victim.take().unwrap().unwrap();
        assert_eq!((victim.chain.readable().len(), victim.chain.writable().len()), (0, 1));
        assert_eq!(victim.chain.writable()[0].len, 3);
        victim.device.add_used(token, 3);
    }
}

#[test]
fn a_chain_goes_from_direct_descriptors_to_a_table_and_over_the_border_of_two_regions() {
    let mut victim = Victim::new(Format::Split, ALL);
    victim.regions = Regions::new();
    let border = data(1);
    victim.regions.add(BASE, border - BASE, victim.ram.0.clone(), 0).unwrap();
    let rest = LEN - (border - BASE) as usize;
    victim.regions.add(border, rest as u64, victim.ram.0.clone(), LEN - rest).unwrap();
    victim.split(0, border - 5, 12, NEXT, 1);
    victim.split(1, data(2), 32, TABLE, 0);
    victim.ram.desc(DATA + 2 * 4096, data(3), 9, NEXT | WRITE, 1);
    victim.ram.desc(DATA + 2 * 4096 + 16, data(4), 1, WRITE, 0);
    victim.offer(&[0]);
    let token = victim.take().unwrap().unwrap();
    let lens = |pieces: &[towpath_virtio::Piece<RegionPlace>]| {
        pieces.iter().map(|piece| (piece.place.region, piece.len)).collect::<Vec<_>>()
    };
    assert_eq!(lens(victim.chain.readable()), [(0, 5), (1, 7)]);
    assert_eq!(lens(victim.chain.writable()), [(1, 9), (1, 1)]);
    victim.device.add_used(token, 10);
}

#[test]
fn a_chain_of_more_pieces_than_its_receiver_takes_breaks_the_queue() {
    let mut victim = Victim::new(Format::Split, ALL);
    victim.chain = Chain::new(2);
    (0..3).for_each(|i| victim.split(i, data(0), 8, if i < 2 { NEXT } else { 0 }, i as u16 + 1));
    victim.offer(&[0]);
    victim.breaks(RingError::ChainLength);
}

#[test]
fn chains_are_taken_back_in_reverse_order_and_no_other() {
    for format in [Format::Split, Format::Packed] {
        let mut victim = Victim::new(format, ALL);
        for i in 0..2u16 {
            victim.split(i.into(), data(i.into()), 8, 0, 0);
            if format == Format::Packed {
                victim.packed(i.into(), data(i.into()), 8, 0, i);
            }
        }
        if format == Format::Split {
            victim.offer(&[0, 1]);
        }
        let (first, second) = (victim.take().unwrap().unwrap(), victim.take().unwrap().unwrap());
        let first = victim.device.untake(first).unwrap_err();
        victim.device.untake(second).unwrap();
        victim.device.untake(first).unwrap();
        assert_eq!(victim.device.outstanding(), 0);
        let again = victim.take().unwrap().unwrap();
        assert_eq!(victim.chain.readable()[0].place.offset, DATA);
        victim.device.add_used(again, 0);
        assert!(victim.device.publish());
    }
}
