//! What a device may not write.

use crate::naive::DEVICE;
use crate::{BOTH, BUFFER, N, driver, used};
use std::num::NonZeroU32;
use towpath_virtio::{AddError, Driver, Format, RingError, Segment, SingleBuffers, Used};

#[test]
fn a_device_that_uses_what_is_not_in_flight_breaks_the_queue() {
    for format in BOTH {
        for (id, ordered) in [(1, 0), (3, 0), (4, 0), (0xffff, 0), (1, 1 << 35), (0xffff, 1 << 35)] {
            let (ram, mut driver) = driver(format, ordered);
            assert_eq!(driver.add(&[BUFFER]), Ok(0));
            assert!(driver.publish());
            // Added, and not published: the device can't have used it.
            assert_eq!(driver.add(&[BUFFER]), Ok(1));
            used(&ram, format, 0, id, 5);
            assert_eq!(driver.next_used(), Err(RingError::UsedId(id)));
            used(&ram, format, 0, 0, 5);
            assert_eq!(driver.next_used(), Err(RingError::UsedId(id)), "a breach is final");
            let mut ids = Vec::new();
            driver.reset(|id| ids.push(id));
            assert_eq!((ids, driver.num_free(), driver.in_flight()), (vec![0, 1], N, 0));
            assert_eq!(driver.next_used(), Ok(None));
        }
    }
}

#[test]
fn a_chain_that_is_used_twice_breaks_the_queue() {
    for format in BOTH {
        let (ram, mut driver) = driver(format, 0);
        (0..2).for_each(|_| _ = driver.add(&[BUFFER]).unwrap());
        assert!(driver.publish());
        used(&ram, format, 0, 0, 5);
        used(&ram, format, 1, 0, 5);
        assert_eq!(driver.next_used().map(|used| used.map(|used| used.id)), Ok(Some(0)));
        assert_eq!(driver.next_used(), Err(RingError::UsedId(0)));
    }
}

#[test]
fn a_used_index_ahead_of_what_is_in_flight_breaks_the_queue() {
    for index in [2, 5, 0xffff] {
        let (ram, mut driver) = driver(Format::Split, 0);
        let _ = driver.add(&[BUFFER]).unwrap();
        assert!(driver.publish());
        let _ = driver.add(&[BUFFER]).unwrap();
        ram.w16(DEVICE + 2, index);
        assert_eq!(driver.next_used(), Err(RingError::UsedIndex));
        used(&ram, Format::Split, 0, 0, 5);
        assert_eq!(driver.next_used(), Err(RingError::UsedIndex), "a breach is final");
    }
    // A batch of three, of which the index counts two.
    let (ram, mut driver) = driver(Format::Split, 1 << 35);
    (0..3).for_each(|_| _ = driver.add(&[BUFFER]).unwrap());
    assert!(driver.publish());
    used(&ram, Format::Split, 0, 2, 5);
    ram.w16(DEVICE + 2, 2);
    assert!((0..2).all(|_| driver.next_used().is_ok_and(|used| used.is_some_and(|used| used.len == 100))));
    assert_eq!(driver.next_used(), Err(RingError::UsedIndex));
    let mut ids = Vec::new();
    driver.reset(|id| ids.push(id));
    assert_eq!(ids, [2], "what was not returned is in flight");
}

