//! What the other side may not write: each breach has its error, is final, and moves nothing.
//!
//! | module | what |
//! |---|---|
//! | `device` | what a driver may not write, against the device's side |
//! | `driver` | what a device may not write, against the driver's side |

mod device;
mod driver;
#[path = "../naive/mod.rs"]
mod naive;

use naive::{DESC, DEVICE, DRIVER, LEN, Ram};
use towpath_virtio::{
    Area, Areas, Base, Chain, Device, Driver, Features, Format, Layout, QueueError, Regions, Segment,
};

const N: u16 = 4;
const ALL: u64 = 1 << 28 | 1 << 29;

fn areas(ram: &Ram, format: Format, n: u16) -> Areas {
    let [desc, driver, device] = format.lengths(n);
    let area = |at, len| Area::new(&ram.0, at, len).unwrap();
    Areas { desc: area(DESC, desc), driver: area(DRIVER, driver), device: area(DEVICE, device) }
}

fn driver(format: Format, bits: u64) -> (Ram, Driver) {
    let ram = Ram::new();
    let driver = Driver::new(format, areas(&ram, format, N), N, Features::from_bits(bits)).unwrap();
    (ram, driver)
}

/// Writes used entry `slot`, and with a split queue the index behind it.
fn used(ram: &Ram, format: Format, slot: usize, id: u32, len: u32) {
    match format {
        Format::Split => {
            ram.w32(DEVICE + 4 + 8 * slot, id);
            ram.w32(DEVICE + 4 + 8 * slot + 4, len);
            ram.w16(DEVICE + 2, slot as u16 + 1);
        }
        Format::Packed => ram.desc(DESC + 16 * slot, 0, len, id as u16, 0x8080),
    }
}

const BOTH: [Format; 2] = [Format::Split, Format::Packed];
const BUFFER: Segment = Segment::writable(0x1000, 100);

#[test]
fn a_queue_of_a_wrong_size_or_without_room_or_base_is_refused() {
    let ram = Ram::new();
    let new = |format, n, len, base| {
        let area = |at| Area::new(&ram.0, at, len).unwrap();
        let areas = Areas { desc: area(0), driver: area(0x4000), device: area(0x8000) };
        Device::new(format, areas, n, Features::from_bits(ALL), base).map(drop)
    };
    for (format, n) in [(Format::Split, 0), (Format::Split, 3), (Format::Packed, 0), (Format::Packed, 0x8001)] {
        assert_eq!(new(format, n, 64, Base::start(format)), Err(QueueError::Size { format, size: n }));
        assert_eq!(Layout::new(format, n), Err(QueueError::Size { format, size: n }));
    }
    for format in BOTH {
        assert_eq!(new(format, 4, 64, Base::start(format)), Ok(()));
        let refused = new(format, 4, 63, Base::start(format));
        assert_eq!(refused, Err(QueueError::Area { name: "descriptor", width: 8, needed: 64, actual: 56 }));
    }
    for (avail, used) in [(0x8004, 0x8000), (0x8000, 0x8004), (0x8000, 0x8001), (1, 0x8000), (0, 1), (0x7fff, 0x7fff)] {
        let refused = Err(QueueError::Base { size: 4, avail, used });
        assert_eq!(new(Format::Packed, 4, 64, Base { avail, used }), refused, "{avail:#x} {used:#x}");
    }
    for (avail, used) in [(0x8003, 0x8000), (0, 0x8000), (0x8000, 3), (2, 2)] {
        assert_eq!(new(Format::Packed, 4, 64, Base { avail, used }), Ok(()), "{avail:#x} {used:#x}");
    }
    ram.w16(0x8002, 10);
    assert_eq!(new(Format::Split, 4, 64, Base { avail: 14, used: 0 }), Ok(()));
    let refused = Err(QueueError::Base { size: 4, avail: 15, used: 10 });
    assert_eq!(new(Format::Split, 4, 64, Base { avail: 15, used: 0 }), refused);
}

#[test]
fn a_device_goes_on_where_another_one_stopped() {
    for format in BOTH {
        for bits in [0, 1 << 29, 1 << 35] {
            let (ram, mut driver) = driver(format, bits);
            let mut regions = Regions::new();
            regions.add(0, LEN as u64, ram.0.clone(), 0).unwrap();
            let mut chain = Chain::new(8);
            let mut base = Base::start(format);
            for round in 0..40u32 {
                // What one device leaves available, the next one takes.
                while driver.add(&[Segment::writable(0x1000, round + 1)]).is_ok() {}
                let _ = driver.publish();
                let features = Features::from_bits(bits);
                let num = base.to_vring(format);
                let base_ = Base::from_vring(format, num);
                let mut device = Device::new(format, areas(&ram, format, N), N, features, base_).unwrap();
                for _ in 0..round % 4 + 1 {
                    let token = device.take(&regions, &mut chain).unwrap().unwrap();
                    let len = chain.writable_len();
                    device.add_used(token, len);
                }
                assert!(device.publish(), "a new device calls once");
                base = device.base();
                assert_eq!(device.outstanding(), 0);
                let used = std::iter::from_fn(|| driver.next_used().unwrap()).count();
                assert_eq!(used as u32, round % 4 + 1);
                if format == Format::Packed || round % 4 == 0 {
                    assert_eq!(driver.base().used, base.used);
                }
            }
        }
    }
}
