//! An [`App`] as lines of text with styles.
//!
//! ```text
//!   towpath 0.1.0 fwd  pid 71  up 3 min 07 s            the instance, and whether it still answers
//!   1 overview  2 ports  3 routes  …                     the views
//!   …                                                    the body, which scrolls
//!   ? help  q quit  / filter                             keys, the filter, the interval
//! ```

use super::app::{App, View};
use super::layout::{Cell, aligned, arrange, widths};
use super::tables::{columns, missed, port_before, rate, rows, sum};
use crate::state::printable::{columns as width_of, fit, printable};
pub(super) use crate::state::short_span;
use crate::state::{Unit, list, span};
use crate::units::{grouped, si};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};
use ratatui_core::widgets::Widget;

/// Lines above and below the body.
const FRAME: usize = 3;

const HELP: &[(&str, &str)] = &[
    ("1 to 7, Tab", "the views"),
    ("s, S", "sort by the next or previous column"),
    ("r", "reverse the order"),
    ("/", "filter rows by a text; Escape clears it"),
    ("p, Space", "pause"),
    ("+, -", "longer, shorter interval"),
    ("arrows, Page", "scroll"),
    ("?", "this help"),
    ("q, ^C", "end"),
];

/// What a style means.
#[derive(Clone, Copy)]
enum Mark {
    Plain,
    Dim,
    Title,
    Good,
    Bad,
    Chosen,
}

impl Mark {
    fn style(self, has_colour: bool) -> Style {
        let plain = Style::new();
        let coloured = |colour| if has_colour { plain.fg(colour) } else { plain };
        match self {
            Mark::Plain => plain,
            Mark::Dim => plain.add_modifier(Modifier::DIM),
            Mark::Title => coloured(Color::Cyan).add_modifier(Modifier::BOLD),
            Mark::Good => coloured(Color::Green),
            Mark::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
            Mark::Chosen => plain.add_modifier(Modifier::REVERSED),
        }
    }
}

/// A line that is made of marked texts.
struct Marked<'a>(Vec<(Mark, String)>, &'a App);

impl Marked<'_> {
    fn new(app: &App) -> Marked<'_> {
        Marked(Vec::new(), app)
    }

    fn add(mut self, mark: Mark, text: impl Into<String>) -> Self {
        self.0.push((mark, printable(&text.into())));
        self
    }

    fn line(self) -> Line<'static> {
        let has_colour = self.1.has_colour;
        Line::from_iter(self.0.into_iter().map(|(mark, text)| Span::styled(text, mark.style(has_colour))))
    }
}

/// Draws into a buffer. The scroll position is put within its bounds.
pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let body = if app.shows_help { help(app) } else { body(app, width) };
    let room = height.saturating_sub(FRAME);
    app.scroll = app.scroll.min(body.len().saturating_sub(room));
    let frame = [head(app, width), tabs(app, width)];
    let shown = body.into_iter().skip(app.scroll).take(room);
    for (y, line) in frame.into_iter().chain(shown).take(height).enumerate() {
        line.render(Rect { y: area.y + y as u16, height: 1, ..area }, buffer);
    }
    if height >= FRAME {
        foot(app, width).render(Rect { y: area.y + area.height - 1, height: 1, ..area }, buffer);
    }
}

/// The picture of `--once`: the head and the whole body, without trailing spaces.
pub(super) fn whole(app: &App, columns: u16) -> Vec<String> {
    let width = usize::from(columns);
    let lines = std::iter::once(head(app, width)).chain(body(app, width));
    let text = |line: Line<'_>| line.spans.iter().map(|span| span.content.as_ref()).collect::<String>();
    lines.map(|line| fit(&text(line), width).trim_end().to_owned()).collect()
}

