//! `getsockopt` with `SOL_XDP`, and `setsockopt` with the options of busy polling, for the sockets
//! of this library. Calls for other descriptors and other options pass on to the next definition.

use crate::next::{errno, next, set_errno};
use crate::ring_area::RingArea;
use libc::{SOL_XDP, XDP_MMAP_OFFSETS, XDP_OPTIONS, XDP_OPTIONS_ZEROCOPY, XDP_STATISTICS, c_int, c_void, socklen_t};
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_client::protocol::Statistics;
use towpath_packet::xsk_ring::Layout;

/// The options of a socket.
#[derive(Debug)]
pub(crate) struct SocketOptions {
    /// The kernel's identity of the socket, for all of its descriptors and duplicates.
    cookie: u64,
    /// Holds the counters.
    area: Arc<RingArea>,
    counters: Layout,
    /// Whether it was bound with `XDP_ZEROCOPY`.
    zero_copy: bool,
}

/// The sockets of this library.
static SOCKETS: Mutex<Vec<SocketOptions>> = Mutex::new(Vec::new());

fn sockets() -> MutexGuard<'static, Vec<SocketOptions>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there is a socket of this library.
pub(crate) fn is_used() -> bool {
    !sockets().is_empty()
}

/// A socket's entry in [`SOCKETS`], removed on drop.
#[derive(Debug)]
pub(crate) struct OptionsEntry(Option<u64>);

impl OptionsEntry {
    /// Adds the socket behind `poll_fd`. On a kernel without `SO_COOKIE` the kernel answers
    /// instead.
    pub(crate) fn of(poll_fd: c_int, area: Arc<RingArea>, counters: Layout, zero_copy: bool) -> OptionsEntry {
        let cookie = cookie(poll_fd);
        if let Some(cookie) = cookie {
            sockets().push(SocketOptions { cookie, area, counters, zero_copy });
        }
        OptionsEntry(cookie)
    }
}

impl Drop for OptionsEntry {
    fn drop(&mut self) {
        sockets().retain(|options| Some(options.cookie) != self.0);
    }
}

type GetSockOpt = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;

/// The next `getsockopt`.
fn next_getsockopt() -> Option<GetSockOpt> {
    next!(c"getsockopt" as GetSockOpt)
}

/// The socket's cookie: no other socket has had it since the machine was started.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as socklen_t);
    // SAFETY: the number and its length live across the call.
    let done = unsafe { next_getsockopt()?(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &mut len) };
    (done == 0).then_some(cookie)
}

impl SocketOptions {
    /// The value of an option for a buffer of `room` bytes, by the rules of the kernel's
    /// `xsk_getsockopt`; `None` for an option that this library does not answer.
    ///
    /// # Errors
    /// `EINVAL` if there is too little room.
    fn answer(&self, option: c_int, room: usize) -> Option<Result<Vec<u8>, c_int>> {
        match option {
            XDP_STATISTICS => {
                let Statistics {
                    rx_dropped,
                    rx_invalid_descs,
                    tx_invalid_descs,
                    rx_ring_full,
                    rx_fill_ring_empty_descs,
                    tx_ring_empty_descs,
                    ..
                } = Statistics::read(|entry| self.area.counter(&self.counters, entry));
                // Programs from before Linux 5.9 know the first three.
                let short = [rx_dropped, rx_invalid_descs, tx_invalid_descs];
                let all = [short, [rx_ring_full, rx_fill_ring_empty_descs, tx_ring_empty_descs]].concat();
                Some(longest([bytes(&all), bytes(&short)], room))
            }
            XDP_MMAP_OFFSETS => {
                let Layout { producer, consumer, desc, flags } = Layout::at(0);
                // Programs from before Linux 5.4 know no flags.
                let (all, short) = ([[producer, consumer, desc, flags]; 4], [[producer, consumer, desc]; 4]);
                Some(longest([bytes(all.as_flattened()), bytes(short.as_flattened())], room))
            }
            XDP_OPTIONS => {
                let flags = if self.zero_copy { XDP_OPTIONS_ZEROCOPY } else { 0 };
                Some(longest([flags.to_ne_bytes().to_vec()], room))
            }
            _ => None,
        }
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The first value that fits.
fn longest<const N: usize>(answers: [Vec<u8>; N], room: usize) -> Result<Vec<u8>, c_int> {
    answers.into_iter().find(|answer| answer.len() <= room).ok_or(libc::EINVAL)
}

/// Answers for a socket of this library; `None` for another socket, or an option that is not
/// answered.
///
/// # Safety
/// `len` is null, or points to the number of bytes that `value` has room for, if that is not null.
unsafe fn answer(fd: c_int, option: c_int, value: *mut c_void, len: *mut socklen_t) -> Option<Result<(), c_int>> {
    let cookie = cookie(fd)?;
    let sockets = sockets();
    let options = sockets.iter().find(|options| options.cookie == cookie)?;
    if value.is_null() || len.is_null() {
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: not null, so it is a length, as the caller promises.
    let room = unsafe { len.read() };
    // The kernel reads a signed number.
    let room = if i32::try_from(room).is_ok() { room as usize } else { 0 };
    Some(options.answer(option, room)?.map(|answer| {
        // SAFETY: the value is not longer than the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(answer.as_ptr(), value.cast(), answer.len());
            len.write(answer.len() as socklen_t);
        }
    }))
}

/// `getsockopt`: with `SOL_XDP`, for a descriptor of
/// [`xsk_socket__fd`](crate::socket::xsk_socket__fd) or its duplicate, `XDP_STATISTICS`,
/// `XDP_OPTIONS` and `XDP_MMAP_OFFSETS`. The last one describes a ring by itself, because there is
/// nothing to map. All other calls behave as without this library.
///
/// # Errors
/// The kernel's: -1 with `errno` `EINVAL` for too little room, `EFAULT` for a null pointer.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let answered = if level == SOL_XDP { unsafe { answer(fd, option, value, len) } } else { None };
    let errno = match (answered, next_getsockopt()) {
        (Some(Ok(())), _) => return 0,
        (Some(Err(errno)), _) => errno,
        // SAFETY: as the caller promises.
        (None, Some(next)) => return unsafe { next(fd, level, option, value, len) },
        (None, None) => libc::ENOSYS,
    };
    set_errno(errno);
    -1
}

/// `setsockopt`: as the C library's, but 0 where the kernel refuses `SO_PREFER_BUSY_POLL`,
/// `SO_BUSY_POLL` or `SO_BUSY_POLL_BUDGET` with `EPERM` for a descriptor of
/// [`xsk_socket__fd`](crate::socket::xsk_socket__fd). They have no effect on it: the privilege is
/// for polling a device of the kernel.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    type Type = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    let Some(next) = next!(c"setsockopt" as Type) else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: as the caller promises.
    let done = unsafe { next(fd, level, option, value, len) };
    let busy_poll = [libc::SO_PREFER_BUSY_POLL, libc::SO_BUSY_POLL, libc::SO_BUSY_POLL_BUDGET];
    let refused = done != 0 && errno() == libc::EPERM && level == libc::SOL_SOCKET && busy_poll.contains(&option);
    if refused && cookie(fd).is_some_and(|cookie| sockets().iter().any(|options| options.cookie == cookie)) {
        return 0;
    }
    if refused {
        set_errno(libc::EPERM);
    }
    done
}
