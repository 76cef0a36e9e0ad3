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

use super::config::Config;
use super::descriptors::FETCH_WORDS;
use super::error::CpswError;
use super::link::PortLink;
use super::mdio::MdioBus;
use super::regs::{Regions, ale, channel, of_channel, switch};
use super::ring::CompletionRing;
use super::rx::{RxCounts, RxFlow};
use super::soc::{Family, Granted};
use super::tx::{TxChannel, TxCounts};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use std::time::Duration;
use towpath_bus::tisci::{Refused, RingConfig, RingMode, RxChannelConfig, RxFlowConfig, Tisci, TxChannelConfig};
use towpath_bus::{Bus, BusError, Coherent, Domain, Mmio};
use towpath_packet::{Batch, Cache, Direction, Pool};

/// The longest time that teardown may take.
const TIMEOUT: Duration = Duration::from_secs(1);

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

/// The ring on which elements are handed to the engine, and the one on which they complete: number
/// and count of each.
type RingPair = ((u16, u32), (u16, u32));

/// A channel or flow that is stopped when it is dropped.
pub(super) struct Live<B: Bus, T> {
    /// `None` only during teardown.
    pub(super) part: Option<T>,
    host: Arc<Host<B>>,
    stop: fn(&Host<B>, T),
}

impl<B: Bus, T> Drop for Live<B, T> {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            (self.stop)(&self.host, part);
        }
    }
}

/// What the queues of all ports share.
pub(super) struct Host<B: Bus> {
    pub(super) config: Config,
    pub(super) granted: Granted,
    pub(super) regions: Regions<B::Bar>,
    pub(super) domain: Domain<B::Dma>,
    /// The links of the MAC ports, in order.
    links: Vec<Arc<PortLink<B::Bar>>>,
    firmware: Arc<dyn Tisci>,
    pub(super) name: String,
    /// Stays open, and hands out interrupts.
    bus: Mutex<B>,
    /// Flows without an owner, until all flows are.
    retired: Mutex<Vec<RxFlow<B>>>,
    pub(super) history: Mutex<History>,
}

impl<B: Bus> Host<B> {
    pub(super) fn open(bus: B, firmware: Arc<dyn Tisci>, config: Config) -> Result<Host<B>, CpswError> {
        config.check()?;
        let granted = Granted::ask(&*firmware, &config)?;
        let regions = Regions::open(&bus, &config, &granted)?;
        let domain = Domain::new(bus.dma().clone(), config.policy)?;
        let bar = &regions.switch;
        let mdio = Arc::new(Mutex::new(MdioBus::new(bar.clone(), config.mdio_access())));
        let link = |port| Arc::new(PortLink::new(bar, port, &config, &mdio));
        let links: Vec<_> = (1..=config.ports).map(link).collect();
        init_switch(bar, &config, granted.numbers.rx_flow);
        links.iter().try_for_each(|link| link.reset(bus.name()))?;
        Ok(Host {
            links,
            config,
            granted,
            regions,
            domain,
            firmware,
            name: bus.name().to_owned(),
            bus: Mutex::new(bus),
            retired: Mutex::default(),
            history: Mutex::default(),
        })
    }

    /// The interrupts of the receive flows, in order.
    pub(super) fn rx_irqs(&self) -> Result<Vec<B::Irq>, BusError> {
        let bus = lock(&self.bus);
        Ok(bus.irqs(8 + u16::from(self.config.rx_flows))?.into_iter().skip(8).collect())
    }

    /// The link of MAC port `port`, 1 and up.
    pub(super) fn link(&self, port: u8) -> Option<&Arc<PortLink<B::Bar>>> {
        self.links.get(usize::from(port).checked_sub(1)?)
    }

    /// Configures the two rings of a channel or flow, the first of which is `submit` with `count`
    /// elements.
    fn ring_configs(
        &self,
        rings: (u16, u16),
        (submit, count, mode): (&Coherent, u32, RingMode),
        completion: &CompletionRing<B::Bar>,
    ) -> Result<(), Refused> {
        let (device, asel) = (self.config.soc.devices.rings, self.config.soc.asel);
        let config = |ring, memory: &Coherent, count, mode| {
            let ring = RingConfig::new(device, ring).address(memory.iova().get()).count(count);
            self.firmware.ring_config(&ring.mode(mode).asel(asel))
        };
        config(rings.0, submit, count, mode)?;
        let elements = completion.elements.as_ref();
        elements.map_or(Ok(()), |elements| config(rings.1, elements, completion.size, RingMode::Exposed))
    }

