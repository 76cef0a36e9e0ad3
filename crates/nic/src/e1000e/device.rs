//! The device as its queues share it: its status and statistics, and how it is reset and stopped.
//!
//! The last queue that ends stops the device. Buffers, rings, pool and domain are freed only if the
//! device is *seen* idle: no access to memory is under way, or the bus lets none pass. If it can't
//! be seen, all that the device can reach is leaked, and [`Faults::leaked`](super::Faults::leaked)
//! counts the buffers.

use super::config::{Config, MS};
use super::control::{Control, Fault};
use super::dump;
use super::init::{self, Layout};
use super::interrupts::Interrupts;
use super::phy::{self, Settled};
use super::regs::{MPC, RX_ERRORS, STATUS, TX_ERRORS, status};
use super::rx::RxRing;
use super::tx::TxRing;
use crate::common::end;
use crate::common::link::LinkStatus;
use crate::common::reset::{ResetDevice, ResetGroup, ResetScope};
use crate::common::settings::Follow;
use crate::sync::{Mutex, MutexGuard, lock};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_bus::{Dma, Domain, Mmio, Pci, Reg};
use towpath_packet::port::State;
use towpath_packet::{Counters, Missed};

const NO_LINK: &str = "no link";
const GAVE_UP: &str = "the device does not answer, or hangs after every reset";
const REMOVED: &str = "the device was removed";
const REQUESTED: &str = "the system wants the device back: it is unbound, or taken out of its slot";

/// What the next reset has to repair first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Memory decoding of the function is off, or something else hides its registers.
    Hidden,
    /// The bus has reported an error: only a reset of the function ends it.
    BusError,
}

/// The device.
pub(super) struct Device<B: Pci> {
    resets: ResetGroup<QueueRing<B::Dma>>,
    pub(super) bar: B::Bar,
    pub(super) config: Config,
    pub(super) control: Control,
    rss: bool,
    /// What is programmed. Its lock is held while registers change that are set up with it: RCTL,
    /// the filters, and all of them during a reset.
    layout: Mutex<Layout>,
    stopped: AtomicBool,
    /// The PHY, and the link as far as the MAC follows it. The semaphore of the device excludes
    /// firmware, not another thread.
    phy: Mutex<PhyState>,
    pub(super) interrupts: Interrupts<B::Irq>,
    trouble: Mutex<Trouble>,
    /// Why the device was given up, or why it could not be reset.
    reason: Mutex<Option<Cow<'static, str>>>,
    // In this order: the domain takes its memory back from the device before the device is closed.
    domain: Domain<B::Dma>,
    bus: Mutex<B>,
}

#[derive(Default)]
struct PhyState {
    /// Transmission is enabled for the link, which has not changed since.
    sends: bool,
    /// The MAC follows what both ends of the link agreed on.
    settled: bool,
    watch: phy::Watch,
}

/// The ring of a queue that has ended.
pub(super) type QueueRing<D> = end::QueueRing<RxRing<D>, TxRing<D>>;

impl<B: Pci> Device<B> {
    /// A device that runs, with its queues.
    pub(super) fn new(
        bus: B,
        bar: B::Bar,
        domain: Domain<B::Dma>,
        config: Config,
        layout: Layout,
        control: Control,
        interrupts: Interrupts<B::Irq>,
    ) -> Device<B> {
        let resets = ResetGroup::new((layout.rx.len() + layout.tx.len()) as u32);
        let (phy, trouble) = (Mutex::new(PhyState::default()), Mutex::new(Trouble::None));
        let (rss, stopped, reason) = (layout.rss, AtomicBool::new(false), Mutex::new(None));
        let layout = Mutex::new(layout);
        let bus = Mutex::new(bus);
        Device { resets, bar, config, control, rss, layout, stopped, phy, interrupts, trouble, reason, domain, bus }
    }