fn head(app: &App, width: usize) -> Line<'static> {
    let Some(state) = &app.now else { return Line::default() };
    if let Some(why) = &app.lost {
        return Marked::new(app).add(Mark::Bad, fit(&format!("NO ANSWER, the last picture: {why}"), width)).line();
    }
    let what = format!("towpath {} {}  pid {}  up {}", state.version, state.command, state.pid, span(state.uptime));
    let mut line = Marked::new(app).add(Mark::Title, fit(&what, width.min(width_of(&printable(&what)))));
    if app.paused {
        line = line.add(Mark::Bad, "  PAUSED");
    }
    line.line()
}

fn tabs(app: &App, width: usize) -> Line<'static> {
    let full: usize = View::ALL.iter().map(|view| view.name().len() + 4).sum();
    View::ALL
        .iter()
        .enumerate()
        .fold(Marked::new(app), |line, (at, view)| {
            let mark = if *view == app.view { Mark::Chosen } else { Mark::Dim };
            // In a narrow terminal only the chosen view has its name.
            let text = if full <= width || *view == app.view {
                format!("{} {}", at + 1, view.name())
            } else {
                format!("{}", at + 1)
            };
            line.add(mark, text).add(Mark::Plain, if full <= width { "  " } else { " " })
        })
        .line()
}

fn foot(app: &App, width: usize) -> Line<'static> {
    let line = Marked::new(app);
    if app.edits_filter {
        return line.add(Mark::Plain, format!("filter: {}", app.filter)).add(Mark::Chosen, " ").line();
    }
    let filter = if app.filter.is_empty() { String::new() } else { format!("  filter: {}", app.filter) };
    let text = format!("? help  q quit  every {:?}{filter}", app.interval);
    line.add(Mark::Dim, fit(&text, width)).line()
}

fn help(app: &App) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    let row = |(key, what): &(&str, &str)| {
        Marked::new(app).add(Mark::Title, format!("  {key:13}")).add(Mark::Plain, *what).line()
    };
    lines.extend(HELP.iter().map(row));
    lines
}

fn body(app: &App, width: usize) -> Vec<Line<'static>> {
    match app.view {
        View::Overview => overview(app, width),
        view => table(app, view, width, usize::MAX),
    }
}

/// A view as a table, with at most so many rows.
fn table(app: &App, view: View, width: usize, most: usize) -> Vec<Line<'static>> {
    let (columns, sort) = (columns(view), if view == app.view { app.sort() } else { Default::default() });
    let rows = arrange(rows(app, view), &app.filter, sort);
    let widths = widths(columns, &rows, width);
    let shown = || columns.iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0);
    let gap = |at: usize| if at == 0 { "" } else { "  " };
    let head = shown().fold(Marked::new(app), |line, (at, (column, width))| {
        let mark = if sort.column != Some(at) {
            ""
        } else if sort.ascends {
            "^"
        } else {
            "v"
        };
        let title = aligned(&format!("{}{mark}", column.title), column, *width);
        line.add(Mark::Plain, gap(at)).add(if mark.is_empty() { Mark::Dim } else { Mark::Title }, title)
    });
    let mut lines = vec![head.line()];
    for row in rows.iter().take(most) {
        let line = shown().fold(Marked::new(app), |line, (at, (column, width))| {
            let cell = row.get(at);
            let mark = match cell {
                Some(cell) if cell.is_bad() => Mark::Bad,
                Some(Cell::Bad(text, _)) if text == "up" => Mark::Good,
                _ => Mark::Plain,
            };
            line.add(Mark::Plain, gap(at)).add(mark, aligned(cell.map_or("", Cell::text), column, *width))
        });
        lines.push(line.line());
    }
    if rows.is_empty() {
        let why = if app.filter.is_empty() { "nothing here" } else { "nothing matches the filter" };
        lines.push(Marked::new(app).add(Mark::Dim, why).line());
    }
    lines
}

