//! Words for what the kernel refuses, and what would mend it.

use super::config::Config;
use std::io;
use towpath_packet::port::PortError;

/// A step that the kernel refused.
pub(super) fn os<'a>(config: &'a Config, step: &'static str) -> impl Fn(io::Error) -> PortError + use<'a> {
    move |source| {
        let name = &config.interface;
        let hint = match source.raw_os_error() {
            Some(libc::EPERM) if step.starts_with("enter") => Some("run as root: that needs cap_sys_admin".to_owned()),
            Some(libc::EPERM) if step.contains("BUSY_POLL") => Some("busypoll takes cap_net_admin".to_owned()),
            Some(libc::EPERM | libc::EACCES) => Some(
                "run as root, or: setcap cap_net_raw,cap_net_admin,cap_bpf+ep \"$(command -v towpath)\"".to_owned(),
            ),
            Some(libc::ENOENT) if step.starts_with("enter") => Some("ip netns list shows the names".to_owned()),
            Some(libc::ENODEV) => Some("ip link shows the interfaces".to_owned()),
            Some(libc::EAFNOSUPPORT) => Some("the kernel was built without CONFIG_XDP_SOCKETS".to_owned()),
            Some(libc::EBUSY | libc::EEXIST) if step.starts_with("attach") => Some(format!(
                "another XDP program is attached: ip -d link show dev {name} shows it; end its owner, or: ip link set dev {name} xdp off"
            )),
            Some(libc::ENOPROTOOPT) if step.contains("BUSY_POLL") => {
                Some("Linux 5.11 can poll like that: busypoll=0".to_owned())
            }
            Some(libc::EINVAL) if step.contains("LINK") || step.starts_with("attach") => {
                Some("programs are attached by links since Linux 5.9".to_owned())
            }
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                Some("ulimit -l unlimited, or cap_ipc_lock: the memory is pinned".to_owned())
            }
            _ => None,
        };
        PortError::Os { port: config.port(), step: step.to_owned(), source, hint }
    }
}

/// A queue that could not be bound.
pub(super) fn bind_failed(config: &Config, queue: u32, source: io::Error) -> PortError {
    let name = &config.interface;
    let hint = match source.raw_os_error() {
        Some(libc::EBUSY) => Some(format!(
            "another AF_XDP socket has queue {queue} of {name}: ss --xdp -p shows them; end its owner, or take another with queue="
        )),
        Some(libc::ENETDOWN) => Some(format!("ip link set dev {name} up")),
        Some(libc::EINVAL) => {
            Some(format!("{name} may have no queue {queue}: ethtool -l {name} shows how many there are"))
        }
        Some(libc::EOPNOTSUPP) => Some("the driver can't do what is required".to_owned()),
        Some(libc::ENODEV) => Some("ip link shows the interfaces".to_owned()),
        Some(libc::ENOBUFS) => Some("ulimit -l unlimited, or cap_ipc_lock: the memory is pinned".to_owned()),
        _ => None,
    };
    PortError::Os { port: config.port(), step: format!("bind to queue {queue}"), source, hint }
}

/// What a driver means by refusing a program.
pub(super) fn why_not_native(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ERANGE) => " (the other end's MTU is too large: frags=prefer, or a smaller MTU)",
        Some(libc::EOPNOTSUPP) => " (it runs no XDP programs)",
        _ => "",
    }
}
