//! UNIX sockets of bytes (`SOCK_STREAM`), and bytes with descriptors.
//!
//! The kernel delivers descriptors with the first of the bytes that they were sent with, and ends a
//! call there: bytes that were sent with different descriptors never come at once.

pub use crate::rights::Received;
use crate::rights::{self, SCM_MAX_FD, control_len};
use crate::{check, retry};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// Most descriptors that [`send`] takes; [`receive`] truncates none.
pub const MAX_FDS: usize = SCM_MAX_FD;

const CONTROL: usize = control_len(MAX_FDS).next_multiple_of(8);

/// Sends bytes, the first of them with descriptors. Returns how many were sent. It does not wait,
/// and never raises `SIGPIPE`.
///
/// # Errors
/// The error of `sendmsg(2)`; `WouldBlock` if there is no room; `InvalidInput` for more than
/// [`MAX_FDS`] descriptors.
pub fn send(to: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    retry(|| rights::send::<CONTROL>(to, bytes, fds, libc::MSG_DONTWAIT))
}

/// Receives as many bytes as there are and fit, and the descriptors that came with the first of
/// them. It does not wait. No descriptor is left to the kernel to close, however many there are.
///
/// # Errors
/// The error of `recvmsg(2)`; `WouldBlock` if no byte is there.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    retry(|| rights::receive::<CONTROL>(from, bytes, libc::MSG_DONTWAIT))
}

/// A connected pair. Calls on both ends do not block.
///
/// # Errors
/// The error of `socketpair(2)`.
pub fn pair() -> io::Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the array has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: the kernel just returned these descriptors; they have no other owner.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_come_with_the_first_of_their_bytes_and_none_is_cut() {
        let [a, b] = pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(send(a.as_fd(), b"one", &[]).unwrap(), 3);
        assert_eq!(send(a.as_fd(), b"two", &[file.as_fd(); MAX_FDS]).unwrap(), 3);
        assert!(send(a.as_fd(), b"x", &[file.as_fd(); MAX_FDS + 1]).is_err());
        let mut bytes = [0; 16];
        let got: Vec<_> = std::iter::from_fn(|| receive(b.as_fd(), &mut bytes[..3]).ok())
            .map(|got| (got.len, got.fds.len(), got.cut))
            .collect();
        assert_eq!(got, [(3, 0, false), (3, MAX_FDS, false)]);
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut bytes).unwrap().len, 0);
    }
}
