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
        Live { view, last, events: Vec::new(), losses: Vec::new(), given_up: 0 }
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
        match &mut self.view {
            View::Terminal(area) => {
                let width = now.ports.iter().map(|p| p.name.chars().count()).max().unwrap_or(0);
                let seconds = step.elapsed.as_secs_f64().max(1e-9);
                let ports = step.ports.iter().zip(&now.ports);
                let mut lines: Vec<_> = ports.map(|(port, total)| line(port, total, width, seconds)).collect();
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

/// The merge ratio since the start, and why aggregates left.
fn gro_line(gro: &GroReading) -> String {
    let merged = 100.0 * gro.merged as f64 / gro.packets as f64;
    let mut reasons: Vec<_> = gro.flushed().collect();
    reasons.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    let reasons: Vec<_> =
        reasons.iter().take(4).map(|(reason, n)| format!("{reason} {}", si(*n as f64).trim_end())).collect();
    let aside = if gro.bypassed_engines > 0 { "   aside: nothing merges" } else { "" };
    format!("gro merged {merged:.1} %   flushed {}{aside}", reasons.join(", "))
}

/// The packets that a port dropped, and the most frequent reason.
fn drops(port: &PortReading) -> String {
    let all = port.rx.all_drops() + port.tx.all_drops();
    let most = port.rx.drops().chain(port.tx.drops()).max_by_key(|&(_, packets)| packets);
    let all = si(all as f64).trim_end().to_owned();
    most.map_or(all.clone(), |(reason, _)| format!("{all} ({})", reason.name()))
}

fn line(step: &PortReading, total: &PortReading, width: usize, seconds: f64) -> String {
    let pps = |packets: u64| format!("{}pps", si(packets as f64 / seconds));
    let bps = |bytes: u64| format!("{}b/s", si(bytes as f64 * 8.0 / seconds));
    format!(
        "{:width$}  rx {:>9} {:>9}  tx {:>9} {:>9}  missed {}  drops {}",
        step.name,
        pps(step.rx.packets),
        bps(step.rx.bytes),
        pps(step.tx.packets),
        bps(step.tx.bytes),
        total.rx.all_missed() + total.tx.all_missed(),
        drops(total),
    )
}
