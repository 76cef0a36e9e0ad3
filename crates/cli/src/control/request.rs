//! A request of the control socket, and its answer.

use super::Service;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use towpath::BridgeControl;
use towpath::engine::bridge::fdb::FdbStats;
use towpath::packet::port::{PortControl, SettingValue};

/// Longest request or answer in bytes.
pub(crate) const LONGEST: u64 = 1 << 16;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Settings of ports, and changes of them.
    Settings(Change),
    /// Addresses of bridges, and changes of them.
    Fdb(Fdb),
}

/// What is to be changed before the addresses are listed, and where the list begins.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Fdb {
    /// The port whose addresses are forgotten.
    pub(crate) flush: Option<String>,
    /// The ageing time in seconds.
    pub(crate) ageing: Option<f64>,
    /// The last address that is known: its bridge, its VLAN, and itself.
    pub(crate) after: Option<(String, u16, String)>,
}

/// A page of addresses.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) bridges: Vec<BridgeStats>,
    pub(crate) addresses: Vec<Address>,
    /// There are more, behind the last one.
    pub(crate) more: bool,
}

/// The counters of a bridge.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BridgeStats {
    pub(crate) name: String,
    pub(crate) entries: u64,
    pub(crate) learned: u64,
    pub(crate) moved: u64,
    pub(crate) refused: u64,
    pub(crate) aged: u64,
    pub(crate) flushed: u64,
    /// In seconds.
    pub(crate) ageing: f64,
}

/// An address that a bridge knows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) bridge: String,
    /// 0 if the bridge ignores VLANs.
    pub(crate) vlan: u16,
    pub(crate) mac: String,
    pub(crate) port: String,
    /// In seconds.
    pub(crate) age: f64,
    pub(crate) r#static: bool,
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
    /// Addresses as they are now.
    Fdb(Addresses),
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
            let controls: Vec<_> = service.controls().iter().collect();
            let ports: Vec<_> = controls.iter().map(|(name, control)| (name.as_str(), &**control)).collect();
            tune(&change, &ports).map(Answer::Settings)
        }
        Ok(Request::Fdb(request)) => addresses(&request, service).map(Answer::Fdb),
        Err(error) => Err(format!("not a request: {error}")),
    };
    let mut line = serde_json::to_vec(&answer.unwrap_or_else(Answer::Error))?;
    line.push(b'\n');
    Ok(line)
}

/// Addresses in an answer, which is shorter than [`LONGEST`].
const PAGE: usize = 200;

fn addresses(request: &Fdb, service: &Service) -> Result<Addresses, String> {
    let all = (service.observers)();
    let bridges: Vec<_> = all.iter().filter_map(|(name, observer)| Some((name.as_str(), observer.bridge()?))).collect();
    if bridges.is_empty() {
        return Err("no bridge runs here (towpath bridge)".into());
    }
    if let Some(port) = &request.flush {
        let has = |bridge: &&(&str, &BridgeControl)| bridge.1.ports().iter().any(|known| known.name == *port);
        let (_, bridge) = bridges.iter().find(has).or(bridges.first()).ok_or("no bridge")?;
        bridge.flush(port).map_err(|error| error.to_string())?;
    }
    if let Some(seconds) = request.ageing {
        let ageing = Duration::try_from_secs_f64(seconds).map_err(|error| format!("ageing={seconds}: {error}"))?;
        bridges.iter().for_each(|(_, bridge)| bridge.set_ageing(ageing));
    }
    let mut answer = Addresses::default();
    let mut is_behind = request.after.is_none();
    for (name, bridge) in bridges {
        let FdbStats { entries, learned, moved, refused, aged, flushed, .. } = bridge.stats();
        let (name, ageing) = (name.to_owned(), bridge.ageing().as_secs_f64());
        for entry in bridge.fdb() {
            let [a, b, c, d, e, f] = entry.mac;
            let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            if !is_behind {
                // Addresses are in order: the last one that the client has may be gone meanwhile.
                let after = request.after.as_ref();
                is_behind =
                    after.is_some_and(|(bridge, vlan, last)| *bridge == name && (*vlan, last) < (entry.vlan, &mac));
                if !is_behind {
                    continue;
                }
            }
            if answer.addresses.len() == PAGE {
                answer.more = true;
                break;
            }
            let (vlan, age) = (entry.vlan, entry.age.as_secs_f64());
            let (bridge, port) = (name.clone(), entry.port);
            answer.addresses.push(Address { bridge, vlan, mac, port, age, r#static: entry.is_static });
        }
        // The addresses of the next bridge follow all of this one.
        is_behind |= request.after.as_ref().is_some_and(|(bridge, ..)| *bridge == name);
        answer.bridges.push(BridgeStats { name, entries, learned, moved, refused, aged, flushed, ageing });
    }
    Ok(answer)
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
