//! Copybreak: a short frame is copied out of its buffer, which stays mapped and goes back to the
//! device. A longer one takes its buffer along.
//!
//! ```text
//!   slot: buffer, mapped ─┬─ copy ──► packet of another buffer; the slot is as it was
//!                         └─ unmap, sync_iotlb ──► the buffer is the packet; the slot is empty
//! ```

use super::option::{ConfigError, within};
use std::ops::RangeInclusive;
use towpath_bus::{Dma, DmaCounts, DmaMapper, DmaPolicy, Iova, Mapped};
use towpath_packet::{Cache, FromDevice, InFlight, Packet};

const RANGE: RangeInclusive<u64> = 0..=16384;

/// Frames shorter than this many bytes are copied out of their buffer, which stays with the device:
/// 0 (never) to 16384.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copybreak(u16);

impl Copybreak {
    /// Nothing is copied.
    pub const OFF: Copybreak = Copybreak(0);

    /// Checks a threshold in bytes.
    ///
    /// # Errors
    /// [`ConfigError`] names the rule.
    pub fn new(bytes: u64) -> Result<Copybreak, ConfigError> {
        within("copybreak", bytes, RANGE)?;
        Ok(Copybreak(bytes as u16))
    }

    /// Bytes.
    pub fn get(self) -> u32 {
        self.0.into()
    }

    /// The best threshold for a policy, by `towpath bench copybreak` (`docs/perf/e1000e.md`). If no
    /// buffer is mapped alone, a copy costs less than the buffer itself for small frames only; if
    /// each buffer is mapped, for all frames.
    pub fn default_for(policy: DmaPolicy) -> Copybreak {
        match policy {
            DmaPolicy::Persistent => Copybreak(256),
            DmaPolicy::PerBuffer { .. } => Copybreak(2048),
        }
    }
}

/// What a receive queue has done with buffers since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RxCounts {
    /// Descriptors that the device completed.
    pub completed: u64,
    /// Buffers whose bytes were copied out.
    pub copies: u64,
    /// Buffers that became packets.
    pub handed: u64,
    /// Buffers that stayed mapped and went back to the device, copied out or not.
    pub recycled: u64,
    /// Buffers mapped one by one.
    pub maps: u64,
    /// Buffers unmapped.
    pub unmaps: u64,
    /// IOTLB flushes that were waited for.
    pub flushes: u64,
    /// Syncs for the CPU.
    pub syncs_for_cpu: u64,
    /// Syncs for the device.
    pub syncs_for_device: u64,
}

impl RxCounts {
    /// The same, with the counts of the queue's mapper.
    pub(crate) fn with_dma(self, dma: DmaCounts) -> RxCounts {
        RxCounts {
            maps: dma.maps,
            unmaps: dma.unmaps,
            flushes: dma.flushes,
            syncs_for_cpu: dma.syncs_for_cpu,
            syncs_for_device: dma.syncs_for_device,
            ..self
        }
    }
}

/// Counts buffers that are never used again, because the device may still write to them.
pub(crate) trait LeakLog {
    fn leaked(&self);
}

/// The buffer of a receive descriptor. A slot that is mapped has a buffer.
#[derive(Debug, Default)]
pub(crate) struct RxSlot {
    pub(crate) buffer: Option<InFlight<FromDevice>>,
    pub(crate) mapped: Option<Mapped>,
}

impl RxSlot {
    /// Copies the first `len` bytes to a packet. The buffer stays mapped; returns its IOVA.
    #[inline]
    pub(crate) fn copy<D: Dma>(&self, mapper: &mut DmaMapper<D>, len: usize, to: &mut Packet) -> Option<Iova> {
        let (buffer, mapped) = (self.buffer.as_ref()?, self.mapped.as_ref()?);
        mapper.sync_for_cpu(mapped, len);
        let copied = buffer.copy_to(len, to);
        mapper.sync_for_device(mapped, len);
        copied.ok().map(|()| mapped.iova())
    }

    /// Unmaps a buffer, in which the device wrote `len` bytes. Returns false if that fails: the
    /// buffer is leaked then.
    #[inline]
    pub(crate) fn unmap<D: Dma>(&mut self, mapper: &mut DmaMapper<D>, len: usize, log: &impl LeakLog) -> bool {
        let Some(mapped) = self.mapped.take() else { return self.buffer.is_some() };
        mapper.sync_for_cpu(&mapped, len);
        let unmapped = mapper.unmap(mapped).is_ok();
        if !unmapped {
            self.leak(log);
        }
        unmapped
    }

    /// Leaks a buffer that the device may write for ever.
    #[cold]
    pub(crate) fn leak(&mut self, log: &impl LeakLog) {
        if let Some(buffer) = self.buffer.take() {
            leak(buffer, log);
        }
    }
}

/// Leaks a buffer that the device may write for ever.
#[cold]
pub(crate) fn leak(buffer: InFlight<FromDevice>, log: &impl LeakLog) {
    log.leaked();
    // The packet of an `InFlight` that is dropped does not return to its pool.
    drop(buffer);
}

/// Unmaps the buffers of all slots, and waits until the device can't reach them. Returns false if
/// that is not known.
#[cold]
pub(crate) fn unmap_all<'s, D: Dma>(
    slots: impl Iterator<Item = &'s mut RxSlot>,
    mapper: &mut DmaMapper<D>,
    log: &impl LeakLog,
) -> bool {
    for slot in slots {
        slot.unmap(mapper, 0, log);
    }
    mapper.flush_iotlb().is_ok()
}

/// Frees the buffers of all slots, which the device does not reach.
#[cold]
pub(crate) fn free_all<'s>(slots: impl Iterator<Item = &'s mut RxSlot>, cache: &mut Cache) {
    slots.filter_map(|slot| slot.buffer.take()).for_each(|buffer| cache.free(buffer.complete(0)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_beyond_the_range_is_named_with_the_rule() {
        assert_eq!(Copybreak::new(16384).map(Copybreak::get), Ok(16384));
        assert_eq!(Copybreak::new(16385).unwrap_err().to_string(), "copybreak=16385: must be from 0 to 16384");
    }
}
