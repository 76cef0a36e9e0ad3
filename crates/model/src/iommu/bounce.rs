//! Bounce buffers: the device works on copies of the buffers.

use crate::memory::HostAddr;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The contents of a bounce buffer before the first sync: neither those of the buffer, nor zeros.
const POISON: u8 = 0xdb;
const PAGE: [u8; 4096] = [POISON; 4096];

#[derive(Debug, Clone, Copy)]
struct Pair {
    len: u64,
    buffer: HostAddr,
    bounce_buffer: HostAddr,
}

/// The bounce buffers of all mappings, by IOVA.
#[derive(Debug, Default)]
pub(super) struct BounceBuffers(Mutex<BTreeMap<u64, Pair>>);

impl BounceBuffers {
    fn pairs(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Pair>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a bounce buffer, filled with poison.
    ///
    /// # Safety
    /// Until [`remove`](BounceBuffers::remove), `len` bytes at both addresses are memory of this
    /// process whose contents nothing relies on.
    pub(super) unsafe fn add(&self, iova: u64, len: u64, buffer: u64, bounce_buffer: u64) {
        let pair = Pair { len, buffer: HostAddr::new(buffer), bounce_buffer: HostAddr::new(bounce_buffer) };
        for at in (0..len).step_by(PAGE.len()) {
            let part = PAGE.len().min((len - at) as usize);
            // SAFETY: the caller's promise.
            unsafe { pair.bounce_buffer.offset(at as usize).write(&PAGE[..part]) };
        }
        self.pairs().insert(iova, pair);
    }

    pub(super) fn remove(&self, iova: u64) {
        self.pairs().remove(&iova);
    }

    /// Copies between buffer and bounce buffer; returns false if `len` bytes at `iova` are not
    /// mapped.
    pub(super) fn sync(&self, iova: u64, len: usize, to_device: bool) -> bool {
        let pairs = self.pairs();
        let Some((offset, pair)) = locate(&pairs, iova, len) else { return false };
        let mut bytes = vec![0; len];
        let (from, to) = if to_device { (pair.buffer, pair.bounce_buffer) } else { (pair.bounce_buffer, pair.buffer) };
        // SAFETY: both addresses hold `len` bytes while the entry is in the map, whose lock is
        // held; `locate` checked the range.
        unsafe {
            from.offset(offset).read(&mut bytes);
            to.offset(offset).write(&bytes);
        }
        true
    }

    /// Whether buffer and bounce buffer are equal; true without a bounce buffer.
    pub(super) fn same(&self, iova: u64, len: usize) -> bool {
        let pairs = self.pairs();
        let Some((offset, pair)) = locate(&pairs, iova, len) else { return true };
        let (mut a, mut b) = (vec![0; len], vec![0; len]);
        // SAFETY: as in `sync`.
        unsafe {
            pair.buffer.offset(offset).read(&mut a);
            pair.bounce_buffer.offset(offset).read(&mut b);
        }
        a == b
    }
}

fn locate(pairs: &BTreeMap<u64, Pair>, iova: u64, len: usize) -> Option<(usize, Pair)> {
    let (start, pair) = pairs.range(..=iova).next_back()?;
    let offset = iova - start;
    (offset.checked_add(len as u64)? <= pair.len).then_some((offset as usize, *pair))
}
