//! A model of the Intel [82574L] Gigabit Ethernet controller, faithful and strict.
//!
//! ```text
//!   driver's threads                                 the device: stepped, or with a thread
//!   ModelBus ─ ModelBar ─ w32(tail) ──► registers ──► Machine ── turn / step
//!                       ─ w32, r32 ───► (its lock)      ├ Receiver     filters, packet buffer
//!            ─ ModelIrq ◄── eventfd ◄── Irqs ◄──────────┤ Transmitter  descriptors, offloads
//!                                                       ├ Media        link, PHY
//!                                                       └ Wire
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `bus`, `pci` | the driver's side: [`ModelBus`], [`ModelBar`], configuration space |
//! | `regs`, `register_file` | register offsets and bits; their values |
//! | `config` | [`Config`] |
//! | `env` | the state that needs no lock on the device |
//! | `shared` | the state that both sides share, and the device's thread |
//! | `irq` | causes, masks, vectors |
//! | `machine` | the device: bursts, steps, resets |
//! | `rx`, `filter`, `rss`, `crc` | reception |
//! | `tx`, `offload` | transmission |
//! | `ring` | descriptor rings |
//! | `settings` | the driver's configuration, decoded |
//! | `media`, `link`, `phy` | link and PHY as registers reach them; the link; the PHY's registers, the NVM |
//! | `stats` | the statistics registers |
//! | `faults` | [`Faults`]: injected faults |
//! | `strict` | the rules of strict models |
//!
//! **Registers** are atomic words. A tail write is a plain store, like a driver's posted write.
//! Every other register is written under the device's lock and takes effect at once. Only BAR 0
//! exists: BAR 3, the MSI-X table, belongs to the code that enables interrupts.
//!
//! **Where silicon and QEMU's model differ, this is silicon**: CTRL.RST resets everything except
//! PBA. Ring registers, RFCTL.EXTEN and buffer sizes are latched when reception is enabled. Options
//! are those of a frame's first descriptor, VLAN and command those of its last. Checksums of legacy
//! descriptors are inserted. ICR clears as in §10.2.4.1. A lack of descriptors counts RNBC, and a
//! full packet buffer MPC, unless the other end obeys flow control ([`Config::pause`]). The FCS is
//! real. Both transmit queues share one offload context. A link that is lost with frames in the
//! transmit rings stops transmission until a reset.
//!
//! **The effect of a blocked access** is unspecified. Here, a descriptor that cannot be read stops
//! its queue until reset. A frame that cannot be read entirely is not sent, and received data that
//! cannot be written is lost; their descriptors are completed. Nothing leaks, and the IOMMU records
//! the fault.
//!
//! **Not modelled**: packet split descriptors, interrupt moderation, write-back thresholds (each
//! descriptor is written back at once), wake-up, management, time stamps, flow control frames, the
//! half-duplex MAC. A frame that arrives while reception is off, or without a link, waits on the
//! wire instead of being lost.
//!
//! ```
//! use towpath_bus::{Bus, Mmio, Pci};
//! use towpath_model::{e1000e, wire};
//!
//! let (near, mut far) = wire::cable(64);
//! let phy = e1000e::PhyStart::Ready;
//! let bus = e1000e::launch(e1000e::Config::default().strict(true).phy(phy), near)?;
//! let device = bus.device();
//! bus.set_master(true);
//! let registers = bus.bar(0, 128 << 10)?;
//! assert_eq!(registers.r32(0x0008) & 2, 2, "the link is up");
//! // The driver takes `bus`; its test steps `device`, and sends and receives at `far`.
//! assert!(!device.step(7), "nothing to do yet");
//! assert!(far.pop().is_none() && device.violation().is_none());
//! # Ok::<(), towpath_bus::BusError>(())
//! ```
//!
//! **Strict** ([`Config::strict`]): the first broken rule is stored, see [`Violation`] and
//! [`Device::violation`].
//!
//! [82574L]: https://www.intel.com/content/dam/doc/datasheet/82574l-gbe-controller-datasheet.pdf

