//! TUN/TAP devices (`Documentation/networking/tuntap.rst`, `drivers/net/tun.c`).

use super::check;
use super::netdev::{name_of, request};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// The clone device, which makes TUN/TAP devices.
pub const CLONE_DEVICE: &str = "/dev/net/tun";

/// The flags of `TUNSETIFF`.
#[derive(Debug, Clone, Copy)]
pub struct Attach {
    /// Ethernet frames (TAP), else IP packets (TUN).
    pub ethernet: bool,
    /// The device may have several queues, each a descriptor of its own.
    pub multi_queue: bool,
}

/// Opens the clone device, nonblocking.
///
/// # Errors
/// The error of `open(2)`.
pub fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(CLONE_DEVICE)
}

/// Attaches the descriptor to the device `name`, which is made if it does not exist. Returns the
/// device's name, with a number in place of `%d`. Packets have a virtio-net header, and no
/// `struct tun_pi`.
///
/// # Errors
/// The error of the ioctl.
pub fn attach(queue: &File, name: &str, flags: Attach) -> io::Result<String> {
    let mut r = request(name);
    let kind = if flags.ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    let multi = if flags.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    r.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR | multi) as libc::c_short;
    // SAFETY: TUNSETIFF takes a pointer to one ifreq, which is borrowed exclusively.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF, &mut r) })?;
    Ok(name_of(&r))
}

/// Whether the descriptor still has a device; the ioctl fails with `EBADFD` after the device was
/// deleted.
pub fn is_attached(queue: &File) -> bool {
    name(queue).is_ok()
}

/// The name of the descriptor's device, which may have changed.
///
/// # Errors
/// The error of the ioctl.
pub fn name(queue: &File) -> io::Result<String> {
    let mut r = request("");
    // SAFETY: TUNGETIFF fills one ifreq, which is borrowed exclusively.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF, &mut r) })?;
    Ok(name_of(&r))
}

/// The network namespace of the descriptor's device, which may have been moved (since Linux 5.7).
///
/// # Errors
/// The error of the ioctl: `EPERM` without `CAP_NET_ADMIN` in that namespace.
pub fn namespace(queue: &File) -> io::Result<OwnedFd> {
    /// `_IO('T', 227)`.
    const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
    // SAFETY: TUNGETDEVNETNS takes no argument.
    let fd = check(unsafe { libc::ioctl(queue.as_raw_fd(), TUNGETDEVNETNS) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the length of the header in front of every packet, for all queues of the device.
///
/// # Errors
/// The error of the ioctl.
pub fn set_header_len(queue: &File, len: usize) -> io::Result<()> {
    let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETVNETHDRSZ, &len) }).map(drop)
}

/// Sets the offloads that the kernel may hand over (`TUN_F_*`), for all queues of the device.
///
/// # Errors
/// The error of the ioctl.
pub fn set_offload(queue: &File, bits: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes a value, no pointer.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(bits)) }).map(drop)
}

/// Sets whether the device stays when its last descriptor is closed.
///
/// # Errors
/// The error of the ioctl.
pub fn set_persist(queue: &File, on: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes a value, no pointer.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(on)) }).map(drop)
}

/// Sets the program that chooses the queue of a packet to user space, for the whole device; -1 for
/// none. The kernel takes the program's result modulo the number of queues
/// (`tun_ebpf_select_queue`).
///
/// # Errors
/// The error of the ioctl.
pub fn set_steering(queue: &File, program: RawFd) -> io::Result<()> {
    // SAFETY: TUNSETSTEERINGEBPF reads one int.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETSTEERINGEBPF, &program) }).map(drop)
}
