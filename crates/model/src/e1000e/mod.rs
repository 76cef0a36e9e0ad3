//! A model of the Intel 82574L Gigabit Ethernet controller, faithful and strict.
//!
//! ```text
//!   driver's threads                                 the device: stepped by the caller, or a thread of its own
//!   ModelBus ─ ModelBar ─ w32(tail) ──► registers ──► Machine ── turn / step
//!                       ─ w32, r32 ───► (its lock)      ├ Receiver     filters, packet buffer, descriptors, write-backs
//!            ─ ModelIrq ◄── eventfd ◄── Irqs ◄──────────┤ Transmitter  descriptors, offloads, write-backs
//!                                                       ├ Link, Phy, NVM
//!                                                       └ Wire
//! ```
//!
//! **Registers** are atomic words. A tail is a plain store, as posted writes are for a driver; every other register is written under the
//! device's lock and acts at once. BAR 0 is all there is: BAR 3 (the MSI-X table) belongs to whoever sets up interrupts.
//!
//! **Where silicon and QEMU's model differ, this is silicon**: CTRL.RST resets everything but PBA; ring registers, RFCTL.EXTEN and
//! buffer sizes are latched when reception is enabled; options are those of a frame's first descriptor, VLAN and command of its
//! last; checksums of legacy descriptors are inserted; ICR clears as §10.2.4.1 has it; a lack of descriptors counts RNBC, and a full
//! packet buffer MPC, unless the other end obeys flow control ([`Config::pause`]). The FCS is real.
//!
//! **What a refused access does** is nowhere specified. Here: a descriptor that can't be read stops its queue until reset; a
//! frame that can't be read entirely is not sent, its descriptors are completed; received data that can't be written is lost,
//! its descriptors are completed. Nothing leaks, and the IOMMU has recorded it.
//!
//! **Not modelled**: packet split descriptors, interrupt moderation, write-back thresholds (each descriptor is written back at once), wake-up,
//! management, time stamps, flow control frames, the half-duplex MAC. A frame that comes while reception is off, or without a link, waits on
//! the wire instead of being lost.
//!
//! ```
//! use towpath_bus::{Bus, Mmio, Pci};
//! use towpath_model::{e1000e, wire};
//!
//! let (near, mut far) = wire::cable(64);
//! let bus = e1000e::launch(e1000e::Config { strict: true, ..Default::default() }, near)?;
//! let device = bus.device();
//! bus.set_master(true);
//! let registers = bus.bar(0, 128 << 10)?;
//! assert_eq!(registers.r32(0x0008) & 2, 2, "the link is up");
//! // A driver takes `bus`; who tests it steps `device`, and sends and receives at `far`.
//! assert!(!device.step(7), "nothing to do yet");
//! assert!(far.pop().is_none() && device.violation().is_none());
//! # Ok::<(), towpath_bus::BusError>(())
//! ```
//!
//! **Strict** ([`Config::strict`]): the first broken rule is kept, see [`Violation`] and [`Device::violation`].

mod bus;
mod crc;
mod env;
mod faults;
mod filter;
mod irq;
mod link;
mod machine;
mod offload;
mod pci;
mod phy;
mod registers;
mod regs;
mod ring;
mod rss;
mod rx;
mod settings;
mod stats;
mod strict;
#[cfg(test)]
mod tests;
mod thread;
mod tx;

pub use bus::{ModelBar, ModelBus};
pub use faults::Faults;
pub use irq::ModelIrq;

use crate::iommu::{self, ModelDma, Refuse};
use crate::seed::Seed;
use crate::violation::{Violation, Violations};
use crate::wire::{Bell, Wire};
use env::Env;
use machine::Machine;
use pci::ConfigSpace;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_bus::BusError;

/// How a model is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name, as errors give it.
    pub name: String,
    /// The address in its NVM.
    pub mac: [u8; 6],
    /// What lies between it and memory.
    pub iommu: iommu::Config,
    /// What it does that it should not.
    pub faults: Faults,
    /// Whether the driver's mistakes are looked for.
    pub strict: bool,
    /// Ticks that the link takes to come up: turns or steps of the device, and reads of STATUS.
    pub negotiation: u32,
    /// Whether the other end stops sending while the packet buffer is full; else frames are lost then, and counted as MPC.
    pub pause: bool,
    /// Whether it has a thread of its own; else it does nothing until it is [stepped](Device).
    pub threaded: bool,
}

impl Default for Config {
    /// Without faults, not strict, behind an IOMMU, stepped by the caller.
    fn default() -> Config {
        Config {
            name: "e1000e:model".into(),
            mac: [0x02, 0x74, 0x6f, 0x77, 0x00, 0x01],
            iommu: iommu::Config::default(),
            faults: Faults::default(),
            strict: false,
            negotiation: 0,
            pause: true,
            threaded: false,
        }
    }
}

