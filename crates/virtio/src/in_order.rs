//! A device's chains with `VIRTIO_F_IN_ORDER`: completed in any order, returned in that of their
//! availability, in batches (virtio 1.2, 2.7.9 and 2.8.9).
//!
//! ```text
//!   oldest ▼
//!   ── done, read ── done, read ── done, written ── done, read ── outstanding ── done ──
//!      └──────────── one used entry ───────────┘   └─ another ─┘  └─ waits for its turn
//! ```
//!
//! A used entry has the length of the last chain of its batch. By the specification a driver takes
//! all others for completely written, but there are drivers that look for an entry of each receive
//! buffer (DPDK's). So a batch goes on only behind chains without writable buffers.

use crate::chain::Token;

#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    id: u16,
    slots: u16,
    /// Whether there are writable buffers.
    writable: bool,
    /// Bytes written, if the chain is complete.
    done: Option<u32>,
}

/// One used entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsedBatch {
    pub(crate) id: u16,
    pub(crate) len: u32,
    /// Chains that it stands for, and their descriptors.
    pub(crate) chains: u16,
    pub(crate) slots: u16,
    /// Whether the last chain has writable buffers.
    pub(crate) writable: bool,
}

/// The chains that are outstanding, by position.
#[derive(Debug)]
pub(crate) struct InOrder {
    chains: Box<[Taken]>,
    oldest: usize,
}

impl InOrder {
    pub(crate) fn new(size: u16, oldest: u16) -> InOrder {
        InOrder { chains: vec![Taken::default(); size.into()].into(), oldest: oldest.into() }
    }

    #[inline]
    pub(crate) fn take(&mut self, token: &Token, writable: bool) {
        let at = token.slot(self.chains.len() as u16);
        self.chains[at] = Taken { id: token.id(), slots: token.slots(), writable, done: None };
    }

    #[inline]
    pub(crate) fn complete(&mut self, token: &Token, len: u32) {
        let at = token.slot(self.chains.len() as u16);
        self.chains[at].done = Some(len);
    }

    /// The chain in a slot, with its length, if it is complete; once.
    pub(crate) fn completed(&mut self, slot: u16) -> Option<UsedBatch> {
        let chain = self.chains.get_mut(usize::from(slot))?;
        let len = chain.done.take()?;
        let Taken { id, slots, writable, .. } = *chain;
        Some(UsedBatch { id, len, chains: 1, slots, writable })
    }

    /// The id of the chain in a slot, and its descriptors.
    pub(crate) fn chain(&self, slot: u16) -> (u16, u16) {
        self.chains.get(usize::from(slot)).map_or((0, 0), |chain| (chain.id, chain.slots))
    }

    /// The next used entry: as many of the oldest chains as one can stand for. `outstanding` are
    /// the descriptors (split: chains) of those that were taken.
    #[inline]
    pub(crate) fn next(&mut self, outstanding: u16) -> Option<UsedBatch> {
        let mut batch: Option<UsedBatch> = None;
        let mut left = outstanding;
        while left > 0 {
            let chain = &mut self.chains[self.oldest];
            let Some(len) = chain.done.take() else { break };
            left = left.saturating_sub(chain.slots);
            self.oldest += usize::from(chain.slots);
            let (chains, slots) = batch.map_or((0, 0), |batch| (batch.chains, batch.slots));
            let (id, writable) = (chain.id, chain.writable);
            batch = Some(UsedBatch { id, len, chains: chains + 1, slots: slots + chain.slots, writable });
            if self.oldest >= self.chains.len() {
                self.oldest -= self.chains.len();
            }
            if writable {
                break;
            }
        }
        batch
    }
}
