//! An application, its socket, and an egress, joined as `towpath fwd` joins them.

use super::Way;
use super::app::{App, BURST, Runner};
use super::egress::{Egress, Opened};
use crate::args::BenchXsk;
use crate::bench::median;
use crate::bench::netns::Namespace;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use towpath::engine::route::{Route, RouteConfig};
use towpath::model::e1000e::Device;
use towpath::packet::port::{Port, PortControl, Queues, RxQueue, Start, TxLayout};
use towpath::packet::{Counters, Direction, Offloads, Pool, PoolConfig};
use towpath::ports::null;
use towpath::ports::sock::{self, Transmit};
use towpath::{AnyPort, AnyRx, AnyTx};
use towpath_client::Umem;

/// Time without progress after which a run is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The sender.
enum Sender<'u> {
    Stepped(Box<App<'u>>),
    Threaded(Runner),
}

/// Application and datapath of one variant.
pub(super) struct Rig<'u> {
    // Drop order: the queues end before the interface that they use.
    near: Route<AnyRx, AnyTx>,
    far: Option<Route<AnyRx, AnyTx>>,
    device: Option<Device>,
    sender: Sender<'u>,
    received: Arc<Counters>,
    events: Arc<dyn PortControl>,
    _namespace: Option<Namespace>,
}

/// A unique socket path.
fn path() -> std::path::PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("towpath-bench-{}-{number}.sock", std::process::id()))
}

/// One queue of a port.
fn start(port: AnyPort, pool: &Pool) -> Result<(AnyRx, AnyTx), Box<dyn Error>> {
    let Queues { rx, tx } = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE })?;
    rx.into_iter().zip(tx).next().ok_or_else(|| "a port without queues".into())
}

impl<'u> Rig<'u> {
    pub(super) fn new(
        umem: &'u Umem,
        egress: Egress,
        transmit: Transmit,
        size: u32,
        args: &BenchXsk,
    ) -> Result<Rig<'u>, Box<dyn Error>> {
        let pool = Pool::new(PoolConfig::default())?;
        let Opened { port, far, device, namespace } = egress.open()?;
        let path = path();
        let mut config = sock::Config::new(&path);
        config.transmit = transmit;
        let sock = AnyPort::Sock(sock::open(config)?);
        let events = sock.control().ok_or("a socket without figures")?;
        let tx_layout = port.info().tx_layout;
        let (mut rx, unused) = start(sock, &pool)?;
        drop(unused);
        rx.set_tx_layout(tx_layout);
        let received = rx.counters().clone();
        let (_, tx) = start(port, &pool)?;
        let route = |rx, tx, tx_layout| -> Result<_, Box<dyn Error>> {
            let mut config = RouteConfig::default();
            config.tx_layout = tx_layout;
            Ok(Route::new(rx, tx, pool.cache(Direction::Tx)?, config))
        };
        let far = match far {
            None => None,
            Some(far) => {
                let (rx, _) = start(far, &pool)?;
                let null = null::open(null::Config::from_uri(&"null:".parse()?)?).map(AnyPort::Null)?;
                Some(route(rx, start(null, &pool)?.1, TxLayout::default())?)
            }
        };
        let near = route(rx, tx, tx_layout)?;
        let sender = if args.threaded {
            Sender::Threaded(Runner::new(path, size, args.write, args.app_core))
        } else {
            Sender::Stepped(Box::new(App::new(umem, &path, size, args.write)?))
        };
        let mut rig = Rig { near, far, device, sender, received, events, _namespace: namespace };
        rig.samples(2)?;
        Ok(rig)
    }

    /// Nanoseconds per packet: the median of `bursts` bursts after a warm-up.
    pub(super) fn round(&mut self, bursts: usize) -> Result<f64, Box<dyn Error>> {
        if let Sender::Threaded(runner) = &self.sender {
            runner.run(true);
        }
        let samples = self.samples(bursts / 8).and_then(|_| self.samples(bursts));
        if let Sender::Threaded(runner) = &self.sender {
            runner.run(false);
        }
        Ok(median(samples?))
    }

    fn samples(&mut self, bursts: usize) -> Result<Vec<f64>, Box<dyn Error>> {
        let mut samples = Vec::with_capacity(bursts);
        if let Sender::Threaded(runner) = &self.sender {
            runner.run(true);
        }
        let begun = Instant::now();
        while samples.len() < bursts {
            match &mut self.sender {
                Sender::Stepped(app) => drop(app.step()?),
                Sender::Threaded(runner) if runner.is_alive() => {}
                Sender::Threaded(_) => return Err("the application has ended".into()),
            }
            let (n, took) = self.turn();
            // A smaller burst does not show the cost of a full one.
            if n == BURST {
                samples.push(took.as_nanos() as f64 / n as f64);
            }
            if let Some(device) = &self.device {
                device.run_until_idle();
            }
            if samples.is_empty() && begun.elapsed() > TIMEOUT {
                return Err("nothing moves".into());
            }
        }
        Ok(samples)
    }

    /// One turn of the datapath: the timed section.
    #[inline(never)]
    fn turn(&mut self) -> (usize, Duration) {
        let begun = Instant::now();
        let n = self.near.turn(false);
        if let Some(far) = &mut self.far {
            far.turn(false);
        }
        (n, begun.elapsed())
    }

    /// The row, at `ns` per packet.
    pub(super) fn seen(&self, ns: f64) -> Result<Way, Box<dyn Error>> {
        let received = self.received.snapshot().packets as f64;
        let event = |wanted| {
            let events = self.events.events();
            let found = events.iter().find(|(name, _)| *name == wanted).map(|(_, n)| *n as f64 / received);
            found.ok_or("a socket without figures")
        };
        let drops = self.near.counters().snapshot().all_drops();
        if drops > 0 {
            return Err(format!("{drops} packets were dropped").into());
        }
        Ok(Way { ns, pps: 1e9 / ns, copies: event("copies")?, copied_bytes: event("copied-bytes")? })
    }
}
