//! Gives up rights on every thread of the process: capabilities, files and sockets by a Landlock
//! rule set, and the rights of programs that are executed (`no_new_privs`).
//!
//! The kernel keeps all three for each thread, and a thread changes only its own. New threads
//! inherit them. To reach those that run already, each is interrupted by a signal whose handler
//! makes the calls, as `libcap`'s `psx_syscall(3)` does.
//!
//! ```text
//!   restrict_all ─► tgkill(thread) ─► handler: prctl, landlock_restrict_self, capset
//!        ▲  └── waits for each ◄────────── DONE
//!        └ again, until /proc/self/task lists no new thread; the calling thread is the last
//! ```

use super::check;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread may take until it has run the handler.
const PATIENCE: Duration = Duration::from_secs(10);
/// The step of the wait for a thread.
const STEP: Duration = Duration::from_micros(100);
/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits.
const VERSION: u32 = 0x2008_0522;

/// What the handler does.
static KEPT: AtomicU64 = AtomicU64::new(0);
/// A rule set; -1 for none.
static RULES: AtomicI32 = AtomicI32::new(-1);
/// The last thread that has run the handler, and the error of its first step that failed.
static DONE: AtomicI32 = AtomicI32::new(0);
static ERROR: AtomicI32 = AtomicI32::new(0);
/// One caller at a time.
static CALLER: Mutex<()> = Mutex::new(());

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`, the lower and the upper 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn capget() -> io::Result<[Sets; 2]> {
    let header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both structures have the layout of version 3, and live across the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()) };
    check(result as libc::c_int).map(|_| sets)
}

/// Keeps only the capabilities in `kept`; async-signal-safe.
fn keep(kept: u64) -> io::Result<()> {
    let mut sets = capget()?;
    for (half, set) in sets.iter_mut().enumerate() {
        let mask = (kept >> (32 * half)) as u32;
        set.permitted &= mask;
        (set.effective, set.inheritable) = (set.effective & mask, 0);
    }
    let header = Header { version: VERSION, pid: 0 };
    // SAFETY: both structures have the layout of version 3, and live across the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &header, sets.as_ptr()) } as libc::c_int).map(drop)
}

/// The permitted capabilities of the calling thread, as bits.
///
/// # Errors
/// The error of `capget(2)`.
pub fn capabilities() -> io::Result<u64> {
    let [low, high] = capget()?;
    Ok(u64::from(low.permitted) | u64::from(high.permitted) << 32)
}

/// Runs `f` on a thread whose effective capabilities are those in `kept`.
///
/// # Errors
/// The error of `capset(2)`, or of the thread's start.
pub fn with_capabilities<R: Send>(kept: u64, f: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let inside = std::thread::Builder::new().name("rights".to_owned()).spawn_scoped(scope, || {
            keep(kept)?;
            Ok(f())
        })?;
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether the calling thread may make and remove files in a directory.
pub fn is_writable(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a NUL-terminated string that lives across the call.
    let result = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) };
    check(result).is_ok()
}

/// The version of Landlock's interface in this kernel.
///
/// # Errors
/// `ENOSYS` if the kernel was built without it, `EOPNOTSUPP` if it was booted without it.
pub fn landlock_version() -> io::Result<u32> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call takes no structure.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, VERSION) };
    check(version as libc::c_int).map(|version| version as u32)
}

/// Whether the kernel knows an action of seccomp filters, such as `SECCOMP_RET_TRAP`.
///
/// # Errors
/// The error of `seccomp(2)`: `ENOSYS` or `EINVAL` without filters, `EOPNOTSUPP` without the action.
pub fn seccomp_action(action: u32) -> io::Result<()> {
    // SAFETY: the action lives across the call, which only reads it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &action) } as libc::c_int)
        .map(drop)
}

/// Whether the calling thread has `no_new_privs`.
pub fn no_new_privs() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// The steps, on the calling thread; async-signal-safe.
fn restrict() -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let rules = RULES.load(Ordering::Acquire);
    if rules >= 0 {
        // SAFETY: no pointers.
        check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) } as libc::c_int)?;
    }
    keep(KEPT.load(Ordering::Acquire))
}

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: errno is a variable of the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid for as long as the thread runs.
    let saved = unsafe { *errno };
    let error = restrict().err().and_then(|error| error.raw_os_error()).unwrap_or(0);
    // SAFETY: as above.
    unsafe { *errno = saved };
    ERROR.store(error, Ordering::Relaxed);
    // SAFETY: no pointers.
    DONE.store(unsafe { libc::gettid() }, Ordering::Release);
}

/// The signal: glibc, Go and the JVM use none near the end of the real-time signals.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 3
}

fn threads() -> io::Result<Vec<libc::pid_t>> {
    let names = std::fs::read_dir("/proc/self/task")?.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Interrupts a thread and waits for its handler. A thread that has ended is no error.
fn interrupt(thread: libc::pid_t) -> io::Result<()> {
    let send = |signal: libc::c_int| {
        // SAFETY: no pointers.
        check(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) } as libc::c_int)
    };
    let has_ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    DONE.store(0, Ordering::Relaxed);
    match send(signal()) {
        Err(error) if has_ended(&error) => return Ok(()),
        sent => sent?,
    };
    let end = Instant::now() + PATIENCE;
    while DONE.load(Ordering::Acquire) != thread {
        if send(0).is_err_and(|error| has_ended(&error)) {
            return Ok(());
        }
        if Instant::now() > end {
            let why = format!("thread {thread} blocks the signal {}", signal());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        std::thread::sleep(STEP);
    }
    match ERROR.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Sets `no_new_privs`, adds a Landlock rule set, and keeps only the capabilities in `kept`, on
/// every thread. System calls of other threads may be interrupted once.
///
/// # Errors
/// The first error of a step. Threads before it are restricted then, those after it are not.
pub fn restrict_all(kept: u64, rules: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let _caller = CALLER.lock().unwrap_or_else(PoisonError::into_inner);
    KEPT.store(kept, Ordering::Release);
    RULES.store(rules.map_or(-1, |rules| rules.as_raw_fd()), Ordering::Release);
    // SAFETY: sigaction is integers, a set of bits and an address, for which zeroes are values.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: both actions live across the call. The handler makes only async-signal-safe calls,
    // uses no stack worth mentioning, and restores errno.
    check(unsafe { libc::sigaction(signal(), &action, &mut before) })?;
    // SAFETY: no pointers.
    let own = unsafe { libc::gettid() };
    let mut done = BTreeSet::from([own]);
    loop {
        let new: Vec<_> = threads()?.into_iter().filter(|thread| done.insert(*thread)).collect();
        if new.is_empty() {
            break;
        }
        // A signal that is still pending after an error finds the handler.
        new.into_iter().try_for_each(interrupt)?;
    }
    // SAFETY: as above; no signal is pending any more.
    check(unsafe { libc::sigaction(signal(), &before, std::ptr::null_mut()) })?;
    restrict()
}
