//! A driver that breaks a rule is found out, rule by rule.

use super::*;
use crate::wire::Sink;
use towpath_bus::{Access, Bus, Dma, Mmio, Pci};
use towpath_packet::Region;

const STATUS: usize = 20;
const SELECT: usize = 22;
const DESC: usize = 32;
const NOTIFY: usize = 0x3000;

/// What a driver does.
type Deed<'a> = &'a dyn Fn(&Driver);

/// A driver of one transmit queue of eight descriptors, a register and a word at a time.
struct Driver {
    bus: VirtioBus,
    bar: VirtioBar,
    memory: Region,
    at: u64,
}

impl Driver {
    /// The device decodes, and may access a page of memory.
    fn new(features: u64) -> Driver {
        let config = Config { features, strict: true, ..Config::default() };
        let bus = launch(config, Sink).unwrap();
        bus.set_master(true);
        let memory = bus.dma().alloc(4096).unwrap();
        // SAFETY: the region lives as long as the bus, and nothing else refers to it.
        let at = unsafe { bus.dma().map(memory.base(), memory.len(), Access::Both) }.unwrap().get();
        let bar = bus.bar(4, 0x4000).unwrap();
        Driver { bus, bar, memory, at }
    }

    fn status(&self, value: u8) {
        self.bar.w8(STATUS, value);
    }

    fn choose(&self, features: u64) {
        self.status(1);
        self.status(3);
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.bar.w32(8, select);
            self.bar.w32(12, half);
        }
        self.status(11);
    }

    /// The areas at 0, 256 and 512 of the page.
    fn queue(&self) {
        self.bar.w16(SELECT, 1);
        self.bar.w16(24, 8);
        for (i, offset) in [0, 256, 512].into_iter().enumerate() {
            self.bar.w32(DESC + 8 * i, (self.at + offset) as u32);
            self.bar.w32(DESC + 8 * i + 4, (self.at >> 32) as u32);
        }
        self.bar.w16(28, 1);
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        self.bus.dma().probe_write(self.at + offset, bytes).unwrap();
    }

    /// A descriptor: of bytes of the same page.
    fn descriptor(&self, index: u64, (offset, len, flags, next): (u64, u32, u16, u16)) {
        let at = self.at + offset;
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.put(16 * index, &bytes);
    }

    /// Makes heads available.
    fn publish(&self, heads: &[u16]) {
        let entries: Vec<u8> = heads.iter().flat_map(|head| head.to_le_bytes()).collect();
        self.put(256 + 4, &entries);
        self.put(256 + 2, &(heads.len() as u16).to_le_bytes());
    }

    /// The rule that was broken, after the device has had a turn.
    fn broken(self) -> String {
        let device = self.bus.device();
        device.turn();
        let found = device.violation().map_or("none".to_owned(), |violation| violation.to_string());
        drop((self.bar, self.bus));
        drop(self.memory);
        found
    }
}

const PLAIN: u64 = 1 << 32 | 1 << 33;

/// A driver that has done all that is right, with features.
fn running(features: u64) -> Driver {
    let driver = Driver::new(FEATURES);
    driver.choose(PLAIN | features);
    driver.queue();
    driver.status(15);
    driver
}

#[test]
fn a_driver_that_keeps_to_the_rules_breaks_none() {
    let driver = running(0);
    driver.put(1024, &[0; 12 + 60]);
    driver.descriptor(0, (1024, 12, 1, 1));
    driver.descriptor(1, (1036, 60, 0, 0));
    driver.publish(&[0]);
    driver.bar.w16(NOTIFY + 4, 1);
    let device = driver.bus.device();
    assert!(device.turn() > 0);
    assert_eq!((device.counts().sent, device.counts().kicks), (1, 1));
    assert_eq!(driver.broken(), "none");
}

