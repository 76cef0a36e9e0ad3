//! TOML as tables of options, each with its place in the text.

use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table.
#[derive(Debug, Default)]
pub(super) struct Table(pub(super) Vec<Entry>);

/// A key with what it has.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// The place of the key, in bytes from the beginning of the text.
    pub(super) at: usize,
    pub(super) item: Item,
}

/// What a key has.
#[derive(Debug)]
pub(super) enum Item {
    /// `true` or `false`.
    Switch(bool),
    /// A text or a number, or a list of them, as options have them; each with its place.
    Values(Vec<(String, usize)>),
    Table(Table),
}

/// What is wrong with a file.
#[derive(Debug)]
pub(crate) struct FileError {
    path: PathBuf,
    /// Line and column from 1 on, and the sentence.
    problems: Vec<(usize, usize, String)>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let mut lines = self.problems.iter().map(|(line, column, text)| format!("{path}:{line}:{column}: {text}"));
        f.write_str(&lines.by_ref().collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for FileError {}

/// What is found wrong while a text is read: all of it is shown at once.
#[derive(Debug)]
pub(super) struct Problems<'a> {
    text: &'a str,
    found: Vec<(usize, String)>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(text: &'a str) -> Problems<'a> {
        Problems { text, found: Vec::new() }
    }

    /// Adds a sentence about a place.
    pub(super) fn add(&mut self, at: usize, what: impl Into<String>) {
        self.found.push((at, what.into()));
    }

    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// Line and column of a place, from 1 on, in characters.
    pub(super) fn place(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    }

    /// The error, if there is one, in the order of the text.
    pub(super) fn end(mut self, path: &Path) -> Result<(), FileError> {
        if self.found.is_empty() {
            return Ok(());
        }
        self.found.sort_by_key(|(at, _)| *at);
        let mut found = std::mem::take(&mut self.found);
        let problems = found
            .drain(..)
            .map(|(at, what)| {
                let (line, column) = self.place(at);
                (line, column, what)
            })
            .collect();
        Err(FileError { path: path.to_owned(), problems })
    }
}

/// Reads a text.
pub(super) fn parse(text: &str, problems: &mut Problems<'_>) -> Table {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        problems.add(error.span().map_or(0, |span| span.start), error.message());
    }
    table(document.get_ref(), problems)
}

fn table(from: &DeTable<'_>, problems: &mut Problems<'_>) -> Table {
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let key: &Spanned<std::borrow::Cow<'_, str>> = key;
        let item = match value.get_ref() {
            DeValue::Boolean(is_on) => Item::Switch(*is_on),
            DeValue::Table(inner) => Item::Table(table(inner, problems)),
            DeValue::Array(all) => Item::Values(all.iter().filter_map(|one| scalar(one, problems)).collect()),
            _ => Item::Values(scalar(value, problems).into_iter().collect()),
        };
        Entry { key: key.get_ref().to_string(), at: key.span().start, item }
    };
    let mut entries: Vec<_> = from.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at);
    Table(entries)
}

fn scalar(value: &Spanned<DeValue<'_>>, problems: &mut Problems<'_>) -> Option<(String, usize)> {
    let at = value.span().start;
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => number.to_string(),
        },
        DeValue::Float(number) => number.as_str().to_owned(),
        _ => {
            problems.add(at, "must be a text, a number, or a list of them");
            return None;
        }
    };
    Some((text, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Table, String> {
        let mut problems = Problems::new(text);
        let table = parse(text, &mut problems);
        problems.end(Path::new("x.toml")).map(|()| table).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_those_of_options_in_the_order_of_the_text() {
        let table = read("b = 0x10\na = [\"x\", 1_000, 2.5]\non = true\n[t]\nk = 'v'\n").unwrap();
        let keys: Vec<_> = table.0.iter().map(|entry| (entry.key.as_str(), entry.at)).collect();
        assert_eq!(keys, [("b", 0), ("a", 9), ("on", 31), ("t", 42)]);
        let values = |n: usize| match &table.0[n].item {
            Item::Values(values) => values.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!((values(0), values(1)), (vec!["16"], vec!["x", "1000", "2.5"]));
        assert!(matches!(table.0[2].item, Item::Switch(true)) && matches!(table.0[3].item, Item::Table(_)));
    }

    #[test]
    fn everything_that_is_wrong_is_told_with_line_and_column() {
        let error = read("a = 1\nb = [[1]]\n\u{e4} = \"\u{fc}\" x\n").unwrap_err();
        let lines: Vec<_> = error.lines().collect();
        assert!(lines[0].starts_with("x.toml:2:6: must be a text"), "{error}");
        assert!(lines[1].starts_with("x.toml:3:1: ") || lines[1].starts_with("x.toml:3:"), "{error}");
        assert!(read("a = 1\na = 2\n").unwrap_err().starts_with("x.toml:2:1: "));
    }
}
