//! Figures as SVG: panels below each other, in colours that colour-blind readers tell apart.

use super::axis::{Axis, Scale};
use super::{Figure, Kind};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

const WIDTH: u32 = 1000;
/// Height of what stands above the first panel.
const HEAD: u32 = 54;
/// Height of a panel of lines, and of its plot's title.
const LINES: u32 = 330;
const TITLE: u32 = 46;
/// Height of a bar, and of the gap between two rows of bars.
const BAR: u32 = 15;
const GAP: u32 = 9;
/// Width of the names of rows, and of the legend of lines.
const NAMES: u32 = 380;
const LEGEND: u32 = 330;
/// Width of the value behind a bar.
const VALUE: u32 = 90;

/// The colours of Okabe and Ito, without yellow.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(60, 60, 60),
];

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&RGBColor(40, 40, 40))
}

/// The text of an SVG file.
pub(super) fn svg(figures: &[Figure], heading: &[String; 2]) -> Result<String, Box<dyn Error>> {
    let heights: Vec<u32> = figures.iter().map(height).collect();
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEAD + heights.iter().sum::<u32>())).into_drawing_area();
        root.fill(&WHITE)?;
        for (line, y) in heading.iter().zip([10, 28]) {
            root.draw_text(&cut(line, 150), &font(13), (12, y))?;
        }
        let (_, mut rest) = root.split_vertically(HEAD);
        for (figure, height) in figures.iter().zip(heights) {
            let (panel, below) = rest.split_vertically(height);
            rest = below;
            match &figure.kind {
                Kind::Bars { series, rows, log } => bars(&panel, figure, series, rows, *log)?,
                Kind::Lines { x, x_scale, y_scale, series } => lines(&panel, figure, x, [*x_scale, *y_scale], series)?,
            }
        }
        root.present()?;
    }
    Ok(text)
}

fn height(figure: &Figure) -> u32 {
    match &figure.kind {
        Kind::Bars { series, rows, .. } => TITLE + rows.len() as u32 * (series.len() as u32 * BAR + GAP) + 3 * GAP,
        Kind::Lines { series, .. } => LINES.max(TITLE + 20 * series.len() as u32 + 20),
    }
}

/// A text of at most so many characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

/// A number with at most four digits that count.
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

fn title(panel: &Area<'_>, figure: &Figure) -> Drawn {
    panel.draw_text(&format!("{} ({})", figure.title, figure.unit), &font(18), (12, 14))?;
    Ok(())
}

fn bars(panel: &Area<'_>, figure: &Figure, series: &[String], rows: &[(String, Vec<f64>)], log: bool) -> Drawn {
    title(panel, figure)?;
    let right = Pos::new(HPos::Right, VPos::Center);
    let left = Pos::new(HPos::Left, VPos::Center);
    if series.len() > 1 {
        let wide = |name: &String| 32 + 7 * name.chars().count() as i32;
        let mut at = WIDTH as i32 - 12 - series.iter().map(wide).sum::<i32>();
        for (number, name) in series.iter().enumerate() {
            panel.draw(&Rectangle::new([(at, 18), (at + 12, 30)], colour(number).filled()))?;
            panel.draw_text(name, &font(14).pos(left), (at + 17, 24))?;
            at += wide(name);
        }
    }
    let values = || rows.iter().flat_map(|(_, values)| values.iter().copied()).filter(|value| *value > 0.0);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::MIN_POSITIVE, f64::max));
    // Over a wide range on a logarithmic scale, which begins at a power of ten.
    let log = log && most > 20.0 * least;
    let base = 10f64.powf((least * 0.7).log10().floor());
    let part = |value: f64| if log { (value / base).log10() / (most / base).log10() } else { value / most };
    let room = f64::from(WIDTH - NAMES - VALUE);
    let mut top = TITLE as i32;
    for (name, values) in rows {
        let tall = (series.len() as u32 * BAR) as i32;
        panel.draw_text(&cut(name, 66), &font(13).pos(right), (NAMES as i32 - 8, top + tall / 2))?;
        for (number, value) in values.iter().enumerate() {
            let y = top + number as i32 * BAR as i32;
            let length = if *value > 0.0 { (part(*value).clamp(0.0, 1.0) * room) as i32 } else { 0 };
            let end = NAMES as i32 + length.max(1);
            panel.draw(&Rectangle::new([(NAMES as i32, y + 1), (end, y + BAR as i32 - 1)], colour(number).filled()))?;
            let text = if value.is_finite() { short(*value) } else { "none".to_owned() };
            panel.draw_text(&text, &font(12).pos(left), (end + 5, y + BAR as i32 / 2))?;
        }
        top += tall + GAP as i32;
    }
    if log {
        let note = "logarithmic, from ".to_owned() + &short(base);
        panel.draw_text(&note, &font(12), (NAMES as i32, top))?;
    }
    Ok(())
}

