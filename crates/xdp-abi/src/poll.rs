//! `poll`, `ppoll` and `recvfrom` of the sockets of this library.
//!
//! `poll` wakes the datapath, as the kernel's `xsk_poll` does, if the TX ring has entries and
//! `XDP_RING_NEED_WAKEUP`. Then it passes on to the C library. The kernel's `poll` alone sees a
//! UNIX socket, which wakes nothing.
//!
//! `recvfrom` without room, by which a program polls the kernel's sockets, leaves the record in the
//! socket that makes it readable: a datapath that only sends to the program sends no second one.
//!
//! ```text
//!   poll(fds) ──► SLOTS: is it one of ours? ── TX has entries, need_wakeup ──► send, without data
//!      └────────► the C library's poll
//! ```
//!
//! Without a socket of this library a call costs one load more than before, and else a comparison
//! for each descriptor and socket. There is no lock, because the functions may be called in a
//! signal handler. A duplicate of a descriptor is not recognized.

use crate::next::{next, set_errno};
use crate::options::cookie;
use crate::ring_area::RingArea;
use libc::{c_int, c_void, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use towpath_packet::xsk_ring::Layout;

/// A socket as these functions need it.
#[derive(Debug)]
struct Polled {
    fd: c_int,
    /// The kernel's identity of the socket behind the descriptor.
    cookie: u64,
    area: Arc<RingArea>,
    /// `None` for a socket that only receives.
    tx: Option<Layout>,
}

impl Polled {
    /// Whether it is behind the descriptor. A program that closed that may have another socket at
    /// its number.
    fn is(&self, fd: c_int) -> bool {
        fd == self.fd && cookie(fd) == Some(self.cookie)
    }

    /// Wakes the datapath if it sleeps and the TX ring has entries.
    fn wake(&self) {
        let asleep = self.tx.is_some_and(|tx| self.area.needs_wakeup(&tx));
        if asleep && self.is(self.fd) {
            // SAFETY: no data. A failure means that there are enough unread ones, or that the
            // session is over, which poll reports.
            unsafe { libc::send(self.fd, null(), 0, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        }
    }
}

/// A place in the list of sockets. It is never freed, and used again for a later socket.
#[derive(Debug)]
struct Slot {
    /// Null if it is free.
    socket: AtomicPtr<Polled>,
    /// Calls that may hold a reference to the socket.
    readers: AtomicU32,
    /// Constant once the slot is in the list.
    next: AtomicPtr<Slot>,
}

/// How often the drop of an entry waits for readers, which only look at a ring.
const MOST_YIELDS: u32 = 100_000;

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(null_mut());

/// All places, the newest first.
fn slots() -> impl Iterator<Item = &'static Slot> {
    // Acquire: the slot was written before it was published.
    let mut at = SLOTS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a slot, which is never freed.
        let slot = unsafe { at.as_ref() }?;
        at = slot.next.load(Ordering::Relaxed);
        Some(slot)
    })
}

impl Slot {
    /// Calls `f` with the socket, which stays for that time.
    fn with(&self, f: impl FnOnce(&Polled)) {
        // SeqCst here and in the drop of an entry: either this load sees null, or that one sees the
        // reader.
        self.readers.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null, or a socket that is not freed while there are readers.
        if let Some(socket) = unsafe { self.socket.load(Ordering::SeqCst).as_ref() } {
            f(socket);
        }
        self.readers.fetch_sub(1, Ordering::Release);
    }
}

