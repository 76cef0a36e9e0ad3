//! Fences in other processes (`membarrier(2)`).

/// Makes every thread of the programs that asked for it (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`) pass a full fence now: the fence that
/// they leave out between their counter and our flag. False if this kernel can't.
pub fn global_expedited() -> bool {
    /// `MEMBARRIER_CMD_GLOBAL_EXPEDITED`.
    const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}