fn lines(
    panel: &Area<'_>,
    figure: &Figure,
    x: &str,
    [x_scale, y_scale]: [Scale; 2],
    series: &[(String, Vec<(f64, f64)>)],
) -> Drawn {
    title(panel, figure)?;
    let (_, below) = panel.split_vertically(TITLE);
    let (plot, legend) = below.split_horizontally(WIDTH - LEGEND);
    let has = |(x, y): &&(f64, f64)| x_scale.has(*x) && y_scale.has(*y);
    let points = || series.iter().flat_map(|(_, points)| points.iter().filter(has).copied());
    let wide = Axis::over(x_scale, points().map(|(x, _)| x), 0.03);
    let high = Axis::over(y_scale, points().map(|(_, y)| y), 0.06);
    let mut chart =
        ChartBuilder::on(&plot).margin(8).x_label_area_size(44).y_label_area_size(64).build_cartesian_2d(wide, high)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(RGBColor(120, 120, 120))
        .x_desc(x)
        .label_style(font(13))
        .axis_desc_style(font(14))
        .draw()?;
    for (number, (name, points)) in series.iter().enumerate() {
        let colour = colour(number);
        let drawn: Vec<_> = points.iter().filter(has).copied().collect();
        chart.draw_series(LineSeries::new(drawn.iter().copied(), colour.stroke_width(2)))?;
        // Those beyond the seventh have the same colours, and open marks.
        let mark = |at: (f64, f64)| match number < COLOURS.len() {
            true => Circle::new(at, 4, colour.filled()),
            false => Circle::new(at, 5, colour.stroke_width(2)),
        };
        chart.draw_series(drawn.iter().copied().map(mark))?;
        let y = 14 + 20 * number as i32;
        let style = if number < COLOURS.len() { colour.filled() } else { colour.stroke_width(2) };
        legend.draw(&Circle::new((12, y), 5, style))?;
        legend.draw_text(&cut(name, 52), &font(13).pos(Pos::new(HPos::Left, VPos::Center)), (24, y))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let texts = [0.0, 0.0123, 1.5, 12.34, 123.4, 9999.0, 12_345.0, 4.7e6, 1e9].map(short);
        assert_eq!(texts, ["0", "0.012", "1.5", "12.3", "123", "9999", "12.3 k", "4.7 M", "1 G"]);
    }

    #[test]
    fn a_drawing_has_every_name_and_is_as_high_as_its_panels() {
        let rows = vec![("first".to_owned(), vec![1.0, 2000.0]), ("second".to_owned(), vec![f64::NAN, 0.0])];
        let bars = Kind::Bars { series: vec!["off".into(), "on".into()], rows, log: true };
        let points = (0..9).map(|number| (format!("line {number}"), vec![(64.0, 1.0), (1500.0, f64::NAN)])).collect();
        let lines =
            Kind::Lines { x: "bytes".into(), x_scale: Scale::Doublings, y_scale: Scale::Linear, series: points };
        let figure = |kind| Figure { title: "title <&>".into(), unit: "ns".into(), kind };
        let figures = [figure(bars), figure(lines)];
        let text = svg(&figures, &["machine".into(), "run".into()]).unwrap();
        for part in [
            "machine",
            "run",
            "first",
            "second",
            "none",
            "line 8",
            "bytes",
            "logarithmic, from",
            "title &lt;&amp;&gt; (ns)",
        ] {
            assert!(text.contains(part), "{part}");
        }
        let height = HEAD + figures.iter().map(height).sum::<u32>();
        assert!(text.contains(&format!("height=\"{height}\"")));
    }
}
