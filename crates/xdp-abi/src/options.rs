//! `getsockopt` with `SOL_XDP`, for the sockets of this library: the one call of the C library that it stands in front of. Whatever is asked of
//! another descriptor, or on another level, goes on to who would have had it without us.

use crate::area::Area;
use libc::{SOL_XDP, XDP_MMAP_OFFSETS, XDP_OPTIONS, XDP_OPTIONS_ZEROCOPY, XDP_STATISTICS, c_int, c_void, socklen_t};
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use towpath_client::protocol::Statistics;
use towpath_packet::xsk_ring::Layout;

/// What can be asked of a socket.
#[derive(Debug)]
pub(crate) struct Asked {
    /// By which the kernel knows its descriptor, whatever its number is, and however often it was duplicated.
    cookie: u64,
    /// The counters are in it.
    area: Arc<Area>,
    counters: Layout,
    /// Whether it was bound with `XDP_ZEROCOPY`.
    zero_copy: bool,
}

/// Sockets that exist.
static SOCKETS: Mutex<Vec<Asked>> = Mutex::new(Vec::new());

fn sockets() -> MutexGuard<'static, Vec<Asked>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket's entry; dropping this takes it away.
#[derive(Debug)]
pub(crate) struct Answering(Option<u64>);

impl Answering {
    /// From here on what is asked of the socket behind `line` is answered. A kernel that does not number its sockets answers instead of us.
    pub(crate) fn of(line: c_int, area: Arc<Area>, counters: Layout, zero_copy: bool) -> Answering {
        let cookie = cookie(line);
        if let Some(cookie) = cookie {
            sockets().push(Asked { cookie, area, counters, zero_copy });
        }
        Answering(cookie)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        sockets().retain(|asked| Some(asked.cookie) != self.0);
    }
}

type GetSockOpt = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;

/// The C library's `getsockopt`, or that of another library that stands in front of it.
fn next() -> Option<GetSockOpt> {
    static NEXT: OnceLock<Option<GetSockOpt>> = OnceLock::new();
    *NEXT.get_or_init(|| {
        // SAFETY: the name is a string with an end.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getsockopt".as_ptr()) };
        // SAFETY: null is None, and what is called so has this type, as POSIX says.
        unsafe { std::mem::transmute::<*mut c_void, Option<GetSockOpt>>(at) }
    })
}

/// The number of a socket, which no other has had since the machine was started.
fn cookie(fd: c_int) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as socklen_t);
    // SAFETY: the number and its length live across the call.
    let done = unsafe { next()?(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &mut len) };
    (done == 0).then_some(cookie)
}

impl Asked {
    /// What the option says to who has room for so many bytes, by the rules of the kernel's `xsk_getsockopt`; `None` if it says nothing.
    ///
    /// # Errors
    /// There is not room enough.
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
                } = Statistics::read(|entry| self.area.counter(&self.counters, entry));
                // Programs of before Linux 5.9 know the first three.
                let short = [rx_dropped, rx_invalid_descs, tx_invalid_descs];
                let all = [short, [rx_ring_full, rx_fill_ring_empty_descs, tx_ring_empty_descs]].concat();
                Some(longest([bytes(&all), bytes(&short)], room))
            }
            XDP_MMAP_OFFSETS => {
                let Layout { producer, consumer, desc, flags } = Layout::at(0);
                // Programs of before Linux 5.4 know no flags.
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

/// The first answer that there is room for.
fn longest<const N: usize>(answers: [Vec<u8>; N], room: usize) -> Result<Vec<u8>, c_int> {
    answers.into_iter().find(|answer| answer.len() <= room).ok_or(libc::EINVAL)
}

/// Answers what is asked of a socket of ours; `None` if it is none, or if we have nothing to say.
///
/// # Safety
/// `len` is null, or points to the number of bytes that `value` has room for, if that is not null.
unsafe fn answer(fd: c_int, option: c_int, value: *mut c_void, len: *mut socklen_t) -> Option<Result<(), c_int>> {
    let cookie = cookie(fd)?;
    let sockets = sockets();
    let asked = sockets.iter().find(|asked| asked.cookie == cookie)?;
    if value.is_null() || len.is_null() {
        return Some(Err(libc::EFAULT));
    }
    // SAFETY: not null, so it is a length, as the caller promises.
    let room = unsafe { len.read() };
    // The kernel takes it for a signed number.
    let room = if i32::try_from(room).is_ok() { room as usize } else { 0 };
    Some(asked.answer(option, room)?.map(|answer| {
        // SAFETY: the answer is not longer than the room that there is.
        unsafe {
            std::ptr::copy_nonoverlapping(answer.as_ptr(), value.cast(), answer.len());
            len.write(answer.len() as socklen_t);
        }
    }))
}

/// `getsockopt`: with `SOL_XDP`, of a descriptor that [`xsk_socket__fd`](crate::socket::xsk_socket__fd) gave, or a duplicate, `XDP_STATISTICS`,
/// `XDP_OPTIONS` and `XDP_MMAP_OFFSETS`, the last for a ring by itself (there is nothing to map). Everything else is as without this library.
///
/// # Errors
/// As the kernel's: -1, and `errno` is `EINVAL` for too little room, `EFAULT` for a null pointer.
///
/// # Safety
/// As for the C library's.
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
    let errno = match (answered, next()) {
        (Some(Ok(())), _) => return 0,
        (Some(Err(errno)), _) => errno,
        // SAFETY: as the caller promises.
        (None, Some(next)) => return unsafe { next(fd, level, option, value, len) },
        (None, None) => libc::ENOSYS,
    };
    // SAFETY: the C library's own place for this thread's error.
    unsafe { *libc::__errno_location() = errno };
    -1
}
