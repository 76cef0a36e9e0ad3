//! Requests to the kernel by `netlink(7)`, and their answers.
//!
//! ```text
//!   nlmsghdr 16 │ the family's header │ attribute: length u16, type u16, value, padding to 4 │ …
//! ```

use super::{check, check_len};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `NLM_F_ECHO`: without it the answer about a queueing discipline goes only to sockets that listen
/// for changes of all of them (`RTNLGRP_TC`).
const FLAGS: libc::c_int = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_ECHO;

/// A netlink socket of the namespace in which it was made.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// A socket for a protocol, such as `NETLINK_ROUTE`.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub(super) fn new(protocol: libc::c_int) -> io::Result<Socket> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a request of a type, with attributes behind the family's own header; returns the bytes
    /// behind the answer's `nlmsghdr`.
    ///
    /// # Errors
    /// The error of `send(2)`, `recv(2)`, or of the kernel's answer; `NotFound` without an answer.
    pub(super) fn request(&self, kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> io::Result<Vec<u8>> {
        let mut message = vec![0; 4];
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(FLAGS as u16).to_ne_bytes());
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(header);
        for (kind, value) in attributes {
            message.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            message.extend_from_slice(&kind.to_ne_bytes());
            message.extend_from_slice(value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        let fd = self.0.as_raw_fd();
        // SAFETY: address and length describe the message, which the kernel only reads.
        check_len(unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), 0) })?;
        let mut answer = None;
        loop {
            let mut message = vec![0u8; 16384];
            // SAFETY: address and length describe the buffer, which is borrowed exclusively.
            let n = check_len(unsafe { libc::recv(fd, message.as_mut_ptr().cast(), message.len(), 0) })?;
            message.truncate(n);
            let word = |at: usize| message.get(at..).and_then(|b| b.first_chunk().copied()).map(i32::from_ne_bytes);
            let kind = message.get(4..).and_then(|b| b.first_chunk().copied()).map(u16::from_ne_bytes);
            if kind != Some(libc::NLMSG_ERROR as u16) {
                answer = Some(message.split_off(16.min(n)));
                continue;
            }
            // The acknowledgement follows the answer, if there is one: the kernel says nothing
            // about a queueing discipline that it hides.
            return match word(16) {
                Some(0) => answer.ok_or_else(|| io::ErrorKind::NotFound.into()),
                code => Err(io::Error::from_raw_os_error(-code.unwrap_or(-libc::EBADMSG))),
            };
        }
    }
}

/// The first message of what was received: its type, what is behind its `nlmsghdr`, and the further
/// messages.
pub(super) fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (length, kind) = (bytes.first_chunk::<4>()?, bytes.get(4..)?.first_chunk::<2>()?);
    let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?;
    let body = bytes.get(16..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((u16::from_ne_bytes(*kind), body, rest))
}

/// The value of the first attribute of a type.
pub(super) fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let &[l0, l1, k0, k1, ..] = list else { return None };
        let (len, kind) = (usize::from(u16::from_ne_bytes([l0, l1])), u16::from_ne_bytes([k0, k1]) & 0x3fff);
        let value = list.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        list = list.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_is_found_by_its_type() {
        let list = [6, 0, 1, 0, 7, 8, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&list, 1), Some(&[7, 8][..]));
        assert_eq!(attribute(&list, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&list, 3), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_read_to_an_end(list: Vec<u8>, kind: u16) {
            attribute(&list, kind);
            let mut rest = &list[..];
            while let Some((_, _, behind)) = message(rest) {
                assert!(behind.len() < rest.len());
                rest = behind;
            }
        }
    }
}
