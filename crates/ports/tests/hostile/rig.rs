//! A started `sock:` port whose queues are stepped by hand, so that no result depends on time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_client::{Config, Error, Frame, Sizes, Socket, Umem};
use towpath_packet::port::{Port, PortControl, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, DropReason, ExtBufGauge, Offloads, Packet, Pool, PoolConfig};
use towpath_ports::sock::{self, SockPort};

/// The port, its queues, and the pool of its heads.
pub(crate) struct Rig {
    pub(crate) rx: <SockPort as Port>::Rx,
    pub(crate) tx: <SockPort as Port>::Tx,
    pub(crate) path: PathBuf,
    pool: Pool,
    cache: Option<Cache>,
    pages: Arc<ExtBufGauge>,
    watch: Arc<dyn PortControl>,
    _dir: tempfile::TempDir,
}

/// Buffers in four caches at most, three of the queues and its own: two magazines each, of 1/16 of
/// the pool.
const CACHED: usize = 4 * 2 * POOL / 16;
/// Buffers of the pool.
const POOL: usize = 512;

impl Rig {
    pub(crate) fn new(options: &str) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let uri = format!("sock:{}?{options}", path.display()).parse().unwrap();
        let port = sock::open(sock::Config::from_uri(&uri).unwrap()).unwrap();
        let config = PoolConfig::default().capacity(POOL).backing(Backing::Anonymous);
        let pool = Pool::new(config).unwrap();
        let (watch, cache) = (port.control().unwrap(), pool.cache(Direction::Tx).unwrap());
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
        let Queues { mut rx, mut tx } = port.start(start).unwrap();
        let (rx, tx) = (rx.remove(0), tx.remove(0));
        let pages = rx.memory().ext_bufs.unwrap();
        Rig { rx, tx, path, pool, cache: Some(cache), pages, watch, _dir: dir }
    }

    /// The count of an event of the port.
    pub(crate) fn event(&self, name: &str) -> u64 {
        self.watch.events().iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Packets for the applications that were dropped.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.tx.counters().snapshot().dropped(reason)
    }

    /// One step of the receive queue.
    pub(crate) fn step(&mut self) -> Batch {
        let mut batch = Batch::new();
        self.rx.rx(&mut batch);
        batch
    }

    /// Steps the receive queue until `n` packets have come.
    pub(crate) fn receive(&mut self, n: usize) -> Batch {
        let mut batch = Batch::new();
        until(|| {
            self.rx.rx(&mut batch);
            batch.len() >= n
        });
        batch
    }

    /// One step of the transmit queue, with packets for the applications.
    pub(crate) fn send(&mut self, packets: &[Vec<u8>]) {
        let mut batch: Batch = Batch::new();
        let cache = self.cache.as_mut().unwrap();
        for bytes in packets {
            batch.push(Packet::copy_from(cache, bytes).unwrap()).unwrap();
        }
        self.tx.reclaim();
        assert_eq!(self.tx.tx(&mut batch), packets.len());
        self.tx.kick();
    }

    /// Steps both queues until `done`.
    pub(crate) fn until(&mut self, mut done: impl FnMut(&Rig) -> bool) {
        until(|| {
            drop(self.step());
            self.tx.reclaim();
            done(self)
        });
    }

    /// Steps both queues until the event has happened `n` times.
    pub(crate) fn until_event(&mut self, name: &str, n: u64) {
        self.until(|rig| rig.event(name) >= n);
    }

    /// Without packets every page of the applications is free, and every buffer that is in no
    /// cache.
    #[track_caller]
    pub(crate) fn assert_balance(&mut self) {
        self.until(|rig| rig.pages.freed() == rig.pages.attached());
        let stats = self.pool.stats();
        assert!(stats.capacity - stats.free <= CACHED, "buffers are missing: {stats:?}");
    }

    /// Ends the port: every buffer must be free, and every page of the applications too.
    #[track_caller]
    pub(crate) fn end(self) {
        let Rig { rx, tx, pool, path, cache, pages, .. } = self;
        drop((rx, tx, cache));
        assert_eq!(pool.stats().free, pool.stats().capacity, "buffers are missing");
        assert_eq!(pages.freed(), pages.attached(), "pages of applications, freed and attached");
        assert!(!path.exists());
    }
}

/// Steps of the receive queue in which it sends, frees and completes all that applications have
/// offered, however much that is.
pub(crate) const END: usize = 100;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Retries as long as there is [patience](PATIENCE).
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it never happens");
        std::thread::yield_now();
    }
}

