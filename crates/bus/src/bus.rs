//! A device on a bus: its registers, its reach into memory, its interrupts.

use crate::dma::{Dma, MapError};
use crate::mmio::{Mmio, Timeout};
use std::os::fd::RawFd;

/// Why a device could not be reached or set up.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The operating system refused a step.
    #[error("{device}: {step}: {source}{}", .hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default())]
    Os {
        /// The device, as it was named.
        device: String,
        /// What was being done.
        step: String,
        /// What the system said.
        source: std::io::Error,
        /// What would mend it.
        hint: Option<String>,
    },
    /// The device, or what lies between, is not what it should be.
    #[error("{device}: {what}")]
    Device {
        /// The device, as it was named.
        device: String,
        /// What is wrong.
        what: String,
    },
    /// A register did not answer in time.
    #[error("{device}: {step}: {source}")]
    Timeout {
        /// The device, as it was named.
        device: String,
        /// What was being done.
        step: &'static str,
        /// The register.
        source: Timeout,
    },
    /// Memory could not be made reachable.
    #[error("{device}: {source}")]
    Map {
        /// The device, as it was named.
        device: String,
        /// Why.
        source: MapError,
    },
}

/// An interrupt.
pub trait Irq: Send + 'static {
    /// A descriptor that becomes readable when the interrupt fires; `None` where interrupts cannot be waited for, and the
    /// device is polled.
    fn fd(&self) -> Option<RawFd>;

    /// Takes note of it, so that the descriptor is quiet until the next; returns how many there were since the last time.
    fn take(&self) -> u64;
}

/// A device, opened for one driver. Dropping it gives the device back.
pub trait Bus: Send + Sized + 'static {
    /// Registers.
    type Bar: Mmio;
    /// Reach into memory.
    type Dma: Dma;
    /// Interrupts.
    type Irq: Irq;

    /// The device's name, as errors give it: `0000:03:00.0`.
    fn name(&self) -> &str;

    /// The registers of BAR `index`.
    ///
    /// # Errors
    /// [`BusError::Device`] when there is none, or fewer than `len` bytes of it.
    fn bar(&self, index: u8, len: usize) -> Result<Self::Bar, BusError>;

    /// Its reach into memory.
    fn dma(&self) -> &Self::Dma;

    /// Sets up interrupts 0 to `count`, those that were there before are gone; with 0, none.
    ///
    /// # Errors
    /// [`BusError`] when the device has fewer, or the system refuses.
    fn irqs(&self, count: u16) -> Result<Vec<Self::Irq>, BusError>;
}

/// A PCI function: configuration space and reset besides.
pub trait Pci: Bus {
    /// Reads the 32-bit word at byte offset `at` (a multiple of four) of the configuration space; all ones when it is not there.
    fn config_r32(&self, at: u16) -> u32;

    /// Writes a word of the configuration space.
    fn config_w32(&self, at: u16, value: u32);

    /// Resets the function. Registers, DMA and interrupts have to be set up again.
    ///
    /// # Errors
    /// [`BusError`] when it cannot be reset.
    fn reset(&self) -> Result<(), BusError>;

    /// Lets the function decode its memory and use DMA, or neither (PCI 3.0 §6.2.2: Command, bits 1 and 2); with interrupt
    /// pins off in both cases.
    fn set_master(&self, on: bool) {
        const COMMAND: u16 = 4;
        const MEMORY_AND_MASTER: u32 = 0x6;
        const INTX_DISABLE: u32 = 0x400;
        // The upper half is Status, whose bits are cleared by writing ones: write zeros there.
        let command = self.config_r32(COMMAND) & 0xffff & !MEMORY_AND_MASTER;
        self.config_w32(COMMAND, command | INTX_DISABLE | if on { MEMORY_AND_MASTER } else { 0x2 });
    }
}
