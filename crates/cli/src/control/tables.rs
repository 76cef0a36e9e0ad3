//! Routes and neighbours of routers, as requests and answers have them.
//!
//! An answer has a bounded number of lines: those of a table that match, first in its order. The
//! table is walked once, beside the packets.

use super::Service;
use crate::args::Subnet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use towpath::ports::kind::did_you_mean;
use towpath::wire::ethernet::{Mac, MacText, parse_mac};
use towpath::{RouterControl, RouterRoute};

/// Most lines of an answer.
pub(crate) const MOST: usize = 100_000;

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Target {
    /// The routes that lead to it; the neighbour.
    Address(IpAddr),
    /// The routes and neighbours in it.
    Prefix(Subnet),
    /// The default routes.
    Default,
    /// The neighbours of this Ethernet address.
    Mac(Mac),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let rule = "must be an address, a prefix such as 10.0.0.0/8, 'default', or a MAC address";
        match text {
            "default" => Ok(Target::Default),
            _ if text.contains('/') => text.parse().map(Target::Prefix),
            _ => text
                .parse()
                .map(Target::Address)
                .ok()
                .or_else(|| parse_mac(text).map(Target::Mac))
                .ok_or(rule.to_owned()),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Target, String> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        match target {
            Target::Address(address) => address.to_string(),
            Target::Prefix(Subnet { address, len }) => format!("{address}/{len}"),
            Target::Default => "default".to_owned(),
            Target::Mac(mac) => MacText(mac).to_string(),
        }
    }
}

/// Which lines of a table.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Query {
    /// The unit of `run`; all routers without one.
    pub(crate) unit: Option<String>,
    /// The port.
    pub(crate) port: Option<String>,
    pub(crate) to: Option<Target>,
    /// Most lines; [`MOST`] without it.
    pub(crate) limit: Option<usize>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RouteLine {
    pub(crate) unit: String,
    /// With its length.
    pub(crate) prefix: String,
    /// As `ip route` names it: `unicast`, `local`, `blackhole`, …
    pub(crate) action: String,
    pub(crate) hops: Vec<HopLine>,
    pub(crate) mtu: Option<u32>,
    /// `connected`, `configured` or `kernel`.
    pub(crate) source: String,
}

/// One way of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HopLine {
    /// The next hop; null: the destination is on the link.
    pub(crate) via: Option<IpAddr>,
    pub(crate) port: String,
    pub(crate) weight: u32,
}

/// Routes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Routes {
    /// How many match.
    pub(crate) matching: usize,
    pub(crate) routes: Vec<RouteLine>,
}

/// A neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NeighbourLine {
    pub(crate) unit: String,
    pub(crate) address: IpAddr,
    pub(crate) port: String,
    /// Null while it is asked for.
    pub(crate) mac: Option<String>,
    /// As `ip neigh` names it.
    pub(crate) state: String,
}

/// Neighbours.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Neighbours {
    /// How many match.
    pub(crate) matching: usize,
    pub(crate) neighbours: Vec<NeighbourLine>,
}

/// The first lines of a table, in the order of their keys.
struct First<K, L> {
    lines: BTreeMap<K, L>,
    limit: usize,
    matching: usize,
}

impl<K: Ord, L> First<K, L> {
    fn new(query: &Query) -> First<K, L> {
        let limit = query.limit.unwrap_or(MOST).min(MOST);
        First { lines: BTreeMap::new(), limit, matching: 0 }
    }

    fn add(&mut self, key: K, line: impl FnOnce() -> L) {
        self.matching += 1;
        let is_behind = || self.lines.last_key_value().is_none_or(|(last, _)| *last < key);
        if self.lines.len() == self.limit {
            if is_behind() {
                return;
            }
            self.lines.pop_last();
        }
        self.lines.insert(key, line());
    }
}

/// The unit of the name; all without one.
///
/// # Errors
/// The units that there are.
pub(super) fn units<'a, T>(
    all: &'a [(String, T)],
    unit: Option<&str>,
    what: &str,
) -> Result<Vec<&'a (String, T)>, String> {
    let found: Vec<_> = all.iter().filter(|(name, _)| unit.is_none_or(|unit| unit == name)).collect();
    match unit {
        _ if all.is_empty() => Err(format!("no {what} runs here (towpath {what})")),
        Some(unit) if found.is_empty() => {
            let names = || all.iter().map(|(name, _)| name.as_str());
            let meant = did_you_mean(unit, names());
            Err(format!("--unit {unit}: must be a {what}: {}{meant}", names().collect::<Vec<_>>().join(", ")))
        }
        _ => Ok(found),
    }
}

/// A router with its name, and the names of its ports by their numbers.
type RouterOf = (String, RouterControl, BTreeMap<u16, String>);

