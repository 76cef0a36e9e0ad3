//! What can be changed about a port while it runs, and what befell it.

/// A number that can be changed while the port runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as in the port's options.
    pub name: &'static str,
    /// What it is at this moment.
    pub value: u64,
    /// What it is, and in which unit.
    pub what: &'static str,
}

/// Why a setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The port has no setting of that name.
    #[error("{name}: no such setting; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Those that there are.
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

/// A handle to a port's settings and events; it works from any thread, and longer than the port.
pub trait PortControl: Send + Sync {
    /// What can be changed.
    fn settings(&self) -> Vec<Setting>;

    /// What is worth to be known since the port was started, faults that were survived above all: names and numbers, in a
    /// fixed order.
    fn events(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Who used the port since it was started, as far as that is remembered: a line for people each.
    fn session_log(&self) -> Vec<String> {
        Vec::new()
    }

    /// Changes a setting, for good or until the next change.
    ///
    /// # Errors
    /// [`ControlError`]; nothing has changed then.
    fn set(&self, name: &str, value: u64) -> Result<(), ControlError>;
}

impl ControlError {
    /// There is no setting `name` among those of `of`.
    pub fn unknown(name: &str, of: &dyn PortControl) -> ControlError {
        let known: Vec<_> = of.settings().iter().map(|setting| setting.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        ControlError::Unknown { name: name.to_owned(), known }
    }
}