    /// Disables a channel after its teardown, resets `rings`, which are its own if the teardown was
    /// orderly, and unpairs its threads; returns the firmware calls that failed.
    fn disable(&self, bar: &B::Bar, channel: u16, threads: (u16, u16), rings: &[RingPair]) -> Vec<Refused> {
        of_channel(channel::CONTROL, channel).write(bar, 0);
        of_channel(channel::PEER, channel).write(bar, 0);
        let mut refusals = Vec::new();
        let mut note = |result: Result<(), Refused>| refusals.extend(result.err());
        let devices = self.config.soc.devices;
        for &(submit, completion) in rings {
            note(self.firmware.ring_reset(devices.rings, submit.0, submit.1));
            if self.config.soc.family == Family::Udma {
                note(self.firmware.ring_reset(devices.rings, completion.0, completion.1));
            }
        }
        note(self.firmware.psil_unpair(devices.navigator, threads.0, threads.1));
        refusals
    }

    /// Sets a transmit channel up and enables it.
    pub(super) fn start_tx(self: &Arc<Self>, number: u16) -> Result<Live<B, TxChannel<B>>, CpswError> {
        let (soc, rings) = (&self.config.soc, self.granted.tx_rings(number));
        let tx = TxChannel::new(number, &self.config, rings, &self.regions, &self.domain)?;
        self.ring_configs(rings, (&tx.submit.elements, self.config.tx_ring, RingMode::Exposed), &tx.completion)?;
        let channel = self.granted.tx_channel(number);
        let setup = TxChannelConfig::new(soc.devices.dma, channel).fetch_words(FETCH_WORDS);
        self.firmware.tx_channel_config(&setup.completion_ring(rings.1).asel(soc.asel))?;
        let threads = self.granted.tx_threads(number);
        self.firmware.psil_pair(soc.devices.navigator, threads.0, threads.1)?;
        of_channel(channel::PEER, channel).write(&self.regions.tx, channel::ENABLE);
        of_channel(channel::CONTROL, channel).write(&self.regions.tx, channel::ENABLE);
        Ok(Live { part: Some(tx), host: self.clone(), stop: Host::stop_tx })
    }

    /// Tears a transmit channel down and takes its packets back.
    fn stop_tx(&self, mut tx: TxChannel<B>) {
        let number = tx.number;
        let channel = self.granted.tx_channel(number);
        let bar = &self.regions.tx;
        let mut free = |batch: &mut Batch| drop(std::mem::take(batch));
        tx.flush();
        of_channel(channel::CONTROL, channel).write(bar, channel::ENABLE | channel::TEARDOWN);
        let orderly = bar.poll(TIMEOUT, || {
            tx.collect(&mut free);
            tx.torn_down
        });
        let undelivered = if orderly { tx.drain(&mut free) } else { 0 };
        let (submit, completion) = self.granted.tx_rings(number);
        let rings = [((submit, self.config.tx_ring), (completion, tx.completion.size))];
        let rings = if orderly { &rings[..] } else { &[] };
        let refusals = self.disable(bar, channel, self.granted.tx_threads(number), rings);
        let (free, descriptors) = tx.descs.table.numbers();
        let mut history = lock(&self.history);
        history.tx.push((number, tx.counts));
        let channel = Some(number);
        history.stops.push(ChannelStop { channel, orderly, free, descriptors, undelivered, refusals });
        if !orderly {
            // The engine may still read descriptors and buffers.
            std::mem::forget(tx);
        }
    }

    /// Sets all receive flows up, fills them from `pool`, and enables the receive channel.
    pub(super) fn start_rx(self: &Arc<Self>, pool: &Pool) -> Result<Vec<Live<B, RxFlow<B>>>, CpswError> {
        let (soc, numbers) = (&self.config.soc, self.granted.numbers);
        let mode = if self.regions.fifos.is_some() { RingMode::Message } else { RingMode::Exposed };
        let flows = (soc.family == Family::Udma).then_some((numbers.rx_flow, u16::from(self.config.rx_flows)));
        let setup = RxChannelConfig::new(soc.devices.dma, numbers.rx_channel).fetch_words(FETCH_WORDS);
        self.firmware.rx_channel_config(&setup.flows(flows).asel(soc.asel))?;
        let mut flows = Vec::new();
        for number in 0..u16::from(self.config.rx_flows) {
            let cache: Cache = pool.cache(Direction::Rx)?;
            let rings = self.granted.rx_rings(number);
            let flow = RxFlow::new(number, &self.config, rings, &self.regions, &self.domain, cache)?;
            self.ring_configs(rings, (flow.free.elements(), self.config.rx_ring, mode), &flow.completion)?;
            let setup = RxFlowConfig::new(soc.devices.dma, numbers.rx_flow + number, rings.1, rings.0);
            self.firmware.rx_flow_config(&setup.einfo(true).psinfo(true).source_tag(true))?;
            flows.push(flow);
        }
        let threads = self.granted.rx_threads();
        self.firmware.psil_pair(soc.devices.navigator, threads.0, threads.1)?;
        for flow in &mut flows {
            flow.refill(1);
        }
        of_channel(channel::CONTROL, numbers.rx_channel).write(&self.regions.rx, channel::ENABLE);
        of_channel(channel::PEER, numbers.rx_channel).write(&self.regions.rx, channel::ENABLE);
        let live = |flow| Live { part: Some(flow), host: self.clone(), stop: Host::retire };
        Ok(flows.into_iter().map(live).collect())
    }

