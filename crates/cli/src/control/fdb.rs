//! Addresses of bridges, as requests and answers have them.

use super::Service;
use super::tables::units;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use towpath::BridgeControl;
use towpath::engine::bridge::fdb::FdbStats;
use towpath::ports::kind::did_you_mean;
use towpath::wire::ethernet::{MacText, parse_mac};

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
    /// The bridge; all without one.
    pub(crate) unit: Option<String>,
    /// Addresses behind this port alone.
    pub(crate) port: Option<String>,
    /// Addresses in this VLAN alone.
    pub(crate) vlan: Option<u16>,
    /// This address alone.
    pub(crate) mac: Option<String>,
    /// Most addresses; [`PAGE`] at most.
    pub(crate) limit: Option<usize>,
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

/// An entry of a bridge's forwarding database.
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

/// Addresses in an answer: the table is copied and sorted for each, and it is shorter than
/// [`LONGEST_ANSWER`](super::request::LONGEST_ANSWER).
const PAGE: usize = 10_000;

/// Changes what is asked for, and lists a page of addresses.
///
/// # Errors
/// No bridge runs, or a value breaks a rule.
pub(super) fn addresses(request: &Fdb, service: &Service) -> Result<Addresses, String> {
    let all = (service.observers)();
    let all: Vec<_> = all.into_iter().filter_map(|(name, one)| Some((name, one.bridge()?.clone()))).collect();
    let bridges: Vec<_> = units(&all, request.unit.as_deref(), "bridge")?;
    let wanted =
        request.mac.as_deref().map(|text| parse_mac(text).ok_or_else(|| format!("{text}: must be a MAC address")));
    let wanted = wanted.transpose()?;
    let page = request.limit.unwrap_or(PAGE).min(PAGE);
    if let Some(port) = &request.port {
        check_port(port, &bridges)?;
    }
    if let Some(port) = &request.flush {
        let has = |(_, bridge): &&&(String, BridgeControl)| bridge.ports().iter().any(|known| known.name == *port);
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
        let (name, ageing) = (name.clone(), bridge.ageing().as_secs_f64());
        for entry in bridge.fdb() {
            let is_other = request.port.as_ref().is_some_and(|port| *port != entry.port)
                || request.vlan.is_some_and(|vlan| vlan != entry.vlan)
                || wanted.is_some_and(|wanted| wanted != entry.mac);
            if is_other {
                continue;
            }
            let mac = MacText(entry.mac).to_string();
            if !is_behind {
                // Addresses are in order: the last one that the client has may be gone meanwhile.
                let after = request.after.as_ref();
                is_behind =
                    after.is_some_and(|(bridge, vlan, last)| *bridge == name && (*vlan, last) < (entry.vlan, &mac));
                if !is_behind {
                    continue;
                }
            }
            if answer.addresses.len() == page {
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

/// Whether a bridge has the port.
fn check_port(port: &str, bridges: &[&(String, BridgeControl)]) -> Result<(), String> {
    let known: Vec<_> = bridges.iter().flat_map(|(_, bridge)| bridge.ports()).map(|known| known.name).collect();
    if known.iter().any(|name| name == port) {
        return Ok(());
    }
    let meant = did_you_mean(port, known.iter().map(String::as_str));
    Err(format!("--port {port}: must be a port of the bridge: {}{meant}", known.join(", ")))
}
