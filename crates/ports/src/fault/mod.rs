//! `fault:OPTIONS@PORT` injects faults into another port.
//!
//! ```text
//!   fault:drop=1%,stall=0.1,seed=7@tap:tp0
//!         └ the faults, their rates ─┘ └ the inner port: any port, also another fault port
//!
//!   drop=P duplicate=P reorder=P corrupt=P    per packet: dropped, duplicated, moved
//!                                             behind up to eight others, with a wrong bit
//!   stall=P                                   per call: no packet is sent or received (EAGAIN)
//!   flap=P                                    per call: the link is down
//!   episode=N                                 calls of a stall or a link that is down  32
//!   vanish=N                                  after N packets the queue is gone
//!   delay=TIME jitter=TIME                    per packet: how long it waits            0
//!   distribution=uniform|normal               of the jitter                            uniform
//!   order=keep|free                           whether jitter reorders packets          keep
//!   rate=BITS burst=BYTES                     a token bucket: 10mbit, 1gbit            no limit
//!   limit=PACKETS                             most that wait; further ones are dropped 1000
//!   on=rx|tx|both                             the direction with faults                both
//!   seed=N                                    the same seed, the same faults           1
//! ```
//!
//! Delay and rate stand in for `tc-netem` and `tc-tbf` where there is no qdisc. They apply to each
//! queue of a direction, behind the other faults; see `shaper.rs`. Packets that wait keep their
//! buffers. A delayed packet leaves at its time or soon after: the sending side sleeps until then,
//! the receiving side, which also waits for arrivals, looks every millisecond or less.
//!
//! A probability is written `0.01` or `1%`. Packets are moved, not copied, except a duplicate.
//! Every lost packet is counted: as dropped by `fault`, or by `stopped` if it is held at the end.
//! So a route through a fault port balances like any other.
//!
//! | file | contents |
//! |---|---|
//! | `config` | the faults and their rates, from the URI |
//! | `injector` | decisions: a seeded sequence for each queue, per packet and per call |
//! | `rx`, `tx` | the queues with faults |
//! | `shaper` | delay, jitter and rate |

mod config;
mod injector;
mod rx;
mod shaper;
mod tx;

pub use config::{Config, Distribution, FaultDirection, KIND, Shape};
pub use injector::FaultCounters;
pub use rx::FaultRx;
pub use tx::FaultTx;

use injector::Injector;
use std::sync::Arc;
use towpath_packet::port::{Edge, Info, Needs, Port, PortControl, PortError, Queues, Start, Started};
use towpath_packet::{Cache, Direction};

/// Wraps a port with faults.
///
/// # Errors
/// None; it returns a result because every port's `open` does.
pub fn open<P: Port>(config: Config, inner: P) -> Result<FaultPort<P>, PortError> {
    let mut info = inner.info().clone();
    info.name = format!("fault@{}", info.name);
    Ok(FaultPort { info, config, inner, faults: Arc::default() })
}

/// A port with faults.
#[derive(Debug)]
pub struct FaultPort<P> {
    info: Info,
    config: Config,
    inner: P,
    faults: Arc<FaultCounters>,
}

impl<P> FaultPort<P> {
    /// The counters of the injected faults.
    pub fn faults(&self) -> &Arc<FaultCounters> {
        &self.faults
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: Port> Port for FaultPort<P> {
    type Rx = FaultRx<P::Rx>;
    type Tx = FaultTx<P::Tx>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        self.inner.control()
    }

    fn edge(&self) -> Option<Arc<dyn Edge>> {
        self.inner.edge()
    }

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError> {
        let (port, pool, config) = (&self.info.name, start.pool.clone(), &self.config);
        let cache = || -> Result<Cache, PortError> {
            pool.cache(Direction::Tx).map_err(|source| PortError::Pool { port: port.clone(), source })
        };
        let inner = self.inner.start(start)?;
        let direction = |not: FaultDirection| (config.direction != not).then_some(config);
        let mut made = Queues { rx: Vec::new(), tx: Vec::new() };
        for (i, queue) in (0..).zip(inner.rx) {
            made.rx.push(FaultRx::new(
                queue,
                Injector::new(direction(FaultDirection::Tx), 2 * i, self.faults.clone()),
                cache()?,
            ));
        }
        for (i, queue) in (0..).zip(inner.tx) {
            made.tx.push(FaultTx::new(
                queue,
                Injector::new(direction(FaultDirection::Rx), 2 * i + 1, self.faults.clone()),
                cache()?,
            ));
        }
        Ok(made)
    }

    fn start_with_info(self, start: Start) -> Result<Started<Self>, PortError> {
        let info = self.info.clone();
        Ok((info, self.start(start)?))
    }
}

#[cfg(test)]
mod tests;
