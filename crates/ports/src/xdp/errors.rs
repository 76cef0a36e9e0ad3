//! Errors of the kernel, with hints.

use super::config::Config;
use crate::kernel::link::ip_command;
use std::io;
use towpath_packet::port::PortError;
use towpath_sys::netdev::Control;

fn show_interfaces(config: &Config) -> String {
    format!("{} link shows the interfaces", ip_command(config.netns.as_deref()))
}

/// The error of a namespace that could not be entered.
pub(super) fn netns_error(config: &Config) -> impl Fn(io::Error) -> PortError + use<'_> {
    |source| {
        let option = |rule: &str| config.error("netns", config.netns.as_deref().unwrap_or_default(), rule);
        match source.raw_os_error() {
            Some(libc::ENOENT) => option("there is no such namespace: ip netns list shows the names"),
            Some(libc::EINVAL) => option("is not a network namespace: ip netns list shows names"),
            code => {
                let denied = matches!(code, Some(libc::EPERM | libc::EACCES));
                let hint = denied.then(|| "run as root: that needs cap_sys_admin".to_owned());
                PortError::Os { port: config.port(), step: "enter the namespace".to_owned(), source, hint }
            }
        }
    }
}

/// Checks that the interface has the configured queues, if its driver reports their number.
pub(super) fn check_queues(config: &Config, control: &Control) -> Result<(), PortError> {
    let has = control.queues(&config.interface).unwrap_or(0);
    let (first, n) = (u32::from(config.queue), u32::from(config.queues));
    if has == 0 || first + n <= has {
        return Ok(());
    }
    let name = &config.interface;
    let range = if has == 1 { "one queue, 0".to_owned() } else { format!("{has} queues, 0 to {}", has - 1) };
    Err(match first {
        0 => config.error("queues", n, format!("{name} has {range}")),
        _ if first >= has => config.error("queue", first, format!("{name} has {range}")),
        _ => config.error("queues", n, format!("{name} has {range}, and these begin with queue={first}")),
    })
}

/// The error of a step, with a hint.
pub(super) fn os_error<'a>(config: &'a Config, step: &'static str) -> impl Fn(io::Error) -> PortError + use<'a> {
    move |source| {
        let (name, ip) = (&config.interface, ip_command(config.netns.as_deref()));
        let hint = match source.raw_os_error() {
            Some(libc::EPERM) if step.contains("BUSY_POLL") => Some("busypoll takes cap_net_admin".to_owned()),
            Some(libc::EPERM | libc::EACCES) => Some(
                "run as root, or: setcap cap_net_raw,cap_net_admin,cap_bpf+ep \"$(command -v towpath)\"".to_owned(),
            ),
            Some(libc::ENODEV) => Some(show_interfaces(config)),
            Some(libc::EAFNOSUPPORT) => Some("the kernel was built without CONFIG_XDP_SOCKETS".to_owned()),
            Some(libc::EBUSY | libc::EEXIST) if step.starts_with("attach") => Some(format!(
                "another XDP program is attached: {ip} -d link show dev {name} shows it; end its owner, or: {ip} link set dev {name} xdp off; \
                 if that is this command, with the same interface twice: towpath echo"
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

/// The error of a queue that could not be bound.
pub(super) fn bind_error(config: &Config, queue: u32, source: io::Error) -> PortError {
    let (name, ip) = (&config.interface, ip_command(config.netns.as_deref()));
    let hint = match source.raw_os_error() {
        Some(libc::EBUSY) => Some(format!(
            "another AF_XDP socket has queue {queue} of {name}: ss --xdp -p shows them; end its owner, or take another with queue="
        )),
        Some(libc::ENETDOWN) => Some(format!("{ip} link set dev {name} up")),
        Some(libc::EINVAL) => {
            Some(format!("{name} may have no queue {queue}: ethtool -l {name} shows how many there are"))
        }
        Some(libc::EOPNOTSUPP) => Some("the driver can't do what is required".to_owned()),
        Some(libc::ENODEV) => Some(show_interfaces(config)),
        Some(libc::ENOBUFS) => Some("ulimit -l unlimited, or cap_ipc_lock: the memory is pinned".to_owned()),
        _ => None,
    };
    PortError::Os { port: config.port(), step: format!("bind to queue {queue}"), source, hint }
}

/// The meaning of a driver's error for a program.
pub(super) fn native_refusal(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ERANGE) => " (the other end's MTU is too large: frags=prefer, or a smaller MTU)",
        Some(libc::EOPNOTSUPP) => " (it runs no XDP programs)",
        _ => "",
    }
}

/// The meaning of a driver's error for zero copy.
pub(super) fn zero_copy_refusal(error: &io::Error, has_program: bool, driver: &str) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) if driver == "bonding" => " (a bond sends without copies by its slaves only: xdp:SLAVE)",
        Some(libc::EINVAL) if driver == "virtio_net" => {
            " (virtio_net has no DMA addresses of the device: QEMU gives it iommu_platform=on)"
        }
        Some(libc::ENXIO | libc::ENETDOWN | libc::EINVAL) if !has_program => {
            " (some drivers send without copies only beside an XDP program: rx=on, or attach one that passes all frames)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_zero_copy_is_explained_by_driver_and_error() {
        let hint =
            |code, has_program, driver| zero_copy_refusal(&io::Error::from_raw_os_error(code), has_program, driver);
        for has_program in [true, false] {
            assert!(hint(libc::EINVAL, has_program, "virtio_net").contains("iommu_platform=on"));
            assert!(hint(libc::EOPNOTSUPP, has_program, "bonding").contains("slaves"));
        }
        assert!(hint(libc::ENXIO, false, "ixgbe").contains("rx=on"));
        assert_eq!(hint(libc::EINVAL, true, "ixgbe"), "");
    }
}
