//! An interface's settings, by `ioctl` on a socket (`netdevice(7)`).

use super::check;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of an interface's name, the final zero included.
pub const NAME_SIZE: usize = libc::IFNAMSIZ;

/// Whether the kernel accepts `name` for an interface: 1 to 15 bytes, no slash, colon or blank,
/// neither `.` nor `..` (`dev_valid_name` in `net/core/dev.c`).
pub fn valid_name(name: &str) -> bool {
    (1..NAME_SIZE).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.bytes().any(|b| b == b'/' || b == b':' || b == 0 || b.is_ascii_whitespace() || b == 0x0b)
}

/// An empty request about the interface `name` (cut to what fits).
pub(super) fn request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data: all zeroes are an empty name and a zero of every member of the
    // union.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    for (to, from) in request.ifr_name.iter_mut().take(NAME_SIZE - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// The name that the kernel wrote into a request.
pub(super) fn name_of(request: &libc::ifreq) -> String {
    let bytes: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// State of an interface's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Up, with carrier.
    Up,
    /// Not up (`ip link set … up`).
    Down,
    /// Up, without carrier.
    NoCarrier,
    /// No interface of this namespace has the index: it was deleted, or moved to another namespace.
    Absent,
}

/// Work that the kernel leaves to an interface or does for it. The values are the commands that
/// read it (`ETHTOOL_G…` of `include/uapi/linux/ethtool.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Checksums of transmitted packets.
    TxChecksum = 0x16,
    /// TCP segmentation by the device.
    Tso = 0x1e,
    /// Segmentation by the kernel, just before the device.
    Gso = 0x23,
    /// Coalescing of received packets.
    Gro = 0x2b,
}

