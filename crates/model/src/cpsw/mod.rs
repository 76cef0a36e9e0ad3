//! A model of CPSW, TI's Ethernet switch of K3 processors, and of its DMA engine: faithful, and
//! strict.
//!
//! ```text
//!   driver ── CpswBus ──┬─ registers ─► Device ──┬─ Ring …       memory, occupancies, doorbells
//!             Firmware ─┘                        ├─ TxChannel …  fetch, read, transmit, complete
//!                  Irq ◄── levels of rings       ├─ RxChannel    fetch, write, complete
//!             IOMMU ◄───── memory accesses       └─ Switch       host port, MAC ports, Wire …
//! ```
//!
//! | file | content |
//! |---|---|
//! | `bus`, `firmware` | what a driver sees: registers, interrupts, firmware calls |
//! | `device` | register access, and the actions that the device can do next |
//! | `ring`, `accesses` | one ring, and the register accesses to it |
//! | `descriptor` | CPPI5 host descriptors |
//! | `tx`, `rx` | the transmit channels, the receive channel |
//! | `switch`, `ale`, `checksum` | the switch: host port, address lookup engine, checksums |
//! | `mac_port`, `mac`, `mdio`, `phy` | a MAC port, its MAC, the management bus, a PHY |
//! | `check` | the rules of a strict model |
//! | `dma_view` | memory as the device sees it |
//! | `soc`, `setup` | numbers of each SoC and grants; what firmware has set up |
//! | `config`, `thread` | configuration; the device on a thread of its own |
//!
//! *Faithful*: like silicon, the device reports no error, and damage spreads. A doorbell of 0x80
//! counts −128, an overwritten slot is fetched with its new content, and an occupancy that is
//! popped below zero wraps. *Strict* ([`Config::strict`]): the model also keeps the first
//! [`Violation`] of its rules, with ring, slot, descriptor and history.
//!
//! The device runs in one of two modes. [`Cpsw::step`] performs one of the possible actions, chosen
//! by a number, so that a seed decides the interleaving ([`Cpsw::run`],
//! [`Config::steps_per_read`]). [`Cpsw::spawn`] gives the device a thread of its own.
//!
//! Both families of DMA engines are modelled: PKTDMA with two-sided rings (AM64x, AM62x), and UDMA
//! with a ring accelerator (J784S4), whose free rings can be exposed or in message mode. The model
//! counts register accesses exactly. It does not show the cost of an access on silicon.
//!
//! Not modelled: VLANs and classifiers of the address lookup engine, SERDES, and time stamps of
//! CPTS except those that a test injects.

mod accesses;
mod ale;
mod bus;
mod check;
mod checksum;
mod config;
mod descriptor;
mod device;
mod dma_view;
mod firmware;
mod mac;
mod mac_port;
mod mdio;
mod phy;
mod ring;
mod rx;
mod setup;
mod soc;
mod switch;
mod thread;
mod tx;

pub use accesses::Accesses;
pub use bus::{CpswBus, CpswIrq, Registers};
pub use check::{Rule, Violation};
pub use config::{Config, IrqMode, RxMarker};
pub use firmware::Firmware;
pub use mac_port::PortStats;
pub use phy::{Partner, PhyStart};
pub use soc::{Family, Grants, Soc};
pub use thread::Running;

use crate::iommu::ModelDma;
use crate::seed::Seed;
use crate::violation::Violations;
use crate::wire::Wire;
use bus::Lines;
use device::Device;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thread::Wakeup;

/// Actions after which [`Cpsw::settle`] returns: far more than any queue holds.
const SETTLE: usize = 10_000_000;

/// Properties of a frame that a test injects in front of the receive channel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Injected {
    /// User priority, 0 to 7, which decides the flow.
    pub priority: u8,
    /// Error code of the descriptor; 0 is none.
    pub error: u8,
    /// Time of arrival in nanoseconds.
    pub timestamp: u64,
    /// A corruption of the frame's descriptors.
    pub corruption: Corruption,
}

