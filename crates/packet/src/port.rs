//! What a port is: the only place where drivers, kernel-backed ports and workers meet.
//!
//! ```text
//!   Port ── start(Start) ──► Queues { rx: [RxQueue], tx: [TxQueue] }       one of each per worker, split for good
//!
//!   RxQueue::rx(&mut Batch)   appends what has arrived
//!   TxQueue::tx(&mut Batch)   takes from the front what it can; the rest stays in the batch
//! ```
//!
//! No call returns a `Result` per packet: a queue returns a count, drops what can never be sent under a named reason, and
//! keeps its own [`State`]. Nothing here allocates, blocks or panics, except `start`.
//!
//! **Balance.** For every rx queue: packets handed over = `counters().packets`. For every tx queue: packets taken out of
//! batches, plus what it cut them into = `packets` sent + drops. What a port lost before it had it (the kernel's own
//! drops) is `missed` and not part of the balance.

use crate::batch::Batch;
use crate::counters::Counters;
use crate::offload::Offloads;
use crate::pool::Pool;
use std::borrow::Cow;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

mod control;
mod delegate;
mod gauge;

pub use control::{ControlError, PortControl, Setting};
pub use gauge::ExtBufGauge;

/// What the first bytes of a port's packets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
    /// Whatever the other side sends: the port does not look.
    Any,
}

impl Layer {
    /// Whether packets of one can be sent through the other.
    pub fn fits(self, other: Layer) -> bool {
        self == other || self == Layer::Any || other == Layer::Any
    }
}

/// How much of a packet a port wants in the linear part before it can send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TxLinear {
    /// Nothing: all bytes may be in fragments.
    #[default]
    None,
    /// The first bytes, as many as said, or the whole packet if it is shorter.
    Header(u16),
    /// All of it.
    Whole,
}

/// What an egress asks of the bytes of a packet, so that it neither copies nor moves them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxLayout {
    /// What it wants linear.
    pub linear: TxLinear,
    /// Bytes in front of the packet that it writes its own headers to.
    pub headroom: u16,
    /// Bytes behind the packet that it uses.
    pub tailroom: u16,
}

/// Whether an ability of a port is there, and why.
#[derive(Debug, Clone)]
pub struct Ability {
    /// Its name, as in the port's options.
    pub name: &'static str,
    /// Whether it is in use.
    pub on: bool,
    /// What was found, in a few words.
    pub why: Cow<'static, str>,
    /// The command that would turn it on, where there is one.
    pub mend: Option<String>,
}

/// What a port is and can do, as found out when it was opened.
#[derive(Debug, Clone)]
pub struct Info {
    /// Its address: `tap:tp0`.
    pub name: String,
    /// What its packets begin with.
    pub layer: Layer,
    /// Longest packet that is not a super-packet, in bytes from the first byte of the layer's payload: the MTU in
    /// Linux' sense (an Ethernet header, and VLAN tags, come on top).
    pub mtu: u32,
    /// What it wants linear.
    pub tx_linear: TxLinear,
    /// Bytes in front of the packet that the port writes its own headers to.
    pub headroom: u16,
    /// Bytes behind the packet that the port uses.
    pub tailroom: u16,
    /// Contiguous pieces that it can send as one packet.
    pub max_chunks: u16,
    /// What its transmit queues take.
    pub tx_offloads: Offloads,
    /// What its receive queues may hand over, unless [restricted](RxQueue::set_rx_offloads).
    pub rx_offloads: Offloads,
    /// Receive and transmit queues that it can be started with, at most.
    pub max_queues: u16,
    /// Whether it ends by itself (a file, a count), so that whoever runs it can stop when it is done.
    pub finite: bool,
    /// What was probed, for people.
    pub abilities: Vec<Ability>,
}

impl Info {
    /// What it asks of the bytes of a packet.
    pub fn tx_layout(&self) -> TxLayout {
        TxLayout { linear: self.tx_linear, headroom: self.headroom, tailroom: self.tailroom }
    }

    /// `queues`, if the port can be started with as many in each direction.
    ///
    /// # Errors
    ///
    /// [`PortError::Option`] for none, and for more than [`max_queues`](Self::max_queues).
    pub fn queues(&self, queues: u16) -> Result<u16, PortError> {
        if (1..=self.max_queues).contains(&queues) {
            return Ok(queues);
        }
        Err(PortError::Option {
            port: self.name.clone(),
            option: "queues".to_owned(),
            value: queues.to_string(),
            rule: format!("must be from 1 to {}", self.max_queues),
        })
    }
}

