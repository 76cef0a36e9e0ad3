//! Checks of a [`Forward`] against its ports, and notes for the user.

use super::{Directions, Forward, Gso, StartError, Verdicts};
use towpath_engine::lane::Steering;
use towpath_engine::rules::PortSide;
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, Info, Layer};
use towpath_ports::tun::STEERING;
use towpath_wire::LinkKind;

/// Fewest buffers: with fewer, all of them may be held by caches of queues and by packets in
/// several chunks.
const FEWEST_BUFFERS: usize = 8;
/// Bytes of the shortest buffer that ports accept, and of the longest that a pool has.
const SHORTEST_BUFFER: usize = 2048;
const LONGEST_BUFFER: usize = 65472;

impl Forward {
    /// Queues that a port is started with: one per worker on the ingress side, one per lane on the
    /// egress side.
    pub(super) fn queues(&self, side: PortSide) -> u16 {
        let lanes = if self.lanes.is_empty() { self.workers } else { self.lanes.len() as u16 };
        match (self.directions, side) {
            (Directions::OneWay, PortSide::A) => self.workers,
            (Directions::OneWay, PortSide::B) => lanes,
            (Directions::Both, _) => self.workers.max(lanes),
        }
    }

    /// Checks the verdicts for packets of such a layer, as a start does.
    ///
    /// # Errors
    /// [`StartError`] names the rule that can't be applied.
    pub fn check_rules(&self, layer: Layer) -> Result<(), StartError> {
        let link = LinkKind::from(layer);
        for verdicts in [&self.at_rx, &self.in_lane] {
            let Some(rules) = verdicts.rules() else { continue };
            rules.check(link, self.lanes.len() as u16)?;
            if self.directions == Directions::OneWay
                && let Some(rule) = rules.first_reflecting(PortSide::A)
            {
                let rule_text = "sends packets back where they came from: forward both ways, without --oneway".into();
                return Err(StartError::Value { what: "rule", value: rule, rule: rule_text });
            }
        }
        if let Some(rules) = self.in_lane.rules()
            && let Some(rule) = rules.first_naming_lane()
        {
            let rule_text = "in a lane a packet has its lane already: use the rule at rx".into();
            return Err(StartError::Value { what: "rule in a lane", value: rule, rule: rule_text });
        }
        if self.lanes.is_empty() && !matches!(self.in_lane, Verdicts::Pass) {
            let rule = "there are no lanes: give some, or use rules at rx".into();
            return Err(StartError::Value { what: "rules in lanes", value: format!("{:?}", self.in_lane), rule });
        }
        Ok(())
    }

    pub(super) fn check(&self, a: &Info, b: &Info) -> Result<(), StartError> {
        let value = |what, value: String, rule: String| Err(StartError::Value { what, value, rule });
        let egresses = if self.directions == Directions::Both { vec![a, b] } else { vec![b] };
        let plain = |info: &&&Info| info.tx_offloads.and(Offloads::GSO).is_none();
        if self.gso == Gso::On
            && let Some(info) = egresses.iter().find(plain)
        {
            return value("gso", "on".into(), format!("{} takes no super-packets: use auto", info.name));
        }
        if self.workers == 0 {
            return value("workers", "0".into(), "there must be one".into());
        }
        let chunk = self.pool.chunk;
        if !(SHORTEST_BUFFER..=LONGEST_BUFFER).contains(&chunk) || !chunk.is_multiple_of(64) {
            let rule = format!("must be a multiple of 64 from {SHORTEST_BUFFER} to {LONGEST_BUFFER}");
            return value("buffer-size", chunk.to_string(), rule);
        }
        if self.pool.capacity < FEWEST_BUFFERS {
            let rule = format!("must be {FEWEST_BUFFERS} or more");
            return value("buffers", self.pool.capacity.to_string(), rule);
        }
        for (info, side) in [(a, PortSide::A), (b, PortSide::B)] {
            let n = self.queues(side);
            if n > info.max_queues {
                let what = if n == self.workers { "workers" } else { "lanes" };
                let (name, has) = (&info.name, info.max_queues);
                let rule =
                    format!("{name} has {has} queue(s), and each of the {what} needs one{}", more_queues(name, n));
                return value(what, n.to_string(), rule);
            }
            let steering = info.abilities.iter().find(|ability| ability.name == STEERING && !ability.on);
            let is_ingress = side == PortSide::A || self.directions == Directions::Both;
            if let Some(steering) = steering.filter(|_| self.rebalance && is_ingress && n > 1) {
                return value("rebalance", "on".into(), off(info, steering));
            }
        }
        if let Steering::Lane(lane) = self.steering.steering
            && !self.lanes.is_empty()
            && usize::from(lane) >= self.lanes.len()
        {
            let rule = format!("there are {} lane(s), the first is 0", self.lanes.len());
            return value("steering to lane", lane.to_string(), rule);
        }
        let allowed = towpath_engine::worker::cores();
        for (what, cores) in [("cores", &self.cores), ("lanes", &self.lanes)] {
            if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
                let rule = format!("must be among the cores of this process: {allowed:?}");
                return value(what, core.to_string(), rule);
            }
        }
        Ok(())
    }
}

/// How to give a port `n` queues, if that is possible.
fn more_queues(name: &str, n: u16) -> String {
    let own = name.rsplit('@').next().unwrap_or(name);
    match own.split_once(':') {
        Some(("tap" | "tun" | "packet" | "veth" | "xdp", _)) => format!(": open it with ?queues={n}"),
        _ => String::new(),
    }
}

pub(super) fn common_layer(a: &Info, b: &Info) -> Result<Layer, StartError> {
    let name = |layer| match layer {
        Layer::Ethernet => "Ethernet frames",
        Layer::Ip => "IP packets",
        Layer::Any => "anything",
    };
    match (a.layer, b.layer) {
        (Layer::Any, Layer::Any) => Ok(Layer::Ethernet),
        (Layer::Any, layer) | (layer, Layer::Any) => Ok(layer),
        (x, y) if x == y => Ok(x),
        (x, y) => Err(StartError::Layers { a: a.name.clone(), a_layer: name(x), b: b.name.clone(), b_layer: name(y) }),
    }
}

/// A disabled ability: why it is off, and how to enable it.
pub(super) fn off(info: &Info, ability: &Ability) -> String {
    let hint = ability.hint.as_ref().map(|hint| format!("; to fix it: {hint}")).unwrap_or_default();
    format!("{}: {} is off: {}{hint}", info.name, ability.name, ability.why)
}

/// Notes about this pair of ports.
pub(super) fn notes(a: &Info, b: &Info, directions: Directions) -> Vec<String> {
    let mut notes = Vec::new();
    for info in [a, b] {
        for ability in info.abilities.iter().filter(|ability| !ability.on) {
            let note = off(info, ability);
            // An echo has the same port at both ends.
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    let mut longer = |from: &Info, to: &Info| {
        // The kernel takes longer packets of a TUN/TAP device.
        let is_tun = ["tap:", "tun:"].iter().any(|scheme| to.name.starts_with(scheme));
        if from.layer != Layer::Any && to.layer != Layer::Any && from.mtu > to.mtu && !is_tun {
            notes.push(format!(
                "{} has an MTU of {}, {} of {}: longer packets from the first are dropped as too-long",
                from.name, from.mtu, to.name, to.mtu
            ));
        }
    };
    longer(a, b);
    if directions == Directions::Both {
        longer(b, a);
    }
    notes
}