    /// A flow has no owner any more. With the last one, the receive channel is torn down.
    fn retire(&self, flow: RxFlow<B>) {
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
        let (soc, rx_channel) = (&self.config.soc, self.granted.numbers.rx_channel);
        let bar = &self.regions.rx;
        let control = of_channel(channel::CONTROL, rx_channel);
        of_channel(channel::PEER, rx_channel).write(bar, channel::ENABLE | channel::TEARDOWN);
        let off = bar.poll(TIMEOUT, || control.read(bar) & channel::ENABLE == 0);
        // The manuals do not specify which flow's ring shows the marker: the driver accepts any.
        let marked = |flow: &RxFlow<B>| flow.completion.occupancy().1;
        let orderly = off && (!soc.marks_rx_teardown || bar.poll(TIMEOUT, || flows.iter().any(marked)));
        let mut undelivered = 0;
        if orderly {
            for flow in &mut flows {
                undelivered += flow.drain();
                if soc.marks_rx_teardown && marked(flow) {
                    flow.completion.side.acknowledge_teardown();
                }
            }
        }
        let sized = |flow: &RxFlow<B>| {
            let (free, completion) = self.granted.rx_rings(flow.number);
            ((free, self.config.rx_ring), (completion, flow.completion.size))
        };
        let rings: Vec<RingPair> = if orderly { flows.iter().map(sized).collect() } else { Vec::new() };
        let refusals = self.disable(bar, rx_channel, self.granted.rx_threads(), &rings);
        let numbers = flows.iter().map(|flow| flow.buffers.table.numbers());
        let (free, descriptors) = numbers.fold((0, 0), |(free, all), (f, a)| (free + f, all + a));
        let mut history = lock(&self.history);
        history.rx.extend(flows.iter().map(|flow| (flow.number, flow.counts)));
        history.stops.push(ChannelStop { channel: None, orderly, free, descriptors, undelivered, refusals });
        if !orderly {
            // The engine may still write to buffers.
            std::mem::forget(flows);
        }
    }
}

/// Initialises the switch from any state: first the host port, then the address lookup
/// engine (ALE), whose table is cleared. Values are those of Linux (`am65-cpsw-nuss.c`:
/// `am65_cpsw_nuss_common_open`, `am65_cpsw_nuss_set_p0_ptype`): channels contend by turns, and all
/// frames have one priority, since the FIFOs of the MACs have fixed priorities. MAC ports forward
/// frames only while their link is up.
///
/// Each frame that arrives at a MAC port goes to the host, with any addresses and tag, and none
/// goes from one MAC port to another: the ALE is bypassed, and MAC ports learn no addresses. In the
/// other direction frames are directed. Without the bypass, MAC-only mode still separates the
/// ports.
fn init_switch<M: Mmio>(bar: &M, config: &Config, rx_flow: u16) {
    switch::CONTROL.write(bar, switch::CONTROL_ON);
    switch::STAT_PORT_EN.write(bar, (1 << (config.ports + 1)) - 1);
    switch::PTYPE.write(bar, 0);
    switch::P0_CONTROL.write(bar, switch::RX_CHECKSUM_EN | switch::RX_REMAP_VLAN);
    switch::VLAN.write(bar, 0);
    switch::P0_PRI_CTL.write(bar, switch::ROUND_ROBIN);
    switch::P0_RX_PRI_MAP.write(bar, 0);
    switch::P0_RX_MAXLEN.write(bar, config.max_len);
    switch::P0_FLOW_ID_OFFSET.write(bar, u32::from(rx_flow));
    ale::CONTROL.write(bar, ale::ENABLE | ale::CLEAR);
    ale::CONTROL.write(bar, ale::ENABLE | ale::BYPASS);
    // Frames that no classifier matches go to the first flow.
    ale::DEFAULT_THREAD.write(bar, ale::DEFAULT_THREAD_ENABLE);
    ale::PORT_CONTROL.write(bar, ale::FORWARD);
}
