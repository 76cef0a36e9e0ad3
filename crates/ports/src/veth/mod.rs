//! `veth:NAME` is a pair of ports in memory: packets that are sent to one end are received from the
//! other.
//!
//! ```text
//!   first `veth:x` opened = x.a                             second `veth:x` opened = x.b
//!
//!     tx queue 0 ───────────► ring 0 ────────────► rx queue 0
//!     tx queue 1 ───────────► ring 1 ────────────► rx queue 1        and the same the other way round
//!                             notifier, signalled only if the receiver sleeps
//!
//!   veth:x?ring=1024,queues=8       packets in each ring; queues that an end can be started with
//!   veth:x?linear=whole,headroom=64,tailroom=16
//!                                   the TX layout of the ends, as some devices have one: for tests
//!                                   and measurements
//! ```
//!
//! Packets are handed over without a copy, super-packets whole, with their metadata. The
//! [offloads](towpath_packet::port::RxQueue::set_rx_offloads) that the receiving end accepts are
//! those of the sending end's queues.
//!
//! The ends may be started with different numbers of queues: with fewer receivers than rings,
//! receiver `i` reads rings `i`, `i + n`, …, in turn; with fewer senders some rings stay empty.
//! After one end is dropped, the other is in the state
//! [`State::Gone`](towpath_packet::port::State::Gone) once the rings are empty.

mod queue;

pub use queue::{VethRx, VethTx};

use crate::kind::{Kind, PortOption};
use crate::uri::Uri;
use queue::{CloseGuard, PipeShared};
use std::collections::HashMap;
use std::sync::Arc;
use towpath_packet::port::{Info, Layer, Needs, Port, PortError, Queues, Start, TxLayout};
use towpath_packet::spsc::{Consumer, Producer, ring};
use towpath_packet::{Offloads, Packet};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "veth",
    example: "veth:x",
    what: "one end of a pair in memory; the second port of that name is the other end",
    options: &[
        PortOption::new(
            "ring",
            "PACKETS, 2–65536",
            "1024",
            "packets in each ring; rounded up to a power of two",
            "ring=256",
        ),
        PortOption::new("queues", "1–64", "8", "queues that an end can be started with", "queues=2"),
        PortOption::new(
            "linear",
            "none|whole|BYTES",
            "none",
            "how much of a packet must be linear, as some devices need it; for tests",
            "linear=whole",
        ),
        PortOption::new(
            "headroom",
            "BYTES, 0–1024",
            "0",
            "room in front of packets, as some devices need it",
            "headroom=64",
        ),
        PortOption::new(
            "tailroom",
            "BYTES, 0–1024",
            "0",
            "room behind packets, as some devices need it",
            "tailroom=16",
        ),
    ],
};

/// Configuration of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Name of the pair.
    pub name: String,
    /// Packets that fit in each ring, rounded up to a power of two: 2 to 65536.
    pub ring: usize,
    /// Queues that an end can be started with: 1 to 64.
    pub queues: u16,
    /// The layout of packets that both ends require for transmission.
    pub tx_layout: TxLayout,
}

impl Default for Config {
    /// 1024 packets in each ring, up to 8 queues.
    fn default() -> Config {
        Config { name: "pair".to_owned(), ring: 1024, queues: 8, tx_layout: TxLayout::default() }
    }
}

impl Config {
    /// Parses `veth:NAME?ring=…,queues=…`.
    ///
    /// # Errors
    /// [`PortError::Option`] for an invalid value or an unknown option; [`PortError::Input`]
    /// without a name.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        if uri.target().is_empty() {
            return Err(uri.error("a pair needs a name: veth:NAME, once for each end"));
        }
        let (mut options, default) = (uri.options(KIND.options), Config::default());
        let ring = options.number("ring", 2..=65_536)?.map_or(default.ring, |n| n as usize);
        let queues = options.number("queues", 1..=64)?.map_or(default.queues, |n| n as u16);
        let tx_layout = TxLayout {
            linear: options.linear("linear")?.unwrap_or_default(),
            headroom: options.number("headroom", 0..=1024)?.unwrap_or_default() as u16,
            tailroom: options.number("tailroom", 0..=1024)?.unwrap_or_default() as u16,
        };
        options.finish()?;
        Ok(Config { name: uri.target().to_owned(), ring, queues, tx_layout })
    }
}

