//! The state of `top`: what it shows, and what its user chose.

use super::keys::Key;
use crate::state::{State, Unit};
use clap::ValueEnum;
use std::collections::VecDeque;
use std::time::Duration;

/// Rates of the past that are kept for the curve.
pub(super) const HISTORY: usize = 400;
/// Longest filter, in characters.
const MAX_FILTER: usize = 64;
/// The intervals that `+` and `-` choose from, in milliseconds.
const INTERVALS: [u64; 8] = [100, 200, 500, 1000, 2000, 5000, 10_000, 60_000];

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// A little of everything
    Overview,
    /// Rates, drops and totals of ports
    Ports,
    /// Rates, bursts and times of routes
    Routes,
    /// Lanes, their buckets and rates
    Lanes,
    /// The largest flows, estimated
    Flows,
    /// Applications, their users and sessions
    Sessions,
    /// What was lost: where, why, and what prevents it
    Drops,
}

impl View {
    pub(super) const ALL: [View; 7] =
        [View::Overview, View::Ports, View::Routes, View::Lanes, View::Flows, View::Sessions, View::Drops];

    pub(super) fn name(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Ports => "ports",
            View::Routes => "routes",
            View::Lanes => "lanes",
            View::Flows => "flows",
            View::Sessions => "sessions",
            View::Drops => "drops",
        }
    }

    fn step(self, by: usize) -> View {
        View::ALL[(self as usize + by) % View::ALL.len()]
    }
}

/// The column by which rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sort {
    /// None: in the order of the document, or of the view.
    pub(super) column: Option<usize>,
    /// Smallest first.
    pub(super) ascends: bool,
}

/// The last two documents, and what the user chose.
pub(crate) struct App {
    pub(super) now: Option<State>,
    pub(super) then: Option<State>,
    pub(super) view: View,
    pub(super) interval: Duration,
    pub(super) has_colour: bool,
    pub(super) filter: String,
    pub(super) edits_filter: bool,
    pub(super) paused: bool,
    pub(super) shows_help: bool,
    pub(super) quits: bool,
    /// Why there is no newer document.
    pub(super) lost: Option<String>,
    /// The first line of the body that is shown.
    pub(super) scroll: usize,
    /// Packets per second that all ports together received and sent, of the past.
    pub(super) rates: VecDeque<f64>,
    sorts: [Sort; View::ALL.len()],
}

impl App {
    pub(super) fn new(view: View, interval: Duration, has_colour: bool) -> App {
        App {
            now: None,
            then: None,
            view,
            interval,
            has_colour,
            filter: String::new(),
            edits_filter: false,
            paused: false,
            shows_help: false,
            quits: false,
            lost: None,
            scroll: 0,
            rates: VecDeque::new(),
            sorts: [Sort::default(); View::ALL.len()],
        }
    }

    /// A newer document. Rates begin anew with another process.
    pub(super) fn update(&mut self, state: State) {
        self.lost = None;
        let before = self.now.take().filter(|before| before.pid == state.pid && before.time < state.time);
        if before.is_none() {
            self.rates.clear();
        }
        (self.then, self.now) = (before, Some(state));
        if let (Some(now), Some(then)) = (&self.now, &self.then) {
            let total = |state: &State| -> u64 {
                let ports = state.units.iter().flat_map(|unit| &unit.ports);
                ports.map(|port| port.rx.packets.wrapping_add(port.tx.packets)).fold(0, u64::wrapping_add)
            };
            let rate = total(now).saturating_sub(total(then)) as f64 / self.seconds();
            self.rates.push_back(rate);
            if self.rates.len() > HISTORY {
                self.rates.pop_front();
            }
        }
    }

    /// There is no newer document.
    pub(super) fn lost(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// Seconds between the two documents.
    pub(super) fn seconds(&self) -> f64 {
        match (&self.now, &self.then) {
            (Some(now), Some(then)) => (now.time - then.time).max(1e-3),
            _ => f64::INFINITY,
        }
    }

    /// The units of now, each with itself of then.
    pub(super) fn units(&self) -> impl Iterator<Item = (&Unit, Option<&Unit>)> {
        let now = self.now.iter().flat_map(|now| &now.units);
        now.map(|unit| {
            let before = self.then.iter().flat_map(|then| &then.units).find(|before| before.name == unit.name);
            (unit, before)
        })
    }

    pub(super) fn sort(&self) -> Sort {
        self.sorts[self.view as usize]
    }

    /// Columns that the view may be sorted by; the overview has none.
    fn columns(&self) -> usize {
        super::tables::columns(self.view).len()
    }

    pub(super) fn press(&mut self, key: Key) {
        if key == Key::Interrupt {
            self.quits = true;
        } else if self.edits_filter {
            self.edit(key);
        } else if self.shows_help {
            self.shows_help = false;
        } else {
            self.command(key);
        }
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.chars().count() < MAX_FILTER => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.edits_filter = false,
            Key::Escape => {
                self.filter.clear();
                self.edits_filter = false;
            }
            _ => {}
        }
        self.scroll = 0;
    }

