//! Fences in other processes (`membarrier(2)`).

/// Makes every running thread of the processes that registered for it
/// (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`) execute a full fence now. They may then leave out
/// the fence between a store and a load on their hot path. Returns `false` if the kernel lacks the
/// command.
pub fn global_expedited() -> bool {
    /// `MEMBARRIER_CMD_GLOBAL_EXPEDITED`.
    const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Lets other processes fence this one: every thread of this process passes a full fence at each of
/// their [`global_expedited`]. False if this kernel can't.
pub fn register_global_expedited() -> bool {
    /// `MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`.
    const REGISTER_GLOBAL_EXPEDITED: libc::c_long = 1 << 2;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 }
}
