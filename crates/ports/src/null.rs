//! `null:` frees every packet and receives none.
//!
//! It adds next to no cost, so it is the egress of benchmarks, and a sink of unwanted packets.
//! Packets are freed in bulk through a cache of the route's pool; packets of other pools return to
//! theirs.
//!
//! ```text
//!   null:                  accepts super-packets, partial checksums and tags
//!   null:accept=none       accepts complete packets only: the worker completes the others first
//! ```

use crate::kind::{Kind, PortOption};
use crate::uri::Uri;
use std::sync::Arc;
use towpath_packet::port::{Info, Layer, Needs, Port, PortError, Queues, RxQueue, Start, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, Offloads, Pool};

/// Queues that one port can be started with; each has a cache of the pool.
pub(super) const MAX_QUEUES: u16 = 64;

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "null",
    example: "null:",
    what: "takes everything, brings nothing",
    options: &[PortOption::new(
        "accept",
        "all|none",
        "all",
        "offloads that it takes; none: what an egress without any is sent",
        "accept=none",
    )],
};

/// Configuration of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Offloads that its transmit queues accept.
    pub accept: Offloads,
}

impl Default for Config {
    fn default() -> Config {
        Config { accept: Offloads::ALL }
    }
}

impl Config {
    /// Parses `null:accept=all|none`.
    ///
    /// # Errors
    /// [`PortError::Option`] for an invalid value or an unknown option.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        let mut options = uri.options(KIND.options);
        let accept = options.choice("accept", &[("all", Offloads::ALL), ("none", Offloads::NONE)])?;
        options.finish()?;
        Ok(Config { accept: accept.unwrap_or(Offloads::ALL) })
    }
}

/// Opens the port. It returns a result because every port's `open` does.
///
/// # Errors
/// None.
pub fn open(config: Config) -> Result<NullPort, PortError> {
    Ok(NullPort { info: sink_info("null:", config.accept), config })
}

/// The properties of a port that accepts any packet.
pub(super) fn sink_info(name: &str, accept: Offloads) -> Info {
    Info::new(name, Layer::Any, u16::MAX.into()).with_offloads(accept, Offloads::NONE).with_max_queues(MAX_QUEUES)
}

/// The opened port.
#[derive(Debug)]
pub struct NullPort {
    info: Info,
    config: Config,
}

impl Port for NullPort {
    type Rx = NullRx;
    type Tx = NullTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn needs(&self) -> Needs {
        Needs::none()
    }

    fn start(self, start: Start) -> Result<Queues<NullRx, NullTx>, PortError> {
        let queues = self.info.queues(start.queues)?;
        let tx: Result<_, _> =
            (0..queues).map(|_| NullTx::new(&self.info.name, &start.pool, self.config.accept)).collect();
        Ok(Queues { rx: (0..queues).map(|_| NullRx::default()).collect(), tx: tx? })
    }
}

/// A receive queue without packets.
#[derive(Debug, Default)]
pub struct NullRx {
    counters: Arc<Counters>,
}

impl RxQueue for NullRx {
    fn rx(&mut self, _out: &mut Batch) -> usize {
        0
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// A transmit queue that frees its packets.
#[derive(Debug)]
pub struct NullTx {
    cache: Cache,
    accept: Offloads,
    counters: Arc<Counters>,
}

impl NullTx {
    pub(super) fn new(port: &str, pool: &Pool, accept: Offloads) -> Result<NullTx, PortError> {
        let cache = pool.cache(Direction::Tx);
        let cache = cache.map_err(|source| PortError::Pool { port: port.to_owned(), source })?;
        Ok(NullTx { cache, accept, counters: Arc::default() })
    }
}

impl TxQueue for NullTx {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let packets = batch.len();
        let bytes: usize = batch.iter().map(|packet| packet.len()).sum();
        self.cache.free_bulk(batch);
        self.counters.moved(packets as u64, bytes as u64);
        packets
    }

    fn offloads(&self) -> Offloads {
        self.accept
    }

    fn state(&self) -> State {
        State::Up
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Packet, PoolConfig};

    fn pool() -> Pool {
        Pool::new(PoolConfig::default().capacity(256)).unwrap()
    }

    fn null(accept: &str, pool: &Pool) -> (NullRx, NullTx) {
        let port = open(Config::from_uri(&format!("null:accept={accept}").parse().unwrap()).unwrap()).unwrap();
        let mut queues = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE }).unwrap();
        (queues.rx.pop().unwrap(), queues.tx.pop().unwrap())
    }

    #[test]
    fn packets_return_to_their_pools_and_are_counted_with_their_bytes() {
        let (ours, theirs) = (pool(), pool());
        let (_, mut tx) = null("all", &ours);
        let mut batch = Batch::new();
        for pool in [&ours, &theirs] {
            let mut cache = pool.cache(Direction::Rx).unwrap();
            batch.push(Packet::copy_from(&mut cache, &[0; 5000]).unwrap()).unwrap();
        }
        assert_eq!(tx.tx(&mut batch), 2);
        assert!(batch.is_empty());
        let counted = tx.counters().snapshot();
        assert_eq!((counted.packets, counted.bytes), (2, 10_000));
        drop(tx);
        assert_eq!((ours.stats().free, theirs.stats().free), (256, 256));
    }

    #[test]
    fn it_never_receives_and_has_nothing_to_wait_for() {
        let (mut rx, _) = null("all", &pool());
        assert_eq!((rx.rx(&mut Batch::new()), rx.wake(), rx.state()), (0, Wake::Never, State::Up));
    }

    #[test]
    fn offloads_can_be_refused_and_unknown_options_are_named() {
        assert!(null("none", &pool()).1.offloads().is_none());
        assert_eq!(null("all", &pool()).1.offloads(), Offloads::ALL);
        let error = Config::from_uri(&"null:acept=none".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("acept=none") && error.contains("accept"), "{error}");
    }

    #[test]
    fn it_starts_with_one_to_all_of_its_queues() {
        for (queues, well) in [(0, false), (1, true), (MAX_QUEUES, true), (MAX_QUEUES + 1, false)] {
            let port = open(Config::from_uri(&"null:".parse().unwrap()).unwrap()).unwrap();
            let pool = Pool::new(PoolConfig::default().capacity(8192)).unwrap();
            let started = port.start(Start { pool, queues, accept: Offloads::NONE });
            assert_eq!(started.is_ok(), well, "{queues}");
            if let Err(error) = started {
                let rule = format!("queues={queues}: must be from 1 to {MAX_QUEUES}");
                assert!(error.to_string().contains(&rule), "{error}");
            }
        }
    }
}
