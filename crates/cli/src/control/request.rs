//! A request of the control socket, and its answer.

use serde::{Deserialize, Serialize};
use towpath::packet::port::{PortControl, SettingValue};

/// Longest request or answer in bytes.
pub(crate) const LONGEST: u64 = 1 << 16;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
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

/// The settings as they are now, or why they were not changed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    #[serde(rename = "settings")]
    Settings(Vec<Line>),
    #[serde(rename = "error")]
    Error(String),
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
type Ports<'a> = [(&'a str, &'a dyn PortControl)];

/// The line that answers a request: the first line of `request`.
pub(crate) fn answer(request: &[u8], ports: &Ports<'_>) -> serde_json::Result<Vec<u8>> {
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let answer = match serde_json::from_slice::<Request>(line) {
        _ if line.len() as u64 == LONGEST => Answer::Error(format!("a request of {LONGEST} bytes or more")),
        Ok(request) => tune(&request, ports).map_or_else(Answer::Error, Answer::Settings),
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    Ok(line)
}

fn tune(request: &Request, ports: &Ports<'_>) -> Result<Vec<Line>, String> {
    if let Some(name) = &request.port {
        let tunable = || ports.iter().filter(|(_, control)| !control.settings().is_empty());
        let (_, port) = tunable().find(|(port, _)| port == name).ok_or_else(|| {
            let known: Vec<_> = tunable().map(|(name, _)| *name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("port '{name}' has nothing that can be changed; ports that have: {known}")
        })?;
        for (setting, value) in &request.set {
            port.set(setting, &value.clone().into()).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    let wanted = ports.iter().filter(|(name, _)| request.port.as_deref().is_none_or(|port| port == *name));
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
