//! An application, its socket, and an egress, joined as `towpath fwd` joins them.

use super::PacketCost;
use super::app::{self, App, BURST};
use super::back_end::{BackEnd, BackEndPlace};
use super::egress::{Egress, Opened};
use super::reader::{Reader, ReaderThread, Work};
use super::worker::Worker;
use crate::args::{BenchXsk, Read};
use crate::bench::median;
use crate::bench::netns::Namespace;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use towpath::engine::route::{Route, RouteConfig};
use towpath::model::e1000e::Device;
use towpath::packet::port::{Port, PortControl, Queues, RxQueue, Start};
use towpath::packet::{Counters, Direction, Offloads, Pool, PoolConfig};
use towpath::ports::sock::{self, Transmit};
use towpath::{AnyPort, AnyRx, AnyTx};
use towpath_client::Umem;

/// Time without progress after which a run is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The sender.
enum Sender {
    Stepped(Box<App>),
    Threaded(Worker),
}

/// The consumer behind the pair in memory, or a back end.
enum Consumer {
    Same(Box<Reader>),
    Threaded(ReaderThread),
    BackEnd(Box<BackEnd>),
}

/// Nanoseconds per packet in a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// Of the datapath's core, with a reader in its thread, until the egress has taken all: the
    /// median over bursts.
    pub(super) datapath: f64,
    /// Of the core of a reader with a thread of its own: the mean. For a back end, the round's time
    /// for each packet that it has counted.
    pub(super) reader: Option<f64>,
    /// Whether the reader's count is the rate. A median of bursts says nothing then: it may be
    /// above the mean of the whole round.
    pub(super) counted: bool,
}

impl Round {
    /// What sets the rate: the round as the reader has counted it, or the slower core.
    pub(super) fn limit(&self) -> f64 {
        match self.reader {
            Some(reader) if self.counted => reader,
            reader => self.datapath.max(reader.unwrap_or(0.0)),
        }
    }
}

/// Application and datapath of one variant.
pub(super) struct Rig {
    // Drop order: the queues end before the interface that they use.
    near: Route<AnyRx, AnyTx>,
    far: Option<Consumer>,
    device: Option<Device>,
    sender: Sender,
    received: Arc<Counters>,
    events: Arc<dyn PortControl>,
    _namespace: Option<Namespace>,
}

/// A unique socket path.
pub(super) fn path() -> std::path::PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("towpath-bench-{}-{number}.sock", std::process::id()))
}

/// One queue of a port.
pub(super) fn start(port: AnyPort, pool: &Pool) -> Result<(AnyRx, AnyTx), Box<dyn Error>> {
    let Queues { rx, tx } = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE })?;
    rx.into_iter().zip(tx).next().ok_or_else(|| "a port without queues".into())
}

impl Rig {
    pub(super) fn new(
        umem: &Umem,
        egress: Egress,
        transmit: Transmit,
        size: u32,
        (read, place): (Read, BackEndPlace),
        args: &BenchXsk,
    ) -> Result<Rig, Box<dyn Error>> {
        let Opened { port, far, back_end, device, namespace } = egress.open(place)?;
        let pool = Pool::new(PoolConfig::default().for_ports([port.info()]))?;
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
        let far = match far {
            None => back_end.map(|back_end| Consumer::BackEnd(Box::new(back_end))),
            Some(far) => {
                let reader = Reader::new(start(far, &pool)?.0, pool.cache(Direction::Rx)?, read);
                Some(match args.read_core {
                    None => Consumer::Same(Box::new(reader)),
                    Some(core) => Consumer::Threaded(ReaderThread::new(reader, core)),
                })
            }
        };
        let mut config = RouteConfig::default();
        config.tx_layout = tx_layout;
        // A back end that the machine does not run for a time costs time, and no packets.
        config.egress_wait = TIMEOUT;
        let near = Route::new(rx, tx, pool.cache(Direction::Tx)?, config);
        let sender = if args.threaded {
            Sender::Threaded(app::spawn(path, size, args.write, args.app_core))
        } else {
            Sender::Stepped(Box::new(App::new(umem, &path, size, args.write)?))
        };
        let mut rig = Rig { near, far, device, sender, received, events, _namespace: namespace };
        rig.samples(2)?;
        Ok(rig)
    }

    /// A round of `bursts` bursts after a warm-up.
    pub(super) fn round(&mut self, bursts: usize) -> Result<Round, Box<dyn Error>> {
        if let Some(Consumer::BackEnd(_)) = self.far {
            return self.counted_round(bursts);
        }
        self.samples(bursts / 8)?;
        let before = self.reader_work();
        let datapath = median(self.samples(bursts)?);
        let reader = before.zip(self.reader_work()).filter(|(_, after)| after.ns > 0);
        let reader = reader
            .map(|(before, after)| (after.ns - before.ns) as f64 / (after.packets - before.packets).max(1) as f64);
        Ok(Round { datapath, reader, counted: false })
    }

