//! Memory as the DMA engine sees it: through the IOMMU that the driver maps with, under addresses that are not those of the process, so that
//! a pointer in place of a device address leads nowhere.

use crate::iommu::{ModelDma, Transfer};
use std::cell::RefCell;

/// Access to memory, during which nothing is unmapped. It begins with the first access, so that whoever needs none waits for nobody.
pub(crate) struct View<'a> {
    dma: &'a ModelDma,
    transfer: RefCell<Option<Transfer<'a>>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(dma: &'a ModelDma) -> View<'a> {
        View { dma, transfer: RefCell::new(None) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Transfer<'a>) -> T) -> T {
        f(self.transfer.borrow_mut().get_or_insert_with(|| self.dma.transfer()))
    }

    /// Whether descriptors may lie there: memory that was allocated for them.
    pub(crate) fn holds_descriptors(&self, at: u64, len: usize) -> bool {
        self.with(|transfer| transfer.is_coherent(at, len))
    }

    /// Copies memory out; false if it is not all mapped.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.with(|transfer| transfer.read(at, into).is_ok())
    }

    /// Copies bytes in; false if it is not all mapped for writing.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> bool {
        self.with(|transfer| transfer.write(at, from).is_ok())
    }

    /// A word of a ring or descriptor.
    pub(crate) fn load(&self, at: u64) -> Option<u64> {
        self.with(|transfer| transfer.load(at))
    }

    /// Words of a descriptor; false if they are not all mapped.
    pub(crate) fn load_words(&self, at: u64, into: &mut [u64]) -> bool {
        self.with(|transfer| transfer.load_words(at, into))
    }

    /// Stores a word of a ring or descriptor; false if it is not mapped.
    pub(crate) fn store(&self, at: u64, value: u64) -> bool {
        self.with(|transfer| transfer.store(at, value))
    }

    /// The device takes possession of a buffer, or gives it back: whoever unmaps it in between is found out.
    pub(crate) fn own(&self, (at, len): (u64, usize), takes: bool) {
        self.with(|transfer| if takes { transfer.own(at, len) } else { transfer.disown(at, len) });
    }
}
