//! Memory for tests.

use super::{PhysMemory, PhysRange};
use crate::dma::MapError;
use std::ptr::NonNull;
use towpath_packet::{Backing, Region};

/// Memory whose physical addresses are its addresses in this process.
#[derive(Clone)]
pub(super) struct IdentityMemory;

impl PhysMemory for IdentityMemory {
    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        Ok(Region::new(len, Backing::Anonymous)?)
    }

    fn locate(&self, at: NonNull<u8>, len: usize) -> Result<PhysRange, MapError> {
        Ok(PhysRange { at: at.addr().get(), len, physical: at.addr().get() as u64 })
    }
}
