//! Values of options: times, numbers, cores.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use towpath::ports::uri::{parse_duration, parse_number};

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).ok_or("must be a time such as 250us, 10ms, 5s, 2m")?;
    if time > Duration::from_secs(100 * 365 * 86400) {
        Err("must be less than a hundred years".into())
    } else {
        Ok(time)
    }
}

/// A time that is not zero.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| if time.is_zero() { Err("must be above 0".into()) } else { Ok(time) })
}

/// A core, or a range of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cores(RangeInclusive<usize>);

impl Cores {
    /// All cores of a list, in order.
    pub(crate) fn all(list: &[Cores]) -> Vec<usize> {
        list.iter().flat_map(|cores| cores.0.clone()).collect()
    }
}

impl FromStr for Cores {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Cores, &'static str> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            // So many cores as `CPU_SETSIZE` of glibc has at most, several times.
            (Ok(first), Ok(last)) if first <= last && last < 1 << 16 => Ok(Cores(first..=last)),
            _ => Err("must be numbers of cores and ranges of them, such as 0-1,3"),
        }
    }
}

pub(super) fn number(text: &str) -> Result<u64, String> {
    match parse_number(text) {
        Some(n) if n > 0 => Ok(n),
        _ => Err("must be a whole number above 0; k, M and G are powers of 1000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        let cores =
            |text: &str| text.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().map(|list| Cores::all(&list));
        assert_eq!(cores("3,0-2"), Ok(vec![3, 0, 1, 2]));
        for bad in ["", "2-1", "0-", "-1", "a", "0-99999999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }
}