    fn layout(&self) -> MutexGuard<'_, Layout> {
        lock(&self.layout)
    }

    /// Programs the device after a reset. The rings are empty.
    pub(super) fn program(&self) {
        let (config, _) = self.control.current(&self.config);
        self.program_layout(&config, &self.layout());
    }

    fn program_layout(&self, config: &Config, layout: &Layout) {
        lock(&self.bus).set_master(true);
        init::program(&self.bar, config, layout);
        self.interrupts.program(&self.bar);
        self.control.programmed(config.max_frame(), layout.buffer.bytes);
    }

    /// The state of every queue.
    pub(super) fn state(&self) -> State {
        if self.resets.is_gone() {
            State::Gone(lock(&self.reason).clone().unwrap_or(GAVE_UP.into()))
        } else if self.control.link_is_up() {
            State::Up
        } else {
            State::Down(NO_LINK.into())
        }
    }

    /// Whether the device was given up.
    pub(super) fn is_gone(&self) -> bool {
        self.resets.is_gone()
    }

    #[cold]
    fn give_up(&self, reason: Cow<'static, str>) {
        lock(&self.reason).get_or_insert(reason);
        self.resets.give_up();
    }

    /// Serves the events of the function, and reads the status: notes the link, and gives up a
    /// device that is no longer there, or that the system requests. Returns the register. The
    /// caller requests a reset if the device [`needs_reset`](Device::needs_reset) afterwards.
    #[cold]
    pub(super) fn check_link(&self) -> u32 {
        if self.interrupts.take_removal() {
            self.give_up(REQUESTED.into());
        }
        if self.interrupts.take_error() {
            self.control.fault(Fault::BusError);
            *lock(&self.trouble) = Trouble::BusError;
        }
        let word = STATUS.read(&self.bar);
        let answers = init::answers(&self.bar, word);
        if !answers {
            self.look_for();
        }
        let up = answers && word & status::LINK_UP != 0;
        let speed = [10, 100, 1000, 1000][(word >> status::SPEED_SHIFT & 3) as usize];
        let full_duplex = word & status::FULL_DUPLEX != 0;
        // Queues send as soon as the link is noted.
        if answers {
            self.settle(up, full_duplex);
        }
        self.control.set_link(LinkStatus { up, speed, full_duplex });
        word
    }

    /// The registers do not answer: the configuration space distinguishes a device that is gone
    /// from one whose registers are hidden. After an error of the bus the reset finds that out.
    #[cold]
    fn look_for(&self) {
        if self.needs_reset() {
            return;
        }
        let id = lock(&self.bus).config_r32(ID);
        if id == u32::MAX {
            self.give_up(REMOVED.into());
        } else if id & 0xffff != RETRY {
            *lock(&self.trouble) = Trouble::Hidden;
        }
    }

    /// Whether the device works only after a reset.
    #[cold]
    pub(super) fn needs_reset(&self) -> bool {
        *lock(&self.trouble) != Trouble::None
    }

    /// Makes the registers of the device answer, before it is reset by them; returns whether they
    /// may.
    fn uncover(&self, scope: ResetScope) -> bool {
        let trouble = *lock(&self.trouble);
        let bus = lock(&self.bus);
        if trouble != Trouble::None {
            // Enables decoding, and disables DMA.
            bus.set_master(false);
        }
        if scope == ResetScope::Device && trouble != Trouble::BusError {
            return true;
        }
        if let Err(error) = bus.reset() {
            if trouble == Trouble::BusError {
                let why = format!("the bus has reported an error, and the function can't be reset: {error}");
                *lock(&self.reason) = Some(why.into());
            }
            return false;
        }
        self.control.fault(Fault::FunctionReset);
        // Registers are decoded again.
        bus.set_master(false);
        true
    }

    /// Lets the MAC follow the link once it has come up.
    fn settle(&self, up: bool, full_duplex: bool) {
        let mut state = lock(&self.phy);
        if !up {
            (state.sends, state.settled) = (false, false);
            return;
        }
        if !state.sends {
            self.interrupts.forget_link_change(&self.bar);
            init::enable_transmit(&self.bar);
            state.sends = true;
        }
        if !state.settled {
            // A PHY that does not answer is not asked again: each attempt takes a while.
            state.settled = match phy::settle(&self.bar, &self.config, full_duplex) {
                Ok(Settled::NotYet) => false,
                Ok(Settled::Yes { downshifted }) => {
                    if downshifted {
                        self.control.fault(Fault::Downshift);
                    }
                    true
                }
                Err(_) => {
                    self.control.fault(Fault::PhySilent);
                    true
                }
            };
        }
    }

    /// Whether the PHY hangs, by an erratum of the 82574.
    pub(super) fn phy_is_stuck(&self) -> bool {
        self.rss && lock(&self.phy).watch.is_stuck(&self.bar, &self.config)
    }
}

impl<B: Pci> Follow for Device<B> {
    fn is_gone(&self) -> bool {
        self.resets.is_gone()
    }

    fn registers(&self) -> Vec<(&'static str, u64)> {
        // No reset, and no other access to the PHY, happens meanwhile.
        let (_layout, _phy) = (self.layout(), lock(&self.phy));
        if self.stopped.load(Ordering::Relaxed) { Vec::new() } else { dump::registers(&self.bar) }
    }

