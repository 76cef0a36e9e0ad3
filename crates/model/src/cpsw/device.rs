//! The whole device: register access here, its actions in `actions`.
//!
//! ```text
//!   region 0  switch                       region 2  transmit channels, 0x1000 each
//!   region 1  rings, real-time             region 3  receive channels, 0x1000 each
//!             0x1000 or 0x2000 each        region 4  rings, FIFO windows, 0x1000 each
//! ```

mod actions;

use super::accesses::Accesses;
use super::check::{Checker, Event};
use super::config::Config;
use super::dma_view::DmaView;
use super::ring::Ring;
use super::rx::RxChannel;
use super::soc::Family;
use super::switch::Switch;
use super::tx::TxChannel;
use crate::iommu::ModelDma;
use crate::seed::Seed;
use actions::Action;

/// Number of rings of the ring accelerator; PKTDMA has fewer.
pub(crate) const RINGS: usize = 1024;
/// Number of transmit channels.
pub(crate) const CHANNELS: usize = 128;

/// The register regions, in the order of their numbers on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Area {
    Switch,
    Rings,
    TxChannels,
    RxChannels,
    Fifos,
}

impl Area {
    pub(crate) const ALL: [Area; 5] = [Area::Switch, Area::Rings, Area::TxChannels, Area::RxChannels, Area::Fifos];

    pub(crate) fn len(self, config: &Config) -> usize {
        match self {
            Area::Switch => 0x4_0000,
            Area::Rings => RINGS * config.soc.ring_stride(),
            Area::TxChannels => CHANNELS * 0x1000,
            Area::RxChannels => CHANNELS * 0x1000,
            Area::Fifos => RINGS * 0x1000,
        }
    }
}

pub(crate) struct Device {
    pub(crate) config: Config,
    pub(crate) dma: ModelDma,
    pub(crate) rings: Vec<Ring>,
    pub(crate) tx: Vec<TxChannel>,
    /// Transmit channels that were ever configured.
    used: Vec<usize>,
    pub(crate) rx: RxChannel,
    pub(crate) rx_number: u16,
    pub(crate) switch: Switch,
    pub(crate) check: Checker,
    /// Accesses to channel registers.
    pub(crate) channel_accesses: u64,
    /// Completions of transmit channels that the engine pushes twice.
    pub(crate) repeated: u32,
    /// Rings with completions or a marker that do not show yet.
    lagging: Vec<usize>,
    /// Scratch space: the possible actions.
    actions: Vec<Action>,
    seed: Seed,
    pub(crate) steps: u64,
}

impl Device {
    pub(crate) fn new(config: Config, dma: ModelDma) -> Device {
        let two_sided = config.soc.family() == Family::Pktdma;
        Device {
            rings: (0..RINGS as u16).map(|n| Ring::new(n, two_sided)).collect(),
            tx: (0..CHANNELS as u16).map(|n| TxChannel::new(n, config.soc.tx_ring(n), config.prefetch)).collect(),
            used: Vec::new(),
            repeated: 0,
            rx: RxChannel::default(),
            rx_number: 0,
            switch: Switch::new(&config),
            check: Checker::new(config.strict),
            channel_accesses: 0,
            lagging: Vec::new(),
            actions: Vec::new(),
            seed: Seed::new(config.seed),
            steps: 0,
            config,
            dma,
        }
    }

    pub(crate) fn use_channel(&mut self, channel: usize) {
        if !self.used.contains(&channel) {
            self.used.push(channel);
        }
    }

    /// Whether an enabled channel fetches from the ring.
    pub(crate) fn is_running(&self, ring: u16) -> bool {
        let tx = self.used.iter().any(|&c| self.tx[c].ring == ring && self.tx[c].enabled());
        tx || self.rx.enabled() && self.rx.flows.values().any(|flow| flow.free_ring == ring)
    }

    /// Whether an enabled channel completes to the ring.
    pub(crate) fn is_completing(&self, ring: u16) -> bool {
        let returns =
            |c: &usize| self.tx[*c].enabled() && self.tx[*c].config.is_some_and(|k| k.completion_ring == ring);
        let tx = self.used.iter().any(returns);
        tx || self.rx.enabled() && self.rx.flows.values().any(|flow| flow.completion_ring == ring)
    }

    pub(crate) fn read(&mut self, area: Area, at: usize) -> u32 {
        // A transaction on the management bus takes as many reads as the clock says: with steps for
        // them, the clock would decide the interleaving.
        let steps = if area == Area::Switch && (0xf00..0x1000).contains(&at) { 0 } else { self.config.steps_per_read };
        for _ in 0..steps {
            self.random_step();
        }
        match area {
            Area::Switch => self.switch.read(at),
            Area::Rings => self.read_ring(at),
            Area::TxChannels => {
                self.channel_accesses += 1;
                self.tx.get(at / 0x1000).map_or(u32::MAX, |c| match at % 0x1000 {
                    0 => c.control,
                    0x220 => c.peer,
                    0x400 => c.count,
                    0x408 | 0x410 => c.bytes,
                    _ => 0,
                })
            }
            Area::RxChannels => {
                self.channel_accesses += 1;
                match at % 0x1000 {
                    _ if at / 0x1000 != usize::from(self.rx_number) => 0,
                    0 => self.rx.control,
                    0x220 => self.rx.peer,
                    0x400 => self.rx.count,
                    0x408 | 0x410 => self.rx.bytes,
                    _ => 0,
                }
            }
            Area::Fifos => self.narrow(at),
        }
    }

