//! The switch: one host port, and up to eight MAC ports with a wire each.
//!
//! ```text
//!   transmit channels ──► host port ──(destination tag: port 1…8)──► MAC port: queue ──► Wire
//!   receive channel   ◄── queue ◄──(source tag, flow by user priority)── MAC port ◄───── Wire
//! ```
//!
//! Channels contend for the host port: by turns, or by fixed priority, the highest thread first. A
//! thread's frames have the priority of RX_PRI_MAP, which TX_PRI_MAP of a MAC port maps to one of
//! its eight FIFOs. The highest FIFO with a frame is sent first.
//!
//! Ports drain independently. A port that is stalled, or whose wire is busy, blocks a channel whose
//! next frame is for it, and no other channel. The address lookup engine decides the destination of
//! frames without a destination tag and of frames that arrive at a MAC port.

use super::ale::{Ale, Ports};
use super::config::Config;
use super::mac_port::{MacPort, PRIORITIES, PhyBus, mapped};
use super::mdio::Controller;
use super::{Corruption, checksum};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Register offsets, from the base of the switch.
mod reg {
    /// In-band status of RGMII, one word per MAC port.
    pub(super) const RGMII_STATUS: usize = 0x30;
    pub(super) const CONTROL: usize = 0x2_0004;
    pub(super) const P0_CONTROL: usize = 0x2_1004;
    pub(super) const P0_FLOW_ID_OFFSET: usize = 0x2_1008;
    pub(super) const P0_PRI_CTL: usize = 0x2_101c;
    pub(super) const P0_RX_PRI_MAP: usize = 0x2_1020;
    pub(super) const P0_RX_MAXLEN: usize = 0x2_1024;
    /// Of a MAC port, in its block of 0x1000 bytes.
    pub(super) const TX_PRI_MAP: usize = 0x18;
    pub(super) const RX_MAXLEN: usize = 0x24;
    pub(super) const PORTS: std::ops::Range<usize> = 0x2_2000..0x2_a000;
    pub(super) const MDIO: std::ops::Range<usize> = 0xf00..0x1000;
    /// The address lookup engine.
    pub(super) const ALE: std::ops::Range<usize> = 0x3_e000..0x3_e064;
    /// Statistics, 0x200 bytes per port.
    pub(super) const STATISTICS: std::ops::Range<usize> = 0x3_a000..0x3_b200;
}

const P0_ENABLE: u32 = 1 << 2;
const P0_RX_PAD: u32 = 1 << 14;
const RX_CHECKSUM_EN: u32 = 1;
/// PRI_CTL: channels contend by turns.
const ROUND_ROBIN: u32 = 1 << 8;
/// Shortest frame, without FCS.
const MIN_FRAME: usize = 60;
/// Bytes of the FCS, which counts in length limits; frames of the model have none.
const FCS: usize = 4;

/// A frame on its way to the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct RxFrame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) port: u8,
    pub(crate) priority: u8,
    /// Error code; 0 is none.
    pub(crate) error: u8,
    /// Nanoseconds, for PS words 0 and 1.
    pub(crate) timestamp: u64,
    pub(crate) corruption: Corruption,
}

pub(crate) struct Switch {
    registers: std::collections::HashMap<usize, u32>,
    control: u32,
    p0_control: u32,
    pri_ctl: u32,
    rx_pri_map: u32,
    /// Time by which the device's clock is ahead of the system's.
    pub(super) ahead: Duration,
    pub(super) mdio: Controller,
    addresses: [u8; 8],
    /// PHYs send the state of their link in the gaps between frames.
    in_band: bool,
    ale: Ale,
    pub(super) flow_base: u16,
    max_len: u32,
    pub(super) ports: Vec<MacPort>,
    depth: usize,
    host_depth: usize,
    pub(super) to_host: VecDeque<RxFrame>,
    spare: Vec<Vec<u8>>,
    /// Frames for the host that found its port disabled or full, or no free descriptor.
    pub(super) host_dropped: u64,
}

