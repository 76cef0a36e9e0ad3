//! Texts of users, files and peers, as a terminal may have them.

use unicode_width::UnicodeWidthChar;

/// The text without control characters, which could move the cursor or change the terminal. Each
/// becomes `�`, as do characters that change the direction of text.
pub(crate) fn printable(text: &str) -> String {
    let is_safe = |c: char| {
        let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        !c.is_control() && !reorders
    };
    text.chars().map(|c| if is_safe(c) { c } else { '\u{fffd}' }).collect()
}

/// The columns that a printable text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The text in exactly `width` columns: filled with spaces, or cut, with `…` as the last character.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let text = printable(text);
    let has = columns(&text);
    if has <= width {
        return text + &" ".repeat(width - has);
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        let more = c.width().unwrap_or(0);
        if used + more + 1 > width {
            break;
        }
        out.push(c);
        used += more;
    }
    if width > 0 {
        out.push('…');
        used += 1;
    }
    out + &" ".repeat(width.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_has_control_characters_or_changes_its_direction() {
        assert_eq!(printable("a\u{1b}[31mb\n\u{202e}c\u{9b}"), "a\u{fffd}[31mb\u{fffd}\u{fffd}c\u{fffd}");
        assert_eq!(printable("漢字 é"), "漢字 é");
    }

    #[test]
    fn a_text_takes_exactly_its_columns_also_with_wide_characters() {
        for text in ["", "a", "abcdef", "漢字漢字", "e\u{301}e\u{301}", "\u{1b}[0m"] {
            for width in 0..10 {
                assert_eq!(columns(&fit(text, width)), width, "{text} in {width}");
            }
        }
        assert_eq!((fit("漢字漢", 5), fit("漢字漢", 4)), ("漢字…".into(), "漢… ".into()));
    }
}
