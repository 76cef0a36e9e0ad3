//! Address spaces: where the addresses of a ring lead.

use crate::area::{Area, RingWords};
use crate::chain::Piece;
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::{UntrustedBytes, UntrustedMem};

/// The address space in which a driver names its buffers, as a device sees it: a table of regions,
/// an IOTLB, or memory that both sides call the same.
pub trait AddressSpace {
    /// How a piece of memory is named to the user of a chain.
    type Place: Copy;

    /// Where `addr` leads, and how many of the `len` bytes from there on are contiguous, for the
    /// device to read or to `write`. `None` if not even the first one may be accessed. An address
    /// with a length of zero is checked too.
    fn translate(&self, addr: u64, len: u32, write: bool) -> Option<(Self::Place, u32)>;

    /// The two little-endian words at `addr`, each read once: a descriptor of an indirect table,
    /// which need not be aligned. `None` if they may not be read.
    fn read_desc(&self, addr: u64) -> Option<[u64; 2]>;
}

/// A place in a [`Regions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionPlace {
    /// Index of the region, for [`Regions::memory`].
    pub region: u32,
    /// Offset in its memory.
    pub offset: usize,
}

#[derive(Debug, Clone)]
struct MappedRegion {
    base: u64,
    len: u64,
    memory: UntrustedMem,
    offset: usize,
    /// The same bytes as words, for the descriptors of tables.
    words: Area,
}

/// A table of regions, sorted by address: the memory of a guest, as vhost-user names it
/// (`SET_MEM_TABLE`, `ADD_MEM_REG`), or of a driver in the same process.
///
/// Two regions may be neighbours. A buffer that crosses from one to the other becomes two pieces.
/// The indices of [`RegionPlace`] change with the table. A holder of a place that outlives a table
/// holds the memory as well. Each queue has a table of its own: a clone, which shares the memory.
#[derive(Debug, Default, Clone)]
pub struct Regions {
    regions: Vec<MappedRegion>,
    /// The region of the last look-up: buffers of one queue mostly lie in the same one.
    last: Cell<usize>,
}

/// Why a region was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionsError {
    /// No bytes, or the last address is beyond 64 bits.
    #[error("a region of {len} bytes at {base:#x}: must have bytes, all of them below 2^64")]
    Range {
        /// The first address.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// The memory is shorter.
    #[error("a region of {len} bytes at offset {offset}: its memory has {actual} bytes")]
    Memory {
        /// Bytes.
        len: u64,
        /// Offset in the memory.
        offset: usize,
        /// Bytes of the memory.
        actual: usize,
    },
    /// It overlaps a region of the table.
    #[error("a region of {len} bytes at {base:#x} overlaps another one")]
    Overlap {
        /// The first address.
        base: u64,
        /// Bytes.
        len: u64,
    },
}

impl Regions {
    /// An empty table.
    pub fn new() -> Regions {
        Regions::default()
    }

    /// Adds the addresses from `base` on, `len` of them, which lead to `memory` at `offset`.
    ///
    /// # Errors
    /// [`RegionsError`] if there are none, if they overlap others, or if the memory is shorter.
    pub fn add(&mut self, base: u64, len: u64, memory: UntrustedMem, offset: usize) -> Result<(), RegionsError> {
        let end = base.checked_add(len).filter(|_| len > 0).ok_or(RegionsError::Range { base, len })?;
        let actual = memory.len();
        if actual.checked_sub(offset).is_none_or(|room| (room as u64) < len) {
            return Err(RegionsError::Memory { len, offset, actual });
        }
        let words = usize::try_from(len).ok().and_then(|len| Area::new(&memory, offset, len));
        let words = words.ok_or(RegionsError::Memory { len, offset, actual })?;
        let at = self.regions.partition_point(|region| region.base < base);
        let before = at.checked_sub(1).and_then(|i| self.regions.get(i));
        let touches = before.is_some_and(|region| base - region.base < region.len)
            || self.regions.get(at).is_some_and(|region| region.base < end);
        if touches {
            return Err(RegionsError::Overlap { base, len });
        }
        self.regions.insert(at, MappedRegion { base, len, memory, offset, words });
        self.last.set(0);
        Ok(())
    }

    /// Takes out the region that begins at `base` and returns its memory.
    pub fn remove(&mut self, base: u64) -> Option<UntrustedMem> {
        let at = self.regions.iter().position(|region| region.base == base)?;
        self.last.set(0);
        Some(self.regions.remove(at).memory)
    }

    /// The memory of a place.
    #[inline]
    pub fn memory(&self, region: u32) -> Option<&UntrustedMem> {
        self.regions.get(region as usize).map(|region| &region.memory)
    }

    /// The bytes of a piece; `None` if they do not lie in its region.
    #[inline]
    pub fn bytes(&self, Piece { place, len }: Piece<RegionPlace>) -> Option<UntrustedBytes<'_>> {
        self.memory(place.region)?.bytes(place.offset, len as usize)
    }

    /// The address that leads to a place: the inverse of [`translate`](AddressSpace::translate).
    pub fn address(&self, place: RegionPlace) -> Option<u64> {
        let region = self.regions.get(place.region as usize)?;
        let at = place.offset.checked_sub(region.offset)? as u64;
        (at < region.len).then(|| region.base + at)
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The region of `addr`, and how far inside it lies.
    #[inline]
    fn find(&self, addr: u64) -> Option<(usize, &MappedRegion, u64)> {
        let last = self.last.get();
        if let Some(region) = self.regions.get(last) {
            let at = addr.wrapping_sub(region.base);
            if at < region.len {
                return Some((last, region, at));
            }
        }
        self.search(addr)
    }

    #[cold]
    fn search(&self, addr: u64) -> Option<(usize, &MappedRegion, u64)> {
        let index = self.regions.partition_point(|region| region.base <= addr).checked_sub(1)?;
        let region = self.regions.get(index)?;
        let at = addr - region.base;
        self.last.set(index);
        (at < region.len).then_some((index, region, at))
    }
}

