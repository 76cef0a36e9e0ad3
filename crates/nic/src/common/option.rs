//! Options of drivers, and the rules that their values break.

use std::ops::RangeInclusive;

/// An option's value breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{option}={value}: {rule}")]
pub struct ConfigError {
    /// The option.
    pub option: &'static str,
    /// Its value.
    pub value: String,
    /// The rule that it breaks.
    pub rule: String,
}

/// Checks a number against its range.
pub(crate) fn within(option: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let rule = format!("must be from {} to {}", range.start(), range.end());
    Err(ConfigError { option, value: value.to_string(), rule })
}
