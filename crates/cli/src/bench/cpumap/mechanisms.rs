//! The lane with two mechanisms off, as the series measured its third patch: packets pass from the
//! worker to the lane one by one instead of in arrays, and heads are taken and freed one by one
//! instead of in bulk.

use super::rig::pool;
use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use towpath::engine::gro_stage::{GroMode, GroStageConfig};
use towpath::engine::lane::{self, LaneConfig, LaneTable};
use towpath::engine::route::{Route, RouteConfig};
use towpath::engine::worker::{Ending, StopSignal, Worker, WorkerConfig};
use towpath::packet::port::{Port, Queues, RxBarrier, RxMemory, RxQueue, Start, State, TxLayout, TxQueue, Wake};
use towpath::packet::{Batch, Counters, Direction, Offloads, Packet, Pool};
use towpath::{AnyPort, AnyRx, AnyTx};

/// A receive queue that gives out one packet a call.
struct Single {
    inner: AnyRx,
    burst: Batch,
    /// Received, and not given out yet.
    stock: VecDeque<Packet>,
}

#[deny(clippy::missing_trait_methods)]
impl RxQueue for Single {
    fn rx(&mut self, out: &mut Batch) -> usize {
        if self.stock.is_empty() {
            let received = self.inner.rx(&mut self.burst);
            self.stock.extend(self.burst.drain_front(received));
        }
        match self.stock.pop_front() {
            Some(packet) => usize::from(out.push(packet).is_ok()),
            None => 0,
        }
    }

    fn refill(&mut self) -> usize {
        if self.stock.is_empty() { self.inner.refill() } else { 0 }
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.inner.set_rx_offloads(accept);
    }

    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.inner.set_tx_layout(egress);
    }

    // Packets in the stock are behind the barrier of the queue inside.
    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        None
    }

    fn memory(&self) -> RxMemory {
        self.inner.memory()
    }

    fn state(&self) -> State {
        self.inner.state()
    }

    fn wake(&self) -> Wake {
        self.inner.wake()
    }

    fn counters(&self) -> &Arc<Counters> {
        self.inner.counters()
    }
}

/// A worker and a lane that run.
pub(super) struct OneByOne {
    stop: Arc<StopSignal>,
    threads: Vec<JoinHandle<io::Result<Vec<Ending>>>>,
}

impl OneByOne {
    /// Starts a worker on the first core and a lane on the last one.
    pub(super) fn start(
        veth: AnyPort,
        tap: AnyPort,
        gro: bool,
        queue: u32,
        [first, last]: [usize; 2],
    ) -> Result<OneByOne, Box<dyn Error>> {
        let pool = Pool::new(pool(queue).magazine(1))?;
        let (accept, tx_layout) = (tap.info().tx_offloads, tap.info().tx_layout);
        let Queues { rx, .. } = veth.start(Start { pool: pool.clone(), queues: 1, accept })?;
        let Queues { tx, .. } = tap.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE })?;
        let (rx, tx) = rx.into_iter().zip(tx).next().ok_or("a port without queues")?;
        let table = Arc::new(LaneTable::new(1).ok_or("no lane")?);
        let mut config = LaneConfig::default();
        config.ring = queue as usize;
        let made = lane::connect(&config, &table, 1)?;
        let (steer, lane) = made.steers.into_iter().zip(made.lanes).next().ok_or("a lane without a ring")?;
        let mut gro_config = GroStageConfig::default();
        gro_config.mode = if gro { GroMode::On } else { GroMode::Off };
        let mut near = RouteConfig::default();
        // The lane holds the worker back.
        near.egress_wait = Duration::MAX;
        let mut far = RouteConfig::default();
        (far.internal, far.tx_layout) = (true, tx_layout);
        let single = Single { inner: rx, burst: Batch::new(), stock: VecDeque::with_capacity(Batch::<64>::CAPACITY) };
        let near = Route::new(single, AnyTx::Steer(steer), pool.cache(Direction::Tx)?, near);
        let far = Route::new(AnyRx::Lane(lane), tx, pool.cache(Direction::Tx)?, far).with_gro(&gro_config);
        let stop = StopSignal::new()?;
        Ok(OneByOne { threads: vec![spawn(near, first, &stop), spawn(far, last, &stop)], stop })
    }

    /// Stops the threads.
    pub(super) fn stop(mut self) -> Result<(), Box<dyn Error>> {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "a worker panicked")??;
        }
        Ok(())
    }
}

fn spawn<R: RxQueue + 'static, T: TxQueue + 'static>(
    route: Route<R, T>,
    core: usize,
    stop: &Arc<StopSignal>,
) -> JoinHandle<io::Result<Vec<Ending>>> {
    let mut config = WorkerConfig::default();
    config.core = Some(core);
    let worker = Worker::new(vec![route], config, stop.clone());
    std::thread::spawn(move || worker.run())
}

impl Drop for OneByOne {
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
