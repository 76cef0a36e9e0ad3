//! The end: orderly, in mid-traffic, and when the machine goes first.

use crate::require;
use crate::rig::{Setup, frame, until, ways};
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, State, TxQueue};

#[test]
fn a_port_that_ends_in_mid_traffic_gives_every_buffer_home() {
    require!("a_port_that_ends_in_mid_traffic_gives_every_buffer_home");
    for way in ways() {
        for shared in [true, false] {
            let mut rig = Setup { shared, ..Setup::new(way) }.start();
            rig.refill();
            for n in 0..100 {
                rig.cable.send(&frame(n)).unwrap();
            }
            let mut batch = Batch::<64>::new();
            for n in 0..64 {
                let packet = rig.packet(&frame(n));
                batch.push(packet).unwrap();
            }
            // Half of it announced, half of it not; half of what came in taken out.
            rig.tx[0].tx(&mut batch);
            rig.tx[0].kick();
            for n in 0..40 {
                let packet = rig.packet(&frame(n));
                batch.push(packet).unwrap();
            }
            rig.tx[0].tx(&mut batch);
            drop(batch);
            let received = rig.rx[0].rx(&mut Batch::new());
            assert!(received <= 64);
            rig.end();
        }
    }
}

#[test]
fn a_port_whose_machine_ends_is_gone_and_ends_too() {
    require!("a_port_whose_machine_ends_is_gone_and_ends_too");
    for way in ways() {
        let mut rig = Setup::new(way).start();
        assert!(rig.exchange(&[frame(1)])[0].to_vec() == frame(1));
        rig.qemu.kill();
        let mut batch = Batch::<64>::new();
        let packet = rig.packet(&frame(2));
        batch.push(packet).unwrap();
        until("the port is gone", || {
            for queue in &mut rig.rx {
                queue.refill();
                queue.rx(&mut Batch::new());
            }
            for queue in &mut rig.tx {
                queue.reclaim();
                queue.tx(&mut batch);
                queue.kick();
            }
            matches!(rig.rx[0].state(), State::Gone(_)) && matches!(rig.tx[0].state(), State::Gone(_))
        });
    }
}

#[test]
fn a_port_can_be_started_again_and_again() {
    require!("a_port_can_be_started_again_and_again");
    // On one machine: what the port leaves behind is what the next one finds.
    use towpath_bus::qtest::{Device, Machine, Netdev, Width};
    use towpath_nic::e1000e::{Config, E1000e, Pauses};
    use towpath_packet::port::{Port, Queues, Start};
    use towpath_packet::{Offloads, Pool, PoolConfig};
    let (netdev, cable) = Netdev::cable().unwrap();
    let qemu = Machine::default().iommu(Width::Bits39).with(Device::e1000e(4, netdev)).start().unwrap();
    let pool = Pool::new(PoolConfig { capacity: 1024, ..PoolConfig::default() }).unwrap();
    for round in 0..12 {
        let policy = [towpath_bus::DmaPolicy::Persistent, crate::rig::STRICT, crate::rig::DEFERRED][round % 3];
        let config = Config { policy, pauses: Pauses::None, ..Config::default() };
        let port = E1000e::open(qemu.open(4).unwrap(), "again", config).unwrap();
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
        let Queues { mut rx, tx } = port.start(start).unwrap();
        rx[0].refill();
        cable.send(&frame(round)).unwrap();
        let mut batch = Batch::new();
        until("a frame arrives", || {
            rx[0].refill();
            rx[0].rx(&mut batch) > 0
        });
        assert!(batch.as_slice()[0].to_vec() == frame(round));
        drop((rx, tx, batch));
        assert_eq!(pool.stats().free, 1024);
    }
    assert_eq!(qemu.faults().records, []);
}
