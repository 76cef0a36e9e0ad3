//! Events of ports in the log: what differs from what the log has, about once a second.
//!
//! ```text
//!   gather ──► State ──► facts of each port ──► Events: differs from the last line? ──► lines
//!                        link, drops, missed,           and may it be logged now?
//!                        events, sessions
//! ```
//!
//! A fact is compared with its last line, not with the look before: what has to wait is logged
//! later, with all that rose meanwhile. A count has a line in [`WINDOW`], a link five. All units
//! together have [`MOST`] lines at once and [`MOST`] in [`WINDOW`]; a line counts the facts that
//! wait for that.

use crate::state::{Port, State, Unit};
use crate::units::grouped;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use towpath::packet::DropReason;
use tracing::Level;

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Time in which a fact that goes on changing has one line.
const WINDOW: Duration = Duration::from_secs(10);
/// Changes of a link that are logged without a wait.
const LINKS: u32 = 5;
/// Lines of all units that are logged without a wait.
const MOST: u32 = 100;

/// Events that are measurements: they rise, or change, while all is well.
const MEASUREMENTS: [&str; 5] = ["tx-timestamps", "tx-delay-ns-p50", "tx-delay-ns-p99", "copies", "copied-bytes"];
/// Events that the lines of sessions have.
const OF_SESSIONS: [&str; 4] = ["sessions", "sessions-ended", "connections", "connections-ended"];
/// Packets that a source never makes, because it was late.
const GIVEN_UP: &str = "packets-given-up";
/// Drops that were asked for, or that are part of what a bridge and a router do.
const ORDINARY: [DropReason; 6] = [
    DropReason::Filtered,
    DropReason::Fault,
    DropReason::Reserved,
    DropReason::SamePort,
    DropReason::Foreign,
    DropReason::ForRouter,
];

/// What a fact is about, in a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    Link,
    /// The direction, the place, and what prevents it.
    Missed(&'static str, String, String),
    /// The direction and the reason.
    Dropped(&'static str, String),
    Event(String),
    /// The name of the session.
    Session(String),
}

/// What is known now.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Count(u64),
    Text(String),
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    level: Level,
    unit: String,
    port: String,
    /// The kind of what happened: `link`, `missed`, `dropped`, `event`, `session`.
    kind: &'static str,
    /// The reason, the place or the event; the link.
    reason: String,
    /// How many, where something is counted.
    count: Option<u64>,
    text: String,
}

impl Line {
    pub(super) fn write(&self) {
        let Line { level, unit, port, kind, reason, count, text } = self;
        // The level of an event is a constant.
        macro_rules! at {
            ($level:expr) => {
                tracing::event!($level, unit, port, kind, reason, count, "{text}")
            };
        }
        match *level {
            Level::WARN => at!(Level::WARN),
            Level::INFO => at!(Level::INFO),
            _ => at!(Level::DEBUG),
        }
    }
}

/// So many at once; afterwards one for each part of a time.
#[derive(Debug)]
struct Bucket {
    left: u32,
    filled: Instant,
}

impl Bucket {
    fn take(&mut self, now: Instant, most: u32, each: Duration) -> bool {
        let parts = now.saturating_duration_since(self.filled).as_nanos() / each.as_nanos();
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(parts).min(most);
        // A part that has begun goes on, but time is not saved up.
        self.filled = if self.left == most { now } else { self.filled + each * parts };
        self.left > 0 && {
            self.left -= 1;
            true
        }
    }
}

/// What the log has of a fact.
#[derive(Debug)]
struct Logged {
    value: Value,
    bucket: Bucket,
}

/// What the log has of each unit.
#[derive(Debug)]
pub(super) struct Events {
    units: BTreeMap<String, UnitLogged>,
    all: Bucket,
    /// Facts that wait, as the log has it.
    waiting: usize,
}

