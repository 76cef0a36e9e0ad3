//! Settings and events of a running port.

/// A number that can be changed while the port runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, as in the port's options.
    pub name: &'static str,
    /// Its value now.
    pub value: u64,
    /// Its meaning and unit.
    pub what: &'static str,
}

impl Setting {
    /// A setting with its value and meaning.
    pub fn new(name: &'static str, value: u64, what: &'static str) -> Setting {
        Setting { name, value, what }
    }
}

/// Why a setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The port has no setting of that name.
    #[error("{name}: no such setting; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The settings of the port.
        known: String,
    },
    /// The value breaks a rule.
    #[error("{name}={value}: {rule}")]
    Value {
        /// The setting.
        name: String,
        /// The value.
        value: u64,
        /// The rule that it breaks.
        rule: String,
    },
}

impl ControlError {
    /// The error for a setting `name` that `of` does not have.
    pub fn unknown(name: &str, of: &dyn PortControl) -> ControlError {
        let known: Vec<_> = of.settings().iter().map(|setting| setting.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        ControlError::Unknown { name: name.to_owned(), known }
    }
}

/// A handle to a port's settings and events. It works from any thread and may outlive the port.
pub trait PortControl: Send + Sync {
    /// The settings.
    fn settings(&self) -> Vec<Setting>;

    /// Events since the port was started, above all faults that were survived: names and numbers,
    /// in a fixed order.
    fn events(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The sessions of the port's users since it was started, one printable line each. Old lines
    /// may be dropped.
    fn session_log(&self) -> Vec<String> {
        Vec::new()
    }

    /// Changes a setting until the next change.
    ///
    /// # Errors
    /// [`ControlError`]; nothing has changed then.
    fn set(&self, name: &str, value: u64) -> Result<(), ControlError>;
}
