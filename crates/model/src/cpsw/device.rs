//! The whole device: registers in, micro-actions one at a time.
//!
//! ```text
//!   region 0  switch                       region 2  transmit channels, 0x1000 each
//!   region 1  rings, real-time             region 3  receive channels, 0x1000 each
//!             0x1000 or 0x2000 each        region 4  rings, windows for elements, 0x1000 each
//! ```

mod act;

use super::check::{Check, Event};
use super::config::{Config, Family};
use super::ring::{Accesses, Ring};
use super::rx::RxChannel;
use super::switch::Switch;
use super::tx::TxChannel;
use super::view::View;
use crate::iommu::ModelDma;
use crate::seed::Seed;
use act::Action;

/// Rings of the ring accelerator; those of PKTDMA are fewer.
pub(crate) const RINGS: usize = 1024;
/// Transmit channels.
pub(crate) const CHANNELS: usize = 128;

/// The register regions, by the number under which the bus hands them out.
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
    /// Transmit channels that were ever set up.
    used: Vec<usize>,
    pub(crate) rx: RxChannel,
    pub(crate) rx_number: u16,
    pub(crate) switch: Switch,
    pub(crate) check: Check,
    /// Accesses to channel registers.
    pub(crate) channel_accesses: u64,
    /// Rings whose counts, or marker, do not show yet.
    lagging: Vec<usize>,
    enabled: Vec<Action>,
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
            rx: RxChannel::default(),
            rx_number: 0,
            switch: Switch::new(&config),
            check: Check::new(config.strict),
            channel_accesses: 0,
            lagging: Vec::new(),
            enabled: Vec::new(),
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

    /// Whether a channel that is enabled fetches from the ring.
    pub(crate) fn is_running(&self, ring: u16) -> bool {
        let tx = self.used.iter().any(|&c| self.tx[c].ring == ring && self.tx[c].enabled());
        tx || self.rx.enabled() && self.rx.flows.values().any(|flow| flow.free_ring == ring)
    }

    /// Whether a channel that is enabled completes to the ring.
    pub(crate) fn is_completing(&self, ring: u16) -> bool {
        let returns =
            |c: &usize| self.tx[*c].enabled() && self.tx[*c].config.is_some_and(|k| k.completion_ring == ring);
        let tx = self.used.iter().any(returns);
        tx || self.rx.enabled() && self.rx.flows.values().any(|flow| flow.completion_ring == ring)
    }

    pub(crate) fn read(&mut self, area: Area, at: usize) -> u32 {
        for _ in 0..self.config.steps_per_read {
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
                        check.note(Event::Control { channel: channel.number, rx: false, value });
                        let ring = &mut rings[usize::from(channel.ring) % RINGS];
                        channel.write_control(value, ring, check, &View::new(dma));
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
                        self.check.note(Event::Control { channel: self.rx_number, rx: true, value });
                        self.rx.write_control(value, &mut self.check, &View::new(&self.dma));
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
            (0x10, _) => ring.doorbell(value, running, &View::new(dma), check),
            (0x1010, Family::Pktdma) => ring.reverse_doorbell(value, &View::new(dma), check),
            _ => {}
        }
    }

    /// An access to a window by four bytes: half of an element.
    fn narrow(&mut self, at: usize) -> u32 {
        let at_ring = super::check::At::ring((at / 0x1000) as u16);
        self.check.broken(super::check::Rule::FifoAccess, at_ring, format!("window accessed by four bytes at {at:#x}"));
        0
    }

    /// A window, by eight bytes. Elements of eight bytes lie at its end.
    pub(crate) fn read_wide(&mut self, at: usize) -> u64 {
        let running = self.is_running((at / 0x1000) as u16);
        let Some(ring) = self.rings.get_mut(at / 0x1000) else { return u64::MAX };
        if at % 0x1000 != 0x1f8 {
            self.narrow(at);
            return 0;
        }
        ring.fifo_pop(running, &View::new(&self.dma), &mut self.check)
    }

    pub(crate) fn write_wide(&mut self, at: usize, value: u64) {
        let Some(ring) = self.rings.get_mut(at / 0x1000) else { return };
        match at % 0x1000 {
            0x3f8 => ring.fifo_push(value, true, &View::new(&self.dma), &mut self.check),
            0x1f8 => ring.fifo_push(value, false, &View::new(&self.dma), &mut self.check),
            _ => {
                self.narrow(at);
            }
        }
    }

    /// Whether an interrupt is asserted: 0 to 7 are the completions of what goes to the switch's threads, from 8 on those of flows.
    pub(crate) fn level(&self, line: u16) -> bool {
        let udma = self.config.soc.family() == Family::Udma;
        let ring = match line.checked_sub(8) {
            Some(flow) => self.rx.flows.get(&(self.switch.flow_base + flow)).map(|flow| flow.completion_ring),
            None => {
                let thread = Some(self.config.soc.tx_thread() + line);
                let channel = self.used.iter().map(|&c| &self.tx[c]).find(|c| c.paired == thread);
                let ring = |c: &TxChannel| if udma { c.config.map(|k| k.completion_ring) } else { Some(c.ring) };
                channel.and_then(ring)
            }
        };
        ring.and_then(|ring| self.rings.get(usize::from(ring))).is_some_and(Ring::level)
    }

    /// All accesses of rings.
    pub(crate) fn accesses(&self) -> Accesses {
        self.rings.iter().fold(Accesses::default(), |sum, ring| sum + ring.accesses)
    }

    /// Packets that the engine has taken and not yet given back.
    pub(crate) fn in_flight(&self) -> usize {
        self.used.iter().map(|&c| self.tx[c].in_flight()).sum::<usize>() + self.rx.in_flight()
    }
}