/// Makes a pair; returns its ends `a` and `b`.
///
/// # Errors
/// [`PortError::Option`] for a field out of its range; [`PortError::Os`] if the process has no
/// descriptor left for the notifiers, one for each queue and direction.
pub fn pair(config: &Config) -> Result<(VethPort, VethPort), PortError> {
    let port = format!("veth:{}", config.name);
    let check = |ok: bool, option: &str, value: String, rule: &str| match ok {
        true => Ok(()),
        false => {
            let (option, rule) = (option.to_owned(), rule.to_owned());
            Err(PortError::Option { port: port.clone(), option, value, rule })
        }
    };
    check((2..=65_536).contains(&config.ring), "ring", config.ring.to_string(), "must be from 2 to 65536")?;
    check((1..=64).contains(&config.queues), "queues", config.queues.to_string(), "must be from 1 to 64")?;
    let pipe = || {
        let pipe = PipeShared::new(config.queues).map_err(|source| PortError::Os {
            port: port.clone(),
            step: "eventfd".to_owned(),
            source,
            hint: Some("raise the limit on open files, or ask for fewer queues".to_owned()),
        });
        let (tx, rx): (Vec<_>, Vec<_>) = (0..config.queues).map(|_| ring(config.ring)).unzip();
        pipe.map(|pipe| (TxEnd { rings: tx, guard: CloseGuard(pipe.clone()) }, RxEnd { rings: rx, pipe }))
    };
    let ((to_b, from_a), (to_a, from_b)) = (pipe()?, pipe()?);
    let info = |end: &str| {
        Info::new(format!("{port}.{end}"), Layer::Any, u16::MAX.into())
            .with_tx_layout(config.tx_layout)
            .with_offloads(Offloads::ALL, Offloads::ALL)
            .with_max_queues(config.queues)
    };
    let a = VethPort { info: info("a"), sending: to_b, receiving: from_b };
    Ok((a, VethPort { info: info("b"), sending: to_a, receiving: from_a }))
}

/// Pairs by name; of some only one end is open.
#[derive(Debug, Default)]
pub struct Pairs {
    ends: HashMap<String, (Config, Option<VethPort>)>,
}

impl Pairs {
    /// No pairs.
    pub fn new() -> Pairs {
        Pairs::default()
    }

    /// The name of a pair with only one open end: its packets are never received.
    pub fn unpaired(&self) -> Option<&str> {
        self.ends.iter().find(|(_, (_, other))| other.is_some()).map(|(name, _)| name.as_str())
    }

    /// Opens an end: the first open of a name makes the pair and returns its end `a`, the second
    /// returns `b`. If the first was closed meanwhile, a pair is made anew.
    ///
    /// # Errors
    /// As [`pair`]; [`PortError::Input`] for a third end, or if the second has other options than
    /// the first.
    pub fn open(&mut self, config: &Config) -> Result<VethPort, PortError> {
        let wrong = |what: String| Err(PortError::Input { port: format!("veth:{}", config.name), what });
        if self.ends.get_mut(&config.name).is_some_and(|(_, other)| other.as_mut().is_some_and(VethPort::is_alone)) {
            self.ends.remove(&config.name);
        }
        match self.ends.get_mut(&config.name) {
            None => {
                let (a, b) = pair(config)?;
                self.ends.insert(config.name.clone(), (config.clone(), Some(b)));
                Ok(a)
            }
            Some((first, _)) if first != config => wrong(format!(
                "the other end was opened with ring={},queues={}: both need the same options",
                first.ring, first.queues
            )),
            Some((_, other)) => match other.take() {
                Some(b) => Ok(b),
                None => wrong("both ends of the pair are open already".to_owned()),
            },
        }
    }
}

#[derive(Debug)]
struct TxEnd {
    // Drop order: the rings are closed before the guard wakes the other end.
    rings: Vec<Producer<Packet>>,
    guard: CloseGuard,
}

#[derive(Debug)]
struct RxEnd {
    rings: Vec<Consumer<Packet>>,
    pipe: Arc<PipeShared>,
}

/// One end.
#[derive(Debug)]
pub struct VethPort {
    info: Info,
    sending: TxEnd,
    receiving: RxEnd,
}

impl VethPort {
    /// Whether the other end is closed.
    fn is_alone(&mut self) -> bool {
        // An end that only sends has closed the rings towards it.
        self.sending.rings.iter().all(Producer::is_closed) && self.receiving.rings.iter_mut().all(Consumer::is_closed)
    }
}

impl Port for VethPort {
    type Rx = VethRx;
    type Tx = VethTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn needs(&self) -> Needs {
        Needs::none()
    }

    fn start(self, start: Start) -> Result<Queues<VethRx, VethTx>, PortError> {
        let queues = usize::from(self.info.queues(start.queues)?);
        let RxEnd { rings, pipe } = self.receiving;
        pipe.receive_with(queues as u16);
        pipe.set_accept(start.accept);
        let rx = distribute(rings, queues).into_iter().enumerate();
        let rx = rx.map(|(i, rings)| VethRx::new(rings, pipe.clone(), i)).collect();
        let TxEnd { rings, guard } = self.sending;
        guard.0.send_with(queues as u16);
        let mut tx = Vec::new();
        for (i, mut unused) in distribute(rings, queues).into_iter().enumerate() {
            let ring = unused.remove(0);
            tx.push(VethTx::new(ring, unused, guard.0.clone(), i));
        }
        Ok(Queues { rx, tx })
    }
}

/// Distributes items to `n` groups in turn.
fn distribute<T>(items: Vec<T>, n: usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = (0..n).map(|_| Vec::new()).collect();
    for (i, item) in items.into_iter().enumerate() {
        groups[i % n].push(item);
    }
    groups
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
