//! The path through the datapath, from one application socket to another.

use super::exchange::{Mode, Round, STAMP, Sample, pin, stamp};
use crate::args::BenchLatency;
use std::cell::RefCell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use towpath::engine::gro_stage::GroMode;
use towpath::engine::route::{Route, RouteConfig};
use towpath::packet::port::{Port, RxQueue, Start};
use towpath::packet::{Direction, Offloads, Pool, PoolConfig};
use towpath::{AnyPort, AnyRx, AnyTx, Forward, Opener, Role, Running};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};

/// An Ethernet header to the broadcast address with a local experimental ethertype (IEEE 802,
/// 0x88b5).
pub(super) const HEADER: [u8; 14] = [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
/// Longest sleep of a receiver, so that it notices the end.
pub(super) const NAP: Duration = Duration::from_millis(50);

/// With both ends on the first core, and the datapath on the other.
pub(super) fn one_core(mode: Mode, args: &BenchLatency, [core, other]: [usize; 2]) -> Result<Sample, Box<dyn Error>> {
    let (ports, paths) = Ports::open()?;
    let running = ports.forward(mode, other)?;
    let memory = memory()?;
    let (mut sender, mut receiver) = connect(&memory, paths, args)?;
    let round = Round::new(mode, args)?;
    let sample = on(core, || match mode {
        Mode::Spin => round.send_all(
            |stamp| sender.send(stamp),
            || receiver.receive(Duration::ZERO).map(|stamp| stamp.into_iter().for_each(|stamp| round.received(stamp))),
        ),
        Mode::Sleep | Mode::Adaptive => {
            round.beside(core, || receiver.receive(NAP), || round.send_all(|stamp| sender.send(stamp), || Ok(())))
        }
    })?;
    end(running)?;
    Ok(sample)
}

/// With the sender and the datapath on the first core, and the receiver on the other. Spinning, the
/// sender's thread turns the route, as it runs the kernel's stack in its system calls; sleeping,
/// the datapath has its own thread there.
pub(super) fn two_cores(mode: Mode, args: &BenchLatency, [core, other]: [usize; 2]) -> Result<Sample, Box<dyn Error>> {
    let (ports, paths) = Ports::open()?;
    let memory = memory()?;
    let round = Round::new(mode, args)?;
    match mode {
        Mode::Spin => {
            let mut route = ports.route()?;
            let (mut sender, mut receiver) = connect(&memory, paths, args)?;
            let sample = on(core, || {
                let route = RefCell::new(&mut route);
                let turn = || -> Result<(), Box<dyn Error>> {
                    route.borrow_mut().turn(false);
                    Ok(())
                };
                let send = |stamp| sender.send(stamp).and_then(|()| turn());
                round.beside(other, || receiver.receive(Duration::ZERO), || round.send_all(send, turn))
            })?;
            let lost = route.held() as u64 + route.counters().snapshot().all_drops();
            if lost > sample.lost { Err("the route lost packets".into()) } else { Ok(sample) }
        }
        Mode::Sleep | Mode::Adaptive => {
            let running = ports.forward(mode, core)?;
            let (mut sender, mut receiver) = connect(&memory, paths, args)?;
            let sample = on(core, || {
                round.beside(other, || receiver.receive(NAP), || round.send_all(|stamp| sender.send(stamp), || Ok(())))
            })?;
            end(running)?;
            Ok(sample)
        }
    }
}

/// Runs `body` in a thread on `core`.
fn on(core: usize, body: impl FnOnce() -> Result<Sample, Box<dyn Error>> + Send) -> Result<Sample, Box<dyn Error>> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(core);
            body().map_err(|error| error.to_string())
        });
        Ok(thread.join().map_err(|_| "the application failed")??)
    })
}

/// The ports that the two applications connect to.
struct Ports([AnyPort; 2]);

impl Ports {
    fn open() -> Result<(Ports, [PathBuf; 2]), Box<dyn Error>> {
        let (paths, mut opener) = ([path(), path()], Opener::new());
        let mut open = |path: &Path| -> Result<_, Box<dyn Error>> {
            Ok(opener.open(&format!("sock:{}", path.display()).parse()?, Role::Both)?)
        };
        Ok((Ports([open(&paths[0])?, open(&paths[1])?]), paths))
    }