#[derive(Debug, Default)]
struct UnitLogged {
    /// How long it ran: if that is less than before, it was started anew.
    seconds: f64,
    facts: BTreeMap<(String, About), Logged>,
}

impl Events {
    pub(super) fn new(now: Instant) -> Events {
        Events { units: BTreeMap::new(), all: Bucket { left: MOST, filled: now }, waiting: 0 }
    }

    /// The lines of what differs from what the log has.
    pub(super) fn look(&mut self, state: &State, now: Instant) -> Vec<Line> {
        let Events { units, all, waiting } = self;
        let (mut lines, mut late) = (Vec::new(), 0);
        units.retain(|name, _| state.units.iter().any(|unit| unit.name == *name));
        for unit in &state.units {
            let logged = units.entry(unit.name.clone()).or_default();
            if unit.seconds < logged.seconds {
                *logged = UnitLogged::default();
            }
            logged.seconds = unit.seconds;
            late += logged.look(unit, now, all, &mut lines);
        }
        // Once, when they begin to wait, and not again until none does.
        if late > 0 && *waiting == 0 {
            lines.push(Line {
                level: Level::WARN,
                unit: String::new(),
                port: String::new(),
                kind: "suppressed",
                reason: String::new(),
                count: Some(late as u64),
                text: format!("{} events wait: there are too many for the log", grouped(late as u64)),
            });
        }
        *waiting = late;
        lines
    }
}

impl UnitLogged {
    /// Adds the lines of a unit; returns how many facts wait for those of others.
    fn look(&mut self, unit: &Unit, now: Instant, all: &mut Bucket, lines: &mut Vec<Line>) -> usize {
        let (mut facts, mut late) = (BTreeMap::new(), 0);
        for port in &unit.ports {
            for (about, value) in facts_of(port) {
                let (most, first) = if about == About::Link { (LINKS, "up") } else { (1, "") };
                let key = (port.name.clone(), about);
                let mut logged = self.facts.remove(&key).unwrap_or_else(|| Logged {
                    value: if matches!(value, Value::Count(_)) { Value::Count(0) } else { Value::Text(first.into()) },
                    bucket: Bucket { left: most, filled: now },
                });
                if logged.value != value && logged.bucket.take(now, most, WINDOW) {
                    let line = line(&unit.name, &port.name, &key.1, &logged.value, &value);
                    // What is ordinary delays nothing else.
                    if line.level == Level::DEBUG || all.take(now, MOST, WINDOW / MOST) {
                        lines.push(line);
                        logged.value = value;
                    } else {
                        logged.bucket.left += 1;
                        late += 1;
                    }
                }
                facts.insert(key, logged);
            }
        }
        // Those of ports and sessions that are gone are forgotten.
        self.facts = facts;
        late
    }
}

/// What is known of a port.
fn facts_of(port: &Port) -> impl Iterator<Item = (About, Value)> {
    let known = port.link != "unknown";
    let link = known.then(|| (About::Link, Value::Text(port.link.clone())));
    let missed = [("rx", &port.rx), ("tx", &port.tx)].into_iter().flat_map(|(side, of)| {
        of.missed
            .iter()
            .map(move |one| (About::Missed(side, one.place.clone(), one.remedy.clone()), Value::Count(one.packets)))
    });
    let drops = [("rx", &port.rx.drops), ("tx", &port.tx.drops), ("egress", &port.egress.drops)];
    let drops = drops.into_iter().flat_map(|(side, of)| {
        of.iter().map(move |(reason, n)| (About::Dropped(side, reason.clone()), Value::Count(*n)))
    });
    let is_event = |name: &str| !MEASUREMENTS.contains(&name) && !OF_SESSIONS.contains(&name);
    let events = port.events.iter().filter(move |(name, _)| is_event(name));
    let events = events.map(|(name, n)| (About::Event(name.clone()), Value::Count(*n)));
    // Of a source that falls behind its rate.
    let given_up = port.rate.iter().map(|rate| (About::Event(GIVEN_UP.into()), Value::Count(rate.given_up)));
    let sessions = port.sessions.iter().map(|line| {
        let name = line.split(':').next().unwrap_or_default();
        (About::Session(name.to_owned()), Value::Text(line.clone()))
    });
    link.into_iter().chain(missed).chain(drops).chain(events).chain(given_up).chain(sessions)
}

