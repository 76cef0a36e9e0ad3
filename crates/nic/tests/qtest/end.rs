//! The end of a port: orderly, in mid-traffic, and after the machine has ended.

use crate::require;
use crate::rig::{Setup, frame, protections, until};
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, State, TxQueue};

#[test]
fn a_port_that_ends_in_mid_traffic_returns_every_buffer() {
    require!("a_port_that_ends_in_mid_traffic_returns_every_buffer");
    for protection in protections() {
        for shared in [true, false] {
            let mut rig = Setup { shared, ..Setup::new(protection) }.start();
            rig.refill();
            for n in 0..100 {
                rig.cable.send(&frame(n)).unwrap();
            }
            let mut batch = Batch::<64>::new();
            for n in 0..64 {
                let packet = rig.packet(&frame(n));
                batch.push(packet).unwrap();
            }
            // Half of the packets are announced, half are not; half of the received frames are
            // taken.
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
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
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
    // On one machine: the next port finds the device as the last one left it.
    use towpath_bus::qtest::{Device, Machine, Netdev, Width};
    use towpath_nic::e1000e::{Config, E1000e, Pauses};
    use towpath_packet::port::{Port, Queues, Start};
    use towpath_packet::{Offloads, Pool, PoolConfig};
    let (netdev, cable) = Netdev::cable().unwrap();
    let qemu = Machine::default().iommu(Width::Bits39).with(Device::e1000e(4, netdev)).start().unwrap();
    let pool = Pool::new(PoolConfig::default().capacity(1024)).unwrap();
    for round in 0..12 {
        let policy = [towpath_bus::DmaPolicy::Persistent, crate::rig::STRICT, crate::rig::DEFERRED][round % 3];
        let mut config = Config::default();
        (config.policy, config.pauses) = (policy, Pauses::None);
        let port = E1000e::open(qemu.open(4).unwrap(), "again", config).unwrap();
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
        let Queues { mut rx, tx } = port.start(start).unwrap();
        rx[0].refill();
        cable.send(&frame(round)).unwrap();
        let (control, mut batch) = (rx[0].control(), Batch::new());
        until("the link is up", || {
            rx[0].rx(&mut batch);
            control.link().up
        });
        // What came before the link may be lost; it stops nothing.
        drop(batch.drain_front(64));
        cable.send(&frame(round + 100)).unwrap();
        until("a frame arrives", || {
            rx[0].refill();
            rx[0].rx(&mut batch) > 0 && batch.as_slice().iter().any(|packet| packet.to_vec() == frame(round + 100))
        });
        drop((rx, tx, batch));
        assert_eq!(pool.stats().free, 1024);
    }
    assert_eq!(qemu.faults().records, []);
}
