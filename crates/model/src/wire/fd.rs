//! A descriptor with one frame per read and write: a TAP, a packet socket, one end of a SEQPACKET
//! pair.

use super::{MAX_FRAME, Wire};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Frames over a descriptor, which is set to non-blocking. A TAP must have neither a packet
/// information header (`IFF_NO_PI`) nor a virtio-net header.
#[derive(Debug)]
pub struct FdWire {
    fd: OwnedFd,
    lost: u64,
}

impl FdWire {
    /// A wire over `fd`.
    ///
    /// # Errors
    /// The error of `fcntl(2)`.
    pub fn new(fd: OwnedFd) -> io::Result<FdWire> {
        // SAFETY: fcntl with F_GETFL takes no pointer.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        // SAFETY: nor does fcntl with F_SETFL.
        if flags < 0 || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(FdWire { fd, lost: 0 })
    }

    /// Frames that were lost because the other side refused them: too long, or the interface is
    /// down.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Wire for FdWire {
    fn send(&mut self, frame: &[u8]) -> bool {
        // SAFETY: pointer and length are those of a slice that outlives the call.
        let n = unsafe { libc::write(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len()) };
        if n >= 0 {
            return true;
        }
        match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => false,
            _ => {
                self.lost += 1;
                true
            }
        }
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        into.resize(MAX_FRAME, 0);
        // SAFETY: pointer and length are those of a vector that is borrowed exclusively across the
        // call.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
        into.truncate(usize::try_from(n).unwrap_or(0));
        n > 0
    }

    fn wake(&mut self) -> Option<RawFd> {
        Some(self.fd.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let mut fds = [0; 2];
        // SAFETY: socketpair writes two descriptors, which have no other owner.
        unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()), 0);
            (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
        }
    }

    #[test]
    fn one_frame_is_one_message_and_nothing_blocks() {
        let (a, b) = pair();
        let (mut a, mut b) = (FdWire::new(a).unwrap(), FdWire::new(b).unwrap());
        let mut frame = Vec::new();
        assert!(!b.receive(&mut frame));
        assert!(a.send(&[1; 60]) && a.send(&[2; 9000]));
        assert!(b.receive(&mut frame));
        assert_eq!(frame, [1; 60]);
        assert!(b.receive(&mut frame));
        assert_eq!(frame, [2; 9000]);
        assert!(!b.receive(&mut frame));
    }

    #[test]
    fn a_full_descriptor_refuses_and_a_closed_one_counts_lost_frames() {
        let (a, b) = pair();
        let mut a = FdWire::new(a).unwrap();
        assert!((0..100_000).any(|_| !a.send(&[0; 1500])), "it fills up");
        assert_eq!(a.lost(), 0);
        drop(b);
        // Rust programs ignore SIGPIPE.
        assert!(a.send(&[0; 60]));
        assert_eq!(a.lost(), 1);
    }
}
