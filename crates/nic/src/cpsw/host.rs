//! The host port, which all MAC ports share: bring-up and teardown.
//!
//! ```text
//!   open      switch: host port, address lookup engine
//!   start     receive flows filled ► receive channel enabled      (the first port that starts)
//!             transmit channels enabled                           (each port)
//!   stop      a transmit channel: when the last queue that owns it is dropped
//!             the receive channel: when the last owner of the last flow is dropped
//! ```
//!
//! A channel stops by teardown: the engine completes the packets that it has fetched, reports that
//! by a marker, and leaves the rest in the ring. Only then does the driver take memory back. If the
//! marker does not come within [`TIMEOUT`], the driver leaks descriptors, buffers and mappings, and
//! [`ChannelStop`] reports that.

use super::config::{Config, Family};
use super::descriptors::FETCH_WORDS;
use super::regs::{Regions, ale, channel, of_channel, switch};
use super::rx::{RxCounts, RxFlow};
use super::tx::{TxChannel, TxCounts};
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_bus::tisci::{Refused, RingConfig, RingMode, RxChannelConfig, RxFlowConfig, Tisci, TxChannelConfig};
use towpath_bus::{Bus, BusError, Coherent, Domain, MapError, Mmio};
use towpath_packet::{Batch, Cache, Direction, Pool, PoolError};

/// The longest time that teardown may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Polls without a pause; between further ones the thread sleeps.
const SPINS: u32 = 1000;

/// Why the device could not be opened or started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// The pool has no cache left.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// How a channel stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStop {
    /// Transmit channel, or `None` for the receive channel.
    pub channel: Option<u16>,
    /// The engine reported the end of the teardown in time.
    pub orderly: bool,
    /// Descriptors that are free.
    pub free: usize,
    /// All descriptors.
    pub descriptors: usize,
    /// Packets that were announced and never fetched, or received and never delivered.
    pub undelivered: usize,
    /// Firmware calls that failed.
    pub refusals: Vec<Refused>,
}

/// Reports and counters of the channels and flows that have stopped.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) stops: Vec<ChannelStop>,
    pub(super) tx: Vec<(u16, TxCounts)>,
    pub(super) rx: Vec<(u16, RxCounts)>,
}

/// What the queues of all ports share.
pub(super) struct Host<B: Bus> {
    pub(super) config: Config,
    pub(super) regions: Regions<B::Bar>,
    pub(super) domain: Domain<B::Dma>,
    firmware: Arc<dyn Tisci>,
    name: String,
    /// Stays open, and hands out interrupts.
    bus: Mutex<B>,
    /// Flows without an owner, until all flows are.
    retired: Mutex<Vec<RxFlow<B>>>,
    history: Mutex<History>,
}

