//! Writes a header and all chunks of a packet with one system call, without copying.

use super::check_len;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use towpath_packet::{MAX_FRAGS, Packet};

/// Contiguous pieces of a packet: its head and its fragments.
pub(crate) const MAX_CHUNKS: usize = MAX_FRAGS + 1;

/// The list of addresses that `writev(2)` takes, kept from one call to the next so that no call prepares 4 KiB of stack.
pub(crate) struct Gather(Box<[libc::iovec]>);

// SAFETY: the addresses in the list are used only within `write`, which puts them there.
unsafe impl Send for Gather {}

impl Gather {
    pub(crate) fn new() -> Gather {
        Gather(vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_CHUNKS + 1].into())
    }

    /// Writes `header`, then the packet. Chunks that others may write to meanwhile are named by address, never looked at.
    #[inline]
    pub(crate) fn write(&mut self, to: impl AsFd, header: &[u8], packet: &Packet) -> io::Result<usize> {
        let n = fill(&mut self.0, header, packet);
        // SAFETY: the first n entries were just filled from `header` and `packet`, both borrowed until the call returns; the
        // kernel only reads what they point to.
        check_len(unsafe { libc::writev(to.as_fd().as_raw_fd(), self.0.as_ptr(), n as libc::c_int) })
    }
}

/// Puts the header and the packet's chunks into the list; returns how many entries that took, at most the list's length.
#[inline]
pub(super) fn fill(list: &mut [libc::iovec], header: &[u8], packet: &Packet) -> usize {
    let header = (header.as_ptr(), header.len());
    let chunks = packet.chunks().map(|chunk| (chunk.as_ptr(), chunk.len()));
    let mut n = 0;
    for (entry, (at, len)) in list.iter_mut().zip(std::iter::once(header).chain(chunks)) {
        *entry = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
        n += 1;
    }
    n
}
