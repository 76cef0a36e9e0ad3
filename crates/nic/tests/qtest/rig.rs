//! A running port, the other end of its cable, and frames.

use crate::spy::{Log, Spy};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_bus::qtest::{Accesses, Cable, Device, Machine, Netdev, Qemu, QtestDma, Width};
use towpath_bus::{Dma, DmaPolicy, Flush};
use towpath_nic::e1000e::{Config, Control, Copybreak, E1000e, E1000eRx, E1000eTx, Pauses, RingSize, TxCopybreak};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// How long a test waits for an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// A protection of memory, and the copybreak of both directions that goes with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protection {
    pub(crate) policy: DmaPolicy,
    pub(crate) iommu: Option<Width>,
    pub(crate) copybreak: u64,
}

pub(crate) const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
pub(crate) const DEFERRED: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Deferred };

/// The three policies, with and without copies, over page tables of three and four levels; and no
/// IOMMU.
pub(crate) fn protections() -> [Protection; 5] {
    let protection = |policy, iommu, copybreak| Protection { policy, iommu, copybreak };
    [
        protection(DmaPolicy::Persistent, None, 0),
        protection(DmaPolicy::Persistent, Some(Width::Bits48), 256),
        protection(STRICT, Some(Width::Bits39), 0),
        protection(STRICT, Some(Width::Bits48), 2048),
        protection(DEFERRED, Some(Width::Bits39), 256),
    ]
}

/// The parameters of a rig.
pub(crate) struct Setup {
    pub(crate) protection: Protection,
    pub(crate) config: Config,
    pub(crate) queues: u16,
    /// Packets lie in memory that the device reaches; otherwise the port copies.
    pub(crate) shared: bool,
    /// Bytes of a buffer, 128 of them headroom.
    pub(crate) chunk: usize,
    pub(crate) netdev: Option<Netdev>,
    pub(crate) accept: Offloads,
}

impl Setup {
    /// Small rings, which wrap often.
    pub(crate) fn new(protection: Protection) -> Setup {
        let mut config = Config::default();
        config.policy = protection.policy;
        config.copybreak = Some(Copybreak::new(protection.copybreak).unwrap());
        config.tx_copybreak = Some(TxCopybreak::new(protection.copybreak).unwrap());
        config.rx_ring = ring(128);
        config.tx_ring = ring(128);
        config.pauses = Pauses::None;
        Setup { protection, config, queues: 1, shared: true, chunk: 2048, netdev: None, accept: Offloads::ALL }
    }

    pub(crate) fn start(self) -> Rig {
        let (ours, cable) = Netdev::cable().unwrap();
        let netdev = self.netdev.unwrap_or(ours);
        let machine = self.protection.iommu.into_iter().fold(Machine::default(), Machine::iommu);
        let nic = Device::e1000e(4, netdev).property("mac=52:54:00:aa:bb:cc");
        let qemu = machine.with(nic).start().unwrap();
        let bus = qemu.open(4).unwrap();
        let (accesses, log) = (bus.accesses(0).unwrap(), Arc::<Log>::default());
        let bus = Spy::new(bus, log.clone());
        let dma = bus.real_dma().clone();
        let raw = bus.registers();
        let pool = pool(self.chunk, self.shared.then_some(&dma));
        let port = E1000e::open(bus, "e1000e:qtest", self.config).unwrap();
        assert_eq!(port.mac(), [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]);
        let control = port.control();
        let start = Start { pool: pool.clone(), queues: self.queues, accept: self.accept };
        let Queues { rx, tx } = port.start(start).unwrap();
        let cache = pool.cache(Direction::Tx).unwrap();
        let mut rig = Rig { rx, tx, cache, pool, control, cable, accesses, log, raw, dma, qemu };
        rig.negotiate();
        rig
    }
}

pub(crate) fn ring(descriptors: u64) -> RingSize {
    RingSize::new("ring", descriptors).unwrap()
}

/// A pool in memory of the machine, or out of the device's reach.
fn pool(chunk: usize, shared: Option<&QtestDma>) -> Pool {
    let config = PoolConfig::default().capacity(4096).chunk(chunk);
    match shared {
        // SAFETY: the region is new, and devices write only to buffers that are in flight to them.
        Some(dma) => unsafe { Pool::in_region(config, dma.alloc(config.capacity * config.chunk).unwrap()) }.unwrap(),
        None => Pool::new(config).unwrap(),
    }
}

/// A port that runs.
pub(crate) struct Rig {
    // Dropped in this order: queues, packets, the machine.
    pub(crate) rx: Vec<E1000eRx<Spy>>,
    pub(crate) tx: Vec<E1000eTx<Spy>>,
    pub(crate) cache: Cache,
    pub(crate) pool: Pool,
    pub(crate) control: Control,
    pub(crate) cable: Cable,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) log: Arc<Log>,
    pub(crate) raw: towpath_bus::qtest::Registers,
    pub(crate) dma: QtestDma,
    pub(crate) qemu: Qemu,
}