/// How to start a port.
#[derive(Debug, Clone)]
pub struct Start {
    /// Where its buffers come from.
    pub pool: Pool,
    /// Queues in each direction, 1 to [`Info::max_queues`].
    pub queues: u16,
    /// What the other side can take: the port hands over nothing that asks for more.
    pub accept: Offloads,
}

/// The queues of a started port.
#[derive(Debug)]
pub struct Queues<R, T> {
    /// Receive queues.
    pub rx: Vec<R>,
    /// Transmit queues, as many.
    pub tx: Vec<T>,
}

/// Why a port could not be opened or started.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// An option's value breaks a rule.
    #[error("{port}: {option}={value}: {rule}")]
    Option {
        /// The port's address.
        port: String,
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The operating system refused a step.
    #[error("{port}: {step}: {source}{}", .hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default())]
    Os {
        /// The port's address.
        port: String,
        /// What was being done.
        step: String,
        /// What the system said.
        source: std::io::Error,
        /// What would mend it.
        hint: Option<String>,
    },
    /// The input (a file, a device's answer) is not what it should be.
    #[error("{port}: {what}")]
    Input {
        /// The port's address.
        port: String,
        /// What is wrong, and where.
        what: String,
    },
    /// An ability that was required is missing.
    #[error("{port}: {ability}=require: {why}")]
    Required {
        /// The port's address.
        port: String,
        /// The ability.
        ability: String,
        /// Why it is not there.
        why: String,
    },
    /// Buffers could not be had.
    #[error("{port}: {source}")]
    Pool {
        /// The port's address.
        port: String,
        /// What the pool said.
        source: crate::pool::PoolError,
    },
}

/// How a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Works.
    Up,
    /// Cannot move packets at the moment, but may again: the link is down.
    Down(Cow<'static, str>),
    /// Has nothing more to give: the file, or the count, is at its end.
    Done,
    /// Will never work again: the interface was deleted, the peer has closed.
    Gone(Cow<'static, str>),
}

impl State {
    /// Whether the queue will never again move a packet.
    pub fn ended(&self) -> bool {
        matches!(self, State::Done | State::Gone(_))
    }
}

/// What an idle worker can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The descriptor becomes readable (rx) or writable (tx).
    Fd(RawFd),
    /// A moment: the next packet of a paced source is due.
    At(Instant),
    /// Nothing that the kernel knows of: look again from time to time.
    Poll,
    /// Never: there is nothing to wait for.
    Never,
}

/// Memory behind a receive queue besides [`Start::pool`]. All of it must be free once the port and its packets have ended.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RxMemory {
    /// A pool of the port's own.
    pub pool: Option<Pool>,
    /// The gauge of external buffers in the queue's packets, one for all queues of the port.
    pub ext_bufs: Option<Arc<ExtBufGauge>>,
}

impl RxMemory {
    /// A pool of the port's own.
    pub fn own_pool(pool: Pool) -> RxMemory {
        RxMemory { pool: Some(pool), ..RxMemory::default() }
    }

    /// External buffers that `gauge` counts.
    pub fn ext_bufs(gauge: Arc<ExtBufGauge>) -> RxMemory {
        RxMemory { ext_bufs: Some(gauge), ..RxMemory::default() }
    }
}

/// The receive queue's side of a barrier in the order of packets: it tells the queue when earlier packets have left by the egress, so
/// that their flows may take another path without being reordered.
pub trait RxBarrier {
    /// Begins a barrier behind the last packet that was received. Returns `false` if nothing was received since the barrier that
    /// passed last.
    fn begin(&mut self) -> bool;

    /// All packets in front of the barrier have left.
    fn passed(&mut self);
}

/// The transmit queue's side of a barrier in the order of packets, for a queue with a backlog behind it that it does not share with the
/// port's other queues.
pub trait TxBarrier {
    /// Begins a barrier behind the last packet that has left.
    fn begin(&mut self);

    /// Whether no packet of another queue can overtake a packet in front of the barrier any more.
    fn passed(&mut self) -> bool;
}

