//! A gigabit PHY of a MAC port (IEEE 802.3 clauses 22 and 28).

use super::mac::LinkMode;
use std::time::{Duration, Instant};

const BMCR: usize = 0;
const RESET: u16 = 1 << 15;
const NEGOTIATE: u16 = 1 << 12;
const POWER_DOWN: u16 = 1 << 11;
const RESTART: u16 = 1 << 9;
const BMSR: usize = 1;
const NEGOTIATED: u16 = 1 << 5;
const LINK: u16 = 1 << 2;

/// The state in which the driver finds the PHYs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PhyStart {
    /// Powered up and negotiated, as a boot loader leaves it.
    #[default]
    Ready,
    /// Powered down, as Linux' driver leaves it.
    PoweredDown,
    /// It does not answer.
    Absent,
}

/// The other end of a port's cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partner {
    /// The highest speed, in Mb/s: 10, 100 or 1000.
    pub speed: u32,
    /// Full duplex.
    pub full_duplex: bool,
    /// It takes and sends pause frames.
    pub pause: bool,
}

impl Default for Partner {
    fn default() -> Partner {
        Partner { speed: 1000, full_duplex: true, pause: true }
    }
}

#[derive(Debug)]
pub(crate) struct Phy {
    registers: [u16; 32],
    partner: Partner,
    present: bool,
    /// The cable has a carrier.
    carrier: bool,
    /// The link was lost since BMSR was read: its bit is latched low.
    lost: bool,
    /// When the negotiation ends, if one was ever started.
    negotiated: Option<Instant>,
    /// How long a negotiation takes.
    duration: Duration,
}

impl Phy {
    pub(crate) fn new(start: PhyStart, duration: Duration, now: Instant) -> Phy {
        let mut registers = [0; 32];
        // A DP83867 after reset.
        for (at, value) in [(BMCR, 0x1140), (BMSR, 0x7949), (2, 0x2000), (3, 0xa231), (4, 0x01e1), (9, 0x0300)] {
            registers[at] = value;
        }
        if start == PhyStart::PoweredDown {
            registers[BMCR] |= POWER_DOWN;
        }
        Phy {
            registers,
            partner: Partner::default(),
            present: start != PhyStart::Absent,
            carrier: false,
            lost: false,
            negotiated: (start == PhyStart::Ready).then_some(now),
            duration,
        }
    }

    pub(crate) fn set_partner(&mut self, partner: Partner) {
        self.partner = partner;
    }

    pub(crate) fn set_carrier(&mut self, carrier: bool, now: Instant) {
        if self.carrier == carrier {
            return;
        }
        self.lost |= self.link(now).is_some() && !carrier;
        self.carrier = carrier;
    }

    pub(crate) fn is_powered(&self) -> bool {
        self.present && self.registers[BMCR] & POWER_DOWN == 0
    }

    /// The mode of the link: the best that both ends advertise.
    pub(crate) fn link(&self, now: Instant) -> Option<LinkMode> {
        let up = self.is_powered() && self.carrier && self.negotiated.is_some_and(|at| now >= at);
        let Partner { speed, full_duplex, .. } = self.partner;
        let speed = if self.registers[9] & 0x0200 == 0 { speed.min(100) } else { speed };
        let advertised = match (speed, full_duplex) {
            (1000, _) => true,
            (100, true) => self.registers[4] & 0x0100 != 0,
            (100, false) => self.registers[4] & 0x0080 != 0,
            (_, true) => self.registers[4] & 0x0040 != 0,
            (_, false) => self.registers[4] & 0x0020 != 0,
        };
        (up && advertised).then_some(LinkMode { speed, full_duplex })
    }

    /// Reads a register; `None` if the PHY does not answer.
    pub(crate) fn read(&mut self, at: usize, now: Instant) -> Option<u16> {
        let link = self.link(now).is_some();
        let Partner { speed, full_duplex, pause } = self.partner;
        let half = |full: u16, half: u16| if full_duplex { full } else { half };
        self.present.then(|| match at {
            BMSR if link && std::mem::take(&mut self.lost) => self.registers[BMSR] | NEGOTIATED,
            BMSR if link => self.registers[BMSR] | NEGOTIATED | LINK,
            // What a partner of 1000 Mb/s can do besides does not matter here.
            5 if link => {
                let speeds = match speed {
                    1000 => 0x01e0,
                    100 => half(0x0100, 0x0080),
                    _ => half(0x0040, 0x0020),
                };
                0xc001 | speeds | if pause { 0x0400 } else { 0 }
            }
            10 if link && speed == 1000 => 0x3800,
            _ => self.registers.get(at).copied().unwrap_or(0),
        })
    }

    pub(crate) fn write(&mut self, at: usize, value: u16, now: Instant) {
        match at {
            BMCR if self.present => {
                self.lost |= value & (RESTART | POWER_DOWN) != 0 && self.link(now).is_some();
                let restarts = value & RESTART != 0 && value & NEGOTIATE != 0;
                if restarts || self.registers[BMCR] & POWER_DOWN != 0 && value & POWER_DOWN == 0 {
                    self.negotiated = (value & NEGOTIATE != 0).then_some(now + self.duration);
                }
                self.registers[BMCR] = value & !(RESET | RESTART);
            }
            4 | 9 if self.present => self.registers[at] = value,
            _ => {}
        }
    }

    /// A register as it is, for a test.
    pub(crate) fn register(&self, at: usize) -> u16 {
        self.registers.get(at).copied().unwrap_or(0)
    }
}