impl Rig {
    pub(crate) fn packet(&mut self, bytes: &[u8]) -> Packet {
        Packet::copy_from(&mut self.cache, bytes).unwrap()
    }

    /// Waits until the link is up: QEMU's PHY negotiates for half a second.
    fn negotiate(&mut self) {
        let begun = Instant::now();
        while !self.control.link().up {
            assert!(begun.elapsed() < PATIENCE, "there is no link");
            let mut none = Batch::<64>::new();
            self.rx.iter_mut().for_each(|rx| assert_eq!(rx.rx(&mut none), 0));
        }
    }

    /// Sends packets on queue 0, in bursts, and waits until they are sent.
    pub(crate) fn send(&mut self, packets: impl IntoIterator<Item = Packet>) {
        let mut packets = packets.into_iter().peekable();
        let mut batch = Batch::<64>::new();
        while packets.peek().is_some() || !batch.is_empty() {
            while batch.room() > 0 {
                let Some(packet) = packets.next() else { break };
                batch.push(packet).unwrap();
            }
            self.tx[0].reclaim();
            self.tx[0].tx(&mut batch);
            self.tx[0].kick();
            self.sent();
        }
    }

    /// Waits until no frame is pending.
    pub(crate) fn sent(&mut self) {
        let queue = &mut self.tx[0];
        until("frames are sent", || {
            queue.reclaim();
            queue.pending() == 0
        });
    }

    /// Sends frames from the other end of the cable, and waits for as many packets.
    pub(crate) fn exchange(&mut self, frames: &[Vec<u8>]) -> Vec<Packet> {
        self.refill();
        frames.iter().for_each(|frame| self.cable.send(frame).unwrap());
        self.receive(frames.len())
    }

    pub(crate) fn refill(&mut self) {
        self.rx.iter_mut().for_each(|queue| _ = queue.refill());
    }

    /// Waits for packets from any queue.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<Packet> {
        let (mut batch, mut packets) = (Batch::<64>::new(), Vec::new());
        let rx = &mut self.rx;
        until(&format!("{count} frames are received"), || {
            for queue in rx.iter_mut() {
                queue.refill();
                queue.rx(&mut batch);
                packets.extend(batch.drain_front(64));
            }
            packets.len() >= count
        });
        assert_eq!(packets.len(), count);
        packets
    }

    /// A frame from the other end.
    pub(crate) fn out(&self) -> Vec<u8> {
        out(&self.cable)
    }

    /// Waits until the device has taken every frame out of the cable, and processed it.
    pub(crate) fn delivered(&self) {
        until("the cable is empty", || {
            let mut queued: libc::c_int = 0;
            // SAFETY: SIOCOUTQ writes one int, which is borrowed exclusively.
            let asked = unsafe { libc::ioctl(self.cable.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut queued) };
            assert_eq!(asked, 0);
            queued == 0
        });
        // QEMU executes a command between frames.
        self.qemu.devices();
    }

    /// Ends the port: every buffer is free, and the IOMMU has refused no access.
    pub(crate) fn end(self) {
        let Rig { rx, tx, cache, pool, qemu, .. } = self;
        assert!(qemu.gone().is_none());
        let own = rx[0].memory().pool;
        drop((rx, tx, cache));
        for pool in own.into_iter().chain([pool]) {
            assert_eq!(pool.stats().free, pool.stats().capacity);
        }
        assert_eq!(qemu.faults().records, []);
    }
}

pub(crate) fn out(cable: &Cable) -> Vec<u8> {
    let mut buffer = vec![0; 70_000];
    let len = cable.receive(&mut buffer, PATIENCE).expect("a frame in time");
    buffer.truncate(len);
    buffer
}

#[track_caller]
pub(crate) fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !true_now() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Frame number `n`: its own length from 60 to 1514 bytes, and its own bytes.
pub(crate) fn frame(n: usize) -> Vec<u8> {
    sized(n, 60 + n * 7919 % 1455)
}

/// A frame of `len` bytes.
pub(crate) fn sized(n: usize, len: usize) -> Vec<u8> {
    let mut frame = vec![0x02; len];
    let mut state = n as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for word in frame.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&(state ^ state >> 29).to_le_bytes()[..word.len()]);
    }
    frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]);
    // The ethertype for local experiments.
    if let Some(kind) = frame.get_mut(12..14) {
        kind.copy_from_slice(&[0x88, 0xb5]);
    }
    frame
}
