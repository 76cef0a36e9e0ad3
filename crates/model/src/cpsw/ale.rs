//! The address lookup engine (ALE): the destination of frames that are not directed.
//!
//! ```text
//!   state of the source port: forwarding ──► bypass, or MAC-only? ──► the host
//!              otherwise: dropped                └─ otherwise: learnt; to its port or to all
//! ```
//!
//! The model has no VLANs: it ignores tags. Entries are learnt, and do not age.

use std::collections::HashMap;

const ENABLE: u32 = 1 << 31;
const CLEAR: u32 = 1 << 30;
const BYPASS: u32 = 1 << 4;
const STATE: u32 = 3;
const FORWARD: u32 = 3;
const NO_LEARN: u32 = 1 << 4;
const MAC_ONLY: u32 = 1 << 11;
/// Number of ports, with the host port.
const PORTS: usize = 9;

/// A set of ports, a bit each; bit 0 is the host port.
pub(crate) type Ports = u16;

#[derive(Debug, Default)]
pub(crate) struct Ale {
    control: u32,
    ports: [u32; PORTS],
    table: HashMap<[u8; 6], u8>,
}

impl Ale {
    /// Reads a register; `at` is the offset from the engine's base.
    pub(crate) fn read(&self, at: usize) -> Option<u32> {
        match at {
            0x08 => Some(self.control),
            _ => self.ports.get(at.checked_sub(0x40)? / 4).copied(),
        }
    }

    pub(crate) fn write(&mut self, at: usize, value: u32) {
        match at {
            0x08 => {
                self.control = value & !CLEAR;
                if value & CLEAR != 0 {
                    self.table.clear();
                }
            }
            _ => {
                if let Some(port) = at.checked_sub(0x40).and_then(|at| self.ports.get_mut(at / 4)) {
                    *port = value;
                }
            }
        }
    }

    /// Whether a port forwards frames.
    pub(crate) fn forwards(&self, port: u8) -> bool {
        let control = self.ports.get(usize::from(port)).copied().unwrap_or(0);
        self.control & ENABLE != 0 && control & STATE == FORWARD
    }

    /// The destination of a frame from port `from`.
    pub(crate) fn forward(&mut self, from: u8, frame: &[u8]) -> Ports {
        if !self.forwards(from) {
            return 0;
        }
        let all = (0..PORTS as u8).filter(|&port| self.forwards(port) && port != from);
        let all = all.fold(0, |all, port| all | 1 << port);
        let control = self.ports.get(usize::from(from)).copied().unwrap_or(0);
        if from != 0 && (self.control & BYPASS != 0 || control & MAC_ONLY != 0) {
            return all & 1;
        }
        let address = |at: usize| frame.get(at..at + 6).and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        if let Some(source) = address(6).filter(|source| source[0] & 1 == 0)
            && control & NO_LEARN == 0
        {
            self.table.insert(source, from);
        }
        match address(0).and_then(|destination| self.table.get(&destination)) {
            Some(&port) => all & 1 << port,
            None => all,
        }
    }
}
