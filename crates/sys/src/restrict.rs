//! Gives up rights of threads: capabilities, files and sockets by a Landlock rule set, system calls
//! by seccomp filters, and the rights of programs that are executed (`no_new_privs`).
//!
//! The kernel keeps all four for each thread, and a thread changes only its own. New threads
//! inherit them. To reach those that run already, each is interrupted by a signal whose handler
//! makes the calls, as `libcap`'s `psx_syscall(3)` does.
//!
//! ```text
//!   reach_since ─► TARGET ─► tgkill ─► handler: prctl, landlock_restrict_self, capset, seccomp
//!        ▲  └── waits for each ◄──────── TARGET = 0
//!        └ again, until /proc/self/task lists no new thread; then the caller restricts itself
//! ```

use super::check;
use super::threads::Threads;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread may take until it has run the handler.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// The step of the wait for a thread.
const STEP: Duration = Duration::from_micros(100);
/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits.
const VERSION: u32 = 0x2008_0522;

/// What the handler applies.
static RESTRICTION: AtomicPtr<Restriction> = AtomicPtr::new(null_mut());
/// The thread that applies it; 0 for none, and when it is done.
static TARGET: AtomicI32 = AtomicI32::new(0);
/// The threads that are in the handler.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// The errors of the target: of its limits, and of its filters. 0 is none.
static ERRORS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
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
/// The error of `seccomp(2)`: `ENOSYS` or `EINVAL` without filters, `EOPNOTSUPP` without the
/// action.
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

/// What threads give up.
#[derive(Debug)]
pub struct Restriction {
    /// The capabilities that they keep, as bits.
    pub kept: u64,
    /// A Landlock rule set.
    pub rules: Option<OwnedFd>,
    /// Seccomp filters, the first that is installed first. Each must let the next be installed.
    pub filters: Vec<Vec<libc::sock_filter>>,
}

/// What became of other threads: the first error of each part.
#[derive(Debug)]
#[non_exhaustive]
pub struct Others {
    /// Of [`Restriction::limit`].
    pub limited: io::Result<()>,
    /// Of [`Restriction::filter`].
    pub filtered: io::Result<()>,
}

impl Others {
    fn unreached(error: &io::Error) -> Others {
        let same = || Err(io::Error::new(error.kind(), error.to_string()));
        Others { limited: same(), filtered: same() }
    }

    fn and(self, other: Others) -> Others {
        Others { limited: self.limited.and(other.limited), filtered: self.filtered.and(other.filtered) }
    }
}

impl Restriction {
    /// Sets `no_new_privs`, adds the Landlock rule set, and drops capabilities, on the calling
    /// thread. Async-signal-safe.
    ///
    /// # Errors
    /// The first error; what could be done is in force. `E2BIG` if the thread has 16 rule sets.
    pub fn limit(&self) -> io::Result<()> {
        // SAFETY: no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        let ruled = self.rules.as_ref().map_or(Ok(0), |rules| {
            // SAFETY: no pointers.
            check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) } as libc::c_int)
        });
        let kept = keep(self.kept);
        ruled.and(kept)
    }

    /// Installs the filters on the calling thread, after [`limit`](Restriction::limit).
    /// Async-signal-safe.
    ///
    /// # Errors
    /// The error of `seccomp(2)`: `EINVAL` for a filter that is no program.
    pub fn filter(&self) -> io::Result<()> {
        self.filters.iter().try_for_each(|filter| {
            let len = filter.len().try_into().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
            // SAFETY: the program and its `len` instructions live across the call, which reads
            // them.
            let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &program) };
            check(result as libc::c_int).map(drop)
        })
    }

    /// Limits and filters all threads that were started since `before`, except the calling one.
    /// Their system calls may be interrupted once. A thread that can't be reached, or that a step
    /// fails on, keeps none of the others from it.
    ///
    /// A thread that blocks the signal `SIGRTMAX - 3` for longer than 10 seconds is not reached.
    pub fn reach_since(&self, before: &Threads) -> Others {
        let _caller = CALLER.lock().unwrap_or_else(PoisonError::into_inner);
        RESTRICTION.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        // SAFETY: sigaction is integers, a set of bits and an address, for which zeroes are values.
        let (mut action, mut replaced): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: both actions live across the call. The handler makes only async-signal-safe
        // calls, uses no stack worth mentioning, and restores errno.
        if let Err(error) = check(unsafe { libc::sigaction(signal(), &action, &mut replaced) }) {
            return Others::unreached(&error);
        }
        let others = reach(before);
        // After an error a signal may be pending, which finds the handler.
        if others.limited.is_ok() {
            // SAFETY: as above.
            let _ = check(unsafe { libc::sigaction(signal(), &replaced, null_mut()) });
        }
        others
    }
}

/// Interrupts the threads that were started since `before`, until there is none that was not.
fn reach(before: &Threads) -> Others {
    // SAFETY: no pointers.
    let own = unsafe { libc::gettid() };
    let mut others = Others { limited: Ok(()), filtered: Ok(()) };
    let mut done = before.clone();
    loop {
        let now = match Threads::now() {
            Ok(now) => now,
            Err(error) => return others.and(Others::unreached(&error)),
        };
        let new: Vec<_> = now.since(&done).filter(|thread| *thread != own).collect();
        if new.is_empty() {
            return others;
        }
        others = new.into_iter().fold(others, |others, thread| others.and(interrupt(thread)));
        done = now;
    }
}

