//! The MAC ports of a device, and the handle of the whole.

use super::config::{Config, ConfigError};
use super::error::CpswError;
use super::host::{ChannelStop, Host};
use super::link::StartedPort;
use super::losses::RxLosses;
use super::rx::{CpswRx, FlowRef, RxCounts, SharedFlow};
use super::tx::{ChannelRef, CpswTx, LiveChannel, MAX_DESCS, TxCounts};
use crate::batching::Batching;
use crate::common::link::LinkStatus;
use crate::sync::{Mutex, lock};
use std::sync::{Arc, Weak};
use towpath_bus::Bus;
use towpath_bus::tisci::Tisci;
use towpath_packet::port::{Info, Layer, Needs, Port, PortControl, PortError, Queues, Spacing, Start, TxQueue};
use towpath_packet::{Counters, Direction, Offloads, Pool};

/// Opens the device; returns one port for each MAC, and a handle of the whole.
///
/// # Errors
/// [`CpswError`] names what failed.
pub fn open<B: Bus>(
    bus: B,
    firmware: Arc<dyn Tisci>,
    config: Config,
) -> Result<(Vec<CpswPort<B>>, Control<B>), CpswError> {
    let host = Arc::new(Host::open(bus, firmware, config)?);
    let device = Arc::new(Device {
        host,
        shared: Mutex::new(SharedQueues { flows: Vec::new(), pool: None, channels: Vec::new() }),
    });
    let batching: Vec<_> = (0..config.ports).map(|_| Batching::new(config.batch)).collect();
    let port = |(i, batching): (usize, &Batching)| CpswPort {
        info: info(&device.host, i as u8 + 1),
        device: device.clone(),
        number: i as u8 + 1,
        batching: batching.clone(),
        needs: Needs::none(),
    };
    let ports = batching.iter().enumerate().map(port).collect();
    Ok((ports, Control { device, batching }))
}

/// The MTU for frames of `max_len` bytes: without Ethernet and VLAN header and the FCS. Without
/// jumbo frames it is at most Ethernet's.
fn mtu(max_len: u32) -> u32 {
    let payload = max_len - 22;
    if max_len <= 2024 { payload.min(1500) } else { payload }
}

fn info<B: Bus>(host: &Host<B>, number: u8) -> Info {
    let queues = host.config.channels_per_port().clamp(1, host.config.rx_flows);
    Info::new(format!("{}.{number}", host.name), Layer::Ethernet, mtu(host.config.max_len))
        .with_max_chunks(MAX_DESCS)
        .with_offloads(Offloads::CSUM, Offloads::NONE)
        .with_max_queues(queues.into())
        .with_spacing(Spacing::InPages)
}

/// A handle of the device. It keeps the device open.
pub struct Control<B: Bus> {
    device: Arc<Device<B>>,
    batching: Vec<Batching>,
}

impl<B: Bus> Control<B> {
    /// The batch size of MAC port `port`, 1 and up. It can be changed while the port runs.
    pub fn batching(&self, port: u8) -> Option<&Batching> {
        self.batching.get(usize::from(port).checked_sub(1)?)
    }

    /// The state of the link of MAC port `port`, 1 and up, when a queue of it looked last.
    pub fn link(&self, port: u8) -> Option<LinkStatus> {
        self.device.host.link(port).map(|link| link.status().get())
    }

    /// Reports of the channels that have stopped.
    pub fn stops(&self) -> Vec<ChannelStop> {
        lock(&self.device.host.history).stops.clone()
    }

    /// Counters of the transmit channels that have stopped.
    pub fn stopped_tx(&self) -> Vec<(u16, TxCounts)> {
        lock(&self.device.host.history).tx.clone()
    }

    /// Counters of the receive flows that have stopped.
    pub fn stopped_rx(&self) -> Vec<(u16, RxCounts)> {
        lock(&self.device.host.history).rx.clone()
    }
}

impl<B: Bus> std::fmt::Debug for Control<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("config", &self.device.host.config).finish_non_exhaustive()
    }
}

struct Device<B: Bus> {
    host: Arc<Host<B>>,
    shared: Mutex<SharedQueues<B>>,
}

/// Flows and channels that ports share, as long as one of them runs.
struct SharedQueues<B: Bus> {
    flows: Vec<Weak<SharedFlow<B>>>,
    /// The pool of the buffers of shared flows.
    pool: Option<Pool>,
    channels: Vec<Weak<Mutex<LiveChannel<B>>>>,
}

/// The flows of each queue of a port, and the pool of the buffers of shared flows.
type QueueFlows<B> = (Vec<Vec<FlowRef<B>>>, Option<Pool>);

/// One MAC port.
pub struct CpswPort<B: Bus> {
    info: Info,
    device: Arc<Device<B>>,
    number: u8,
    batching: Batching,
    needs: Needs,
}

impl<B: Bus> CpswPort<B> {
    /// The number of the MAC port, 1 and up.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// With what its bus needs of the kernel while the port runs.
    #[must_use]
    pub fn with_needs(self, needs: Needs) -> CpswPort<B> {
        CpswPort { needs, ..self }
    }

    /// The batch size. It can be changed while the port runs.
    pub fn batching(&self) -> &Batching {
        &self.batching
    }

    fn error(&self, error: CpswError) -> PortError {
        let port = self.info.name.clone();
        match error {
            CpswError::Pool(source) => PortError::Pool { port, source },
            other => PortError::Input { port, what: other.to_string() },
        }
    }

