//! Mappings of files that another process can truncate.
//!
//! An access behind the new end of such a file raises `SIGBUS`, which ends the process. Here the
//! mapping is replaced by private memory of zeroes instead, all of it, and the access is repeated.
//! Its owner learns of it by [`Guard::is_lost`]. Accesses by the kernel fail with `EFAULT`.

use super::check;
use std::cell::UnsafeCell;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Mappings that are guarded at a time.
const MAX_GUARDS: usize = 4096;

/// A guarded range of addresses.
struct Range {
    /// Odd while the range changes.
    version: AtomicU32,
    base: AtomicUsize,
    /// 0 for a free entry.
    len: AtomicUsize,
    lost: AtomicBool,
}

static RANGES: [Range; MAX_GUARDS] = [const {
    Range {
        version: AtomicU32::new(0),
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MAX_GUARDS];

/// Entries that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Held by a thread that changes entries. The handler takes no lock.
static CHANGES: Mutex<()> = Mutex::new(());

/// The action before this module's.
struct Before(UnsafeCell<Option<libc::sigaction>>);

// SAFETY: written once, before the handler is installed, and only read afterwards.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(None));
static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();

impl Range {
    fn set(&self, base: usize, len: usize) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // The odd number comes first for a handler that sees a new field.
        fence(Release);
        self.base.store(base, Relaxed);
        self.len.store(len, Relaxed);
        self.lost.store(false, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    /// Base and length, read while they did not change. The range of an access that is under way
    /// does not change: its mapping is in use.
    fn get(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Acquire);
        let range = (self.base.load(Relaxed), self.len.load(Relaxed));
        fence(Acquire);
        (version.is_multiple_of(2) && self.version.load(Relaxed) == version).then_some(range)
    }

    /// Replaces the mapping if the address lies in it.
    fn replace(&self, address: usize) -> bool {
        let Some((base, len)) = self.get() else { return false };
        if address.checked_sub(base).is_none_or(|offset| offset >= len) {
            return false;
        }
        let how = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is that of a mapping whose owner guards it, and in which no object of
        // this program lies: its bytes may change at any moment.
        let at = unsafe { libc::mmap(base as *mut libc::c_void, len, access, how, -1, 0) };
        self.lost.store(true, Release);
        at != libc::MAP_FAILED
    }
}

/// A guarded mapping, until drop.
#[derive(Debug)]
pub(crate) struct Guard(usize);

impl Guard {
    /// Guards the `len` bytes from `base` on: a mapping, all of it, without objects of this
    /// program. It must stay mapped until the guard is dropped.
    ///
    /// # Errors
    /// The error of `sigaction(2)`; `OutOfMemory` if 4096 mappings are guarded.
    pub(crate) fn new(base: usize, len: usize) -> io::Result<Guard> {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        INSTALLED
            .get_or_init(|| install().map_err(|error| error.raw_os_error().unwrap_or(0)))
            .map_err(io::Error::from_raw_os_error)?;
        let free = RANGES.iter().position(|range| range.len.load(Relaxed) == 0);
        let index = free.ok_or(io::ErrorKind::OutOfMemory)?;
        RANGES[index].set(base, len);
        USED.fetch_max(index + 1, Release);
        Ok(Guard(index))
    }

    /// Whether the mapping was replaced.
    pub(crate) fn is_lost(&self) -> bool {
        RANGES[self.0].lost.load(Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        RANGES[self.0].set(0, 0);
    }
}

fn install() -> io::Result<()> {
    // SAFETY: sigaction is integers, a set of bits and an address, for which zeroes are values.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    // SAFETY: the action lives across the call.
    check(unsafe { libc::sigaction(libc::SIGBUS, null_mut(), &mut before) })?;
    // SAFETY: this function runs once, and the handler is not installed yet.
    unsafe { *BEFORE.0.get() = Some(before) };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action lives across the call. The handler has the signature of SA_SIGINFO, and
    // makes system calls and accesses to atomics only.
    check(unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) }).map(drop)
}

extern "C" fn on_fault(signal: libc::c_int, info: *const libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t that lives until the handler returns; errno is this
    // thread's.
    let (address, code, errno) = unsafe { ((*info).si_addr() as usize, (*info).si_code, *libc::__errno_location()) };
    let is_fault = code > 0;
    if !is_fault || !RANGES.iter().take(USED.load(Acquire)).any(|range| range.replace(address)) {
        // The action before this one decides, when the access is repeated or the signal comes
        // again. SAFETY: the value was written before this handler was installed. A signal that a
        // process sent has no access that is repeated.
        unsafe {
            let before = (*BEFORE.0.get()).as_ref().map_or(null_mut(), |before| std::ptr::from_ref(before).cast_mut());
            libc::sigaction(signal, before, null_mut());
            if !is_fault {
                libc::raise(signal);
            }
        }
    }
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use crate::Mmap;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

    fn memfd(len: i64) -> OwnedFd {
        // SAFETY: the name ends with a zero; the descriptor is new.
        unsafe {
            let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"t".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), len), 0);
            fd
        }
    }

    #[test]
    fn a_mapping_whose_file_was_truncated_reads_as_zeroes_and_is_lost() {
        let files = [memfd(1 << 16), memfd(1 << 16)];
        let maps = files.each_ref().map(|file| Mmap::guarded(file.as_fd(), 1 << 16).unwrap());
        let at = |map: &Mmap, offset| map.at(offset, 1).unwrap();
        for map in &maps {
            // SAFETY: inside of the mapping; nothing refers to it.
            unsafe { at(map, 40_000).write_volatile(7) };
        }
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::ftruncate(files[0].as_raw_fd(), 4096) }, 0);
        let threads = [(); 4].map(|()| {
            let first = &maps[0];
            std::thread::scope(|scope| {
                // SAFETY: inside of the mapping; nothing refers to it.
                scope.spawn(|| unsafe { at(first, 40_000).read_volatile() }).join().unwrap()
            })
        });
        assert_eq!(threads, [0; 4]);
        // SAFETY: inside of the mapping; nothing refers to it.
        unsafe { at(&maps[0], 60_000).write_volatile(1) };
        // SAFETY: inside of the mapping; nothing refers to it.
        assert_eq!(unsafe { at(&maps[1], 40_000).read_volatile() }, 7);
        assert_eq!(maps.each_ref().map(Mmap::is_lost), [true, false]);
    }
}
