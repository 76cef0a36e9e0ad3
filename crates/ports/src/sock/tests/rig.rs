//! A started port with its applications, and the frames of tests.

use super::*;
use std::path::PathBuf;

/// A started port, whose queues the test runs.
pub(super) struct Rig {
    pub(super) rx: Ended<SockRx>,
    pub(super) tx: Ended<SockTx>,
    /// The other queues.
    pub(super) more: Vec<(Ended<SockRx>, Ended<SockTx>)>,
    pub(super) pool: Pool,
    pub(super) pages: Arc<ExtBufGauge>,
    pub(super) control: Arc<dyn PortControl>,
    pub(super) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Rig {
    pub(super) fn new(options: &str) -> Rig {
        Rig::with_queues(options, 1)
    }

    pub(super) fn with_queues(options: &str, queues: u16) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let port =
            open(Config::from_uri(&format!("sock:{}?{options}", path.display()).parse().unwrap()).unwrap()).unwrap();
        let pool = Pool::new(PoolConfig::default().capacity(512).backing(Backing::Anonymous)).unwrap();
        let control = port.control().unwrap();
        let start = Start { pool: pool.clone(), queues, accept: Offloads::ALL };
        let Queues { rx, tx } = port.start(start).unwrap();
        let mut queues = rx.into_iter().zip(tx);
        let (rx, tx) = queues.next().unwrap();
        let pages = rx.memory().ext_bufs.unwrap();
        Rig { rx, tx, more: queues.collect(), pool, pages, control, path, _dir: dir }
    }

    pub(super) fn connect(&self, umem: &Umem, rules: &str) -> Socket {
        self.ask(umem, rules, Sizes::all(64)).unwrap()
    }

    /// An application whose packets may break the rules.
    pub(super) fn connect_unchecked(&self, umem: &Umem) -> Socket {
        let config = towpath_client::Config::default().rings(Sizes::all(64)).checks(false);
        self.ask_for(umem, "default", config).unwrap()
    }

    pub(super) fn ask(&self, umem: &Umem, rules: &str, rings: Sizes) -> Result<Socket, Error> {
        self.ask_for(umem, rules, towpath_client::Config::default().rings(rings))
    }

    pub(super) fn ask_for(&self, umem: &Umem, rules: &str, config: towpath_client::Config) -> Result<Socket, Error> {
        let rules = rules.split(',').map(str::to_owned).collect();
        Socket::connect(umem, &self.path, &config.headroom(32).rules(rules))
    }

    /// Runs the transmit queues until each has `n` sessions.
    pub(super) fn until_sessions(&mut self, n: usize) {
        until(|| {
            self.tx.reclaim();
            for (_, tx) in &mut self.more {
                tx.reclaim();
            }
            self.tx.queue.apps().len() == n && self.more.iter_mut().all(|(_, tx)| tx.queue.apps().len() == n)
        });
    }

    pub(super) fn event(&self, name: &str) -> u64 {
        self.control.events().iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// One turn of the receive queue.
    pub(super) fn step(&mut self) -> Batch {
        let mut batch = Batch::new();
        self.rx.rx(&mut batch);
        batch
    }

    /// Runs the receive queue until `n` packets have come.
    pub(super) fn receive(&mut self, n: usize) -> Batch {
        let mut batch = Batch::new();
        until(|| {
            self.rx.rx(&mut batch);
            batch.len() >= n
        });
        batch
    }

    /// Gives packets to the applications.
    pub(super) fn send(&mut self, packets: &[&[u8]]) {
        give(&self.pool, &mut self.tx, packets);
    }

    /// Runs the queues until the event was counted.
    pub(super) fn until_event(&mut self, name: &str, n: u64) {
        until(|| {
            let mut batch = Batch::new();
            self.rx.rx(&mut batch);
            self.tx.reclaim();
            self.event(name) >= n
        });
    }

    /// The application has all the frames back that it sent and has not taken back: `n`, each once.
    /// No packet of them is left.
    #[track_caller]
    pub(super) fn completes(&mut self, app: &mut Socket, n: usize) {
        let mut back = Vec::new();
        for _ in 0..20 {
            drop(self.step());
            // A frame that it does not miss is an error of the client.
            app.completions(&mut back).unwrap();
        }
        assert_eq!(back.len(), n, "frames that were completed");
    }

    /// Ends the port: every buffer must be free, and every page of the applications too.
    #[track_caller]
    pub(super) fn end(self) {
        let Rig { rx, tx, more, pool, pages, path, .. } = self;
        drop((rx, tx, more));
        assert_eq!(pool.stats().free, pool.stats().capacity, "buffers are missing");
        assert_eq!(pages.freed(), pages.attached(), "pages of applications, freed and attached");
        assert!(!path.exists());
    }
}

/// Sends packets by a queue.
pub(super) fn give(pool: &Pool, tx: &mut Ended<SockTx>, packets: &[&[u8]]) {
    let mut batch = Batch::new();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    for bytes in packets {
        batch.push(Packet::copy_from(&mut cache, bytes).unwrap()).unwrap();
    }
    tx.reclaim();
    assert_eq!(tx.tx(&mut batch), packets.len());
    tx.kick();
}

pub(super) fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happens");
        std::thread::yield_now();
    }
}

pub(super) fn frames(umem: &Umem, n: u8, len: usize) -> Vec<Frame> {
    let make = |i| {
        let mut frame = umem.alloc().unwrap();
        assert!(frame.put(&vec![i; len]));
        frame
    };
    (0..n).map(make).collect()
}

/// An IPv4 UDP frame to a port.
pub(super) fn udp(port: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(42)];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    let total = bytes.len() as u16 - 14;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    (bytes[22], bytes[23]) = (64, 17);
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    bytes
}
