//! CPSW, TI's Ethernet switch of K3 processors, with the DMA engine in front of it: faithful, and strict.
//!
//! ```text
//!   driver ── CpswBus ──┬── registers ──► Device ──┬── Ring …        memory, counts, doorbells
//!             Firmware ─┘                          ├── TxChannel …   fetch ► read ► transmit ► complete
//!                  Irq ◄── levels of rings         ├── RxChannel     take ► write ► write back ► complete
//!             IOMMU ◄────── all accesses to memory └── Switch        host port, MAC ports, Wire …
//! ```
//!
//! *Faithful*: the device does what silicon does, silently, so that damage spreads: a doorbell of 0x80 counts −128, a slot that is
//! overwritten is fetched with what it holds by then, a count that is popped too far wraps. *Strict*
//! ([`Config::strict`]): it also keeps the first [`Violation`] of its rules, with ring, slot, descriptor and what
//! happened before.
//!
//! Two ways to run: [`Cpsw::step`] performs one action of those that are possible, chosen by a number, so that a seed
//! decides the interleaving ([`Cpsw::run`], [`Config::steps_per_read`]); [`Cpsw::spawn`] gives the device a thread of its own.
//!
//! Both families of DMA engines are here: PKTDMA with two-sided rings (AM64x, AM62x), and UDMA with a ring accelerator (J784S4), whose
//! rings for free descriptors can be exposed or in message mode. Figures that are taken on the model count register accesses
//! exactly; what an access costs on silicon they do not tell.
//!
//! Not modelled: VLANs and classifiers of the address lookup engine, PHYs, time stamps of CPTS but those that a test injects.

mod ale;
mod bus;
mod check;
mod checksum;
mod config;
mod descriptor;
mod device;
mod firmware;
mod ring;
mod rx;
mod switch;
mod thread;
mod tx;
mod view;

pub use bus::{CpswBus, CpswIrq, Registers};
pub use check::{Rule, Violation};
pub use config::{Config, Family, IrqMode, RxMarker, Soc};
pub use firmware::Firmware;
pub use ring::Accesses;
pub use switch::PortStats;
pub use thread::Running;

use crate::iommu::ModelDma;
use crate::seed::Seed;
use crate::violation::Violations;
use crate::wire::Wire;
use bus::Lines;
use device::Device;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thread::Bell;

/// Actions after which [`Cpsw::settle`] gives up: far more than any queue holds.
const SETTLE: usize = 10_000_000;

/// What the device knows of a frame that is put in front of the receive channel by hand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Injected {
    /// User priority, 0 to 7: decides the flow.
    pub priority: u8,
    /// Error code of the descriptor; 0 is none.
    pub error: u8,
    /// Time of arrival in nanoseconds.
    pub timestamp: u64,
    /// What the descriptors say that is not so.
    pub lie: Lie,
}

/// What an engine that is out of order writes about a frame. A driver is not to be led astray by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lie {
    /// The truth.
    #[default]
    None,
    /// The frame is so many bytes longer than its buffers hold.
    Longer(u32),
    /// UDMA: the first descriptor goes on at an address where there is none.
    Nowhere,
    /// UDMA: every descriptor goes on at the first.
    Loop,
    /// UDMA: no descriptor goes on, however long the frame.
    NoEnd,
}

impl Lie {
    pub(crate) fn excess(self) -> u32 {
        if let Lie::Longer(bytes) = self { bytes } else { 0 }
    }

    /// What a descriptor says comes after it, of a frame whose first is `first`.
    pub(crate) fn next(self, next: u64, first: u64) -> u64 {
        match self {
            Lie::Nowhere => first + (1 << 30) + 8,
            Lie::Loop => first,
            Lie::NoEnd => 0,
            Lie::None | Lie::Longer(_) => next,
        }
    }
}

struct Shared {
    device: Mutex<Device>,
    lines: Lines,
    bell: Bell,
}

/// The device; a clone is another handle of the same.
#[derive(Clone)]
pub struct Cpsw {
    shared: Arc<Shared>,
    dma: ModelDma,
    config: Arc<Config>,
}

impl Cpsw {
    /// A device after reset, its ports without wires.
    ///
    /// # Errors
    /// What the system said when descriptors for the interrupts, or memory for the tables of the IOMMU, were asked for.
    pub fn new(config: Config) -> std::io::Result<Cpsw> {
        let violations = Arc::new(Violations::new(config.strict));
        let dma = ModelDma::new(&config.iommu, violations).map_err(std::io::Error::other)?;
        let device = Mutex::new(Device::new(config.clone(), dma.clone()));
        let shared = Arc::new(Shared { device, lines: Lines::default(), bell: Bell::new()? });
        Ok(Cpsw { shared, dma, config: Arc::new(config) })
    }

