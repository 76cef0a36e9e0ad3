//! The function's configuration space: header and capabilities (82574 datasheet §9).

use super::config::{Config, Interrupts};
use std::sync::{Mutex, PoisonError};
use towpath_bus::IrqKind;

const COMMAND: usize = 1;
const BARS: std::ops::RangeInclusive<usize> = 4..=9;
/// Sizes of the BARs: registers, flash, I/O, MSI-X; none.
const BAR_SIZE: [u32; 6] = [128 << 10, 128 << 10, 32, 16 << 10, 0, 0];
const COMMAND_MEMORY: u32 = 2;
const COMMAND_MASTER: u32 = 4;

/// The device's state after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enabled {
    pub(crate) memory: bool,
    pub(crate) master: bool,
}

#[derive(Debug)]
pub(crate) struct ConfigSpace {
    words: Mutex<[u32; 1024]>,
    device_id: u16,
    interrupts: Interrupts,
}

impl ConfigSpace {
    pub(crate) fn new(config: &Config) -> ConfigSpace {
        let (device_id, interrupts) = (config.device_id, config.interrupts);
        ConfigSpace { words: Mutex::new(initial(device_id, interrupts)), device_id, interrupts }
    }

    fn words(&self) -> std::sync::MutexGuard<'_, [u32; 1024]> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reset(&self) {
        *self.words() = initial(self.device_id, self.interrupts);
    }

    /// The number of interrupts of a kind.
    pub(crate) fn irq_count(&self, kind: IrqKind) -> u16 {
        match (kind, self.interrupts) {
            (IrqKind::MsiX, Interrupts::MsiX(vectors)) => vectors,
            (IrqKind::Msi, Interrupts::MsiX(_) | Interrupts::Msi) | (IrqKind::Intx, _) => 1,
            _ => 0,
        }
    }

    pub(crate) fn read(&self, at: u16) -> u32 {
        let words = self.words();
        words.get(usize::from(at) / 4).copied().filter(|_| at.is_multiple_of(4)).unwrap_or(u32::MAX)
    }

    pub(crate) fn write(&self, at: u16, value: u32) -> Enabled {
        let mut words = self.words();
        let index = usize::from(at) / 4;
        if let Some(word) = words.get_mut(index).filter(|_| at.is_multiple_of(4)) {
            let (mask, fixed) = match index {
                COMMAND => (0x0547, 0),
                _ if BARS.contains(&index) => match BAR_SIZE[index - 4] {
                    0 => (0, 0),
                    size => (!(size - 1), u32::from(size == 32)),
                },
                0x0f => (0xff, 0),
                // Power state; MSI enable; link control; MSI-X enable and function mask.
                0x33 => (0x8103, 0),
                0x34 => (0x0001_0000, 0),
                0x3c => (0x00c3, 0),
                0x28 => (0xc000_0000, 0),
                _ => (0, 0),
            };
            *word = *word & !mask | value & mask | fixed;
        }
        let command = words[COMMAND];
        // In D3hot the function is inactive.
        let awake = words[0x33] & 3 == 0;
        Enabled { memory: awake && command & COMMAND_MEMORY != 0, master: awake && command & COMMAND_MASTER != 0 }
    }
}

fn initial(device_id: u16, interrupts: Interrupts) -> [u32; 1024] {
    // The list: power management, then MSI, PCI Express, MSI-X, as far as the device has them.
    let (power, express, vectors) = match interrupts {
        Interrupts::MsiX(vectors) => (0xd0, 0xa0, u32::from(vectors.clamp(1, 5))),
        Interrupts::Msi => (0xd0, 0, 1),
        Interrupts::Intx => (0xe0, 0, 1),
    };
    let mut words = [0; 1024];
    for (at, value) in [
        (0x00, u32::from(device_id) << 16 | 0x8086),
        // Status: capabilities list.
        (0x04, 0x0010_0000),
        // Network, Ethernet.
        (0x08, 0x0200_0000),
        (0x18, 1),
        (0x2c, 0x0000_8086),
        (0x34, 0xc8),
        (0x3c, 0x0100),
        (0xc8, 0xc822_0001 | power << 8),
        (0xd0, 0x0080_e005),
        (0xe0, 0x0001_0010 | express << 8),
        (0xe4, 0x0000_8cc1),
        (0xec, 0x0003_1c11),
        (0xf0, 0x1011_0000),
        // Table and pending bits in BAR 3.
        (0xa0, (vectors - 1) << 16 | 0x11),
        (0xa4, 0x0000_0003),
        (0xa8, 0x0000_2003),
        // Extended: error reporting, then serial number.
        (0x100, 0x1401_0001),
        (0x140, 0x0001_0003),
    ] {
        words[at / 4] = value;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_82574l() {
        let space = space(Interrupts::MsiX(5));
        assert_eq!((space.read(0), space.read(8) >> 16), (0x10d3_8086, 0x0200));
    }

    fn space(interrupts: Interrupts) -> ConfigSpace {
        ConfigSpace::new(&Config { interrupts, ..Config::default() })
    }

    #[test]
    fn the_capabilities_are_those_of_its_interrupts() {
        for (interrupts, expected) in [
            (Interrupts::MsiX(3), &[(1, 0xc8), (5, 0xd0), (0x10, 0xe0), (0x11, 0xa0)][..]),
            (Interrupts::Msi, &[(1, 0xc8), (5, 0xd0), (0x10, 0xe0)]),
            (Interrupts::Intx, &[(1, 0xc8), (0x10, 0xe0)]),
        ] {
            let space = space(interrupts);
            let (mut at, mut found) = (space.read(0x34) & 0xfc, Vec::new());
            while at != 0 {
                let head = space.read(at as u16);
                found.push((head & 0xff, at));
                at = head >> 8 & 0xfc;
            }
            assert_eq!(found, expected);
        }
        assert_eq!(space(Interrupts::MsiX(3)).read(0xa0) >> 16, 2);
    }

    #[test]
    fn base_address_registers_report_their_size() {
        let space = space(Interrupts::MsiX(5));
        for (bar, size) in [(0u16, 128u32 << 10), (3, 16 << 10)] {
            space.write(0x10 + 4 * bar, u32::MAX);
            assert_eq!(!(space.read(0x10 + 4 * bar) & !0xf) + 1, size);
        }
        space.write(0x20, u32::MAX);
        assert_eq!(space.read(0x20), 0);
    }

    #[test]
    fn command_enables_memory_and_dma_except_in_d3() {
        let space = space(Interrupts::MsiX(5));
        assert_eq!(space.write(4, 6), Enabled { memory: true, master: true });
        assert_eq!(space.write(0xcc, 3), Enabled { memory: false, master: false });
        assert_eq!(space.write(0xcc, 0), Enabled { memory: true, master: true });
    }

    #[test]
    fn absent_registers_read_as_ones() {
        let space = space(Interrupts::MsiX(5));
        assert_eq!((space.read(4096), space.read(2)), (u32::MAX, u32::MAX));
    }
}
