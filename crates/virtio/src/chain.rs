//! Chains of buffers: as a driver gives them, and as a device gets them.

use crate::error::RingError;
use std::num::NonZeroU32;

/// A buffer that a driver adds: an address of the device's address space (physical, an IOVA, or
/// what the two sides call one).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes it.
    pub writable: bool,
}

impl Segment {
    /// A buffer for the device to read.
    pub const fn readable(addr: u64, len: u32) -> Segment {
        Segment { addr, len, writable: false }
    }

    /// A buffer for the device to write.
    pub const fn writable(addr: u64, len: u32) -> Segment {
        Segment { addr, len, writable: true }
    }
}

/// Buffers for [`add_singles`](crate::Driver::add_singles). A trait, because its method can be
/// inlined into the loop of either format.
pub trait SingleBuffers {
    /// The address and the bytes of the buffer of the chain that will have this id; `None` if there
    /// is no further buffer.
    fn next(&mut self, id: u16) -> Option<(u64, NonZeroU32)>;
}

/// A chain that the device used, as its driver gets it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// What [`add`](crate::Driver::add) returned.
    pub id: u16,
    /// Bytes that the device wrote, at most those of the chain's writable buffers.
    pub len: u32,
}

/// A device's promise to return a chain: exactly one of [`add_used`](crate::Device::add_used) and
/// [`untake`](crate::Device::untake) ends it. It holds neither the queue nor memory.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a chain that is not returned is lost to the driver"]
pub struct Token(u64);

impl Token {
    /// A chain of `slots` descriptors of the ring (split: of one entry of the available ring), at
    /// an available index, or a position of a packed ring.
    #[inline]
    pub(crate) fn new(id: u16, slots: u16, at: u16, writable: bool) -> Token {
        Token(u64::from(id) | u64::from(slots) << 16 | u64::from(at) << 32 | u64::from(writable) << 48)
    }

    /// The driver's name of the chain: split, its first descriptor; packed, its buffer id. Any
    /// number, of a packed queue.
    #[inline]
    pub fn id(&self) -> u16 {
        self.0 as u16
    }

    /// Descriptors of the ring that the chain occupies; split: one entry of the available ring.
    #[inline]
    pub(crate) fn slots(&self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Split: the available index. Packed: the position of the first descriptor.
    #[inline]
    pub(crate) fn at(&self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Whether the chain has writable buffers.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.0 & 1 << 48 != 0
    }

    /// A number below the queue's size that no other chain outstanding from it has, if chains are
    /// used in order. Else, one that stays out is passed by others that go around the ring.
    #[inline]
    pub(crate) fn slot(&self, size: u16) -> usize {
        let at = self.at();
        // A division only if there must be one.
        usize::from(match size {
            _ if at < size => at,
            _ if size.is_power_of_two() => at & (size - 1),
            _ => at % size.max(1),
        })
    }

    /// The token as a number. [`from_raw`](Token::from_raw) makes it a token again.
    #[inline]
    pub fn into_raw(self) -> u64 {
        self.0
    }

    /// The token that [`into_raw`](Token::into_raw) took apart. Made of anything else, or twice, it
    /// spoils the queue for its driver, and nothing besides.
    #[inline]
    pub fn from_raw(raw: u64) -> Token {
        Token(raw)
    }
}

/// A piece of a buffer that lies in one place of the driver's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<P> {
    /// Where it lies, by [`AddressSpace::translate`](crate::AddressSpace::translate).
    pub place: P,
    /// Bytes, never zero.
    pub len: u32,
}

/// A chain of one buffer, as [`take_singles`](crate::Device::take_singles) finds it.
///
/// Its token is given once for each: a copy of it is not another chain.
#[derive(Debug, Clone, Copy)]
pub struct Single<P> {
    /// From [`Token::into_raw`].
    raw: u64,
    /// The buffer, whole.
    pub piece: Piece<P>,
}

impl<P> Single<P> {
    #[inline]
    pub(crate) fn new(token: Token, piece: Piece<P>) -> Single<P> {
        Single { raw: token.into_raw(), piece }
    }

