//! Errors of opening and starting a port.

use super::option::ConfigError;
use towpath_bus::{BusError, MapError};
use towpath_packet::PoolError;
use towpath_packet::port::PortError;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option breaks a rule, or the device can't do what it asks for.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The bus, or the device, refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The bus can't protect memory by the policy.
    #[error("{device}: {source}")]
    Map {
        /// The device's name.
        device: String,
        /// Why.
        source: MapError,
    },
}

impl OpenError {
    /// The same as an error of the port with this name.
    pub fn at_port(self, port: &str) -> PortError {
        match self {
            OpenError::Config(ConfigError { option, value, rule }) => {
                PortError::Option { port: port.to_owned(), option: option.to_owned(), value, rule }
            }
            OpenError::Bus(error) => bus_error(port, error),
            OpenError::Map { source, .. } => input(port, source),
        }
    }
}

/// Why a port has no memory that the device reaches.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl StartError {
    /// The same as an error of the port with this name.
    pub(crate) fn at_port(self, port: &str) -> PortError {
        match self {
            StartError::Map(source) => input(port, source),
            StartError::Pool(source) => PortError::Pool { port: port.to_owned(), source },
        }
    }
}

/// An error of the bus as an error of the port.
pub(crate) fn bus_error(port: &str, error: BusError) -> PortError {
    match error {
        BusError::Os { step, source, hint, .. } => PortError::Os { port: port.to_owned(), step, source, hint },
        other => input(port, other),
    }
}

/// An error of a system call as an error of the port.
pub(crate) fn os_error(port: &str, step: &str, source: std::io::Error) -> PortError {
    PortError::Os { port: port.to_owned(), step: step.to_owned(), source, hint: None }
}

/// What stands in the way of the port, in words.
pub(crate) fn input(port: &str, what: impl ToString) -> PortError {
    PortError::Input { port: port.to_owned(), what: what.to_string() }
}
