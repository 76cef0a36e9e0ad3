//! The management bus of the PHYs, by the switch's MDIO controller: transactions by a register, or
//! bit by bit where erratum i2329 forbids that (Linux: `davinci_mdio.c`, `mdio-bitbang.c`).
//!
//! ```text
//!   │ 32 × 1 │ 01 │ 10 read, 01 write │ PHY, 5 │ register, 5 │ turnaround, 2 │ 16 bits │   clause 22
//! ```

use super::regs::mdio;
use crate::common::phy::{Mdio, MdioError};
use std::time::Duration;
use towpath_bus::Mmio;

/// Half a clock of the bus: 2 MHz at most, of the 2.5 MHz that each PHY takes (§22.2.2.11).
const HALF_CLOCK: Duration = Duration::from_nanos(250);
/// The longest time of a transaction by the register: 88 bits at 10 kHz.
const TRANSACTION: Duration = Duration::from_millis(10);
/// The divider of the bus clock: that of reset, 1.3 MHz from the fastest clock of a switch.
const DIVIDER: u32 = 0xff;

/// How the PHYs' registers are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MdioAccess {
    /// Bit by bit: 64 bits, some 30 µs each.
    Manual,
    /// By the controller's state machine, which may hang where erratum i2329 applies.
    Automatic,
}

/// The bus, which the PHYs of all ports share.
#[derive(Debug)]
pub(super) struct MdioBus<M> {
    bar: M,
    access: MdioAccess,
}

impl<M: Mmio> MdioBus<M> {
    /// Takes the controller over.
    pub(super) fn new(bar: M, access: MdioAccess) -> MdioBus<M> {
        match access {
            MdioAccess::Manual => {
                mdio::CONTROL.change(&bar, mdio::ENABLE, 0);
                mdio::POLL.change(&bar, 0, mdio::MANUAL);
            }
            MdioAccess::Automatic => {
                mdio::POLL.change(&bar, mdio::MANUAL, 0);
                mdio::CONTROL.write(&bar, mdio::ENABLE | DIVIDER);
            }
        }
        MdioBus { bar, access }
    }

    /// The PHY at an address of the bus.
    pub(super) fn phy(&mut self, address: u8) -> PhyRegisters<'_, M> {
        PhyRegisters { bus: self, address: u32::from(address) }
    }

    /// Half a clock with these bits of MANUALIF.
    fn half_clock(&self, bits: u32) {
        mdio::MANUALIF.write(&self.bar, bits);
        // The write is posted: the read waits until it has arrived.
        mdio::MANUALIF.read(&self.bar);
        let begun = self.bar.now();
        while self.bar.now().duration_since(begun) < HALF_CLOCK {
            std::hint::spin_loop();
        }
    }

    /// Sends the lowest `count` bits, the highest first. A PHY takes a bit as the clock rises.
    fn send(&self, bits: u32, count: u32) {
        for i in (0..count).rev() {
            let bit = mdio::OUTPUT | bits >> i & 1;
            self.half_clock(bit);
            self.half_clock(bit | mdio::CLOCK);
        }
    }

    /// Receives `count` bits. A PHY drives a bit after the clock has risen.
    fn receive(&self, count: u32) -> u32 {
        (0..count).fold(0, |bits, _| {
            self.half_clock(mdio::CLOCK);
            self.half_clock(0);
            bits << 1 | mdio::MANUALIF.read(&self.bar) & mdio::DATA
        })
    }

    fn manual(&self, address: u32, register: u8, data: Option<u16>) -> Result<u16, MdioError> {
        let operation = if data.is_some() { 0b01 } else { 0b10 };
        self.send(u32::MAX, 32);
        self.send(0b01 << 12 | operation << 10 | address << 5 | u32::from(register), 14);
        if let Some(data) = data {
            self.send(0b10 << 16 | u32::from(data), 18);
            self.half_clock(0);
            return Ok(data);
        }
        // The line is released, and a PHY that answers drives the second bit of the turnaround low.
        self.half_clock(0);
        let answer = self.receive(17);
        if answer >> 16 == 0 { Ok(answer as u16) } else { Err(MdioError::Silent) }
    }

    fn automatic(&self, address: u32, register: u8, data: Option<u16>) -> Result<u16, MdioError> {
        let idle = || mdio::USERACCESS0.wait(&self.bar, mdio::GO, 0, TRANSACTION).map_err(|_| MdioError::Silent);
        idle()?;
        let operation = data.map_or(0, |data| mdio::WRITE | u32::from(data));
        let place = u32::from(register) << mdio::REGISTER_SHIFT | address << mdio::PHY_SHIFT;
        mdio::USERACCESS0.write(&self.bar, mdio::GO | operation | place);
        let word = idle()?;
        if word & mdio::ACK != 0 || data.is_some() { Ok(word as u16) } else { Err(MdioError::Silent) }
    }
}

/// The registers of one PHY.
#[derive(Debug)]
pub(super) struct PhyRegisters<'a, M> {
    bus: &'a mut MdioBus<M>,
    address: u32,
}

impl<M: Mmio> PhyRegisters<'_, M> {
    fn transaction(&mut self, register: u8, data: Option<u16>) -> Result<u16, MdioError> {
        match self.bus.access {
            MdioAccess::Manual => self.bus.manual(self.address, register, data),
            MdioAccess::Automatic => self.bus.automatic(self.address, register, data),
        }
    }
}

impl<M: Mmio> Mdio for PhyRegisters<'_, M> {
    fn read(&mut self, register: u8) -> Result<u16, MdioError> {
        self.transaction(register, None)
    }

    fn write(&mut self, register: u8, value: u16) -> Result<(), MdioError> {
        self.transaction(register, Some(value)).map(drop)
    }
}
