//! A driver and its model on one thread.

use super::Family;
use super::posted::{Posted, Queue};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::model::cpsw::{self as model, Accesses, Cpsw, Injected};
use towpath::model::wire::Wire;
use towpath::nic::cpsw::DescAlloc;
use towpath::nic::cpsw::{BatchSize, Config, CpswRx, CpswTx, open};
use towpath::packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath::packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// Packets of a burst per port, unless a batch is larger.
pub(super) const BURST: usize = 64;

/// Accepts every frame.
struct Sink;

impl Wire for Sink {
    fn send(&mut self, _: &[u8]) -> bool {
        true
    }
    fn receive(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }
}

/// The measured configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) family: Family,
    /// MAC ports, and the number of them that carry traffic.
    pub(super) ports: u8,
    pub(super) busy: u8,
    pub(super) desc_alloc: DescAlloc,
    pub(super) singly: bool,
    pub(super) batch: BatchSize,
    /// Frames that arrive before the driver polls: 1 to 64.
    pub(super) arrivals: usize,
}

/// The cost of a number of packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) packets: u64,
    /// The driver's own time, without reads of registers.
    pub(super) ns: u64,
    /// Time for making what is sent, or for freeing what was received.
    pub(super) around_ns: u64,
    pub(super) writes: u64,
    pub(super) reads: u64,
}

pub(super) struct Rig {
    model: Cpsw,
    /// Between driver and model.
    queue: Arc<Queue>,
    ports: Vec<(CpswRx<Posted>, CpswTx<Posted>)>,
    busy: usize,
    cache: Cache,
    packets: Vec<Packet>,
    burst: usize,
    arrivals: usize,
}

impl Rig {
    pub(super) fn new(setup: Setup) -> Result<Rig, Box<dyn Error>> {
        let Setup { family, ports, busy, desc_alloc, singly, batch, arrivals } = setup;
        let model = Cpsw::new(model::Config::lenient(family.model, ports))?;
        (1..=ports).for_each(|port| model.plug(port, Sink));
        let pool = Pool::new(PoolConfig::default().capacity(2048))?;
        let config = Config::default()
            .soc(family.soc)
            .ports(ports)
            .tx_channels(ports)
            .desc_alloc(desc_alloc)
            .singly(singly)
            .batch(batch);
        let (bus, queue) = Posted::new(model.bus());
        let (opened, _) = open(bus, Arc::new(model.firmware()), config)?;
        let mut started = Vec::new();
        for port in opened {
            let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
            let Queues { rx, tx } = port.start(start)?;
            started.extend(rx.into_iter().zip(tx));
        }
        let cache = pool.cache(Direction::Tx)?;
        let burst = BURST.max(usize::from(batch.get()));
        let packets = Vec::with_capacity(burst);
        Ok(Rig {
            model,
            queue,
            ports: started,
            busy: busy.into(),
            cache,
            packets,
            burst,
            arrivals: arrivals.clamp(1, BURST),
        })
    }

    /// Makes a burst of copies of `frame`.
    fn make(&mut self, frame: &[u8]) -> Result<(), Box<dyn Error>> {
        for _ in 0..self.burst {
            self.packets.push(Packet::copy_from(&mut self.cache, frame).ok_or("the pool is dry")?);
        }
        Ok(())
    }

    /// Counts the cost of `timed` over `bursts` bursts of every busy port; the model works before
    /// and after each. With `pace`, so much time passes between the beginnings of two bursts.
    fn count(
        &mut self,
        bursts: usize,
        pace: Option<Duration>,
        mut timed: impl FnMut(&mut Rig, usize, &mut Cost) -> Result<(), Box<dyn Error>>,
    ) -> Result<Cost, Box<dyn Error>> {
        let before = self.model.accesses();
        let mut cost = Cost::default();
        let mut due = Instant::now();
        for _ in 0..bursts {
            if let Some(pace) = pace {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                due += pace;
            }
            for port in 0..self.busy {
                timed(self, port, &mut cost)?;
            }
            self.settle();
        }
        let Accesses { doorbells, occupancies, fifo_writes, fifo_reads, .. } = self.model.accesses() - before;
        cost.writes = doorbells + fifo_writes;
        cost.reads = occupancies + fifo_reads;
        Ok(cost)
    }

