//! Interrupts: causes, masks, and how they are signalled.
//!
//! ```text
//!   MSI-X   cause ──► ICR ──── & IMS ──► IVAR ──► vector ──► eventfd
//!                      │                           └ EIAC: clears the cause; EIAME: masks by IAM
//!   MSI     cause ──► ICR ──── & IMS, from none to some ──► eventfd
//!   INTx    cause ──► ICR ──── & IMS ──► line ──► eventfd, and masked until it is unmasked
//!                      └ ICR read: clears, see `read`
//! ```
//!
//! There is no moderation: ITR and EITR can be written, but have no effect.

use super::register_file::RegisterFile;
use super::regs::*;
use super::shared::DeviceShared;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use towpath_bus::{Events, IrqKind};
use towpath_sys::EventFd;

/// An interrupt, or an event of the function: a descriptor that is readable after it has fired.
#[derive(Debug, Clone)]
pub struct ModelIrq {
    event: Arc<EventFd>,
    /// The device of a line.
    line: Weak<DeviceShared>,
}

impl ModelIrq {
    fn new(line: Weak<DeviceShared>) -> std::io::Result<ModelIrq> {
        Ok(ModelIrq { event: Arc::new(EventFd::new()?), line })
    }
}

impl towpath_bus::Irq for ModelIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.event.fd())
    }

    fn take(&self) -> u64 {
        self.event.take()
    }

    fn unmask(&self) {
        if let Some(device) = self.line.upgrade() {
            device.env.irqs().unmask_line(&device.env.registers);
        }
    }
}

/// The causes and the connected vectors. The masks are in the register file.
#[derive(Debug)]
pub(crate) struct Irqs {
    icr: u32,
    kind: IrqKind,
    vectors: Vec<ModelIrq>,
    /// Some cause that is not masked is set (MSI, INTx).
    asserted: bool,
    /// Messages of MSI are lost.
    loses_msi: bool,
    /// The line has fired, and is masked.
    line_masked: bool,
    /// Removal and error of the function.
    events: [Option<ModelIrq>; 2],
    /// Interrupts sent.
    pub(crate) sent: u64,
    /// Interrupts that an injected fault has lost.
    pub(crate) lost: u64,
}

/// The shift of each cause's field in IVAR.
const ALLOCATION: [(u32, u32); 5] =
    [(cause::RXQ0, 0), (cause::RXQ0 << 1, 4), (cause::TXQ0, 8), (cause::TXQ0 << 1, 12), (cause::OTHER, 16)];
/// The causes that MSI-X reports as OTHER.
const OTHER: u32 = cause::LSC | cause::RXO | cause::MDAC;
/// The causes that only MSI-X has.
const OF_MSIX: u32 = 0x1f << 20;

impl Irqs {
    pub(crate) fn new(loses_msi: bool) -> Irqs {
        let (vectors, events) = (Vec::new(), [None, None]);
        let (asserted, line_masked) = (false, false);
        Irqs { icr: 0, kind: IrqKind::MsiX, vectors, asserted, loses_msi, line_masked, events, sent: 0, lost: 0 }
    }

    /// Connects `count` interrupts of a kind in place of all earlier ones.
    pub(crate) fn connect(
        &mut self,
        kind: IrqKind,
        count: u16,
        device: &Arc<DeviceShared>,
    ) -> std::io::Result<Vec<ModelIrq>> {
        let line = if kind == IrqKind::Intx { Arc::downgrade(device) } else { Weak::new() };
        self.vectors = (0..count).map(|_| ModelIrq::new(line.clone())).collect::<std::io::Result<_>>()?;
        (self.kind, self.asserted, self.line_masked) = (kind, false, false);
        Ok(self.vectors.clone())
    }

    /// Connects the events of the function in place of earlier ones.
    pub(crate) fn connect_events(&mut self) -> std::io::Result<Events<ModelIrq>> {
        let event = || ModelIrq::new(Weak::new()).map(Some);
        self.events = [event()?, event()?];
        let [removal, error] = self.events.clone();
        Ok(Events::new(removal, error))
    }