impl Switch {
    pub(crate) fn new(config: &Config) -> Switch {
        let now = Instant::now();
        Switch {
            registers: std::collections::HashMap::new(),
            control: 0,
            p0_control: 0,
            pri_ctl: 0,
            rx_pri_map: PRIORITIES,
            ahead: Duration::ZERO,
            mdio: Controller::default(),
            addresses: config.phy_addresses,
            in_band: config.in_band_status,
            ale: Ale::default(),
            flow_base: 0,
            max_len: 1518,
            ports: (0..config.ports.clamp(1, 8)).map(|_| MacPort::new(config, now)).collect(),
            depth: config.port_depth.max(1),
            host_depth: config.host_depth.max(1),
            to_host: VecDeque::new(),
            spare: Vec::new(),
            host_dropped: 0,
        }
    }

    /// The time by the device's clock.
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    /// Whether channels contend by fixed priority.
    pub(crate) fn is_strict(&self) -> bool {
        self.pri_ctl & ROUND_ROBIN == 0
    }

    /// The MAC port of a register, and the offset in its block.
    fn block(&mut self, at: usize) -> Option<(&mut MacPort, usize)> {
        let offset = reg::PORTS.contains(&at).then(|| at - reg::PORTS.start)?;
        self.ports.get_mut(offset / 0x1000).map(|port| (port, offset % 0x1000))
    }

    pub(crate) fn read(&mut self, at: usize) -> u32 {
        if let Some((port, at)) = self.block(at) {
            let known = match at {
                reg::TX_PRI_MAP => Some(port.tx_pri_map),
                reg::RX_MAXLEN => Some(port.max_len),
                _ => port.mac.read(at),
            };
            if let Some(known) = known {
                return known;
            }
        }
        let (now, in_band) = (self.now(), self.in_band);
        match at {
            reg::P0_PRI_CTL => self.pri_ctl,
            reg::P0_RX_PRI_MAP => self.rx_pri_map,
            _ if reg::MDIO.contains(&at) => self.mdio.read(at - reg::MDIO.start),
            reg::CONTROL => self.control,
            reg::P0_CONTROL => self.p0_control,
            reg::P0_FLOW_ID_OFFSET => u32::from(self.flow_base),
            reg::P0_RX_MAXLEN => self.max_len,
            _ if reg::ALE.contains(&at) => self.ale.read(at - reg::ALE.start).unwrap_or(0),
            _ if reg::STATISTICS.contains(&at) => self.statistic(at - reg::STATISTICS.start),
            _ => match self.ports.get_mut(at.wrapping_sub(reg::RGMII_STATUS) / 4) {
                Some(port) => match port.link(now).filter(|_| in_band) {
                    // Link, speed, full duplex.
                    Some(link) => {
                        1 | u32::from(link.full_duplex) << 3
                            | match link.speed {
                                1000 => 2 << 1,
                                100 => 1 << 1,
                                _ => 0,
                            }
                    }
                    None => 0,
                },
                None => self.registers.get(&at).copied().unwrap_or(0),
            },
        }
    }

    /// A counter of a MAC port; the model has those of good frames, and of the lookup's drops.
    fn statistic(&mut self, at: usize) -> u32 {
        let stats = self.port((at / 0x200) as u8).map(|port| port.stats).unwrap_or_default();
        match at % 0x200 {
            0x00 => stats.received as u32,
            0x28 => stats.ale_dropped as u32,
            0x34 => stats.sent as u32,
            _ => 0,
        }
    }

    pub(crate) fn write(&mut self, at: usize, value: u32) {
        if let Some((port, at)) = self.block(at) {
            match at {
                reg::TX_PRI_MAP => return port.tx_pri_map = value,
                reg::RX_MAXLEN => return port.max_len = value & 0x3fff,
                _ if port.mac.write(at, value) => return,
                _ => {}
            }
        }
        match at {
            reg::P0_PRI_CTL => self.pri_ctl = value,
            reg::P0_RX_PRI_MAP => self.rx_pri_map = value,
            _ if reg::MDIO.contains(&at) => {
                let now = self.now();
                let mut phys = PhyBus { ports: &mut self.ports, addresses: self.addresses, now };
                self.mdio.write(at - reg::MDIO.start, value, &mut phys, now);
            }
            reg::CONTROL => self.control = value,
            reg::P0_CONTROL => self.p0_control = value,
            reg::P0_FLOW_ID_OFFSET => self.flow_base = value as u16,
            reg::P0_RX_MAXLEN => self.max_len = value & 0x3fff,
            _ if reg::ALE.contains(&at) => self.ale.write(at - reg::ALE.start, value),
            _ => drop(self.registers.insert(at, value)),
        }
    }

