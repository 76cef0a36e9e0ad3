//! The log of the pages that the device wrote, from which a migration learns what to send again.
//!
//! One bit for each 4 KiB of guest physical memory, in a file that the front end shares: page
//! `n` is bit `n % 8` of byte `n / 8`.

use super::memory::MemoryError;
use super::ring::DirtyLog;
use std::os::fd::OwnedFd;
use towpath_packet::UntrustedMem;
use towpath_virtio::Area;
use towpath_virtio::vhost_user::{Log, MemoryRegion};

/// Bits of a page's address.
const PAGE: u32 = 12;
/// Most bytes of a log: that of 8 TiB.
const MAX_LOG: u64 = 1 << 28;

/// The log of one migration.
#[derive(Debug)]
pub(super) struct PageLog {
    bits: Area,
    memory: UntrustedMem,
}

impl PageLog {
    /// The log in `file`.
    pub(super) fn new(log: Log, file: OwnedFd) -> Result<PageLog, MemoryError> {
        let Log { size, offset } = log;
        let large = || MemoryError::Large(MemoryRegion { size, offset, ..MemoryRegion::default() });
        let end = size.checked_add(offset).filter(|end| (1..=MAX_LOG).contains(&size) && *end <= 2 * MAX_LOG);
        let memory = UntrustedMem::from_file(file, end.ok_or_else(large)? as usize)?;
        let bits = Area::new(&memory, offset as usize, size as usize).ok_or_else(large)?;
        Ok(PageLog { bits, memory })
    }

    /// Whether the file was truncated.
    pub(super) fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }
}

impl DirtyLog for PageLog {
    fn mark(&self, addr: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|len| addr.checked_add(len)) else { return };
        for page in addr >> PAGE..=last >> PAGE {
            // A page that the log has no bit for is not part of the guest.
            if !self.bits.set_bits((page / 8) as usize, 1 << (page % 8)) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use towpath_testing::sealed_memory;

    #[test]
    fn each_page_of_a_range_is_marked_and_none_beyond_the_log() {
        let file = sealed_memory(8192);
        let mut log = PageLog::new(Log { size: 16, offset: 4096 }, file.as_fd().try_clone_to_owned().unwrap()).unwrap();
        for (addr, len) in [(0x1fff, 1), (0x7fff, 2), (u64::MAX, 1), (u64::MAX, 2), (0, 0), (127 << 12, 1 << 20)] {
            log.mark(addr, len);
        }
        let seen = UntrustedMem::from_file(file, 8192).unwrap();
        let mut expected = [0u8; 18];
        (expected[0], expected[1], expected[15]) = (0b1000_0010, 1, 0x80);
        assert_eq!(seen.get::<18>(4096), Some(expected));
        assert!(!log.is_lost());
        log = PageLog::new(Log { size: 1, offset: 0 }, sealed_memory(4096)).unwrap();
        log.mark(0x8000, 1);
    }

    #[test]
    fn a_log_beyond_its_file_or_its_bounds_is_refused() {
        for (size, offset) in [(0, 0), (4097, 0), (1, 4096), (u64::MAX, 1), (1, u64::MAX), (1 << 29, 0)] {
            assert!(PageLog::new(Log { size, offset }, sealed_memory(4096)).is_err(), "{size:#x} {offset:#x}");
        }
    }
}
