//! A driver's XDP features by generic netlink, family `netdev`
//! (`Documentation/netlink/specs/netdev.yaml`, since Linux 6.3).

use super::netlink::{Socket, attribute};
use std::io;

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

/// Queries about one device of the namespace in which this was made.
#[derive(Debug)]
pub struct Device {
    generic: Socket,
    family: io::Result<u16>,
    index: i32,
}

impl Device {
    /// The device `index` of the calling thread's namespace.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub fn new(index: i32) -> io::Result<Device> {
        let generic = Socket::new(libc::NETLINK_GENERIC)?;
        let family =
            generic.request(CONTROLLER, &[GET_FAMILY, 1, 0, 0], &[(FAMILY_NAME, b"netdev\0")]).and_then(|answer| {
                let id =
                    attribute(answer.get(4..).unwrap_or_default(), FAMILY_ID).and_then(|v| v.first_chunk().copied());
                id.map(u16::from_ne_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
            });
        Ok(Device { generic, family, index })
    }

    /// The device's features.
    ///
    /// # Errors
    /// `ENOENT` before Linux 6.3; `ENODEV` if no device has the index.
    pub fn features(&self) -> io::Result<Features> {
        let family = *self.family.as_ref().map_err(|e| io::Error::from(e.kind()))?;
        let answer =
            self.generic.request(family, &[DEVICE_GET, 1, 0, 0], &[(device::INDEX, &self.index.to_ne_bytes())])?;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_no_zero_copy() {
        if let Ok(found) = Device::new(1).unwrap().features() {
            assert!(!found.zero_copy());
        }
    }
}
