//! One MAC port as a port, and what is asked of the device as a whole.

use super::config::Config;
use super::host::{CpswError, Host, Stopped};
use super::lease::{RxLease, RxWay, SharedFlow, TxLease, TxWay};
use super::queue::{CpswRx, CpswTx};
use super::regs::switch;
use super::rx::RxCounts;
use super::tx::{MAX_PIECES, TxCounts};
use super::window::PortWindow;
use crate::batching::Batching;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use towpath_bus::Bus;
use towpath_bus::tisci::Tisci;
use towpath_packet::port::{Info, Layer, Port, PortControl, PortError, Queues, Start, State};
use towpath_packet::{Counters, Direction, Offloads, Pool};

/// Opens the device: one port for each MAC, and a handle of the whole.
///
/// # Errors
/// [`CpswError`] names what failed.
pub fn open<B: Bus>(
    bus: B,
    firmware: Arc<dyn Tisci>,
    config: Config,
) -> Result<(Vec<CpswPort<B>>, Control<B>), CpswError> {
    let host = Arc::new(Host::open(bus, firmware, config)?);
    let shared = Arc::new(Shared { host, state: Mutex::default() });
    let batching: Vec<_> = (0..config.ports).map(|_| Batching::new(config.batch)).collect();
    let port = |(i, batching): (usize, &Batching)| CpswPort {
        info: info(&shared.host, i as u8 + 1),
        shared: shared.clone(),
        number: i as u8 + 1,
        batching: batching.clone(),
    };
    let ports = batching.iter().enumerate().map(port).collect();
    Ok((ports, Control { shared, batching }))
}

/// What a frame of `max_len` bytes carries, without Ethernet's and a VLAN's header and the FCS. Up to 2 KiB a port is one of ordinary
/// Ethernet.
fn mtu(max_len: u32) -> u32 {
    let payload = max_len - 22;
    if max_len <= 2024 { payload.min(1500) } else { payload }
}

fn info<B: Bus>(host: &Host<B>, number: u8) -> Info {
    let queues = host.config.channels_per_port().clamp(1, host.config.rx_flows);
    Info::new(format!("{}.{number}", host.name()), Layer::Ethernet, mtu(host.config.max_len))
        .with_max_chunks(MAX_PIECES)
        .with_offloads(Offloads::CSUM, Offloads::NONE)
        .with_max_queues(queues.into())
}

/// A handle of the device, for as long as anybody has one.
pub struct Control<B: Bus> {
    shared: Arc<Shared<B>>,
    batching: Vec<Batching>,
}

impl<B: Bus> Control<B> {
    /// The batch size of MAC port `port`, 1 and up, to be changed while it runs.
    pub fn batching(&self, port: u8) -> Option<&Batching> {
        self.batching.get(usize::from(port).checked_sub(1)?)
    }

    /// How the channels ended that have ended.
    pub fn stops(&self) -> Vec<Stopped> {
        self.shared.host.ended().stops.clone()
    }

    /// Numbers of the transmit channels that have ended.
    pub fn ended_tx(&self) -> Vec<(u16, TxCounts)> {
        self.shared.host.ended().tx.clone()
    }

    /// Numbers of the receive flows that have ended.
    pub fn ended_rx(&self) -> Vec<(u16, RxCounts)> {
        self.shared.host.ended().rx.clone()
    }
}

impl<B: Bus> std::fmt::Debug for Control<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("config", &self.shared.host.config).finish_non_exhaustive()
    }
}

struct Shared<B: Bus> {
    host: Arc<Host<B>>,
    state: Mutex<Started<B>>,
}

/// What ports share, for as long as one of them runs.
struct Started<B: Bus> {
    flows: Vec<Weak<SharedFlow<B>>>,
    /// Where the buffers of shared flows come from.
    pool: Option<Pool>,
    channels: Vec<Weak<Mutex<TxLease<B>>>>,
}

impl<B: Bus> Default for Started<B> {
    fn default() -> Self {
        Started { flows: Vec::new(), pool: None, channels: Vec::new() }
    }
}

/// The flows of each queue of a port.
struct Receiving<B: Bus> {
    ways: Vec<Vec<RxWay<B>>>,
    /// Where buffers of shared flows come from.
    pool: Option<Pool>,
}

/// One MAC port.
pub struct CpswPort<B: Bus> {
    info: Info,
    shared: Arc<Shared<B>>,
    number: u8,
    batching: Batching,
}

impl<B: Bus> CpswPort<B> {
    /// Its number at the switch, 1 and up.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Its batch size, to be changed while it runs.
    pub fn batching(&self) -> &Batching {
        &self.batching
    }

    fn failed(&self, error: CpswError) -> PortError {
        let port = self.info.name.clone();
        match error {
            CpswError::Pool(source) => PortError::Pool { port, source },
            other => PortError::Input { port, what: other.to_string() },
        }
    }

