//! The structures behind a message's header, in native byte order.
//!
//! Each has the size that the specification gives it, and no other one is accepted.

/// Most regions of a [`MemoryTable`].
pub const MAX_REGIONS: usize = 8;
/// Most bytes of a device's configuration space.
pub const CONFIG_SIZE: usize = 256;

/// A payload that no request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The number of bytes.
    #[error("a payload of {actual} bytes: must have {expected}")]
    Size {
        /// Bytes that it must have.
        expected: usize,
        /// Bytes that it has.
        actual: usize,
    },
    /// More regions than a table has.
    #[error("a table of {0} memory regions: at most 8")]
    Regions(u32),
    /// Bytes beyond the configuration space.
    #[error("{size} bytes of configuration at {offset}: it ends at 256")]
    Config {
        /// The first byte.
        offset: u32,
        /// Bytes.
        size: u32,
    },
    /// Bits without a meaning.
    #[error("{0:#x} has bits without a meaning")]
    Bits(u64),
}

/// A whole number in native byte order.
trait Field: Sized {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Option<Self>;
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Field for $number {
            const SIZE: usize = size_of::<$number>();

            fn read(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(|bytes| <$number>::from_ne_bytes(*bytes))
            }

            fn write(&self, bytes: &mut [u8]) {
                if let Some(to) = bytes.first_chunk_mut() {
                    *to = self.to_ne_bytes();
                }
            }
        }
    )* };
}

numbers!(u16, u32, u64);

macro_rules! payloads {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $number:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[allow(clippy::exhaustive_structs, reason = "the specification gives the fields")]
        pub struct $name { $($(#[$field_doc])* pub $field: $number,)* }

        impl $name {
            /// Bytes of it.
            pub const SIZE: usize = 0 $(+ <$number as Field>::SIZE)*;

            /// Reads it.
            ///
            /// # Errors
            /// [`PayloadError::Size`] unless there are exactly [`SIZE`](Self::SIZE) bytes.
            pub fn from_bytes(bytes: &[u8]) -> Result<$name, PayloadError> {
                if bytes.len() != Self::SIZE {
                    return Err(PayloadError::Size { expected: Self::SIZE, actual: bytes.len() });
                }
                Ok(Self::read(bytes).unwrap_or_default())
            }

            /// Writes it.
            #[must_use]
            pub fn to_bytes(&self) -> [u8; Self::SIZE] {
                let mut bytes = [0; Self::SIZE];
                self.write(&mut bytes);
                bytes
            }
        }

        impl Field for $name {
            const SIZE: usize = Self::SIZE;

            #[allow(unused_assignments)]
            fn read(bytes: &[u8]) -> Option<Self> {
                let mut at = 0;
                $(
                    let $field = Field::read(bytes.get(at..)?)?;
                    at += <$number as Field>::SIZE;
                )*
                Some($name { $($field,)* })
            }

            #[allow(unused_assignments)]
            fn write(&self, bytes: &mut [u8]) {
                let mut at = 0;
                $(
                    if let Some(to) = bytes.get_mut(at..) {
                        self.$field.write(to);
                    }
                    at += <$number as Field>::SIZE;
                )*
            }
        }
    )* };
}

payloads! {
    /// A ring, and a number of it: its size, its base, or whether it is enabled.
    VringState {
        /// The ring.
        index: u32,
        /// The number.
        num: u32,
    }

    /// Where a ring lies, by addresses of the front end's process.
    VringAddr {
        /// The ring.
        index: u32,
        /// [`LOG`](VringAddr::LOG), or 0.
        flags: u32,
        /// The descriptor area.
        desc: u64,
        /// The device area: the used ring.
        used: u64,
        /// The driver area: the available ring.
        avail: u64,
        /// The device area by its guest physical address, for the log of written pages.
        log: u64,
    }

    /// A piece of the guest's memory, in the descriptor that comes with it.
    MemoryRegion {
        /// The first guest physical address.
        guest: u64,
        /// Bytes.
        size: u64,
        /// The first address in the front end's process.
        user: u64,
        /// Where it begins in its file.
        offset: u64,
    }

    /// One region, of `ADD_MEM_REG` and `REM_MEM_REG`.
    SingleRegion {
        /// Without a meaning.
        padding: u64,
        /// The region.
        region: MemoryRegion,
    }

    /// The log of written pages, in the descriptor that comes with it.
    Log {
        /// Bytes.
        size: u64,
        /// Where it begins in its file.
        offset: u64,
    }

    /// The area in which a back end notes the chains that it has taken.
    InFlightArea {
        /// Bytes.
        size: u64,
        /// Where it begins in its file.
        offset: u64,
        /// Number of rings.
        queues: u16,
        /// Descriptors of each of them.
        queue_size: u16,
    }
}

impl VringAddr {
    /// Writes to the device area are logged (`VHOST_VRING_F_LOG`).
    pub const LOG: u32 = 1;
}

impl InFlightArea {
    /// Reads it. Some front ends send four bytes of padding behind it.
    ///
    /// # Errors
    /// [`PayloadError::Size`] for any other size.
    pub fn from_padded(bytes: &[u8]) -> Result<InFlightArea, PayloadError> {
        let padded = bytes.len() == Self::SIZE + 4;
        InFlightArea::from_bytes(bytes.get(..Self::SIZE).filter(|_| padded).unwrap_or(bytes))
    }
}

/// The number of a payload that is one.
///
/// # Errors
/// [`PayloadError::Size`] unless there are exactly 8 bytes.
pub fn read_u64(bytes: &[u8]) -> Result<u64, PayloadError> {
    let size = PayloadError::Size { expected: 8, actual: bytes.len() };
    <[u8; 8]>::try_from(bytes).map(u64::from_ne_bytes).map_err(|_| size)
}

/// A ring, and whether a descriptor comes for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the specification gives the fields")]
pub struct VringFd {
    /// The ring.
    pub index: u8,
    /// A descriptor comes; without one, the ring is polled, or nothing is signalled.
    pub has_fd: bool,
}

impl VringFd {
    const NO_FD: u64 = 1 << 8;

    /// Reads it.
    ///
    /// # Errors
    /// [`PayloadError`] for another size, or bits without a meaning.
    pub fn from_bytes(bytes: &[u8]) -> Result<VringFd, PayloadError> {
        let word = read_u64(bytes)?;
        if word >> 9 != 0 {
            return Err(PayloadError::Bits(word));
        }
        Ok(VringFd { index: word as u8, has_fd: word & Self::NO_FD == 0 })
    }

    /// Writes it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 8] {
        let flag = if self.has_fd { 0 } else { Self::NO_FD };
        (u64::from(self.index) | flag).to_ne_bytes()
    }
}

