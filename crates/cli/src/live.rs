//! The live view while packets move: a line per port on a terminal, plain lines elsewhere, JSON on
//! request.

use crate::measured::Measured;
use crate::output;
use crate::summary::{Happened, Line, Loss, event, loss, missed};
use crate::units::si;
use console::Term;
use std::io::{self, IsTerminal, Write};
use towpath::PortControls;
use towpath::engine::report::{GroReading, PortReading, Reading};
use towpath::packet::Missed;

pub(crate) struct Live {
    view: View,
    last: Reading,
    events: Vec<Happened>,
    /// Losses that were printed: the port, the direction, the place.
    losses: Vec<(String, &'static str, Missed)>,
    given_up: u64,
    /// A log has what happens: only rates are printed.
    pub(crate) has_log: bool,
}

enum View {
    /// Lines that are redrawn, on standard error.
    Terminal(Area),
    /// One object per line, on standard output.
    Json,
    /// Only events of the ports and missed rates, on standard error.
    Events,
    Nothing,
}

/// Lines at the end of a terminal that are drawn again. The cursor stands below them, so that the
/// `^C` that the terminal shows is erased with them.
struct Area {
    term: Term,
    drawn: usize,
}

impl Area {
    fn new() -> Area {
        Area { term: Term::stderr(), drawn: 0 }
    }

    fn columns(&self) -> usize {
        self.term.size().1.into()
    }

    /// Prints `news` above the lines, which are drawn again, as far as the terminal has room.
    fn draw(&mut self, news: impl Iterator<Item = String>, lines: &[String]) -> io::Result<()> {
        let (rows, columns) = self.term.size();
        let mut text = String::from("\r");
        if self.drawn > 0 {
            text += &format!("\x1b[{}A", self.drawn);
        }
        text += "\x1b[J";
        news.for_each(|line| text += &format!("{line}\n"));
        self.drawn = lines.len().min(usize::from(rows).saturating_sub(1));
        for line in lines.iter().take(self.drawn) {
            text.extend(line.chars().take(columns.into()).chain(['\n']));
        }
        self.term.write_str(&text)
    }
}

impl Live {
    /// `last`: the counters of now.
    pub(crate) fn new(json: bool, quiet: bool, last: Reading) -> Live {
        let view = match (json, quiet) {
            (_, true) => View::Nothing,
            (true, _) => View::Json,
            _ if io::stderr().is_terminal() => View::Terminal(Area::new()),
            _ => View::Events,
        };
        Live { view, last, events: Vec::new(), losses: Vec::new(), given_up: 0, has_log: false }
    }

    /// Begins anew with these counters: the ports are others.
    pub(crate) fn restart(&mut self, last: Reading) {
        self.last = last;
    }

    /// Prints what happened since the last update.
    pub(crate) fn update(&mut self, now: &Reading, controls: &PortControls) -> io::Result<()> {
        let step = now.since(&self.last);
        let (events, measured) = (controls.events(), Measured::new(controls));
        let events_now = events.iter().filter(|happened| !self.events.contains(happened));
        // The first loss at each place, with its remedy. The totals are in the ports' lines.
        let is_known =
            |lost: &Loss<'_>| self.losses.iter().any(|(p, s, at)| (p.as_str(), *s, *at) == (lost.0, lost.1, lost.2));
        let losses: Vec<_> = missed(now).into_iter().filter(|lost| !is_known(lost)).collect();
        self.losses.extend(losses.iter().map(|&(port, side, place, _)| (port.to_owned(), side, place)));
        let news = events_now.map(|e| format!("event: {}", event(e)));
        let news = news.chain(losses.into_iter().map(|lost| format!("missed: {}", loss(lost))));
        let news = news.filter(|_| !self.has_log);
        match &mut self.view {
            View::Terminal(area) => {
                let mut lines = port_lines(&step, now, area.columns());
                if now.gro.packets > 0 {
                    lines.push(gro_line(&now.gro));
                }
                lines.extend(measured.lines());
                area.draw(news, &lines)?;
            }
            View::Json => {
                let mut out = output::lock();
                serde_json::to_writer(&mut out, &Line::live(now, &step, &events, &measured))?;
                writeln!(out)?;
                out.flush()?;
            }
            View::Events if self.has_log => {}
            View::Events => {
                news.for_each(|line| eprintln!("{line}"));
                let behind = measured.given_up();
                if behind > self.given_up {
                    measured.behind().for_each(|line| eprintln!("{line}"));
                }
                self.given_up = behind;
            }
            View::Nothing => {}
        }
        (self.last, self.events) = (now.clone(), events);
        Ok(())
    }

    /// Erases the live lines to make room for the summary.
    pub(crate) fn end(&mut self) {
        if let View::Terminal(area) = &mut self.view {
            // A terminal that is gone has no lines.
            let _ = area.draw(std::iter::empty(), &[]);
        }
    }
}

/// A line for each port: rates since the last update, losses since the start. In a narrow terminal
/// the bits per second are left out first, then the middle of long names: losses are always seen.
fn port_lines(step: &Reading, total: &Reading, columns: usize) -> Vec<String> {
    let seconds = step.elapsed.as_secs_f64().max(1e-9);
    let pps = |packets: u64| format!("{:>9}", format!("{}pps", si(packets as f64 / seconds)));
    let bps = |bytes: u64| format!(" {:>9}", format!("{}b/s", si(bytes as f64 * 8.0 / seconds)));
    let widest = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);