#[test]
fn in_order_chains_that_are_only_read_are_used_by_the_index_whatever_the_entries_say() {
    let (ram, mut driver) = driver(Format::Split, 1 << 35);
    let ids =
        |driver: &mut Driver, n| -> Vec<u16> { (0..n).map(|_| driver.next_used().unwrap().unwrap().id).collect() };
    (0..3).for_each(|_| _ = driver.add(&[Segment::readable(0x1000, 50)]).unwrap());
    assert!(driver.publish());
    used(&ram, Format::Split, 0, 0xffff, 7);
    ram.w16(DEVICE + 2, 3);
    assert_eq!(driver.next_used(), Ok(Some(Used { id: 0, len: 0 })));
    // The index counts these, and not the one that is written.
    assert_eq!(driver.add(&[BUFFER]), Ok(3));
    let _ = driver.publish();
    assert_eq!(ids(&mut driver, 2), [1, 2]);
    assert_eq!(driver.next_used(), Ok(None));
    // From here on entries count: one stands for the chain that is written and one that is read.
    assert_eq!(driver.add(&[Segment::readable(0x1000, 50)]), Ok(0));
    assert_eq!(driver.add(&[BUFFER]), Ok(1));
    let _ = driver.publish();
    used(&ram, Format::Split, 3, 3, 5);
    assert_eq!(driver.next_used(), Ok(Some(Used { id: 3, len: 5 })));
    ram.w32(DEVICE + 4, 1);
    ram.w32(DEVICE + 8, 6);
    ram.w16(DEVICE + 2, 6);
    assert_eq!(driver.next_used(), Ok(Some(Used { id: 0, len: 0 })));
    assert_eq!(driver.next_used(), Ok(Some(Used { id: 1, len: 6 })));
    // As new, no chain is written.
    driver.reset(|id| unreachable!("{id} is in flight"));
    (0..2).for_each(|_| _ = driver.add(&[Segment::readable(0x1000, 50)]).unwrap());
    assert!(driver.publish());
    ram.w16(DEVICE + 2, 2);
    assert_eq!(ids(&mut driver, 2), [0, 1]);
    ram.w16(DEVICE + 2, 3);
    assert_eq!(driver.next_used(), Err(RingError::UsedIndex), "none is in flight");
}

#[test]
fn a_length_beyond_the_writable_buffers_is_cut_and_counted() {
    for (format, bits) in BOTH.into_iter().flat_map(|format| [(format, 0), (format, 1 << 35)]) {
        let (ram, mut driver) = driver(format, bits);
        let _ = driver.add(&[Segment::readable(0x1000, 50), BUFFER]).unwrap();
        assert!(driver.publish());
        used(&ram, format, 0, 0, 101);
        assert_eq!(driver.next_used().map(|used| used.map(|used| used.len)), Ok(Some(100)));
        assert_eq!(driver.overlong(), 1);
    }
    // Of a batch the length is that of the last chain.
    for format in BOTH {
        let (ram, mut driver) = driver(format, 1 << 35);
        (0..2).for_each(|_| _ = driver.add(&[BUFFER]).unwrap());
        assert!(driver.publish());
        used(&ram, format, 0, 1, 101);
        if format == Format::Split {
            ram.w16(DEVICE + 2, 2);
        }
        assert!((0..2).all(|_| driver.next_used().is_ok_and(|used| used.is_some_and(|used| used.len == 100))));
        assert_eq!(driver.overlong(), 1);
    }
}

#[test]
fn a_chain_that_never_fits_is_refused_and_one_that_does_not_fit_now_is_not_written() {
    for format in BOTH {
        let (_, mut driver) = driver(format, 0);
        let invalid: [&[Segment]; 5] = [
            &[],
            &[BUFFER; 5],
            &[Segment::writable(0, 0)],
            &[BUFFER, Segment::readable(0, 1)],
            &[Segment::writable(0, u32::MAX), BUFFER],
        ];
        for chain in invalid {
            assert_eq!(driver.add(chain), Err(AddError::Invalid));
        }
        assert!(driver.add(&[BUFFER; 3]).is_ok());
        assert_eq!((driver.add(&[BUFFER; 2]), driver.num_free()), (Err(AddError::Full), 1));
        assert!(driver.add(&[BUFFER]).is_ok());
        assert_eq!((driver.add(&[BUFFER]), driver.num_free(), driver.in_flight()), (Err(AddError::Full), 0, 2));
    }
}

#[test]
fn a_run_of_single_buffers_ends_where_no_descriptor_is_free() {
    for format in BOTH {
        let (_, mut driver) = driver(format, 0);
        let before = driver.add(&[BUFFER]).unwrap();
        let mut buffers = Buffers(vec![]);
        assert_eq!(driver.add_singles(true, &mut buffers), 3);
        assert_eq!((driver.add_singles(true, &mut buffers), driver.num_free(), driver.in_flight()), (0, 0, 4));
        let mut ids = [vec![before], buffers.0].concat();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3]);
    }
}

/// Buffers without end, and the ids that they get.
struct Buffers(Vec<u16>);

impl SingleBuffers for Buffers {
    fn next(&mut self, id: u16) -> Option<(u64, NonZeroU32)> {
        self.0.push(id);
        Some((BUFFER.addr, NonZeroU32::new(BUFFER.len)?))
    }
}
