//! The interface of a port: the only place where drivers, kernel-backed ports and workers meet.
//!
//! ```text
//!   Port ── start(Start) ──► Queues { rx: [RxQueue], tx: [TxQueue] }       one of each per worker
//!
//!   RxQueue::rx(&mut Batch)   appends packets that have arrived
//!   TxQueue::tx(&mut Batch)   takes packets from the front; the rest stays in the batch
//! ```
//!
//! No call returns a `Result` per packet: a queue returns a count, drops what can never be sent
//! under a named reason, and keeps its own [`State`]. Only `start` may allocate, block or panic.
//!
//! **Balance.** For every rx queue: packets returned = `counters().packets`. For every tx queue:
//! packets taken out of batches, plus the segments that they were cut into = `packets` sent +
//! drops. Packets that the kernel or the device lost before the port received them, or after it
//! sent them, are `missed`, by [place](crate::Missed), and not part of the balance.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`Port`], [`Start`], [`Queues`], [`PortError`] |
//! | `queue` | [`RxQueue`], [`TxQueue`], [`State`], [`Wake`], [`RxBarrier`], [`TxBarrier`] |
//! | `needs` | [`Needs`]: what a started port uses of the kernel |
//! | `info` | [`Info`], [`Interface`], [`Layer`], [`TxLayout`], [`Ability`] |
//! | `control` | [`PortControl`]: settings, events and measurements of a running port |
//! | `edge` | [`Edge`]: packets that the kernel lost around a running port |
//! | `delegate` | macros for queues around queues, as [`delegate_rx_queue!`] |
//!
//! [`delegate_rx_queue!`]: crate::delegate_rx_queue

use crate::offload::Offloads;
use crate::pool::Pool;
use std::sync::Arc;

mod control;
mod delegate;
mod edge;
mod info;
mod needs;
mod queue;

pub use control::{ControlError, Latency, Pacing, PortControl, Setting, SettingValue, Usage, Verified};
pub use edge::Edge;
pub use info::{Ability, Info, Interface, Layer, Spacing, TxLayout, TxLinear};
pub use needs::{Calls, Capability, Needs, PathUse};
pub use queue::{RxBarrier, RxMemory, RxQueue, State, TxBarrier, TxQueue, Wake};

/// How to start a port.
#[derive(Debug, Clone)]
pub struct Start {
    /// The pool of its buffers.
    pub pool: Pool,
    /// Queues in each direction, 1 to [`Info::max_queues`].
    pub queues: u16,
    /// Offloads of the other side: the port emits no packet that needs another one.
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

impl<R, T> Queues<R, T> {
    /// Wraps each queue.
    pub fn map<R2, T2>(self, rx: impl FnMut(R) -> R2, tx: impl FnMut(T) -> T2) -> Queues<R2, T2> {
        Queues { rx: self.rx.into_iter().map(rx).collect(), tx: self.tx.into_iter().map(tx).collect() }
    }
}

/// What a started port is, and its queues.
pub type Started<P> = (Info, Queues<<P as Port>::Rx, <P as Port>::Tx>);

/// Why a port could not be opened or started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        /// The step.
        step: String,
        /// The error of the system.
        source: std::io::Error,
        /// How to fix it.
        hint: Option<String>,
    },
    /// The input (a file, a device's answer) is not valid.
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
        /// Why it is missing.
        why: String,
    },
    /// The pool has no caches or no memory left.
    #[error("{port}: {source}")]
    Pool {
        /// The port's address.
        port: String,
        /// The error of the pool.
        source: crate::pool::PoolError,
    },
}

/// A port that was opened and probed, but moves nothing yet.
///
/// A port around another one names every method, which `#[deny(clippy::missing_trait_methods)]` on
/// its implementation ensures: a method that is new here never falls back to its default there.
pub trait Port: Sized {
    /// Its receive queues.
    type Rx: RxQueue;
    /// Its transmit queues.
    type Tx: TxQueue;

    /// What it is and can do.
    fn info(&self) -> &Info;

    /// The handle to its settings and events while it runs, if it has some.
    fn control(&self) -> Option<Arc<dyn PortControl>> {
        None
    }

    /// The counters of packets that are lost around it while it runs, if something keeps them.
    fn edge(&self) -> Option<Arc<dyn Edge>> {
        None
    }

    /// What it uses of the kernel after it was started: no more is left to it in a sandbox.
    fn needs(&self) -> Needs;

    /// Starts it.
    ///
    /// # Errors
    /// [`PortError`] names the step or the option that failed; the steps before it are undone.
    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError>;

    /// As [`start`](Port::start), and keeps what the port is: its MTU, its interface, its offloads.
    ///
    /// # Errors
    /// As for [`start`](Port::start).
    fn start_with_info(self, start: Start) -> Result<Started<Self>, PortError> {
        let info = self.info().clone();
        Ok((info, self.start(start)?))
    }
}

/// A boxed port boxes its queues one by one: for ports whose queues are large.
#[deny(clippy::missing_trait_methods)]
impl<P: Port> Port for Box<P> {
    type Rx = Box<P::Rx>;
    type Tx = Box<P::Tx>;

    fn info(&self) -> &Info {
        (**self).info()
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        (**self).control()
    }

    fn edge(&self) -> Option<Arc<dyn Edge>> {
        (**self).edge()
    }

    fn needs(&self) -> Needs {
        (**self).needs()
    }

    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError> {
        Ok((*self).start(start)?.map(Box::new, Box::new))
    }

    fn start_with_info(self, start: Start) -> Result<Started<Self>, PortError> {
        let (info, queues) = (*self).start_with_info(start)?;
        Ok((info, queues.map(Box::new, Box::new)))
    }
}