/// A corruption that a broken engine writes to the descriptors of a frame. A driver must detect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Corruption {
    /// No corruption.
    #[default]
    None,
    /// The frame's length is this many bytes too large.
    TooLong(u32),
    /// UDMA: the next pointers lead to no descriptor.
    NextUnknown,
    /// UDMA: the next pointers lead to the first descriptor.
    NextLoop,
    /// UDMA: the next pointers are zero.
    NextMissing,
}

impl Corruption {
    pub(crate) fn excess(self) -> u32 {
        if let Corruption::TooLong(bytes) = self { bytes } else { 0 }
    }

    /// The next pointer of a descriptor, which is `next` without a corruption; `first` is the first
    /// descriptor of the frame.
    pub(crate) fn next(self, next: u64, first: u64) -> u64 {
        match self {
            Corruption::NextUnknown => first + (1 << 30) + 8,
            Corruption::NextLoop => first,
            Corruption::NextMissing => 0,
            Corruption::None | Corruption::TooLong(_) => next,
        }
    }
}

struct CpswShared {
    device: Mutex<Device>,
    lines: Lines,
    wakeup: Wakeup,
}

/// The device. A clone is another handle of the same device.
#[derive(Clone)]
pub struct Cpsw {
    shared: Arc<CpswShared>,
    dma: ModelDma,
    config: Arc<Config>,
}

impl Cpsw {
    /// A device after reset. Its ports have no wires.
    ///
    /// # Errors
    /// The system has no file descriptor for the interrupts, or no memory for the tables of the
    /// IOMMU.
    pub fn new(config: Config) -> std::io::Result<Cpsw> {
        let violations = Arc::new(Violations::new(config.strict));
        let dma = ModelDma::new(&config.iommu, violations).map_err(std::io::Error::other)?;
        let device = Mutex::new(Device::new(config.clone(), dma.clone()));
        let shared = Arc::new(CpswShared { device, lines: Lines::default(), wakeup: Wakeup::new()? });
        Ok(Cpsw { shared, dma, config: Arc::new(config) })
    }

    /// The bus that a driver opens.
    pub fn bus(&self) -> CpswBus {
        CpswBus::new(self.clone(), None)
    }

    /// The same bus, with a thread that runs the device until the bus is dropped.
    ///
    /// # Errors
    /// The error of the system.
    pub fn running_bus(&self) -> std::io::Result<CpswBus> {
        Ok(CpswBus::new(self.clone(), Some(self.spawn()?)))
    }

