//! The failures of a run.

use super::Summary;
use std::fmt;
use towpath_engine::report::{Drops, Reading};
use towpath_packet::DropReason;
use towpath_packet::port::{Ability, Info, State};
use towpath_ports::NOT_UP;

/// Why a run did not do what it was started for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A port is gone, for good: an interface was deleted, a file could not be written.
    Gone {
        /// The port.
        port: String,
        /// Why.
        why: String,
    },
    /// A port was down at the end: its interface was not up, or it had no carrier and its packets
    /// were dropped or never came.
    Down {
        /// The port.
        port: String,
        /// Why.
        why: String,
        /// The command that brings it up, if one does.
        hint: Option<String>,
    },
    /// Packets reached a port, and it sent none of them.
    SentNone {
        /// The port.
        port: String,
        /// The packets, by reason.
        drops: Vec<Drops>,
    },
    /// A worker failed.
    Worker(String),
    /// Packets that no counter accounts for; a negative number of duplicates.
    Unaccounted(i64),
    /// Buffers and pages that are not returned.
    NotReturned {
        /// Buffers.
        buffers: usize,
        /// Pages of applications.
        pages: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Gone { port, why } => write!(f, "{port}: {why}"),
            Failure::Down { port, why, hint: None } => write!(f, "{port}: {why}"),
            Failure::Down { port, why, hint: Some(hint) } => write!(f, "{port}: {why} ({hint})"),
            Failure::SentNone { port, drops } => {
                let all: u64 = drops.iter().map(|drops| drops.packets).sum();
                let each: Vec<_> = drops.iter().map(|drops| format!("{} {}", drops.packets, drops.reason)).collect();
                write!(f, "{port}: sent none of {all} packets: {}", each.join(", "))?;
                match drops.iter().max_by_key(|drops| drops.packets).and_then(|drops| hint(drops.reason)) {
                    Some(hint) => write!(f, " ({hint})"),
                    None => Ok(()),
                }
            }
            Failure::Worker(why) => f.write_str(why),
            Failure::Unaccounted(packets) => write!(f, "{packets} packets are not accounted for"),
            Failure::NotReturned { buffers, pages } => {
                write!(f, "{buffers} buffers and {pages} pages are not returned")
            }
        }
    }
}

impl Failure {
    /// Whether a lost carrier did no harm: the other end left after packets had moved, and none was
    /// dropped because of that.
    pub(super) fn is_harmless(&self, reading: &Reading) -> bool {
        let Failure::Down { port: name, why, .. } = self else { return false };
        reading.ports.iter().find(|port| port.name == *name).is_some_and(|port| {
            let moved = port.rx.packets + port.tx.packets > 0;
            let dropped = port.tx.plus(&port.routes).dropped(DropReason::LinkDown) > 0;
            why != NOT_UP && moved && !dropped
        })
    }
}

/// What helps if an egress drops all packets for this reason.
fn hint(reason: &str) -> Option<&'static str> {
    match reason {
        "too-long" => Some("a larger MTU on this side, or a smaller one on the other"),
        "link-down" => Some("set the interface up, and what it is connected to"),
        "malformed" => Some("are they packets of this port's layer?"),
        "refused" => Some("'towpath probe' of the port says what it takes"),
        _ => None,
    }
}

/// A port, for the report of its failures.
#[derive(Debug)]
pub(super) struct PortEnd {
    name: String,
    hint: Option<String>,
    /// Its link goes down because that was asked for.
    faulty: bool,
}

impl PortEnd {
    pub(super) fn new(info: &Info, faulty: bool) -> PortEnd {
        let link = info.abilities.iter().find(|ability| ability.name == Ability::LINK);
        PortEnd { name: info.name.clone(), hint: link.and_then(|link| link.hint.clone()), faulty }
    }

    /// The failure that a state at the end means.
    pub(super) fn failure(&self, state: State) -> Option<Failure> {
        let port = self.name.clone();
        match state {
            State::Gone(why) => Some(Failure::Gone { port, why: why.into_owned() }),
            State::Down(why) if !self.faulty => {
                let hint = self.hint.clone().filter(|_| why == NOT_UP);
                Some(Failure::Down { port, why: why.into_owned(), hint })
            }
            _ => None,
        }
    }
}

impl Summary {
    /// Everything that failed; empty after a good run. A run without traffic is good.
    pub fn failures(&self) -> Vec<Failure> {
        let mut failures = self.port_failures.clone();
        for port in &self.reading.ports {
            let port_name = &port.name;
            let known = |failure: &Failure| matches!(failure, Failure::Gone { port, .. } | Failure::Down { port, .. } if port == port_name);
            if let Some(drops) = port.sent_none() {
                let at = failures.iter().position(known).map_or(failures.len(), |at| at + 1);
                failures.insert(at, Failure::SentNone { port: port_name.clone(), drops });
            }
        }
        failures.extend(self.failed.iter().cloned().map(Failure::Worker));
        let unaccounted = self.reading.balance().in_flight();
        if unaccounted != 0 {
            failures.push(Failure::Unaccounted(unaccounted));
        }
        if self.buffers_away > 0 || self.pages_away > 0 {
            failures.push(Failure::NotReturned { buffers: self.buffers_away, pages: self.pages_away });
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::port::Layer;

    fn end(faulty: bool) -> PortEnd {
        let link = Ability::new(Ability::LINK, true, "up").with_hint(Some("ip link set dev e0 up".to_owned()));
        PortEnd::new(&Info::new("packet:e0", Layer::Ethernet, 1500).with_abilities(vec![link]), faulty)
    }

    #[test]
    fn a_failure_names_the_port_the_reason_and_the_hint() {
        let line = |state| end(false).failure(state).map(|failure| failure.to_string());
        let not_up = "packet:e0: the interface is not up (ip link set dev e0 up)";
        assert_eq!(line(State::Down(NOT_UP.into())).as_deref(), Some(not_up));
        assert_eq!(line(State::Down("no carrier".into())).as_deref(), Some("packet:e0: no carrier"));
        assert_eq!(line(State::Gone("deleted".into())).as_deref(), Some("packet:e0: deleted"));
        let drops = vec![Drops::new(DropReason::Refused, 1), Drops::new(DropReason::TooLong, 9)];
        let line = Failure::SentNone { port: "tap:a".into(), drops }.to_string();
        assert!(line.starts_with("tap:a: sent none of 10 packets: 1 refused, 9 too-long (a larger MTU"), "{line}");
    }

    #[test]
    fn a_port_that_works_or_is_down_on_request_did_not_fail() {
        assert_eq!([State::Up, State::Done].map(|state| end(false).failure(state)), [None, None]);
        assert_eq!(end(true).failure(State::Down("fault: the link is down".into())), None);
    }
}