    /// MAC port `number`, 1 and up.
    pub(super) fn port(&mut self, number: u8) -> Option<&mut MacPort> {
        self.ports.get_mut(usize::from(number).checked_sub(1)?)
    }

    pub(crate) fn vector(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < 1024 {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Whether the ports of a destination tag have room for a frame of a thread.
    pub(crate) fn has_room(&self, destination: u16, thread: u8) -> bool {
        let priority = mapped(self.rx_pri_map, thread);
        let mut to = self.ports.iter().enumerate().filter(|&(i, _)| is_to(destination, i));
        to.all(|(i, port)| !self.ale.forwards(i as u8 + 1) || port.fifo(priority).len() < self.depth)
    }

    /// Sends a frame from the host's thread `thread`. `word` is PS word 2.
    pub(crate) fn send(&mut self, thread: u8, mut frame: Vec<u8>, destination: u16, word: u32) {
        let known = usize::from(destination) <= self.ports.len();
        let mut good = self.control & P0_ENABLE != 0 && known && frame.len() + FCS <= self.max_len as usize;
        if word & 0x3fff != 0 && self.p0_control & RX_CHECKSUM_EN != 0 {
            good &= checksum::insert(&mut frame, word);
        }
        if frame.len() < MIN_FRAME {
            if self.control & P0_RX_PAD != 0 && !frame.is_empty() {
                frame.resize(MIN_FRAME, 0);
            } else {
                good = false;
            }
        }
        let to = match destination {
            0 => self.ale.forward(0, &frame),
            // A directed frame needs no lookup, but its port must forward.
            port if self.ale.forwards(0) && self.ale.forwards(port as u8) => 1 << (port & 0xf),
            port => {
                self.drop_for(port);
                0
            }
        };
        for port in 1..=self.ports.len() as u8 {
            if to & 1 << port != 0 {
                if good {
                    self.queue(port, mapped(self.rx_pri_map, thread), &frame)
                } else {
                    self.drop_for(port.into())
                }
            }
        }
        self.recycle(frame);
    }

    /// Queues a frame for a port's wire.
    fn queue(&mut self, port: u8, priority: u8, frame: &[u8]) {
        let now = self.now();
        if !self.port(port).is_some_and(|port| port.passes(now)) {
            return self.drop_for(port.into());
        }
        let mut copy = self.vector();
        copy.extend_from_slice(frame);
        if let Some(port) = self.port(port) {
            port.fifos[usize::from(mapped(port.tx_pri_map, priority))].push_back(copy);
        }
    }

    fn drop_for(&mut self, port: u16) {
        if let Some(port) = self.ports.get_mut(usize::from(port).wrapping_sub(1)) {
            port.stats.tx_dropped += 1;
        }
    }

    /// Whether a port has a frame to send.
    pub(crate) fn can_drain(&self, port: usize) -> bool {
        !self.ports[port].stalled && self.ports[port].fifos.iter().any(|fifo| !fifo.is_empty())
    }

    /// Sends one frame on a port's wire, if it is the port's turn; false if the wire is busy.
    pub(crate) fn drain(&mut self, port: usize) -> bool {
        let mac = &mut self.ports[port];
        mac.turn += 1;
        if mac.turn < mac.turns {
            return true;
        }
        mac.turn = 0;
        let now = self.now();
        let port = &mut self.ports[port];
        let Some(fifo) = port.fifos.iter_mut().rev().find(|fifo| !fifo.is_empty()) else { return false };
        let Some(frame) = fifo.pop_front() else { return false };
        let link = port.phy.link(now);
        if !port.mac.passes(link) {
            port.stats.tx_dropped += 1;
        } else if port.mac.loops_back() && port.arriving.is_none() {
            port.stats.sent += 1;
            port.arriving = Some(frame);
            return true;
        } else if !port.mac.loops_back() && port.wire.send(&frame) {
            port.stats.sent += 1;
        } else {
            fifo.push_front(frame);
            return false;
        }
        self.recycle(frame);
        true
    }

    /// Whether a port has received a frame; polls its wire.
    pub(crate) fn can_arrive(&mut self, port: usize) -> bool {
        if self.ports[port].arriving.is_none() && self.to_host.len() < self.host_depth {
            let mut bytes = self.vector();
            let now = self.now();
            let mac = &mut self.ports[port];
            if !mac.mac.loops_back() && mac.wire.receive(&mut bytes) {
                // A MAC that is not enabled receives nothing.
                if mac.passes(now) {
                    mac.arriving = Some(bytes);
                } else {
                    mac.stats.rx_dropped += 1;
                    self.recycle(bytes);
                }
            } else {
                self.recycle(bytes);
            }
        }
        self.ports[port].arriving.is_some()
    }

    /// Forwards the frame that a port has received.
    pub(crate) fn arrive(&mut self, port: usize) {
        let Some(bytes) = self.ports[port].arriving.take() else { return };
        let from = port as u8 + 1;
        let to: Ports = self.ale.forward(from, &bytes);
        for other in (1..=self.ports.len() as u8).filter(|other| to & 1 << other != 0) {
            // A frame that finds a MAC port full is dropped: nothing waits for it.
            if self.has_room(other.into(), 0) {
                self.queue(other, 0, &bytes);
            } else {
                self.drop_for(other.into());
            }
        }
        if to & 1 == 0 {
            self.ports[port].stats.received += 1;
            self.ports[port].stats.rx_dropped += u64::from(to == 0);
            self.ports[port].stats.ale_dropped += u64::from(to == 0);
            return self.recycle(bytes);
        }
        let priority = match bytes.get(12..16) {
            Some(&[0x81, 0, high, _]) => high >> 5,
            _ => 0,
        };
        self.inject(RxFrame { bytes, port: from, priority, ..RxFrame::default() });
    }

    /// Drops the frame that a port has received: the receive channel is disabled.
    pub(crate) fn discard(&mut self, port: usize) {
        if let Some(bytes) = self.ports[port].arriving.take() {
            self.ports[port].stats.received += 1;
            self.ports[port].stats.rx_dropped += 1;
            self.recycle(bytes);
        }
    }

    /// Queues a frame for the host; if the queue is full, drops it and returns false.
    pub(crate) fn inject(&mut self, frame: RxFrame) -> bool {
        let full = self.control & P0_ENABLE == 0 || self.to_host.len() >= self.host_depth;
        let Some(port) = self.port(frame.port) else { return false };
        port.stats.received += 1;
        if full || frame.bytes.len() + FCS > port.max_len as usize {
            port.stats.rx_dropped += 1;
            self.recycle(frame.bytes);
            return false;
        }
        self.to_host.push_back(frame);
        true
    }

    /// Drops all frames that wait for the host.
    pub(crate) fn flush(&mut self) {
        self.host_dropped += self.to_host.len() as u64;
        self.to_host.clear();
    }

    /// The thread of a user priority, of `flows` threads.
    pub(crate) fn thread(priority: u8, flows: u16) -> u16 {
        let p = usize::from(priority & 7);
        match flows {
            0 | 1 => 0,
            2 => [0, 0, 0, 0, 1, 1, 1, 1][p],
            4 => [1, 0, 0, 1, 2, 2, 3, 3][p],
            8 => [2, 0, 1, 3, 4, 5, 6, 7][p],
            n => (p as u16 * n) / 8,
        }
    }
}

fn is_to(destination: u16, index: usize) -> bool {
    destination == 0 || usize::from(destination) == index + 1
}