/// What both sides, and the device's thread, share.
pub(crate) struct Shared {
    name: String,
    env: Env,
    pci: ConfigSpace,
    machine: Mutex<Machine>,
    stop: AtomicBool,
    /// The thread waits for `bell`.
    asleep: AtomicBool,
    bell: Option<Bell>,
    /// Threads that want the machine while the device's thread has it.
    waiting: AtomicU32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine, for everyone but the device's thread.
    fn machine(&self) -> MutexGuard<'_, Machine> {
        if let Ok(machine) = self.machine.try_lock() {
            return machine;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let machine = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        machine
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("e1000e model").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Builds a model, joined to a wire, as a driver finds it: after power-on, DMA not enabled.
///
/// # Errors
/// [`BusError::Map`] when the IOMMU's tables can't be had, [`BusError::Os`] when there is no thread or descriptor left.
pub fn launch(config: Config, wire: impl Wire) -> Result<ModelBus, BusError> {
    let violations = Arc::new(Violations::new(config.strict));
    let map = |source| BusError::Map { device: config.name.clone(), source };
    let dma = ModelDma::new(&config.iommu, violations.clone()).map_err(map)?;
    if config.faults.mappings != Refuse::Never {
        dma.refuse(config.faults.mappings);
    }
    let env = Env {
        registers: registers::Registers::new(config.mac),
        irqs: Mutex::default(),
        dma,
        violations,
        accesses: irq::Accesses::default(),
        master: AtomicBool::new(false),
        decodes: AtomicBool::new(false),
        audits: config.strict && !config.faults.writes_wildly(),
    };
    let machine = Machine::new(&config, &env, Box::new(wire));
    let os = |step: &str, source| BusError::Os { device: config.name.clone(), step: step.into(), source, hint: None };
    let bell = if config.threaded { Some(Bell::new().map_err(|e| os("eventfd", e))?) } else { None };
    let shared = Arc::new(Shared {
        name: config.name.clone(),
        env,
        pci: ConfigSpace::new(),
        machine: Mutex::new(machine),
        stop: AtomicBool::new(false),
        asleep: AtomicBool::new(false),
        bell,
        waiting: AtomicU32::new(0),
    });
    let thread = match config.threaded {
        true => Some(thread::spawn(&shared).map_err(|e| os("the device's thread", e))?),
        false => None,
    };
    Ok(ModelBus { shared, thread })
}

/// Accesses to a model's registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accesses {
    /// Reads.
    pub reads: u64,
    /// Writes of registers that are no tails.
    pub writes: u64,
    /// Writes of tails.
    pub tails: u64,
}

/// A model's far side: what runs it, and what looks at it. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

impl Device {
    /// Does one unit of work: fetches descriptors, uses one, sends a frame, takes one in, writes one descriptor back. Which of
    /// those that can be done is decided by the seed, as is everything that follows. False when there was nothing to do.
    pub fn step(&self, seed: u64) -> bool {
        let env = &self.shared.env;
        self.shared.machine().step(env, &mut Seed::new(seed))
    }

    /// Does `n` units of work, in an order by the seed; returns how many there were.
    pub fn steps(&self, n: usize, seed: u64) -> usize {
        let mut seed = Seed::new(seed);
        (0..n).take_while(|_| self.shared.machine().step(&self.shared.env, &mut seed)).count()
    }

    /// One burst: up to 64 frames each way. Returns how many units of work were done.
    pub fn turn(&self) -> usize {
        self.shared.machine().turn(&self.shared.env)
    }

    /// Works until there is nothing to do; returns how many units of work were done. With a wire that always has a frame (a loop)
    /// it ends after a million bursts.
    pub fn run_until_idle(&self) -> usize {
        (0..1_000_000).map(|_| self.turn()).take_while(|n| *n > 0).sum()
    }

    /// Receives frames as if they came over the wire, at once and together: as many as the packet buffer takes.
    pub fn deliver<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) -> usize {
        self.shared.machine().deliver(&self.shared.env, frames.into_iter())
    }

    /// The first rule that the driver broke, when the model is strict.
    pub fn violation(&self) -> Option<Violation> {
        self.shared.env.violations.first().cloned()
    }

    /// The IOMMU: counts, faults.
    pub fn iommu(&self) -> &ModelDma {
        &self.shared.env.dma
    }

    /// Accesses to registers until now.
    pub fn accesses(&self) -> Accesses {
        let Env { accesses, .. } = &self.shared.env;
        Accesses {
            reads: accesses.reads.load(Ordering::Relaxed),
            writes: accesses.writes.load(Ordering::Relaxed),
            tails: accesses.tails.iter().map(|t| t.load(Ordering::Relaxed)).sum(),
        }
    }

    /// Interrupts that were sent, and that a fault swallowed.
    pub fn interrupts(&self) -> (u64, u64) {
        let irqs = self.shared.env.irqs();
        (irqs.sent, irqs.lost)
    }

    /// Frames in the packet buffer, for which there were no descriptors yet.
    pub fn waiting(&self) -> usize {
        self.shared.machine().waiting()
    }
}