/// The guest's memory, all of it: a descriptor comes for each region, in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(clippy::exhaustive_structs, reason = "the specification gives the fields")]
pub struct MemoryTable {
    /// At most [`MAX_REGIONS`].
    pub regions: Vec<MemoryRegion>,
}

impl MemoryTable {
    /// Reads it.
    ///
    /// # Errors
    /// [`PayloadError`] for too many regions, or a size that is not theirs.
    pub fn from_bytes(bytes: &[u8]) -> Result<MemoryTable, PayloadError> {
        let size = |regions: usize| 8 + regions * MemoryRegion::SIZE;
        let short = PayloadError::Size { expected: size(0), actual: bytes.len() };
        let (head, rest) = bytes.split_at_checked(size(0)).ok_or(short)?;
        let count: u32 = Field::read(head).ok_or(short)?;
        if count as usize > MAX_REGIONS {
            return Err(PayloadError::Regions(count));
        }
        let expected = size(count as usize);
        if bytes.len() != expected {
            return Err(PayloadError::Size { expected, actual: bytes.len() });
        }
        let regions = rest.chunks_exact(MemoryRegion::SIZE).map(MemoryRegion::from_bytes).collect::<Result<_, _>>()?;
        Ok(MemoryTable { regions })
    }

    /// Writes it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let count = self.regions.len() as u64 as u32;
        let head = [count.to_ne_bytes(), [0; 4]].concat();
        self.regions.iter().fold(head, |mut bytes, region| {
            bytes.extend(region.to_bytes());
            bytes
        })
    }
}

