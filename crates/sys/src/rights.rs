//! Bytes with descriptors over a UNIX socket (`SCM_RIGHTS`).

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors that the kernel passes on at once.
pub(crate) const SCM_MAX_FD: usize = 253;

/// A control buffer, aligned as `cmsghdr` is.
#[repr(C, align(8))]
pub(crate) struct Control<const N: usize>(pub(crate) [u8; N]);

pub(crate) const HEADER: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEADER.is_multiple_of(8));

/// `CMSG_LEN` for `n` descriptors.
pub(crate) const fn control_len(n: usize) -> usize {
    HEADER + n * size_of::<RawFd>()
}

/// A message header for one buffer.
pub(crate) fn header<const N: usize>(bytes: &mut libc::iovec, control: &mut Control<N>, len: usize) -> libc::msghdr {
    // SAFETY: msghdr is plain data; all zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = bytes;
    message.msg_iovlen = 1;
    if len > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = len;
    }
    message
}

/// Sends bytes with descriptors, as many as a control buffer of `N` bytes holds. It never raises
/// `SIGPIPE`. Returns the number of bytes that were sent.
pub(crate) fn send<const N: usize>(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> io::Result<usize> {
    let mut control = Control([0; N]);
    let len = if fds.is_empty() { 0 } else { control_len(fds.len()) };
    if len.next_multiple_of(8) > N {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if len > 0 {
        // The length is a size_t; its bytes are followed by level and type.
        control.0[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        control.0[HEADER - 8..HEADER - 4].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        control.0[HEADER - 4..HEADER].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        for (to, fd) in control.0[HEADER..].chunks_exact_mut(4).zip(fds) {
            to.copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
        }
    }
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let message = header(&mut piece, &mut control, len.next_multiple_of(8));
    // SAFETY: the header points to a buffer and a control block that live across the call, with
    // their lengths; the kernel only reads them.
    crate::check_len(unsafe { libc::sendmsg(to.as_raw_fd(), &message, flags | libc::MSG_NOSIGNAL) })
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes; 0 if the peer has closed the connection.
    pub len: usize,
    /// The descriptors that came with them, closed on drop.
    pub fds: Vec<OwnedFd>,
    /// A record or the descriptors did not fit, and were truncated.
    pub cut: bool,
}

/// Receives bytes, and as many descriptors as a control buffer of `N` bytes holds.
pub(crate) fn receive<const N: usize>(
    from: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: libc::c_int,
) -> io::Result<Received> {
    let mut control = Control([0; N]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = header(&mut piece, &mut control, N);
    // SAFETY: the header points to a buffer and a control block that live across the call, with
    // their lengths.
    let n = unsafe { libc::recvmsg(from.as_raw_fd(), &mut message, flags | libc::MSG_CMSG_CLOEXEC) };
    let len = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let (used, flags) = (message.msg_controllen, message.msg_flags);
    let mut fds = Vec::new();
    if used >= HEADER {
        let word = |at: usize| -> i32 {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&control.0[at..at + 4]);
            i32::from_ne_bytes(bytes)
        };
        let mut size = [0; size_of::<usize>()];
        size.copy_from_slice(&control.0[..size_of::<usize>()]);
        let end = usize::from_ne_bytes(size).min(used).min(control.0.len());
        if word(HEADER - 8) == libc::SOL_SOCKET && word(HEADER - 4) == libc::SCM_RIGHTS {
            for at in (HEADER..end.saturating_sub(3)).step_by(4) {
                // SAFETY: the kernel just installed this descriptor in this process; it has no
                // other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(word(at)) });
            }
        }
    }
    Ok(Received { len, fds, cut: flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 })
}