mod bus;
mod config;
mod crc;
mod env;
mod faults;
mod filter;
mod irq;
mod link;
mod machine;
mod media;
mod offload;
mod pci;
mod phy;
mod register_file;
mod regs;
mod ring;
mod rss;
mod rx;
mod settings;
mod shared;
mod stats;
mod strict;
#[cfg(test)]
mod tests;
mod tx;

pub use bus::{ModelBar, ModelBus};
pub use config::{Config, Interrupts};
pub use env::Absence;
pub use faults::Faults;
pub use irq::ModelIrq;
pub use phy::PhyStart;

use crate::iommu::{ModelDma, Refuse};
use crate::runner::Runner;
use crate::seed::Seed;
use crate::violation::{Violation, Violations};
use crate::wire::Wire;
use env::Env;
use machine::Machine;
use pci::ConfigSpace;
use shared::DeviceShared;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use towpath_bus::BusError;

/// Builds a model in the state after power-on, connected to a wire; DMA is off.
///
/// # Errors
/// [`BusError::Map`] if there is no memory for the IOMMU's tables, [`BusError::Os`] if there is no
/// thread or descriptor left.
pub fn launch(config: Config, wire: impl Wire) -> Result<ModelBus, BusError> {
    let violations = Arc::new(Violations::new(config.strict));
    let dma = ModelDma::new(&config.iommu, violations.clone()).map_err(BusError::map(&config.name))?;
    if config.faults.mappings != Refuse::Never {
        dma.refuse(config.faults.mappings);
    }
    let registers = register_file::RegisterFile::new(config.mac);
    if config.flash {
        registers.change(regs::EECD, 0, regs::EECD_FLASH | regs::EECD_AUPDEN);
    }
    if config.manageability {
        registers.set(regs::MANC, regs::MANC_RCV_TCO_EN);
        registers.set(regs::RAL + 3 * 8, 0x0000_0352);
        registers.set(regs::RAH + 3 * 8, regs::RAH_AV | 0x0300);
    }
    let env = Env {
        registers,
        irqs: Mutex::new(irq::Irqs::new(config.loses_msi)),
        dma,
        violations,
        accesses: irq::Accesses::default(),
        master: AtomicBool::new(false),
        decodes: AtomicBool::new(false),
        order: filter::WriteOrder::default(),
        absence: AtomicU8::new(0),
        checks_owned: config.strict && !config.faults.writes_wildly(),
    };
    let machine = Machine::new(&config, &env, Box::new(wire));
    let shared = Arc::new(DeviceShared {
        name: config.name.clone(),
        env,
        pci: ConfigSpace::new(&config),
        runner: Runner::new(machine, config.threaded).map_err(BusError::os(&config.name, "eventfd"))?,
        ahead: AtomicU64::new(0),
    });
    let thread = match config.threaded {
        true => Some(shared::spawn(&shared).map_err(BusError::os(&config.name, "the device's thread"))?),
        false => None,
    };
    Ok(ModelBus { shared, thread })
}

/// Counters of register accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Accesses {
    /// Reads.
    pub reads: u64,
    /// Writes, except of tails.
    pub writes: u64,
    /// Writes of tails.
    pub tails: u64,
}

/// The far side of a model: steps and examines it. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Device {
    shared: Arc<DeviceShared>,
}

impl Device {
    /// Does one unit of work: fetches descriptors, uses one, sends a frame, receives one, or writes
    /// one descriptor back. The seed selects among those that are possible, and makes all further
    /// random decisions. Returns false if nothing was possible.
    pub fn step(&self, seed: u64) -> bool {
        let env = &self.shared.env;
        self.shared.machine().step(env, &mut Seed::new(seed))
    }

    /// Does up to `n` units of work in an order by the seed; returns their number.
    pub fn steps(&self, n: usize, seed: u64) -> usize {
        let mut seed = Seed::new(seed);
        (0..n).take_while(|_| self.shared.machine().step(&self.shared.env, &mut seed)).count()
    }

    /// Sets the device's clock forward, by which the driver sees that frames hang.
    pub fn advance(&self, time: Duration) {
        self.shared.advance(time);
    }