fn overview(app: &App, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(now) = app.rates.back() {
        let most = app.rates.iter().copied().fold(0.0, f64::max);
        let text = format!("all ports {}pps, at most {}pps", si(*now), si(most));
        lines.push(Marked::new(app).add(Mark::Plain, fit(&text, width)).line());
        lines.push(Marked::new(app).add(Mark::Good, curve(app.rates.iter().copied(), width)).line());
    }
    for (unit, before) in app.units() {
        lines.extend(unit_lines(app, unit, before, width));
    }
    if app.units().next().is_none() {
        lines.push(Marked::new(app).add(Mark::Dim, "nothing runs").line());
    }
    if app.units().any(|(unit, _)| unit.routes.iter().any(|route| !route.flows.is_empty())) {
        lines.push(Line::default());
        lines.extend(table(app, View::Flows, width, 5));
    }
    lines
}

fn unit_lines(app: &App, unit: &Unit, before: Option<&Unit>, width: usize) -> Vec<Line<'static>> {
    let seconds = app.seconds();
    let text = |mark, text: String| Marked::new(app).add(mark, fit(&text, width)).line();
    let mut lines = vec![text(Mark::Title, format!("{}  running {}", unit.name, span(unit.seconds)))];
    let needed = unit.ports.iter().map(|port| width_of(&printable(&port.name))).max().unwrap_or(0);
    let name_width = needed.clamp(4, (width / 3).max(8));
    for (at, port) in unit.ports.iter().enumerate() {
        let then = port_before(before, at, port);
        let pps =
            |now: u64, then: Option<u64>| rate(now, then, seconds).map_or("-".into(), |n| format!("{}pps", si(n)));
        let bps = |now: u64, then: Option<u64>| {
            rate(now, then, seconds).map_or("-".into(), |n| format!("{}b/s", si(n * 8.0)))
        };
        let rx = pps(port.rx.packets, then.map(|then| then.rx.packets));
        let tx = pps(port.tx.packets, then.map(|then| then.tx.packets));
        let is_well = matches!(port.link.as_str(), "up" | "done");
        let mut line = Marked::new(app)
            .add(Mark::Plain, fit(&port.name, name_width))
            .add(if is_well { Mark::Good } else { Mark::Bad }, format!(" {:4}", port.link))
            .add(Mark::Plain, format!(" rx{rx:>9} tx{tx:>9}"));
        if width >= 76 {
            let rx = bps(port.rx.bytes, then.map(|then| then.rx.bytes));
            let tx = bps(port.tx.bytes, then.map(|then| then.tx.bytes));
            line = line.add(Mark::Dim, format!(" {rx:>9} {tx:>9}"));
        }
        let drops = sum(&port.rx.drops) + sum(&port.tx.drops) + sum(&port.egress.drops);
        let lost = missed(&port.rx) + missed(&port.tx);
        for (what, n) in [("drops", drops), ("missed", lost)] {
            if n > 0 {
                line = line.add(Mark::Bad, format!(" {what} {}", si(n as f64).trim_end()));
            }
        }
        lines.push(line.line());
    }
    for route in &unit.routes {
        let stay = |part| route.latency.quantile(part).map_or("-".to_owned(), |ns| format!("<{}", short_span(ns)));
        let burst = route.packets as f64 / route.bursts.max(1) as f64;
        let what = format!("route {}  bursts of {burst:.1}  half stay {}  99 % {}", route.name, stay(0.5), stay(0.99));
        lines.push(text(Mark::Dim, what));
    }
    if unit.gro.packets > 0 {
        let percent = 100.0 * unit.gro.merged as f64 / unit.gro.packets as f64;
        let made = grouped(unit.gro.aggregates);
        lines.push(text(
            Mark::Dim,
            format!("gro   {percent:.1} % merged, {made} aggregates; {}", list(&unit.gro.flushed)),
        ));
    }
    if let Some(pool) = unit.pools.first() {
        let free = format!("{} of {}", grouped(pool.free as u64), grouped(pool.capacity as u64));
        let mark = if pool.shortages > 0 { Mark::Bad } else { Mark::Dim };
        lines.push(text(mark, format!("pool  {free} buffers free, {} shortages", grouped(pool.shortages))));
    }
    lines.extend(unit.notes.iter().map(|note| text(Mark::Dim, format!("note  {note}"))));
    lines
}

