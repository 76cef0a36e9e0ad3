//! Errors: why a device can't be opened or changed, and how to fix it.

use std::{error, fmt, io};

/// A step that failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a step.
    Os {
        /// The device, as far as it has a name.
        device: String,
        /// The call, or what it was for.
        step: String,
        /// The kernel's answer.
        source: io::Error,
        /// What helps.
        hint: Option<String>,
    },
    /// A descriptor is none of a usable device.
    Descriptor {
        /// What is wrong with it.
        what: String,
        /// What helps.
        hint: String,
    },
    /// A value breaks a rule.
    Option {
        /// The setting.
        option: &'static str,
        /// Its value.
        value: String,
        /// The rule.
        rule: &'static str,
    },
}

impl Error {
    pub(crate) fn os(device: &str, step: impl Into<String>, source: io::Error, hint: Option<String>) -> Error {
        Error::Os { device: device.to_owned(), step: step.into(), source, hint }
    }

    pub(crate) fn descriptor(what: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Descriptor { what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { device, step, source, hint } => {
                write!(f, "{device}: {step}: {source}")?;
                hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
            }
            Error::Descriptor { what, hint } => write!(f, "{what} ({hint})"),
            Error::Option { option, value, rule } => write!(f, "{option}={value} {rule}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Os { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