    #[cold]
    fn follow(&self) {
        let mut layout = self.layout();
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let (config, mac) = self.control.current(&self.config);
        layout.filters.change(&self.bar, &config.filter, mac);
        if config.mtu == layout.mtu {
            return;
        }
        if layout.fits(&config) {
            init::long_frames(&self.bar, &config, &layout);
            layout.resize(&config);
            self.control.programmed(config.max_frame(), layout.buffer.bytes);
        } else {
            // No queue sends a longer frame before: all halt first.
            drop(layout);
            self.resets.request_change();
        }
    }
}

impl<B: Pci> ResetDevice for Device<B> {
    type Ring = QueueRing<B::Dma>;

    #[inline]
    fn resets(&self) -> &ResetGroup<QueueRing<B::Dma>> {
        &self.resets
    }

    fn reset(&self, scope: ResetScope) -> bool {
        self.control.forget_link();
        let mut layout = self.layout();
        let (config, _) = self.control.current(&self.config);
        if config.mtu == layout.mtu {
            self.control.fault(Fault::Reset);
        }
        let answers = || init::answers(&self.bar, STATUS.read(&self.bar));
        if !self.uncover(scope) || init::reset(&self.bar, &config).is_err() || !answers() {
            return false;
        }
        (*lock(&self.trouble), *lock(&self.reason)) = (Trouble::None, None);
        layout.resize(&config);
        *lock(&self.phy) = PhyState::default();
        // Without an answer of the PHY the port goes on: the link may be there all the same.
        if phy::bring_up(&self.bar, &self.config).is_err() {
            self.control.fault(Fault::PhySilent);
        }
        self.program_layout(&config, &layout);
        true
    }

    fn end(&self, rings: Vec<QueueRing<B::Dma>>) {
        let layout = self.layout();
        self.stopped.store(true, Ordering::Relaxed);
        drop(layout);
        let idle = stop(&*lock(&self.bus), &self.bar, &self.config);
        end::end(rings, idle, &self.domain);
    }
}

/// Vendor and device ID, the first word of the configuration space.
const ID: u16 = 0;
/// The vendor ID of a device that is not ready yet (PCI Express 4.0 §2.3.1).
const RETRY: u32 = 0x0001;

/// Stops the device. Returns whether it is known to access memory no more: the device confirms it,
/// or its configuration space shows that it is no bus master and has no transaction pending (PCI
/// Express 4.0 §7.5.1.1.3 Command, §7.5.3.5 Device Status). A device that was removed does not
/// reach the bus; behind an IOMMU that is believed, because the domain ends right afterwards.
pub(super) fn stop<B: Pci>(bus: &B, bar: &impl Mmio, config: &Config) -> bool {
    if bus.config_r32(ID) == u32::MAX {
        return bus.dma().limits().iommu;
    }
    let confirmed = init::quiesce(bar, config);
    // Descriptors that the device has fetched must not be executed later, under another driver.
    let answers = init::reset(bar, config).is_ok();
    bus.set_master(false);
    if answers {
        phy::shut_down(bar, config);
    }
    init::set_driver_loaded(bar, false);
    confirmed || is_silent(bus, bar)
}

/// Whether the configuration space says that the device is there, is no bus master, and has no
/// transaction pending.
fn is_silent<B: Pci>(bus: &B, bar: &impl Mmio) -> bool {
    const COMMAND: u16 = 0x04;
    const MASTER: u32 = 0x4;
    /// Device Status of the PCI Express capability, which this device has at 0xe0.
    const DEVICE_CONTROL_STATUS: u16 = 0xe8;
    const PENDING: u32 = 1 << 21;
    let command = bus.config_r32(COMMAND);
    if command == u32::MAX || command & MASTER != 0 {
        return false;
    }
    bar.poll(100 * MS, || bus.config_r32(DEVICE_CONTROL_STATUS) & PENDING == 0)
}

/// A statistics register; reading clears it (§10.2.7). A device that is gone has counted nothing.
fn statistic<M: Mmio>(bar: &M, register: Reg) -> u64 {
    match register.read(bar) {
        u32::MAX => 0,
        n => u64::from(n),
    }
}

/// Adds what the device has counted since the last time to the counters of a receive queue, with a
/// link: without one the device counts noise (Linux: `e1000_init_hw_82571`).
pub(super) fn add_rx_statistics<M: Mmio>(bar: &M, counters: &Counters) {
    counters.missed(Missed::Device, statistic(bar, MPC));
    counters.failed(RX_ERRORS.into_iter().map(|register| statistic(bar, register)).sum());
}

/// Adds what the device has counted since the last time to the counters of a transmit queue, with a
/// link in half duplex.
pub(super) fn add_tx_statistics<M: Mmio>(bar: &M, counters: &Counters) {
    counters.failed(TX_ERRORS.into_iter().map(|register| statistic(bar, register)).sum());
}
