//! The other end of a network device's cable.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Bytes of frames, with the kernel's own for each, that a cable holds: a hundred long ones at least, many short ones.
const LENGTH: libc::c_int = 1 << 20;

/// How long a frame may wait for room in the cable.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a network device of a machine is connected to.
#[derive(Debug)]
pub enum Netdev {
    /// One end of a socket that keeps frames apart (`SOCK_SEQPACKET` or `SOCK_DGRAM`): a message is a frame.
    Frames(OwnedFd),
    /// A TAP device, attached with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`. Only here QEMU's devices have working TSO.
    Tap(OwnedFd),
    /// A hub inside of the machine: devices on the same one hear each other.
    Hub(u32),
}

impl Netdev {
    /// A cable whose other end is in our hands. It loses nothing: what is not received waits in the socket, and then in
    /// the device.
    ///
    /// # Errors
    /// What `socketpair(2)` failed with.
    pub fn cable() -> io::Result<(Netdev, Cable)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the pointer is to an array of two descriptors that lives across the call.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned both descriptors and nobody else has them.
        let [ours, theirs] = ends.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        // As long a cable as an ordinary user may have; what the kernel cuts off is no error.
        set(&ours, libc::SO_SNDBUF, &LENGTH)?;
        set(&theirs, libc::SO_SNDBUF, &LENGTH)?;
        set(&ours, libc::SO_SNDTIMEO, &libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 })?;
        Ok((Netdev::Frames(theirs), Cable(ours)))
    }

    /// What QEMU is told (`-netdev`), and the descriptor that it inherits.
    pub(super) fn argument(self, id: &str) -> (String, Option<OwnedFd>) {
        match self {
            Netdev::Frames(fd) => (format!("dgram,id={id},local.type=fd,local.str={}", fd.as_raw_fd()), Some(fd)),
            Netdev::Tap(fd) => (format!("tap,id={id},fd={}", fd.as_raw_fd()), Some(fd)),
            Netdev::Hub(hub) => (format!("hubport,id={id},hubid={hub}"), None),
        }
    }
}

/// Our end of a cable.
#[derive(Debug)]
pub struct Cable(OwnedFd);

impl Cable {
    /// Sends a frame; waits while there is no room.
    ///
    /// # Errors
    /// What `send(2)` failed with: `BrokenPipe` when the machine is gone, `WouldBlock` when there was no room for five seconds.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer and the length are those of a slice that lives across the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a frame into `buffer`, waiting for it at most as long as said; returns its length. What is longer than the buffer is
    /// cut.
    ///
    /// # Errors
    /// `WouldBlock` when there was none in time, else what `recv(2)` failed with.
    pub fn receive(&self, buffer: &mut [u8], patience: Duration) -> io::Result<usize> {
        ready(&self.0, libc::POLLIN, patience)?;
        // SAFETY: the pointer and the length are those of a slice that is borrowed exclusively across the call.
        let got =
            unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }
}

impl std::os::fd::AsFd for Cable {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length are those of a value that lives across the call; the kernel checks that it is what the option takes.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const *value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn ready(fd: &OwnedFd, events: i16, patience: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let millis = patience.as_millis().try_into().unwrap_or(i32::MAX);
    // SAFETY: the pointer is to one pollfd that is borrowed exclusively across the call.
    match unsafe { libc::poll(&mut poll, 1, millis) } {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        n if n < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
