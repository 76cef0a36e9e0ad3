//! Receiving from an AF_PACKET socket without a ring: `recvmmsg` into buffers that are posted once.

use super::Result;
use super::ring::socket;
use std::time::{Duration, Instant};
use towpath_packet::Cache;
use towpath_ports::vnet::VnetHeader;

const MESSAGES: usize = 64;

/// A socket and 64 buffers, each for a packet of any length.
pub(super) struct Messages {
    fd: libc::c_int,
    headers: Vec<[u8; VnetHeader::LEN]>,
    messages: Vec<libc::mmsghdr>,
    /// The memory of the messages.
    _vectors: Vec<[libc::iovec; 3]>,
    _bytes: Vec<Vec<u8>>,
}

impl Messages {
    pub(super) fn new(interface: &str) -> Result<Messages> {
        let mut headers = vec![[0; VnetHeader::LEN]; MESSAGES];
        let mut bytes = vec![vec![1; 1920 + 65_472]; MESSAGES];
        let mut vectors = Vec::new();
        for (header, bytes) in headers.iter_mut().zip(&mut bytes) {
            let (head, tail) = bytes.split_at_mut(1920);
            vectors.push(
                [&mut header[..], head, tail]
                    .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }),
            );
        }
        let messages = vectors.iter_mut().map(|vector| {
            // SAFETY: mmsghdr is plain data.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = vector.as_mut_ptr();
            message.msg_hdr.msg_iovlen = vector.len() as _;
            message
        });
        let messages = messages.collect();
        let fd = socket(interface, |_| Ok(()))?;
        let megabytes = 8 << 20;
        // SAFETY: SO_RCVBUFFORCE reads one int.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const megabytes).cast::<libc::c_void>(),
                4,
            )
        };
        Ok(Messages { fd, headers, messages, _vectors: vectors, _bytes: bytes })
    }

    /// Receives `n` packets; each is replaced by an empty packet of the pool.
    pub(super) fn drain(&mut self, cache: &mut Cache, n: usize) -> Duration {
        let begin = Instant::now();
        let mut seen = 0;
        while seen < n && begin.elapsed() < Duration::from_millis(100) {
            let (at, flags) = (self.messages.as_mut_ptr(), libc::MSG_DONTWAIT);
            // SAFETY: all messages point to memory that this value owns.
            let got = unsafe { libc::recvmmsg(self.fd, at, MESSAGES as u32, flags, std::ptr::null_mut()) };
            for header in self.headers.iter().take(usize::try_from(got).unwrap_or(0)) {
                std::hint::black_box(VnetHeader::from_ne_bytes(header));
                if let Some(packet) = cache.alloc() {
                    cache.free(packet);
                }
                seen += 1;
            }
        }
        begin.elapsed()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor.
        unsafe { libc::close(self.fd) };
    }
}
