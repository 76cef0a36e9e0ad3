//! Figures of the reports of benches and of `measure`, from their JSON.
//!
//! | file | content |
//! |---|---|
//! | `mod` | what a figure is; the file |
//! | `figures` | which figures a report has, by its keys |
//! | `draw` | a figure as SVG |

mod draw;
mod figures;

use serde_json::Value;
use std::error::Error;
use std::fs;
use std::path::Path;

/// A panel of a drawing.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    title: String,
    /// What the values are, with their unit.
    unit: String,
    kind: Kind,
}

/// The series of a figure.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Values by category, one bar for each series.
    Bars {
        series: Vec<String>,
        /// Each with a value of each series; NaN for none.
        rows: Vec<(String, Vec<f64>)>,
        log: bool,
    },
    /// Values over a number.
    Lines { x: String, log_x: bool, series: Vec<(String, Vec<(f64, f64)>)> },
}

/// Whether a report has no figure.
pub(super) fn is_empty(report: &Value) -> bool {
    figures::all(report).is_empty()
}

/// Draws all figures of a report into a file.
///
/// # Errors
/// A report without a figure, or a file that can't be written.
pub(super) fn write(report: &Value, file: &Path) -> Result<(), Box<dyn Error>> {
    let figures = figures::all(report);
    if figures.is_empty() {
        return Err("there is nothing to draw: must be the object that --json of a bench or of measure prints".into());
    }
    let mut subtitle = report["machine"]["cpu"].as_str().unwrap_or_default().to_owned();
    for (key, what) in [("kernel", ""), ("build", " build")] {
        if let Some(text) = report["machine"][key].as_str() {
            subtitle += &format!(", {text}{what}");
        }
    }
    if report["partial"] == true || report["interrupted"] == true {
        subtitle += "; PARTIAL: it was interrupted";
    }
    let svg = draw::svg(&figures, &subtitle)?;
    fs::write(file, svg).map_err(|error| format!("--svg {}: {error}", file.display()))?;
    Ok(())
}

/// Draws the report that a file has.
pub(super) fn plot(json: &Path, svg: &Path) -> Result<(), Box<dyn Error>> {
    let name = json.display();
    let text = fs::read_to_string(json).map_err(|error| format!("{name}: {error}"))?;
    // A command that moves packets prints a line for each interval: the last one counts.
    let report = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let whole = serde_json::from_str(&text).or_else(|_| serde_json::from_str(report));
    let report: Value = whole.map_err(|error| format!("{name}: must be JSON: {error}"))?;
    write(&report, svg).map_err(|error| format!("{name}: {error}").into())
}
