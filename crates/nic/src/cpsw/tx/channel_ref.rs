//! Access to a transmit channel: a queue has its own, without a lock, or ports share one, with one
//! lock per burst.

use super::super::host::Live;
use super::TxChannel;
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use towpath_bus::Bus;

/// A transmit channel that is torn down when it is dropped.
pub(in crate::cpsw) type LiveChannel<B> = Live<B, TxChannel<B>>;

/// A queue's access to its channel. The channel is torn down with its last reference.
pub(in crate::cpsw) enum ChannelRef<B: Bus> {
    Own(Box<LiveChannel<B>>),
    Shared(Arc<Mutex<LiveChannel<B>>>),
}

impl<B: Bus> ChannelRef<B> {
    /// Runs `f` on the channel; `None` only during teardown.
    #[inline]
    pub(super) fn with<T>(&mut self, f: impl FnOnce(&mut TxChannel<B>) -> T) -> Option<T> {
        match self {
            ChannelRef::Own(live) => live.part.as_mut().map(f),
            ChannelRef::Shared(live) => lock(live).part.as_mut().map(f),
        }
    }

    /// Runs `f` on the channel, which it does not change.
    pub(super) fn read<T>(&self, f: impl FnOnce(&TxChannel<B>) -> T) -> Option<T> {
        match self {
            ChannelRef::Own(live) => live.part.as_ref().map(f),
            ChannelRef::Shared(live) => lock(live).part.as_ref().map(f),
        }
    }
}
