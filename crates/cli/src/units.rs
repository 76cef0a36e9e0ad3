//! Numbers with SI prefixes and three digits.

/// `4.71 M`, `812 `, `0 `: a value with its SI prefix, to be followed by the unit.
pub(crate) fn si(value: f64) -> String {
    let (mut scaled, mut prefix) = (value, "");
    for next in ["k", "M", "G", "T"] {
        if scaled < 999.5 {
            break;
        }
        (scaled, prefix) = (scaled / 1000.0, next);
    }
    let digits = match scaled {
        s if prefix.is_empty() && s.fract() == 0.0 => 0,
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {prefix}")
}

/// A whole number in groups of three: `12 345 678`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_prefix() {
        let cases = [(0.0, "0 "), (812.0, "812 "), (999.7, "1.00 k"), (4_712_000.0, "4.71 M"), (47.12e9, "47.1 G")];
        for (value, text) in cases {
            assert_eq!(si(value), text);
        }
    }

    #[test]
    fn whole_numbers_are_grouped() {
        assert_eq!((grouped(0), grouped(999), grouped(1_234_567)), ("0".into(), "999".into(), "1 234 567".into()));
    }
}
