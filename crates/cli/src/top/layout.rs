//! Columns in the width of a terminal; sorting and filtering of rows.

use super::app::Sort;
use crate::state::printable::{columns as width_of, fit, printable};
use std::cmp::Ordering;

/// Columns between two columns.
const GAP: usize = 2;
/// A text has at least so many columns, if it needs them.
const MIN_TEXT: usize = 8;

/// A column of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Left aligned, and as wide as there is room.
    pub(super) is_text: bool,
}

/// A cell of a row.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Text(String),
    /// A number as it is printed, and by which rows are sorted.
    Number(String, f64),
    /// A number that should be 0.
    Bad(String, f64),
}

impl Cell {
    pub(super) fn text(&self) -> &str {
        match self {
            Cell::Text(text) | Cell::Number(text, _) | Cell::Bad(text, _) => text,
        }
    }

    /// Whether it deserves attention.
    pub(super) fn is_bad(&self) -> bool {
        matches!(self, Cell::Bad(_, n) if *n > 0.0)
    }

    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Number(_, a) | Cell::Bad(_, a), Cell::Number(_, b) | Cell::Bad(_, b)) => b.total_cmp(a),
            (a, b) => a.text().cmp(b.text()),
        }
    }
}

/// The rows that match the filter, in their order: numbers descend, texts ascend.
pub(super) fn arrange(rows: Vec<Vec<Cell>>, filter: &str, sort: Sort) -> Vec<Vec<Cell>> {
    let filter = filter.to_lowercase();
    let matches =
        |row: &Vec<Cell>| filter.is_empty() || row.iter().any(|cell| cell.text().to_lowercase().contains(&filter));
    let mut rows: Vec<_> = rows.into_iter().filter(matches).collect();
    if let Some(column) = sort.column {
        rows.sort_by(|a, b| match (a.get(column), b.get(column)) {
            (Some(a), Some(b)) => a.compare(b),
            _ => Ordering::Equal,
        });
    }
    if sort.ascends {
        rows.reverse();
    }
    rows
}

/// Widths of the columns; 0 for those that have no room. The first columns have precedence.
pub(super) fn widths(columns: &[Column], rows: &[Vec<Cell>], total: usize) -> Vec<usize> {
    let needed = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| width_of(&printable(cell.text())));
        // A mark follows the title of the sorted column.
        cells.max().unwrap_or(0).max(columns[at].title.len() + 1)
    };
    let needs: Vec<_> = (0..columns.len()).map(needed).collect();
    let (mut widths, mut left) = (vec![0; columns.len()], total);
    for (at, column) in columns.iter().enumerate() {
        let least = if column.is_text { needs[at].min(MIN_TEXT) } else { needs[at] };
        let gap = if at == 0 { 0 } else { GAP };
        if least + gap <= left {
            widths[at] = least;
            left -= least + gap;
        } else if at == 0 {
            (widths[0], left) = (left, 0);
        } else {
            break;
        }
    }
    // What is left goes to the texts, in turn.
    while left > 0 {
        let mut given = false;
        for (at, column) in columns.iter().enumerate() {
            if left > 0 && column.is_text && widths[at] > 0 && widths[at] < needs[at] {
                widths[at] += 1;
                left -= 1;
                given = true;
            }
        }
        if !given {
            break;
        }
    }
    widths
}

/// A text in its column.
pub(super) fn aligned(text: &str, column: &Column, width: usize) -> String {
    let text = printable(text);
    if column.is_text || width_of(&text) >= width {
        return fit(&text, width);
    }
    " ".repeat(width - width_of(&text)) + &text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { title: "port", is_text: true },
        Column { title: "rx", is_text: false },
        Column { title: "remedy", is_text: true },
    ];

    fn row(name: &str, n: f64, remedy: &str) -> Vec<Cell> {
        vec![Cell::Text(name.into()), Cell::Number(format!("{n}"), n), Cell::Text(remedy.into())]
    }

    #[test]
    fn columns_never_take_more_than_the_width_and_the_first_is_always_there() {
        let rows = [row("a very long name of a port 漢字", 123_456.0, "raise something, somewhere, somehow")];
        for total in 0..120 {
            let widths = widths(COLUMNS, &rows, total);
            let shown = widths.iter().filter(|width| **width > 0).count();
            let sum = widths.iter().sum::<usize>() + GAP * shown.saturating_sub(1);
            assert!(sum <= total, "{widths:?} in {total}");
            assert!(total == 0 || widths[0] > 0, "{widths:?} in {total}");
        }
    }

    #[test]
    fn numbers_descend_texts_ascend_and_the_filter_ignores_case() {
        let rows = || vec![row("b", 1.0, "X"), row("a", 3.0, "y"), row("c", 2.0, "x")];
        let names = |filter, column, ascends| {
            let sorted = arrange(rows(), filter, Sort { column, ascends });
            sorted.iter().map(|row| row[0].text().to_owned()).collect::<String>()
        };
        assert_eq!(names("", None, false), "bac");
        assert_eq!(names("", Some(0), false), "abc");
        assert_eq!(names("", Some(1), false), "acb");
        assert_eq!(names("", Some(1), true), "bca");
        assert_eq!(names("x", None, false), "bc");
        assert_eq!(names("nothing", Some(9), false), "");
    }
}
