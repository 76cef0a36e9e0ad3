//! Both sides of a queue allocate nothing once they are made.

use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_testing::{Counting, allocations};
use towpath_virtio::{
    Area, Areas, Base, Chain, Device, Driver, Features, Format, InFlightRecord, Layout, RegionPlace, Regions, Segment,
    Single, Used,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn chains_go_round_without_an_allocation() {
    for format in [Format::Split, Format::Packed] {
        for (bits, recorded) in [(0, false), (1 << 29, false), (1 << 35, false), (0, true), (1 << 35, true)] {
            let memory = UntrustedMem::new(Region::new(1 << 16, Backing::Memfd).unwrap());
            let layout = Layout::new(format, 64).unwrap();
            let areas = || Areas::new(&memory, 0, &layout).unwrap();
            let features = Features::from_bits(bits);
            let mut driver = Driver::new(format, areas(), 64, features).unwrap();
            let mut device = Device::new(format, areas(), 64, features, Base::start(format)).unwrap();
            if recorded {
                let words = Area::new(&memory, 0xa000, InFlightRecord::<Area>::bytes(format, 64)).unwrap();
                let record = InFlightRecord::new(words);
                device = Device::resume(format, areas(), 64, features, Base::start(format), record).unwrap();
            }
            let mut regions = Regions::new();
            regions.add(0, 1 << 16, memory.clone(), 0).unwrap();
            let mut chain = Chain::new(8);
            let one = [Segment::readable(0x8000, 12)];
            let two = [Segment::readable(0x8000, 12), Segment::writable(0x9000, 64)];
            let mut singles = [Single::vacant(RegionPlace { region: 0, offset: 0 }); 8];
            let mut used = [Used { id: 0, len: 0 }; 8];
            let mut turns = 0;
            let n = allocations(|| {
                // Chains of one buffer, and of two.
                turns += 1;
                let chains: &[Segment] = if turns % 2 == 0 { &one } else { &two };
                while driver.add(chains).is_ok() {}
                let _ = driver.publish();
                loop {
                    let n = device.take_singles(&regions, false, &mut singles);
                    device.add_used_all(singles[..n].iter().map(|single| (single.token(), 0)));
                    let Some(token) = device.take(&regions, &mut chain).unwrap() else { break };
                    device.add_used(token, 1);
                }
                let _ = (device.publish(), device.enable_kicks(), driver.enable_calls());
                std::iter::from_fn(|| Some(driver.take_used(&mut used).0).filter(|&n| n > 0)).sum()
            });
            assert_eq!(n, 0);
        }
    }
}
