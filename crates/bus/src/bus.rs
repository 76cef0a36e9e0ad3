//! A device on a bus: registers, DMA, interrupts.

use crate::dma::{Dma, MapError};
use crate::mmio::{Mmio, Timeout};
use std::fmt::Display;
use std::io;
use std::os::fd::RawFd;

/// Why a device could not be opened or set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The operating system refused a step.
    #[error("{device}: {step}: {source}{}", .hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default())]
    Os {
        /// The device's name.
        device: String,
        /// The step.
        step: String,
        /// The error of the system call.
        source: io::Error,
        /// How to fix it.
        hint: Option<String>,
    },
    /// The device, or a part of the path to it, is not as it must be.
    #[error("{device}: {what}")]
    Device {
        /// The device's name.
        device: String,
        /// What is wrong.
        what: String,
    },
    /// A register did not reach the expected value in time.
    #[error("{device}: {step}: {source}")]
    Timeout {
        /// The device's name.
        device: String,
        /// The step.
        step: &'static str,
        /// The register.
        source: Timeout,
    },
    /// Memory could not be mapped for the device.
    #[error("{device}: {source}")]
    Map {
        /// The device's name.
        device: String,
        /// The reason.
        source: MapError,
    },
}

impl BusError {
    /// A [`BusError::Device`].
    pub fn device(device: impl Display, what: impl Into<String>) -> BusError {
        BusError::Device { device: device.to_string(), what: what.into() }
    }

    /// A [`BusError::Os`] without a hint, for [`Result::map_err`].
    pub fn os(device: impl Display, step: impl Into<String>) -> impl FnOnce(io::Error) -> BusError {
        move |source| BusError::Os { device: device.to_string(), step: step.into(), source, hint: None }
    }

    /// A [`BusError::Map`], for [`Result::map_err`].
    pub fn map(device: impl Display) -> impl Fn(MapError) -> BusError {
        move |source| BusError::Map { device: device.to_string(), source }
    }

    /// Adds a hint to a [`BusError::Os`] without one.
    pub fn with_hint(mut self, text: impl Into<String>) -> BusError {
        if let BusError::Os { hint: hint @ None, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }
}

/// An interrupt.
pub trait Irq: Send + Sync + 'static {
    /// A descriptor that becomes readable when the interrupt fires. `None` if interrupts cannot be
    /// waited for: the device is polled instead.
    fn fd(&self) -> Option<RawFd>;

    /// Acknowledges the interrupt: the descriptor is not readable until the next one. Returns the
    /// number of interrupts since the last call.
    fn take(&self) -> u64;

    /// Lets the next interrupt through, after its cause in the device was cleared. Only an INTx
    /// line needs that: it is masked when it fires, because it stays asserted as long as its cause.
    fn unmask(&self) {}
}

/// Events of a function that are no interrupts of its device; each is signalled like one. `None`:
/// the bus does not report it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Events<I> {
    /// The system requests the function: an administrator unbinds it, or takes it out of its
    /// slot. It waits until the driver has closed the device.
    pub removal: Option<I>,
    /// The bus has reported an error that can't be corrected (PCI Express 4.0 §6.2.3). Until a
    /// [`reset`](Pci::reset) it is unknown what the device does to memory.
    pub error: Option<I>,
}

impl<I> Events<I> {
    /// The events of a bus; by [`Default`], none.
    pub fn new(removal: Option<I>, error: Option<I>) -> Events<I> {
        Events { removal, error }
    }
}

impl<I> Default for Events<I> {
    fn default() -> Events<I> {
        Events::new(None, None)
    }
}

/// The kinds of interrupts of a PCI function, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqKind {
    /// Messages, each with its own vector (PCI 3.0 §6.8.2).
    MsiX,
    /// Messages (PCI 3.0 §6.8.1).
    Msi,
    /// A line, maybe shared with other functions (PCI 3.0 §2.2.6).
    Intx,
}

impl IrqKind {
    /// All kinds, the best first.
    pub const ALL: [IrqKind; 3] = [IrqKind::MsiX, IrqKind::Msi, IrqKind::Intx];

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            IrqKind::MsiX => "MSI-X",
            IrqKind::Msi => "MSI",
            IrqKind::Intx => "INTx",
        }
    }
}

/// A device, opened for one driver. Dropping it gives the device back.
pub trait Bus: Send + Sized + 'static {
    /// Registers.
    type Bar: Mmio;
    /// DMA: the memory that the device can reach.
    type Dma: Dma;
    /// Interrupts.
    type Irq: Irq;

    /// The device's name, as errors print it: `0000:03:00.0`.
    fn name(&self) -> &str;

    /// The registers of BAR `index`.
    ///
    /// # Errors
    /// [`BusError::Device`] if the BAR does not exist or is shorter than `len` bytes.
    fn bar(&self, index: u8, len: usize) -> Result<Self::Bar, BusError>;

    /// The device's DMA interface.
    fn dma(&self) -> &Self::Dma;

    /// Enables interrupts 0 to `count - 1` in place of all earlier ones. With 0, disables them all.
    ///
    /// # Errors
    /// [`BusError`] if the device has fewer, or the system refuses.
    fn irqs(&self, count: u16) -> Result<Vec<Self::Irq>, BusError>;
}

/// A PCI function: adds configuration space and reset.
pub trait Pci: Bus {
    /// Reads the 32-bit word at byte offset `at` (a multiple of four) of the configuration space.
    /// Returns all ones if the word does not exist.
    fn config_r32(&self, at: u16) -> u32;

    /// Writes a word of the configuration space.
    fn config_w32(&self, at: u16, value: u32);

    /// Resets the function. Registers and DMA must be set up again afterwards. Interrupts that are
    /// enabled and the [events](Pci::events) stay.
    ///
    /// # Errors
    /// [`BusError`] when it cannot be reset.
    fn reset(&self) -> Result<(), BusError>;

    /// The number of interrupts of a kind that the function offers here.
    fn irq_count(&self, kind: IrqKind) -> u16;

    /// Enables interrupts 0 to `count - 1` of a kind in place of all earlier ones.
    ///
    /// # Errors
    /// [`BusError`] if the function has fewer of that kind, or the system refuses.
    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<Self::Irq>, BusError>;

    /// The events of the function, from now on, in place of those of an earlier call. By default
    /// the bus reports none.
    ///
    /// # Errors
    /// [`BusError`] if the system refuses.
    fn events(&self) -> Result<Events<Self::Irq>, BusError> {
        Ok(Events::default())
    }

    /// Enables memory decoding of the function, and enables or disables its DMA (PCI 3.0 §6.2.2:
    /// Command, bits 1 and 2). Decoding is never disabled: registers that are mapped into the
    /// process must not be accessed without it.
    fn set_master(&self, on: bool) {
        const COMMAND: u16 = 4;
        const MEMORY: u32 = 0x2;
        const MASTER: u32 = 0x4;
        // The upper half is Status, whose bits are cleared by writing ones: write zeros there.
        let command = self.config_r32(COMMAND) & 0xffff & !MASTER;
        self.config_w32(COMMAND, command | MEMORY | if on { MASTER } else { 0 });
    }
}