    /// The system requests the function.
    pub(crate) fn request_removal(&self) {
        self.events[0].iter().for_each(|event| event.event.signal());
    }

    /// The bus has reported an error.
    pub(crate) fn report_error(&self) {
        self.events[1].iter().for_each(|event| event.event.signal());
    }

    pub(crate) fn reset(&mut self) {
        (self.icr, self.asserted) = (0, false);
    }

    /// Sets causes and fires their vectors.
    pub(crate) fn raise(&mut self, registers: &RegisterFile, causes: u32, mut lose: impl FnMut() -> bool) {
        if self.kind != IrqKind::MsiX {
            self.icr |= causes & !OF_MSIX;
            return self.update(registers, &mut lose);
        }
        let causes = causes | if causes & OTHER != 0 { cause::OTHER } else { 0 };
        self.icr |= causes;
        let due = causes & registers.get(IMS);
        let ivar = registers.get(IVAR);
        let mut fired = 0u32;
        for (of, shift) in ALLOCATION.into_iter().filter(|(of, _)| due & of != 0) {
            let allocation = ivar >> shift & 0xf;
            if allocation & 8 == 0 || usize::from(allocation as u8 & 7) >= self.vectors.len() {
                continue;
            }
            if fired & (1 << (allocation & 7)) == 0 {
                fired |= 1 << (allocation & 7);
                self.fire((allocation & 7) as usize, &mut lose);
            }
            // Auto-clear, and auto-mask of the causes of this message (82574 datasheet §7.4.6,
            // §10.2.2.5).
            if registers.get(EIAC) & of != 0 {
                self.icr &= !of;
                if registers.get(CTRL_EXT) & CTRL_EXT_EIAME != 0 {
                    let message = ALLOCATION.into_iter().filter(|(_, shift)| ivar >> shift & 0xf == allocation);
                    let message = message.fold(0, |bits, (of, _)| bits | of);
                    registers.change(IMS, registers.get(IAM) & message, 0);
                }
            }
        }
    }

    fn fire(&mut self, vector: usize, lose: &mut dyn FnMut() -> bool) {
        let Some(vector) = self.vectors.get(vector) else { return };
        if lose() || self.loses_msi && self.kind == IrqKind::Msi {
            self.lost += 1;
        } else {
            self.sent += 1;
            vector.event.signal();
        }
    }

    /// Causes or masks have changed. A message is sent when there are causes after there were none,
    /// and a line is asserted as long as there are.
    fn update(&mut self, registers: &RegisterFile, lose: &mut dyn FnMut() -> bool) {
        let before = std::mem::replace(&mut self.asserted, self.icr & registers.get(IMS) != 0);
        let fires = match self.kind {
            IrqKind::MsiX => false,
            IrqKind::Msi => self.asserted && !before,
            IrqKind::Intx => self.asserted && !std::mem::replace(&mut self.line_masked, true),
        };
        if fires {
            self.fire(0, lose);
        }
    }

    fn unmask_line(&mut self, registers: &RegisterFile) {
        self.line_masked = false;
        self.update(registers, &mut || false);
    }

    /// A read of ICR (82574 datasheet §10.2.4.1): clears it if all causes are masked, or if an
    /// interrupt was asserted; otherwise it has no effect.
    pub(crate) fn read(&mut self, registers: &RegisterFile) -> u32 {
        let asserted = self.icr & registers.get(IMS) != 0;
        let value = self.icr | if asserted { cause::ASSERTED } else { 0 };
        if asserted || registers.get(IMS) == 0 {
            self.icr = 0;
        }
        if asserted && registers.get(CTRL_EXT) & CTRL_EXT_IAME != 0 {
            registers.change(IMS, registers.get(IAM), 0);
        }
        self.update(registers, &mut || false);
        value
    }

