//! The mappings of the process, from `/proc/self/maps`.

use std::ops::Range;

/// One line: a range of addresses of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    /// `rw-p`.
    pub(crate) mode: String,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    /// Inode of the file; 0 for none.
    pub(crate) inode: u64,
    /// A path, `[heap]` and the like, or empty.
    pub(crate) name: String,
}

/// The mappings that overlap a range, in order.
pub(crate) fn over(range: &Range<usize>) -> std::io::Result<Vec<Mapping>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    let all = text.lines().filter_map(parse);
    Ok(all.filter(|m| m.range.start < range.end && range.start < m.range.end).collect())
}

/// Whether the mappings leave no gap in the range.
pub(crate) fn cover(mappings: &[Mapping], range: &Range<usize>) -> bool {
    let reached = mappings.iter().try_fold(range.start, |at, m| (m.range.start <= at).then_some(m.range.end));
    reached.is_some_and(|end| end >= range.end)
}

/// `7f00-7f10 rw-s 00001000 00:01 2050   /memfd:x (deleted)`
fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let (mode, offset, _device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Mapping {
        range: hex(from)?..hex(to)?,
        mode: mode.to_owned(),
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        name: words.next().unwrap_or_default().trim_start().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_a_name() {
        let m = parse("7f00-7f10 rw-s 00001000 00:01 2050                   /memfd:a b (deleted)").unwrap();
        assert_eq!((m.range, m.mode.as_str(), m.offset, m.inode), (0x7f00..0x7f10, "rw-s", 0x1000, 2050));
        assert_eq!(m.name, "/memfd:a b (deleted)");
        assert_eq!(parse("10-20 ---p 00000000 00:00 0").unwrap().name, "");
        assert_eq!(parse("10-20 ---p 00000000"), None);
    }

    #[test]
    fn gaps_are_noticed() {
        let at = |range: Range<usize>| Mapping { range, ..parse("0-0 rw-p 00000000 00:00 0").unwrap() };
        let (a, b, c) = (at(0..10), at(10..20), at(30..40));
        assert!(cover(&[a.clone(), b.clone()], &(5..20)) && cover(std::slice::from_ref(&b), &(12..15)));
        assert!(!cover(&[b.clone(), c], &(12..35)) && !cover(&[a], &(5..11)) && !cover(&[b], &(5..15)));
        assert!(!cover(&[], &(0..1)));
    }

    #[test]
    fn a_variable_of_this_process_is_in_it() {
        let here = std::ptr::from_ref(&NUMBER) as usize;
        assert!(cover(&over(&(here..here + 1)).unwrap(), &(here..here + 1)));
    }
    static NUMBER: u8 = 7;
}