    let losses: Vec<_> = total.ports.iter().map(losses).collect();
    let rates = |with_bits: bool| -> Vec<String> {
        let bits = |bytes: u64| if with_bits { bps(bytes) } else { String::new() };
        let rates = |port: &PortReading| {
            let (rx, tx) = (&port.rx, &port.tx);
            format!("  rx {}{}  tx {}{}  ", pps(rx.packets), bits(rx.bytes), pps(tx.packets), bits(tx.bytes))
        };
        step.ports.iter().map(rates).collect()
    };
    let mut names: Vec<_> = step.ports.iter().map(|port| port.name.clone()).collect();
    let (name, loss) = (widest(&names), widest(&losses));
    let mut shown = rates(true);
    if name + widest(&shown) + loss > columns {
        shown = rates(false);
    }
    let room = columns.saturating_sub(widest(&shown) + loss).clamp(SHORTEST_NAME.min(name), name.max(SHORTEST_NAME));
    names.iter_mut().for_each(|name| shorten(name, room));
    let width = widest(&names);
    let lines = names.iter().zip(shown).zip(losses);
    lines.map(|((name, rates), losses)| format!("{name:width$}{rates}{losses}")).collect()
}

/// Characters of a name that are shown at least.
const SHORTEST_NAME: usize = 12;

/// Leaves the two ends of a name that is longer than `room` characters: kind and interface stand at
/// one, the namespace often at the other.
fn shorten(name: &mut String, room: usize) {
    let length = name.chars().count();
    if length > room {
        let end = room.saturating_sub(1) / 2;
        let start = room.saturating_sub(1) - end;
        let chars = || name.chars();
        *name = chars().take(start).chain(['…']).chain(chars().skip(length - end)).collect();
    }
}

/// The merge ratio since the start, and why aggregates left.
fn gro_line(gro: &GroReading) -> String {
    let merged = 100.0 * gro.merged as f64 / gro.packets as f64;
    let mut reasons: Vec<_> = gro.flushed().collect();
    reasons.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    let reasons: Vec<_> =
        reasons.iter().take(4).map(|(reason, n)| format!("{reason} {}", si(*n as f64).trim_end())).collect();
    let bypassed = if gro.bypassed_engines > 0 { "   bypassed: nothing merges" } else { "" };
    let flushed = if reasons.is_empty() { String::new() } else { format!("   flushed {}", reasons.join(", ")) };
    format!("gro merged {merged:.1} %{flushed}{bypassed}")
}

/// What was lost around a port, and what was dropped there or on the way to it, with the most
/// frequent reason.
fn losses(port: &PortReading) -> String {
    let all = port.rx.plus(&port.tx).plus(&port.routes);
    let dropped = si(all.all_drops() as f64);
    let most = all.drops().max_by_key(|&(_, packets)| packets);
    let reason = most.map_or(String::new(), |(reason, _)| format!(" ({})", reason.name()));
    format!("missed {}  drops {}{reason}", all.all_missed(), dropped.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use towpath::packet::Snapshot;

    fn lines(names: &[&str], columns: usize) -> Vec<String> {
        let mut rx = Snapshot::default();
        (rx.packets, rx.bytes) = (1_500_000, 96_000_000);
        let port = |name: &&str| {
            let mut port = PortReading::default();
            (port.name, port.rx) = ((*name).into(), rx);
            port
        };
        let mut reading = Reading::default();
        (reading.elapsed, reading.ports) = (Duration::from_secs(1), names.iter().map(port).collect());
        port_lines(&reading, &reading, columns)
    }

    #[test]
    fn losses_are_seen_in_80_columns_whatever_a_port_is_called() {
        let names = ["tap:tp0?netns=fnA", "packet:enp129s0f1np1?queues=4,fanout=cpu,netns=customer-17"];
        for columns in [80, 100, 200] {
            for line in lines(&names, columns) {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
                assert!(line.ends_with("missed 0  drops 0") && line.contains("1.50 Mpps"), "{line}");
            }
        }
        let narrow = lines(&names, 80);
        assert!(narrow[0].starts_with("tap:tp0?netns=fnA ") && !narrow[0].contains("b/s"), "{narrow:?}");
        assert!(narrow[1].starts_with("packet:enp129s") && narrow[1].contains("…"), "{narrow:?}");
        assert!(lines(&names, 200)[1].contains("768 Mb/s"));
    }

    #[test]
    fn names_are_whole_where_there_is_room_and_never_shorter_than_twelve() {
        assert!(lines(&["gen:", "null:"], 80)[1].starts_with("null:  rx 1.50 Mpps  768 Mb/s"));
        assert!(lines(&["a-name-of-20-letters"], 10)[0].starts_with("a-name…tters  rx"));
        assert!(lines(&["gen:"], 10)[0].starts_with("gen:  rx"));
    }
}
