//! Figures of the reports of benches and of `measure`, from their JSON.
//!
//! | file | content |
//! |---|---|
//! | `mod` | what a figure is; the file |
//! | `figures` | which figures a report has, by its keys |
//! | `draw` | a figure as SVG |
//! | `axis` | scales of lines, and their marks |

mod axis;
mod draw;
mod figures;

use axis::Scale;
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
    Lines {
        /// What the number is.
        x: String,
        x_scale: Scale,
        y_scale: Scale,
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
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
    let svg = draw::svg(&figures, &heading(report))?;
    fs::write(file, svg).map_err(|error| format!("--svg {}: {error}", file.display()))?;
    Ok(())
}

/// What stands above the figures: the machine, then the run.
fn heading(report: &Value) -> [String; 2] {
    let machine = &report["machine"];
    let mut first: Vec<String> = vec![machine["cpu"].as_str().unwrap_or_default().to_owned()];
    if machine["virtual"] == true {
        first.push("virtual machine".to_owned());
    }
    if let Some(cores) = machine["cores"].as_u64() {
        first.push(format!("{cores} cores"));
    }
    first.extend(machine["kernel"].as_str().map(str::to_owned));
    first.extend(machine["load"].as_f64().map(|load| format!("load {load}")));
    first.extend(machine["build"].as_str().map(|build| format!("{build} build")));
    let mut second: Vec<String> = Vec::new();
    if report["partial"] == true || report["interrupted"] == true {
        second.push("PARTIAL: it was interrupted".to_owned());
    }
    second.extend(report["version"].as_str().map(|version| format!("towpath {version}")));
    second.extend(report["date"].as_str().map(str::to_owned));
    second.extend(report["command"].as_str().map(str::to_owned));
    [first.join(", "), second.join(", ")]
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
