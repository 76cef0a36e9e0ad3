//! The register file: one atomic word per offset, so that both sides access it without a lock.

use super::regs::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// The reset values of read-write registers.
const RESET: [(usize, u32); 15] = [
    (CTRL, 0x0010_0241),
    (STATUS, STATUS_FD | STATUS_1000 | STATUS_MASTER | STATUS_PHYRA),
    (EECD, EECD_PRESENT_AND_READ),
    (CTRL_EXT, 0),
    (FCAL, 0x00c2_8001),
    (FCAL + 4, 0x0100),
    (FCAL + 8, 0x8808),
    (VET, 0x8100),
    (TCTL, TCTL_RRTHRESH_RESET),
    (PBA, 0x0014_0014),
    (TIPG, 0x0060_2008),
    (RDBAL + DCTL, 0x1_0000),
    (RDBAL + QUEUE + DCTL, 0x1_0000),
    (TDBAL + TARC, 0x403),
    (TDBAL + QUEUE + TARC, 0x403),
];

/// All registers of BAR 0.
pub(crate) struct RegisterFile {
    words: Box<[AtomicU32]>,
}

impl RegisterFile {
    pub(crate) fn new(mac: [u8; 6]) -> RegisterFile {
        let words = (0..BAR_LEN / 4).map(|_| AtomicU32::new(0)).collect();
        let registers = RegisterFile { words };
        registers.reset(mac);
        registers
    }

    /// The effect of CTRL.RST and of a function reset. The split of the packet buffer (PBA),
    /// firmware's MANC and the kind of NVM survive, as on silicon. So does DRV_LOAD: no driver relies on
    /// a reset for it. The address in the NVM is loaded into the first receive address
    /// (82574 datasheet §4.6.1).
    pub(crate) fn reset(&self, mac: [u8; 6]) {
        let [pba, manc, eecd, ext] = [PBA, MANC, EECD, CTRL_EXT].map(|at| self.get(at));
        self.words.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        for (at, value) in RESET {
            self.set(at, value);
        }
        if pba != 0 {
            self.set(PBA, pba);
        }
        self.set(MANC, manc);
        self.change(EECD, 0, eecd);
        self.change(CTRL_EXT, 0, ext & CTRL_EXT_DRV_LOAD);
        let [a, b, c, d, e, f] = mac;
        self.set(RAL, u32::from_le_bytes([a, b, c, d]));
        self.set(RAH, u32::from_le_bytes([e, f, 0, 0]) | RAH_AV);
    }

    /// The register at a byte offset.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU32> {
        self.words.get(at >> 2)
    }

    /// Reads a register. Acquire, for tails: the descriptors below them were written before.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> u32 {
        self.word(at).map_or(u32::MAX, |w| w.load(Ordering::Acquire))
    }

    /// Writes a register. Release, for heads and status.
    #[inline]
    pub(crate) fn set(&self, at: usize, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    pub(crate) fn change(&self, at: usize, clear: u32, set: u32) {
        self.set(at, self.get(at) & !clear | set);
    }
}

/// The offset of a register under its 82574 name; the aliases of older 8254x devices are decoded as
/// well (82574 datasheet §10.2).
pub(crate) fn canonical(at: usize) -> usize {
    match at {
        0x0040..=0x00bf => RAL + (at - 0x0040),
        0x0110..=0x011f => RDBAL + (at - 0x0110),
        0x0120..=0x012f => RDBAL + HEAD + (at - 0x0120),
        0x0420..=0x042f => TDBAL + (at - 0x0420),
        0x0430..=0x043f => TDBAL + HEAD + (at - 0x0430),
        0x0200..=0x03ff => MTA + (at - 0x0200),
        0x0600..=0x07ff => VFTA + (at - 0x0600),
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_restores_all_but_the_split_of_the_packet_buffer() {
        let registers = RegisterFile::new([2, 0, 0, 0, 0, 1]);
        for at in [RCTL, PBA, RAL, TIPG, MTA + 4] {
            registers.set(at, 0x0012_3450);
        }
        registers.reset([2, 0, 0, 0, 0, 1]);
        assert_eq!((registers.get(RCTL), registers.get(MTA + 4), registers.get(TIPG)), (0, 0, 0x0060_2008));
        assert_eq!((registers.get(RAL), registers.get(RAH)), (2, 0x8000_0100));
        assert_eq!(registers.get(PBA), 0x0012_3450);
    }

    #[test]
    fn aliases_decode_to_the_same_registers() {
        assert_eq!(canonical(0x0128), RDBAL + TAIL);
        assert_eq!(canonical(0x0438), TDBAL + TAIL);
        assert_eq!(canonical(0x0044), RAH);
        assert_eq!((canonical(0x0200), canonical(0x07fc)), (MTA, VFTA + 0x1fc));
        assert_eq!(canonical(0x0110), RDBAL);
    }
}