/// Reads and changes settings of the interfaces of the namespace in which it was made.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
    /// For IPv6 addresses; an error if the kernel has no IPv6.
    socket6: io::Result<OwnedFd>,
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Control {
    /// Opens the sockets in the calling thread's namespace.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub fn new() -> io::Result<Control> {
        Ok(Control { socket: socket(libc::AF_INET)?, socket6: socket(libc::AF_INET6) })
    }

    fn ioctl(&self, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: all numbers passed in this file take a pointer to one ifreq, which is borrowed
        // exclusively.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), number, request) }).map(drop)
    }

    /// The interface's index.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn index(&self, name: &str) -> io::Result<i32> {
        let mut r = request(name);
        self.ioctl(libc::SIOCGIFINDEX, &mut r)?;
        // SAFETY: SIOCGIFINDEX fills this member.
        Ok(unsafe { r.ifr_ifru.ifru_ifindex })
    }

    fn flags(&self, name: &str) -> io::Result<i32> {
        let mut r = request(name);
        self.ioctl(libc::SIOCGIFFLAGS, &mut r)?;
        // SAFETY: SIOCGIFFLAGS fills this member.
        Ok(i32::from(unsafe { r.ifr_ifru.ifru_flags }))
    }

    /// The state of the link; by index, so that a new name changes nothing.
    pub fn link_state(&self, index: i32) -> LinkState {
        let mut r = request("");
        r.ifr_ifru.ifru_ifindex = index;
        let flags = self.ioctl(libc::SIOCGIFNAME, &mut r).and_then(|()| self.flags(&name_of(&r)));
        match flags {
            Err(_) => LinkState::Absent,
            Ok(flags) if flags & libc::IFF_UP == 0 => LinkState::Down,
            Ok(flags) if flags & libc::IFF_RUNNING == 0 && !self.has_carrier(&name_of(&r)) => LinkState::NoCarrier,
            Ok(_) => LinkState::Up,
        }
    }

    /// Whether the driver reports carrier. `IFF_RUNNING` follows up to a second later
    /// (`net/core/link_watch.c`), but is read without a lock; this ioctl takes the RTNL lock.
    fn has_carrier(&self, name: &str) -> bool {
        const ETHTOOL_GLINK: u32 = 0xa;
        self.ethtool(name, ETHTOOL_GLINK, 0).is_ok_and(|carrier| carrier != 0)
    }

    /// Runs a command of ethtool that takes or returns one value.
    fn ethtool(&self, name: &str, command: u32, data: u32) -> io::Result<u32> {
        /// `struct ethtool_value` (`include/uapi/linux/ethtool.h`).
        #[repr(C)]
        struct Value {
            command: u32,
            data: u32,
        }
        let mut value = Value { command, data };
        let mut r = request(name);
        r.ifr_ifru.ifru_data = (&raw mut value).cast();
        // The kernel reads and writes the value that the request points to, which outlives the
        // call.
        self.ioctl(libc::SIOCETHTOOL, &mut r)?;
        Ok(value.data)
    }

    /// Whether an offload is on, as `ethtool -k` shows it.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn offload(&self, name: &str, offload: Offload) -> io::Result<bool> {
        Ok(self.ethtool(name, offload as u32, 0)? != 0)
    }

    /// Switches an offload, as `ethtool -K` does.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name; `EOPNOTSUPP` if the driver
    /// can't switch it.
    pub fn set_offload(&self, name: &str, offload: Offload, on: bool) -> io::Result<()> {
        // Each command that sets follows the one that gets.
        self.ethtool(name, offload as u32 + 1, on.into()).map(drop)
    }

    /// Whether the interface is up (`IFF_UP`).
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn is_up(&self, name: &str) -> io::Result<bool> {
        Ok(self.flags(name)? & libc::IFF_UP != 0)
    }

    /// Sets the interface up, if it is not.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn set_up(&self, name: &str) -> io::Result<()> {
        let flags = self.flags(name)?;
        if flags & libc::IFF_UP != 0 {
            return Ok(());
        }
        let mut r = request(name);
        r.ifr_ifru.ifru_flags = (flags | libc::IFF_UP) as libc::c_short;
        self.ioctl(libc::SIOCSIFFLAGS, &mut r)
    }

    /// The interface's MTU.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn mtu(&self, name: &str) -> io::Result<u32> {
        let mut r = request(name);
        self.ioctl(libc::SIOCGIFMTU, &mut r)?;
        // SAFETY: SIOCGIFMTU fills this member.
        Ok(u32::try_from(unsafe { r.ifr_ifru.ifru_mtu }).unwrap_or(0))
    }

    /// Sets the MTU.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn set_mtu(&self, name: &str, mtu: u32) -> io::Result<()> {
        let mut r = request(name);
        r.ifr_ifru.ifru_mtu = libc::c_int::try_from(mtu).unwrap_or(libc::c_int::MAX);
        self.ioctl(libc::SIOCSIFMTU, &mut r)
    }

    /// Length of the interface's transmit queue, in packets (`txqueuelen`).
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn queue_len(&self, name: &str) -> io::Result<u32> {
        let mut r = request(name);
        self.ioctl(libc::SIOCGIFTXQLEN, &mut r)?;
        // SAFETY: SIOCGIFTXQLEN fills an int, and all members that are one have the same offset.
        Ok(u32::try_from(unsafe { r.ifr_ifru.ifru_mtu }).unwrap_or(0))
    }

    /// Sets the length of the transmit queue, in packets.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn set_queue_len(&self, name: &str, packets: u32) -> io::Result<()> {
        let mut r = request(name);
        r.ifr_ifru.ifru_mtu = libc::c_int::try_from(packets).unwrap_or(libc::c_int::MAX);
        self.ioctl(libc::SIOCSIFTXQLEN, &mut r)
    }

    /// Type of the link layer (`ARPHRD_*`).
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn hardware_type(&self, name: &str) -> io::Result<u16> {
        let mut r = request(name);
        self.ioctl(libc::SIOCGIFHWADDR, &mut r)?;
        // SAFETY: SIOCGIFHWADDR fills this member.
        Ok(unsafe { r.ifr_ifru.ifru_hwaddr.sa_family })
    }

    /// Hardware address of an Ethernet interface.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn mac(&self, name: &str) -> io::Result<[u8; 6]> {
        let mut r = request(name);
        self.ioctl(libc::SIOCGIFHWADDR, &mut r)?;
        // SAFETY: SIOCGIFHWADDR fills this member.
        let address = unsafe { r.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|i| address[i] as u8))
    }

    /// Name of the interface's driver, as `ethtool -i` shows it.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn driver(&self, name: &str) -> io::Result<String> {
        const ETHTOOL_GDRVINFO: u32 = 0x3;
        /// `struct ethtool_drvinfo`, of which the first two members are read.
        #[repr(C)]
        struct Info {
            command: u32,
            driver: [u8; 32],
            rest: [u8; 160],
        }
        let mut info = Info { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        let mut r = request(name);
        r.ifr_ifru.ifru_data = (&raw mut info).cast();
        // The kernel reads and writes the structure that the request points to, which outlives the
        // call.
        self.ioctl(libc::SIOCETHTOOL, &mut r)?;
        let end = info.driver.iter().position(|&b| b == 0).unwrap_or(info.driver.len());
        Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
    }

    /// Current number of RX or TX queues, the larger one, as `ethtool -l` shows them.
    ///
    /// # Errors
    /// The error of the ioctl: `EOPNOTSUPP` if the driver does not report them.
    pub fn queues(&self, name: &str) -> io::Result<u32> {
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        /// `struct ethtool_channels`.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            max: [u32; 4],
            rx: u32,
            tx: u32,
            other: u32,
            combined: u32,
        }
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let mut r = request(name);
        r.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // The kernel reads and writes the structure that the request points to, which outlives the
        // call.
        self.ioctl(libc::SIOCETHTOOL, &mut r)?;
        Ok(channels.combined.saturating_add(channels.rx.max(channels.tx)))
    }

    /// Sets the hardware address.
    ///
    /// # Errors
    /// The error of the ioctl; `ENODEV` if no interface has this name.
    pub fn set_mac(&self, name: &str, mac: [u8; 6]) -> io::Result<()> {
        let mut r = request(name);
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        r.ifr_ifru.ifru_hwaddr = address;
        self.ioctl(libc::SIOCSIFHWADDR, &mut r)
    }

    /// Adds an address and the route to its network. An IPv4 address replaces the previous one.
    ///
    /// # Errors
    /// The error of the ioctl: `EEXIST` for an IPv6 address that the interface has; `ENODEV` if no
    /// interface has this name.
    pub fn add_address(&self, name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
                self.set_v4(libc::SIOCSIFADDR, name, address.octets())?;
                self.set_v4(libc::SIOCSIFNETMASK, name, mask.to_be_bytes())
            }
            IpAddr::V6(address) => {
                let request = libc::in6_ifreq {
                    ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
                    ifr6_prefixlen: u32::from(prefix),
                    ifr6_ifindex: self.index(name)?,
                };
                let socket = self.socket6.as_ref().map_err(|e| io::Error::from(e.kind()))?;
                // SAFETY: on an AF_INET6 socket SIOCSIFADDR reads one in6_ifreq.
                check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &request) }).map(drop)
            }
        }
    }

    fn set_v4(&self, number: libc::Ioctl, name: &str, octets: [u8; 4]) -> io::Result<()> {
        let mut r = request(name);
        let mut address = libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: [0; 14] };
        // sockaddr_in: port (2 bytes), address (4 bytes).
        for (to, from) in address.sa_data[2..6].iter_mut().zip(octets) {
            *to = from as libc::c_char;
        }
        r.ifr_ifru.ifru_addr = address;
        self.ioctl(number, &mut r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_refuses_are_refused() {
        for good in ["tp0", "eth0.100", "a", "fifteen-bytes-x"] {
            assert!(valid_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "a:1", "sixteen-bytes-xx", "tab\t"] {
            assert!(!valid_name(bad), "{bad}");
        }
    }

    #[test]
    fn the_loopback_interface_is_found_by_name_and_index() {
        let control = Control::new().unwrap();
        let index = control.index("lo").unwrap();
        assert_eq!(control.hardware_type("lo").unwrap(), libc::ARPHRD_LOOPBACK);
        assert_ne!(control.link_state(index), LinkState::Absent);
        assert_eq!(control.link_state(i32::MAX), LinkState::Absent);
        assert_eq!(control.index("no-such-if").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
