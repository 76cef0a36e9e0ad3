//! Frames that are copied, delivered, damaged and of several buffers, in any order: the descriptors
//! that the device finds.

use super::*;
use proptest::prelude::*;

/// An action of the device or the driver.
#[derive(Debug, Clone)]
enum Step {
    /// The device writes frames back: length and status of each descriptor.
    Write(Vec<(u64, u64)>),
    /// A burst is received into a batch that holds this many packets already.
    Receive(usize),
    /// The ring is refilled, and announced in batches of this size.
    Refill(u32),
    /// The device was reset.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let descriptor = prop_oneof![
        40 => Just((100, DONE | END)),
        3 => Just((1500, DONE | END)),
        1 => Just((100, DONE | END | BROKEN)),
        1 => Just((1920, DONE)),
        1 => Just((5, DONE | END)),
    ];
    prop_oneof![
        6 => prop::collection::vec(descriptor, 1..30).prop_map(Step::Write),
        6 => prop_oneof![3 => Just(0), 1 => 40..64usize].prop_map(Step::Receive),
        6 => prop::sample::select(vec![1, 8, 64]).prop_map(Step::Refill),
        1 => Just(Step::Restart),
    ]
}

impl Rig {
    /// Checks the descriptors that the device owns: each has the address of its slot's buffer, and
    /// no status.
    fn check(&mut self) {
        let mut at = self.device;
        while at != self.tail {
            let expected = self
                .ring
                .buffers
                .slots
                .get_mut(at)
                .and_then(|slot| slot.mapped.as_ref())
                .map(|mapped| mapped.iova().get());
            assert_eq!(
                (Some(self.ring.buffers.ring.first(at)), self.ring.buffers.ring.status(at)),
                (expected, 0),
                "descriptor {at}"
            );
            at = next(at, RING);
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Write(descriptors) => {
                let left = distance(self.device, self.tail, RING) as usize;
                descriptors.iter().take(left).for_each(|&(len, status)| self.write(len, status));
            }
            Step::Receive(full) => {
                let mut cache = self.pool.cache(Direction::Tx).unwrap();
                cache.alloc_bulk(&mut self.out, *full);
                self.receive(256);
                self.drain();
            }
            Step::Refill(batch) => {
                self.batch = *batch;
                self.refill();
            }
            Step::Restart => {
                self.ring.restart(1920);
                (self.device, self.tail) = (0, 0);
            }
        }
    }
}

proptest! {
    #[test]
    fn after_any_mix_of_frames_each_descriptor_of_the_device_has_its_own_buffer(
        steps in prop::collection::vec(step(), 1..80),
        strict in any::<bool>(),
    ) {
        let mut b = rig(if strict { STRICT } else { DmaPolicy::Persistent });
        for step in &steps {
            b.take(step);
            b.check();
        }
        prop_assert_eq!(b.end(), 0);
    }
}
