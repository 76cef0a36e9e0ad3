//! A request of the control socket, and its answer.

use super::Service;
use crate::state::State;
use serde::{Deserialize, Serialize};
use towpath::packet::port::{PortControl, SettingValue};

/// Longest request in bytes.
pub(crate) const LONGEST: u64 = 1 << 16;
/// Longest answer in bytes that a client reads: the state of many ports.
pub(crate) const LONGEST_ANSWER: u64 = 1 << 26;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Settings of ports, and changes of them.
    Settings(Change),
    /// The state of all that runs.
    State,
}

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

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The settings as they are now.
    Settings(Vec<Line>),
    /// The state as it is now.
    State(Box<State>),
    /// Why nothing was done.
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

/// The line that answers a request: the first line of `request`.
pub(crate) fn answer(request: &[u8], service: &Service) -> serde_json::Result<Vec<u8>> {
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let answer = match serde_json::from_slice(line) {
        _ if line.len() as u64 == LONGEST => Err(format!("a request of {LONGEST} bytes or more")),
        Ok(Request::Settings(change)) => {
            tune(&change, &service.controls().iter().collect::<Vec<_>>()).map(Answer::Settings)
        }
        Ok(Request::State) => Ok(Answer::State(Box::new(service.state(true)))),
        Err(error) => Err(format!("not a request: {error}")),
    };
    let mut line = serde_json::to_vec(&answer.unwrap_or_else(Answer::Error))?;
    line.push(b'\n');
    Ok(line)
}

/// The ports by name.
type Ports<'a> = [(&'a str, &'a dyn PortControl)];

fn tune(change: &Change, ports: &Ports<'_>) -> Result<Vec<Line>, String> {
    if let Some(name) = &change.port {
        let tunable = || ports.iter().filter(|(_, control)| !control.settings().is_empty());
        let (_, port) = tunable().find(|(port, _)| port == name).ok_or_else(|| {
            let known: Vec<_> = tunable().map(|(name, _)| *name).collect();
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
