//! Which run made a report, so that one that is kept says where it comes from.

use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The run of the command that a report is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Provenance {
    /// Of towpath.
    version: &'static str,
    /// The command line, words separated by spaces.
    command: String,
    /// The day on which the report was made (UTC), as `YYYY-MM-DD`.
    date: String,
}

impl Provenance {
    /// This run.
    pub(crate) fn this() -> Provenance {
        let words = std::env::args_os().skip(1).map(|word| format!(" {}", word.to_string_lossy()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Provenance {
            version: env!("CARGO_PKG_VERSION"),
            command: std::iter::once("towpath".to_owned()).chain(words).collect(),
            date: date(now.as_secs() / 86_400),
        }
    }
}

/// The Gregorian date of a day, counted from 1970-01-01.
fn date(day: u64) -> String {
    // Years begin with March, so that a leap day is the last of its year. 719 468 days are from
    // 0000-03-01 to 1970-01-01, 146 097 in each 400 years.
    let days = day + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Five months have 153 days, from March and from August on.
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (400 * era + year + u64::from(month > 9), if month > 9 { month - 9 } else { month + 3 });
    format!("{year:04}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_leap_years_and_centuries() {
        let days = [0, 58, 59, 789, 790, 11_016, 11_017, 20_785, 47_540, 47_541].map(date);
        let dates = ["1970-01-01", "1970-02-28", "1970-03-01", "1972-02-29", "1972-03-01", "2000-02-29", "2000-03-01"];
        assert_eq!(days[..7], dates);
        assert_eq!(days[7..], ["2026-11-28", "2100-02-28", "2100-03-01"]);
    }
}
