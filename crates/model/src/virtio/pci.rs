//! The function's configuration space (PCI 3.0 §6.1; virtio 1.2 §4.1.2, §4.1.4).
//!
//! ```text
//!   0x34 ► 0x40 MSI-X ► 0x50 common ► 0x60 notification ► 0x74 interrupt status ► 0x84 device
//! ```

/// The BAR with all registers, and its length.
pub(super) const BAR: u8 = 4;
pub(super) const BAR_LEN: usize = 0x4000;
/// The parts of it: the common configuration, the interrupt status, the device's configuration, and
/// a notification register of four bytes for each queue.
pub(super) const COMMON: usize = 0;
pub(super) const COMMON_LEN: usize = 0x38;
pub(super) const ISR: usize = 0x1000;
pub(super) const DEVICE: usize = 0x2000;
pub(super) const DEVICE_LEN: usize = 12;
pub(super) const NOTIFY: usize = 0x3000;
pub(super) const NOTIFY_LEN: usize = 0x1000;
pub(super) const NOTIFY_MULTIPLIER: u32 = 4;

const COMMAND: usize = 1;
const COMMAND_MEMORY: u32 = 2;
const COMMAND_MASTER: u32 = 4;

/// The words of the space.
#[derive(Debug)]
pub(super) struct ConfigSpace {
    words: [u32; 64],
}

impl ConfigSpace {
    /// With so many messages.
    pub(super) fn new(messages: u16) -> ConfigSpace {
        let mut words = [0; 64];
        let mut set = |at: usize, value: u32| words[at / 4] = value;
        // Device 0x1040 and the type of a network device, vendor 0x1af4; a list of capabilities;
        // Ethernet; the subsystem's vendor.
        set(0x00, 0x1041_1af4);
        set(0x04, 0x0010_0000);
        set(0x08, 0x0200_0001);
        set(0x2c, 0x1100_1af4);
        set(0x34, 0x40);
        set(0x40, u32::from(messages.max(1) - 1) << 16 | 0x50 << 8 | 0x11);
        let mut capability = |at: usize, next: u32, kind: u32, offset: usize, len: usize| {
            let bytes = if kind == 2 { 20 } else { 16 };
            set(at, kind << 24 | bytes << 16 | next << 8 | 0x09);
            set(at + 4, BAR.into());
            set(at + 8, offset as u32);
            set(at + 12, len as u32);
        };
        capability(0x50, 0x60, 1, COMMON, COMMON_LEN);
        capability(0x60, 0x74, 2, NOTIFY, NOTIFY_LEN);
        capability(0x74, 0x84, 3, ISR, 1);
        capability(0x84, 0, 4, DEVICE, DEVICE_LEN);
        set(0x70, NOTIFY_MULTIPLIER);
        ConfigSpace { words }
    }

    pub(super) fn read(&self, at: u16) -> u32 {
        self.words.get(usize::from(at) / 4).copied().filter(|_| at.is_multiple_of(4)).unwrap_or(u32::MAX)
    }

    /// Writes a word; returns whether registers are decoded, and whether the device may access
    /// memory.
    pub(super) fn write(&mut self, at: u16, value: u32) -> (bool, bool) {
        if usize::from(at) == COMMAND * 4 {
            self.words[COMMAND] = self.words[COMMAND] & !0x0547 | value & 0x0547;
        }
        (self.words[COMMAND] & COMMAND_MEMORY != 0, self.words[COMMAND] & COMMAND_MASTER != 0)
    }
}
