//! Interrupts: which kind the port uses, how the chip is programmed for it, and what a queue waits
//! for (§7.4; Linux: `e1000_configure_msix`, `e1000_configure_rx`, `e1000_msix_other`).
//!
//! ```text
//!   MSI-X    RXQ0 ─► vector 0 ─┐               a message clears and masks its queue's cause
//!            RXQ1 ─► vector 1 ─┤
//!            OTHER ► the last ─┤ (shared if there are fewer)
//!   MSI      RXT0, LSC … ──────┤               reading ICR clears and masks all
//!   INTx     the same, a line ─┤               and the line is masked by the system as it fires
//!   removal, error (Events) ───┴─► an epoll per receive queue ─► Wake::Fd
//! ```
//!
//! A queue that is polled is masked: [`Interrupts::arm`] unmasks it when its worker is about to
//! sleep, [`Interrupts::disarm`] masks it afterwards. Causes of the link stay unmasked, so that a
//! sleeping worker sees a change at once.

use super::config::{Config, ConfigError, InterruptMode};
use super::regs::*;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use towpath_bus::{BusError, Events, Irq, IrqKind, Mmio, Pci};
use towpath_sys::Epoll;
use towpath_sys::poll::PollSet;

/// Tags of descriptors in a queue's epoll: the queue's interrupt, the link's, an event of the
/// function.
const QUEUE_FIRED: u64 = 1;
const OTHER_FIRED: u64 = 2;
const EVENT_FIRED: u64 = 4;

/// Causes of the one interrupt of MSI and INTx that are a receiver's.
const RECEIVED: u32 = cause::RX_TIMER | cause::RX_FEW | cause::OVERRUN;
/// Causes that MSI-X reports together.
const OTHERS: u32 = cause::OTHER | cause::LINK | cause::OVERRUN;
/// At most one interrupt in 20 µs, in units of 256 ns.
const INTERVAL: u32 = 80;

/// The kind of interrupts for a port; `None` if it is polled.
///
/// # Errors
/// The function does not offer what the configuration asks for.
pub(super) fn choose<B: Pci>(bus: &B, config: &Config, queues: u16) -> Result<Option<IrqKind>, ConfigError> {
    let (value, kinds) = match &config.interrupts {
        InterruptMode::Off => return Ok(None),
        InterruptMode::Auto => ("on", &IrqKind::ALL[..]),
        InterruptMode::Only(kind) => (["msix", "msi", "intx"][*kind as usize], std::slice::from_ref(kind)),
    };
    let offered = |kind: &IrqKind| bus.irq_count(*kind) > 0;
    let refuse = |rule: String| Err(ConfigError { option: "interrupts", value: value.to_owned(), rule });
    match kinds.iter().copied().find(offered) {
        Some(IrqKind::MsiX) => Ok(Some(IrqKind::MsiX)),
        Some(kind) if queues > 1 => {
            // One interrupt for two queues would wake the worker of each for frames of the other.
            refuse(format!("{queues} queues need MSI-X, and this is {}: set queues=1, or interrupts=off", kind.name()))
        }
        Some(kind) => Ok(Some(kind)),
        None => {
            let some: Vec<_> = IrqKind::ALL.into_iter().filter(offered).map(IrqKind::name).collect();
            let some = if some.is_empty() { "no interrupts".to_owned() } else { some.join(", ") };
            refuse(format!("the function offers {some} here: set interrupts=off, or another kind"))
        }
    }
}

/// The interrupts of a running port, and the events of its function.
pub(super) struct Interrupts<I> {
    kind: Option<IrqKind>,
    irqs: Vec<I>,
    events: Events<I>,
    queues: u16,
    /// The link has changed since it came up, and the cause was taken.
    link_changed: AtomicBool,
}

