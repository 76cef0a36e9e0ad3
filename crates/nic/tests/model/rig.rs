//! A driver, its device, and the far end of the cable.

use std::time::Duration;
use towpath_bus::{DmaPolicy, Flush};
use towpath_model::e1000e::{self as model, Device, ModelBus};
use towpath_model::wire::{Plug, Wire, cable};
use towpath_nic::e1000e::{Config, Control, E1000e, E1000eRx, E1000eTx, Pauses, RingSize, TxCopybreak};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

pub(crate) const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
pub(crate) const DEFERRED: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Deferred };
pub(crate) const POLICIES: [DmaPolicy; 3] = [DmaPolicy::Persistent, STRICT, DEFERRED];

pub(crate) struct Rig {
    pub(crate) device: Device,
    pub(crate) rx: Vec<E1000eRx<ModelBus>>,
    pub(crate) tx: Vec<E1000eTx<ModelBus>>,
    pub(crate) pool: Pool,
    pub(crate) cache: Cache,
    pub(crate) control: Control,
    pub(crate) far: Plug,
}

/// A configuration for tests: no pauses, frames hang after 10 ms, and none is copied to be sent.
pub(crate) fn config() -> Config {
    let (rx_ring, tx_ring) = (RingSize::new("rx", 128).unwrap(), RingSize::new("tx", 128).unwrap());
    let mut config = Config::default();
    (config.rx_ring, config.tx_ring) = (rx_ring, tx_ring);
    config.tx_copybreak = Some(TxCopybreak::OFF);
    (config.pauses, config.stall) = (Pauses::None, Duration::from_millis(10));
    config
}

/// [`config`] with some options changed.
pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

/// A strict device.
pub(crate) fn strict() -> model::Config {
    model::Config::default().strict(true)
}

pub(crate) fn pool_of(chunk: usize) -> Pool {
    Pool::new(PoolConfig::default().capacity(2048).chunk(chunk).backing(Backing::Anonymous)).unwrap()
}

pub(crate) fn rig(config: Config, device: model::Config) -> Rig {
    rig_with(config, device, pool_of(2048), Offloads::ALL)
}

pub(crate) fn rig_with(config: Config, device: model::Config, pool: Pool, accept: Offloads) -> Rig {
    let (near, far) = cable(4096);
    let bus = model::launch(device, near).unwrap();
    let device = bus.device();
    let queues = config.queues;
    let port = E1000e::open(bus, "e1000e:model", config).unwrap();
    let control = port.control();
    let Queues { rx, tx } = port.start(Start { pool: pool.clone(), queues, accept }).unwrap();
    let cache = pool.cache(Direction::Tx).unwrap();
    Rig { device, rx, tx, pool, cache, control, far }
}

impl Rig {
    pub(crate) fn packet(&mut self, bytes: &[u8]) -> Packet {
        Packet::copy_from(&mut self.cache, bytes).unwrap()
    }

    /// One turn of the device and all queues, which appends received packets to `got`. Returns the
    /// work that was done.
    pub(crate) fn turn(&mut self, got: &mut Vec<Packet>) -> usize {
        let mut work = self.device.turn();
        let mut out: Batch = Batch::new();
        for rx in &mut self.rx {
            work += rx.refill();
            work += rx.rx(&mut out);
            got.extend(out.drain_front(64));
        }
        work + self.tx.iter_mut().map(TxQueue::reclaim).sum::<usize>()
    }

    /// Turns until no packet moves; returns the received ones.
    pub(crate) fn settle(&mut self) -> Vec<Packet> {
        let mut got = Vec::new();
        let mut quiet = 0;
        while quiet < 3 {
            quiet = if self.turn(&mut got) == 0 { quiet + 1 } else { 0 };
        }
        got
    }

    /// Sends packets on one queue, with as many calls as they need; returns what was received
    /// meanwhile.
    pub(crate) fn send(&mut self, queue: usize, packets: impl IntoIterator<Item = Packet>) -> Vec<Packet> {
        let mut got = Vec::new();
        let mut batch: Batch = Batch::new();
        let mut packets = packets.into_iter();
        loop {
            while batch.room() > 0
                && let Some(packet) = packets.next()
            {
                batch.push(packet).unwrap();
            }
            if batch.is_empty() {
                return got;
            }
            self.tx[queue].tx(&mut batch);
            self.tx[queue].kick();
            self.turn(&mut got);
        }
    }

    /// Frames arrive from the far end.
    pub(crate) fn arrive<'a>(&mut self, frames: impl IntoIterator<Item = &'a [u8]>) {
        for frame in frames {
            assert!(self.far.send(frame), "the cable is full");
        }
    }

    pub(crate) fn faults(&self) -> u64 {
        self.control.faults().iter().map(|(_, n)| n).sum()
    }

    /// Ends the port: no buffer is missing, no mapping is left, no rule was broken.
    #[track_caller]
    pub(crate) fn end(self) {
        let Rig { device, rx, tx, pool, cache, .. } = self;
        drop((rx, tx, cache));
        let (stats, counts) = (pool.stats(), device.iommu().counts());
        assert_eq!(stats.free, stats.capacity, "buffers are missing");
        assert_eq!(counts.maps, counts.unmaps, "mappings are left");
        assert_eq!(device.violation(), None);
    }
}

/// A frame of `len` bytes, different for each `seed`, with the ethertype for local experiments
/// (IEEE 802).
pub(crate) fn frame(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    bytes[..14].copy_from_slice(&[2, 0x74, 0x6f, 0x77, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    bytes
}
