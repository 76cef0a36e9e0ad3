//! The plan of a reload: the difference of two files.
//!
//! | what differs | what happens |
//! |---|---|
//! | nothing | nothing |
//! | rules; routes of a router; ageing of a bridge | they are replaced while packets move |
//! | ports of a bridge or a router | they are detached and attached; the others go on |
//! | anything else of a unit | the unit is stopped and started anew |
//!
//! Both ends of an in-memory pair are opened anew if one of them is, and so are all ports of a
//! model of a switch.

use crate::args::Command;
use crate::bridge;
use crate::file::{Kind, Port, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// What happens to a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Keep,
    Live(Live),
    Restart,
}

/// What is changed while a unit runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// Names of the options with other values.
    pub(super) options: BTreeSet<String>,
    /// Ports of the earlier file.
    pub(super) detach: Vec<Port>,
    /// Ports of the new file.
    pub(super) attach: Vec<Port>,
}

impl Live {
    /// Whether routes of the file may name a port that was opened anew, which lost them.
    pub(super) fn moves_routes(&self, unit: &Unit) -> bool {
        let has_own = unit.options.contains_key("route") && !unit.options.contains_key("mirror");
        has_own && !self.attach.is_empty() && !self.options.contains("route")
    }
}

impl Kind {
    /// Options whose values are replaced while packets move.
    fn live(self) -> &'static [&'static str] {
        match self {
            Kind::Pair => &["rule", "lane-rule"],
            Kind::Bridge => &["rule", "ageing"],
            Kind::Router => &["rule", "route"],
        }
    }

    /// Whether ports come and go while it runs.
    fn has_live_ports(self) -> bool {
        self != Kind::Pair
    }
}

/// Whether a bridge is VLAN-aware.
fn knows_vlans(unit: &Unit) -> bool {
    let Command::Bridge(args) = &*unit.command else { return false };
    bridge::plan_of(args, &unit.named()).is_ok_and(|(bridge, _)| bridge.vlans)
}

/// The change from one unit to another, without regard to the others.
fn change(from: &Unit, to: &Unit) -> Change {
    if from.kind != to.kind {
        return Change::Restart;
    }
    let keys: BTreeSet<_> = from.options.keys().chain(to.options.keys()).collect();
    let differs = |key: &&&String| from.options.get(**key) != to.options.get(**key);
    let options: BTreeSet<_> = keys.iter().filter(differs).map(|key| (*key).clone()).collect();
    let has_lanes = to.options.contains_key("lanes");
    let is_live = |key: &String| to.kind.live().contains(&key.as_str()) && (has_lanes || key != "lane-rule");
    let not_in = |ports: &[Port], others: &[Port]| {
        ports.iter().filter(|port| !others.contains(port)).cloned().collect::<Vec<_>>()
    };
    let (detach, attach) = (not_in(&from.ports, &to.ports), not_in(&to.ports, &from.ports));
    let same_ports = detach.is_empty() && attach.is_empty();
    if options.is_empty() && same_ports {
        Change::Keep
    } else if options.iter().all(is_live)
        && (same_ports || to.kind.has_live_ports())
        && knows_vlans(from) == knows_vlans(to)
    {
        Change::Live(Live { options, detach, attach })
    } else {
        Change::Restart
    }
}

/// The changes of all units that run and that the file has. `anew`: those that must be started
/// anew.
pub(super) fn changes(
    from: &BTreeMap<String, Unit>,
    to: &BTreeMap<String, Unit>,
    anew: &BTreeSet<String>,
) -> BTreeMap<String, Change> {
    let one = |(name, unit): (&String, &Unit)| {
        let earlier = from.get(name)?;
        Some((name.clone(), if anew.contains(name) { Change::Restart } else { change(earlier, unit) }))
    };
    let mut changes: BTreeMap<_, _> = to.iter().filter_map(one).collect();
    loop {
        let touched = touched(from, to, &changes);
        let before = changes.clone();
        for (name, change) in &mut changes {
            let Some(unit) = to.get(name) else { continue };
            let linked = |port: &&Port| port.link().is_some_and(|link| touched.contains(&link));
            let ports: Vec<_> = unit.ports.iter().filter(linked).cloned().collect();
            if ports.is_empty() || *change == Change::Restart {
                continue;
            }
            if !unit.kind.has_live_ports() {
                *change = Change::Restart;
                continue;
            }
            let mut live = if let Change::Live(live) = change { std::mem::take(live) } else { Live::default() };
            for port in ports {
                if !live.attach.contains(&port) {
                    // An end that stays as it is was there before.
                    live.detach.push(port.clone());
                    live.attach.push(port);
                }
            }
            *change = Change::Live(live);
        }
        if changes == before {
            return changes;
        }
    }
}