    /// Joins them by a datapath with a thread on `core`.
    fn forward(self, mode: Mode, core: usize) -> Result<Running, Box<dyn Error>> {
        let mut plan = Forward::default();
        (plan.idle, plan.cores) = (mode.idle(), vec![core]);
        plan.gro.mode = GroMode::Off;
        let Ports([a, b]) = self;
        Ok(plan.start(a, b)?)
    }

    /// The route from the first to the second.
    fn route(self) -> Result<Route<AnyRx, AnyTx>, Box<dyn Error>> {
        let pool = Pool::new(PoolConfig::default().capacity(1024))?;
        let Ports([a, b]) = self;
        let mut config = RouteConfig::default();
        config.tx_layout = b.info().tx_layout;
        let start = |port: AnyPort| port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE });
        let mut rx = start(a)?.rx.pop().ok_or("a port without a queue")?;
        rx.set_tx_layout(config.tx_layout);
        let tx = start(b)?.tx.pop().ok_or("a port without a queue")?;
        Ok(Route::new(rx, tx, pool.cache(Direction::Tx)?, config))
    }
}

/// Stops the datapath.
fn end(running: Running) -> Result<(), Box<dyn Error>> {
    let summary = running.stop();
    if summary.reading.balance().in_flight() != 0 || summary.buffers_away > 0 {
        return Err("the balance does not add up".into());
    }
    Ok(())
}

fn memory() -> Result<[Umem; 2], Box<dyn Error>> {
    Ok([Umem::new(256, 2048)?, Umem::new(256, 2048)?])
}

/// Connects the applications.
fn connect(
    memory: &[Umem; 2],
    [from, to]: [PathBuf; 2],
    args: &BenchLatency,
) -> Result<(Sender, Receiver), Box<dyn Error>> {
    let config = Config::default().rings(Sizes::all(64));
    let [of_sender, of_receiver] = memory;
    let sender = Sender { socket: Socket::connect(of_sender, from, &config)?, size: args.size };
    let socket = Socket::connect(of_receiver, to, &config)?;
    Ok((sender, Receiver { socket, got: Vec::new() }))
}

/// A unique path.
fn path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("towpath-latency-{}-{n}", std::process::id()))
}

struct Sender {
    socket: Socket,
    size: usize,
}

impl Sender {
    fn send(&mut self, stamp: u64) -> Result<(), Box<dyn Error>> {
        let mut back = Vec::new();
        self.socket.completions(&mut back)?;
        let frame = back.pop().or_else(|| self.socket.umem().alloc());
        let mut frame = frame.ok_or("no frame comes back")?;
        let bytes = &mut [0; 1514][..self.size];
        bytes[..HEADER.len()].copy_from_slice(&HEADER);
        bytes[HEADER.len()..HEADER.len() + STAMP].copy_from_slice(&stamp.to_ne_bytes());
        if !frame.put(bytes) {
            return Err("a frame that does not fit in its chunk".into());
        }
        self.socket.tx(&mut vec![frame])?;
        Ok(())
    }
}

struct Receiver {
    socket: Socket,
    got: Vec<Frame>,
}

impl Receiver {
    /// Returns a message if one arrives `within` a time.
    fn receive(&mut self, within: Duration) -> Result<Option<u64>, Box<dyn Error>> {
        if self.got.is_empty() && self.socket.rx(&mut self.got)? == 0 {
            let mut empty: Vec<_> = std::iter::from_fn(|| self.socket.umem().alloc()).take(32).collect();
            self.socket.fill(&mut empty)?;
            if within.is_zero() || !self.socket.wait(Some(within))? {
                return Ok(None);
            }
            self.socket.rx(&mut self.got)?;
        }
        let frame = self.got.pop();
        Ok(frame.and_then(|frame| stamp(frame.bytes().get(HEADER.len()..)?)))
    }
}
