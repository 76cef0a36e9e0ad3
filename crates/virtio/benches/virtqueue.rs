//! The cost of a chain at either side of a queue, in memory that no other core touches: burst by
//! burst, each side by itself.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_virtio::{
    Area, Areas, Base, Chain, Device, Driver, Features, Format, Layout, RegionPlace, Regions, Segment, Tables,
};

const SIZE: u16 = 256;

/// Buffers of a chain.
#[derive(Clone, Copy)]
enum Kind {
    /// A frame with its header in front.
    One,
    /// A header and a frame.
    Two,
    /// The same in an indirect table.
    Table,
    /// A frame with its header in front, and used entries for whole bursts.
    InOrder,
}

struct Rig {
    driver: Driver,
    device: Device,
    regions: Regions,
    chain: Chain<RegionPlace>,
    two: bool,
}

impl Rig {
    fn new(format: Format, kind: Kind) -> Rig {
        let memory = UntrustedMem::new(Region::new(1 << 20, Backing::Memfd).expect("memory"));
        let layout = Layout::new(format, SIZE).expect("a size");
        let areas = || Areas::new(&memory, 0, &layout).expect("room");
        let in_order = if matches!(kind, Kind::InOrder) { 1 << 35 } else { 0 };
        let features = Features::from_bits(1 << 28 | 1 << 29 | in_order);
        let mut driver = Driver::new(format, areas(), SIZE, features).expect("a queue");
        if matches!(kind, Kind::Table) {
            let words = Area::new(&memory, 1 << 16, Tables::<Area>::bytes(SIZE, 2)).expect("room");
            driver.set_tables(Tables::new(words, 1 << 16, 2)).expect("tables");
        }
        let device = Device::new(format, areas(), SIZE, features, Base::start(format)).expect("a queue");
        let mut regions = Regions::new();
        regions.add(0, 1 << 20, memory, 0).expect("a region");
        let two = matches!(kind, Kind::Two | Kind::Table);
        Rig { driver, device, regions, chain: Chain::new(64), two }
    }

    /// Adds and publishes a burst.
    fn add(&mut self, burst: u16) {
        for i in 0..u64::from(burst) {
            let frame = Segment::readable(0x8_0000 + i * 2048, 76);
            let chain: &[Segment] =
                if self.two { &[Segment::readable(0x7_0000 + i * 16, 12), frame] } else { &[frame] };
            // The number of buffers is not known where a driver is compiled.
            black_box(self.driver.add(black_box(chain))).expect("room");
        }
        black_box(self.driver.publish());
    }

    /// Gets a burst back.
    fn reap(&mut self) {
        while let Some(used) = self.driver.next_used().expect("a good device") {
            black_box(used);
        }
    }

    /// Takes, completes and publishes a burst.
    fn serve(&mut self) {
        while let Some(token) = self.device.take(&self.regions, &mut self.chain).expect("a good driver") {
            black_box(self.chain.readable());
            self.device.add_used(token, 0);
        }
        black_box(self.device.publish());
    }

    /// The time of `rounds` bursts, at the driver or at the device.
    fn time(&mut self, rounds: u64, burst: u16, driver: bool) -> Duration {
        // A clock read costs as much as a chain, so one side works on several bursts at a time.
        let bursts = u64::from((SIZE / 2 / burst).clamp(1, 64));
        let mut spent = Duration::ZERO;
        for _ in 0..rounds.div_ceil(bursts) {
            let begun = Instant::now();
            if driver {
                (0..bursts).for_each(|_| self.add(burst));
                spent += begun.elapsed();
            } else {
                (0..bursts).for_each(|_| self.add(burst));
            }
            let begun = Instant::now();
            self.serve_by(burst);
            if !driver {
                spent += begun.elapsed();
            }
            let begun = Instant::now();
            self.reap();
            if driver {
                spent += begun.elapsed();
            }
        }
        spent.mul_f64(rounds as f64 / (rounds.div_ceil(bursts) * bursts) as f64)
    }

    /// Serves what is available, a burst at a time.
    fn serve_by(&mut self, burst: u16) {
        if burst > 1 {
            return self.serve();
        }
        while let Some(token) = self.device.take(&self.regions, &mut self.chain).expect("a good driver") {
            black_box(self.chain.readable());
            self.device.add_used(token, 0);
            black_box(self.device.publish());
        }
    }
}

fn chains(c: &mut Criterion) {
    for (format, name) in [(Format::Split, "split"), (Format::Packed, "packed")] {
        let mut group = c.benchmark_group(name);
        for (kind, what) in [(Kind::One, "1"), (Kind::Two, "2"), (Kind::Table, "table"), (Kind::InOrder, "in-order")] {
            for burst in [1u16, 32] {
                for (driver, side) in [(true, "driver"), (false, "device")] {
                    let mut rig = Rig::new(format, kind);
                    group.throughput(Throughput::Elements(burst.into()));
                    group.bench_function(format!("{side}/{what}/burst {burst}"), |b| {
                        b.iter_custom(|rounds| rig.time(rounds, burst, driver));
                    });
                }
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(30);
    targets = chains
}
criterion_main!(benches);
