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
    /// Packets have a virtio-net header.
    pub vnet_header: bool,
}

/// The settings of an attached descriptor, by `TUNGETIFF`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attached {
    /// The device's name, which may have changed.
    pub name: String,
    /// Ethernet frames (TAP), else IP packets (TUN).
    pub ethernet: bool,
    /// The device may have several queues.
    pub multi_queue: bool,
    /// Packets have a virtio-net header.
    pub vnet_header: bool,
    /// A `struct tun_pi` is in front of each packet: the device was made without `IFF_NO_PI`.
    pub packet_info: bool,
}

/// Opens the clone device, nonblocking.
///
/// # Errors
/// The error of `open(2)`.
pub fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(CLONE_DEVICE)
}

/// Attaches the descriptor to the device `name`, which is made if it does not exist. Returns the
/// device's name, with a number in place of `%d`. Packets have no `struct tun_pi`.
///
/// # Errors
/// The error of the ioctl.
pub fn attach(queue: &File, name: &str, flags: Attach) -> io::Result<String> {
    let mut r = request(name);
    let kind = if flags.ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    let multi = if flags.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let header = if flags.vnet_header { libc::IFF_VNET_HDR } else { 0 };
    r.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | header | multi) as libc::c_short;
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
    attached(queue).map(|device| device.name)
}

/// The device of the descriptor, and how it is attached.
///
/// # Errors
/// The error of the ioctl: `EBADFD` if the descriptor has no device, `ENOTTY` (or another) if it is
/// none of the clone device.
pub fn attached(queue: &File) -> io::Result<Attached> {
    let mut r = request("");
    // SAFETY: TUNGETIFF fills one ifreq, which is borrowed exclusively.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF, &mut r) })?;
    // SAFETY: TUNGETIFF fills this member.
    let flags = libc::c_int::from(unsafe { r.ifr_ifru.ifru_flags });
    let has = |flag: libc::c_int| flags & flag != 0;
    Ok(Attached {
        name: name_of(&r),
        ethernet: has(libc::IFF_TAP),
        multi_queue: has(libc::IFF_MULTI_QUEUE),
        vnet_header: has(libc::IFF_VNET_HDR),
        packet_info: !has(libc::IFF_NO_PI),
    })
}

/// The length of the header in front of every packet, if packets have one.
///
/// # Errors
/// The error of the ioctl.
pub fn header_len(queue: &File) -> io::Result<usize> {
    let mut len: libc::c_int = 0;
    // SAFETY: TUNGETVNETHDRSZ fills one int, which is borrowed exclusively.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETVNETHDRSZ, &mut len) })?;
    Ok(usize::try_from(len).unwrap_or(0))
}

/// Whether calls on the descriptor return `EAGAIN` rather than wait.
///
/// # Errors
/// The error of `fcntl(2)`.
pub fn is_nonblocking(queue: &File) -> io::Result<bool> {
    // SAFETY: F_GETFL takes no pointer.
    Ok(check(unsafe { libc::fcntl(queue.as_raw_fd(), libc::F_GETFL) })? & libc::O_NONBLOCK != 0)
}

/// Sets whether calls on the descriptor return `EAGAIN` rather than wait. The setting is that of
/// the open file: of all descriptors that were duplicated from this one.
///
/// # Errors
/// The error of `fcntl(2)`.
pub fn set_nonblocking(queue: &File, on: bool) -> io::Result<()> {
    // SAFETY: F_GETFL takes no pointer.
    let flags = check(unsafe { libc::fcntl(queue.as_raw_fd(), libc::F_GETFL) })?;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: F_SETFL takes a value, no pointer.
    check(unsafe { libc::fcntl(queue.as_raw_fd(), libc::F_SETFL, flags) }).map(drop)
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

/// Makes the header in front of every packet little-endian, as that of virtio 1 is.
///
/// # Errors
/// The error of the ioctl.
pub fn set_header_little_endian(queue: &File) -> io::Result<()> {
    /// `_IOW('T', 220, int)`.
    const TUNSETVNETLE: libc::Ioctl = 0x4004_54dc;
    let on: libc::c_int = 1;
    // SAFETY: TUNSETVNETLE reads one int.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETVNETLE, &on) }).map(drop)
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
