//! A port that runs on a back end, and frames.

use crate::backend::Backend;
use std::time::{Duration, Instant};
use towpath_nic::virtio::{Config, Control, Transport, UserConfig, UserTransport, VirtioNet, VirtioRx, VirtioTx};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// How long a test waits for an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const VERSION_1: u64 = 1 << 32;
/// All features that a back end without a control queue can offer: checksums and super-packets,
/// mergeable buffers, several queues; and those of rings.
pub(crate) const EVERYTHING: u64 =
    VERSION_1 | 0b11_1011_1000_0011 | 1 << 15 | 1 << 22 | 1 << 28 | 1 << 29 | 1 << 34 | 1 << 35 | 0x7 << 54;

/// A port that runs.
pub(crate) struct Rig<T: Transport = UserTransport> {
    pub(crate) rx: Vec<VirtioRx<T>>,
    pub(crate) tx: Vec<VirtioTx<T>>,
    pub(crate) cache: Cache,
    pub(crate) pool: Pool,
    pub(crate) own: Option<Pool>,
    pub(crate) control: Control,
}

pub(crate) fn pool(backing: Backing, chunk: usize) -> Pool {
    Pool::new(PoolConfig::default().capacity(4096).chunk(chunk).backing(backing)).unwrap()
}

impl<T: Transport> Rig<T> {
    /// Starts a port with all its queues.
    pub(crate) fn start(port: VirtioNet<T>, pool: Pool, accept: Offloads) -> Rig<T> {
        let queues = port.info().max_queues;
        let control = port.control();
        let Queues { rx, tx } = port.start(Start { pool: pool.clone(), queues, accept }).unwrap();
        let own = rx[0].memory().pool;
        let cache = pool.cache(Direction::Tx).unwrap();
        let mut rig = Rig { rx, tx, cache, pool, own, control };
        rig.rx.iter_mut().for_each(|rx| assert!(rx.refill() > 0));
        rig
    }

    /// A packet of pieces, each in a chunk of its own.
    pub(crate) fn packet(&mut self, pieces: &[&[u8]]) -> Packet {
        let mut packet = Packet::copy_from(&mut self.cache, pieces[0]).unwrap();
        for piece in &pieces[1..] {
            let part = Packet::copy_from(&mut self.cache, piece).unwrap();
            packet.append(part).unwrap();
        }
        packet
    }

    /// Sends a packet by a pair; returns whether it was taken.
    pub(crate) fn send(&mut self, pair: usize, packet: Packet) -> bool {
        let mut batch: Batch = Batch::new();
        batch.push(packet).unwrap();
        let taken = self.tx[pair].tx(&mut batch);
        self.tx[pair].kick();
        taken == 1
    }

    /// What a pair has received.
    pub(crate) fn receive(&mut self, pair: usize) -> Vec<Packet> {
        let mut batch: Batch = Batch::new();
        self.rx[pair].rx(&mut batch);
        self.rx[pair].refill();
        std::iter::from_fn(|| batch.pop()).collect::<Vec<_>>().into_iter().rev().collect()
    }

    /// Waits for `n` packets.
    pub(crate) fn receive_some(&mut self, pair: usize, n: usize) -> Vec<Vec<u8>> {
        let (begun, mut got) = (Instant::now(), Vec::new());
        while got.len() < n {
            assert!(begun.elapsed() < PATIENCE, "{} of {n} packets came", got.len());
            got.extend(self.receive(pair).iter().map(Packet::to_vec));
            self.tx.iter_mut().for_each(|tx| {
                tx.reclaim();
            });
        }
        got
    }

    /// Ends the port; all buffers are back.
    pub(crate) fn end(self) {
        let Rig { rx, tx, cache, pool, own, .. } = self;
        drop((rx, tx, cache));
        for pool in [Some(pool), own].into_iter().flatten() {
            let stats = pool.stats();
            assert_eq!(stats.free, stats.capacity);
        }
    }
}

impl Rig {
    /// On the back end at a path.
    pub(crate) fn open(config: Config, path: impl Into<std::path::PathBuf>, pool: Pool, accept: Offloads) -> Rig {
        let transport = UserTransport::open(UserConfig::new(path).pairs(config.queues)).unwrap();
        Rig::start(VirtioNet::open(transport, "virtio:user", config).unwrap(), pool, accept)
    }

    /// On a back end of this process, with packets in memory that it reaches.
    pub(crate) fn new(config: Config, backend: &Backend) -> Rig {
        let queues = usize::from(config.queues);
        let rig = Rig::open(config, &backend.path, pool(Backing::Memfd, 2048), Offloads::ALL);
        drop(backend.until("the rings run", |state| state.runs(2 * queues) && state.status == 0xf));
        rig
    }
}

/// A frame of `len` bytes that differs from others.
pub(crate) fn frame(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + seed * 31) as u8).collect();
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}