impl<B: Bus> Host<B> {
    pub(super) fn open(bus: B, firmware: Arc<dyn Tisci>, config: Config) -> Result<Host<B>, CpswError> {
        if let Some((field, value, rule)) = config.invalid() {
            return Err(CpswError::Config { field, value, rule });
        }
        let regions = Regions::open(&bus, &config)?;
        let domain = Domain::new(bus.dma().clone(), config.policy)?;
        init_switch(&regions.switch, &config);
        Ok(Host {
            config,
            regions,
            domain,
            firmware,
            name: bus.name().to_owned(),
            bus: Mutex::new(bus),
            retired: Mutex::default(),
            history: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The interrupts of the receive flows, in order.
    pub(super) fn rx_irqs(&self) -> Result<Vec<B::Irq>, BusError> {
        let bus = lock(&self.bus);
        Ok(bus.irqs(8 + u16::from(self.config.rx_flows))?.into_iter().skip(8).collect())
    }

    /// Whether a MAC port has a link.
    pub(super) fn has_link(&self, port: u8) -> bool {
        let status = switch::RGMII_STATUS.nth(u32::from(port.saturating_sub(1)), 4);
        status.read(&self.regions.switch) & 1 != 0
    }

    fn ring_config(&self, ring: u16, memory: &Coherent, count: u32, mode: RingMode) -> Result<(), Refused> {
        let asel = self.config.soc.asel;
        self.firmware.ring_config(&RingConfig { ring, address: memory.iova().get(), count, mode, asel })
    }

    /// Sets a transmit channel up and enables it.
    pub(super) fn start_tx(&self, number: u16) -> Result<TxChannel<B>, CpswError> {
        let tx = TxChannel::new(number, &self.config, &self.regions, &self.domain)?;
        let (soc, count) = (&self.config.soc, self.config.tx_ring);
        self.ring_config(soc.submit_ring(number), tx.submit.elements(), count, RingMode::Exposed)?;
        let mut completion_ring = u16::MAX;
        if let Some((elements, count)) = tx.completion.elements() {
            completion_ring = soc.tx_completion_ring(number);
            self.ring_config(completion_ring, elements, count, RingMode::Exposed)?;
        }
        let channel = soc.tx_channel + number;
        let config = TxChannelConfig { channel, fetch_words: FETCH_WORDS, completion_ring };
        self.firmware.tx_channel_config(&config)?;
        self.firmware.psil_pair(soc.psil_base + channel, soc.tx_thread + number)?;
        of_channel(channel::PEER, channel).write(&self.regions.tx, channel::ENABLE);
        of_channel(channel::CONTROL, channel).write(&self.regions.tx, channel::ENABLE);
        Ok(tx)
    }

    /// Tears a transmit channel down and takes its packets back.
    pub(super) fn stop_tx(&self, mut tx: TxChannel<B>, free: &mut impl FnMut(&mut Batch)) {
        let (soc, number) = (&self.config.soc, tx.number);
        let channel = soc.tx_channel + number;
        let bar = &self.regions.tx;
        tx.flush();
        of_channel(channel::CONTROL, channel).write(bar, channel::ENABLE | channel::TEARDOWN);
        let orderly = poll_until(|| {
            tx.collect(free);
            tx.torn_down
        });
        let mut stop = ChannelStop {
            channel: Some(number),
            orderly,
            free: 0,
            descriptors: tx.descriptors().1,
            undelivered: 0,
            refusals: Vec::new(),
        };
        let mut note = |result: Result<(), Refused>| stop.refusals.extend(result.err());
        if orderly {
            stop.undelivered = tx.drain(free);
        }
        of_channel(channel::CONTROL, channel).write(bar, 0);
        of_channel(channel::PEER, channel).write(bar, 0);
        if orderly {
            note(self.firmware.ring_reset(soc.submit_ring(number)));
            if soc.family == Family::Udma {
                note(self.firmware.ring_reset(soc.tx_completion_ring(number)));
            }
        }
        note(self.firmware.psil_unpair(soc.psil_base + channel, soc.tx_thread + number));
        stop.free = tx.descriptors().0;
        let mut history = self.history();
        history.tx.push((number, tx.counts));
        history.stops.push(stop);
        if !orderly {
            // The engine may still read descriptors and buffers.
            std::mem::forget(tx);
        }
    }

    /// Sets all receive flows up, fills them from `pool`, and enables the receive channel.
    pub(super) fn start_rx(&self, pool: &Pool) -> Result<Vec<RxFlow<B>>, CpswError> {
        let soc = &self.config.soc;
        let count = self.config.rx_ring;
        let mut flows = Vec::new();
        for number in 0..u16::from(self.config.rx_flows) {
            let cache: Cache = pool.cache(Direction::Rx)?;
            let flow = RxFlow::new(number, &self.config, &self.regions, &self.domain, cache)?;
            let (free_ring, completion_ring) = soc.rx_rings(number);
            let mode = if self.regions.fifos.is_some() { RingMode::Message } else { RingMode::Exposed };
            self.ring_config(free_ring, flow.free_elements(), count, mode)?;
            if let Some((elements, count)) = flow.completion.elements() {
                self.ring_config(completion_ring, elements, count, RingMode::Exposed)?;
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

    /// A flow has no owner any more. With the last one, the receive channel is torn down.
    pub(super) fn retire(&self, flow: RxFlow<B>) {
        let mut retired = lock(&self.retired);
        retired.push(flow);
        if retired.len() == usize::from(self.config.rx_flows) {
            let flows = std::mem::take(&mut *retired);
            drop(retired);
            self.stop_rx(flows);
        }
    }

    /// Tears the receive channel down and takes the buffers of all flows back.
    fn stop_rx(&self, mut flows: Vec<RxFlow<B>>) {
        let soc = &self.config.soc;
        let bar = &self.regions.rx;
        let control = of_channel(channel::CONTROL, soc.rx_channel);
        of_channel(channel::PEER, soc.rx_channel).write(bar, channel::ENABLE | channel::TEARDOWN);
        let off = poll_until(|| control.read(bar) & channel::ENABLE == 0);
        // The manuals do not specify which flow's ring shows the marker: the driver accepts any.
        let marked = |flow: &RxFlow<B>| flow.completion.occupancy().1;
        let orderly = off && (!soc.marks_rx_teardown || poll_until(|| flows.iter().any(marked)));
        let mut stop = ChannelStop {
            channel: None,
            orderly,
            free: 0,
            descriptors: flows.iter().map(|flow| flow.descriptors().1).sum(),
            undelivered: 0,
            refusals: Vec::new(),
        };
        if orderly {
            for flow in &mut flows {
                stop.undelivered += flow.drain();
                if soc.marks_rx_teardown && marked(flow) {
                    flow.completion.side.acknowledge_teardown();
                }
            }
        }
        control.write(bar, 0);
        of_channel(channel::PEER, soc.rx_channel).write(bar, 0);
        let mut note = |result: Result<(), Refused>| stop.refusals.extend(result.err());
        for flow in flows.iter().filter(|_| orderly) {
            let (free, completion) = soc.rx_rings(flow.number);
            note(self.firmware.ring_reset(free));
            if soc.family == Family::Udma {
                note(self.firmware.ring_reset(completion));
            }
        }
        note(self.firmware.psil_unpair(soc.rx_thread, 0x8000 | (soc.psil_base + soc.rx_channel)));
        stop.free = flows.iter().map(|flow| flow.descriptors().0).sum();
        let mut history = self.history();
        history.rx.extend(flows.iter().map(|flow| (flow.number, flow.counts)));
        history.stops.push(stop);
        if !orderly {
            // The engine may still write to buffers.
            std::mem::forget(flows);
        }
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }
}

/// Polls until `done` returns true; false after the timeout.
fn poll_until(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut polls = 0;
    while !done() {
        polls += 1;
        if polls > SPINS {
            if start.elapsed() > TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    true
}

/// Initialises the switch from any state: first the host port, then the address lookup
/// engine (ALE), whose table is cleared. Ports forward frames last.
///
/// Each frame that arrives at a MAC port goes to the host, with any addresses and tag, and none
/// goes from one MAC port to another: the ALE is bypassed, and MAC ports learn no addresses. In the
/// other direction frames are directed. Without the bypass, MAC-only mode still separates the
/// ports.
fn init_switch<M: Mmio>(bar: &M, config: &Config) {
    switch::CONTROL.write(bar, switch::CONTROL_ON);
    switch::STAT_PORT_EN.write(bar, (1 << (config.ports + 1)) - 1);
    switch::P0_CONTROL.write(bar, switch::RX_CHECKSUM_EN);
    switch::P0_PRI_CTL.write(bar, 0);
    switch::P0_RX_PRI_MAP.write(bar, switch::PRIORITIES);
    switch::P0_RX_MAXLEN.write(bar, config.max_len);
    switch::P0_FLOW_ID_OFFSET.write(bar, u32::from(config.soc.rx_flow));
    ale::CONTROL.write(bar, ale::ENABLE | ale::CLEAR);
    ale::CONTROL.write(bar, ale::ENABLE | ale::BYPASS);
    // Frames that no classifier matches go to the first flow.
    ale::DEFAULT_THREAD.write(bar, ale::DEFAULT_THREAD_ENABLE);
    ale::PORT_CONTROL.write(bar, ale::FORWARD);
    for port in 1..=u32::from(config.ports) {
        let control = ale::FORWARD | ale::NO_LEARN | ale::NO_SOURCE_UPDATE | ale::MAC_ONLY | ale::MAC_ONLY_COPY_ALL;
        ale::PORT_CONTROL.nth(port, 4).write(bar, control);
    }
}
