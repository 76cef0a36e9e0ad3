//! Time per packet of the kernel-backed ports, and the comparisons behind their design.
//!
//! ```sh
//! cargo run --release -p towpath-ports --example kernel_ports          # needs root; makes a namespace of its own
//! ```
//!
//! Everything runs on one thread, in rounds: a burst is put into the kernel's queue, then taken
//! out. Only the side that the line names is timed, except where it says "through": then both sides
//! are, because the alternatives put their work at different ends. Each figure is the median of
//! many rounds, in nanoseconds per packet of wall time on one core.

#[path = "kernel_ports/mmsg.rs"]
mod mmsg;
#[path = "kernel_ports/ring.rs"]
mod ring;
#[path = "kernel_ports/tails.rs"]
mod tails;

use std::process::Command;
use std::time::{Duration, Instant};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Cache, Checksum, Direction, Gso, GsoKind, Offloads, Packet, Pool, PoolConfig};
use towpath_ports::uri::Uri;
use towpath_ports::{packet, tun};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Rounds of each measurement.
const ROUNDS: usize = 200;

/// A kind of packet.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    payload: usize,
    gso: bool,
    /// Packets per round.
    burst: usize,
}

/// From the smallest to the largest.
const LOADS: [Load; 3] = [
    Load { name: "60 B", payload: 18, gso: false, burst: 64 },
    Load { name: "1514 B", payload: 1472, gso: false, burst: 64 },
    Load { name: "64 KiB TSO", payload: 65_000, gso: true, burst: 16 },
];

impl Load {
    /// One packet, to an address without a host: the least cost in the receiving stack.
    fn packet(self, cache: &mut Cache) -> Result<Packet> {
        let link = Link { dst: [2, 0, 0, 0, 0, 9], src: [2, 0, 0, 0, 0, 8], ..Link::default() };
        let transport = if self.gso {
            Transport::Tcp(Tcp { src_port: 9, dst_port: 9, ..Tcp::default() })
        } else {
            Transport::Udp(Udp { src_port: 9, dst_port: 9 })
        };
        let ip = Ip::v4([192, 0, 2, 1], [192, 0, 2, 2]);
        let headers = Headers { link: Some(link), network: Network::Ip(ip, transport) };
        let mut frame = vec![0; headers.len() + self.payload];
        headers.write(&mut frame, Checksums::Partial)?;
        let mut packet = Packet::copy_from(cache, &frame).ok_or("the pool is dry")?;
        let start = headers.transport_offset() as u16;
        packet.set_csum(Checksum::Partial { start, offset: if self.gso { 16 } else { 6 } });
        let hdr_len = headers.len() as u16;
        packet.set_gso(self.gso.then_some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1448, segs: 45, hdr_len }));
        Ok(packet)
    }
}

fn ip(args: &str) -> Result<()> {
    let status = Command::new("ip").args(args.split_whitespace()).status()?;
    if status.success() { Ok(()) } else { Err(format!("ip {args}: {status}").into()) }
}

fn uri(text: &str) -> Result<Uri> {
    Ok(text.parse()?)
}

type PacketQueues = Queues<packet::PacketRx, packet::PacketTx>;

fn open_packet(text: &str, pool: &Pool) -> Result<PacketQueues> {
    let port = packet::open(packet::Config::from_uri(&uri(text)?)?)?;
    Ok(port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL })?)
}

fn open_tap(text: &str, pool: &Pool) -> Result<Queues<tun::TunRx, tun::TunTx>> {
    let port = tun::open(tun::Config::from_uri(&uri(text)?)?)?;
    Ok(port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL })?)
}

/// Sends one burst.
fn fill(tx: &mut impl TxQueue, cache: &mut Cache, load: Load) -> Result<Duration> {
    let mut batch = Batch::new();
    for _ in 0..load.burst {
        batch.push(load.packet(cache)?).map_err(|_| "more than a batch")?;
    }
    let begin = Instant::now();
    while !batch.is_empty() {
        tx.tx(&mut batch);
    }
    Ok(begin.elapsed())
}

/// Receives `n` packets and frees them.
fn drain(rx: &mut impl RxQueue, cache: &mut Cache, n: usize) -> Duration {
    let mut batch = Batch::new();
    let begin = Instant::now();
    let mut seen = 0;
    while seen < n && begin.elapsed() < Duration::from_millis(100) {
        rx.refill();
        seen += rx.rx(&mut batch);
        cache.free_bulk(&mut batch);
    }
    begin.elapsed()
}