impl<I: Irq> Interrupts<I> {
    /// Connects the interrupts of a kind, and the events. The device has been reset, and is not
    /// started. If messages of MSI do not arrive, the line takes their place.
    ///
    /// # Errors
    /// [`BusError`] of the bus; the messages of MSI do not arrive, and the configuration allows no
    /// other kind.
    pub(super) fn connect<B: Pci<Irq = I>>(
        bus: &B,
        bar: &B::Bar,
        config: &Config,
        kind: Option<IrqKind>,
        queues: u16,
    ) -> Result<Interrupts<I>, BusError> {
        let (mut kind, mut irqs) = (kind, bus.irqs(0)?);
        if let Some(some) = kind {
            let vectors = if some == IrqKind::MsiX { queues + 1 } else { 1 };
            irqs = bus.irqs_of(some, vectors.min(bus.irq_count(some)))?;
        }
        if kind == Some(IrqKind::Msi) && !irqs.iter().all(|irq| arrives(bus, bar, irq)) {
            if config.interrupts != InterruptMode::Auto || bus.irq_count(IrqKind::Intx) == 0 {
                let what = "its messages (MSI) do not arrive: set interrupts=off, or interrupts=intx";
                return Err(BusError::device(bus.name(), what));
            }
            kind = Some(IrqKind::Intx);
            irqs = bus.irqs_of(IrqKind::Intx, 1)?;
        }
        Ok(Interrupts { kind, irqs, events: bus.events()?, queues, link_changed: AtomicBool::new(false) })
    }

    /// The vector of a receive queue.
    fn vector(&self, queue: u32) -> u32 {
        queue.min(self.last())
    }

    fn last(&self) -> u32 {
        (self.irqs.len() as u32).saturating_sub(1)
    }