impl AddressSpace for Regions {
    type Place = RegionPlace;

    #[inline]
    fn translate(&self, addr: u64, len: u32, _write: bool) -> Option<(RegionPlace, u32)> {
        let (index, region, at) = self.find(addr)?;
        let contiguous = (region.len - at).min(len.into()) as u32;
        // `at` lies in the region, and the region in its memory, so the sum is below the length.
        Some((RegionPlace { region: index as u32, offset: region.offset + at as usize }, contiguous))
    }

    #[inline]
    fn read_desc(&self, addr: u64) -> Option<[u64; 2]> {
        let (_, region, at) = self.find(addr)?;
        let word = at as usize / 8;
        if at.is_multiple_of(8) && region.words.bytes(8) / 8 >= word + 2 {
            return Some([word, word + 1].map(|word| region.words.load64(word, Relaxed)));
        }
        if region.len - at < 16 {
            // It crosses to the next region: byte by byte.
            let mut bytes = [0; 16];
            for (i, byte) in bytes.iter_mut().enumerate() {
                let (_, region, at) = self.find(addr.checked_add(i as u64)?)?;
                [*byte] = region.memory.get::<1>(region.offset + at as usize)?;
            }
            return Some(words(u128::from_le_bytes(bytes)));
        }
        region.memory.get::<16>(region.offset + at as usize).map(|bytes| words(u128::from_le_bytes(bytes)))
    }
}

fn words(both: u128) -> [u64; 2] {
    [both as u64, (both >> 64) as u64]
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Region};

    fn memory(len: usize) -> UntrustedMem {
        UntrustedMem::new(Region::new(len, Backing::Memfd).unwrap())
    }

    #[test]
    fn an_address_leads_to_its_region_and_no_further_than_its_end() {
        let mut table = Regions::new();
        table.add(0x8000, 0x1000, memory(8192), 4096).unwrap();
        table.add(0x1000, 0x1000, memory(4096), 0).unwrap();
        let at = |region, offset, n| Some((RegionPlace { region, offset }, n));
        assert_eq!(table.translate(0x1000, 10, false), at(0, 0, 10));
        assert_eq!(table.translate(0x1fff, 10, true), at(0, 4095, 1));
        assert_eq!(table.translate(0x8010, 0, false), at(1, 4112, 0));
        for addr in [0x1000, 0x1fff, 0x8000, 0x8fff] {
            let (place, _) = table.translate(addr, 1, false).unwrap();
            assert_eq!(table.address(place), Some(addr));
            assert_eq!(table.address(RegionPlace { offset: place.offset + 4096, ..place }), None);
        }
        assert_eq!(table.address(RegionPlace { region: 2, offset: 0 }), None);
        for outside in [0, 0xfff, 0x2000, 0x7fff, 0x9000, u64::MAX] {
            assert_eq!(table.translate(outside, 0, false), None, "{outside:#x}");
            assert_eq!(table.read_desc(outside), None, "{outside:#x}");
        }
        assert!(table.read_desc(0x1ff1).is_none(), "15 bytes are left");
        assert!(table.remove(0x8000).is_some_and(|memory| memory.len() == 8192));
        assert_eq!((table.translate(0x8010, 1, false), table.len()), (None, 1));
    }

    #[test]
    fn a_region_that_overlaps_wraps_or_is_longer_than_its_memory_is_refused() {
        let mut table = Regions::new();
        table.add(0x2000, 0x1000, memory(4096), 0).unwrap();
        for (base, len) in [(0x2000, 1), (0x1fff, 2), (0x2fff, 1), (0x1000, 0x1000 * 3), (0x1000, 0x1001)] {
            let big = memory(1 << 16);
            assert_eq!(table.add(base, len, big, 0), Err(RegionsError::Overlap { base, len }), "{base:#x}");
        }
        for (base, len) in [(0, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(table.add(base, len, memory(4096), 0), Err(RegionsError::Range { base, len }));
        }
        for (offset, len) in [(1, 4096), (4097, 1), (usize::MAX, 1), (0, 1 << 40)] {
            let refused = Err(RegionsError::Memory { len, offset, actual: 4096 });
            assert_eq!(table.add(1 << 41, len, memory(4096), offset), refused);
        }
        assert_eq!(table.len(), 1);
        table.add(0x1000, 0x1000, memory(4096), 0).unwrap();
        table.add(0x3000, 0x1000, memory(4096), 0).unwrap();
    }

    #[test]
    fn a_descriptor_that_crosses_neighbours_is_read_from_both() {
        let (low, high) = (memory(4096), memory(4096));
        assert!(low.put(4090, &[1, 2, 3, 4, 5, 6]) && high.put(0, &[7, 8, 9, 10, 11, 12, 13, 14, 15, 16]));
        let mut table = Regions::new();
        table.add(0x1000, 0x1000, low, 0).unwrap();
        table.add(0x2000, 0x1000, high, 0).unwrap();
        assert_eq!(table.read_desc(0x1ffa), Some([0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09]));
    }
}