    /// Posted writes arrive, and the model works until it has nothing to do.
    fn settle(&self) {
        self.queue.deliver();
        self.model.settle();
    }

    /// Sends bursts of `frame` through every busy port: first the completions of the previous
    /// burst, then the burst.
    pub(super) fn transmit(
        &mut self,
        bursts: usize,
        frame: &[u8],
        pace: Option<Duration>,
    ) -> Result<Cost, Box<dyn Error>> {
        self.count(bursts, pace, |rig, port, cost| {
            let begun = Instant::now();
            rig.make(frame)?;
            let Some((_, tx)) = rig.ports.get_mut(port) else { return Ok(()) };
            cost.packets += rig.packets.len() as u64;
            let (reading, made) = (rig.queue.reading(), Instant::now());
            tx.reclaim();
            let mut burst = tx.burst();
            for packet in rig.packets.drain(..) {
                burst.push(packet).map_err(|_| "the ring is full")?;
            }
            drop(burst);
            cost.ns += own(made, reading, &rig.queue);
            cost.around_ns += made.duration_since(begun).as_nanos() as u64;
            Ok(())
        })
    }

    /// Receives bursts of `arrivals` of `frame` on every busy port: buffers are refilled, then
    /// frames are taken, and freed.
    pub(super) fn receive(
        &mut self,
        bursts: usize,
        frame: &[u8],
        pace: Option<Duration>,
    ) -> Result<Cost, Box<dyn Error>> {
        self.count(bursts, pace, |rig, port, cost| {
            for begun in (0..BURST).step_by(rig.arrivals) {
                for _ in begun..BURST.min(begun + rig.arrivals) {
                    if !rig.model.inject(port as u8 + 1, frame, Injected::default()) {
                        return Err("the host port is full".into());
                    }
                }
                rig.settle();
                let Some((rx, _)) = rig.ports.get_mut(port) else { break };
                let mut batch = Batch::new();
                let (reading, begun) = (rig.queue.reading(), Instant::now());
                rx.refill();
                cost.packets += rx.rx(&mut batch) as u64;
                cost.ns += own(begun, reading, &rig.queue);
                let taken = Instant::now();
                rig.cache.free_bulk(&mut batch);
                cost.around_ns += taken.elapsed().as_nanos() as u64;
            }
            Ok(())
        })
    }

    /// The time that packets wait for their doorbell when they are passed in one by one.
    pub(super) fn waits(&mut self, bursts: usize, frame: &[u8], into: &mut Vec<u64>) -> Result<(), Box<dyn Error>> {
        for _ in 0..bursts {
            self.make(frame)?;
            let Some((_, tx)) = self.ports.first_mut() else { return Ok(()) };
            tx.reclaim();
            let mut waiting: Vec<Instant> = Vec::with_capacity(self.burst);
            for packet in self.packets.drain(..) {
                waiting.push(Instant::now());
                let before = tx.counts().submit_doorbells;
                let mut batch = Batch::<64>::new();
                let _ = batch.push(packet);
                tx.tx(&mut batch);
                if tx.counts().submit_doorbells != before {
                    into.extend(waiting.drain(..).map(|since| since.elapsed().as_nanos() as u64));
                }
            }
            tx.kick();
            into.extend(waiting.drain(..).map(|since| since.elapsed().as_nanos() as u64));
            self.settle();
        }
        Ok(())
    }
}

/// The time since `begun`, less that of the reads since then.
fn own(begun: Instant, reading: u64, queue: &Queue) -> u64 {
    let elapsed = begun.elapsed().as_nanos() as u64;
    elapsed.saturating_sub(queue.reading() - reading)
}

impl Drop for Rig {
    /// The model answers while the driver shuts down.
    fn drop(&mut self) {
        self.model.set_steps_per_read(8);
        self.queue.deliver();
        self.ports.clear();
    }
}
