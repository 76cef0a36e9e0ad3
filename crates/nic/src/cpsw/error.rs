//! What keeps the device from being opened or started.

use super::config::ConfigError;
use towpath_bus::tisci::{Range, Refused};
use towpath_bus::{BusError, MapError};
use towpath_packet::PoolError;

/// Why the device could not be opened or started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpswError {
    /// A field of the configuration is out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Firmware has not granted the channels, flows or rings.
    #[error(
        "soc={soc} takes {count} {what} from {start} on, of which firmware grants this host {} from {} on: is it another SoC, or \
         does board configuration give them to another host?",
        .range.count, .range.start
    )]
    NotGranted {
        /// The SoC.
        soc: &'static str,
        /// The resource.
        what: &'static str,
        /// The first one that the driver takes.
        start: u16,
        /// How many it takes.
        count: u16,
        /// The range that was granted.
        range: Range,
    },
    /// The device could not be reached.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Firmware refused.
    #[error(transparent)]
    Firmware(#[from] Refused),
    /// A PHY does not answer.
    #[error(
        "port {port}: the PHY at address {address} of the management bus does not answer: check its address (phys=), or take \
         the link from elsewhere (link=inband, link=fixed)"
    )]
    Phy {
        /// The MAC port.
        port: u8,
        /// The address on the management bus.
        address: u8,
    },
    /// The pool has no cache left.
    #[error(transparent)]
    Pool(#[from] PoolError),
}
