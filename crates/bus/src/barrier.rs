//! Barriers between a driver and a device that shares its memory (Linux: `dma_rmb`, `dma_wmb`).
//!
//! A device is an observer outside the processors: on arm64 it is in the *outer shareable* domain,
//! and the barriers of the atomics, which order the inner one, do not reach it (Arm Architecture
//! Reference Manual B2.3, Linux: `arch/arm64/include/asm/barrier.h`). On x86 stores, and loads, are
//! seen in program order by devices too, so that only the compiler must keep it (Intel SDM 3A
//! §9.2.2).
//!
//! | place | barrier |
//! |---|---|
//! | before a register write that makes the device read memory, as a doorbell: in [`Mmio::w32`](crate::Mmio::w32) | [`dma_wmb`] |
//! | after a register read, or the load of a word that the device wrote last: status, index | [`dma_rmb`] |
//! | around the bytes of a buffer: [`Dma::sync_for_cpu`](crate::Dma::sync_for_cpu), [`sync_for_device`](crate::Dma::sync_for_device) | both |

/// Orders stores to memory before later stores: the device sees them no later than the register
/// write, or the descriptor word, that follows.
#[inline(always)]
pub fn dma_wmb() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier accesses no memory of the program.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    #[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64", target_arch = "x86")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Orders loads before later loads and stores: what the device wrote before the word that was
/// loaded is visible after it, and a slot that is freed after it is not read any more.
#[inline(always)]
pub fn dma_rmb() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `dma_wmb`.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    #[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64", target_arch = "x86")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
