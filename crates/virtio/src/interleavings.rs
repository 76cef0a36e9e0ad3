//! Both protocols in every interleaving, under `--cfg loom`: what is published is whole when it is
//! seen, and no side sleeps with an entry in the ring and without a notification.

use crate::area::{Areas, RingWords};
use crate::base::Base;
use crate::chain::{Chain, Segment};
use crate::layout::{Features, Format};
use crate::queue::{Device, Driver};
use crate::space::AddressSpace;
use loom::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use towpath_sys::sync::{AtomicU16, AtomicU32, AtomicU64, EventFd, model};

/// Words of an area: each field is accessed with one width only.
#[derive(Debug, Clone)]
struct Words(Arc<(Vec<AtomicU16>, Vec<AtomicU32>, Vec<AtomicU64>)>);

impl Words {
    fn new(words16: usize, words32: usize, words64: usize) -> Words {
        Words(Arc::new((
            (0..words16).map(|_| AtomicU16::new(0)).collect(),
            (0..words32).map(|_| AtomicU32::new(0)).collect(),
            (0..words64).map(|_| AtomicU64::new(0)).collect(),
        )))
    }
}

impl RingWords for Words {
    fn bytes(&self, width: usize) -> usize {
        match width {
            2 => 2 * self.0.0.len(),
            4 => 4 * self.0.1.len(),
            _ => 8 * self.0.2.len(),
        }
    }
    fn load16(&self, index: usize, order: Ordering) -> u16 {
        self.0.0[index].load(order)
    }
    fn load32(&self, index: usize, order: Ordering) -> u32 {
        self.0.1[index].load(order)
    }
    fn load64(&self, index: usize, order: Ordering) -> u64 {
        self.0.2[index].load(order)
    }
    fn store16(&self, index: usize, value: u16, order: Ordering) {
        self.0.0[index].store(value, order);
    }
    fn store32(&self, index: usize, value: u32, order: Ordering) {
        self.0.1[index].store(value, order);
    }
    fn store64(&self, index: usize, value: u64, order: Ordering) {
        self.0.2[index].store(value, order);
    }
}

/// Addresses are what they say.
struct Plain;

impl AddressSpace for Plain {
    type Place = u64;
    fn translate(&self, addr: u64, len: u32, _write: bool) -> Option<(u64, u32)> {
        Some((addr, len))
    }
    fn read_desc(&self, _addr: u64) -> Option<[u64; 2]> {
        None
    }
}

const SIZE: u16 = 2;

fn areas(format: Format) -> (Areas<Words>, Areas<Words>) {
    let n = usize::from(SIZE);
    let (desc, driver, device) = match format {
        Format::Split => (Words::new(0, 0, 2 * n), Words::new(3 + n, 0, 0), Words::new(3 + 4 * n, 1 + 2 * n, 0)),
        Format::Packed => (Words::new(0, 0, 2 * n), Words::new(0, 1, 0), Words::new(0, 1, 0)),
    };
    let one = || Areas { desc: desc.clone(), driver: driver.clone(), device: device.clone() };
    (one(), one())
}

fn queue(format: Format, event_idx: bool) -> (Driver<Words>, Device<Words>) {
    let features = Features { event_idx, ..Features::default() };
    let (one, other) = areas(format);
    let driver = Driver::new(format, one, SIZE, features).unwrap();
    (driver, Device::new(format, other, SIZE, features, Base::start(format)).unwrap())
}

/// A buffer that the device reads, and one that it writes.
#[derive(Clone)]
struct Bytes(Arc<(AtomicU64, AtomicU64)>);

impl Bytes {
    fn new() -> Bytes {
        Bytes(Arc::new((AtomicU64::new(0), AtomicU64::new(0))))
    }
}

/// A chain of two buffers goes to the device and comes back, and then another one.
fn exchange(format: Format) {
    model(move || {
        let (mut driver, mut device) = queue(format, false);
        let (kick, call, bytes) = (Arc::new(EventFd::new().unwrap()), Arc::new(EventFd::new().unwrap()), Bytes::new());
        let (kicked, calling, buffers) = (kick.clone(), call.clone(), bytes.clone());
        let thread = loom::thread::spawn(move || {
            let mut chain = Chain::new(2);
            let token = loop {
                if let Some(token) = device.take(&Plain, &mut chain).unwrap() {
                    break token;
                }
                kicked.clear();
                if !device.enable_kicks() {
                    kicked.wait();
                }
            };
            assert_eq!((chain.readable_len(), chain.writable_len()), (7, 9));
            assert_eq!((chain.readable()[0].place, chain.writable()[0].place), (0x1000, 0x2000));
            // Relaxed: the queue orders the buffers.
            assert_eq!(buffers.0.0.load(Relaxed), 11);
            buffers.0.1.store(22, Relaxed);
            device.add_used(token, 9);
            if device.publish() {
                calling.signal();
            }
        });
        bytes.0.0.store(11, Relaxed);
        let id = driver.add(&[Segment::readable(0x1000, 7), Segment::writable(0x2000, 9)]).unwrap();
        if driver.publish() {
            kick.signal();
        }
        let used = loop {
            if let Some(used) = driver.next_used().unwrap() {
                break used;
            }
            call.clear();
            if !driver.enable_calls() {
                call.wait();
            }
        };
        assert_eq!((used.id, used.len), (id, 9));
        assert_eq!(bytes.0.1.load(Relaxed), 22);
        thread.join().unwrap();
    });
}

