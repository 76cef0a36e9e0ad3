//! System calls that a seccomp filter refused: each fails with `EPERM`, and is counted by number.
//!
//! A filter that returns `SECCOMP_RET_TRAP` has the kernel send `SIGSYS` to the thread in place of
//! the call. The handler here counts it and lets the call fail. A thread that blocks the signal is
//! killed by the kernel instead.

use super::check;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whether this processor's registers are known, so that a call can be made to fail.
pub const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// More numbers than any architecture has; the last entry counts those beyond.
const NUMBERS: usize = 1024;

static REFUSED: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// The head of `siginfo_t` of a `SIGSYS` (`include/uapi/asm-generic/siginfo.h`).
#[repr(C)]
struct Info {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    address: *mut libc::c_void,
    number: libc::c_int,
    arch: libc::c_uint,
}

/// `SYS_SECCOMP`: the signal comes from a filter.
const SYS_SECCOMP: libc::c_int = 1;

/// Counts refused calls from now on, on all threads.
///
/// # Errors
/// The error of `sigaction(2)`; `Unsupported` if the processor is not [`SUPPORTED`].
pub fn count() -> io::Result<()> {
    if !SUPPORTED {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: sigaction is integers, a set of bits and an address, for which zeroes are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = refuse as *const () as usize;
    // A call that the handler itself makes could be refused too.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: the action lives across the call. The handler has the signature of SA_SIGINFO, and
    // only writes atomics and the registers that the kernel saved.
    check(unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) }).map(drop)
}

/// The numbers of the calls that were refused, with how often. A number that is too large to be
/// counted is `None`.
pub fn refused() -> Vec<(Option<i64>, u64)> {
    let number = |at: usize| (at + 1 < NUMBERS).then_some(at as i64);
    let all = REFUSED.iter().enumerate().map(|(at, times)| (number(at), times.load(Relaxed)));
    all.filter(|(_, times)| *times > 0).collect()
}

extern "C" fn refuse(_: libc::c_int, info: *const Info, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t that lives until the handler returns.
    let info = unsafe { &*info };
    if info.code != SYS_SECCOMP {
        return;
    }
    let at = usize::try_from(info.number).unwrap_or(NUMBERS).min(NUMBERS - 1);
    REFUSED[at].fetch_add(1, Relaxed);
    // SAFETY: the kernel passes the ucontext_t of the interrupted thread, which nothing else uses
    // until the handler returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    fail(context);
}

/// Makes the call of the interrupted thread return `-EPERM`.
#[cfg(target_arch = "x86_64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::EPERM);
}

#[cfg(target_arch = "aarch64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.regs[0] = -i64::from(libc::EPERM) as u64;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fail(_: &mut libc::ucontext_t) {}
