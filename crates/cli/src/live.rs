//! The live view while packets move: a line per port on a terminal, plain lines elsewhere, JSON on
//! request.

use crate::args::Run;
use crate::measured::Measured;
use crate::summary::{Happened, Line, Loss, event, loss, missed};
use crate::units::si;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use towpath::PortControls;
use towpath::engine::report::{GroReading, Meter, PortReading, Reading};
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
    Terminal {
        area: MultiProgress,
        ports: Vec<ProgressBar>,
        gro: ProgressBar,
        measurements: Vec<ProgressBar>,
    },
    /// One object per line, on standard output.
    Json,
    /// Only events of the ports and missed rates, on standard error.
    Events,
    Nothing,
}

impl Live {
    pub(crate) fn new(args: &Run, meter: &Meter) -> Live {
        let last = meter.read();
        let view = match (args.json, args.quiet) {
            (_, true) => View::Nothing,
            (true, _) => View::Json,
            _ if io::stderr().is_terminal() => {
                let area = MultiProgress::new();
                let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
                let line = || area.add(ProgressBar::new_spinner().with_style(style.clone()));
                let ports = last.ports.iter().map(|_| line()).collect();
                let gro = line();
                // A generator on either side has a rate, a check, or both.
                let measurements = (0..4).map(|_| line()).collect();
                View::Terminal { area, ports, gro, measurements }
            }
            _ => View::Events,
        };
        Live { view, last, events: Vec::new(), losses: Vec::new(), given_up: 0 }
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
        let mut news = news.chain(losses.into_iter().map(|lost| format!("missed: {}", loss(lost))));
        match &self.view {
            View::Terminal { area, ports, gro, measurements } => {
                news.try_for_each(|line| area.println(line))?;
                let width = now.ports.iter().map(|p| p.name.chars().count()).max().unwrap_or(0);
                let seconds = step.elapsed.as_secs_f64().max(1e-9);
                for ((bar, port), total) in ports.iter().zip(&step.ports).zip(&now.ports) {
                    bar.set_message(line(port, total, width, seconds));
                }
                if now.gro.packets > 0 {
                    gro.set_message(gro_line(&now.gro));
                }
                for (bar, line) in measurements.iter().zip(measured.lines()) {
                    bar.set_message(line);
                }
            }
            View::Json => {
                let mut out = io::stdout().lock();
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
    pub(crate) fn end(&self) {
        if let View::Terminal { area, .. } = &self.view {
            // All at once: a line that is finished before the others stays on the terminal.
            let _ = area.clear();
            area.set_draw_target(ProgressDrawTarget::hidden());
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
    most.map_or_else(|| all.to_string(), |(reason, _)| format!("{all} ({})", reason.name()))
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