/// The median of many rounds, per packet.
fn median(load: Load, mut round: impl FnMut() -> Result<Duration>) -> Result<f64> {
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        all.push(round()?);
    }
    all.sort_unstable();
    Ok(all[ROUNDS / 2].as_secs_f64() * 1e9 / load.burst as f64)
}

fn line(what: &str, load: Load, ns: f64) {
    println!("{what:<58} {:>10} {ns:>9.0} ns  {:>8.3} Mpps", load.name, 1e3 / ns);
}

fn taps(pool: &Pool) -> Result<()> {
    let mut cache = pool.cache(Direction::Tx)?;
    let mut tap = open_tap("tap:bench0", pool)?;
    let mut into = open_packet("packet:bench0", pool)?;
    for load in LOADS {
        let rx = median(load, || {
            fill(&mut into.tx[0], &mut cache, load)?;
            Ok(drain(&mut tap.rx[0], &mut cache, load.burst))
        })?;
        line("tap rx (readv)", load, rx);
    }
    for load in LOADS {
        drop(std::mem::take(&mut into.rx));
        let tx = median(load, || fill(&mut tap.tx[0], &mut cache, load))?;
        line("tap tx (writev), with the stack's dropping it", load, tx);
    }
    Ok(())
}

fn sockets(pool: &Pool) -> Result<()> {
    let mut cache = pool.cache(Direction::Tx)?;
    for qdisc in ["normal", "bypass"] {
        let mut into = open_packet(&format!("packet:v0?qdisc={qdisc}"), pool)?;
        drop(std::mem::take(&mut into.rx));
        for load in LOADS {
            let tx = median(load, || fill(&mut into.tx[0], &mut cache, load))?;
            line(&format!("packet tx (sendmmsg, qdisc={qdisc}), no receiver"), load, tx);
        }
    }
    let mut into = open_packet("packet:v0", pool)?;
    drop(std::mem::take(&mut into.rx));
    for load in LOADS {
        receivers(&mut into.tx[0], &mut cache, pool, load)?;
    }
    receivers(&mut into.tx[0], &mut cache, pool, Load { name: "60 B, alone", burst: 1, ..LOADS[0] })
}

/// Receive methods, compared in turns: A B C A B C …, so that a drift of the machine's speed
/// affects all of them.
const WAYS: [&str; 3] = ["as it is (ring of frames)", "by recvmmsg", "by ring of blocks"];
const TURNS: usize = 7;

/// Sends and receives; both together are timed, and receiving alone.
fn receivers(tx: &mut impl TxQueue, cache: &mut Cache, pool: &Pool, load: Load) -> Result<()> {
    let mut all: [[Vec<f64>; 2]; 3] = Default::default();
    for turn in 0..TURNS * WAYS.len() {
        let way = turn % WAYS.len();
        let (mut port, mut messages, mut ring) = (None, None, None);
        match way {
            0 => port = Some(open_packet("packet:v1", pool)?),
            1 => messages = Some(mmsg::Messages::new("v1")?),
            _ => ring = Some(ring::Ring::new("v1")?),
        }
        let mut received = Vec::new();
        let through = median(load, || {
            let sent = fill(tx, cache, load)?;
            let n = load.burst;
            let took = match (&mut port, &mut messages, &mut ring) {
                (Some(port), ..) => drain(&mut port.rx[0], cache, n),
                (_, Some(messages), _) => messages.drain(cache, n),
                (.., Some(ring)) if n > 1 => ring.drain(cache),
                (.., Some(ring)) => ring.wait(cache),
                _ => Duration::ZERO,
            };
            received.push(took.as_secs_f64() * 1e9 / n as f64);
            Ok(sent + took)
        })?;
        let [throughs, alone] = &mut all[way];
        throughs.push(through);
        // A ring of blocks is emptied a block at a time: the mean, not the median, is what a packet
        // costs.
        alone.push(received.iter().sum::<f64>() / received.len() as f64);
    }
    for (way, mut figures) in WAYS.iter().zip(all) {
        figures.iter_mut().for_each(|f| f.sort_unstable_by(f64::total_cmp));
        line(&format!("packet through veth, rx {way}"), load, figures[0][TURNS / 2]);
        line("    of that the receiving thread", load, figures[1][TURNS / 2]);
    }
    Ok(())
}

fn main() -> Result<()> {
    // SAFETY: unshare takes no pointer; the process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    ip("link add v0 type veth peer name v1")?;
    ip("link set v0 up")?;
    ip("link set v1 up")?;
    let pool = Pool::new(PoolConfig::default())?;
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("tap") {
        taps(&pool)?;
    }
    if wanted("tails") {
        tails::compare(&pool)?;
    }
    if wanted("packet") {
        sockets(&pool)?;
    }
    Ok(())
}
