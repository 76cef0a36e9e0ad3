//! DMA policies: which memory the device can reach and until when, and mappings that fail (T8).

use super::order::traffic;
use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use towpath_bus::{DmaPolicy, Flush};
use towpath_model::cpsw as model;
use towpath_model::iommu::{self, Refuse};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, DropReason};

const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
const DEFERRED: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Deferred };

fn rig(variant: Variant, policy: DmaPolicy, bounce: bool) -> Rig {
    let model = model_config(variant, 1);
    let iommu = model.iommu.clone().bounce(bounce);
    let config = config(variant, 1).policy(policy).rx_ring(32);
    Rig::with(config, model.iommu(iommu).steps_per_read(3))
}

#[test]
fn frames_pass_under_every_policy_and_no_rule_of_the_iommu_is_violated() {
    for variant in Variant::ALL {
        for policy in [DmaPolicy::Persistent, STRICT, DEFERRED] {
            traffic(rig(variant, policy, false), 120, 5);
        }
    }
}

#[test]
fn a_device_that_works_on_copies_gets_every_byte_and_delivers_every_byte() {
    for variant in [Variant::Pktdma, Variant::UdmaMessages] {
        for policy in [DmaPolicy::Persistent, STRICT, DEFERRED] {
            traffic(rig(variant, policy, true), 120, 5);
        }
    }
}

#[test]
fn a_burst_waits_once_for_the_iommu_and_a_persistent_mapping_never() {
    for variant in Variant::ALL {
        for (policy, waits) in [(DmaPolicy::Persistent, 0), (STRICT, 2), (DEFERRED, 0)] {
            let mut rig = rig(variant, policy, false);
            let before = rig.model.iommu().counts();
            let mut batch = Batch::new();
            for number in 0..16 {
                let packet = rig.packet(&stamp(0, number, 90));
                batch.push(packet).unwrap();
                assert!(rig.model.inject(1, &stamp(0, number, 90), model::Injected::default()));
            }
            rig.ports[0].tx[0].tx(&mut batch);
            rig.ports[0].tx[0].kick();
            rig.model.settle();
            assert_eq!(rig.ports[0].rx[0].rx(&mut batch), 16);
            assert_eq!(rig.ports[0].tx[0].reclaim() + rig.ports[0].tx[0].reclaim(), 16);
            let after = rig.model.iommu().counts();
            assert_eq!(after.waits - before.waits, waits, "{variant:?} {policy:?}");
            let (maps, unmaps) = if policy == DmaPolicy::Persistent { (0, 0) } else { (16, 32) };
            assert_eq!(
                (after.maps - before.maps, after.unmaps - before.unmaps),
                (maps, unmaps),
                "{variant:?} {policy:?}"
            );
            rig.cache.free_bulk(&mut batch);
            rig.finish();
            assert_eq!(rig.model.iommu().counts().faults, 0);
            rig.assert_no_leak();
        }
    }
}

#[test]
fn t8_a_mapping_that_fails_costs_a_packet_or_a_buffer_and_strands_nothing() {
    for variant in Variant::ALL {
        for refuse in [2, 3, 7].map(Refuse::Every).into_iter().chain([Refuse::Always]) {
            let mut rig = rig(variant, STRICT, false);
            rig.model.iommu().refuse(refuse);
            let mut batch = Batch::new();
            let (mut taken, mut received) = (0, 0);
            for number in 0..60 {
                let packet = rig.fragmented(&stamp(0, number, 300), 1 + number as usize % 3);
                batch.push(packet).unwrap();
                taken += rig.ports[0].tx[0].tx(&mut batch);
                rig.ports[0].tx[0].kick();
                let _ = rig.model.inject(1, &stamp(0, number, 90), model::Injected::default());
                rig.model.settle();
                rig.ports[0].tx[0].reclaim();
                received += rig.receive(0).len();
            }
            let (sent, counted) = (rig.plugs[0].drain(), rig.ports[0].tx[0].counters().snapshot());
            assert_eq!(taken, 60);
            assert_eq!(sent.len() as u64 + counted.dropped(DropReason::NoBuffer), 60, "{variant:?} {refuse:?}");
            assert!(refuse == Refuse::Always || received > 0, "{variant:?} {refuse:?}");
            // Traffic resumes after mappings succeed again.
            rig.model.iommu().refuse(Refuse::Never);
            let packet = rig.packet(&stamp(0, 99, 90));
            rig.send(0, packet);
            rig.receive(0);
            assert!(rig.model.inject(1, &stamp(0, 99, 90), model::Injected::default()));
            rig.settle();
            assert_stamps(&rig.plugs[0].drain(), 0, 99);
            assert_stamps(&rig.receive(0), 0, 99);
            rig.finish();
            rig.assert_no_leak();
        }
    }
}

#[test]
fn without_an_iommu_a_policy_per_buffer_is_refused_and_the_error_names_the_iommu() {
    let iommu = iommu::Config::off();
    let model = model::Cpsw::new(model_config(Variant::Pktdma, 1).iommu(iommu)).unwrap();
    let config = config(Variant::Pktdma, 1).policy(STRICT);
    let error = towpath_nic::cpsw::open(model.bus(), std::sync::Arc::new(model.firmware()), config).unwrap_err();
    assert!(error.to_string().contains("IOMMU"), "{error}");
}
