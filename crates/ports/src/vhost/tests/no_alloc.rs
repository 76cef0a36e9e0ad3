//! The queues allocate nothing, and neither does the guest.

use super::*;
use towpath_testing::allocations;

#[test]
fn a_guest_and_its_queues_allocate_nothing_whatever_the_ring_and_the_frames() {
    const N: usize = 32;
    for (format, features) in [(Format::Split, 0), (Format::Packed, feature::RING_PACKED), (Format::Split, IN_ORDER)] {
        for (mergeable, len) in [(0, 60), (0, 1500), (feature::MRG_RXBUF, 5000)] {
            let features = features | mergeable | feature::VERSION_1;
            let mut sends = Guest::new(Way::FromGuest, format, features);
            let mut receives = Guest::new(Way::ToGuest, format, features);
            // Without mergeable buffers a packet needs one, else up to four.
            let (n, each) = if mergeable == 0 { (N, 2048) } else { (N / 2, 1500) };
            let (mut rx, mut tx) = (sends.rx(), receives.tx());
            let mut batch = Batch::new();
            let at = |i: usize| BUFFERS + 8192 * i as u64;
            let allocated = allocations(|| {
                let mut moved = 0;
                for _ in 0..N / n {
                    (0..n).for_each(|i| _ = sends.driver.add(&[Segment::readable(at(i), 12 + len)]).unwrap());
                    while receives
                        .driver
                        .add(&[Segment::writable(at(receives.driver.in_flight().into()), each)])
                        .is_ok()
                    {}
                    sends.publish();
                    receives.publish();
                    rx.rx(&mut batch);
                    moved += tx.tx(&mut batch);
                    // Pages are free again.
                    rx.rx(&mut batch);
                    for driver in [&mut sends.driver, &mut receives.driver] {
                        while driver.next_used().unwrap().is_some() {}
                    }
                }
                moved
            });
            assert_eq!(allocated, 0, "{format:?} {features:#x} {len}");
        }
    }
}
