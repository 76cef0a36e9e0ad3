//! Receive filters: destination address and VLAN (82574 datasheet §7.1.1); and the order in which a
//! driver changes them while frames arrive.

use super::register_file::RegisterFile;
use super::regs::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The kind of a destination address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cast {
    Uni,
    Multi,
    Broad,
}

impl Cast {
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Cast {
        match frame.first_chunk::<6>() {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => Cast::Broad,
            Some([first, ..]) if first & 1 != 0 => Cast::Multi,
            _ => Cast::Uni,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Filter {
    unicast_all: bool,
    multicast_all: bool,
    broadcast: bool,
    /// The valid exact addresses: RAL/RAH with AV.
    exact: Vec<[u8; 6]>,
    /// The multicast table, and the shift by RCTL.MO.
    table: Box<[u32; 128]>,
    shift: u32,
    /// With RCTL.VFE: the VLAN table, and the EtherType of tags.
    vlans: Option<(Box<[u32; 128]>, u16)>,
}

impl Filter {
    pub(crate) fn new(registers: &RegisterFile) -> Filter {
        let rctl = registers.get(RCTL);
        let table = |at| Box::new(std::array::from_fn(|i| registers.get(at + 4 * i)));
        let exact = (0..16).filter_map(|i| {
            let (low, high) = (registers.get(RAL + 8 * i).to_le_bytes(), registers.get(RAH + 8 * i));
            let [e, f, ..] = high.to_le_bytes();
            let [a, b, c, d] = low;
            (high & RAH_AV != 0).then_some([a, b, c, d, e, f])
        });
        Filter {
            unicast_all: rctl & RCTL_UPE != 0,
            multicast_all: rctl & RCTL_MPE != 0,
            broadcast: rctl & RCTL_BAM != 0,
            exact: exact.collect(),
            table: table(MTA),
            // RCTL.MO: bits 47:36, 46:35, 45:34 or 43:32 of the address.
            shift: [4, 3, 2, 0][(rctl >> 12 & 3) as usize],
            vlans: (rctl & RCTL_VFE != 0).then(|| (table(VFTA), registers.get(VET) as u16)),
        }
    }

    /// Whether a frame is received.
    #[inline]
    pub(crate) fn accepts(&self, frame: &[u8]) -> bool {
        let Some(to) = frame.first_chunk::<6>() else { return false };
        let destination = match Cast::of(frame) {
            Cast::Broad => self.broadcast || self.multicast_all,
            Cast::Multi => self.multicast_all || self.hashed(to) || self.exact.contains(to),
            Cast::Uni => self.unicast_all || self.exact.contains(to) || self.hashed(to),
        };
        destination && self.vlan(frame)
    }

    /// Whether the frame passed only by an inexact filter: PIF.
    pub(crate) fn inexact(&self, frame: &[u8]) -> bool {
        frame.first_chunk().is_none_or(|to| Cast::of(frame) != Cast::Broad && !self.exact.contains(to))
    }

    fn hashed(&self, to: &[u8; 6]) -> bool {
        let hash = ((u32::from(to[5]) << 8 | u32::from(to[4])) >> self.shift) & 0xfff;
        self.table[(hash >> 5) as usize] >> (hash & 31) & 1 != 0
    }

    fn vlan(&self, frame: &[u8]) -> bool {
        let (Some((table, kind)), Some(&[a, b, c, d])) = (&self.vlans, frame.get(12..).and_then(|f| f.first_chunk()))
        else {
            return true;
        };
        let id = u16::from_be_bytes([c, d]) & 0xfff;
        u16::from_be_bytes([a, b]) != *kind || table[usize::from(id >> 5)] >> (id & 31) & 1 != 0
    }
}

/// The order of a driver's writes, which strict models check.
#[derive(Debug, Default)]
pub(crate) struct WriteOrder {
    /// Half an address was written, and no register was read since.
    unflushed: AtomicBool,
    /// Reception was disabled, and the device was not reset since.
    disabled: AtomicBool,
    /// CTRL_EXT.DRV_LOAD was set, and the device was not reset since.
    loaded: AtomicBool,
}

impl WriteOrder {
    /// A register is read: all writes before have arrived.
    #[inline]
    pub(crate) fn flush(&self) {
        self.unflushed.store(false, Relaxed);
    }

    /// The device is reset.
    pub(crate) fn reset(&self) {
        self.flush();
        self.disabled.store(false, Relaxed);
        self.loaded.store(false, Relaxed);
    }

    /// The rule that a write breaks. `at` is a canonical offset, with its value before the write.
    ///
    /// * A bridge may merge two writes that no read separates (Linux:
    ///   `mac.c:e1000e_rar_set_generic`).
    /// * Half an address changes only while the address is not valid, or frames to a mix of two
    ///   addresses are received.
    /// * Priority tags have VLAN 0 (IEEE 802.1Q §9.6).
    /// * Reception that was disabled stays so until a reset (Linux: `FLAG2_NO_DISABLE_RX`).
    /// * The driver takes the device from firmware after each reset (Linux:
    ///   `e1000e_get_hw_control`).
    pub(crate) fn broken(&self, registers: &RegisterFile, at: usize, value: u32) -> Option<&'static str> {
        let (enabled, was) = (registers.get(RCTL) & RCTL_EN != 0, registers.get(at));
        if (RAL..RAL + 16 * 8).contains(&at) {
            if self.unflushed.swap(true, Relaxed) {
                return Some("a register is read behind each half of an address");
            }
            let halves = at & 4 == 0 && value != was && registers.get(at + 4) & RAH_AV != 0;
            return (enabled && halves).then_some("an address is invalid while its first half changes");
        }
        if at == CTRL_EXT {
            self.loaded.store(value & CTRL_EXT_DRV_LOAD != 0, Relaxed);
        }
        if at != RCTL {
            return None;
        }
        if enabled && value & RCTL_EN == 0 {
            self.disabled.store(true, Relaxed);
        }
        if value & RCTL_EN != 0 && self.disabled.load(Relaxed) {
            Some("reception that was disabled is enabled only after a reset")
        } else if value & RCTL_EN != 0 && !self.loaded.load(Relaxed) {
            Some("DRV_LOAD is set before reception is enabled")
        } else if value & RCTL_CFIEN != 0 {
            Some("the canonical form of tags is not filtered (CFIEN)")
        } else if value & RCTL_VFE != 0 && registers.get(VFTA) & 1 == 0 {
            Some("a VLAN filter lets priority tags pass, which have VLAN 0")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

    fn frame(to: [u8; 6]) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&to);
        frame
    }

    fn accepts(set: &[(usize, u32)], frame: &[u8]) -> bool {
        let registers = RegisterFile::new(MAC);
        for (at, value) in set {
            registers.set(*at, *value);
        }
        Filter::new(&registers).accepts(frame)
    }

    #[test]
    fn after_reset_only_frames_to_the_devices_own_address_pass() {
        assert!(accepts(&[], &frame(MAC)));
        for to in [[0x52, 0x54, 0, 0x12, 0x34, 0x57], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            assert!(!accepts(&[], &frame(to)), "{to:x?}");
        }
    }

    #[test]
    fn each_filter_bit_passes_its_kind() {
        assert!(accepts(&[(RCTL, RCTL_BAM)], &frame([0xff; 6])));
        assert!(accepts(&[(RCTL, RCTL_UPE)], &frame([2; 6])));
        assert!(accepts(&[(RCTL, RCTL_MPE)], &frame([1, 0, 0x5e, 0, 0, 1])));
        assert!(!accepts(&[(RCTL, RCTL_MPE)], &frame([2; 6])));
        assert!(!accepts(&[(RCTL, RCTL_UPE)], &frame([3; 6])));
    }

    #[test]
    fn further_exact_addresses_pass_only_while_they_are_valid() {
        let other = [0x0a, 1, 2, 3, 4, 5];
        let low = (RAL + 8 * 3, 0x0302_010a);
        assert!(accepts(&[low, (RAH + 8 * 3, RAH_AV | 0x0504)], &frame(other)));
        assert!(!accepts(&[low, (RAH + 8 * 3, 0x0504)], &frame(other)));
    }

    #[test]
    fn the_multicast_table_is_indexed_by_the_upper_bits_of_the_address() {
        let to = [1, 0, 0x5e, 0, 0x7a, 0x3c];
        // RCTL.MO = 0: (mac[4] >> 4 | mac[5] << 4) & 0xfff.
        let hash = 0x7 | 0x3c << 4;
        assert!(accepts(&[(MTA + 4 * (hash >> 5), 1 << (hash & 31))], &frame(to)));
        assert!(!accepts(&[(MTA + 4 * (hash >> 5), !(1 << (hash & 31)))], &frame(to)));
    }

    #[test]
    fn the_vlan_table_lets_untagged_frames_pass_and_tagged_ones_by_their_id() {
        let mut tagged = frame(MAC);
        tagged[12..16].copy_from_slice(&[0x81, 0, 0x60, 100]);
        assert!(accepts(&[(RCTL, RCTL_VFE)], &frame(MAC)));
        assert!(!accepts(&[(RCTL, RCTL_VFE)], &tagged));
        assert!(accepts(&[(RCTL, RCTL_VFE), (VFTA + 4 * 3, 1 << 4)], &tagged));
    }
}
