//! The receive filters in the device's registers: programmed after a reset, which clears them, and
//! changed while frames arrive.
//!
//! A change disturbs no frame that is received before and after it. Addresses keep their entries,
//! words of the tables change one by one, and RCTL is the wider of both filters meanwhile.
//! Reception stays enabled (Linux: `FLAG2_NO_DISABLE_RX`).

use super::regs::{MTA, RAH, RAH_VALID, RAL, RCTL, STATUS, VFTA, rctl};
use crate::common::filter::{Filter, Receive, multicast_table, place};
use towpath_bus::{Mmio, Reg};
use towpath_wire::ethernet::Mac;

/// Addresses besides the port's own (Linux: `netdev.c:e1000e_write_uc_addr_list`).
pub(super) const OTHERS: usize = 14;
const MODES: u32 = rctl::UNICAST_ALL | rctl::MULTICAST_ALL | rctl::VLAN_FILTER;

/// The contents of the filters' registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilterTables {
    own: Mac,
    /// Among the others: those of a management controller, which keep their entries.
    firmwares: Vec<Mac>,
    others: [Option<Mac>; OTHERS],
    groups: [u32; 128],
    vlans: [u32; 128],
    /// Bits of RCTL.
    control: u32,
}

impl FilterTables {
    /// The contents for a filter; `device_mac` is the address in the device's memory, and `firmwares`
    /// the entries of a management controller.
    pub(super) fn new(filter: &Filter, device_mac: Mac, firmwares: &[(u32, Mac)]) -> FilterTables {
        let mut now = [None; OTHERS];
        for (slot, n) in now.iter_mut().zip(1..) {
            *slot = firmwares.iter().find(|(entry, _)| *entry == n).map(|(_, mac)| *mac);
        }
        FilterTables::after(&now, now.into_iter().flatten().collect(), filter, device_mac)
    }

    fn after(now: &[Option<Mac>; OTHERS], firmwares: Vec<Mac>, filter: &Filter, device_mac: Mac) -> FilterTables {
        let own = filter.mac.unwrap_or(device_mac);
        let added = filter.addresses.iter().copied().filter(|mac| *mac != own && !firmwares.contains(mac));
        let wanted: Vec<_> = firmwares.iter().copied().chain(added).collect();
        let placed = place(now, &wanted);
        let mut control = match filter.receive {
            Receive::All => rctl::UNICAST_ALL | rctl::MULTICAST_ALL,
            Receive::Multicast => rctl::MULTICAST_ALL,
            Receive::Own => 0,
        };
        if placed.is_none() {
            control |= rctl::UNICAST_ALL;
        }
        let mut vlans = [0; 128];
        if let Some(set) = &filter.vlans {
            control |= rctl::VLAN_FILTER;
            vlans = *set.words();
            // Priority tags have VLAN 0 (IEEE 802.1Q §9.6).
            vlans[0] |= 1;
        }
        let groups = multicast_table(&filter.groups);
        let others = placed.or_else(|| place(now, &firmwares)).unwrap_or([None; OTHERS]);
        FilterTables { own, firmwares, others, groups, vlans, control }
    }

    /// The bits of RCTL.
    pub(super) fn control(&self) -> u32 {
        self.control
    }

    /// Writes all registers but RCTL. Reception is off (§4.6.5.2, §7.1.1).
    pub(super) fn program<M: Mmio>(&self, bar: &M) {
        write_table(bar, MTA, None, &self.groups);
        write_table(bar, VFTA, None, &self.vlans);
        for (index, mac) in self.addresses() {
            write_address(bar, index, mac);
        }
    }

    /// Follows a change of the filter while frames arrive.
    pub(super) fn change<M: Mmio>(&mut self, bar: &M, filter: &Filter, device_mac: Mac) {
        let next = FilterTables::after(&self.others, self.firmwares.clone(), filter, device_mac);
        // Receives what either filter does.
        let either = (self.control | next.control) & !rctl::VLAN_FILTER;
        let wide = either | (self.control & next.control & rctl::VLAN_FILTER);
        if wide != self.control {
            RCTL.change(bar, MODES, wide);
        }
        for ((index, mac), (_, before)) in next.addresses().zip(self.addresses()) {
            if mac != before {
                write_address(bar, index, mac);
            }
        }
        write_table(bar, MTA, Some(&self.groups), &next.groups);
        write_table(bar, VFTA, Some(&self.vlans), &next.vlans);
        if next.control != wide {
            RCTL.change(bar, MODES, next.control);
        }
        *self = next;
    }

    /// The entries of the exact filter, the port's own first.
    fn addresses(&self) -> impl Iterator<Item = (u32, Option<Mac>)> {
        (0..).zip([Some(self.own)].into_iter().chain(self.others))
    }
}

/// Writes an entry of the exact filter. It is invalid while it changes, and a read flushes each
/// write, which bridges could merge otherwise (Linux: `mac.c:e1000e_rar_set_generic`).
pub(super) fn write_address<M: Mmio>(bar: &M, index: u32, mac: Option<Mac>) {
    let write = |register: Reg, value| {
        register.nth(index, 8).write(bar, value);
        let _ = STATUS.read(bar);
    };
    let [a, b, c, d, e, f] = mac.unwrap_or_default();
    write(RAH, 0);
    write(RAL, u32::from_le_bytes([a, b, c, d]));
    if mac.is_some() {
        write(RAH, u32::from_le_bytes([e, f, 0, 0]) | RAH_VALID);
    }
}

/// Writes the words of a table that differ from `before`, or all, and flushes them.
fn write_table<M: Mmio>(bar: &M, table: Reg, before: Option<&[u32; 128]>, words: &[u32; 128]) {
    let mut written = false;
    for (i, word) in (0..).zip(words) {
        if before.is_none_or(|before| before.get(i as usize) != Some(word)) {
            table.nth(i, 4).write(bar, *word);
            written = true;
        }
    }
    if written {
        let _ = STATUS.read(bar);
    }
}