/// The links of which an end is opened anew or is no longer there.
fn touched(
    from: &BTreeMap<String, Unit>,
    to: &BTreeMap<String, Unit>,
    changes: &BTreeMap<String, Change>,
) -> BTreeSet<String> {
    let mut ports = Vec::<&Port>::new();
    for (name, unit) in from {
        match changes.get(name) {
            None | Some(Change::Restart) => ports.extend(&unit.ports),
            Some(Change::Live(live)) => ports.extend(&live.detach),
            Some(Change::Keep) => {}
        }
    }
    for (name, unit) in to {
        match changes.get(name) {
            None | Some(Change::Restart) => ports.extend(&unit.ports),
            Some(Change::Live(live)) => ports.extend(&live.attach),
            Some(Change::Keep) => {}
        }
    }
    ports.into_iter().filter_map(Port::link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::File;

    fn units(text: &str) -> BTreeMap<String, Unit> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file.toml");
        std::fs::write(&path, text).unwrap();
        File::read(&path).unwrap().units
    }

    /// What changes, by unit: `=`, `!` for a new start, or what is changed while it runs.
    fn planned(from: &str, to: &str) -> Vec<String> {
        let shown = |(name, change): (&String, &Change)| match change {
            Change::Keep => format!("{name} ="),
            Change::Restart => format!("{name} !"),
            Change::Live(Live { options, detach, attach }) => {
                let keys =
                    |ports: &[Port]| ports.iter().map(|port| port.key().to_owned()).collect::<Vec<_>>().join(" ");
                let options = options.iter().cloned().collect::<Vec<_>>().join(" ");
                format!("{name} {options} -{} +{}", keys(detach), keys(attach))
            }
        };
        changes(&units(from), &units(to), &BTreeSet::new()).iter().map(shown).collect()
    }

    const LAN: &str = "[bridge.lan.ports]\na = 'tap:a'\nb = 'tap:b'\nup = 'veth:x'\n";
    const EDGE: &str = "[router.edge.ports]\nlan = { port = 'veth:x', address = '10.0.0.1/24' }\n";
    const PAIR: &str = "[pair.p]\na = 'tap:pa'\nb = 'tap:pb'\n";

    #[test]
    fn each_difference_has_the_smallest_change_that_makes_it() {
        let all = format!("{LAN}{EDGE}{PAIR}");
        assert_eq!(planned(&all, &all), ["edge =", "lan =", "p ="]);
        // Order and spelling are no difference.
        let spelt =
            format!("# x\n{PAIR}{EDGE}[bridge.lan.ports]\nup = {{ port = \"veth:x\" }}\nb = 'tap:b'\na = 'tap:a'\n");
        assert_eq!(planned(&all, &spelt), ["edge =", "lan =", "p ="]);
        let live = format!(
            "[bridge.lan]\nageing = '9s'\n{LAN}[router.edge]\nroute = 'default dev lan'\n{EDGE}{PAIR}rule = 'drop udp'\n"
        );
        assert_eq!(planned(&all, &live), ["edge route - +", "lan ageing - +", "p rule - +"]);
        assert_eq!(planned(&live, &all), ["edge route - +", "lan ageing - +", "p rule - +"]);
        let ports = all.replace("b = 'tap:b'", "c = 'tap:c'").replace("a = 'tap:a'", "a = 'tap:a?mtu=1400'");
        assert_eq!(planned(&all, &ports), ["edge =", "lan  -a b +a c", "p ="]);
        let ports = EDGE.replace("10.0.0.1/24", "10.0.0.2/24") + "wan = { port = 'tap:w', address = '10.0.1.1/24' }\n";
        let up = "[bridge.lan.ports]\nup = 'veth:x'\n";
        assert_eq!(planned(&format!("{up}{EDGE}"), &format!("{up}{ports}")), ["edge  -lan +lan wan", "lan  -up +up"]);
        let anew = format!("{LAN}{EDGE}{}workers = 2\n", PAIR.replace("tap:pb", "tap:pc"));
        assert_eq!(planned(&all, &anew), ["edge =", "lan =", "p !"]);
        let lanes = |rule: &str| format!("{PAIR}lanes = 1\nlane-rule = '{rule}'\n");
        assert_eq!(planned(&lanes("drop udp"), &lanes("drop tcp")), ["p lane-rule - +"]);
    }

    #[test]
    fn a_bridge_that_learns_of_vlans_and_a_unit_of_another_kind_are_started_anew() {
        let vlan = LAN.replace("'tap:a'", "{ port = 'tap:a', access = 10 }");
        let alone = |text: &str| text.replace("up = 'veth:x'\n", "");
        assert_eq!(planned(&alone(LAN), &alone(&vlan)), ["lan !"]);
        let other = vlan.replace("10 }", "20 }");
        assert_eq!(planned(&alone(&vlan), &alone(&other)), ["lan  -a +a"]);
        assert_eq!(planned(PAIR, "[bridge.p.ports]\na = 'tap:pa'\nb = 'tap:pb'\n"), ["p !"]);
    }

    #[test]
    fn a_pair_in_memory_takes_its_other_end_along_and_what_that_is_linked_to() {
        let chain = |mtu: &str| {
            format!(
                "[pair.one]\na = 'tap:o{mtu}'\nb = 'veth:x'\n[pair.two]\na = 'veth:x'\nb = 'veth:y'\n\
                 [bridge.three.ports]\na = 'veth:y'\nb = 'tap:b'\n[pair.four]\na = 'tap:fa'\nb = 'tap:fb'\n"
            )
        };
        assert_eq!(planned(&chain(""), &chain("?mtu=1400")), ["four =", "one !", "three  -a +a", "two !"]);
        // One that is gone as well.
        let gone = format!("{LAN}{}", PAIR.replace("tap:pb", "veth:x"));
        let before = format!("{LAN}{EDGE}");
        assert_eq!(planned(&before, &gone), ["lan  -up +up"]);
        // A port that is new to a pair that was linked elsewhere before.
        let before =
            "[bridge.l.ports]\na = 'tap:a'\n[pair.q]\na = 'veth:x'\nb = 'tap:b'\n[pair.r]\na = 'veth:x'\nb = 'null:'\n";
        let after = "[bridge.l.ports]\na = 'tap:a'\nb = 'veth:x'\n[pair.q]\na = 'veth:x'\nb = 'tap:b'\n";
        assert_eq!(planned(before, after), ["l  - +b", "q !"]);
    }
}