/// The signal: glibc, Go and the JVM use none near the end of the real-time signals.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 3
}

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: errno is a variable of the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid for as long as the thread runs.
    let saved = unsafe { *errno };
    // With SeqCst either this thread sees that it is no target any more, or `interrupt` sees that
    // it is inside, and waits.
    INSIDE.fetch_add(1, Ordering::SeqCst);
    // A signal that another sent, or that was pending after an error, changes nothing.
    // SAFETY: no pointers.
    if TARGET.load(Ordering::SeqCst) == unsafe { libc::gettid() } {
        // SAFETY: `reach_since` borrows it, stored its address before it made this thread the
        // target, and returns after this thread has left the handler.
        let restriction = unsafe { &*RESTRICTION.load(Ordering::Relaxed) };
        for (stored, result) in ERRORS.iter().zip([restriction.limit(), restriction.filter()]) {
            stored.store(result.err().and_then(|error| error.raw_os_error()).unwrap_or(0), Ordering::Relaxed);
        }
        TARGET.store(0, Ordering::SeqCst);
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Interrupts a thread and waits for its handler.
fn interrupt(thread: libc::pid_t) -> Others {
    ERRORS.iter().for_each(|error| error.store(0, Ordering::Relaxed));
    TARGET.store(thread, Ordering::SeqCst);
    let reached = send_and_wait(thread);
    TARGET.store(0, Ordering::SeqCst);
    while INSIDE.load(Ordering::SeqCst) != 0 {
        std::thread::sleep(STEP);
    }
    let [limited, filtered] = ERRORS.each_ref().map(|error| match error.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    });
    reached.map_or_else(|error| Others::unreached(&error), |()| Others { limited, filtered })
}

/// Sends the signal, and waits until the handler is done. A thread that has ended is no error.
fn send_and_wait(thread: libc::pid_t) -> io::Result<()> {
    let send = |signal: libc::c_int| {
        // SAFETY: no pointers.
        check(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) } as libc::c_int)
    };
    let has_ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    match send(signal()) {
        Err(error) if has_ended(&error) => return Ok(()),
        sent => sent?,
    };
    let end = Instant::now() + PATIENCE;
    while TARGET.load(Ordering::SeqCst) == thread {
        if send(0).is_err_and(|error| has_ended(&error)) {
            return Ok(());
        }
        if Instant::now() > end {
            let why = format!("thread {thread} blocks the signal {}", signal());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use towpath_testing::alone;

    /// Restrictions that let a thread do everything but gain rights.
    fn harmless() -> Restriction {
        // BPF_RET | BPF_K.
        let allow = libc::sock_filter { code: 6, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
        Restriction { kept: u64::MAX, rules: None, filters: vec![vec![allow]] }
    }

    #[test]
    fn a_thread_that_blocks_the_signal_is_named_and_neither_keeps_others_from_it_nor_is_ended_later() {
        let name = "a_thread_that_blocks_the_signal_is_named_and_neither_keeps_others_from_it_nor_is_ended_later";
        if !alone(&format!("restrict::tests::{name}")) {
            return;
        }
        let before = Threads::now().unwrap();
        // Each thread says that it is ready, and whether it was restricted, when it is asked.
        let start = |blocks: bool| {
            let (ask, asked) = channel::<()>();
            let (ready, is_ready) = channel();
            let thread = std::thread::spawn(move || {
                // SAFETY: a set of signals is bits, for which zeroes are a value.
                let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
                // SAFETY: the set lives across both calls.
                unsafe {
                    libc::sigaddset(&mut set, signal());
                    let how = if blocks { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
                    assert_eq!(libc::pthread_sigmask(how, &set, null_mut()), 0);
                }
                // SAFETY: no pointers.
                ready.send(unsafe { libc::gettid() }).unwrap();
                let _ = asked.recv();
                // SAFETY: the set lives across the call. The pending signal is taken here.
                assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut()) }, 0);
                no_new_privs()
            });
            (ask, thread, is_ready.recv().unwrap())
        };
        let threads = [start(false), start(true), start(false)];
        let blocking = threads[1].2;
        let others = harmless().reach_since(&before);
        for error in [others.limited.unwrap_err(), others.filtered.unwrap_err()] {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains(&format!("thread {blocking} ")), "{error}");
        }
        let restricted = threads.map(|(ask, thread, _)| {
            drop(ask);
            thread.join().unwrap()
        });
        assert_eq!(restricted, [true, false, true]);
        assert!(!no_new_privs());
    }

    #[test]
    fn a_filter_that_is_no_program_is_an_error_of_the_filters_alone() {
        if !alone("restrict::tests::a_filter_that_is_no_program_is_an_error_of_the_filters_alone") {
            return;
        }
        let before = Threads::now().unwrap();
        let (ask, asked) = channel::<()>();
        let other = std::thread::spawn(move || {
            let _ = asked.recv();
            no_new_privs()
        });
        let empty = Restriction { filters: vec![Vec::new()], ..harmless() };
        let others = empty.reach_since(&before);
        assert!(others.limited.is_ok());
        assert_eq!(others.filtered.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        drop(ask);
        assert!(other.join().unwrap() && !no_new_privs());
    }
}