    /// The firmware that a driver calls.
    pub fn firmware(&self) -> Firmware {
        Firmware::new(self.clone())
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn device(&self) -> MutexGuard<'_, Device> {
        self.shared.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects MAC port `port`, 1 and up, to a wire.
    pub fn plug(&self, port: u8, wire: impl Wire) {
        let mut device = self.device();
        if let Some(port) = device.switch.port(port) {
            port.wire = Box::new(wire);
        }
        drop(device);
        self.shared.wakeup.signal();
    }

    /// Stalls the transmission of MAC port `port`, or resumes it.
    pub fn stall(&self, port: u8, on: bool) {
        let mut device = self.device();
        if let Some(port) = device.switch.port(port) {
            port.stalled = on;
        }
        drop(device);
        self.shared.wakeup.signal();
    }

    /// Makes MAC port `port` send one frame in `turns` turns; 1 is the full rate.
    pub fn slow_down(&self, port: u8, turns: u32) {
        if let Some(port) = self.device().switch.port(port) {
            port.turns = turns.max(1);
        }
    }

    /// Sets the other end of the cable of MAC port `port`, which takes effect with its next link.
    pub fn set_partner(&self, port: u8, partner: Partner) {
        if let Some(port) = self.device().switch.port(port) {
            port.phy.set_partner(partner);
        }
    }

    /// Makes the reset of the MAC of port `port` never end.
    pub fn hang_mac(&self, port: u8) {
        if let Some(port) = self.device().switch.port(port) {
            port.mac.hung = true;
        }
    }

    /// MACCONTROL of MAC port `port`.
    pub fn mac_control(&self, port: u8) -> u32 {
        self.device().switch.port(port).map_or(0, |port| port.mac.control())
    }

    /// The address from which the MAC of port `port` sends pause frames.
    pub fn mac_address(&self, port: u8) -> [u8; 6] {
        self.device().switch.port(port).map(|port| port.mac.address()).unwrap_or_default()
    }

    /// A register of the PHY of MAC port `port`.
    pub fn phy_register(&self, port: u8, register: usize) -> u16 {
        self.device().switch.port(port).map_or(0, |port| port.phy.register(register))
    }

    /// Transactions on the management bus that the driver left to the controller.
    pub fn automatic_mdio(&self) -> u64 {
        self.device().switch.mdio.automatic
    }

    /// Sets the device's clock forward.
    pub fn advance(&self, time: Duration) {
        self.device().switch.ahead += time;
    }

    /// Injects a frame of MAC port `port` in front of the receive channel; false if its queue is
    /// full.
    pub fn inject(&self, port: u8, frame: &[u8], meta: Injected) -> bool {
        let Injected { priority, error, timestamp, corruption } = meta;
        let frame = switch::RxFrame { bytes: frame.to_vec(), port, priority, error, timestamp, corruption };
        let taken = self.device().switch.inject(frame);
        self.shared.wakeup.signal();
        taken
    }

    /// The engine pushes the next `n` completions of transmit channels twice, as a broken engine of
    /// the UDMA family would. A driver must count the second one as a stray. A completion is pushed
    /// twice only if the ring has a slot for it. The engine then waits for the host to pop when the
    /// ring is full.
    pub fn repeat_completions(&self, n: u32) {
        self.device().repeated = n;
    }

    /// Performs one of the possible actions: number `choice`, modulo their number. Returns false if
    /// there is none.
    pub fn step(&self, choice: u64) -> bool {
        let mut device = self.device();
        let moved = device.step(choice);
        self.shared.lines.update(&device);
        moved
    }

    /// Performs up to `steps` actions in the order that `seed` decides; returns their number.
    pub fn run(&self, seed: u64, steps: usize) -> usize {
        let mut seed = Seed::new(seed);
        (0..steps).take_while(|_| self.step(seed.next())).count()
    }

    /// Performs actions in a fixed order until none is possible; returns their number.
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
    pub fn set_steps_per_read(&self, steps: u16) {
        self.device().config.steps_per_read = steps;
    }

    /// The first violation of a rule.
    pub fn violation(&self) -> Option<Violation> {
        self.device().check.first().cloned()
    }

    /// Number of violations.
    pub fn violations(&self) -> u64 {
        self.device().check.count()
    }

    /// Register accesses of the driver to all rings.
    pub fn accesses(&self) -> Accesses {
        self.device().accesses()
    }

    /// Register accesses of the driver to one ring.
    pub fn ring_accesses(&self, ring: u16) -> Accesses {
        self.device().rings.get(usize::from(ring)).map(|ring| ring.accesses).unwrap_or_default()
    }

    /// Accesses of the driver to channel registers.
    pub fn channel_accesses(&self) -> u64 {
        self.device().channel_accesses
    }

    /// Statistics of MAC port `port`.
    pub fn port_stats(&self, port: u8) -> PortStats {
        self.device().switch.port(port).map(|port| port.stats).unwrap_or_default()
    }

    /// Frames that found no free descriptor.
    pub fn starved(&self) -> u64 {
        self.device().rx.starved
    }

    /// Packets that the engine has fetched and not completed.
    pub fn in_flight(&self) -> usize {
        self.device().in_flight()
    }

    /// Descriptors that the host announced and has not popped; only a strict model knows them.
    pub fn owned_descriptors(&self) -> usize {
        self.device().check.owned()
    }

    /// Number of actions since reset.
    pub fn steps(&self) -> u64 {
        self.device().steps
    }

    /// The IOMMU: counts, faults, and [violations](ModelDma::violations) of its own.
    pub fn iommu(&self) -> &ModelDma {
        &self.dma
    }

    /// Runs the device on a thread until the handle is dropped.
    ///
    /// # Errors
    /// The error of the system.
    pub fn spawn(&self) -> std::io::Result<Running> {
        Running::start(self.clone())
    }
}

impl std::fmt::Debug for Cpsw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpsw").field("config", &self.config).finish_non_exhaustive()
    }
}