    /// Starts the receive flows, unless another port has; returns the flows of each queue.
    fn start_rx(&self, start: &Start, queues: u16, counters: &[Arc<Counters>]) -> Result<QueueFlows<B>, CpswError> {
        let host = &self.device.host;
        let mut refs: Vec<Vec<FlowRef<B>>> = (0..queues).map(|_| Vec::new()).collect();
        if host.config.ports == 1 {
            for (i, flow) in host.start_rx(&start.pool)?.into_iter().enumerate() {
                refs[i % usize::from(queues)].push(FlowRef::Own(Box::new(flow)));
            }
            return Ok((refs, None));
        }
        let mut shared = lock(&self.device.shared);
        let mut flows: Vec<_> = shared.flows.iter().filter_map(Weak::upgrade).collect();
        if flows.is_empty() {
            let started = host.start_rx(&start.pool)?.into_iter();
            flows = started.map(|flow| Arc::new(SharedFlow::new(flow, host.config.ports))).collect();
            shared.flows = flows.iter().map(Arc::downgrade).collect();
            shared.pool = Some(start.pool.clone());
        }
        for (i, flow) in flows.into_iter().enumerate() {
            let queue = i % usize::from(queues);
            let inbox = flow.attach(self.number, host.config.rx_ring as usize, counters[queue].clone());
            refs[queue].push(FlowRef::Shared { flow, inbox });
        }
        Ok((refs, shared.pool.clone()))
    }

    /// Starts the transmit channels, unless another port has; returns the channel of each queue.
    fn start_tx(&self, queues: u16) -> Result<Vec<ChannelRef<B>>, CpswError> {
        let host = &self.device.host;
        let (ports, index) = (u16::from(host.config.ports), u16::from(self.number) - 1);
        if host.config.channels_per_port() > 0 {
            let own = |queue| Ok(ChannelRef::Own(Box::new(host.start_tx(index + queue * ports)?)));
            return (0..queues).map(own).collect();
        }
        let number = index % u16::from(host.config.tx_channels);
        let mut shared = lock(&self.device.shared);
        shared.channels.resize_with(usize::from(host.config.tx_channels), Weak::new);
        let weak = &mut shared.channels[usize::from(number)];
        let channel = match weak.upgrade() {
            Some(channel) => channel,
            None => {
                let channel = Arc::new(Mutex::new(host.start_tx(number)?));
                *weak = Arc::downgrade(&channel);
                channel
            }
        };
        Ok(vec![ChannelRef::Shared(channel)])
    }

    fn start_queues(&self, start: &Start) -> Result<Queues<CpswRx<B>, CpswTx<B>>, CpswError> {
        let host = &self.device.host;
        let queues = start.queues;
        if let Some(region) = start.pool.region() {
            // SAFETY: this driver posts only buffers in flight, and completes those that the device
            // wrote back, or after it was stopped.
            unsafe { host.domain.register(region) }?;
        }
        let room = start.pool.chunk().saturating_sub(start.pool.headroom());
        let max_len = host.config.max_len.min(room as u32 * u32::from(host.config.rx_buffers) + 4);
        let counters: Vec<Arc<Counters>> = (0..queues).map(|_| Arc::default()).collect();
        let (refs, pool) = self.start_rx(start, queues, &counters)?;
        let mut irqs = match host.config.ports {
            1 => host.rx_irqs()?.into_iter().map(Some).collect(),
            _ => Vec::new(),
        };
        let bar = &host.regions.switch;
        let mut losses = Some(RxLosses::new(bar.clone(), self.number, counters.clone()));
        let flows_in_all: usize = refs.iter().map(Vec::len).sum();
        let mut rx = Vec::new();
        for (queue, (flows, counters)) in refs.into_iter().zip(counters).enumerate() {
            // A queue has one descriptor to wait on: a queue of several flows is polled.
            let alone = flows.len() == 1;
            rx.push(CpswRx {
                losses: losses.take(),
                elsewhere: (flows_in_all - flows.len()) * host.config.rx_ring as usize,
                flows,
                first: 0,
                port: self.number,
                queue: queue as u8,
                batching: self.batching.clone(),
                own_pool: pool.clone(),
                irq: irqs.get_mut(queue).and_then(Option::take).filter(|_| alone),
                counters,
                _started: None,
            });
        }
        let mut channels = Vec::new();
        for channel in self.start_tx(queues)? {
            channels.push((channel, start.pool.cache(Direction::Tx)?));
        }
        // Frames pass last.
        let link = host.link(self.number).ok_or_else(|| ConfigError {
            option: "port",
            value: self.number.to_string(),
            rule: "must be one of the device's ports".to_owned(),
        })?;
        let started = Arc::new(StartedPort::start(link, &host.name, max_len)?);
        let tx = channels.into_iter().map(|(channel, cache)| {
            CpswTx::new(host, self.number, channel, self.batching.clone(), cache, started.clone())
        });
        let mut tx: Vec<_> = tx.collect();
        let counters = tx.iter().map(|tx| tx.counters().clone()).collect();
        if let Some(first) = tx.first_mut() {
            first.watch(counters);
        }
        rx.iter_mut().for_each(|rx| rx._started = Some(started.clone()));
        Ok(Queues { rx, tx })
    }
}

impl<B: Bus> Port for CpswPort<B> {
    type Rx = CpswRx<B>;
    type Tx = CpswTx<B>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(self.batching.clone()))
    }

    fn needs(&self) -> Needs {
        self.needs.clone()
    }

    fn start(self, start: Start) -> Result<Queues<CpswRx<B>, CpswTx<B>>, PortError> {
        self.info.queues(start.queues)?;
        self.start_queues(&start).map_err(|error| self.error(error))
    }
}

impl<B: Bus> std::fmt::Debug for CpswPort<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpswPort").field("name", &self.info.name).finish_non_exhaustive()
    }
}
