//! How many packets one doorbell announces, and the handle that changes it while a port runs.
//!
//! Every driver here stages packets and announces them by full batches; what is less than a batch at the end of a burst goes with the
//! burst. The discipline is explained in `docs/batching.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use towpath_packet::port::{ControlError, PortControl, Setting};

/// Packets that are announced together: 1 to 127, the most that the signed byte of a K3 ring's doorbell can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchSize(u8);

impl BatchSize {
    /// The most.
    pub const MAX: BatchSize = BatchSize(127);

    /// `n` packets, if that is 1 to 127.
    pub const fn new(n: u8) -> Option<BatchSize> {
        if n >= 1 && n <= 127 { Some(BatchSize(n)) } else { None }
    }

    /// As a number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for BatchSize {
    /// 32: eight packets a doorbell already save most of the writes, and beyond 64 there is little left to save.
    fn default() -> BatchSize {
        BatchSize(32)
    }
}

/// Changes the batch size of one port while it runs; a clone is another handle of the same.
#[derive(Debug, Clone)]
pub struct Batching(Arc<AtomicU8>);

impl Batching {
    pub(crate) fn new(size: BatchSize) -> Batching {
        Batching(Arc::new(AtomicU8::new(size.0)))
    }

    /// Sets it; the queues follow with their next packet.
    pub fn resize(&self, size: BatchSize) {
        self.0.store(size.0, Ordering::Relaxed);
    }

    /// What it is.
    #[inline]
    pub fn get(&self) -> BatchSize {
        BatchSize(self.0.load(Ordering::Relaxed))
    }
}

impl PortControl for Batching {
    fn settings(&self) -> Vec<Setting> {
        let what = "packets that one doorbell announces, 1 to 127";
        vec![Setting::new("batch", self.get().get().into(), what)]
    }

    fn set(&self, name: &str, value: u64) -> Result<(), ControlError> {
        if name != "batch" {
            return Err(ControlError::unknown(name, self));
        }
        let size = u8::try_from(value).ok().and_then(BatchSize::new);
        let rule = "must be from 1 to 127".to_owned();
        self.resize(size.ok_or_else(|| ControlError::Value { name: name.to_owned(), value, rule })?);
        Ok(())
    }
}