    /// One burst: up to 64 frames in each direction. Returns the number of units of work.
    pub fn turn(&self) -> usize {
        self.shared.machine().turn(&self.shared.env)
    }

    /// Runs bursts until there is nothing to do; returns the number of units of work. With a wire
    /// that always has a frame (loopback) it ends after a million bursts.
    pub fn run_until_idle(&self) -> usize {
        (0..1_000_000).map(|_| self.turn()).take_while(|n| *n > 0).sum()
    }

    /// Receives frames as if they came over the wire back to back, as many as the packet buffer
    /// takes.
    pub fn deliver<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) -> usize {
        self.shared.machine().deliver(&self.shared.env, frames.into_iter())
    }

    /// The first rule that the driver broke, if the model is strict.
    pub fn violation(&self) -> Option<Violation> {
        self.shared.env.violations.first().cloned()
    }

    /// The IOMMU: counters, faults.
    pub fn iommu(&self) -> &ModelDma {
        &self.shared.env.dma
    }

    /// The counters of register accesses.
    pub fn accesses(&self) -> Accesses {
        let Env { accesses, .. } = &self.shared.env;
        Accesses {
            reads: accesses.reads.load(Ordering::Relaxed),
            writes: accesses.writes.load(Ordering::Relaxed),
            tails: accesses.tails.iter().map(|t| t.load(Ordering::Relaxed)).sum(),
        }
    }

    /// The interrupts that were sent, and those that an injected fault lost.
    pub fn interrupts(&self) -> (u64, u64) {
        let irqs = self.shared.env.irqs();
        (irqs.sent, irqs.lost)
    }

    /// A register of the PHY, 0 to 31 in page 0, as it is, without the effects of reading it.
    pub fn phy(&self, register: usize) -> u16 {
        self.shared.machine().media.phy_register(register)
    }

    /// The abilities that the last negotiation has advertised to the other end (register 4 of the
    /// PHY as it was then).
    pub fn advertised(&self) -> u16 {
        self.shared.machine().media.advertised()
    }

    /// The other end is another one, which takes pause frames or not. The link does not change.
    pub fn set_partner_pause(&self, pause: bool) {
        self.shared.machine().media.set_partner_pause(pause);
    }

    /// The other end offers another speed: 10, 100 or 1000 Mb/s. The link is negotiated anew.
    pub fn set_speed(&self, speed: u32) {
        self.shared.machine().media.set_speed(&self.shared.env, speed);
    }

    /// A register of BAR 0 as it is, without the effects of reading it.
    pub fn register(&self, at: usize) -> u32 {
        self.shared.env.registers.get(at)
    }

    /// Whether the MAC takes pause frames, and whether it sends them (CTRL.RFCE, CTRL.TFCE).
    pub fn flow_control(&self) -> (bool, bool) {
        let ctrl = self.shared.env.registers.get(regs::CTRL);
        (ctrl & regs::CTRL_RFCE != 0, ctrl & regs::CTRL_TFCE != 0)
    }

    /// The system requests the function, as when an administrator unbinds it: the event
    /// [`removal`](towpath_bus::Events::removal). The device works on.
    pub fn request_removal(&self) {
        self.shared.env.irqs().request_removal();
    }

    /// The device stops answering. If the bus has contained an error, it reports that by the event
    /// [`error`](towpath_bus::Events::error); a removal is not announced.
    pub fn vanish(&self, absence: Absence) {
        // Under the machine's lock: after the return, the device accesses no memory, and owns none.
        let mut machine = self.shared.machine();
        machine.reset(&self.shared.env);
        self.shared.env.set_absence(Some(absence));
        if !absence.is_removal() {
            self.shared.env.irqs().report_error();
        }
    }

    /// Another program writes a word of the configuration space.
    pub fn write_config(&self, at: u16, value: u32) {
        self.shared.write_config(at, value);
    }

    /// Frames in the packet buffer that wait for descriptors.
    pub fn waiting(&self) -> usize {
        self.shared.machine().waiting()
    }
}
