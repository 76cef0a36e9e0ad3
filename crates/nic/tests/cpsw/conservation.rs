//! A descriptor is in one place (T1): free, staged, or owned by the device, after each step of any
//! run.

use super::rig::{Rig, Variant, config, model_config, pool, stamp};
use proptest::prelude::*;
use towpath_model::wire::Wire;
use towpath_nic::cpsw::BatchSize;
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, TxQueue};

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Packets, and the chunks of each.
    Send(u8, u8),
    Kick,
    Reclaim,
    Arrive(u8),
    Receive,
    Refill,
    Device(u8),
    Resize(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..9_u8, 1..5_u8).prop_map(|(n, chunks)| Step::Send(n, chunks)),
        Just(Step::Kick),
        Just(Step::Reclaim),
        (1..6_u8).prop_map(Step::Arrive),
        Just(Step::Receive),
        Just(Step::Refill),
        (1..40_u8).prop_map(Step::Device),
        (1..=127_u8).prop_map(Step::Resize),
    ];
    prop::collection::vec(step, 1..60)
}

/// Performs a step.
fn perform(rig: &mut Rig, step: Step, number: &mut u32, batch: &mut Batch) {
    match step {
        Step::Send(packets, chunks) => {
            let mut packets: Batch = (0..packets).fold(Batch::new(), |mut batch, _| {
                *number += 1;
                let packet = rig.fragmented(&stamp(0, *number, 90), usize::from(chunks));
                batch.push(packet).unwrap();
                batch
            });
            rig.ports[0].tx[0].tx(&mut packets);
            rig.cache.free_bulk(&mut packets);
        }
        Step::Kick => rig.ports[0].tx[0].kick(),
        Step::Reclaim => assert!(rig.ports[0].tx[0].reclaim() <= 16),
        Step::Arrive(frames) => assert!((0..frames).all(|_| rig.plugs[0].send(&stamp(0, 0, 90)))),
        Step::Receive => {
            rig.ports[0].rx[0].rx(batch);
            rig.cache.free_bulk(batch);
        }
        Step::Refill => assert!(rig.ports[0].rx[0].refill() <= 16),
        Step::Device(steps) => assert!(rig.run(usize::from(steps)) <= usize::from(steps)),
        Step::Resize(size) => rig.control.batching(1).unwrap().resize(BatchSize::new(size).unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn t1_every_descriptor_is_free_or_staged_or_owned_by_the_device(
        steps in steps(), variant in prop::sample::select(Variant::ALL.to_vec()), prefetch in 1..17_u8,
    ) {
        let config = config(variant, 1).tx_descriptors(20);
        let mut rig = Rig::with_pool(config, model_config(variant, 1).prefetch(prefetch), pool(512));
        let (mut number, mut batch) = (0, Batch::new());
        for step in steps {
            perform(&mut rig, step, &mut number, &mut batch);
            let (tx, rx) = (rig.ports[0].tx[0].descriptors(), rig.ports[0].rx[0].descriptors());
            let owned = rig.model.owned_descriptors();
            prop_assert!(tx.0 + rx.0 + owned <= tx.1 + rx.1, "{} + {} free, {owned} owned by the device after {step:?}", tx.0, rx.0);
            // The doorbell gives all staged descriptors to the device, and no others.
            if matches!(step, Step::Kick | Step::Reclaim) {
                prop_assert_eq!(tx.0 + rx.0 + owned, tx.1 + rx.1, "after {:?}", step);
            }
        }
        rig.assert_clean();
        rig.finish();
        rig.assert_no_leak();
    }
}