    /// What the worker of a receive queue waits for; `None` if it polls.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn wait_set(&self, queue: u32) -> io::Result<Option<Epoll>> {
        let own = self.vector(queue) as usize;
        let tag = |vector: usize| {
            let (queue, other) = (vector == own, vector == self.last() as usize);
            (if queue { QUEUE_FIRED } else { 0 }) | (if other { OTHER_FIRED } else { 0 })
        };
        let irqs = self.irqs.iter().enumerate().map(|(vector, irq)| (irq.fd(), tag(vector))).filter(|irq| irq.1 != 0);
        let events = [&self.events.removal, &self.events.error].into_iter().flatten().map(|e| (e.fd(), EVENT_FIRED));
        let set = Epoll::new()?;
        let mut waits = false;
        for (fd, tag) in irqs.chain(events) {
            match fd {
                // Each signal counts once, so that none of them has to be read.
                Some(fd) => set.add_tagged(fd, true, tag)?,
                // Interrupts of this bus can't be waited for.
                None => return Ok(None),
            }
            waits |= tag & QUEUE_FIRED != 0;
        }
        Ok(waits.then_some(set))
    }

    /// Programs the chip, at the start and after every reset.
    pub(super) fn program<M: Mmio>(&self, bar: &M) {
        match self.kind {
            None => {}
            Some(IrqKind::MsiX) => self.program_msix(bar),
            Some(IrqKind::Msi | IrqKind::Intx) => {
                IAM.write(bar, cause::ALL);
                ITR.write(bar, INTERVAL);
                CTRL_EXT.change(bar, ctrl_ext::AUTO_MASK, ctrl_ext::ACK_AUTO_MASK);
            }
        }
    }

    fn program_msix<M: Mmio>(&self, bar: &M) {
        let queues = 0..u32::from(self.queues);
        let causes = queues.clone().fold(0, |bits, queue| bits | cause::RX_QUEUE_0 << queue);
        let vectors = queues.fold(0, |word, queue| word | (IVAR_VALID | self.vector(queue)) << (4 * queue));
        IVAR.write(bar, vectors | (IVAR_VALID | self.last()) << IVAR_OTHER_SHIFT);
        // OTHER is not cleared by its message: ICR names its causes.
        EIAC.write(bar, causes);
        IAM.write(bar, causes);
        for vector in 0..self.irqs.len() as u32 {
            EITR.nth(vector, 4).write(bar, INTERVAL);
        }
        CTRL_EXT.change(bar, ctrl_ext::ACK_AUTO_MASK, ctrl_ext::AUTO_MASK | ctrl_ext::CLEAR_PENDING);
        IMS.write(bar, OTHERS);
    }

    /// Unmasks the interrupt of a queue whose worker is about to sleep. The worker polls once more
    /// before it does: earlier causes are known, or that poll finds their frames.
    pub(super) fn arm<M: Mmio>(&self, bar: &M, queue: u32) {
        if self.kind == Some(IrqKind::MsiX) {
            ICR.write(bar, cause::RX_QUEUE_0 << queue);
            IMS.write(bar, cause::RX_QUEUE_0 << queue);
        } else {
            ICR.write(bar, RECEIVED);
            self.irqs.iter().for_each(Irq::unmask);
            IMS.write(bar, RECEIVED | cause::LINK);
        }
    }

    /// Masks it again; `set` is the queue's. Returns whether the link, or an event of the function,
    /// may be the reason why the worker was woken.
    pub(super) fn disarm<M: Mmio>(&self, bar: &M, queue: u32, set: &Epoll) -> bool {
        let fired = set.take();
        if self.kind == Some(IrqKind::MsiX) {
            IMC.write(bar, cause::RX_QUEUE_0 << queue);
            return fired & EVENT_FIRED != 0 || fired & OTHER_FIRED != 0 && self.take_others(bar);
        }
        // If an interrupt was asserted, reading it clears and masks its causes.
        let causes = ICR.read(bar);
        if causes & cause::ASSERTED == 0 {
            IMC.write(bar, RECEIVED | cause::LINK);
        }
        fired & EVENT_FIRED != 0 || self.is_link(causes)
    }

    /// Whether causes that were taken are of the link, which is noted.
    fn is_link(&self, causes: u32) -> bool {
        if causes & cause::LINK != 0 {
            self.link_changed.store(true, Relaxed);
        }
        causes & cause::LINK != 0
    }

    /// The link has come up: from here on a change is a loss.
    pub(super) fn forget_link_change<M: Mmio>(&self, bar: &M) {
        ICR.write(bar, cause::LINK);
        self.link_changed.store(false, Relaxed);
    }

    /// Whether the link has changed since then: it was lost, and may be back.
    #[cold]
    pub(super) fn link_has_changed<M: Mmio>(&self, bar: &M) -> bool {
        self.is_link(ICR.read(bar)) || self.link_changed.load(Relaxed)
    }

    /// Clears the causes of OTHER; returns whether there were any.
    fn take_others<M: Mmio>(&self, bar: &M) -> bool {
        let causes = ICR.read(bar);
        // Reading has cleared the causes of queues too, on silicon, and those of OTHER not, in
        // QEMU.
        ICR.write(bar, causes & OTHERS);
        let queues = causes & cause::RX_QUEUES;
        if queues != 0 {
            ICS.write(bar, queues);
        }
        self.is_link(causes) || causes & OTHERS != 0
    }

    /// Whether the system requested the function since the last call.
    pub(super) fn take_removal(&self) -> bool {
        self.events.removal.as_ref().is_some_and(|event| event.take() > 0)
    }

    /// Whether the bus has reported an error, since the last call.
    pub(super) fn take_error(&self) -> bool {
        self.events.error.as_ref().is_some_and(|event| event.take() > 0)
    }
}

/// Whether the message of MSI arrives: some chipsets lose it (Linux: `e1000_test_msi`, by RXSEQ,
/// which QEMU can't unmask). The device neither receives nor sends.
fn arrives<B: Pci>(bus: &B, bar: &B::Bar, irq: &B::Irq) -> bool {
    const LONGEST: Duration = Duration::from_millis(100);
    let Some(fd) = irq.fd() else { return false };
    let _ = ICR.read(bar);
    // A message is a write to memory.
    bus.set_master(true);
    IMS.write(bar, cause::LINK);
    ICS.write(bar, cause::LINK);
    let mut set = PollSet::default();
    set.readable(fd);
    set.wait(LONGEST);
    IMC.write(bar, cause::ALL);
    let _ = ICR.read(bar);
    bus.set_master(false);
    irq.take() > 0
}
