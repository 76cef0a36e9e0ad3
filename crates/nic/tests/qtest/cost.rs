//! The cost of frames in register accesses, the slow operations of a device.

use crate::require;
use crate::rig::{DEFERRED, STRICT, Setup, frame, protections};
use std::time::Instant;
use towpath_bus::DmaPolicy;
use towpath_bus::qtest::Count;
use towpath_packet::Batch;
use towpath_packet::port::TxQueue;

const BURST: usize = 32;
const BURSTS: usize = 256;
const FRAMES: u64 = (BURST * BURSTS) as u64;
/// Registers of the rings, and the tails among them.
const RX: std::ops::Range<usize> = 0x2800..0x3000;
const TX: std::ops::Range<usize> = 0x3800..0x4000;
const RDT: std::ops::Range<usize> = 0x2818..0x281c;
const TDT: std::ops::Range<usize> = 0x3818..0x381c;
/// Registers that one run of the watchdog reads at most, and how often it may run.
const LOOK: u64 = 16;
const LOOKS_A_SECOND: f64 = 2.0 * 5.0;

#[test]
fn a_burst_costs_one_tail_write_each_way_and_no_read() {
    require!("a_burst_costs_one_tail_write_each_way_and_no_read");
    println!("bursts of {BURST}            per frame:  TDT     RDT     reads   IOMMU   IOMMU reads");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        let mut batch = Batch::<64>::new();
        rig.refill();
        rig.delivered();
        let (begun, accesses, iommu) = (Instant::now(), rig.accesses.clone(), rig.qemu.iommu_accesses().clone());
        let before =
            [accesses.total(), accesses.of(RX), accesses.of(TX), accesses.of(RDT), accesses.of(TDT), iommu.total()];
        for burst in 0..BURSTS {
            for n in 0..BURST {
                rig.cable.send(&frame(burst * BURST + n)).unwrap();
                let packet = rig.packet(&frame(n));
                batch.push(packet).unwrap();
            }
            // The frames of a burst arrive before it is received, so that its size is the same on
            // any machine.
            rig.delivered();
            rig.tx[0].tx(&mut batch);
            rig.tx[0].kick();
            rig.sent();
            drop(rig.receive(BURST));
            (0..BURST).for_each(|_| drop(rig.out()));
        }
        let after =
            [accesses.total(), accesses.of(RX), accesses.of(TX), accesses.of(RDT), accesses.of(TDT), iommu.total()];
        let mut since = [Count::default(); 6];
        (0..6).for_each(|i| since[i] = after[i] - before[i]);
        let [total, rx, tx, rdt, tdt, iommu] = since;
        let per = |n: u64| n as f64 / FRAMES as f64;
        println!(
            "{:?} copybreak {}: {:.4}  {:.4}  {:.5} {:.4}  {:.5}",
            protection.policy,
            protection.copybreak,
            per(tdt.writes),
            per(rdt.writes),
            per(total.reads),
            per(iommu.writes),
            per(iommu.reads)
        );
        assert_eq!(tdt.writes, BURSTS as u64, "one tail write a burst: 1/{BURST} a frame");
        assert!(rdt.writes <= FRAMES / 16, "{} writes of the receive tail", rdt.writes);
        assert_eq!((rx.reads, tx.reads), (0, 0), "rings are in memory");
        assert_eq!((rx.writes, tx.writes), (rdt.writes, tdt.writes));
        // The watchdog reads link and statistics by time, never by frame.
        let looks = (begun.elapsed().as_secs_f64() * LOOKS_A_SECOND) as u64 + 2;
        assert!(total.reads <= looks * LOOK, "{} reads in {looks} looks", total.reads);
        // The IOMMU reports in memory. The driver reads its fault register once in a wait of half a
        // second.
        let waits = (begun.elapsed().as_secs_f64() / 0.5) as u64;
        assert!(iommu.reads <= waits, "{} reads of the remapping unit in {waits} half seconds", iommu.reads);
        let bursts = BURSTS as u64;
        // Two directions; with copies neither maps anything.
        let flushes = match (protection.policy, protection.copybreak) {
            (DmaPolicy::Persistent, _) => 0..=0,
            (STRICT, 0) => 2 * bursts..=2 * bursts,
            (STRICT, _) => 0..=0,
            // Frames of 256 bytes and more. And the idle flushes of the watchdog.
            (DEFERRED, _) => 1..=2 * FRAMES / 256 + looks,
        };
        assert!(flushes.contains(&iommu.writes), "{} invalidation doorbells, not {flushes:?}", iommu.writes);
        rig.end();
    }
}