/// The newest values as a curve of eighths.
fn curve(values: impl DoubleEndedIterator<Item = f64> + ExactSizeIterator + Clone, width: usize) -> String {
    const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let newest = values.rev().take(width);
    let most = newest.clone().fold(f64::MIN_POSITIVE, f64::max);
    newest.rev().map(|value| EIGHTHS[((value / most * 8.0) as usize).min(7)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::*;
    use crate::state::State;
    use crate::state::tests::example;
    use ratatui_core::backend::TestBackend;
    use ratatui_core::terminal::Terminal;
    use std::time::Duration;

    fn app() -> App {
        let mut app = App::new(View::Overview, Duration::from_secs(1), true);
        app.update(example(1000));
        app.update(State { time: 1002.0, ..example(3000) });
        app
    }

    /// The picture in a terminal of this size.
    fn picture(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(app, frame.area(), frame.buffer_mut())).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(row).collect()
    }

    #[test]
    fn every_view_fits_every_terminal() {
        let mut app = app();
        for (width, height) in [(80, 24), (200, 50), (40, 12), (20, 5), (1, 1), (2, 3), (10, 2), (300, 100)] {
            for view in View::ALL {
                for help in [false, true] {
                    (app.view, app.shows_help, app.scroll) = (view, help, usize::MAX);
                    let lines = picture(&mut app, width, height);
                    assert!(lines.iter().flat_map(|line| line.chars()).all(|c| !c.is_control()), "{lines:?}");
                }
            }
        }
    }

    #[test]
    fn rates_are_those_between_the_documents() {
        let mut app = app();
        app.press(Key::Char('2'));
        let lines = picture(&mut app, 200, 50);
        // 2000 packets and 100 bytes each, in two seconds.
        let row = lines.iter().find(|line| line.starts_with("tap:")).unwrap();
        let words: Vec<_> = row.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect();
        assert_eq!(words[1..5], ["1.00 k", "500", "800 k", "0"], "{lines:#?}");
        app.press(Key::Char('7'));
        let lines = picture(&mut app, 120, 30);
        assert!(lines.iter().any(|line| line.contains("filtered") && line.contains("100")), "{lines:#?}");
        app.press(Key::Char('5'));
        let lines = picture(&mut app, 120, 30);
        assert!(lines[3].starts_with("10.0.0.1:1024"), "the largest flow is the first: {lines:#?}");
    }

    #[test]
    fn in_forty_columns_the_most_important_columns_are_there() {
        let mut app = app();
        app.press(Key::Char('2'));
        let lines = picture(&mut app, 40, 12);
        assert!(lines[2].contains("port") && lines[2].contains("rx pps") && lines[2].contains("tx pps"), "{lines:#?}");
        assert!(lines[1].contains("2 ports") && !lines[1].contains("overview"), "{lines:#?}");
    }

    #[test]
    fn an_instance_that_ends_leaves_the_last_picture_which_says_so() {
        let mut app = app();
        app.lost("connection refused".into());
        let lines = picture(&mut app, 80, 24);
        assert!(lines[0].starts_with("NO ANSWER, the last picture: connection refused"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("fwd  running")), "{lines:#?}");
    }

    #[test]
    fn without_colours_no_cell_has_one() {
        let mut app = app();
        app.has_colour = false;
        for view in View::ALL {
            app.view = view;
            let area = Rect::new(0, 0, 100, 30);
            let mut buffer = Buffer::empty(area);
            draw(&mut app, area, &mut buffer);
            assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        }
    }

    #[test]
    fn the_filter_and_the_sorted_column_are_seen() {
        let mut app = app();
        for key in "2/null".chars() {
            app.press(Key::Char(key));
        }
        app.press(Key::Enter);
        app.press(Key::Char('s'));
        let lines = picture(&mut app, 100, 20);
        assert!(lines[2].starts_with("portv") && !lines.iter().any(|line| line.starts_with("tap:")), "{lines:#?}");
        assert!(lines[19].contains("filter: null"), "{lines:#?}");
    }
}
