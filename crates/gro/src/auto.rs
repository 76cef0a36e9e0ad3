//! When coalescing does not pay, step aside; look again from time to time.
//!
//! ```text
//!              fewer than 1 in 16 merged in a window
//!    ┌─────────┐ ────────────────────────────────────▶ ┌───────┐
//!    │ engaged │                                       │ aside │ pass 16 windows' worth of packets,
//!    └─────────┘ ◀──────────── ┌─────────┐ ◀────────── └───────┘ twice as many after each failure
//!              1 in 8 or more  │ probing │ ──────────────▲
//!              merged          └─────────┘  else
//! ```
//!
//! It counts packets, not time. Who acts on it keeps order by flushing what is held at the moment
//! of stepping aside: then nothing is held while packets pass.

/// Packets over which the merge rate is taken.
const WINDOW: u32 = 1024;
/// Below one in so many merged, coalescing costs more than it saves.
const LEAVE: u32 = 16;
/// From one in so many on, it is worth it again.
const RETURN: u32 = 8;
/// Packets that pass before the first probe.
const FIRST_BYPASS: u32 = 16 * WINDOW;
const LONGEST_BYPASS: u32 = 16 * FIRST_BYPASS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Engaged,
    Bypass,
    Probing,
}

/// The merge rate, and whether coalescing pays.
#[derive(Clone, Copy, Debug)]
pub struct Auto {
    mode: Mode,
    /// Packets seen in this window, or still to pass while aside.
    packets: u32,
    merged: u32,
    /// Packets that the next bypass lasts.
    bypass: u32,
}

impl Default for Auto {
    fn default() -> Self {
        Self { mode: Mode::Engaged, packets: 0, merged: 0, bypass: FIRST_BYPASS }
    }
}

impl Auto {
    /// Packets should pass without being looked at.
    #[inline]
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.mode == Mode::Bypass
    }

    /// Accounts for a burst: while engaged `packets` pushed of which `merged` became part of others,
    /// while aside `packets` passed.
    pub fn observe(&mut self, packets: usize, merged: usize) {
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        if self.is_bypassed() {
            self.packets = self.packets.saturating_sub(packets);
            if self.packets == 0 {
                self.enter(Mode::Probing);
            }
            return;
        }
        self.packets = self.packets.saturating_add(packets);
        self.merged = self.merged.saturating_add(u32::try_from(merged).unwrap_or(u32::MAX));
        if self.packets >= WINDOW {
            self.decide();
        }
    }

    fn decide(&mut self) {
        let one_in = |n: u32| self.merged >= self.packets / n;
        match self.mode {
            Mode::Probing if one_in(RETURN) => {
                self.bypass = FIRST_BYPASS;
                self.enter(Mode::Engaged);
            }
            Mode::Probing => {
                self.bypass = (self.bypass * 2).min(LONGEST_BYPASS);
                self.enter(Mode::Bypass);
            }
            _ if one_in(LEAVE) => self.enter(Mode::Engaged),
            _ => self.enter(Mode::Bypass),
        }
    }

    fn enter(&mut self, mode: Mode) {
        self.mode = mode;
        self.packets = if mode == Mode::Bypass { self.bypass } else { 0 };
        self.merged = 0;
    }
}
