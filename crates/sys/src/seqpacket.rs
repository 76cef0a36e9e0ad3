//! UNIX sockets of records (`SOCK_SEQPACKET`), and records with descriptors.

use crate::check;
use crate::poll::is_readable;
pub use crate::unix_socket::accept;
use crate::unix_socket::{self, Kind};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// Connects to the listener at a path, however long that takes. Calls on the connection block.
///
/// # Errors
/// As [`unix_socket::connect`].
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    unix_socket::connect(path, Kind::Records, None)
}

/// The peer's credentials at the time of the connection (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process; 0 if this process's PID namespace does not contain it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The credentials of a connection's peer.
///
/// # Errors
/// The error of `getsockopt(2)`.
pub fn peer(of: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, at) = (of.as_raw_fd(), (&raw mut cred).cast());
    // SAFETY: the structure and its length live across the call.
    match unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) } {
        0 => Ok(Peer { pid: cred.pid, uid: cred.uid, gid: cred.gid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Shuts the connection down in both directions, also if other processes hold its descriptor.
pub fn shutdown(connection: BorrowedFd<'_>) {
    // SAFETY: no pointers. It fails only for a socket that is not connected.
    unsafe { libc::shutdown(connection.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Most descriptors of a record; the kernel discards further ones.
pub const MAX_FDS: usize = 4;

/// A control buffer for a header and [`MAX_FDS`] descriptors, aligned as `cmsghdr` is.
#[repr(C, align(8))]
struct Control([u8; 64]);

const HEADER: usize = size_of::<libc::cmsghdr>();

/// `CMSG_LEN` for `n` descriptors.
const fn control_len(n: usize) -> usize {
    HEADER + n * size_of::<RawFd>()
}

const _: () = assert!(control_len(MAX_FDS) <= 64 && HEADER.is_multiple_of(8));

/// A message header for one buffer.
fn header(bytes: &mut libc::iovec, control: &mut Control, len: usize) -> libc::msghdr {
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

/// Sends one record with up to [`MAX_FDS`] descriptors. It never raises `SIGPIPE`.
///
/// # Errors
/// The error of `sendmsg(2)`; `InvalidInput` for more descriptors.
pub fn send(to: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control([0; 64]);
    let len = if fds.is_empty() { 0 } else { control_len(fds.len()) };
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
    match unsafe { libc::sendmsg(to.as_raw_fd(), &message, libc::MSG_NOSIGNAL) } {
        n if n < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A received record.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the record; 0 if the peer has closed the connection.
    pub len: usize,
    /// Its descriptors, closed on drop.
    pub fds: Vec<OwnedFd>,
    /// The record or the descriptors did not fit, and were truncated.
    pub cut: bool,
}

/// Receives one record.
///
/// # Errors
/// The error of `recvmsg(2)`.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([0; 64]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = header(&mut piece, &mut control, control_len(MAX_FDS));
    // SAFETY: the header points to a buffer and a control block that live across the call, with
    // their lengths.
    let n = unsafe { libc::recvmsg(from.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
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

/// Makes the connection readable at its other end. Errors are ignored: a full queue is readable
/// too.
#[inline]
pub fn wake(connection: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte lives across the call.
    unsafe { libc::send(connection.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
}

/// A connected pair. Calls on both ends do not block.
///
/// # Errors
/// The error of `socketpair(2)`.
pub fn pair() -> io::Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the array has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel just returned these descriptors; they have no other owner.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Bytes of the send buffer in `SO_SNDBUF`; the kernel doubles them.
const SEND_BUFFER: libc::c_int = 100 << 10;

/// Gives an end the send buffer that [`fill_send_buffer`] expects.
///
/// # Errors
/// The error of `setsockopt(2)`.
pub fn set_send_buffer(end: BorrowedFd<'_>) -> io::Result<()> {
    let size = SEND_BUFFER;
    let (at, len) = ((&raw const size).cast(), size_of_val(&size) as libc::socklen_t);
    // SAFETY: the number lives across the call and has the length that is given.
    check(unsafe { libc::setsockopt(end.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, at, len) }).map(drop)
}

/// Makes this end not writable for `poll(2)`, until the other end is [drained](drain): sends a
/// record that takes more than a quarter of the send buffer. (A UNIX socket is writable while at
/// most a quarter is used.) Small records can still be sent.
pub fn fill_send_buffer(end: BorrowedFd<'_>) {
    const PIECES: usize = 14;
    static ZEROS: [u8; 4096] = [0; 4096];
    // With the kernel's overhead that is more than a quarter of twice the size, and less than all.
    const { assert!(PIECES * 4096 > SEND_BUFFER as usize / 2 && PIECES * 4096 < SEND_BUFFER as usize) };
    let piece = libc::iovec { iov_base: ZEROS.as_ptr().cast_mut().cast(), iov_len: ZEROS.len() };
    let mut pieces = [piece; PIECES];
    // SAFETY: msghdr is plain data; all zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), PIECES as _);
    // SAFETY: the pieces and their bytes live across the call, and are only read. If the buffer is
    // full, the call fails and the end is not writable either.
    unsafe { libc::sendmsg(end.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
}

/// Discards the records that are queued at this end, at most 1024: a peer that keeps sending does
/// not hold the caller up.
pub fn drain(end: BorrowedFd<'_>) {
    const MAX_RECORDS: usize = 1024;
    let mut bytes = [0u8; 8];
    for _ in 0..MAX_RECORDS {
        // SAFETY: eight bytes live across the call.
        let n = unsafe { libc::recv(end.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        // A length of 0 is an empty record if the end is still readable, else the end of the
        // connection.
        if n < 0 || (n == 0 && !is_readable(end)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn descriptors_arrive_with_their_record_and_refer_to_the_same_file() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(a.as_fd(), b"hello", &[file.as_fd(), a.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let got = receive(b.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..got.len], got.fds.len(), got.cut), (&b"hello"[..], 2, false));
        let back = UnixDatagram::from(got.fds.into_iter().nth(1).unwrap());
        back.send(b"x").unwrap();
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap().len, 1);
    }

    #[test]
    fn truncated_records_are_reported_and_too_many_descriptors_are_refused() {
        let (a, b) = UnixDatagram::pair().unwrap();
        a.send(&[7; 32]).unwrap();
        assert!(receive(b.as_fd(), &mut [0; 16]).unwrap().cut);
        assert!(send(a.as_fd(), b"x", &[a.as_fd(); MAX_FDS + 1]).is_err());
    }
}