    /// The flows of each queue.
    fn receive(&self, start: &Start, queues: u16, counters: &[Arc<Counters>]) -> Result<Receiving<B>, CpswError> {
        let host = &self.shared.host;
        let mut ways: Vec<Vec<RxWay<B>>> = (0..queues).map(|_| Vec::new()).collect();
        let lease = |flow| RxLease::new(flow, host.clone());
        if host.config.ports == 1 {
            for (i, flow) in host.rx_up(&start.pool)?.into_iter().enumerate() {
                ways[i % usize::from(queues)].push(RxWay::Own(Box::new(lease(flow))));
            }
            return Ok(Receiving { ways, pool: None });
        }
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut flows: Vec<_> = state.flows.iter().filter_map(Weak::upgrade).collect();
        if flows.is_empty() {
            let up = host.rx_up(&start.pool)?.into_iter();
            flows = up.map(|flow| Arc::new(SharedFlow::new(lease(flow), host.config.ports))).collect();
            state.flows = flows.iter().map(Arc::downgrade).collect();
            state.pool = Some(start.pool.clone());
        }
        for (i, flow) in flows.into_iter().enumerate() {
            let queue = i % usize::from(queues);
            let inbox = flow.join(self.number, host.config.rx_ring as usize, counters[queue].clone());
            ways[queue].push(RxWay::Shared { flow, inbox });
        }
        Ok(Receiving { ways, pool: state.pool.clone() })
    }

    /// The channel of each queue.
    fn transmit(&self, queues: u16) -> Result<Vec<TxWay<B>>, CpswError> {
        let host = &self.shared.host;
        let (ports, index) = (u16::from(host.config.ports), u16::from(self.number) - 1);
        if host.config.channels_per_port() > 0 {
            let own = |queue| {
                let channel = host.tx_up(index + queue * ports)?;
                Ok(TxWay::Own(Box::new(TxLease::new(channel, host.clone()))))
            };
            return (0..queues).map(own).collect();
        }
        let number = index % u16::from(host.config.tx_channels);
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.channels.resize_with(usize::from(host.config.tx_channels), Weak::new);
        let place = &mut state.channels[usize::from(number)];
        let channel = match place.upgrade() {
            Some(channel) => channel,
            None => {
                let lease = TxLease::new(host.tx_up(number)?, host.clone());
                let channel = Arc::new(Mutex::new(lease));
                *place = Arc::downgrade(&channel);
                channel
            }
        };
        Ok(vec![TxWay::Shared(channel)])
    }

    fn begin(&self, start: &Start) -> Result<Queues<CpswRx<B>, CpswTx<B>>, CpswError> {
        let host = &self.shared.host;
        let queues = start.queues;
        if let Some(region) = start.pool.region() {
            host.domain.register(region)?;
        }
        let room = start.pool.chunk().saturating_sub(start.pool.headroom());
        let longest = host.config.max_len.min(room as u32 * u32::from(host.config.rx_buffers) + 4);
        switch::P0_RX_MAXLEN.nth(u32::from(self.number), switch::STRIDE).write(&host.regions.switch, longest);
        let counters: Vec<Arc<Counters>> = (0..queues).map(|_| Arc::default()).collect();
        let Receiving { ways, pool } = self.receive(start, queues, &counters)?;
        let mut irqs = match host.config.ports {
            1 => host.rx_irqs()?.into_iter().map(Some).collect(),
            _ => Vec::new(),
        };
        let mut rx = Vec::new();
        for (queue, (ways, counters)) in ways.into_iter().zip(counters).enumerate() {
            // One descriptor is waited on: a queue of several flows is polled.
            let alone = ways.len() == 1;
            rx.push(CpswRx {
                ways,
                first: 0,
                port: self.number,
                queue: queue as u8,
                batching: self.batching.clone(),
                own_pool: pool.clone(),
                irq: irqs.get_mut(queue).and_then(Option::take).filter(|_| alone),
                counters,
            });
        }
        let state = if host.has_link(self.number) { State::Up } else { State::Down("no link".into()) };
        let mut tx = Vec::new();
        for way in self.transmit(queues)? {
            let shared = matches!(way, TxWay::Shared(_));
            tx.push(CpswTx {
                way,
                window: shared.then(|| PortWindow::new(host.regions.switch.clone(), self.number)),
                port: self.number,
                batching: self.batching.clone(),
                cache: start.pool.cache(Direction::Tx)?,
                host: host.clone(),
                state: state.clone(),
                turn: 0,
                counters: Arc::default(),
            });
        }
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

    fn start(self, start: Start) -> Result<Queues<CpswRx<B>, CpswTx<B>>, PortError> {
        self.info.queues(start.queues)?;
        self.begin(&start).map_err(|error| self.failed(error))
    }
}

impl<B: Bus> std::fmt::Debug for CpswPort<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpswPort").field("name", &self.info.name).finish_non_exhaustive()
    }
}