/// A piece of the device's configuration space.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the specification gives the fields")]
pub struct ConfigSpace {
    /// The first byte.
    pub offset: u32,
    /// Why it is written; 0 for the driver.
    pub flags: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl ConfigSpace {
    /// Reads it.
    ///
    /// # Errors
    /// [`PayloadError`] for a size that is not that of its bytes, and for bytes beyond
    /// [`CONFIG_SIZE`].
    pub fn from_bytes(bytes: &[u8]) -> Result<ConfigSpace, PayloadError> {
        let short = PayloadError::Size { expected: 12, actual: bytes.len() };
        let (head, rest) = bytes.split_at_checked(12).ok_or(short)?;
        let word = |at: usize| head.get(at..).and_then(u32::read).ok_or(short);
        let (offset, size, flags) = (word(0)?, word(4)?, word(8)?);
        if offset.checked_add(size).is_none_or(|end| end as usize > CONFIG_SIZE) {
            return Err(PayloadError::Config { offset, size });
        }
        if rest.len() != size as usize {
            return Err(PayloadError::Size { expected: 12 + size as usize, actual: bytes.len() });
        }
        Ok(ConfigSpace { offset, flags, bytes: rest.to_vec() })
    }

    /// Writes it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = [self.offset, self.bytes.len() as u32, self.flags].map(u32::to_ne_bytes);
        [head.as_flattened(), &self.bytes].concat()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn structures_lie_as_the_specification_has_them() {
        let words = |bytes: &[u8]| -> Vec<u64> { bytes.chunks(8).map(|word| read_u64(word).unwrap()).collect() };
        let addr = VringAddr { index: 1, flags: 1, desc: 2, used: 3, avail: 4, log: 5 };
        let first = u64::from_ne_bytes([1u32, 1].map(u32::to_ne_bytes).as_flattened().try_into().unwrap());
        assert_eq!(words(&addr.to_bytes()), [first, 2, 3, 4, 5], "used comes before avail");
        let region = MemoryRegion { guest: 1, size: 2, user: 3, offset: 4 };
        assert_eq!(words(&SingleRegion { padding: 0, region }.to_bytes()), [0, 1, 2, 3, 4]);
        let sizes = [VringState::SIZE, VringAddr::SIZE, MemoryRegion::SIZE, SingleRegion::SIZE, Log::SIZE];
        assert_eq!((sizes, InFlightArea::SIZE), ([8, 40, 32, 40, 16], 20));
    }

    #[test]
    fn what_was_written_is_read_and_no_other_size_is() {
        let addr = VringAddr { index: 7, flags: 0, desc: 1 << 40, used: 2, avail: 3, log: u64::MAX };
        assert_eq!(VringAddr::from_bytes(&addr.to_bytes()), Ok(addr));
        let region = MemoryRegion { guest: 9, size: 1 << 30, user: 1 << 46, offset: 4096 };
        for n in 0..=MAX_REGIONS {
            let table = MemoryTable { regions: vec![region; n] };
            let bytes = table.to_bytes();
            assert_eq!(MemoryTable::from_bytes(&bytes), Ok(table));
            assert!(MemoryTable::from_bytes(&bytes[..bytes.len() - 1]).is_err());
            assert!(MemoryTable::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        }
        let many = MemoryTable { regions: vec![region; MAX_REGIONS + 1] };
        assert_eq!(MemoryTable::from_bytes(&many.to_bytes()), Err(PayloadError::Regions(9)));
        for size in [0, 39, 41] {
            let wrong = PayloadError::Size { expected: 40, actual: size };
            assert_eq!(SingleRegion::from_bytes(&vec![0; size]), Err(wrong));
        }
        assert!(read_u64(&[0; 7]).is_err() && read_u64(&[0; 9]).is_err());
        let area = InFlightArea { size: 1, offset: 2, queues: 3, queue_size: 4 };
        assert_eq!(InFlightArea::from_padded(&area.to_bytes()), Ok(area));
        assert_eq!(InFlightArea::from_padded(&[&area.to_bytes()[..], &[0; 4]].concat()), Ok(area));
        assert!(InFlightArea::from_padded(&[0; 22]).is_err() && InFlightArea::from_padded(&[0; 19]).is_err());
    }

    #[test]
    fn a_ring_of_a_descriptor_has_eight_bits_and_a_flag() {
        for fd in [VringFd { index: 0, has_fd: true }, VringFd { index: 255, has_fd: false }] {
            assert_eq!(VringFd::from_bytes(&fd.to_bytes()), Ok(fd));
        }
        assert_eq!(VringFd::from_bytes(&0x200u64.to_ne_bytes()), Err(PayloadError::Bits(0x200)));
    }

    #[test]
    fn configuration_ends_at_256_bytes() {
        let config = ConfigSpace { offset: 6, flags: 0, bytes: vec![1, 2, 3] };
        let bytes = config.to_bytes();
        assert_eq!(ConfigSpace::from_bytes(&bytes), Ok(config));
        assert!(ConfigSpace::from_bytes(&bytes[..14]).is_err() && ConfigSpace::from_bytes(&bytes[..11]).is_err());
        for (offset, size) in [(256, 1), (u32::MAX, 2), (0, 257)] {
            let bytes = [[offset, size, 0].map(u32::to_ne_bytes).as_flattened(), &vec![0; 257]].concat();
            assert_eq!(ConfigSpace::from_bytes(&bytes), Err(PayloadError::Config { offset, size }));
        }
    }
}
