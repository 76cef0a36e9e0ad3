//! `veth:NAME` is a pair of ports in memory: what is sent into one end is received from the other.
//!
//! ```text
//!   first `veth:x` opened = x.a                             second `veth:x` opened = x.b
//!
//!     tx queue 0 ───────────► ring 0 ────────────► rx queue 0
//!     tx queue 1 ───────────► ring 1 ────────────► rx queue 1        and the same the other way round
//!                             notifier, rung only when the receiver sleeps
//!
//!   veth:x?ring=1024,queues=8       packets in each ring; queues that an end can be started with
//!   veth:x?linear=whole,headroom=64,tailroom=16    what the ends ask of packets' memory, as some devices do: for tests and measurements
//! ```
//!
//! Packets are handed over as they are: no copy, super-packets whole, with whatever metadata they have. What the receiving
//! end's worker [restricts](towpath_packet::port::RxQueue::set_rx_offloads) becomes what the sending end's queues take.
//!
//! The ends may be started with different numbers of queues: with fewer receivers than rings, receiver `i` takes rings
//! `i`, `i + n`, …, in turn; with fewer senders some rings stay empty. An end that is dropped, started or not, is seen by
//! the other as [`State::Gone`](towpath_packet::port::State::Gone), after what was already in the rings.

mod queue;
mod way;

pub use queue::{VethRx, VethTx};

use crate::uri::Uri;
use std::collections::HashMap;
use std::sync::Arc;
use towpath_packet::port::{Info, Layer, Port, PortError, Queues, Start, TxLayout};
use towpath_packet::spsc::{Consumer, Producer, ring};
use towpath_packet::{MAX_FRAGS, Offloads, Packet};
use way::{Closer, Way};

/// How a pair is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of the pair.
    pub name: String,
    /// Packets that fit in each ring, rounded up to a power of two: 2 to 65536.
    pub ring: usize,
    /// Queues that an end can be started with: 1 to 64.
    pub queues: u16,
    /// What the ends ask of the memory of packets that are sent into them.
    pub shape: TxLayout,
}

impl Default for Config {
    /// 1024 packets in each ring, up to 8 queues.
    fn default() -> Config {
        Config { name: "pair".to_owned(), ring: 1024, queues: 8, shape: TxLayout::default() }
    }
}

impl Config {
    /// Reads `veth:NAME?ring=…,queues=…`.
    ///
    /// # Errors
    /// [`PortError::Option`] for a value that breaks its rule, or an option that does not exist; [`PortError::Input`]
    /// without a name.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        if uri.target().is_empty() {
            return Err(uri.error("a pair needs a name: veth:NAME, once for each end"));
        }
        let (mut options, default) = (uri.options(), Config::default());
        let ring = options.number("ring", 2..=65_536)?.map_or(default.ring, |n| n as usize);
        let queues = options.number("queues", 1..=64)?.map_or(default.queues, |n| n as u16);
        let shape = TxLayout {
            linear: options.linear("linear")?.unwrap_or_default(),
            headroom: options.number("headroom", 0..=1024)?.unwrap_or_default() as u16,
            tailroom: options.number("tailroom", 0..=1024)?.unwrap_or_default() as u16,
        };
        options.finish()?;
        Ok(Config { name: uri.target().to_owned(), ring, queues, shape })
    }
}

/// Makes a pair: its ends `a` and `b`.
///
/// # Errors
/// [`PortError::Option`] for a field out of its range; [`PortError::Os`] when the process has no descriptor left for the
/// notifiers, one for each queue and direction.
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
    let way = || {
        let way = Way::new(config.queues).map_err(|source| PortError::Os {
            port: port.clone(),
            step: "eventfd".to_owned(),
            source,
            hint: Some("raise the limit on open files, or ask for fewer queues".to_owned()),
        });
        let (tx, rx): (Vec<_>, Vec<_>) = (0..config.queues).map(|_| ring(config.ring)).unzip();
        way.map(|way| (Sending { rings: tx, closer: Closer(way.clone()) }, Receiving { rings: rx, way }))
    };
    let ((to_b, from_a), (to_a, from_b)) = (way()?, way()?);
    let info = |end: &str| Info {
        name: format!("{port}.{end}"),
        layer: Layer::Any,
        mtu: u32::from(u16::MAX),
        tx_linear: config.shape.linear,
        headroom: config.shape.headroom,
        tailroom: config.shape.tailroom,
        max_chunks: MAX_FRAGS as u16 + 1,
        tx_offloads: Offloads::ALL,
        rx_offloads: Offloads::ALL,
        max_queues: config.queues,
        finite: false,
        abilities: Vec::new(),
    };
    let a = VethPort { info: info("a"), sending: to_b, receiving: from_b };
    Ok((a, VethPort { info: info("b"), sending: to_a, receiving: from_a }))
}

/// Pairs of which one end was opened by name, and the other may be.
#[derive(Debug, Default)]
pub struct Links {
    ends: HashMap<String, (Config, Option<VethPort>)>,
}

impl Links {
    /// Nothing opened yet.
    pub fn new() -> Links {
        Links::default()
    }

    /// The name of a pair of which only one end was opened: what is sent into it goes nowhere.
    pub fn unpaired(&self) -> Option<&str> {
        self.ends.iter().find(|(_, (_, other))| other.is_some()).map(|(name, _)| name.as_str())
    }

    /// Opens an end: the first of a name makes the pair and is its end `a`, the second is `b`.
    ///
    /// # Errors
    /// As [`pair`]; [`PortError::Input`] for a third end, and for a second with other options than the first.
    pub fn open(&mut self, config: &Config) -> Result<VethPort, PortError> {
        let wrong = |what: String| Err(PortError::Input { port: format!("veth:{}", config.name), what });
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
struct Sending {
    // In this order: the rings are closed before the closer wakes the other side.
    rings: Vec<Producer<Packet>>,
    closer: Closer,
}

#[derive(Debug)]
struct Receiving {
    rings: Vec<Consumer<Packet>>,
    way: Arc<Way>,
}

/// One end.
#[derive(Debug)]
pub struct VethPort {
    info: Info,
    sending: Sending,
    receiving: Receiving,
}

impl Port for VethPort {
    type Rx = VethRx;
    type Tx = VethTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn start(self, start: Start) -> Result<Queues<VethRx, VethTx>, PortError> {
        let queues = usize::from(self.info.queues(start.queues)?);
        let Receiving { rings, way } = self.receiving;
        way.receive_with(queues as u16);
        way.set_accept(start.accept);
        let rx = deal(rings, queues).into_iter().enumerate();
        let rx = rx.map(|(i, rings)| VethRx::new(rings, way.clone(), i)).collect();
        let Sending { rings, closer } = self.sending;
        closer.0.send_with(queues as u16);
        let mut tx = Vec::new();
        for (i, mut unused) in deal(rings, queues).into_iter().enumerate() {
            let ring = unused.remove(0);
            tx.push(VethTx::new(ring, unused, closer.0.clone(), i));
        }
        Ok(Queues { rx, tx })
    }
}

/// Deals things out to `n` hands like cards.
fn deal<T>(things: Vec<T>, n: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..n).map(|_| Vec::new()).collect();
    for (i, thing) in things.into_iter().enumerate() {
        hands[i % n].push(thing);
    }
    hands
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