    fn command(&mut self, key: Key) {
        let count = View::ALL.len();
        match key {
            Key::Char('q') => self.quits = true,
            Key::Char('?' | 'h') => self.shows_help = true,
            Key::Char('/') => self.edits_filter = true,
            Key::Escape => self.filter.clear(),
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('+') => self.interval = self.other_interval(true),
            Key::Char('-') => self.interval = self.other_interval(false),
            Key::Char('s') => self.sort_by(1),
            Key::Char('S') => self.sort_by(-1),
            Key::Char('r') => self.sorts[self.view as usize].ascends ^= true,
            Key::Tab | Key::Right => self.show(self.view.step(1)),
            Key::BackTab | Key::Left => self.show(self.view.step(count - 1)),
            Key::Char(c) => {
                let number = c.to_digit(10).and_then(|n| (n as usize).checked_sub(1));
                if let Some(view) = number.and_then(|n| View::ALL.get(n)) {
                    self.show(*view);
                }
            }
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll = self.scroll.saturating_add(1),
            Key::PageUp => self.scroll = self.scroll.saturating_sub(20),
            Key::PageDown => self.scroll = self.scroll.saturating_add(20),
            Key::Home => self.scroll = 0,
            Key::End => self.scroll = usize::MAX,
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        (self.view, self.scroll) = (view, 0);
    }

    /// The next or the previous column; none lies between the last and the first.
    fn sort_by(&mut self, by: isize) {
        let choices = self.columns() as isize + 1;
        let sort = &mut self.sorts[self.view as usize];
        let at = sort.column.map_or(0, |column| column as isize + 1);
        let next = (at + by).rem_euclid(choices);
        sort.column = usize::try_from(next - 1).ok();
    }

    fn other_interval(&self, longer: bool) -> Duration {
        let mut all = INTERVALS.map(Duration::from_millis).into_iter();
        let other = if longer { all.find(|one| *one > self.interval) } else { all.rfind(|one| *one < self.interval) };
        other.unwrap_or(self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::example;

    fn app() -> App {
        App::new(View::Ports, Duration::from_secs(1), false)
    }

    #[test]
    fn sorting_goes_through_all_columns_and_none_in_both_directions() {
        let mut app = app();
        let count = app.columns();
        let seen: Vec<_> = (0..=count)
            .map(|_| {
                app.press(Key::Char('s'));
                app.sort().column
            })
            .collect();
        assert_eq!(seen, (0..count).map(Some).chain([None]).collect::<Vec<_>>());
        app.press(Key::Char('S'));
        assert_eq!(app.sort().column, Some(count - 1));
    }

    #[test]
    fn rates_begin_anew_with_another_process() {
        let mut app = app();
        app.update(example(100));
        assert!(app.seconds().is_infinite());
        app.update(example(200));
        assert_eq!((app.seconds(), app.rates.len()), (100.0, 1));
        app.update(State { pid: 2, ..example(300) });
        assert!(app.then.is_none() && app.rates.is_empty());
    }

    #[test]
    fn what_is_typed_into_the_filter_is_no_command() {
        let mut app = app();
        for key in [Key::Char('/'), Key::Char('q'), Key::Char('1'), Key::Backspace, Key::Enter] {
            app.press(key);
        }
        assert_eq!((app.filter.as_str(), app.quits, app.view), ("q", false, View::Ports));
        app.press(Key::Escape);
        assert_eq!(app.filter, "");
        app.press(Key::Char('q'));
        assert!(app.quits);
    }

    #[test]
    fn the_interval_has_bounds() {
        let mut app = app();
        for _ in 0..20 {
            app.press(Key::Char('-'));
        }
        assert_eq!(app.interval, Duration::from_millis(100));
        for _ in 0..20 {
            app.press(Key::Char('+'));
        }
        assert_eq!(app.interval, Duration::from_secs(60));
    }
}
