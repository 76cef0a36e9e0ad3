//! The network of a device, and the far end of its cable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;
use towpath_sys::poll::wait_readable;

/// Send buffer of a cable, in bytes of frames and the kernel's overhead: at least a hundred long
/// frames, many short ones.
const LENGTH: libc::c_int = 1 << 20;

/// The time that a frame waits for room in the cable.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The network that a device of a machine is connected to.
#[derive(Debug)]
pub enum Netdev {
    /// One end of a socket with message boundaries (`SOCK_SEQPACKET` or `SOCK_DGRAM`): a message is
    /// a frame.
    Frames(OwnedFd),
    /// The queues of a TAP device, attached with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`, and with
    /// `IFF_MULTI_QUEUE` if there are several. TSO and hash reports of QEMU's devices work only
    /// with it.
    Tap(Vec<OwnedFd>),
    /// A hub inside the machine: all its devices receive each other's frames.
    Hub(u32),
}

impl Netdev {
    /// A cable whose far end is returned. It loses nothing: frames wait in the socket, and then in
    /// the device.
    ///
    /// # Errors
    /// The error of `socketpair(2)`.
    pub fn cable() -> io::Result<(Netdev, Cable)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the pointer is to an array of two descriptors that outlives the call.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned both descriptors, which have no other owner.
        let [far, near] = ends.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        // The largest buffer that an unprivileged user may have: the kernel clamps the value
        // without an error.
        set(&far, libc::SO_SNDBUF, &LENGTH)?;
        set(&near, libc::SO_SNDBUF, &LENGTH)?;
        set(&far, libc::SO_SNDTIMEO, &libc::timeval { tv_sec: TIMEOUT.as_secs() as libc::time_t, tv_usec: 0 })?;
        Ok((Netdev::Frames(near), Cable(far)))
    }

    /// QEMU's `-netdev` option, and the descriptors that it inherits.
    pub(super) fn argument(self, id: &str) -> (String, Vec<OwnedFd>) {
        match self {
            Netdev::Frames(fd) => (format!("dgram,id={id},local.type=fd,local.str={}", fd.as_raw_fd()), vec![fd]),
            Netdev::Tap(queues) => {
                let numbers: Vec<_> = queues.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
                (format!("tap,id={id},fds={}", numbers.join(":")), queues)
            }
            Netdev::Hub(hub) => (format!("hubport,id={id},hubid={hub}"), Vec::new()),
        }
    }
}

/// The far end of a cable.
#[derive(Debug)]
pub struct Cable(OwnedFd);

impl Cable {
    /// Sends a frame; waits while there is no room.
    ///
    /// # Errors
    /// The error of `send(2)`: `BrokenPipe` if the machine is gone, `WouldBlock` if there was no
    /// room for five seconds.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: pointer and length are those of a slice that outlives the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a frame into `buffer` and returns its length; waits for at most `timeout`. A longer
    /// frame is truncated.
    ///
    /// # Errors
    /// `WouldBlock` if no frame arrived in time, otherwise the error of `recv(2)`.
    pub fn receive(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        if !wait_readable(self.0.as_fd(), Some(timeout))? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: pointer and length are those of a slice that is borrowed exclusively across the
        // call.
        let got =
            unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for Cable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length are those of a value that outlives the call; the kernel checks the
    // length.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const *value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
