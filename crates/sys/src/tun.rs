//! Makes and configures TUN/TAP devices (`Documentation/networking/tuntap.rst`, `drivers/net/tun.c`).

use super::check;
use super::netdev::{name_of, request};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Where TUN/TAP devices are made.
pub const CLONE: &str = "/dev/net/tun";

/// What kind of queue to attach, as `IFF_*` flags of `TUNSETIFF`.
#[derive(Debug, Clone, Copy)]
pub struct Attach {
    /// Ethernet frames (TAP), else IP packets (TUN).
    pub ethernet: bool,
    /// The device may have several queues, each a descriptor of its own.
    pub multi_queue: bool,
}

/// Opens the clone device, without blocking reads.
pub fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(CLONE)
}

/// Attaches the descriptor to the device `name`, which is made if it does not exist; returns its name, in which `%d` has become
/// a number. Packets carry a virtio-net header, and no `struct tun_pi`.
pub fn attach(queue: &File, name: &str, how: Attach) -> io::Result<String> {
    let mut r = request(name);
    let kind = if how.ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    let multi = if how.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    r.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR | multi) as libc::c_short;
    // SAFETY: TUNSETIFF takes a pointer to one ifreq, which is borrowed exclusively.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF, &mut r) })?;
    Ok(name_of(&r))
}

/// Whether the descriptor still has a device: one that was deleted is `EBADFD`.
pub fn is_attached(queue: &File) -> bool {
    let mut r = request("");
    // SAFETY: TUNGETIFF fills one ifreq, which is borrowed exclusively.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF, &mut r) }).is_ok()
}

/// Length of the header in front of every packet, of all queues of the device.
pub fn set_header_len(queue: &File, len: usize) -> io::Result<()> {
    let len = libc::c_int::try_from(len).unwrap_or(libc::c_int::MAX);
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETVNETHDRSZ, &len) }).map(drop)
}

/// What this side can receive (`TUN_F_*`), from all queues of the device.
pub fn set_offload(queue: &File, bits: libc::c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes a value, no pointer.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(bits)) }).map(drop)
}

/// Whether the device stays when its last descriptor is closed.
pub fn set_persist(queue: &File, on: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes a value, no pointer.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(on)) }).map(drop)
}

/// Which program chooses the queue of a packet that goes to user space, for the device as a whole; -1 for none. The kernel takes what
/// the program gives back modulo the number of queues (`tun_ebpf_select_queue`).
pub fn set_steering(queue: &File, program: RawFd) -> io::Result<()> {
    // SAFETY: TUNSETSTEERINGEBPF reads one int.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETSTEERINGEBPF, &program) }).map(drop)
}