#[test]
fn the_order_of_initialization_is_checked() {
    let cases: [(&str, Deed<'_>); 8] = [
        ("after FEATURES_OK", &|driver| {
            driver.status(1);
            driver.queue();
        }),
        ("after the status DRIVER", &|driver| {
            driver.status(1);
            driver.bar.w32(12, 1);
        }),
        ("clears no bit", &|driver| {
            driver.status(3);
            driver.status(1);
        }),
        ("without FEATURES_OK", &|driver| driver.status(7)),
        ("not offered", &|driver| {
            driver.status(3);
            driver.bar.w32(12, 1 << 2);
        }),
        ("alignment", &|driver| {
            driver.choose(PLAIN);
            driver.bar.w16(SELECT, 1);
            driver.bar.w32(DESC, 8);
            driver.bar.w16(28, 1);
        }),
        ("size of a queue", &|driver| {
            driver.choose(PLAIN);
            driver.bar.w16(24, 48);
        }),
        ("before DRIVER_OK", &|driver| driver.bar.w16(NOTIFY, 0)),
    ];
    for (rule, does) in cases {
        let driver = Driver::new(FEATURES);
        does(&driver);
        let found = driver.broken();
        assert!(found.contains(rule), "{rule}: {found}");
    }
}

#[test]
fn features_that_do_not_go_together_are_refused() {
    for features in [0, 1 << 32, PLAIN | 1 << 18] {
        let driver = Driver::new(FEATURES);
        driver.choose(features);
        assert_eq!(driver.bar.r8(STATUS), 3, "{features:#x}");
    }
    let driver = Driver::new(FEATURES);
    driver.choose(PLAIN);
    assert_eq!(driver.bar.r8(STATUS), 11);
    driver.status(0);
    assert_eq!(driver.bar.r8(STATUS), 0);
}

#[test]
fn chains_that_break_a_rule_are_found_and_the_device_needs_a_reset() {
    let cases: [(&str, u64, Deed<'_>); 8] = [
        ("more chains", 0, &|driver| driver.put(256 + 2, &9u16.to_le_bytes())),
        ("beyond its table", 0, &|driver| driver.publish(&[8])),
        ("without an end", 0, &|driver| {
            driver.descriptor(0, (1024, 80, 1, 0));
            driver.publish(&[0]);
        }),
        ("behind one to write", 0, &|driver| {
            driver.descriptor(0, (1024, 80, 3, 1));
            driver.descriptor(1, (1024, 80, 0, 0));
            driver.publish(&[0]);
        }),
        ("not negotiated", 0, &|driver| {
            driver.descriptor(0, (1024, 32, 4, 0));
            driver.publish(&[0]);
        }),
        ("the length of an indirect table", 1 << 28, &|driver| {
            driver.descriptor(0, (1024, 33, 4, 0));
            driver.publish(&[0]);
        }),
        ("in the order of the ring", 1 << 35, &|driver| {
            driver.descriptor(3, (1024, 80, 0, 0));
            driver.publish(&[3]);
        }),
        ("not mapped", 0, &|driver| {
            driver.descriptor(0, (1 << 30, 80, 0, 0));
            driver.publish(&[0]);
        }),
    ];
    for (rule, features, does) in cases {
        let driver = running(features);
        does(&driver);
        let device = driver.bus.device();
        device.turn();
        assert_eq!(driver.bar.r8(STATUS) & 64, 64, "{rule}");
        let found = driver.broken();
        assert!(found.contains(rule), "{rule}: {found}");
    }
}

#[test]
fn headers_of_sent_frames_are_checked() {
    for (rule, header) in [
        ("segmentation", [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("num_buffers", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ("flags", [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0]),
    ] {
        let driver = running(0);
        driver.put(1024, &[&header[..], &[0; 60]].concat());
        driver.descriptor(0, (1024, 72, 0, 0));
        driver.publish(&[0]);
        let found = driver.broken();
        assert!(found.contains(rule), "{rule}: {found}");
    }
}
