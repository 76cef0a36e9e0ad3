//! Chains of the guest's transmit ring that were taken and whose frames are on their way.
//!
//! ```text
//!   ring   ○ ○ ○ ○ ○ ○ ○ ○ │ ○ ○ ○ ○ …
//!          └─ take: views, and a prefetch of their first lines
//!             untake: the last ones are available again
//! ```
//!
//! The guest wrote its frames on another core, so that the first look at one waits for its lines.
//! A group asks for the lines of several frames at once, before any of them is read.

use towpath_packet::UntrustedBytes;
use towpath_virtio::{Device, RegionPlace, Regions, Single};

/// Chains of a group.
const GROUP: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Chains of one buffer that were taken, whose frames are on their way to this core.
pub(super) struct Group<'a> {
    singles: [Single<RegionPlace>; GROUP],
    views: [Option<UntrustedBytes<'a>>; GROUP],
    len: usize,
}

impl<'a> Group<'a> {
    #[inline]
    pub(super) fn new() -> Group<'a> {
        let vacant = Single::vacant(RegionPlace { region: 0, offset: 0 });
        Group { singles: [vacant; GROUP], views: [None; GROUP], len: 0 }
    }

    /// Takes up to `room` chains in place of those before.
    #[inline]
    pub(super) fn take(&mut self, memory: &'a Regions, device: &mut Device, room: usize) {
        let most = room.min(GROUP);
        self.len = if most > 0 { device.take_singles(memory, false, &mut self.singles[..most]) } else { 0 };
        for (single, view) in self.singles[..self.len].iter().zip(&mut self.views) {
            *view = memory.bytes(single.piece);
            view.iter().for_each(prefetch);
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == GROUP
    }

    #[inline]
    pub(super) fn singles(&self) -> &[Single<RegionPlace>] {
        self.singles.get(..self.len).unwrap_or_default()
    }

    /// The bytes of the chain at `at`; `None` if they are not in the guest's memory.
    #[inline]
    pub(super) fn view(&self, at: usize) -> Option<UntrustedBytes<'a>> {
        self.views.get(at).copied().flatten()
    }

    /// Makes the last `n` chains available again.
    #[cold]
    pub(super) fn untake(&mut self, n: usize, device: &mut Device) {
        for single in self.singles().iter().rev().take(n) {
            let _ = device.untake(single.token());
        }
        self.len = self.len.saturating_sub(n);
    }
}

/// Prefetches the header and the first bytes of a frame in one piece.
#[inline]
fn prefetch(bytes: &UntrustedBytes<'_>) {
    bytes.prefetch(0);
    bytes.prefetch(LINE);
}