/// An IPv4 UDP frame of `len` bytes to a port; its last four bytes are a number.
pub(crate) fn udp(port: u16, len: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; len.max(46)];
    let total = bytes.len() as u16 - 14;
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    (bytes[22], bytes[23]) = (64, 17);
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The port that the honest application's packets go to.
pub(crate) const HONEST: u16 = 53;

/// An application that keeps to the protocol, and counts what it sends and gets.
pub(crate) struct Honest {
    pub(crate) socket: Socket,
    /// Packets that it offered, and those that the datapath took, each once and in order.
    pub(crate) offered: u32,
    pub(crate) sent: u32,
    /// Frames that it sent and has back.
    completed: u32,
    /// Packets for it, and those that it got.
    pub(crate) expected: u32,
    pub(crate) got: u32,
}

impl Honest {
    /// Connects, and waits until the session works in both directions.
    pub(crate) fn new(rig: &mut Rig, umem: &Umem) -> Honest {
        let socket = ask(rig, umem, &format!("udp dport {HONEST}")).unwrap();
        let mut honest = Honest { socket, offered: 0, sent: 0, completed: 0, expected: 0, got: 0 };
        until(|| {
            let n = u32::from(honest.sent == 0 || honest.got == 0);
            drop(honest.turn(rig, n, &[]));
            n == 0 && honest.sent == honest.offered
        });
        // Packets from before the queue had the session were dropped.
        honest.expected = honest.got;
        honest
    }

    /// Offers `n` packets each way, steps both queues, with `others` to other applications, and
    /// counts.
    pub(crate) fn turn(&mut self, rig: &mut Rig, n: u32, others: &[Vec<u8>]) -> Batch {
        let mut frames = Vec::new();
        self.take_back(&mut frames);
        frames.clear();
        frames.extend((0..n).map_while(|_| self.socket.umem().alloc()));
        for frame in &mut frames {
            assert!(frame.put(&udp(HONEST, 60, self.offered)));
            self.offered += 1;
        }
        self.socket.tx(&mut frames).unwrap();
        self.offered -= frames.len() as u32;
        let mut empty: Vec<Frame> = std::iter::from_fn(|| self.socket.umem().alloc()).take(n as usize).collect();
        self.socket.fill(&mut empty).unwrap();
        drop((empty, frames));
        let mine = (0..n).map(|i| udp(HONEST, 60, self.expected + i));
        let packets: Vec<_> = mine.chain(others.iter().cloned()).collect();
        self.expected += n;
        rig.send(&packets);
        let batch = rig.step();
        // Others may send to its port: all but the number must be its own.
        let own = udp(HONEST, 60, 0);
        for packet in batch.iter().map(Packet::to_vec).filter(|bytes| bytes.get(..56) == Some(&own[..56])) {
            assert_eq!(packet, udp(HONEST, 60, self.sent), "in order, and as it was sent");
            self.sent += 1;
        }
        let mut got = Vec::new();
        self.socket.rx(&mut got).unwrap();
        self.got += got.len() as u32;
        batch
    }

    /// Takes completed frames back. A frame that it does not miss is an error of the client.
    fn take_back(&mut self, to: &mut Vec<Frame>) {
        self.completed += self.socket.completions(to).unwrap() as u32;
        assert!(self.completed <= self.offered, "{} frames came back of {}", self.completed, self.offered);
    }

    /// Whether every frame that it sent has come back.
    pub(crate) fn has_completed(&self) -> bool {
        self.completed == self.offered
    }

    /// Leaves, once every frame that it sent has come back, each once.
    #[track_caller]
    pub(crate) fn end(mut self, rig: &mut Rig) {
        let mut back = Vec::new();
        for _ in 0..END {
            drop(rig.step());
            self.take_back(&mut back);
            back.clear();
        }
        assert_eq!((self.sent, self.completed), (self.offered, self.offered), "frames sent and completed, of all");
    }

    /// It has lost nothing, and got through that many percent of what it offered each way.
    #[track_caller]
    pub(crate) fn has_at_least(&self, percent: u32, wanted: u32, beside: &str) {
        let (sent, got) = (self.sent, self.got);
        assert!(sent.min(got) * 100 >= wanted * percent, "{sent} sent, {got} received of {wanted}, beside {beside:?}");
    }
}

/// Opens a session.
pub(crate) fn ask(rig: &Rig, umem: &Umem, rules: &str) -> Result<Socket, Error> {
    let rules = rules.split(',').map(str::to_owned).collect();
    Socket::connect(umem, &rig.path, &Config::default().rings(Sizes::all(64)).rules(rules))
}
