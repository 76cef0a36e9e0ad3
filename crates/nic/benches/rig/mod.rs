//! A driver over a model of its device, on one core. The device runs outside of the measured
//! functions.

use std::time::Duration;
use towpath_bus::DmaPolicy;
use towpath_model::e1000e::{self as model, Device, ModelBus};
use towpath_nic::e1000e::{Config, Copybreak, E1000e, E1000eRx, E1000eTx, Pauses, RecycleMode, RingSize, TxCopybreak};
use towpath_packet::port::{Port, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// Frames of one round: they arrive before the measured function begins.
pub const ROUND: usize = 256;

/// A wire with a carrier that takes every frame.
struct Sink;

impl towpath_model::wire::Wire for Sink {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }
    fn receive(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }
}

pub struct Rig {
    pub device: Device,
    pub rx: E1000eRx<ModelBus>,
    pub tx: E1000eTx<ModelBus>,
    pub cache: Cache,
    filler: Vec<Packet>,
    frame: Vec<u8>,
    out: Batch,
}

/// The parameters of a rig.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub policy: DmaPolicy,
    pub copybreak: u64,
    pub tx_copybreak: u64,
    pub recycle: RecycleMode,
    /// Bytes of a frame.
    pub len: usize,
}

impl Rig {
    pub fn new(setup: Setup) -> Rig {
        let ring = |option| RingSize::new(option, 512).expect("a size");
        let mut config = Config::default();
        config.policy = setup.policy;
        config.copybreak = Some(Copybreak::new(setup.copybreak).expect("a threshold"));
        config.tx_copybreak = Some(TxCopybreak::new(setup.tx_copybreak).expect("a threshold"));
        config.recycle = setup.recycle;
        config.rx_ring = ring("rx");
        config.tx_ring = ring("tx");
        config.pauses = Pauses::None;
        config.stall = Duration::from_secs(60);
        let bus = model::launch(model::Config::default(), Sink).expect("a model");
        let device = bus.device();
        let port = E1000e::open(bus, "e1000e:model", config).expect("the device opens");
        let pool = Pool::new(PoolConfig::default().capacity(4096)).expect("memory");
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
        let mut queues = port.start(start).expect("the port starts");
        let (rx, tx) = (queues.rx.remove(0), queues.tx.remove(0));
        let mut cache = pool.cache(Direction::Tx).expect("a cache");
        let filler = (0..64).filter_map(|_| cache.alloc()).collect();
        let mut frame = vec![0; setup.len];
        frame[..14].copy_from_slice(&[2, 0x74, 0x6f, 0x77, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
        Rig { device, rx, tx, cache, filler, frame, out: Batch::new() }
    }

    /// Not measured: the device receives a round of frames.
    pub fn arrive(&mut self) {
        self.rx.refill();
        let mut left = ROUND;
        while left > 0 {
            let n = self.device.deliver(std::iter::repeat_n(self.frame.as_slice(), left.min(64)));
            self.device.run_until_idle();
            left -= n.clamp(1, left);
        }
    }

    /// Not measured: room for `burst` packets in the batch, at most 64.
    pub fn make_room(&mut self, burst: usize) {
        while self.out.room() > burst
            && let Some(packet) = self.filler.pop()
        {
            let _ = self.out.push(packet);
        }
    }

    /// Not measured: undoes [`make_room`](Rig::make_room).
    pub fn clear_room(&mut self) {
        self.filler.extend(self.out.drain_front(64));
    }

    /// Measured: receives a round in bursts, frees the packets, and refills the ring.
    #[inline(never)]
    pub fn measured_rx(&mut self, burst: usize) -> usize {
        let (room, mut got) = (burst.min(64), 0);
        while got < ROUND {
            self.rx.refill();
            let n = self.rx.rx(&mut self.out);
            if n == 0 {
                break;
            }
            got += n;
            if room == 64 {
                self.cache.free_bulk(&mut self.out);
            } else {
                for _ in 0..n {
                    if let Some(packet) = self.out.pop() {
                        self.cache.free(packet);
                    }
                }
            }
        }
        got
    }

    /// Not measured: makes a round of packets, in bursts.
    pub fn prepare(&mut self, burst: usize) -> Vec<Batch> {
        (0..ROUND.div_ceil(burst.min(64)))
            .map(|_| {
                let mut batch = Batch::new();
                for _ in 0..burst.min(64) {
                    let _ = batch.push(Packet::copy_from(&mut self.cache, &self.frame).expect("a buffer"));
                }
                batch
            })
            .collect()
    }

    /// Measured: sends a round in bursts, each with its own doorbell, and frees the frames sent
    /// before. A burst of more than 64 frames is several batches before one doorbell.
    #[inline(never)]
    pub fn measured_tx(&mut self, batches: &mut [Batch], burst: usize) -> usize {
        let mut sent = 0;
        for batches in batches.chunks_mut(burst.div_ceil(64)) {
            self.tx.reclaim();
            for batch in batches {
                sent += self.tx.tx(batch);
            }
            self.tx.kick();
        }
        sent
    }

    /// Not measured: the device sends all announced frames.
    pub fn leave(&mut self) {
        self.device.run_until_idle();
    }
}
