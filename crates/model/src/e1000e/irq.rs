//! Interrupts: causes, masks, and the vectors of MSI-X.
//!
//! ```text
//!   cause ──► ICR ──── & IMS ──► IVAR ──► vector ──► eventfd
//!               │                           └ EIAC: clears the cause; EIAME: masks by IAM
//!               └ ICR read: clears, see `read`
//! ```
//!
//! There is no moderation: ITR and EITR can be written, but have no effect.

use super::register_file::RegisterFile;
use super::regs::*;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_sys::EventFd;

/// The number of vectors.
pub(crate) const VECTORS: u16 = 5;

/// An interrupt vector: a descriptor that is readable after it has fired.
#[derive(Debug, Clone)]
pub struct ModelIrq(Arc<EventFd>);

impl towpath_bus::Irq for ModelIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.0.fd())
    }

    fn take(&self) -> u64 {
        self.0.take()
    }
}

/// The causes and the connected vectors. The masks are in the register file.
#[derive(Debug, Default)]
pub(crate) struct Irqs {
    icr: u32,
    vectors: Vec<ModelIrq>,
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

impl Irqs {
    /// Connects `count` vectors in place of all earlier ones.
    pub(crate) fn connect(&mut self, count: u16) -> std::io::Result<Vec<ModelIrq>> {
        self.vectors = (0..count)
            .map(|_| EventFd::new().map(|event| ModelIrq(Arc::new(event))))
            .collect::<std::io::Result<_>>()?;
        Ok(self.vectors.clone())
    }

    pub(crate) fn reset(&mut self) {
        self.icr = 0;
    }

    /// Sets causes and fires their vectors.
    pub(crate) fn raise(&mut self, registers: &RegisterFile, causes: u32, mut lose: impl FnMut() -> bool) {
        let causes = causes | if causes & OTHER != 0 { cause::OTHER } else { 0 };
        self.icr |= causes;
        let due = causes & registers.get(IMS);
        let ivar = registers.get(IVAR);
        let mut fired = 0u32;
        for (of, shift) in ALLOCATION.into_iter().filter(|(of, _)| due & of != 0) {
            let allocation = ivar >> shift & 0xf;
            let Some(vector) = self.vectors.get((allocation & 7) as usize).filter(|_| allocation & 8 != 0) else {
                continue;
            };
            if fired & (1 << (allocation & 7)) == 0 {
                fired |= 1 << (allocation & 7);
                if lose() {
                    self.lost += 1;
                } else {
                    self.sent += 1;
                    vector.0.signal();
                }
            }
            // Auto-clear and auto-mask (82574 datasheet §7.4.6).
            if registers.get(EIAC) & of != 0 {
                self.icr &= !of;
                if registers.get(CTRL_EXT) & CTRL_EXT_EIAME != 0 {
                    registers.change(IMS, registers.get(IAM), 0);
                }
            }
        }
    }

    fn asserted(&self, registers: &RegisterFile) -> bool {
        self.icr & registers.get(IMS) != 0
    }

    /// A read of ICR (82574 datasheet §10.2.4.1): clears it if all causes are masked, or if an
    /// interrupt was asserted; otherwise it has no effect.
    pub(crate) fn read(&mut self, registers: &RegisterFile) -> u32 {
        let asserted = self.asserted(registers);
        let value = self.icr | if asserted { cause::ASSERTED } else { 0 };
        if asserted || registers.get(IMS) == 0 {
            self.icr = 0;
        }
        if asserted && registers.get(CTRL_EXT) & CTRL_EXT_IAME != 0 {
            registers.change(IMS, registers.get(IAM), 0);
        }
        value
    }

    /// A write of ICR clears the written bits.
    pub(crate) fn clear(&mut self, bits: u32) {
        self.icr &= !bits;
    }

    /// Causes were unmasked: pending ones fire now.
    pub(crate) fn unmasked(&mut self, registers: &RegisterFile, bits: u32) {
        let waiting = self.icr & bits;
        if waiting != 0 {
            self.raise(registers, waiting, || false);
        }
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
        let (registers, mut irqs) = (RegisterFile::new([0; 6]), Irqs::default());
        let vectors = irqs.connect(3).unwrap();
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
        registers.set(IMS, cause::RXQ0);
        irqs.unmasked(&registers, cause::RXQ0);
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
}