/// The routers that are asked for.
fn routers(query: &Query, service: &Service) -> Result<Vec<RouterOf>, String> {
    let all = (service.observers)();
    let routers: Vec<_> =
        all.into_iter().filter_map(|(name, observer)| Some((name, observer.router()?.clone()))).collect();
    let found = units(&routers, query.unit.as_deref(), "router")?;
    let with_ports = |(name, router): &(String, RouterControl)| {
        let ports = router.ports().into_iter().map(|port| (port.number, port.interface.name)).collect();
        (name.clone(), router.clone(), ports)
    };
    let found: Vec<_> = found.into_iter().map(with_ports).collect();
    if let Some(port) = &query.port {
        let known = || found.iter().flat_map(|(_, _, ports): &RouterOf| ports.values());
        if !known().any(|name| name == port) {
            let meant = did_you_mean(port, known().map(String::as_str));
            let known: Vec<_> = known().map(String::as_str).collect();
            return Err(format!("--port {port}: must be a port of the router: {}{meant}", known.join(", ")));
        }
    }
    Ok(found)
}

fn is_to(route: &RouterRoute, to: Target) -> bool {
    let subnet = Subnet { address: route.prefix, len: route.len };
    match to {
        Target::Address(address) => subnet.contains(address),
        Target::Prefix(prefix) => prefix.len <= route.len && prefix.contains(route.prefix),
        Target::Default => route.len == 0,
        Target::Mac(_) => false,
    }
}

/// The routes of routers: in the order of their prefixes, or those to an address with the one that
/// is used first.
///
/// # Errors
/// No router runs, or a value breaks a rule.
pub(super) fn routes(query: &Query, service: &Service) -> Result<Routes, String> {
    if let Some(Target::Mac(mac)) = query.to {
        return Err(format!("{}: a route has no MAC address: towpath neigh", MacText(mac)));
    }
    let to_address = matches!(query.to, Some(Target::Address(_)));
    let mut first = First::new(query);
    for (unit, (name, router, ports)) in routers(query, service)?.into_iter().enumerate() {
        let port = |number: u16| ports.get(&number).map_or("", String::as_str);
        let mut number = 0_usize;
        router.each_route(|route, source| {
            number += 1;
            let is_at = |wanted: &String| route.hops.iter().any(|hop| port(hop.port) == wanted);
            if query.to.is_some_and(|to| !is_to(route, to)) || !query.port.as_ref().is_none_or(is_at) {
                return;
            }
            let length = if to_address { 128 - route.len } else { 0 };
            let prefix = Subnet { address: route.prefix, len: route.len }.first();
            // Of two to the same prefix the later one is used.
            let key = (unit, length, prefix, route.len, usize::MAX - number);
            first.add(key, || RouteLine {
                unit: name.clone(),
                prefix: format!("{prefix}/{}", route.len),
                action: route.action.name().to_owned(),
                hops: route
                    .hops
                    .iter()
                    .map(|hop| HopLine { via: hop.gateway, port: port(hop.port).to_owned(), weight: hop.weight.max(1) })
                    .collect(),
                mtu: route.mtu,
                source: source.name().to_owned(),
            });
        });
    }
    Ok(Routes { matching: first.matching, routes: first.lines.into_values().collect() })
}

/// The neighbours of routers, by their addresses.
///
/// # Errors
/// No router runs, or a value breaks a rule.
pub(super) fn neighbours(query: &Query, service: &Service) -> Result<Neighbours, String> {
    let mut first = First::new(query);
    for (unit, (name, router, ports)) in routers(query, service)?.into_iter().enumerate() {
        for one in router.neighbours() {
            let port = ports.get(&one.key.port).map_or("", String::as_str);
            let address = one.key.address;
            let is_wanted = match query.to {
                None => true,
                Some(Target::Address(wanted)) => wanted == address,
                Some(Target::Prefix(prefix)) => prefix.contains(address),
                Some(Target::Default) => return Err("default: is a route: towpath route default".to_owned()),
                Some(Target::Mac(mac)) => one.mac == Some(mac),
            };
            if is_wanted && query.port.as_ref().is_none_or(|wanted| wanted == port) {
                first.add((unit, address, one.key.port), || NeighbourLine {
                    unit: name.clone(),
                    address,
                    port: port.to_owned(),
                    mac: one.mac.map(|mac| MacText(mac).to_string()),
                    state: one.state.name().to_owned(),
                });
            }
        }
    }
    Ok(Neighbours { matching: first.matching, neighbours: first.lines.into_values().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_it_is_written_and_what_is_none_is_refused_with_the_rule() {
        for text in ["10.0.0.1", "2001:db8::/32", "default", "02:00:00:00:00:0a"] {
            assert_eq!(String::from(text.parse::<Target>().unwrap()), text);
        }
        for (text, part) in
            [("10.0.0.1/33", "with a length"), ("tap:a", "a prefix such as"), ("2:0:0:0:0:0:1", "MAC"), ("", "must be")]
        {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_lines_are_kept_in_order_and_all_that_match_are_counted() {
        let mut first = First::new(&Query { limit: Some(3), ..Query::default() });
        for key in [7, 3, 9, 1, 8, 2] {
            first.add(key, || key * 10);
        }
        assert_eq!((first.matching, first.lines.into_values().collect::<Vec<_>>()), (6, vec![10, 20, 30]));
        let mut none = First::new(&Query { limit: Some(0), ..Query::default() });
        none.add(1, || 1);
        assert_eq!((none.matching, none.lines.len()), (1, 0));
    }
}
