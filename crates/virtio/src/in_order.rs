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
//!
//! Most chains are completed in their turn: they join the batch at once, and no other memory is
//! touched. Only a chain that has to wait for an older one is stored.

use crate::chain::Token;

/// One used entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsedBatch {
    /// Of the last chain.
    pub(crate) id: u16,
    pub(crate) len: u32,
    /// Chains that it stands for, and their descriptors.
    pub(crate) chains: u16,
    pub(crate) slots: u16,
}

impl UsedBatch {
    const EMPTY: UsedBatch = UsedBatch { id: 0, len: 0, chains: 0, slots: 0 };

    /// The entry of one chain.
    #[inline]
    pub(crate) fn one(token: &Token, len: u32) -> UsedBatch {
        UsedBatch { id: token.id(), len, chains: 1, slots: token.slots() }
    }
}

/// The chains of a device that are complete and not in a used entry.
#[derive(Debug)]
pub(crate) struct InOrder {
    /// By position: chains that were completed before their turn, each with its bytes.
    waiting: Box<[Option<(Token, u32)>]>,
    /// The position of the oldest chain that is neither in the batch nor in a used entry.
    oldest: usize,
    /// The complete chains before it that no used entry stands for yet.
    batch: UsedBatch,
}

impl InOrder {
    pub(crate) fn new(size: u16, oldest: u16) -> InOrder {
        let waiting = (0..size).map(|_| None).collect();
        InOrder { waiting, oldest: oldest.into(), batch: UsedBatch::EMPTY }
    }

    /// A chain is complete. Returns a used entry that is to be written now.
    #[inline(always)] // a call costs as much as the rest
    pub(crate) fn complete(&mut self, token: Token, len: u32) -> Option<UsedBatch> {
        let at = token.slot(self.waiting.len() as u16);
        if at != self.oldest {
            self.wait(at, token, len);
            None
        } else if !token.is_writable() {
            self.join(&token, len);
            None
        } else if self.batch.chains == 0 {
            // It is a batch by itself, which is not stored.
            self.advance(&token);
            Some(UsedBatch::one(&token, len))
        } else {
            self.end(&token, len)
        }
    }

    #[cold]
    fn wait(&mut self, at: usize, token: Token, len: u32) {
        if let Some(place) = self.waiting.get_mut(at) {
            *place = Some((token, len));
        }
    }

    /// The next used entry, of chains whose turn has come, for a publication.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<UsedBatch> {
        while let Some((token, len)) = self.waiting.get_mut(self.oldest).and_then(Option::take) {
            if token.is_writable() {
                return self.end(&token, len);
            }
            self.join(&token, len);
        }
        self.take_batch()
    }

    /// Adds the oldest chain to the batch.
    #[inline]
    fn join(&mut self, token: &Token, len: u32) {
        self.advance(token);
        let UsedBatch { chains, slots, .. } = self.batch;
        let one = UsedBatch::one(token, len);
        self.batch = UsedBatch { chains: chains.wrapping_add(1), slots: slots.wrapping_add(one.slots), ..one };
    }

    /// Adds the oldest chain to the batch, which ends with it: it was written.
    #[inline(never)]
    fn end(&mut self, token: &Token, len: u32) -> Option<UsedBatch> {
        self.join(token, len);
        self.take_batch()
    }

    #[inline]
    fn advance(&mut self, token: &Token) {
        self.oldest += usize::from(token.slots());
        if self.oldest >= self.waiting.len() {
            self.go_around();
        }
    }

    /// A token that was made of something else may stand for any number of descriptors.
    #[cold]
    fn go_around(&mut self) {
        self.oldest %= self.waiting.len();
    }

    /// Takes the batch, if it has chains. It is read field by field: a load of all at once would
    /// wait for the stores of each.
    #[inline]
    fn take_batch(&mut self) -> Option<UsedBatch> {
        let UsedBatch { id, len, chains, slots } = self.batch;
        (self.batch.chains, self.batch.slots) = (0, 0);
        (chains > 0).then_some(UsedBatch { id, len, chains, slots })
    }
}