fn line(unit: &str, port: &str, about: &About, before: &Value, now: &Value) -> Line {
    let count = match (before, now) {
        (Value::Count(before), Value::Count(now)) => Some(now.saturating_sub(*before)),
        _ => None,
    };
    let n = grouped(count.unwrap_or(0));
    let state = if let Value::Text(text) = now { text.as_str() } else { "" };
    let (level, kind, reason, text) = match about {
        About::Link => {
            let level = if ["down", "gone"].contains(&state) { Level::WARN } else { Level::INFO };
            (level, "link", state, format!("link {state}"))
        }
        About::Missed(side, place, remedy) => {
            (Level::WARN, "missed", place.as_str(), format!("{side} missed {n} at {place}: {remedy}"))
        }
        About::Dropped(side, reason) => {
            let is_ordinary = ORDINARY.iter().any(|ordinary| ordinary.name() == reason);
            let level = if is_ordinary { Level::DEBUG } else { Level::WARN };
            (level, "dropped", reason.as_str(), format!("{side} dropped {n}: {reason}"))
        }
        About::Event(name) => (Level::WARN, "event", name.as_str(), format!("{n} {}", name.replace(['_', '-'], " "))),
        About::Session(name) => (Level::INFO, "session", name.as_str(), state.to_owned()),
    };
    let (unit, port, reason) = (unit.to_owned(), port.to_owned(), reason.to_owned());
    let text = format!("{port}: {text}");
    Line { level, unit, port, kind, reason, count, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::example;

    /// A unit of one port, to be changed.
    fn one(change: impl FnOnce(&mut Port)) -> State {
        let mut state = example(0);
        let unit = &mut state.units[0];
        unit.ports.truncate(1);
        let port = &mut unit.ports[0];
        port.name = "tap:a".into();
        port.tx.missed.clear();
        port.rx.drops.clear();
        port.egress.drops.clear();
        port.events.clear();
        port.rate = None;
        port.sessions.clear();
        change(port);
        state
    }

    fn dropped(n: u64) -> State {
        one(|port| _ = port.tx.drops.insert("egress-full".into(), n))
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn each_difference_is_a_line_with_what_it_is_about_and_the_same_state_is_none() {
        let (mut events, now) = (Events::new(Instant::now()), Instant::now());
        assert_eq!(events.look(&one(|_| ()), now), []);
        let changed = one(|port| {
            port.link = "down".into();
            port.rx.drops = [("too-long".to_owned(), 1234), ("filtered".to_owned(), 5)].into();
            port.egress.drops = [("no-buffer".to_owned(), 1)].into();
            port.tx.missed = vec![crate::state::Missed { place: "qdisc".into(), packets: 7, remedy: "tc".into() }];
            port.events = [("made-anew".to_owned(), 2), ("copies".to_owned(), 9), ("sessions".to_owned(), 1)].into();
            port.rate = Some(crate::state::Rate { asked: 9.0, reached: 8.0, given_up: 3 });
            port.sessions = vec!["session 1: pid 7, uid 0, queue 0: here".into()];
        });
        let lines = events.look(&changed, now);
        let expected = [
            "tap:a: link down",
            "tap:a: tx missed 7 at qdisc: tc",
            "tap:a: rx dropped 5: filtered",
            "tap:a: rx dropped 1 234: too-long",
            "tap:a: egress dropped 1: no-buffer",
            "tap:a: 2 made anew",
            "tap:a: 3 packets given up",
            "tap:a: session 1: pid 7, uid 0, queue 0: here",
        ];
        assert_eq!(texts(&lines), expected);
        let others = lines.iter().enumerate().filter(|(_, line)| line.level != Level::WARN);
        assert_eq!(
            others.map(|(at, line)| (at, line.level)).collect::<Vec<_>>(),
            [(2, Level::DEBUG), (7, Level::INFO)]
        );
        let Line { unit, port, kind, reason, count, .. } = &lines[3];
        assert_eq!((unit.as_str(), port.as_str(), *kind, reason.as_str()), ("fwd", "tap:a", "dropped", "too-long"));
        assert_eq!((*count, lines[0].count), (Some(1234), None));
        assert_eq!(events.look(&changed, now + WINDOW), []);
        let left = one(|port| port.sessions = vec!["session 1: pid 7, uid 0, queue 0: left".into()]);
        let lines = events.look(&left, now + WINDOW);
        assert_eq!(texts(&lines), ["tap:a: link up", "tap:a: session 1: pid 7, uid 0, queue 0: left"]);
    }

    #[test]
    fn what_goes_on_rising_has_one_line_in_a_window_with_the_number_since_the_last_one() {
        let (mut events, begin) = (Events::new(Instant::now()), Instant::now());
        let mut at = |seconds: u64, n: u64| {
            let lines = events.look(&dropped(n), begin + Duration::from_secs(seconds));
            lines.iter().map(|line| line.count.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(at(0, 10), [10]);
        for second in 1..10 {
            assert!(at(second, 10 + second * 100).is_empty(), "second {second}");
        }
        assert_eq!(at(10, 2010), [2000]);
        assert!(at(11, 2011).is_empty());
        // The end of a burst is logged as well.
        assert_eq!(at(20, 2011), [1]);
        assert_eq!((at(60, 2011), at(61, 2012), at(62, 2013)), (vec![], vec![1], vec![]));
    }

    #[test]
    fn a_link_that_flaps_is_logged_five_times_and_then_once_in_a_window_as_it_is_then() {
        let (mut events, begin) = (Events::new(Instant::now()), Instant::now());
        let state = |second: u64| one(|port| port.link = if second.is_multiple_of(2) { "down" } else { "up" }.into());
        let mut lines = Vec::new();
        for second in 0..60 {
            lines.extend(events.look(&state(second), begin + Duration::from_secs(second)));
        }
        assert!((10..=11).contains(&lines.len()), "{lines:#?}");
    }

    #[test]
    fn a_storm_of_events_is_bounded_and_the_number_that_waits_is_logged_once_and_nothing_is_lost() {
        let (mut events, begin) = (Events::new(Instant::now()), Instant::now());
        let all = u64::from(MOST) * 5;
        let storm = one(|port| port.events = (0..all).map(|n| (format!("e{n}"), n + 1)).collect());
        let lines = events.look(&storm, begin);
        assert_eq!(lines.len() as u32, MOST + 1);
        let last = lines.last().unwrap();
        assert_eq!((last.kind, last.count), ("suppressed", Some(all - u64::from(MOST))));
        let mut logged = lines[..MOST as usize].to_vec();
        for second in 1..=60 {
            logged.extend(events.look(&storm, begin + Duration::from_secs(second)));
        }
        let sum: u64 = logged.iter().map(|line| line.count.unwrap()).sum();
        assert_eq!((logged.len() as u64, sum), (all, all * (all + 1) / 2));
    }

    #[test]
    fn a_unit_that_is_started_anew_is_counted_from_its_start() {
        let (mut events, now) = (Events::new(Instant::now()), Instant::now());
        assert_eq!(events.look(&dropped(10), now).len(), 1);
        let mut anew = dropped(12);
        anew.units[0].seconds = 0.1;
        assert_eq!(events.look(&anew, now)[0].count, Some(12));
        anew.units.clear();
        assert_eq!(events.look(&anew, now), []);
        assert!(events.units.is_empty());
    }
}
