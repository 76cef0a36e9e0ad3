//! Settings of ports, as requests and answers have them.

use serde::{Deserialize, Serialize};
use towpath::packet::port::{PortControl, SettingValue};

/// What is to be changed before the settings are listed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The port; all ports if it is absent.
    pub(crate) port: Option<String>,
    /// The settings to change.
    #[serde(default)]
    pub(crate) set: Vec<(String, Value)>,
}

/// A value: a number, or a text in quotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Number(u64),
    Text(String),
}

impl From<Value> for SettingValue {
    fn from(value: Value) -> SettingValue {
        match value {
            Value::Number(n) => n.into(),
            Value::Text(text) => text.into(),
        }
    }
}

impl From<SettingValue> for Value {
    fn from(value: SettingValue) -> Value {
        match value {
            SettingValue::Number(n) => Value::Number(n),
            SettingValue::Text(text) => Value::Text(text),
        }
    }
}

/// A setting of a port.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) port: String,
    pub(crate) name: String,
    pub(crate) value: Value,
    pub(crate) what: String,
}

/// The ports by name.
pub(crate) type Ports<'a> = [(&'a str, &'a dyn PortControl)];

/// Changes settings, and lists those of the port, or of all ports.
///
/// # Errors
/// The port, the setting and the rule that it breaks; what was changed before stays so.
pub(crate) fn set(change: &Change, ports: &Ports<'_>) -> Result<Vec<Line>, String> {
    if let Some(name) = &change.port {
        let with_settings = || ports.iter().filter(|(_, control)| !control.settings().is_empty());
        let (_, port) = with_settings().find(|(port, _)| port == name).ok_or_else(|| {
            let known: Vec<_> = with_settings().map(|(name, _)| *name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("port '{name}' has nothing that can be changed; ports that have: {known}")
        })?;
        for (setting, value) in &change.set {
            port.set(setting, &value.clone().into()).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    let wanted = ports.iter().filter(|(name, _)| change.port.as_deref().is_none_or(|port| port == *name));
    let lines = wanted.flat_map(|(port, control)| {
        control.settings().into_iter().map(|setting| Line {
            port: (*port).to_owned(),
            name: setting.name.to_owned(),
            value: setting.value.into(),
            what: setting.what.to_owned(),
        })
    });
    Ok(lines.collect())
}
