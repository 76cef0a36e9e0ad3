//! Actions of the driver and the device in any order, and the end at any moment.

use super::rig::*;
use proptest::prelude::*;
use towpath_model::e1000e::{self as model, Faults};
use towpath_model::wire::Wire;
use towpath_nic::e1000e::{Config, Copybreak, RecycleMode, RingSize, TxCopybreak};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, Packet};

#[derive(Debug, Clone)]
enum Action {
    Steps(usize, u64),
    Arrive(usize, usize),
    Send { queue: usize, len: usize, pieces: usize },
    Kick(usize),
    Reclaim(usize),
    Refill(usize),
    Receive(usize),
    Copybreak(u64),
    TxCopybreak(u64),
    Drop(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..60usize, any::<u64>()).prop_map(|(n, seed)| Action::Steps(n, seed)),
        2 => (1..20usize, 14..1500usize).prop_map(|(n, len)| Action::Arrive(n, len)),
        3 => (0..2usize, 1..1600usize, 1..6usize).prop_map(|(queue, len, pieces)| Action::Send { queue, len, pieces }),
        2 => (0..2usize).prop_map(Action::Kick),
        1 => (0..2usize).prop_map(Action::Reclaim),
        2 => (0..2usize).prop_map(Action::Refill),
        3 => (0..2usize).prop_map(Action::Receive),
        1 => (0..4000u64).prop_map(Action::Copybreak),
        1 => (0..2049u64).prop_map(Action::TxCopybreak),
        1 => (0..16usize).prop_map(Action::Drop),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let rate = || prop_oneof![4 => Just(0u32), 1 => Just(20_000), 1 => Just(200_000)];
    (any::<u64>(), rate(), rate(), rate(), rate(), rate(), rate(), rate(), rate()).prop_map(
        |(seed, crc, bad_length, no_eop, garbage, reorder, wild, lose, flap)| {
            Faults::default()
                .seed(seed)
                .crc(crc)
                .bad_length(bad_length)
                .no_eop(no_eop)
                .garbage(garbage)
                .reorder(reorder)
                .wild(wild)
                .lose(lose)
                .flap(flap)
                .flap_turns(5)
        },
    )
}

fn run(config: Config, device: model::Config, actions: &[Action]) -> Result<(), TestCaseError> {
    let honest = device.faults == Faults::default().seed(device.faults.seed);
    let mut r = rig(config, device);
    let mut held: Vec<Packet> = Vec::new();
    for (i, action) in actions.iter().enumerate() {
        match *action {
            Action::Steps(n, seed) => {
                let _ = r.device.steps(n, seed);
            }
            Action::Arrive(n, len) => (0..n).for_each(|j| {
                let _ = r.far.send(&frame(len, (i * 100 + j) as u64));
            }),
            Action::Send { queue, len, pieces } => {
                let bytes = frame(len.max(14), i as u64);
                let mut packet = r.cache.alloc().unwrap();
                for piece in bytes[..len].chunks(len.div_ceil(pieces)) {
                    let part = r.packet(piece);
                    packet.append(part).unwrap();
                }
                let mut batch: Batch = Batch::new();
                batch.push(packet).unwrap();
                if let Some(tx) = r.tx.get_mut(queue) {
                    tx.tx(&mut batch);
                }
            }
            Action::Kick(n) => r.tx.get_mut(n).into_iter().for_each(TxQueue::kick),
            Action::Reclaim(n) => r.tx.get_mut(n).into_iter().for_each(|tx| {
                let _ = tx.reclaim();
            }),
            Action::Refill(n) => r.rx.get_mut(n).into_iter().for_each(|rx| {
                let _ = rx.refill();
            }),
            Action::Receive(n) => {
                let mut out: Batch = Batch::new();
                if let Some(rx) = r.rx.get_mut(n) {
                    rx.rx(&mut out);
                }
                held.extend(out.drain_front(64));
                if held.len() > 200 {
                    held.clear();
                }
            }
            Action::Copybreak(bytes) => r.control.set_copybreak(bytes).unwrap(),
            // A port without memory for copies refuses.
            Action::TxCopybreak(bytes) => _ = r.control.set_tx_copybreak(bytes),
            // Rare, so that most runs are long.
            Action::Drop(0) => drop(r.rx.pop()),
            Action::Drop(1) => drop(r.tx.pop()),
            Action::Drop(_) => {}
        }
    }
    held.clear();
    let Rig { device, rx, tx, pool, cache, control, .. } = r;
    drop((rx, tx, cache));
    let (stats, counts) = (pool.stats(), device.iommu().counts());
    prop_assert_eq!(stats.free, stats.capacity, "buffers are missing: {:?}", control.faults());
    prop_assert_eq!(counts.maps, counts.unmaps);
    if honest {
        prop_assert_eq!(device.violation(), None);
        prop_assert_eq!(counts.faults, 0);
    }
    Ok(())
}

fn configs() -> impl Strategy<Value = Config> {
    (0..3usize, 1..3u16, any::<[bool; 2]>(), prop_oneof![Just(1500u16), Just(9000)], 0..3000u64, 0..2049u64).prop_map(
        |(policy, queues, [unmap_first, wait_each], mtu, copybreak, tx_copybreak)| {
            with(|c| {
                (c.policy, c.queues, c.mtu) = (POLICIES[policy], queues, mtu);
                c.rx_ring = RingSize::new("rx", 80).unwrap();
                c.wait_each = wait_each;
                c.recycle = if unmap_first { RecycleMode::UnmapFirst } else { RecycleMode::KeepMapped };
                c.tx_copybreak = Some(TxCopybreak::new(tx_copybreak).unwrap());
                c.copybreak = Some(Copybreak::new(copybreak).unwrap());
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_faithful_device_finds_no_fault_with_the_driver_in_any_order(
        config in configs(), actions in proptest::collection::vec(action(), 0..120),
    ) {
        run(config, strict(), &actions)?;
    }

    #[test]
    fn a_device_with_faults_costs_no_buffer_and_no_mapping_in_any_order(
        config in configs(), faults in faults(), actions in proptest::collection::vec(action(), 0..120),
    ) {
        run(config, strict().faults(faults), &actions)?;
    }
}

#[test]
fn a_port_can_end_at_any_moment_of_traffic() {
    for policy in POLICIES {
        for moment in 0..60 {
            let mut r = rig(with(|c| c.policy = policy), strict());
            let mut got = Vec::new();
            for i in 0..moment {
                r.arrive([frame(100, i).as_slice(), frame(1400, i).as_slice()]);
                let mut batch: Batch = Batch::new();
                for j in 0..5 {
                    let packet = r.packet(&frame(60, j));
                    batch.push(packet).unwrap();
                }
                r.tx[0].tx(&mut batch);
                if i % 3 > 0 {
                    r.tx[0].kick();
                }
                r.rx[0].refill();
                r.device.steps((i % 40) as usize, i);
                if i % 4 == 0 {
                    r.turn(&mut got);
                }
            }
            drop(got);
            r.end();
        }
    }
}
