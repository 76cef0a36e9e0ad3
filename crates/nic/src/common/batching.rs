//! Doorbell batching: how many packets one doorbell announces, and the handle that changes this
//! number while a port runs.
//!
//! Every driver in this crate stages packets and announces full batches. The rest of a burst, less
//! than a batch, is announced at the end of the burst. `docs/batching.md` explains the discipline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use towpath_packet::port::{ControlError, PortControl, Setting, SettingValue};

/// The number of packets that are announced together: 1 to 127, the largest number in the signed
/// byte of a K3 ring's doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchSize(u8);

impl BatchSize {
    /// 127 packets.
    pub const MAX: BatchSize = BatchSize(127);

    /// `n` packets; `None` unless `n` is 1 to 127.
    pub const fn new(n: u8) -> Option<BatchSize> {
        if n >= 1 && n <= 127 { Some(BatchSize(n)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for BatchSize {
    /// 32: eight packets a doorbell save most of the writes already, and more than 64 save little
    /// more.
    fn default() -> BatchSize {
        BatchSize(32)
    }
}

/// Changes the batch size of one port while it runs. A clone is another handle to the same size.
#[derive(Debug, Clone)]
pub struct Batching(Arc<AtomicU8>);

impl Batching {
    pub(crate) fn new(size: BatchSize) -> Batching {
        Batching(Arc::new(AtomicU8::new(size.0)))
    }

    /// Sets the size; the queues use it from their next packet on.
    pub fn resize(&self, size: BatchSize) {
        self.0.store(size.0, Ordering::Relaxed);
    }

    /// The size.
    #[inline]
    pub fn get(&self) -> BatchSize {
        BatchSize(self.0.load(Ordering::Relaxed))
    }
}

impl PortControl for Batching {
    fn settings(&self) -> Vec<Setting> {
        let what = "packets that one doorbell announces, 1 to 127";
        vec![Setting::new("batch", u64::from(self.get().get()), what)]
    }

    fn set(&self, name: &str, value: &SettingValue) -> Result<(), ControlError> {
        if name != "batch" {
            return Err(ControlError::unknown(name, &self.settings()));
        }
        let size = u8::try_from(value.number(name)?).ok().and_then(BatchSize::new);
        self.resize(size.ok_or_else(|| value.breaks(name, "must be from 1 to 127"))?);
        Ok(())
    }
}
