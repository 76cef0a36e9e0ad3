//! A driver and its model on one thread.

use super::Family;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use towpath::model::cpsw::{self as model, Accesses, Cpsw, CpswBus, Injected};
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
    pub(super) ns: u64,
    pub(super) writes: u64,
    pub(super) reads: u64,
}

pub(super) struct Rig {
    model: Cpsw,
    ports: Vec<(CpswRx<CpswBus>, CpswTx<CpswBus>)>,
    busy: usize,
    cache: Cache,
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
        let (opened, _) = open(model.bus(), Arc::new(model.firmware()), config)?;
        let mut started = Vec::new();
        for port in opened {
            let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
            let Queues { rx, tx } = port.start(start)?;
            started.extend(rx.into_iter().zip(tx));
        }
        let cache = pool.cache(Direction::Tx)?;
        let burst = BURST.max(usize::from(batch.get()));
        Ok(Rig { model, ports: started, busy: busy.into(), cache, burst, arrivals: arrivals.clamp(1, BURST) })
    }

    fn packets(&mut self, size: usize) -> Result<Vec<Packet>, Box<dyn Error>> {
        let mut packets = Vec::with_capacity(self.burst);
        for _ in 0..self.burst {
            let mut packet = self.cache.alloc().ok_or("the pool is dry")?;
            packet.push_back(size)?.fill(7);
            packets.push(packet);
        }
        Ok(packets)
    }

    /// Counts the cost of `timed` over `bursts` bursts of every busy port; the model works before
    /// and after each.
    fn count(
        &mut self,
        bursts: usize,
        mut timed: impl FnMut(&mut Rig, usize) -> Result<(u64, u64), Box<dyn Error>>,
    ) -> Result<Cost, Box<dyn Error>> {
        let before = self.model.accesses();
        let mut cost = Cost::default();
        for _ in 0..bursts {
            for port in 0..self.busy {
                let (packets, ns) = timed(self, port)?;
                cost.packets += packets;
                cost.ns += ns;
            }
            self.model.settle();
        }
        let Accesses { doorbells, occupancies, fifo_writes, fifo_reads } = self.model.accesses() - before;
        cost.writes = doorbells + fifo_writes;
        cost.reads = occupancies + fifo_reads;
        Ok(cost)
    }

    /// Sends bursts through every busy port: first the completions of the previous burst, then the
    /// burst.
    pub(super) fn transmit(&mut self, bursts: usize, size: usize) -> Result<Cost, Box<dyn Error>> {
        self.count(bursts, |rig, port| {
            let packets = rig.packets(size)?;
            let Some((_, tx)) = rig.ports.get_mut(port) else { return Ok((0, 0)) };
            let n = packets.len() as u64;
            let begun = Instant::now();
            tx.reclaim();
            let mut burst = tx.burst();
            for packet in packets {
                burst.push(packet).map_err(|_| "the ring is full")?;
            }
            drop(burst);
            Ok((n, begun.elapsed().as_nanos() as u64))
        })
    }

    /// Receives bursts of `arrivals` frames on every busy port: buffers are refilled, then frames
    /// are taken. Packets are freed outside of the timed section.
    pub(super) fn receive(&mut self, bursts: usize, size: usize) -> Result<Cost, Box<dyn Error>> {
        let frame = vec![7; size];
        self.count(bursts, |rig, port| {
            let (mut packets, mut ns) = (0, 0);
            for begun in (0..BURST).step_by(rig.arrivals) {
                for _ in begun..BURST.min(begun + rig.arrivals) {
                    if !rig.model.inject(port as u8 + 1, &frame, Injected::default()) {
                        return Err("the host port is full".into());
                    }
                }
                rig.model.settle();
                let Some((rx, _)) = rig.ports.get_mut(port) else { break };
                let mut batch = Batch::new();
                let begun = Instant::now();
                rx.refill();
                packets += rx.rx(&mut batch) as u64;
                ns += begun.elapsed().as_nanos() as u64;
                rig.cache.free_bulk(&mut batch);
            }
            Ok((packets, ns))
        })
    }

    /// The time that packets wait for their doorbell when they are passed in one by one.
    pub(super) fn waits(&mut self, bursts: usize, size: usize, into: &mut Vec<u64>) -> Result<(), Box<dyn Error>> {
        for _ in 0..bursts {
            let packets = self.packets(size)?;
            let Some((_, tx)) = self.ports.first_mut() else { return Ok(()) };
            tx.reclaim();
            let mut waiting: Vec<Instant> = Vec::with_capacity(self.burst);
            for packet in packets {
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
            self.model.settle();
        }
        Ok(())
    }
}

impl Drop for Rig {
    /// The model answers while the driver shuts down.
    fn drop(&mut self) {
        self.model.set_steps_per_read(8);
        self.ports.clear();
    }
}
