//! A request of the control socket, and its answer.

use super::Service;
use serde::{Deserialize, Serialize};
use towpath::packet::port::{PortControl, SettingValue};

/// Longest request or answer in bytes.
pub(crate) const LONGEST: u64 = 1 << 16;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Settings of ports, and changes of them.
    Settings(Change),
    /// The names of the ports.
    Ports,
    /// A tee: blocks of pcapng follow the answer.
    Tee(TeeRequest),
}

/// What a tee copies.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TeeRequest {
    /// The ports; all if there is none.
    #[serde(default)]
    pub(crate) ports: Vec<String>,
    /// As [`TeeOptions`](towpath::tee::TeeOptions) reads them.
    #[serde(default)]
    pub(crate) options: String,
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
    /// The names of the ports.
    Ports(Vec<String>),
    /// The ports of the tee, whose blocks follow.
    Tee(Vec<String>),
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

/// Reads a request: the first line of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Result<Request, String> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.len() as u64 == LONGEST {
        return Err(format!("a request of {LONGEST} bytes or more"));
    }
    serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))
}

/// The line that answers a request.
pub(crate) fn answer(request: Result<Request, String>, service: &Service) -> serde_json::Result<Vec<u8>> {
    let answer = request.and_then(|request| match request {
        Request::Settings(change) => {
            tune(&change, &service.controls().iter().collect::<Vec<_>>()).map(Answer::Settings)
        }
        Request::Ports => Ok(Answer::Ports(service.port_names())),
        // The connection becomes its stream; see `control::tees`.
        Request::Tee(_) => Err("a tee takes the whole connection".to_owned()),
    });
    line(&answer.unwrap_or_else(Answer::Error))
}

/// An answer as a line.
pub(crate) fn line(answer: &Answer) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(answer)?;
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
