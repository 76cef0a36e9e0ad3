//! Many frames through QEMU's device behind an IOMMU, under every policy, copied and not.

use crate::qtest::{DEFERRED, STRICT, machine, open};
use crate::rig::{PATIENCE, Rig, frame};
use std::time::Instant;
use towpath_bus::DmaPolicy;
use towpath_bus::qtest::{Cable, Qemu, QtestBus, Width};
use towpath_nic::virtio::{Config, Copybreak, PciTransport};
use towpath_packet::port::{PortControl, RxQueue, TxQueue};
use towpath_packet::{Batch, Offloads, Packet};
use towpath_testing::{Need, needs};

const BURST: usize = 32;

/// A protection of memory: the policy, the threshold of copies, and the kind of ring.
type Protection = (DmaPolicy, u64, bool);

struct Tested {
    rig: Rig<PciTransport<QtestBus>>,
    cable: Cable,
    qemu: Qemu,
}

impl Tested {
    /// With small rings, which wrap often.
    fn new((policy, copybreak, packed): Protection) -> Tested {
        let (qemu, cable) = machine(Some(Width::Bits48), "packed=on");
        let mut config = Config::default();
        (config.policy, config.packed, config.ring) = (policy, packed, 64);
        config.copybreak = Some(Copybreak::new(copybreak).unwrap());
        let (port, pool) = open(&qemu, config);
        Tested { rig: Rig::start(port, pool, Offloads::NONE), cable, qemu }
    }

    /// Sends a burst of frames from the other end, and returns their packets.
    fn burst(&mut self, frames: impl Iterator<Item = Vec<u8>>) -> Vec<Packet> {
        let sent = frames.map(|frame| self.cable.send(&frame).unwrap()).count();
        let (begun, mut got) = (Instant::now(), Vec::new());
        while got.len() < sent {
            assert!(begun.elapsed() < PATIENCE, "{} of {sent} frames came", got.len());
            let some = self.rig.receive(0);
            if some.is_empty() {
                std::thread::yield_now();
            }
            got.extend(some);
        }
        got
    }

    /// Waits until nothing is in flight, and ends the port: no fault, every buffer is back, and the
    /// IOMMU has refused no access.
    fn end(mut self) {
        let begun = Instant::now();
        while self.rig.tx[0].pending() > 0 {
            assert!(begun.elapsed() < PATIENCE, "frames are not sent");
            self.rig.tx[0].reclaim();
        }
        assert!(self.rig.control.events().iter().all(|(_, n)| *n == 0), "{:?}", self.rig.control.events());
        self.rig.end();
        assert_eq!(self.qemu.faults().records, []);
    }
}

/// Frame number `n`, of its own length and bytes.
fn numbered(n: usize) -> Vec<u8> {
    let mut bytes = vec![2; 60 + n * 97 % 1455];
    bytes[12..].as_chunks_mut::<4>().0.iter_mut().zip(n as u32..).for_each(|(word, value)| {
        *word = value.wrapping_mul(0x9e37_79b9).to_le_bytes();
    });
    bytes
}

/// Both directions at once; every ring wraps more than 1500 times.
#[test]
fn a_hundred_thousand_frames_pass_each_way_byte_for_byte() {
    if !needs("a_hundred_thousand_frames_pass_each_way_byte_for_byte", &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    const FRAMES: usize = 100_000;
    let protections =
        [(DmaPolicy::Persistent, 0, true), (STRICT, 0, false), (STRICT, 2048, true), (DEFERRED, 256, false)];
    std::thread::scope(|scope| {
        let threads = protections.map(|protection| (protection, scope.spawn(move || run(protection))));
        threads.into_iter().for_each(|(protection, thread)| assert!(thread.join().is_ok(), "{protection:?}"));
    });

    fn run(protection: Protection) {
        let mut tested = Tested::new(protection);
        let (mut batch, mut buffer) = (Batch::<64>::new(), [0; 2048]);
        for burst in (0..FRAMES).step_by(BURST) {
            (burst..burst + BURST).for_each(|n| batch.push(tested.rig.packet(&[&numbered(n + 7)])).unwrap());
            tested.rig.tx[0].reclaim();
            assert_eq!(tested.rig.tx[0].tx(&mut batch), BURST);
            tested.rig.tx[0].kick();
            for (n, packet) in (burst..).zip(tested.burst((burst..burst + BURST).map(numbered))) {
                assert!(packet.to_vec() == numbered(n), "received frame {n}");
            }
            for n in burst..burst + BURST {
                let len = tested.cable.receive(&mut buffer, PATIENCE).unwrap();
                assert!(buffer[..len] == numbered(n + 7), "sent frame {n}");
            }
        }
        let counts = tested.rig.rx[0].counts();
        assert_eq!((counts.completed, counts.handed + counts.copies), (FRAMES as u64, FRAMES as u64));
        let [rx, tx] = [tested.rig.rx[0].counters().snapshot(), tested.rig.tx[0].counters().snapshot()];
        assert_eq!((rx.packets, rx.all_drops(), tx.all_drops()), (FRAMES as u64, 0, 0));
        tested.end();
    }
}

/// A frame that is copied out costs no mapping, no unmapping and no flush.
#[test]
fn policy_and_copybreak_decide_how_often_buffers_are_mapped_and_unmapped() {
    let name = "policy_and_copybreak_decide_how_often_buffers_are_mapped_and_unmapped";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    const BURSTS: usize = 20;
    const FRAMES: u64 = (BURSTS * BURST) as u64;
    for (policy, copybreak) in
        [(STRICT, 0), (STRICT, 2048), (DEFERRED, 0), (DEFERRED, 2048), (DmaPolicy::Persistent, 0), (STRICT, 300)]
    {
        let mut tested = Tested::new((policy, copybreak, false));
        let begin = tested.rig.rx[0].counts();
        // Half of the frames are below 300 bytes.
        let lens = [100, 1000];
        for _ in 0..BURSTS {
            let packets = tested.burst((0..BURST).map(|n| frame(n, lens[n % 2])));
            packets.iter().enumerate().for_each(|(n, packet)| assert!(packet.to_vec() == frame(n, lens[n % 2])));
        }
        let end = tested.rig.rx[0].counts();
        let copied = match copybreak {
            0 => 0,
            300 => FRAMES / 2,
            _ => FRAMES,
        };
        let mapped = if policy == DmaPolicy::Persistent { 0 } else { FRAMES - copied };
        assert_eq!((end.copies, end.handed, end.unmaps), (copied, FRAMES - copied, mapped), "{policy:?} {copybreak}");
        // What is taken is replaced, a quarter of the ring at a time; what is copied stays.
        let maps = end.maps - begin.maps;
        assert!(maps <= mapped && maps + 16 > mapped, "{policy:?} {copybreak}: {maps}");
        assert!(end.recycled <= copied && end.recycled + 16 > copied, "{policy:?} {copybreak}: {}", end.recycled);
        assert!(mapped > 0 || end.flushes == 0, "{policy:?} {copybreak}: {} flushes", end.flushes);
        tested.end();
    }
}