/// A socket's place in the list, which is free after the drop.
#[derive(Debug)]
pub(crate) struct PollEntry(Option<&'static Slot>);

impl PollEntry {
    /// Adds the socket behind `fd`.
    pub(crate) fn of(fd: c_int, area: Arc<RingArea>, tx: Option<Layout>) -> PollEntry {
        let Some(cookie) = cookie(fd) else { return PollEntry(None) };
        let socket = Box::into_raw(Box::new(Polled { fd, cookie, area, tx }));
        let free = |slot: &&Slot| {
            slot.socket.compare_exchange(null_mut(), socket, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        PollEntry(Some(slots().find(free).unwrap_or_else(|| Slot::publish(socket))))
    }
}

impl Slot {
    /// Adds a place to the list.
    fn publish(socket: *mut Polled) -> &'static Slot {
        let (readers, next) = (AtomicU32::new(0), AtomicPtr::new(SLOTS.load(Ordering::Acquire)));
        let slot: &'static Slot = Box::leak(Box::new(Slot { socket: AtomicPtr::new(socket), readers, next }));
        let at = std::ptr::from_ref(slot).cast_mut();
        let mut next = slot.next.load(Ordering::Relaxed);
        // Release: the slot before its address.
        while let Err(now) = SLOTS.compare_exchange(next, at, Ordering::AcqRel, Ordering::Acquire) {
            slot.next.store(now, Ordering::Relaxed);
            next = now;
        }
        slot
    }
}

impl Drop for PollEntry {
    fn drop(&mut self) {
        let Some(slot) = self.0 else { return };
        let socket = slot.socket.swap(null_mut(), Ordering::SeqCst);
        for _ in 0..MOST_YIELDS {
            if slot.readers.load(Ordering::SeqCst) == 0 {
                // SAFETY: it came from a box, it is in the list no more, and no call holds a
                // reference.
                drop(unsafe { Box::from_raw(socket) });
                return;
            }
            std::thread::yield_now();
        }
        // A reader that never ends is one of a thread that a fork left behind: the ring stays.
    }
}

/// Wakes the datapaths of the sockets among the descriptors.
///
/// # Safety
/// `fds` is null, or points to `n` elements.
unsafe fn wake(fds: *const pollfd, n: nfds_t) {
    if SLOTS.load(Ordering::Relaxed).is_null() || fds.is_null() {
        return;
    }
    // SAFETY: as the caller promises.
    let fds = unsafe { std::slice::from_raw_parts(fds, n as usize) };
    for slot in slots() {
        slot.with(|socket| {
            if fds.iter().any(|wait| wait.fd == socket.fd) {
                socket.wake();
            }
        });
    }
}

/// The answer without a next definition.
fn missing() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

// These are points of cancellation: the C library unwinds through them, so they are "C-unwind" and
// own nothing while the next one waits.

/// `poll`: wakes the datapath for a descriptor of
/// [`xsk_socket__fd`](crate::socket::xsk_socket__fd), and waits as the C library's.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    let next = next!(c"poll" as unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { wake(fds, n) };
    // SAFETY: as the caller promises.
    next.map_or_else(missing, |next| unsafe { next(fds, n, timeout) })
}

/// `ppoll`: as [`poll`].
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    type Type = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    let next = next!(c"ppoll" as Type);
    // SAFETY: as the caller promises.
    unsafe { wake(fds, n) };
    // SAFETY: as the caller promises.
    next.map_or_else(missing, |next| unsafe { next(fds, n, timeout, mask) })
}

/// What glibc's header calls in place of `poll` in programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, bytes: size_t) -> c_int {
    type Type = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
    let next = next!(c"__poll_chk" as Type);
    // SAFETY: as the caller promises.
    unsafe { wake(fds, n.min((bytes / size_of::<pollfd>()) as nfds_t)) };
    // SAFETY: as the caller promises.
    next.map_or_else(missing, |next| unsafe { next(fds, n, timeout, bytes) })
}

/// What glibc's header calls in place of `ppoll` in programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    type Type = unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int;
    let next = next!(c"__ppoll_chk" as Type);
    // SAFETY: as the caller promises.
    unsafe { wake(fds, n.min((bytes / size_of::<pollfd>()) as nfds_t)) };
    // SAFETY: as the caller promises.
    next.map_or_else(missing, |next| unsafe { next(fds, n, timeout, mask, bytes) })
}

/// `recvfrom`: the C library's. Without room it takes nothing from a socket of this library.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    type Type =
        unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    let (next, mut flags) = (next!(c"recvfrom" as Type), flags);
    if len == 0 {
        slots().for_each(|slot| slot.with(|socket| flags |= if socket.is(fd) { libc::MSG_PEEK } else { 0 }));
    }
    // SAFETY: as the caller promises.
    next.map_or_else(|| missing() as ssize_t, |next| unsafe { next(fd, buffer, len, flags, from, from_len) })
}

#[cfg(test)]
mod tests;
