//! Runs both sides of a queue a given number of times, and prints the nanoseconds a chain as JSON.
//! For instruction counts:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*measured_device*' \
//!     target/release/examples/virtqueue_ops packed 32 1000
//! ```
//!
//! Arguments: `split` or `packed`, chains of a burst, rounds. A round is a burst of chains of one
//! buffer each: `measured_driver_add` adds and publishes it, `measured_device` takes, completes and
//! publishes it, `measured_driver_reap` gets it back. Time is that of all three. Words behind that:
//! with `chains` the device takes them as chains of any shape, and the driver gets them back one by
//! one; with `written` the buffers are for the device to write; `in-order` is `VIRTIO_F_IN_ORDER`.

use std::hint::black_box;
use std::time::Instant;
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_virtio::{
    Areas, Base, Chain, Device, Driver, Features, Format, Layout, RegionPlace, Regions, Segment, Single, Used,
};

const SIZE: u16 = 256;

#[inline(never)]
fn measured_driver_add(driver: &mut Driver, burst: u16, written: bool) -> bool {
    let segment = if written { Segment::writable } else { Segment::readable };
    for i in 0..burst {
        let _ = black_box(driver.add(&[segment(0x8000 + u64::from(i) * 2048, 76)]));
    }
    driver.publish()
}

#[inline(never)]
fn measured_driver_reap(driver: &mut Driver, used: &mut [Used], one_by_one: bool) {
    if one_by_one {
        while let Ok(Some(used)) = driver.next_used() {
            black_box(used);
        }
        return;
    }
    while driver.take_used(used).0 == used.len() {
        black_box(&used);
    }
}

#[inline(never)]
fn measured_device(
    device: &mut Device,
    regions: &Regions,
    chain: &mut Chain<RegionPlace>,
    any_shape: bool,
    written: bool,
) -> bool {
    let len = if written { 76 } else { 0 };
    let mut singles = [Single::vacant(RegionPlace { region: 0, offset: 0 }); 8];
    let mut n = singles.len();
    while !any_shape && n == singles.len() {
        n = device.take_singles(regions, written, &mut singles);
        black_box(&singles);
        device.add_used_all(singles[..n].iter().map(|single| (single.token(), len)));
    }
    while let Ok(Some(token)) = device.take(regions, chain) {
        black_box(chain.readable());
        device.add_used(token, len);
    }
    device.publish()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let format = match args.first().map(String::as_str) {
        Some("split") => Format::Split,
        Some("packed") => Format::Packed,
        other => {
            eprintln!("{other:?}: split or packed");
            std::process::exit(2);
        }
    };
    let number = |i: usize, default: u32| args.get(i).and_then(|n| n.parse().ok()).unwrap_or(default);
    let [one_by_one, written, in_order] =
        ["chains", "written", "in-order"].map(|word| args.iter().skip(3).any(|arg| arg == word));
    let (burst, rounds) = (number(1, 32).min(SIZE.into()) as u16, number(2, 1000));

    let memory = UntrustedMem::new(Region::new(1 << 20, Backing::Memfd).expect("memory"));
    let layout = Layout::new(format, SIZE).expect("a size");
    let areas = || Areas::new(&memory, 0, &layout).expect("room");
    let features = Features::from_bits(1 << 29 | u64::from(in_order) << 35);
    let mut driver = Driver::new(format, areas(), SIZE, features).expect("a queue");
    let mut device = Device::new(format, areas(), SIZE, features, Base::start(format)).expect("a queue");
    let mut regions = Regions::new();
    regions.add(0, 1 << 20, memory.clone(), 0).expect("a region");
    let mut chain = Chain::new(64);
    let mut used = [Used { id: 0, len: 0 }; 32];
    let mut round = || {
        black_box(measured_driver_add(&mut driver, burst, written));
        black_box(measured_device(&mut device, &regions, &mut chain, one_by_one, written));
        measured_driver_reap(&mut driver, &mut used, one_by_one);
    };
    // A fixed number, so that it falls out of the difference between two counts.
    (0..100).for_each(|_| round());
    let begun = Instant::now();
    (0..rounds).for_each(|_| round());
    let ns = begun.elapsed().as_nanos() as f64 / f64::from(rounds) / f64::from(burst);
    println!(r#"{{"format":"{format:?}","burst":{burst},"rounds":{rounds},"ns":{ns:.3}}}"#);
}
