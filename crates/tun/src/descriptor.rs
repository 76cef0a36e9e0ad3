//! Descriptors: opened, or examined if they come from elsewhere.

use crate::config::Kind;
use crate::error::Error;
use crate::header::TUNNEL_LEN;
use crate::offloads::TunOffloads;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use towpath_sys::netns::Namespace;
use towpath_sys::tun::{self, Attach, Attached, CLONE_DEVICE};
use towpath_wire::virtio_net::VnetHeader;

/// The device of a descriptor from elsewhere.
pub(crate) fn examine(fd: OwnedFd) -> Result<(File, Attached), Error> {
    let number = fd.as_raw_fd();
    let file = File::from(fd);
    match tun::attached(&file) {
        Ok(attached) => Ok((file, attached)),
        Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(Error::descriptor(
            format!("descriptor {number} has no device"),
            format!("TUNSETIFF must follow the open of {CLONE_DEVICE}; or the device was deleted"),
        )),
        Err(error) => Err(Error::descriptor(
            format!("descriptor {number} is none of a TUN device: {error}"),
            format!("pass a descriptor of {CLONE_DEVICE}"),
        )),
    }
}

/// Opens a descriptor of the device `name`, which is made if it does not exist.
pub(crate) fn attach(kind: Kind, name: &str, multi_queue: bool, vnet_header: bool) -> Result<File, Error> {
    let hinted = |what: &'static str| {
        move |source: io::Error| {
            let hint = hint(kind, name, multi_queue, what, &source);
            Error::os(name, what, source, hint)
        }
    };
    let queue = tun::open().map_err(hinted("open /dev/net/tun"))?;
    let how = Attach { ethernet: kind == Kind::Tap, multi_queue, vnet_header };
    tun::attach(&queue, name, how).map_err(hinted("TUNSETIFF"))?;
    Ok(queue)
}

/// Sets the shortest header that describes the offloads; returns its length.
pub(crate) fn set_header(queue: &File, offloads: TunOffloads) -> io::Result<usize> {
    if offloads.has(TunOffloads::TUNNEL) && tun::set_header_len(queue, TUNNEL_LEN).is_ok() {
        // An older kernel takes the length, but knows nothing of tunnels.
        if tun::set_offload(queue, TunOffloads::CSUM.with(TunOffloads::TSO).with(TunOffloads::TUNNEL).bits()).is_ok() {
            return Ok(TUNNEL_LEN);
        }
    }
    tun::set_header_len(queue, VnetHeader::LEN).map(|()| VnetHeader::LEN)
}

/// The namespace of an inherited descriptor's device, or that of the calling thread without the
/// right to enter it.
pub(crate) fn of_device(queue: &File) -> Namespace {
    tun::namespace(queue).map_or_else(|_| Namespace::current(), Namespace::from)
}

pub(crate) fn step(device: &str, what: &str) -> impl FnOnce(io::Error) -> Error + use<> {
    let (device, what) = (device.to_owned(), what.to_owned());
    move |source| {
        let denied = matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        Error::Os { device, step: what, source, hint: denied.then(|| PRIVILEGE.to_owned()) }
    }
}

const PRIVILEGE: &str = "run as root, or with CAP_NET_ADMIN";

fn hint(kind: Kind, name: &str, multi_queue: bool, step: &str, error: &io::Error) -> Option<String> {
    let multi = if multi_queue { " multi_queue" } else { "" };
    Some(match error.raw_os_error()? {
        libc::EPERM => {
            format!(
                "{PRIVILEGE}; or have root do once: ip tuntap add dev {name} mode {}{multi} user \"$USER\" vnet_hdr",
                kind.name()
            )
        }
        libc::EACCES => format!("chmod 0666 {CLONE_DEVICE}, or run as root"),
        libc::ENOENT | libc::ENODEV | libc::ENXIO => "modprobe tun".to_owned(),
        libc::EBUSY => format!("{name} is in use by another process, or is no multi-queue device: choose another name"),
        libc::EINVAL if step == "TUNSETIFF" => {
            let other = if multi_queue { "off" } else { "on" };
            format!("there is an interface {name} already that is no {}, or one with multi_queue {other}", kind.name())
        }
        libc::E2BIG => "the device has no more queues to give".to_owned(),
        _ => return None,
    })
}
