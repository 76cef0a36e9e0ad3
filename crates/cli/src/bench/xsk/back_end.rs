//! Back ends of vhost-user behind the egress `virtio:user=`. Each has a core of its own, reads
//! every byte of each frame and counts.
//!
//! | back end | |
//! |---|---|
//! | towpath | `vhost:` ══ route ══► `sock:` ── RX ring ──► an application, in one thread |
//! | DPDK | `net_vhost`, a process of its own |

use super::app;
use super::reader::{Progress, Work};
use super::rig::{path, start};
use super::testpmd::Testpmd;
use super::worker::Worker;
use crate::args::BenchXsk;
use crate::bench::machine::Machine;
use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::engine::route::{Route, RouteConfig};
use towpath::packet::port::{Port, RxQueue};
use towpath::packet::{Direction, Pool, PoolConfig};
use towpath::{AnyPort, AnyRx, AnyTx, Opener, Role};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};

/// Time in which all that was sent must have been counted.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A running back end.
pub(super) enum BackEnd {
    Towpath { worker: Worker, progress: Arc<Progress> },
    Dpdk(Testpmd),
}

/// Where a back end runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackEndPlace {
    /// Its core: the chosen one, or another than this thread's.
    pub(super) core: usize,
    /// DPDK's memory lies in huge pages.
    pub(super) huge: bool,
}

impl BackEndPlace {
    pub(super) fn of(args: &BenchXsk) -> BackEndPlace {
        let is_first = nix::sched::sched_getcpu() == Ok(0);
        let another = || usize::from(is_first).min(Machine::this().cores_online.saturating_sub(1));
        BackEndPlace { core: args.read_core.unwrap_or_else(another), huge: args.huge }
    }
}

impl BackEnd {
    /// The port `vhost:` and an application behind it; also returns the path of its socket.
    pub(super) fn towpath(core: usize) -> Result<(BackEnd, PathBuf), Box<dyn Error>> {
        let (device, door, mut opener) = (path(), path(), Opener::new());
        let vhost = opener.open(&format!("vhost:{}", device.display()).parse()?, Role::Both)?;
        let sock = opener.open(&format!("sock:{}", door.display()).parse()?, Role::Both)?;
        let progress = Arc::<Progress>::default();
        let of_thread = progress.clone();
        let worker = Worker::new("the back end", Some(core), move |worker| {
            let umem = app::memory()?;
            let mut receiver = Receiver::new(&umem, vhost, sock, &door)?;
            worker.turns(|| {
                let moved = receiver.turn()?;
                of_thread.set(receiver.work);
                Ok(moved)
            })
        });
        Ok((BackEnd::Towpath { worker, progress }, device))
    }

    /// DPDK's program; also returns the path of its socket.
    pub(super) fn dpdk(place: BackEndPlace) -> Result<(BackEnd, PathBuf), Box<dyn Error>> {
        let device = path();
        Ok((BackEnd::Dpdk(Testpmd::start(&device, place)?), device))
    }

    /// Starts or pauses it.
    pub(super) fn run(&mut self, runs: bool) -> Result<(), Box<dyn Error>> {
        match self {
            BackEnd::Towpath { worker, .. } => worker.run(runs),
            BackEnd::Dpdk(testpmd) => testpmd.run(runs)?,
        }
        Ok(())
    }

    /// What it has counted; DPDK's program as of the last question.
    pub(super) fn work(&self) -> Work {
        match self {
            BackEnd::Towpath { progress, .. } => progress.get(),
            BackEnd::Dpdk(testpmd) => testpmd.work,
        }
    }

    /// Waits until it has counted as many packets as were sent to it. It must run.
    ///
    /// # Errors
    /// It has ended, or counts another number.
    pub(super) fn has_received(&mut self, sent: u64) -> Result<(), Box<dyn Error>> {
        let begun = Instant::now();
        loop {
            let packets = match self {
                BackEnd::Towpath { worker, .. } if !worker.is_alive() => return Err("the back end has ended".into()),
                BackEnd::Towpath { progress, .. } => progress.get().packets,
                BackEnd::Dpdk(testpmd) => testpmd.ask()?.packets,
            };
            if packets == sent {
                return Ok(());
            }
            if packets > sent || begun.elapsed() > TIMEOUT {
                return Err(format!("the back end counts {packets} of {sent} packets").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What the thread does: moves packets from the device to the application, and is the application.
struct Receiver {
    route: Route<AnyRx, AnyTx>,
    socket: Socket,
    frames: Vec<Frame>,
    empty: Vec<Frame>,
    /// The application's own memory, to which it copies what it receives.
    bytes: Box<[u8; 2048]>,
    work: Work,
}

impl Receiver {
    fn new(umem: &Umem, vhost: AnyPort, sock: AnyPort, door: &Path) -> Result<Receiver, Box<dyn Error>> {
        let pool = Pool::new(PoolConfig::default())?;
        let mut config = RouteConfig::default();
        config.tx_layout = sock.info().tx_layout;
        let ((mut rx, _), (_, tx)) = (start(vhost, &pool)?, start(sock, &pool)?);
        rx.set_tx_layout(config.tx_layout);
        let route = Route::new(rx, tx, pool.cache(Direction::Tx)?, config);
        let socket = Socket::connect(umem, door, &Config::default().rings(Sizes::all(2048)))?;
        let empty = std::iter::from_fn(|| umem.alloc()).collect();
        let (frames, bytes) = (Vec::new(), Box::new([0; 2048]));
        Ok(Receiver { route, socket, frames, empty, bytes, work: Work::default() })
    }

    /// Moves a burst, and reads what the application has received of it.
    fn turn(&mut self) -> Result<usize, Box<dyn Error>> {
        self.socket.fill(&mut self.empty)?;
        let moved = self.route.turn(false);
        let got = self.socket.rx(&mut self.frames)?;
        for frame in &self.frames {
            let read = frame.bytes();
            if let Some(own) = self.bytes.get_mut(..read.len()) {
                own.copy_from_slice(read);
                black_box(&*own);
            }
            self.work.bytes += read.len() as u64;
        }
        self.work.packets += got as u64;
        self.empty.append(&mut self.frames);
        Ok(moved + got)
    }
}