    /// A write of ICR clears the written bits.
    pub(crate) fn clear(&mut self, registers: &RegisterFile, bits: u32) {
        self.icr &= !bits;
        self.update(registers, &mut || false);
    }

    /// Causes were unmasked: pending ones fire now.
    pub(crate) fn unmask(&mut self, registers: &RegisterFile, bits: u32) {
        registers.change(IMS, 0, bits);
        let waiting = self.icr & bits;
        if waiting != 0 {
            self.raise(registers, waiting, || false);
        }
    }

    /// Causes were masked.
    pub(crate) fn mask(&mut self, registers: &RegisterFile, bits: u32) {
        registers.change(IMS, bits, 0);
        self.update(registers, &mut || false);
    }
}

/// Counters of register accesses, by kind.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// One per tail register, each written by one thread.
    pub(crate) tails: [AtomicU64; 4],
}

impl Accesses {
    #[inline]
    pub(crate) fn tail(&self, which: usize) {
        if let Some(count) = self.tails.get(which) {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_bus::Irq;

    const NO: fn() -> bool = || false;

    fn set_up() -> (RegisterFile, Irqs, Vec<ModelIrq>) {
        let (registers, mut irqs) = (RegisterFile::new([0; 6]), Irqs::new(false));
        let vectors: Vec<_> = (0..3).map(|_| ModelIrq::new(Weak::new()).unwrap()).collect();
        irqs.vectors = vectors.clone();
        registers.set(IVAR, 8 | (8 | 1) << 8 | (8 | 2) << 16);
        (registers, irqs, vectors)
    }

    #[test]
    fn a_cause_that_is_not_masked_fires_the_vector_it_is_allocated_to() {
        let (registers, mut irqs, vectors) = set_up();
        registers.set(IMS, cause::RXQ0 | cause::TXQ0);
        irqs.raise(&registers, cause::TXQ0, NO);
        assert_eq!(vectors.iter().map(Irq::take).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(vectors[1].take(), 0, "taken once");
    }

    #[test]
    fn a_masked_cause_fires_when_it_is_unmasked() {
        let (registers, mut irqs, vectors) = set_up();
        irqs.raise(&registers, cause::RXQ0, NO);
        assert_eq!(vectors[0].take(), 0);
        irqs.unmask(&registers, cause::RXQ0);
        assert_eq!(vectors[0].take(), 1);
    }

    #[test]
    fn a_cause_without_allocation_fires_nothing() {
        let (registers, mut irqs, vectors) = set_up();
        registers.set(IMS, u32::MAX >> 1);
        irqs.raise(&registers, cause::RXQ0 << 1, NO);
        assert!(vectors.iter().all(|v| v.take() == 0));
    }

    #[test]
    fn a_link_change_is_reported_as_other() {
        let (registers, mut irqs, vectors) = set_up();
        registers.set(IMS, cause::OTHER);
        irqs.raise(&registers, cause::LSC, NO);
        assert_eq!(vectors[2].take(), 1);
    }

    #[test]
    fn reading_icr_clears_it_only_if_all_is_masked_or_an_interrupt_was_asserted() {
        let (registers, mut irqs, _vectors) = set_up();
        irqs.raise(&registers, cause::RXQ0, NO);
        registers.set(IMS, cause::TXQ0);
        assert_eq!(
            (irqs.read(&registers), irqs.read(&registers)),
            (cause::RXQ0, cause::RXQ0),
            "not asserted: no effect"
        );
        registers.set(IMS, cause::RXQ0);
        assert_eq!((irqs.read(&registers), irqs.read(&registers)), (cause::RXQ0 | cause::ASSERTED, 0));
        registers.set(IMS, 0);
        irqs.raise(&registers, cause::RXT0, NO);
        assert_eq!((irqs.read(&registers), irqs.read(&registers)), (cause::RXT0, 0));
    }

    #[test]
    fn auto_clear_and_auto_mask_act_when_the_vector_fires() {
        let (registers, mut irqs, vectors) = set_up();
        registers.set(IMS, cause::RXQ0 | cause::TXQ0);
        registers.set(EIAC, cause::RXQ0);
        registers.set(IAM, cause::RXQ0);
        registers.set(CTRL_EXT, CTRL_EXT_EIAME);
        irqs.raise(&registers, cause::RXQ0, NO);
        assert_eq!(registers.get(IMS), cause::TXQ0);
        irqs.raise(&registers, cause::RXQ0, NO);
        assert_eq!(vectors[0].take(), 1, "masked by the first");
        registers.set(EIAC, cause::TXQ0);
        irqs.raise(&registers, cause::TXQ0, NO);
        registers.set(IMS, 0);
        assert_eq!(irqs.read(&registers), cause::RXQ0, "the masked cause is pending, the other was auto-cleared");
    }

    #[test]
    fn a_lost_interrupt_is_counted_and_fires_nothing() {
        let (registers, mut irqs, vectors) = set_up();
        registers.set(IMS, cause::RXQ0);
        irqs.raise(&registers, cause::RXQ0, || true);
        assert_eq!((vectors[0].take(), irqs.lost, irqs.sent), (0, 1, 0));
    }

    #[test]
    fn a_message_masks_only_its_own_causes() {
        let (registers, mut irqs, vectors) = set_up();
        registers.set(IVAR, 8 | (8 | 1) << 4);
        for word in [IMS, EIAC, IAM] {
            registers.set(word, cause::RXQ0 | cause::RXQ0 << 1);
        }
        registers.set(CTRL_EXT, CTRL_EXT_EIAME);
        irqs.raise(&registers, cause::RXQ0, NO);
        assert_eq!(registers.get(IMS), cause::RXQ0 << 1);
        irqs.raise(&registers, cause::RXQ0 << 1, NO);
        assert_eq!((vectors[1].take(), registers.get(IMS)), (1, 0));
    }

    #[test]
    fn msi_is_sent_when_the_first_cause_is_set_and_knows_no_queues() {
        let (registers, mut irqs, vectors) = set_up();
        irqs.kind = IrqKind::Msi;
        registers.set(IMS, cause::RXT0 | cause::LSC | cause::RXQ0);
        irqs.raise(&registers, cause::RXQ0, NO);
        assert_eq!(vectors[0].take(), 0, "there is no such cause");
        irqs.raise(&registers, cause::RXT0, NO);
        irqs.raise(&registers, cause::LSC, NO);
        assert_eq!(vectors[0].take(), 1, "none after the first");
        assert_eq!(irqs.read(&registers), cause::RXT0 | cause::LSC | cause::ASSERTED);
        irqs.raise(&registers, cause::LSC, NO);
        assert_eq!(vectors[0].take(), 1);
        registers.set(IAM, u32::MAX);
        registers.set(CTRL_EXT, CTRL_EXT_IAME);
        irqs.read(&registers);
        assert_eq!(registers.get(IMS), 0, "reading masks, by IAME");
        irqs.raise(&registers, cause::LSC, NO);
        irqs.unmask(&registers, cause::LSC);
        assert_eq!(vectors[0].take(), 1, "pending when it was unmasked");
    }

    #[test]
    fn a_line_that_has_fired_is_masked_and_fires_again_while_its_cause_stays() {
        let (registers, mut irqs, vectors) = set_up();
        irqs.kind = IrqKind::Intx;
        registers.set(IMS, cause::RXT0);
        irqs.raise(&registers, cause::RXT0, NO);
        irqs.raise(&registers, cause::RXT0, NO);
        assert_eq!(vectors[0].take(), 1);
        irqs.unmask_line(&registers);
        assert_eq!(vectors[0].take(), 1, "the cause is still there");
        irqs.read(&registers);
        irqs.unmask_line(&registers);
        assert_eq!(vectors[0].take(), 0);
        irqs.raise(&registers, cause::RXT0, NO);
        assert_eq!(vectors[0].take(), 1);
    }
}
