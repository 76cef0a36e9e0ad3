//! Tees: what passes joined ports, copied to a file, a port or a stream while they run.
//!
//! ```text
//!   Observer::tee ─► TeeSlots::attach ────► TeeReader ─┬─ towpath-tee, a thread ─► Stream: pcapng or pcap
//!                                                      └─ Worker: TeeRx ─► Route ─► Port
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Tee`], its sinks and its report |
//! | `spec` | [`TeeSpec`]: a tee as text, `FILE;snaplen=96;filter=tcp port 80` |
//! | `encode` | records as blocks of pcapng, or of pcap |
//! | `stream` | a file or a connection, written without waiting for ever |
//!
//! The path never waits for a tee ([`engine::tee`](towpath_engine::tee)): what its sink does not
//! take in time is missed, and counted. A sink that fails ends its tee, and nothing else.
//!
//! ```
//! use towpath::tee::TeeSpec;
//! use towpath::{Forward, Opener, Role};
//!
//! let mut opener = Opener::new();
//! let from = opener.open(&"gen:count=1000".parse()?, Role::Ingress)?;
//! let to = opener.open(&"null:".parse()?, Role::Egress)?;
//! let ready = Forward::default().prepare(from, to)?;
//! let spec: TeeSpec = "null:;at=rx;snaplen=96".parse()?;
//! let tee = ready.observer().tee(&spec.config, spec.open()?)?;
//! ready.launch()?.join();
//! let report = tee.stop();
//! assert_eq!((report.matched, report.written + report.missed), (1000, 1000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod encode;
mod spec;
mod stream;

pub use encode::{TeeFormat, interface_totals};
pub use spec::{TeeOptions, TeeSpec, TeeSpecError};
pub use towpath_engine::tee::{MAX_TEES, TeeConfig, TeeDirection, TeeError, TeeRecord};

use crate::any::AnyPort;
use encode::Encoder;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_engine::idle::Idle;
use towpath_engine::route::{Route, RouteConfig};
use towpath_engine::tee::{TeeGuard, TeeReader, TeeRx, TeeSlot, TeeSlots};
use towpath_engine::worker::{StopSignal, Worker, WorkerConfig};
use towpath_packet::port::{Layer, Needs, Port, Queues, Start, State, TxQueue};
use towpath_packet::{Counters, Direction, Offloads, Pool, PoolConfig};
use towpath_sys::lock;

/// Buffers of a tee to a port.
const BUFFERS: usize = 4096;

/// Where the packets of a tee go.
#[derive(Debug)]
pub enum TeeSink {
    /// A stream of records: a file, a pipe, a connection.
    Stream(TeeStream),
    /// A port.
    Port(Box<AnyPort>),
}

/// A stream that a tee is written to.
#[derive(Debug)]
pub struct TeeStream {
    /// Its name, for reports.
    pub name: String,
    /// The descriptor. It should not block: one that does delays the end of the tee.
    pub out: File,
    /// The format.
    pub format: TeeFormat,
    /// Bytes that are written first.
    pub greeting: Vec<u8>,
    /// How long the stream may take nothing, once the tee is detached.
    pub patience: Duration,
    /// Whether the tee ends when the other side shuts the connection down.
    pub ends_with_peer: bool,
}

/// What became of a tee.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TeeReport {
    /// The sink.
    pub name: String,
    /// Packets that matched.
    pub matched: u64,
    /// Packets that were written, or that the port sent.
    pub written: u64,
    /// Packets that matched and could not be written in time.
    pub missed: u64,
    /// Why the sink failed.
    pub failure: Option<String>,
}

/// The parts that the tee's thread and its owner share.
#[derive(Debug)]
struct TeeShared {
    stop: AtomicBool,
    written: AtomicU64,
    guard: Mutex<TeeGuard>,
    failure: Mutex<Option<String>>,
}

impl TeeShared {
    fn detach(&self) {
        lock(&self.guard).detach();
    }

    fn fail(&self, why: String) {
        lock(&self.failure).get_or_insert(why);
    }
}

/// A running tee. Dropping it ends it.
#[derive(Debug)]
pub struct Tee {
    name: String,
    shared: Arc<TeeShared>,
    /// Of a port: what it sent and dropped.
    sent: Option<Arc<Counters>>,
    needs: Needs,
    thread: Option<JoinHandle<()>>,
}

/// Ports among which a tee can choose.
const WATCHED_PORTS: usize = 64;

/// Names of the interfaces, in the numbers of the slots. A name keeps its number.
#[derive(Debug, Clone, Default)]
struct Names(Arc<Mutex<Vec<String>>>);

