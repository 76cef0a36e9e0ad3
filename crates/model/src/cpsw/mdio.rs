//! The MDIO controller (`davinci_mdio.c` in Linux): transactions by a register, or bit by bit.
//!
//! ```text
//!   automatic  USERACCESS0: GO, register, PHY, data; GO falls after some reads
//!   manual     POLL bit 31; MANUALIF: clock, output enable, data
//!              │ 32 × 1 │ 01 │ 10 read, 01 write │ PHY, 5 │ register, 5 │ turnaround │ 16 bits │
//! ```
//!
//! A PHY takes a bit at the rising edge of the clock, and drives a bit after it. By erratum i2329 a
//! transaction by the register may hang on some SoCs.

use super::phy::Phy;
use std::time::Instant;

const ENABLE: u32 = 1 << 30;
const MANUAL: u32 = 1 << 31;
const GO: u32 = 1 << 31;
const WRITE: u32 = 1 << 30;
const ACK: u32 = 1 << 29;
const CLOCK: u32 = 1 << 2;
const OUTPUT: u32 = 1 << 1;
const DATA: u32 = 1;
/// Reads of USERACCESS until a transaction has ended.
const READS: u8 = 2;

/// What the PHYs see of a manual transaction.
#[derive(Debug, Default)]
struct Bits {
    /// Ones since the last zero.
    preamble: u32,
    /// Bits of the frame, from its start on, and their number.
    frame: u32,
    count: u32,
    /// A PHY drives these bits, the highest first, and how many are left.
    answer: (u32, u32),
}

#[derive(Debug, Default)]
pub(crate) struct Controller {
    control: u32,
    poll: u32,
    manual: u32,
    access: u32,
    reads: u8,
    bits: Bits,
    /// A PHY drives the line low.
    low: bool,
    /// Transactions by the register.
    pub(crate) automatic: u64,
}

/// The PHYs of a bus: by address.
pub(crate) trait Phys {
    fn phy(&mut self, address: u32) -> Option<&mut Phy>;
}

impl Controller {
    pub(crate) fn read(&mut self, at: usize) -> u32 {
        match at {
            0x04 => self.control,
            0x30 => self.manual & !DATA | u32::from(!self.low),
            0x34 => self.poll,
            0x80 => {
                self.reads = self.reads.saturating_sub(1);
                if self.reads == 0 { self.access & !GO } else { self.access | GO }
            }
            _ => 0,
        }
    }

    pub(crate) fn write(&mut self, at: usize, value: u32, phys: &mut dyn Phys, now: Instant) {
        match at {
            0x04 => self.control = value & (ENABLE | 0xffff),
            0x34 => self.poll = value,
            0x30 => self.manual_write(value, phys, now),
            // Without the state machine a transaction never ends.
            0x80 if value & GO != 0 && (self.control & ENABLE == 0 || self.poll & MANUAL != 0) => {
                (self.access, self.reads) = (value, u8::MAX);
            }
            0x80 if value & GO != 0 => {
                self.automatic += 1;
                let (address, register) = (value >> 16 & 0x1f, (value >> 21 & 0x1f) as usize);
                let phy = phys.phy(address);
                let answer = match phy {
                    Some(phy) if value & WRITE != 0 => {
                        phy.write(register, value as u16, now);
                        phy.read(register, now).map(|_| value & 0xffff)
                    }
                    Some(phy) => phy.read(register, now).map(u32::from),
                    None => None,
                };
                self.access = value & !(ACK | 0xffff) | answer.map_or(0xffff, |data| ACK | data);
                self.reads = READS;
            }
            _ => {}
        }
    }

    fn manual_write(&mut self, value: u32, phys: &mut dyn Phys, now: Instant) {
        let rises = value & !self.manual & CLOCK != 0;
        self.manual = value;
        if self.poll & MANUAL == 0 || self.control & ENABLE != 0 || !rises {
            return;
        }
        // A pull-up holds the line while neither end drives it.
        let bit = u32::from(value & OUTPUT == 0 || value & DATA != 0);
        let (bits, left) = self.bits.answer;
        if left > 0 {
            self.low = bits >> (left - 1) & 1 == 0;
            self.bits.answer.1 -= 1;
            return;
        }
        self.low = false;
        if let Some((address, register, data)) = self.bits.push(bit) {
            let Some(phy) = phys.phy(address) else { return };
            match data {
                Some(data) => phy.write(register, data, now),
                // The second bit of the turnaround is zero.
                None => self.bits.answer = phy.read(register, now).map_or((0, 0), |data| (u32::from(data), 17)),
            }
        }
    }
}

impl Bits {
    /// Takes a bit; returns PHY, register and data of a frame that is complete, without data for a
    /// read.
    fn push(&mut self, bit: u32) -> Option<(u32, usize, Option<u16>)> {
        if self.count == 0 {
            if bit == 1 {
                self.preamble += 1;
                return None;
            }
            let begins = std::mem::take(&mut self.preamble) >= 32;
            (self.frame, self.count) = (0, u32::from(begins));
            return None;
        }
        self.frame = self.frame << 1 | bit;
        self.count += 1;
        let header = if self.count > 14 { self.frame >> (self.count - 14) } else { self.frame };
        // Start 01, operation, PHY, register.
        let (address, register) = (header >> 5 & 0x1f, (header & 0x1f) as usize);
        match (self.count, header >> 10 & 0x7) {
            (14, 0b110) => self.count = 0,
            (32, 0b101) => {
                self.count = 0;
                return Some((address, register, Some(self.frame as u16)));
            }
            (..14, _) | (_, 0b101) => return None,
            _ => {
                self.count = 0;
                return None;
            }
        }
        Some((address, register, None))
    }
}
