//! Both sides of a queue allocate nothing once they are made.

use std::alloc::{GlobalAlloc, Layout as AllocLayout, System};
use std::cell::Cell;
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_virtio::{
    Area, Areas, Base, Chain, Device, Driver, Features, Format, InFlightRecord, Layout, Regions, Segment,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is done by the system's allocator; the counter is a thread-local without a
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: AllocLayout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: AllocLayout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

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
            let before = ALLOCATIONS.get();
            let mut used = 0;
            for _ in 0..1000 {
                while driver.add(&[Segment::readable(0x8000, 12), Segment::writable(0x9000, 64)]).is_ok() {}
                let _ = driver.publish();
                while let Ok(Some(token)) = device.take(&regions, &mut chain) {
                    device.complete(token, 1);
                }
                let _ = (device.publish(), device.enable_kicks(), driver.enable_calls());
                while let Ok(Some(_)) = driver.next_used() {
                    used += 1;
                }
            }
            assert_eq!((ALLOCATIONS.get() - before, used), (0, 32_000));
        }
    }
}