    fn read_ring(&mut self, at: usize) -> u32 {
        let stride = self.config.soc.ring_stride();
        let Some(ring) = self.rings.get_mut(at / stride) else { return u32::MAX };
        match (at % stride, self.config.soc.family()) {
            (0x18, _) => ring.read_occupancy(),
            (0x1018, Family::Pktdma) => ring.read_reverse(),
            (0x1c | 0x24, Family::Udma) => ring.indices().1,
            (0x20, Family::Udma) => ring.available(),
            _ => 0,
        }
    }

    pub(crate) fn write(&mut self, area: Area, at: usize, value: u32) {
        match area {
            Area::Switch => self.switch.write(at, value),
            Area::Rings => self.write_ring(at, value),
            Area::TxChannels => {
                self.channel_accesses += 1;
                let Device { tx, rings, check, dma, .. } = self;
                let Some(channel) = tx.get_mut(at / 0x1000) else { return };
                match at % 0x1000 {
                    0 => {
                        check.record(Event::Control { channel: channel.number, rx: false, value });
                        let ring = &mut rings[usize::from(channel.ring) % RINGS];
                        channel.write_control(value, ring, check, &DmaView::new(dma));
                    }
                    0x220 => channel.peer = value,
                    0x400 => channel.count = channel.count.wrapping_sub(value),
                    0x408 | 0x410 => channel.bytes = channel.bytes.wrapping_sub(value),
                    _ => {}
                }
            }
            Area::RxChannels => {
                self.channel_accesses += 1;
                if at / 0x1000 != usize::from(self.rx_number) {
                    return;
                }
                match at % 0x1000 {
                    0 => {
                        self.check.record(Event::Control { channel: self.rx_number, rx: true, value });
                        self.rx.write_control(value, &mut self.check, &DmaView::new(&self.dma));
                    }
                    0x220 => self.rx.peer = value,
                    0x400 => self.rx.count = self.rx.count.wrapping_sub(value),
                    0x408 | 0x410 => self.rx.bytes = self.rx.bytes.wrapping_sub(value),
                    _ => {}
                }
            }
            Area::Fifos => {
                self.narrow(at);
            }
        }
    }

    fn write_ring(&mut self, at: usize, value: u32) {
        let stride = self.config.soc.ring_stride();
        let number = at / stride;
        let running = self.is_running(number as u16);
        let Device { rings, check, dma, config, .. } = self;
        let Some(ring) = rings.get_mut(number) else { return };
        match (at % stride, config.soc.family()) {
            (0x10, _) => ring.doorbell(value, running, &DmaView::new(dma), check),
            (0x1010, Family::Pktdma) => ring.reverse_doorbell(value, &DmaView::new(dma), check),
            _ => {}
        }
    }

    /// Reports an access of four bytes to a FIFO window: half of an element.
    fn narrow(&mut self, at: usize) -> u32 {
        let at_ring = super::check::At::ring((at / 0x1000) as u16);
        self.check.report(super::check::Rule::FifoAccess, at_ring, format!("window accessed by four bytes at {at:#x}"));
        0
    }

    /// Reads eight bytes of a FIFO window. Elements of eight bytes lie at its end.
    pub(crate) fn read_wide(&mut self, at: usize) -> u64 {
        let running = self.is_running((at / 0x1000) as u16);
        let Some(ring) = self.rings.get_mut(at / 0x1000) else { return u64::MAX };
        if at % 0x1000 != 0x1f8 {
            self.narrow(at);
            return 0;
        }
        ring.fifo_pop(running, &DmaView::new(&self.dma), &mut self.check)
    }

    pub(crate) fn write_wide(&mut self, at: usize, value: u64) {
        let Some(ring) = self.rings.get_mut(at / 0x1000) else { return };
        match at % 0x1000 {
            0x3f8 => ring.fifo_push(value, true, &DmaView::new(&self.dma), &mut self.check),
            0x1f8 => ring.fifo_push(value, false, &DmaView::new(&self.dma), &mut self.check),
            _ => {
                self.narrow(at);
            }
        }
    }

    /// Whether an interrupt is asserted: 0 to 7 are the completions of the channels, in the order
    /// of the switch's threads; those of the flows follow from 8 on.
    pub(crate) fn level(&self, line: u16) -> bool {
        let udma = self.config.soc.family() == Family::Udma;
        let ring = match line.checked_sub(8) {
            Some(flow) => self.rx.flows.get(&(self.switch.flow_base + flow)).map(|flow| flow.completion_ring),
            None => {
                let thread = Some(self.config.soc.numbers().tx_thread + line);
                let channel = self.used.iter().map(|&c| &self.tx[c]).find(|c| c.paired == thread);
                let ring = |c: &TxChannel| if udma { c.config.map(|k| k.completion_ring) } else { Some(c.ring) };
                channel.and_then(ring)
            }
        };
        ring.and_then(|ring| self.rings.get(usize::from(ring))).is_some_and(Ring::level)
    }

    /// Register accesses to all rings.
    pub(crate) fn accesses(&self) -> Accesses {
        self.rings.iter().fold(Accesses::default(), |sum, ring| sum + ring.accesses)
    }

    /// Packets that the engine has fetched and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.used.iter().map(|&c| self.tx[c].in_flight()).sum::<usize>() + self.rx.in_flight()
    }
}