    /// A round that is counted by the back end: packets are sent as fast as it takes them.
    fn counted_round(&mut self, bursts: usize) -> Result<Round, Box<dyn Error>> {
        self.samples(bursts / 8)?;
        let before = self.received.snapshot().packets;
        self.run(true)?;
        let begun = Instant::now();
        let samples = self.take_samples(bursts)?;
        self.drain()?;
        let took = begun.elapsed();
        let packets = self.is_counted()? - before;
        self.run(false)?;
        let reader = Some(took.as_nanos() as f64 / packets.max(1) as f64);
        Ok(Round { datapath: median(samples), reader, counted: true })
    }

    /// Pauses the application, and sends all that it has sent.
    fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        if let Sender::Threaded(app) = &self.sender {
            app.run(false);
        }
        let begun = Instant::now();
        while self.near.turn(false) > 0 || self.near.is_draining() {
            if begun.elapsed() > TIMEOUT {
                return Err("the back end takes nothing".into());
            }
        }
        Ok(())
    }

    /// The number of packets that were received, all of which a back end has counted.
    fn is_counted(&mut self) -> Result<u64, Box<dyn Error>> {
        let packets = self.received.snapshot().packets;
        match &mut self.far {
            Some(Consumer::BackEnd(back_end)) => back_end.has_received(packets).map(|()| packets),
            _ => Ok(packets),
        }
    }

    /// What the reader has done so far.
    fn reader_work(&self) -> Option<Work> {
        self.far.as_ref().map(|far| match far {
            Consumer::Same(reader) => reader.work(),
            Consumer::Threaded(reader) => reader.work(),
            Consumer::BackEnd(back_end) => back_end.work(),
        })
    }

    /// Starts or pauses the other threads.
    fn run(&mut self, runs: bool) -> Result<(), Box<dyn Error>> {
        if let Sender::Threaded(app) = &self.sender {
            app.run(runs);
        }
        match &mut self.far {
            Some(Consumer::Threaded(reader)) => reader.run(runs),
            Some(Consumer::BackEnd(back_end)) => back_end.run(runs)?,
            _ => {}
        }
        Ok(())
    }

    /// Nanoseconds per packet of each of `bursts` bursts; the other threads run meanwhile.
    fn samples(&mut self, bursts: usize) -> Result<Vec<f64>, Box<dyn Error>> {
        self.run(true)?;
        let samples = self.take_samples(bursts)?;
        if let Some(Consumer::BackEnd(_)) = self.far {
            // A back end is paused without packets.
            self.drain()?;
            self.is_counted()?;
        }
        self.run(false)?;
        Ok(samples)
    }

    fn take_samples(&mut self, bursts: usize) -> Result<Vec<f64>, Box<dyn Error>> {
        let mut samples = Vec::with_capacity(bursts);
        let mut moved = Instant::now();
        // Of the burst that is on its way: its packets, and its time so far.
        let (mut burst, mut spent) = (0, Duration::ZERO);
        while samples.len() < bursts {
            if moved.elapsed() > TIMEOUT {
                return Err("nothing moves".into());
            }
            if matches!(&self.far, Some(Consumer::Threaded(reader)) if !reader.has_room()) {
                std::hint::spin_loop();
                continue;
            }
            match &mut self.sender {
                Sender::Stepped(app) => drop(app.step()?),
                Sender::Threaded(app) if app.is_alive() => {}
                Sender::Threaded(_) => return Err("the application has ended".into()),
            }
            let (n, took) = self.turn();
            spent += took;
            if burst == 0 {
                burst = n;
            }
            if let Some(Consumer::Threaded(reader)) = &mut self.far {
                reader.sent(n);
            }
            if self.near.held() == 0 {
                // A smaller burst does not show the cost of a full one.
                if burst == BURST {
                    samples.push(spent.as_nanos() as f64 / burst as f64);
                    moved = Instant::now();
                }
                (burst, spent) = (0, Duration::ZERO);
            }
            if let Some(device) = &self.device {
                device.run_until_idle();
            }
        }
        Ok(samples)
    }

    /// One turn of the datapath: the timed section.
    #[inline(never)]
    fn turn(&mut self) -> (usize, Duration) {
        let begun = Instant::now();
        let n = self.near.turn(false);
        if let Some(Consumer::Same(reader)) = &mut self.far {
            reader.turn();
        }
        (n, begun.elapsed())
    }

    /// The row of a median round.
    pub(super) fn seen(&self, round: Round) -> Result<PacketCost, Box<dyn Error>> {
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
        Ok(PacketCost {
            ns: round.datapath,
            reader_ns: round.reader,
            read_bytes: self.reader_work().map(|work| work.bytes as f64 / work.packets.max(1) as f64),
            pps: 1e9 / round.limit(),
            copies: event("copies")?,
            copied_bytes: event("copied-bytes")?,
        })
    }
}
