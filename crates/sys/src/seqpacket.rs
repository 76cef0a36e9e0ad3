//! UNIX sockets of records (`SOCK_SEQPACKET`), and records with descriptors.

use crate::poll::is_shut;
pub use crate::rights::Received;
use crate::rights::{self, Control, HEADER, header};
pub(crate) use crate::rights::{SCM_MAX_FD, control_len};
pub use crate::unix_socket::accept;
use crate::unix_socket::{self, Kind};
use crate::{check, check_len};
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

/// Most descriptors of a record that [`send`] and [`receive`] pass on; the kernel discards further
/// ones.
pub const MAX_FDS: usize = 4;

const CONTROL: usize = control_len(MAX_FDS);

/// Sends one record with up to [`MAX_FDS`] descriptors. It never raises `SIGPIPE`.
///
/// # Errors
/// The error of `sendmsg(2)`; `InvalidInput` for more descriptors.
pub fn send(to: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    rights::send::<CONTROL>(to, bytes, fds, 0).map(drop)
}

/// Sends one record if there is room for it now. It never raises `SIGPIPE`.
///
/// # Errors
/// The error of `sendmsg(2)`; `WouldBlock` without room.
pub fn try_send(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    rights::send::<CONTROL>(to, bytes, &[], libc::MSG_DONTWAIT).map(drop)
}

/// Receives one record.
///
/// # Errors
/// The error of `recvmsg(2)`.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    rights::receive::<CONTROL>(from, bytes, 0)
}

/// What [`peek`] finds of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    /// Bytes of the record; 0 also if the peer has closed the connection.
    pub len: usize,
    /// It has descriptors.
    pub descriptors: bool,
    /// It is longer than the room for it.
    pub cut: bool,
}

/// Looks at the first record that is queued, with as many bytes as there is room for, without
/// taking it. None of its descriptors is closed or comes into this process.
///
/// # Errors
/// The error of `recvmsg(2)`; `WouldBlock` if no record is queued.
pub fn peek(from: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Peeked> {
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = header(&mut piece, &mut Control([0; 0]), 0);
    // SAFETY: the header points to a buffer that lives across the call, with its length.
    let n = unsafe { libc::recvmsg(from.as_raw_fd(), &mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    let (len, flag) = (check_len(n)?, |flag| message.msg_flags & flag != 0);
    Ok(Peeked { len, descriptors: flag(libc::MSG_CTRUNC), cut: flag(libc::MSG_TRUNC) })
}

/// The control message of a record.
pub(crate) struct ControlMessage {
    /// Bytes of it, 0 for none.
    pub(crate) len: usize,
    /// The word behind its header: the first descriptor.
    pub(crate) first: RawFd,
    /// There was no room for all of it.
    pub(crate) cut: bool,
}

/// Receives one record, of which only the control message is kept, in `N` bytes.
pub(crate) fn receive_control<const N: usize>(from: RawFd, flags: libc::c_int) -> io::Result<ControlMessage> {
    let mut control = Control([0; N]);
    let mut piece = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut message = header(&mut piece, &mut control, N);
    // SAFETY: the header points to a control block that lives across the call, with its length.
    check_len(unsafe { libc::recvmsg(from, &mut message, flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) })?;
    let (len, cut) = (message.msg_controllen, message.msg_flags & libc::MSG_CTRUNC != 0);
    let first =
        control.0.get(HEADER..).and_then(|words| words.first_chunk()).map_or(-1, |word| i32::from_ne_bytes(*word));
    Ok(ControlMessage { len, first, cut })
}

/// `SO_PASSRIGHTS` of Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

fn set_option(end: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let (at, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
    // SAFETY: the number lives across the call and has the length that is given.
    check(unsafe { libc::setsockopt(end.as_raw_fd(), libc::SOL_SOCKET, option, at, len) }).map(drop)
}

/// Refuses records with descriptors from here on: the peer's `sendmsg` fails with `EPERM`. Records
/// that are queued stay. Returns whether the kernel can do so (Linux 6.16).
///
/// # Errors
/// The error of `setsockopt(2)`.
pub fn refuse_descriptors(end: BorrowedFd<'_>) -> io::Result<bool> {
    match set_option(end, SO_PASSRIGHTS, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        done => done.map(|()| true),
    }
}

/// Makes the connection readable at its other end. Returns whether that end is still open for it. A
/// full queue is: it is readable too.
#[inline]
pub fn wake(connection: BorrowedFd<'_>) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte lives across the call.
    let sent = unsafe { libc::send(connection.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
    sent == 1 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
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
    set_option(end, libc::SO_SNDBUF, SEND_BUFFER)
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

/// Records that are taken at a time: a peer that keeps sending does not hold the caller up.
const MAX_RECORDS: usize = 64;

/// Takes the record that is queued at this end.
fn take(end: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes = [0u8; 8];
    // SAFETY: eight bytes live across the call.
    check_len(unsafe { libc::recv(end.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) })
}

/// What [`drain`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// No record.
    Empty,
    /// Records.
    More,
    /// A record with descriptors in front.
    Descriptors,
    /// The peer has shut the connection down: no more records come.
    Shut,
}

/// Discards records that are queued at this end, at most 64. `refuses`: those with descriptors were
/// [refused](refuse_descriptors) from the beginning. Else a record that has some is left.
pub fn drain(end: BorrowedFd<'_>, refuses: bool) -> Drained {
    for _ in 0..MAX_RECORDS {
        if !refuses && peek(end, &mut []).is_ok_and(|record| record.descriptors) {
            return Drained::Descriptors;
        }
        match take(end) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Drained::Empty,
            Err(_) => return Drained::Shut,
        }
    }
    // An end of the connection is as many records of no bytes.
    if is_shut(end) { Drained::Shut } else { Drained::More }
}

/// Discards the records that are queued at a connection that was [shut down](shutdown), at most 64.
/// Returns whether none is left. One with descriptors, and those behind it, are left.
pub fn discard(connection: BorrowedFd<'_>) -> bool {
    // A record has the credentials of its sender, the end of the connection none.
    const CREDENTIALS: usize = HEADER + size_of::<libc::ucred>();
    if set_option(connection, libc::SO_PASSCRED, 1).is_err() {
        return false;
    }
    for _ in 0..MAX_RECORDS {
        match receive_control::<CREDENTIALS>(connection.as_raw_fd(), libc::MSG_PEEK) {
            Ok(ControlMessage { cut: true, .. }) => return false,
            Ok(ControlMessage { len: 0, .. }) => return true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            // An error is reported once.
            Ok(_) | Err(_) => _ = take(connection),
        }
    }
    false
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
