//! Memory as the DMA engine sees it: through the IOMMU in which the driver maps it. Device
//! addresses differ from those of the process, so that a pointer in place of a device address
//! faults.

use crate::iommu::{ModelDma, Transfer};
use std::cell::RefCell;

/// Access to memory, during which no memory is unmapped. It starts with the first access, so that
/// an action without an access does not wait.
pub(crate) struct DmaView<'a> {
    dma: &'a ModelDma,
    transfer: RefCell<Option<Transfer<'a>>>,
}

impl<'a> DmaView<'a> {
    pub(crate) fn new(dma: &'a ModelDma) -> DmaView<'a> {
        DmaView { dma, transfer: RefCell::new(None) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Transfer<'a>) -> T) -> T {
        f(self.transfer.borrow_mut().get_or_insert_with(|| self.dma.transfer()))
    }

    /// Whether this is coherent memory, which may hold descriptors.
    pub(crate) fn holds_descriptors(&self, at: u64, len: usize) -> bool {
        self.with(|transfer| transfer.is_coherent(at, len))
    }

    /// Reads memory; false if part of it is not mapped.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.with(|transfer| transfer.read(at, into).is_ok())
    }

    /// Writes memory; false if part of it is not mapped for writing.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> bool {
        self.with(|transfer| transfer.write(at, from).is_ok())
    }

    /// Loads a word of a ring or descriptor.
    pub(crate) fn load(&self, at: u64) -> Option<u64> {
        self.with(|transfer| transfer.load(at))
    }

    /// Loads words of a descriptor; false if part of them is not mapped.
    pub(crate) fn load_words(&self, at: u64, into: &mut [u64]) -> bool {
        self.with(|transfer| transfer.load_words(at, into))
    }

    /// Stores a word of a ring or descriptor; false if it is not mapped.
    pub(crate) fn store(&self, at: u64, value: u64) -> bool {
        self.with(|transfer| transfer.store(at, value))
    }

    /// Marks a buffer as owned by the device, or no longer owned. The model reports an unmap of a
    /// buffer that the device owns.
    pub(crate) fn set_owned(&self, (at, len): (u64, usize), owned: bool) {
        self.with(|transfer| if owned { transfer.own(at, len) } else { transfer.disown(at, len) });
    }
}