    /// The way of a driver to it.
    pub fn bus(&self) -> CpswBus {
        CpswBus::new(self.clone(), None)
    }

    /// The same, with a thread that gives the device its life for as long as the bus is there.
    ///
    /// # Errors
    /// What the system said.
    pub fn running_bus(&self) -> std::io::Result<CpswBus> {
        Ok(CpswBus::new(self.clone(), Some(self.spawn()?)))
    }

    /// The calls of firmware.
    pub fn firmware(&self) -> Firmware {
        Firmware::new(self.clone())
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn device(&self) -> MutexGuard<'_, Device> {
        self.shared.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins MAC port `port`, 1 and up, to a wire.
    pub fn plug(&self, port: u8, wire: impl Wire) {
        let mut device = self.device();
        if let Some(port) = device.switch.port(port) {
            port.wire = Box::new(wire);
        }
        drop(device);
        self.shared.bell.ring();
    }

    /// Holds up what MAC port `port` sends, or lets it go on.
    pub fn stall(&self, port: u8, on: bool) {
        let mut device = self.device();
        if let Some(port) = device.switch.port(port) {
            port.stalled = on;
        }
        drop(device);
        self.shared.bell.ring();
    }

    /// Has MAC port `port` send one frame in `turns` turns that it gets; 1 is its full rate.
    pub fn slow_down(&self, port: u8, turns: u32) {
        if let Some(port) = self.device().switch.port(port) {
            port.turns = turns.max(1);
        }
    }

    /// Puts a frame of MAC port `port` in front of the receive channel; false when there was no room.
    pub fn inject(&self, port: u8, frame: &[u8], meta: Injected) -> bool {
        let Injected { priority, error, timestamp, lie } = meta;
        let arrived = switch::Arrived { bytes: frame.to_vec(), port, priority, error, timestamp, lie };
        let taken = self.device().switch.inject(arrived);
        self.shared.bell.ring();
        taken
    }

    /// Performs one action, the `choice`-th (modulo their number) of those that are possible; false when there is none.
    pub fn step(&self, choice: u64) -> bool {
        let mut device = self.device();
        let moved = device.step(choice);
        self.shared.lines.update(&device);
        moved
    }

    /// Performs up to `steps` actions in the order that `seed` decides; returns how many.
    pub fn run(&self, seed: u64, steps: usize) -> usize {
        let mut seed = Seed::new(seed);
        (0..steps).take_while(|_| self.step(seed.next())).count()
    }

    /// Performs actions in a fixed order until none is possible; returns how many.
    pub fn settle(&self) -> usize {
        let mut done = 0;
        let mut device = self.device();
        while done < SETTLE {
            match device.sweep() {
                0 => break,
                n => done += n,
            }
        }
        self.shared.lines.update(&device);
        done
    }

    /// Changes [`Config::steps_per_read`].
    pub fn answer_reads(&self, steps: u16) {
        self.device().config.steps_per_read = steps;
    }

    /// The first violation that was seen, if any.
    pub fn violation(&self) -> Option<Violation> {
        self.device().check.first().cloned()
    }

    /// How many violations there were.
    pub fn violations(&self) -> u64 {
        self.device().check.count()
    }

    /// Accesses that the processor made to rings.
    pub fn accesses(&self) -> Accesses {
        self.device().accesses()
    }

    /// Accesses that the processor made to one ring.
    pub fn ring_accesses(&self, ring: u16) -> Accesses {
        self.device().rings.get(usize::from(ring)).map(|ring| ring.accesses).unwrap_or_default()
    }

    /// Accesses that the processor made to channel registers.
    pub fn channel_accesses(&self) -> u64 {
        self.device().channel_accesses
    }

    /// What MAC port `port` counted.
    pub fn port_stats(&self, port: u8) -> PortStats {
        self.device().switch.port(port).map(|port| port.stats).unwrap_or_default()
    }

    /// Frames that found no free descriptor.
    pub fn starved(&self) -> u64 {
        self.device().rx.starved
    }

    /// Packets that the engine has taken and not given back.
    pub fn in_flight(&self) -> usize {
        self.device().in_flight()
    }

    /// Descriptors that the host announced and has not back; known to a strict model.
    pub fn descriptors_away(&self) -> usize {
        self.device().check.away()
    }

    /// Actions performed since reset.
    pub fn steps(&self) -> u64 {
        self.device().steps
    }

    /// The IOMMU: counts, faults, and [violations](ModelDma::violations) of its own.
    pub fn iommu(&self) -> &ModelDma {
        &self.dma
    }

    /// Gives the device a thread, until the handle is dropped.
    ///
    /// # Errors
    /// What the system said.
    pub fn spawn(&self) -> std::io::Result<Running> {
        Running::start(self.clone())
    }
}

impl std::fmt::Debug for Cpsw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpsw").field("config", &self.config).finish_non_exhaustive()
    }
}
