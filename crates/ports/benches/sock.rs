//! Time of receiving into applications: `cargo bench -p towpath-ports --bench sock`.
//!
//! Timed are the port's `tx` and `kick` alone: classification, the copy into the application's
//! chunks, submitting the entries. The packets are made, and the application works, untimed in
//! between.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_client::{Frame, Sizes, Socket, Umem};
use towpath_packet::port::{Port, Queues, Start, TxQueue};
use towpath_packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath_ports::sock::{self, SockPort};

type Tx = <SockPort as Port>::Tx;

/// An application that takes its packets and posts the chunks again.
struct App {
    socket: Socket,
    frames: Vec<Frame>,
}

impl App {
    fn turn(&mut self) {
        self.socket.rx(&mut self.frames).unwrap();
        self.socket.fill(&mut self.frames).unwrap();
    }
}

/// A UDP packet to a port.
fn udp(len: usize, port: u16) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
    (bytes[22], bytes[23]) = (64, 17);
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[38..40].copy_from_slice(&(len as u16 - 34).to_be_bytes());
    bytes
}

/// Makes a burst.
fn make(cache: &mut Cache, batch: &mut Batch, frames: &[Vec<u8>]) {
    frames.iter().for_each(|frame| batch.push(Packet::copy_from(cache, frame).unwrap()).unwrap());
}

/// Passes a burst to the queue until all of it was taken.
#[inline(always)]
fn give(tx: &mut Tx, batch: &mut Batch) {
    while !batch.is_empty() {
        tx.tx(batch);
    }
    tx.kick();
}

/// The part that is timed, and that callgrind counts.
#[inline(never)]
fn measured(tx: &mut Tx, batch: &mut Batch) -> Duration {
    let begun = Instant::now();
    give(tx, batch);
    begun.elapsed()
}

fn start(path: &std::path::Path, pool: &Pool, queues: u16) -> Queues<<SockPort as Port>::Rx, Tx> {
    let mut config = sock::Config::new(path);
    config.rules = 255;
    let port = sock::open(config).unwrap();
    port.start(Start { pool: pool.clone(), queues, accept: Offloads::ALL }).unwrap()
}

fn receiving(c: &mut Criterion) {
    let pool = Pool::new(PoolConfig::default().capacity(4096)).unwrap();
    let mut group = c.benchmark_group("receiving");
    for (name, apps, rules, burst, len) in [
        ("64 packets of 64 B, one application", 1, 0, 64, 64),
        ("64 packets of 1500 B, one application", 1, 0, 64, 1500),
        ("1 packet of 64 B, one application", 1, 0, 1, 64),
        ("64 packets of 64 B, 8 applications in turns", 8, 1, 64, 64),
        ("64 packets of 64 B, one application behind 255 rules", 1, 255, 64, 64),
    ] {
        group.throughput(Throughput::Elements(burst as u64));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let umems: Vec<_> = (0..apps).map(|_| Umem::new(512, 2048).unwrap()).collect();
        let port = |i| if apps == 1 { 9999 } else { 1 + (i % apps) as u16 };
        let frames: Vec<_> = (0..burst).map(|i| udp(len, port(i))).collect();
        let connect = |(number, umem)| {
            let mut wanted: Vec<_> = (0..rules).map(|n| format!("udp dport {}", 1 + number * rules + n)).collect();
            // A single application gets what no rule matches.
            wanted.extend((apps == 1).then(|| "default".to_owned()));
            let config = towpath_client::Config::default().rings(Sizes::all(512)).rules(wanted);
            let frames = std::iter::from_fn(|| Umem::alloc(umem)).collect();
            App { socket: Socket::connect(umem, &path, &config).unwrap(), frames }
        };
        let set_up = || {
            let mut tx = start(&path, &pool, 1).tx.remove(0);
            let mut apps: Vec<_> = umems.iter().enumerate().map(connect).collect();
            let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
            let mut whole = 0;
            while whole < 100 {
                apps.iter_mut().for_each(App::turn);
                let before = tx.counters().snapshot().packets;
                make(&mut cache, &mut batch, &frames);
                tx.reclaim();
                give(&mut tx, &mut batch);
                // Packets are dropped until the queue has all applications.
                whole += usize::from(tx.counters().snapshot().packets == before + burst as u64);
            }
            (tx, apps, cache, batch)
        };
        let mut rig = None;
        group.bench_function(name, |b| {
            let (tx, apps, cache, batch) = rig.get_or_insert_with(set_up);
            b.iter_custom(|iterations| {
                let mut took = Duration::ZERO;
                for _ in 0..iterations {
                    apps.iter_mut().for_each(App::turn);
                    make(cache, batch, &frames);
                    tx.reclaim();
                    took += measured(tx, batch);
                }
                took
            });
        });
    }
    group.finish();
}

/// Two queues with a thread each, and one application: the time of a burst of one queue while the
/// other one passes bursts all the time. It means little on cores that other processes use.
fn contended(c: &mut Criterion) {
    let pool = Pool::new(PoolConfig::default().capacity(4096)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut queues = start(&path, &pool, 2).tx;
    let (mut other, mut tx) = (queues.pop().unwrap(), queues.pop().unwrap());
    let umem = Umem::new(4096, 2048).unwrap();
    let rules = vec!["default".to_owned()];
    let config = towpath_client::Config::default().rings(Sizes::all(4096)).rules(rules);
    let mut app = App {
        socket: Socket::connect(&umem, &path, &config).unwrap(),
        frames: std::iter::from_fn(|| umem.alloc()).collect(),
    };
    let stop = AtomicBool::new(false);
    let frames = vec![vec![7; 64]; 64];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
            while !stop.load(Ordering::Relaxed) {
                make(&mut cache, &mut batch, &frames);
                other.reclaim();
                give(&mut other, &mut batch);
            }
        });
        let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
        let mut group = c.benchmark_group("receiving by two queues");
        group.throughput(Throughput::Elements(64));
        group.bench_function("64 packets of 64 B", |b| {
            b.iter_custom(|iterations| {
                let mut took = Duration::ZERO;
                for _ in 0..iterations {
                    app.turn();
                    make(&mut cache, &mut batch, &frames);
                    tx.reclaim();
                    took += measured(&mut tx, &mut batch);
                }
                took
            });
        });
        group.finish();
        stop.store(true, Ordering::Relaxed);
    });
}

criterion_group!(benches, receiving, contended);
criterion_main!(benches);
