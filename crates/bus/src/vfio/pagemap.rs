//! Physical addresses, for devices without an IOMMU ([pagemap]).
//!
//! Only reserved huge pages are usable: the kernel may move all others at any time, locked or not.
//!
//! [pagemap]: https://docs.kernel.org/admin-guide/mm/pagemap.html

use crate::dma::MapError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// An entry of `/proc/self/pagemap`: the page is present, and its frame number.
const PRESENT: u64 = 1 << 63;
const NUMBER: u64 = (1 << 55) - 1;

/// A flag of `/proc/kpageflags`: the page is part of a reserved huge page.
const HUGETLB: u64 = 1 << 17;

/// The physical address of `len` bytes, if they lie in contiguous reserved huge pages.
pub(super) fn contiguous(at: NonNull<u8>, len: usize) -> Result<u64, MapError> {
    let page = towpath_sys::mmap::page_size();
    let table = open("/proc/self/pagemap", "opening /proc/self/pagemap")?;
    let flags = open("/proc/kpageflags", "opening /proc/kpageflags (only root may)")?;
    let first_page = (at.addr().get() / page) as u64;
    contiguous_address(
        (0..len / page).map(|i| {
            let entry = entry(&table, first_page + i as u64, "reading /proc/self/pagemap")?;
            let number = entry & NUMBER;
            if entry & PRESENT != 0 && number == 0 {
                let denied = io::Error::from(io::ErrorKind::PermissionDenied);
                return Err(MapError::Os {
                    step: "physical addresses are shown only with CAP_SYS_ADMIN",
                    source: denied,
                });
            }
            let huge = entry & PRESENT != 0
                && super::pagemap::entry(&flags, number, "reading /proc/kpageflags")? & HUGETLB != 0;
            Ok(huge.then_some(number))
        }),
        page,
    )
}

/// The address of the first page, if the frame numbers are consecutive.
fn contiguous_address(
    pages: impl Iterator<Item = Result<Option<u64>, MapError>>,
    page: usize,
) -> Result<u64, MapError> {
    let mut first = None;
    for (i, number) in pages.enumerate() {
        let number = number?;
        let first = *first.get_or_insert(number.unwrap_or(0));
        if number != Some(first + i as u64) {
            return Err(MapError::NonContiguous { offset: i * page });
        }
    }
    first.and_then(|number| number.checked_mul(page as u64)).ok_or(MapError::Foreign)
}

fn open(path: &str, step: &'static str) -> Result<File, MapError> {
    File::open(path).map_err(|source| MapError::Os { step, source })
}

fn entry(table: &File, number: u64, step: &'static str) -> Result<u64, MapError> {
    let mut bytes = [0; 8];
    table.read_exact_at(&mut bytes, number * 8).map_err(|source| MapError::Os { step, source })?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Region};

    fn of(pages: &[Option<u64>]) -> Result<u64, MapError> {
        contiguous_address(pages.iter().map(|&p| Ok(p)), 4096)
    }

    #[test]
    fn pages_that_follow_each_other_have_the_address_of_the_first() {
        assert_eq!(of(&[Some(512), Some(513), Some(514)]).unwrap(), 512 * 4096);
    }

    #[test]
    fn the_first_page_that_does_not_follow_is_named() {
        assert!(matches!(of(&[Some(512), Some(513), Some(515)]), Err(MapError::NonContiguous { offset: 8192 })));
        assert!(matches!(of(&[Some(512), None]), Err(MapError::NonContiguous { offset: 4096 })));
        assert!(matches!(of(&[None]), Err(MapError::NonContiguous { offset: 0 })));
    }

    #[test]
    fn ordinary_memory_is_never_taken_for_memory_that_stays() {
        let region = Region::new(4096, Backing::Anonymous).unwrap();
        // SAFETY: the first byte is inside the mapping, which only this test uses.
        unsafe { region.base().write(1) };
        let refused = contiguous(region.base(), 4096).unwrap_err();
        assert!(matches!(refused, MapError::NonContiguous { offset: 0 } | MapError::Os { .. }), "{refused}");
    }
}