/// A device that sleeps gets two chains, published one by one or together; a sleep without a kick
/// is a deadlock, which the model checker reports.
fn kicks(format: Format, event_idx: bool, together: bool) {
    model(move || {
        let (mut driver, mut device) = queue(format, event_idx);
        let kick = Arc::new(EventFd::new().unwrap());
        let kicked = kick.clone();
        let thread = loom::thread::spawn(move || {
            let mut chain = Chain::new(2);
            for expected in [1, 2] {
                loop {
                    if device.take(&Plain, &mut chain).unwrap().is_some() {
                        assert_eq!(chain.writable()[0].place, expected);
                        break;
                    }
                    kicked.clear();
                    if !device.enable_kicks() {
                        kicked.wait();
                    }
                    device.disable_kicks();
                }
            }
        });
        for addr in [1, 2] {
            driver.add(&[Segment::writable(addr, 8)]).unwrap();
            if (!together || addr == 2) && driver.publish() {
                kick.signal();
            }
        }
        thread.join().unwrap();
    });
}

/// How two used chains are published.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Burst {
    OneByOne,
    Together,
    /// One by one, the second one early.
    Early,
}

/// A driver that sleeps gets two chains back.
fn calls(format: Format, event_idx: bool, burst: Burst) {
    model(move || {
        let (mut driver, mut device) = queue(format, event_idx);
        for addr in [1, 2] {
            driver.add(&[Segment::writable(addr, 8)]).unwrap();
        }
        let _ = driver.publish();
        let call = Arc::new(EventFd::new().unwrap());
        let calling = call.clone();
        let thread = loom::thread::spawn(move || {
            let mut chain = Chain::new(2);
            for last in [false, true] {
                let token = device.take(&Plain, &mut chain).unwrap().unwrap();
                device.add_used(token, 5);
                if burst == Burst::Early && last {
                    device.publish_early();
                }
                if (burst != Burst::Together || last) && device.publish() {
                    calling.signal();
                }
            }
        });
        for _ in 0..2 {
            loop {
                if let Some(used) = driver.next_used().unwrap() {
                    assert_eq!(used.len, 5);
                    break;
                }
                call.clear();
                if !driver.enable_calls() {
                    call.wait();
                }
                driver.disable_calls();
            }
        }
        thread.join().unwrap();
    });
}

macro_rules! models {
    ($($name:ident: $model:expr;)*) => { $(#[test] fn $name() { $model; })* };
}

models! {
    a_split_chain_is_whole_when_it_is_seen: exchange(Format::Split);
    a_packed_chain_is_whole_when_it_is_seen: exchange(Format::Packed);
    no_kick_of_a_split_queue_is_lost: kicks(Format::Split, false, false);
    no_kick_of_a_split_queue_with_event_indices_is_lost: kicks(Format::Split, true, false);
    no_kick_of_a_packed_queue_is_lost: kicks(Format::Packed, false, false);
    no_kick_of_a_packed_queue_with_event_indices_is_lost: kicks(Format::Packed, true, false);
    a_split_burst_is_seen_whole: kicks(Format::Split, true, true);
    a_packed_burst_is_seen_whole: kicks(Format::Packed, true, true);
    no_call_of_a_split_queue_is_lost: calls(Format::Split, false, Burst::OneByOne);
    no_call_of_a_split_queue_with_event_indices_is_lost: calls(Format::Split, true, Burst::OneByOne);
    no_call_of_a_packed_queue_is_lost: calls(Format::Packed, false, Burst::OneByOne);
    no_call_of_a_packed_queue_with_event_indices_is_lost: calls(Format::Packed, true, Burst::OneByOne);
    no_call_for_an_early_chain_of_a_split_queue_is_lost: calls(Format::Split, true, Burst::Early);
    no_call_for_an_early_chain_of_a_packed_queue_is_lost: calls(Format::Packed, true, Burst::Early);
    a_split_burst_comes_back_whole: calls(Format::Split, true, Burst::Together);
    a_packed_burst_comes_back_whole: calls(Format::Packed, true, Burst::Together);
}
