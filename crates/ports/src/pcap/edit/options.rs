//! The options of edits: `smac`, `dmac`, `vlan`, `src`, `dst`, `sport`, `dport`.

use super::{Edits, PortMap, PrefixMap, VlanEdit};
use crate::uri::Options;
use towpath_packet::port::PortError;
use towpath_wire::ethernet::{Mac, parse_mac};

const PREFIX_RULE: &str = "must be OLD/LEN:NEW with two addresses of one version, such as 10.0.0.0/8:172.16.0.0; \
                           several are joined by +";
const PORT_RULE: &str = "must be OLD:NEW with two ports from 0 to 65535, such as 80:8080; several are joined by +";

impl Edits {
    /// Takes the options of all edits.
    pub(crate) fn of(o: &mut Options) -> Result<Edits, PortError> {
        let vlan = match o.text("vlan") {
            None => None,
            Some(text) if text == "strip" => Some(VlanEdit::Strip),
            Some(text) => match text.parse() {
                Ok(id @ 1..=4094) => Some(VlanEdit::Set(id)),
                _ => return Err(o.error("vlan", text, "must be strip, or an ID from 1 to 4094")),
            },
        };
        Ok(Edits {
            smac: mac(o, "smac")?,
            dmac: mac(o, "dmac")?,
            vlan,
            src: list(o, "src", PrefixMap::parse, PREFIX_RULE)?,
            dst: list(o, "dst", PrefixMap::parse, PREFIX_RULE)?,
            sport: list(o, "sport", port_map, PORT_RULE)?,
            dport: list(o, "dport", port_map, PORT_RULE)?,
        })
    }
}

fn mac(o: &mut Options, name: &'static str) -> Result<Option<Mac>, PortError> {
    let Some(text) = o.text(name) else { return Ok(None) };
    match parse_mac(&text) {
        Some(mac) => Ok(Some(mac)),
        None => Err(o.error(name, text, "must be six bytes such as 02:00:00:00:00:01")),
    }
}

fn port_map(text: &str) -> Option<PortMap> {
    let (old, new) = text.split_once(':')?;
    Some(PortMap { old: old.parse().ok()?, new: new.parse().ok()? })
}

/// Items that are joined by `+`.
fn list<T>(
    o: &mut Options,
    name: &'static str,
    item: impl Fn(&str) -> Option<T>,
    rule: &str,
) -> Result<Vec<T>, PortError> {
    let Some(text) = o.text(name) else { return Ok(Vec::new()) };
    text.split('+').map(item).collect::<Option<_>>().ok_or_else(|| o.error(name, text, rule))
}