    /// A place for a chain that is yet to be taken.
    pub const fn vacant(place: P) -> Single<P> {
        Single { raw: 0, piece: Piece { place, len: 0 } }
    }

    /// The device's promise to return the chain.
    #[inline]
    pub fn token(&self) -> Token {
        Token::from_raw(self.raw)
    }
}

/// The buffers of one chain, in order, checked and translated. It is filled by
/// [`take`](crate::Device::take) again and again, and allocates only when it is made.
#[derive(Debug)]
pub struct Chain<P> {
    /// As many as there is capacity for, at most.
    pieces: Vec<Piece<P>>,
    /// Pieces that are readable; the others are writable.
    readable: usize,
    readable_len: u32,
    /// Bytes of all buffers.
    len: u32,
    writable_seen: bool,
}

impl<P: Copy> Chain<P> {
    /// Room for chains of up to `limit` pieces; a longer one is
    /// [`RingError::ChainLength`].
    pub fn new(limit: usize) -> Chain<P> {
        Chain { pieces: Vec::with_capacity(limit), readable: 0, readable_len: 0, len: 0, writable_seen: false }
    }

    /// What the device reads.
    #[inline]
    pub fn readable(&self) -> &[Piece<P>] {
        self.pieces.get(..self.readable).unwrap_or_default()
    }

    /// What the device writes.
    #[inline]
    pub fn writable(&self) -> &[Piece<P>] {
        self.pieces.get(self.readable..).unwrap_or_default()
    }

    /// Bytes that the device may read.
    #[inline]
    pub fn readable_len(&self) -> u32 {
        self.readable_len
    }

    /// Bytes that the device may write.
    #[inline]
    pub fn writable_len(&self) -> u32 {
        self.len - self.readable_len
    }

    /// Whether it has writable buffers, empty ones among them.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.writable_seen
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        (self.readable, self.readable_len, self.len, self.writable_seen) = (0, 0, 0, false);
    }

    /// Adds a buffer, translated piece by piece. An empty one is checked, and then left out.
    #[inline]
    pub(crate) fn push<M>(&mut self, memory: &M, addr: u64, len: u32, writable: bool) -> Result<(), RingError>
    where
        M: crate::AddressSpace<Place = P>,
    {
        if self.writable_seen && !writable {
            return Err(RingError::Order);
        }
        self.writable_seen = writable;
        self.len = self.len.checked_add(len).ok_or(RingError::ChainBytes)?;
        if !writable {
            self.readable_len += len;
        }
        match memory.translate(addr, len, writable) {
            Some((place, contiguous)) if contiguous >= len && len > 0 => self.push_piece(Piece { place, len }),
            Some(first) => self.push_pieces(memory, addr, len, first),
            None => Err(RingError::Address { addr, len }),
        }
    }

    #[inline]
    fn push_piece(&mut self, piece: Piece<P>) -> Result<(), RingError> {
        if self.pieces.len() == self.pieces.capacity() {
            return Err(RingError::ChainLength);
        }
        self.pieces.push(piece);
        self.readable += usize::from(!self.writable_seen);
        Ok(())
    }

    /// Adds a buffer of several pieces, the first of which was translated, or an empty one.
    #[cold]
    fn push_pieces<M>(&mut self, memory: &M, addr: u64, len: u32, first: (P, u32)) -> Result<(), RingError>
    where
        M: crate::AddressSpace<Place = P>,
    {
        let refused = RingError::Address { addr, len };
        let (mut at, mut left, (mut place, mut contiguous)) = (addr, len, first);
        while left > 0 {
            let n = contiguous.min(left);
            if n == 0 {
                return Err(refused);
            }
            self.push_piece(Piece { place, len: n })?;
            left -= n;
            if left > 0 {
                at = at.checked_add(n.into()).ok_or(refused)?;
                (place, contiguous) = memory.translate(at, left, self.writable_seen).ok_or(refused)?;
            }
        }
        Ok(())
    }
}
