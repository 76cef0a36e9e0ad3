//! The host port, which all MAC ports share: bring-up, teardown, and what is known of both.
//!
//! ```text
//!   open     switch: host port, address lookup
//!   up       receive flows filled ► receive channel enabled ► transmit channels enabled       (the first port that starts)
//!   down     a transmit channel: when the queue that owns it ends
//!            the receive channel: when the last owner of a flow ends
//! ```
//!
//! A channel is stopped by teardown: the engine finishes what it has fetched, says so by a marker, and leaves the rest in the ring.
//! Only then is memory taken back. An engine that does not say so within [`PATIENCE`] keeps what it has: descriptors, buffers and
//! mappings are leaked, and [`Stopped`] tells.

use super::config::{Config, Family};
use super::descriptor::FETCH_WORDS;
use super::regs::switch::RGMII_STATUS;
use super::regs::{Regions, channel, of_channel};
use super::rx::{RxCounts, RxFlow};
use super::switch;
use super::tx::{TxChannel, TxCounts};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_bus::tisci::{Refused, RingConfig, RingMode, RxChannelConfig, RxFlowConfig, Tisci, TxChannelConfig};
use towpath_bus::{Bus, BusError, Coherent, Domain, MapError};
use towpath_packet::{Batch, Cache, Direction, Pool, PoolError};

/// How long teardown may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Looks without a pause before the thread gives way between two of them.
const EAGER: u32 = 1000;

/// Why the host port could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum CpswError {
    /// A field of the configuration is out of its range.
    #[error("{field} = {value}: {rule}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The rule.
        rule: &'static str,
    },
    /// The device could not be reached.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Firmware refused.
    #[error(transparent)]
    Firmware(#[from] Refused),
    /// No cache of the pool could be had.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// How a channel ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Transmit channel, or `None` for the receive channel.
    pub channel: Option<u16>,
    /// The engine said in time that it is through.
    pub orderly: bool,
    /// Descriptors that are free again.
    pub home: usize,
    /// All descriptors.
    pub descriptors: usize,
    /// Packets that were announced and never fetched, or received and never handed over.
    pub left: usize,
    /// Firmware calls that failed on the way.
    pub refusals: Vec<Refused>,
}

/// Numbers of channels and flows that have ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended {
    pub(super) stops: Vec<Stopped>,
    pub(super) tx: Vec<(u16, TxCounts)>,
    pub(super) rx: Vec<(u16, RxCounts)>,
}

/// What all queues of all ports share.
pub(super) struct Host<B: Bus> {
    pub(super) config: Config,
    pub(super) regions: Regions<B::Bar>,
    pub(super) domain: Domain<B::Dma>,
    firmware: Arc<dyn Tisci>,
    name: String,
    /// Kept open; asked for interrupts.
    bus: Mutex<B>,
    /// Flows whose owners have ended, until all have.
    retired: Mutex<Vec<RxFlow<B>>>,
    ended: Mutex<Ended>,
}

