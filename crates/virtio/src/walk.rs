//! Chains as a device finds them: every descriptor read once, every index and length bounded.
//!
//! What a chain may look like (virtio 1.2, 2.7.5.3 and 2.8.7):
//!
//! ```text
//!   split    D ─► D ─► D              D ─► D ─► I         I: a table, linked by `next`, no I in it
//!   packed   D D D                    I                   I: a table, used from begin to end
//! ```

use crate::chain::{Chain, Piece};
use crate::error::RingError;
use crate::layout::{DESC, Desc, INDIRECT, NEXT, WRITE};
use crate::space::AddressSpace;

/// Most descriptors of an indirect table that are followed; more than a queue's size is against the
/// specification, and drivers do it all the same.
const MAX_TABLE: u16 = 1024;

/// Follows the chain that begins at descriptor `head` of a table. `read` reads one of the `size`
/// descriptors.
#[inline]
pub(crate) fn split<M: AddressSpace>(
    head: u16,
    size: u16,
    indirect: bool,
    read: impl Fn(u16) -> [u64; 2],
    memory: &M,
    chain: &mut Chain<M::Place>,
) -> Result<(), RingError> {
    let mut at = head;
    // As many steps as there are descriptors: more of them are a loop.
    for _ in 0..size {
        if at >= size {
            return Err(RingError::Index(at));
        }
        let desc = Desc::from_split(read(at));
        if desc.has(INDIRECT) {
            if !indirect || desc.has(NEXT) {
                return Err(RingError::Indirect);
            }
            return split_table(&desc, memory, chain);
        }
        chain.push(memory, desc.addr, desc.len, desc.has(WRITE))?;
        if !desc.has(NEXT) {
            return Ok(());
        }
        at = desc.link;
    }
    Err(RingError::ChainLength)
}

/// The buffer of a descriptor, if it has bytes and they lie in one place.
#[inline]
pub(crate) fn single<M: AddressSpace>(desc: &Desc, memory: &M) -> Option<Piece<M::Place>> {
    let &Desc { addr, len, flags, .. } = desc;
    let (place, contiguous) = memory.translate(addr, len, flags & WRITE != 0)?;
    (contiguous >= len && len > 0).then_some(Piece { place, len })
}

/// Number of descriptors of an indirect table.
fn entries(table: &Desc) -> Result<u16, RingError> {
    let entries = table.len / DESC as u32;
    if entries == 0 || !table.len.is_multiple_of(DESC as u32) {
        return Err(RingError::IndirectLength(table.len));
    }
    if entries > MAX_TABLE.into() { Err(RingError::ChainLength) } else { Ok(entries as u16) }
}

/// Reads a descriptor of an indirect table.
#[inline]
fn entry<M: AddressSpace>(table: &Desc, index: u16, memory: &M) -> Result<[u64; 2], RingError> {
    let addr = table.addr.checked_add(u64::from(index) * DESC as u64);
    addr.and_then(|addr| memory.read_desc(addr)).ok_or(RingError::Address { addr: table.addr, len: table.len })
}

#[inline]
fn split_table<M: AddressSpace>(table: &Desc, memory: &M, chain: &mut Chain<M::Place>) -> Result<(), RingError> {
    let size = entries(table)?;
    let mut at = 0;
    for _ in 0..size {
        if at >= size {
            return Err(RingError::Index(at));
        }
        let desc = Desc::from_split(entry(table, at, memory)?);
        if desc.has(INDIRECT) {
            return Err(RingError::Indirect);
        }
        chain.push(memory, desc.addr, desc.len, desc.has(WRITE))?;
        if !desc.has(NEXT) {
            return Ok(());
        }
        at = desc.link;
    }
    Err(RingError::ChainLength)
}

/// The whole table of a packed descriptor; flags but `WRITE` are ignored in it (2.8.7.1).
#[inline]
pub(crate) fn packed_table<M: AddressSpace>(
    table: &Desc,
    memory: &M,
    chain: &mut Chain<M::Place>,
) -> Result<(), RingError> {
    for index in 0..entries(table)? {
        let desc = Desc::from_packed(entry(table, index, memory)?);
        chain.push(memory, desc.addr, desc.len, desc.has(WRITE))?;
    }
    Ok(())
}
