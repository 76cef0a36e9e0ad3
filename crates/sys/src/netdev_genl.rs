//! A driver's XDP features by generic netlink, family `netdev`
//! (`Documentation/netlink/specs/netdev.yaml`, since Linux 6.3), and its counters by
//! `rtnetlink(7)`.
//!
//! ```text
//!   nlmsghdr 16 │ genlmsghdr 4 or ifinfomsg 16 │ attribute: length u16, type u16, value, padding to 4 │ …
//! ```

use super::{check, check_len};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// XDP features of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// `NETDEV_XDP_ACT_*`.
    xdp_features: u64,
    /// `NETDEV_XSK_FLAGS_*`.
    xsk_features: u64,
    /// Most fragments of a packet in zero-copy mode.
    pub zc_max_segs: u32,
}

impl Features {
    /// The driver runs XDP programs (`NETDEV_XDP_ACT_BASIC`).
    pub fn native(self) -> bool {
        self.xdp_features & 1 != 0
    }

    /// The driver transmits frames that are redirected to it (`NETDEV_XDP_ACT_NDO_XMIT`).
    pub fn ndo_xmit(self) -> bool {
        self.xdp_features & 4 != 0
    }

    /// AF_XDP sockets work without copying (`NETDEV_XDP_ACT_XSK_ZEROCOPY`).
    pub fn zero_copy(self) -> bool {
        self.xdp_features & 8 != 0
    }

    /// TX metadata can request a timestamp (`NETDEV_XSK_FLAGS_TX_TIMESTAMP`).
    pub fn tx_timestamp(self) -> bool {
        self.xsk_features & 1 != 0
    }

    /// TX metadata can request a checksum (`NETDEV_XSK_FLAGS_TX_CHECKSUM`).
    pub fn tx_checksum(self) -> bool {
        self.xsk_features & 2 != 0
    }
}

const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `GENL_ID_CTRL`.
const CONTROLLER: u16 = 0x10;
/// `NETDEV_CMD_DEV_GET`.
const DEVICE_GET: u8 = 1;
/// Attributes of a device.
mod device {
    pub(super) const INDEX: u16 = 1;
    pub(super) const FEATURES: u16 = 3;
    pub(super) const ZC_MAX_SEGS: u16 = 4;
    pub(super) const XSK_FEATURES: u16 = 6;
}

/// Two counters of `struct rtnl_link_stats64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Packets transmitted.
    pub tx_packets: u64,
    /// Packets that were dropped on their way out.
    pub tx_dropped: u64,
}

/// Queries about one device of the namespace in which this was made.
#[derive(Debug)]
pub struct Device {
    generic: OwnedFd,
    route: OwnedFd,
    family: io::Result<u16>,
    index: i32,
}

fn netlink(protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Device {
    /// The device `index` of the calling thread's namespace.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub fn new(index: i32) -> io::Result<Device> {
        let (generic, route) = (netlink(libc::NETLINK_GENERIC)?, netlink(libc::NETLINK_ROUTE)?);
        let family =
            request(&generic, CONTROLLER, &[GET_FAMILY, 1, 0, 0], FAMILY_NAME, b"netdev\0").and_then(|answer| {
                let id =
                    attribute(answer.get(4..).unwrap_or_default(), FAMILY_ID).and_then(|v| v.first_chunk().copied());
                id.map(u16::from_ne_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
            });
        Ok(Device { generic, route, family, index })
    }

    /// The device's features.
    ///
    /// # Errors
    /// `ENOENT` before Linux 6.3; `ENODEV` if no device has the index.
    pub fn features(&self) -> io::Result<Features> {
        let family = *self.family.as_ref().map_err(|e| io::Error::from(e.kind()))?;
        let answer = request(&self.generic, family, &[DEVICE_GET, 1, 0, 0], device::INDEX, &self.index.to_ne_bytes())?;
        let list = answer.get(4..).unwrap_or_default();
        let number = |kind| match attribute(list, kind) {
            Some(&[a, b, c, d]) => u64::from(u32::from_ne_bytes([a, b, c, d])),
            Some(value) => value.first_chunk().map_or(0, |&bytes| u64::from_ne_bytes(bytes)),
            None => 0,
        };
        Ok(Features {
            xdp_features: number(device::FEATURES),
            xsk_features: number(device::XSK_FEATURES),
            zc_max_segs: number(device::ZC_MAX_SEGS) as u32,
        })
    }

    /// The device's counters.
    ///
    /// # Errors
    /// `ENODEV` if no device has the index; `InvalidData` for a short answer.
    pub fn statistics(&self) -> io::Result<Statistics> {
        /// Its value 0 sets no filter: `RTEXT_FILTER_SKIP_STATS` would leave the counters out.
        const IFLA_EXT_MASK: u16 = 29;
        const IFLA_STATS64: u16 = 23;
        let mut ifinfomsg = [0u8; 16];
        ifinfomsg[4..8].copy_from_slice(&self.index.to_ne_bytes());
        let answer = request(&self.route, libc::RTM_GETLINK, &ifinfomsg, IFLA_EXT_MASK, &0u32.to_ne_bytes())?;
        let statistics = attribute(answer.get(16..).unwrap_or_default(), IFLA_STATS64).unwrap_or_default();
        let number = |at: usize| {
            let bytes = statistics.get(8 * at..).and_then(|b| b.first_chunk().copied());
            bytes.map(u64::from_ne_bytes).ok_or(io::ErrorKind::InvalidData)
        };
        Ok(Statistics { tx_packets: number(1)?, tx_dropped: number(7)? })
    }
}

/// Sends a request with one attribute behind the family's own header; returns the bytes behind the
/// answer's `nlmsghdr`.
fn request(socket: &OwnedFd, family: u16, header: &[u8], kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let padded = value.len().next_multiple_of(4);
    let len = 16 + header.len() + 4 + padded;
    let mut message = Vec::with_capacity(len);
    message.extend_from_slice(&(len as u32).to_ne_bytes());
    message.extend_from_slice(&family.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(header);
    message.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(len, 0);
    let fd = socket.as_raw_fd();
    // SAFETY: address and length describe the message, which the kernel only reads.
    check_len(unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), 0) })?;
    let mut answer = vec![0u8; 16384];
    // SAFETY: address and length describe the buffer, which is borrowed exclusively.
    let n = check_len(unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) })?;
    answer.truncate(n);
    let kind = answer.get(4..6).and_then(|b| b.first_chunk::<2>().copied()).map(u16::from_ne_bytes);
    if kind == Some(libc::NLMSG_ERROR as u16) {
        let code = answer.get(16..20).and_then(|b| b.first_chunk::<4>().copied()).map_or(0, i32::from_ne_bytes);
        return Err(io::Error::from_raw_os_error(-code));
    }
    Ok(answer.split_off(16.min(n)))
}

/// The value of the first attribute of a type.
fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let &[l0, l1, k0, k1, ..] = list else { return None };
        let (len, kind) = (usize::from(u16::from_ne_bytes([l0, l1])), u16::from_ne_bytes([k0, k1]) & 0x3fff);
        let value = list.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        list = list.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_is_found_by_its_type() {
        let list = [6, 0, 1, 0, 7, 8, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&list, 1), Some(&[7, 8][..]));
        assert_eq!(attribute(&list, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&list, 3), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_read_to_an_end(list: Vec<u8>, kind: u16) {
            attribute(&list, kind);
        }
    }

    #[test]
    fn the_loopback_has_no_zero_copy() {
        if let Ok(found) = Device::new(1).unwrap().features() {
            assert!(!found.zero_copy());
        }
    }
}