impl<B: Bus> Host<B> {
    pub(super) fn open(bus: B, firmware: Arc<dyn Tisci>, config: Config) -> Result<Host<B>, CpswError> {
        if let Some((field, value, rule)) = config.fault() {
            return Err(CpswError::Config { field, value, rule });
        }
        let regions = Regions::open(&bus, &config)?;
        let domain = Domain::new(bus.dma().clone(), config.policy)?;
        switch::set_up(&regions.switch, &config);
        Ok(Host {
            config,
            regions,
            domain,
            firmware,
            name: bus.name().to_owned(),
            bus: Mutex::new(bus),
            retired: Mutex::default(),
            ended: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The interrupts of the receive flows, in order.
    pub(super) fn rx_irqs(&self) -> Result<Vec<B::Irq>, BusError> {
        let bus = self.bus.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(bus.irqs(8 + u16::from(self.config.rx_flows))?.into_iter().skip(8).collect())
    }

    /// Whether a MAC port has a link.
    pub(super) fn has_link(&self, port: u8) -> bool {
        let status = RGMII_STATUS.nth(u32::from(port.saturating_sub(1)), 4);
        status.read(&self.regions.switch) & 1 != 0
    }

    fn ring(&self, ring: u16, memory: &Coherent, count: u32, mode: RingMode) -> Result<(), Refused> {
        let asel = self.config.soc.asel;
        self.firmware.ring_config(&RingConfig { ring, address: memory.iova().get(), count, mode, asel })
    }

    /// Sets a transmit channel up and enables it.
    pub(super) fn tx_up(&self, number: u16) -> Result<TxChannel<B>, CpswError> {
        let tx = TxChannel::new(number, &self.config, &self.regions, &self.domain)?;
        let (soc, count) = (&self.config.soc, self.config.tx_ring);
        self.ring(soc.submit_ring(number), &tx.slots, count, RingMode::Exposed)?;
        let mut completion_ring = u16::MAX;
        if let Some(completions) = &tx.completions {
            completion_ring = soc.tx_completion_ring(number);
            self.ring(completion_ring, completions, tx.back_size, RingMode::Exposed)?;
        }
        let channel = soc.tx_channel + number;
        let config = TxChannelConfig { channel, fetch_words: FETCH_WORDS, completion_ring };
        self.firmware.tx_channel_config(&config)?;
        self.firmware.psil_pair(soc.psil_base + channel, soc.tx_thread + number)?;
        of_channel(channel::PEER, channel).write(&self.regions.tx, channel::ENABLE);
        of_channel(channel::CONTROL, channel).write(&self.regions.tx, channel::ENABLE);
        Ok(tx)
    }

    /// Tears a transmit channel down and takes back what it had.
    pub(super) fn tx_down(&self, mut tx: TxChannel<B>, free: &mut impl FnMut(&mut Batch)) {
        let (soc, number) = (&self.config.soc, tx.number);
        let channel = soc.tx_channel + number;
        let bar = &self.regions.tx;
        tx.flush();
        of_channel(channel::CONTROL, channel).write(bar, channel::ENABLE | channel::TEARDOWN);
        let orderly = wait(|| {
            tx.collect(free);
            tx.torn_down
        });
        let mut stopped = Stopped {
            channel: Some(number),
            orderly,
            home: 0,
            descriptors: tx.home().1,
            left: 0,
            refusals: Vec::new(),
        };
        let mut tried = |result: Result<(), Refused>| stopped.refusals.extend(result.err());
        if orderly {
            stopped.left = tx.drain(free);
        }
        of_channel(channel::CONTROL, channel).write(bar, 0);
        of_channel(channel::PEER, channel).write(bar, 0);
        if orderly {
            tried(self.firmware.ring_reset(soc.submit_ring(number)));
            if tx.completions.is_some() {
                tried(self.firmware.ring_reset(soc.tx_completion_ring(number)));
            }
        }
        tried(self.firmware.psil_unpair(soc.psil_base + channel, soc.tx_thread + number));
        stopped.home = tx.home().0;
        let mut ended = self.ended();
        ended.tx.push((number, tx.counts));
        ended.stops.push(stopped);
        if !orderly {
            // The engine may still read descriptors and buffers.
            std::mem::forget(tx);
        }
    }

    /// Sets all receive flows up, fills them from `pool`, and enables the receive channel.
    pub(super) fn rx_up(&self, pool: &Pool) -> Result<Vec<RxFlow<B>>, CpswError> {
        let soc = &self.config.soc;
        let count = self.config.rx_ring;
        let mut flows = Vec::new();
        for number in 0..u16::from(self.config.rx_flows) {
            let cache: Cache = pool.cache(Direction::Rx)?;
            let flow = RxFlow::new(number, &self.config, &self.regions, &self.domain, cache)?;
            let (free_ring, completion_ring) = soc.rx_rings(number);
            let mode = if self.regions.windows.is_some() { RingMode::Message } else { RingMode::Exposed };
            let (slots, completions) = flow.rings();
            self.ring(free_ring, slots, count, mode)?;
            if let Some(completions) = completions {
                self.ring(completion_ring, completions, count, RingMode::Exposed)?;
            }
            self.firmware.rx_flow_config(&RxFlowConfig {
                flow: soc.rx_flow + number,
                einfo: true,
                psinfo: true,
                stall: false,
                sop_offset: 0,
                completion_ring,
                free_ring,
            })?;
            flows.push(flow);
        }
        self.firmware.rx_channel_config(&RxChannelConfig {
            channel: soc.rx_channel,
            fetch_words: FETCH_WORDS,
            flow_start: soc.rx_flow,
            flow_count: u16::from(self.config.rx_flows),
        })?;
        self.firmware.psil_pair(soc.rx_thread, 0x8000 | (soc.psil_base + soc.rx_channel))?;
        for flow in &mut flows {
            flow.refill(1);
        }
        of_channel(channel::CONTROL, soc.rx_channel).write(&self.regions.rx, channel::ENABLE);
        of_channel(channel::PEER, soc.rx_channel).write(&self.regions.rx, channel::ENABLE);
        Ok(flows)
    }

    /// The owner of a flow has ended. When the last has, the receive channel is torn down.
    pub(super) fn retire(&self, flow: RxFlow<B>) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(flow);
        if retired.len() == usize::from(self.config.rx_flows) {
            let flows = std::mem::take(&mut *retired);
            drop(retired);
            self.rx_down(flows);
        }
    }

    /// Tears the receive channel down and takes back what the flows had.
    fn rx_down(&self, mut flows: Vec<RxFlow<B>>) {
        let soc = &self.config.soc;
        let bar = &self.regions.rx;
        let control = of_channel(channel::CONTROL, soc.rx_channel);
        of_channel(channel::PEER, soc.rx_channel).write(bar, channel::ENABLE | channel::TEARDOWN);
        let off = wait(|| control.read(bar) & channel::ENABLE == 0);
        // The manuals do not say on which flow's ring the marker shows: any will do.
        let marked = |flow: &RxFlow<B>| flow.done.occupancy().1;
        let orderly = off && (!soc.marks_rx_teardown || wait(|| flows.iter().any(marked)));
        let mut stopped = Stopped {
            channel: None,
            orderly,
            home: 0,
            descriptors: flows.iter().map(|flow| flow.home().1).sum(),
            left: 0,
            refusals: Vec::new(),
        };
        if orderly {
            for flow in &mut flows {
                stopped.left += flow.drain();
                if soc.marks_rx_teardown && marked(flow) {
                    flow.done.acknowledge_teardown();
                }
            }
        }
        control.write(bar, 0);
        of_channel(channel::PEER, soc.rx_channel).write(bar, 0);
        let mut tried = |result: Result<(), Refused>| stopped.refusals.extend(result.err());
        for flow in flows.iter().filter(|_| orderly) {
            let (free, filled) = soc.rx_rings(flow.number);
            tried(self.firmware.ring_reset(free));
            if soc.family == Family::Udma {
                tried(self.firmware.ring_reset(filled));
            }
        }
        tried(self.firmware.psil_unpair(soc.rx_thread, 0x8000 | (soc.psil_base + soc.rx_channel)));
        stopped.home = flows.iter().map(|flow| flow.home().0).sum();
        let mut ended = self.ended();
        ended.rx.extend(flows.iter().map(|flow| (flow.number, flow.counts)));
        ended.stops.push(stopped);
        if !orderly {
            // The engine may still write to buffers.
            std::mem::forget(flows);
        }
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks until the answer is yes, or patience ends.
fn wait(mut is: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    let mut looks = 0;
    while !is() {
        looks += 1;
        if looks > EAGER {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    true
}
