//! `fault:OPTIONS@PORT` is another port with faults.
//!
//! ```text
//!   fault:drop=1%,stall=0.1,seed=7@tap:tp0
//!         └ what happens, how often ─┘ └ to whom: any port, also another fault port
//!
//!   drop=P duplicate=P reorder=P corrupt=P    by packet: it disappears, comes twice, lets up to eight others pass,
//!                                             has a wrong bit
//!   stall=P                                   by call: nothing is taken, or nothing arrives (EAGAIN)
//!   flap=P                                    by call: the link is down
//!   episode=N                                 calls that a stall or a time without link lasts           32
//!   vanish=N                                  after N packets the queue is gone
//!   on=rx|tx|both                             which direction has faults                                both
//!   seed=N                                    the same seed, the same faults                            1
//! ```
//!
//! A probability is written `0.01` or `1%`. Packets are moved, not copied (but for the second one of two). Nothing is lost
//! without a name: what disappears is dropped as `fault`, what is still held at the end as `stopped`. So a route
//! through a fault port balances like any other.

mod config;
mod dice;
mod rx;
mod tx;

pub use config::{Config, Side};
pub use dice::Tally;
pub use rx::FaultRx;
pub use tx::FaultTx;

use dice::Dice;
use std::sync::Arc;
use towpath_packet::port::{Info, Port, PortControl, PortError, Queues, Start};
use towpath_packet::{Cache, Direction};

/// Puts faults around a port.
///
/// # Errors
/// None at present; it returns a result because every port's `open` does.
pub fn open<P: Port>(config: Config, inner: P) -> Result<FaultPort<P>, PortError> {
    let mut info = inner.info().clone();
    info.name = format!("fault@{}", info.name);
    Ok(FaultPort { info, config, inner, tally: Arc::default() })
}

/// A port with faults.
#[derive(Debug)]
pub struct FaultPort<P> {
    info: Info,
    config: Config,
    inner: P,
    tally: Arc<Tally>,
}

impl<P> FaultPort<P> {
    /// Counts the faults that happen.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }
}

impl<P: Port> Port for FaultPort<P> {
    type Rx = FaultRx<P::Rx>;
    type Tx = FaultTx<P::Tx>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        self.inner.control()
    }

    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError> {
        let (port, pool, config) = (&self.info.name, start.pool.clone(), &self.config);
        let cache = || -> Result<Cache, PortError> {
            pool.cache(Direction::Tx).map_err(|source| PortError::Pool { port: port.clone(), source })
        };
        let inner = self.inner.start(start)?;
        let side = |not: Side| (config.side != not).then_some(config);
        let mut made = Queues { rx: Vec::new(), tx: Vec::new() };
        for (i, queue) in (0..).zip(inner.rx) {
            made.rx.push(FaultRx::new(queue, Dice::new(side(Side::Tx), 2 * i, self.tally.clone()), cache()?));
        }
        for (i, queue) in (0..).zip(inner.tx) {
            made.tx.push(FaultTx::new(queue, Dice::new(side(Side::Rx), 2 * i + 1, self.tally.clone()), cache()?));
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests;