/// The receiving side of a port, run by one thread.
pub trait RxQueue: Send {
    /// Appends packets that have arrived, as many as the batch has room for; returns how many. Fewer than the room means that
    /// no more are there now.
    fn rx(&mut self, out: &mut Batch) -> usize;

    /// Gives empty buffers to the port ahead of arrivals; returns how many. Called once before each [`rx`](RxQueue::rx).
    fn refill(&mut self) -> usize {
        0
    }

    /// Narrows what the queue may hand over to what the egress can take, also while running: a super-packet or a partial
    /// checksum that is not in `accept` is finished before it is handed over, or never made.
    fn set_rx_offloads(&mut self, accept: Offloads) {
        let _ = accept;
    }

    /// Says what the egress asks of the bytes of packets, before the first of them. A queue that brings pages of somebody else copies
    /// as much of them as that, and no more.
    fn set_tx_layout(&mut self, egress: TxLayout) {
        let _ = egress;
    }

    /// The queue's side of order across a change of path, if flows can leave the queue for another one.
    #[inline]
    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        None
    }

    /// The memory that the queue's packets come from besides [`Start::pool`].
    fn memory(&self) -> RxMemory {
        RxMemory::default()
    }

    /// How the queue is; looked at when [`rx`](RxQueue::rx) brought nothing.
    fn state(&self) -> State {
        State::Up
    }

    /// What an idle worker can wait for. Called when the worker is about to sleep, after which it looks with
    /// [`rx`](RxQueue::rx) once more and only then waits: a queue whose other side must signal can ask for the signal here
    /// and lose none.
    fn wake(&self) -> Wake {
        Wake::Poll
    }

    /// What the queue counts.
    fn counters(&self) -> &Arc<Counters>;
}

/// The sending side of a port, run by one thread.
pub trait TxQueue: Send {
    /// Takes packets from the front of the batch; returns how many. What it could not take now stays in the batch, in order;
    /// what it can never take is dropped and counted, and is part of the number returned.
    fn tx(&mut self, batch: &mut Batch) -> usize;

    /// Frees what has left; returns how many packets. Called once before each [`tx`](TxQueue::tx), and while idle.
    fn reclaim(&mut self) -> usize {
        0
    }

    /// Nothing more will be sent. Called once everything that was taken has left, or been given up.
    fn close(&mut self) {}

    /// Announces what was queued since the last time, if the port gathers announcements.
    fn kick(&mut self) {}

    /// What the queue takes at this moment: an ability that failed is gone from it.
    fn offloads(&self) -> Offloads;

    /// What it may come to take while it runs.
    fn max_offloads(&self) -> Offloads {
        self.offloads()
    }

    /// Packets that were taken and have not left yet.
    fn pending(&self) -> usize {
        0
    }

    /// The queue's side of order across a change of path, if what has left it can still be overtaken.
    #[inline]
    fn order_barrier(&mut self) -> Option<&mut dyn TxBarrier> {
        None
    }

    /// How the queue is.
    fn state(&self) -> State {
        State::Up
    }

    /// What a worker can wait for when the queue takes no more.
    fn wake(&self) -> Wake {
        Wake::Poll
    }

    /// What the queue counts.
    fn counters(&self) -> &Arc<Counters>;
}

/// A port that has been opened and examined, but moves nothing yet.
pub trait Port: Sized {
    /// Its receive queues.
    type Rx: RxQueue;
    /// Its transmit queues.
    type Tx: TxQueue;

    /// What it is and can do.
    fn info(&self) -> &Info;

    /// What can be changed while it runs, if anything.
    fn control(&self) -> Option<Arc<dyn PortControl>> {
        None
    }

    /// Starts it.
    ///
    /// # Errors
    /// [`PortError`] names the step or the option that failed; whatever was set up until then is undone.
    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError>;
}

/// Queues of a port that is boxed are boxed one by one: for ports whose queues are large.
impl<P: Port> Port for Box<P> {
    type Rx = Box<P::Rx>;
    type Tx = Box<P::Tx>;

    fn info(&self) -> &Info {
        (**self).info()
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        (**self).control()
    }

    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError> {
        let Queues { rx, tx } = (*self).start(start)?;
        Ok(Queues { rx: rx.into_iter().map(Box::new).collect(), tx: tx.into_iter().map(Box::new).collect() })
    }
}