impl Names {
    fn list(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

/// The ports that a tee is attached to; those of a bridge and a router come and go.
#[derive(Debug)]
pub(crate) struct Teeable {
    slots: TeeSlots,
    layer: Layer,
    names: Names,
}

impl Teeable {
    /// Slots between these interfaces.
    pub(crate) fn new(slots: Vec<Arc<TeeSlot>>, layer: Layer, interfaces: Vec<String>) -> Teeable {
        Teeable { slots: TeeSlots::new(slots), layer, names: Names(Arc::new(Mutex::new(interfaces))) }
    }

    /// The number of an interface, which is a new one or was here before; `None` if there are too
    /// many.
    pub(crate) fn number(&self, name: &str) -> Option<u8> {
        let mut names = lock(&self.names.0);
        let known = names.iter().position(|known| known == name);
        let number = known.or_else(|| (names.len() < WATCHED_PORTS).then_some(names.len()))?;
        if known.is_none() {
            names.push(name.to_owned());
        }
        u8::try_from(number).ok()
    }

    /// Attaches the tees that there are to the slot of a port that is attached.
    pub(crate) fn add(&self, slot: Arc<TeeSlot>) {
        self.slots.add(slot);
    }

    /// A port was detached.
    pub(crate) fn remove(&self, name: &str) {
        let number = lock(&self.names.0).iter().position(|known| known == name);
        number.and_then(|number| u8::try_from(number).ok()).into_iter().for_each(|number| self.slots.remove(number));
    }

    /// The bits of the named interfaces; all without a name.
    pub(crate) fn interfaces(&self, names: &[String]) -> Result<u64, TeeError> {
        let mut bits = if names.is_empty() { u64::MAX } else { 0 };
        let interfaces = self.names.list();
        for name in names {
            let Some(at) = interfaces.iter().position(|known| known == name) else {
                let rule = format!("must be a port that runs; there are {}", interfaces.join(", "));
                return Err(TeeError::Value { option: "port", value: name.clone(), rule });
            };
            bits |= 1 << at;
        }
        Ok(bits)
    }

    pub(crate) fn tee(&self, config: &TeeConfig, sink: TeeSink) -> Result<Tee, TeeError> {
        match sink {
            TeeSink::Stream(stream) => {
                let (guard, reader) = self.slots.attach(config)?;
                self.to_stream(guard, reader, config, stream)
            }
            TeeSink::Port(port) => self.to_port(config, *port),
        }
    }

    fn to_stream(
        &self,
        guard: TeeGuard,
        reader: TeeReader,
        config: &TeeConfig,
        stream: TeeStream,
    ) -> Result<Tee, TeeError> {
        let encoder = Encoder::new(stream.format, self.layer, config.snaplen, self.names.clone());
        let (name, shared) = (stream.name.clone(), Tee::shared(guard));
        let own = shared.clone();
        let run = move || stream::run(reader, encoder, stream, &own);
        let thread = std::thread::Builder::new().name("towpath-tee".into()).spawn(run)?;
        Ok(Tee { name, shared, sent: None, needs: Needs::none(), thread: Some(thread) })
    }

    fn to_port(&self, config: &TeeConfig, port: AnyPort) -> Result<Tee, TeeError> {
        let info = port.info().clone();
        if info.layer != Layer::Any && info.layer != self.layer {
            let rule = "must carry the layer of the ports: Ethernet frames, or IP packets".to_owned();
            return Err(TeeError::Value { option: "tee", value: info.name, rule });
        }
        let failed = |error: String| TeeError::Os(std::io::Error::other(format!("{}: {error}", info.name)));
        let pool = PoolConfig::default().capacity(BUFFERS).for_ports([&info]);
        let pool = Pool::new(pool).map_err(|error| failed(error.to_string()))?;
        let needs = port.needs();
        let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
        let Queues { rx: unread, tx } = port.start(start).map_err(|error| failed(error.to_string()))?;
        let tx = tx.into_iter().next().ok_or_else(|| failed("has no queue to send by".into()))?;
        let cache = || pool.cache(Direction::Tx).map_err(|error| failed(error.to_string()));
        let (reading, sending) = (cache()?, cache()?);
        let (guard, reader) = self.slots.attach(config)?;
        let sent = tx.counters().clone();
        let mut route_config = RouteConfig::default();
        (route_config.layer, route_config.tx_layout) = (self.layer, info.tx_layout);
        let route = Route::new(TeeRx::new(reader, reading), tx, sending, route_config);
        let mut worker_config = WorkerConfig::default();
        worker_config.idle = Idle::SLEEP;
        let worker = Worker::new(vec![route], worker_config, StopSignal::new()?);
        let shared = Tee::shared(guard);
        let own = shared.clone();
        let run = move || {
            // The port is open both ways as long as it is sent to.
            let _unread = unread;
            match worker.run() {
                Ok(endings) => {
                    let gone = endings.into_iter().find_map(|ending| match ending.state {
                        State::Gone(why) => Some(why.into_owned()),
                        _ => None,
                    });
                    gone.into_iter().for_each(|why| own.fail(why));
                }
                Err(error) => own.fail(error.to_string()),
            }
            own.detach();
        };
        let thread = std::thread::Builder::new().name("towpath-tee".into()).spawn(run)?;
        Ok(Tee { name: info.name, shared, sent: Some(sent), needs, thread: Some(thread) })
    }
}

impl Tee {
    fn shared(guard: TeeGuard) -> Arc<TeeShared> {
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(TeeShared { stop, written, guard: Mutex::new(guard), failure: Mutex::new(None) })
    }

    /// What the sink uses of the kernel while it runs.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// What became of it so far.
    pub fn report(&self) -> TeeReport {
        let counts = lock(&self.shared.guard).counts();
        let is_over = self.thread.is_none();
        let (written, missed) = match &self.sent {
            // Super-packets may have been segmented for the port: it counts segments.
            Some(sent) => {
                let sent = sent.snapshot();
                (sent.packets, counts.missed + sent.all_drops())
            }
            None => {
                let written = self.shared.written.load(Ordering::Relaxed);
                // What is not written at the end was missed, whatever the reason.
                (written, if is_over { counts.matched.saturating_sub(written) } else { counts.missed })
            }
        };
        let failure = lock(&self.shared.failure).clone();
        TeeReport { name: self.name.clone(), matched: counts.matched, written, missed, failure }
    }

    /// Whether it has ended by itself: its sink failed, or its peer left.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Detaches it: nothing is copied from here on. It ends soon.
    pub fn detach(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.detach();
    }

    /// Detaches it, writes what it has, and waits for that, in bounded time.
    pub fn stop(mut self) -> TeeReport {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.detach();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            self.shared.fail("its thread panicked".into());
        }
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests;
