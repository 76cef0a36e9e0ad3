//! The memory that the kernel reaches, and the files by which it gets its table.

use super::super::transport::QueueSetup;
use crate::sync::{Mutex, MutexGuard, lock};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use towpath_bus::{Access, Dma, Iova, Limits, MapError, NoWindow};
use towpath_packet::{Backing, Region};
use towpath_sys::vhost_net::{VhostEvents, VhostMemory, VhostNet, VhostRing};

/// Regions that the kernel takes, unless the administrator has changed that.
const REGIONS: u64 = 64;
/// Where their number is.
const REGIONS_FILE: &str = "/sys/module/vhost/parameters/max_mem_regions";

/// A file of vhost-net, and the queue of the tap that it serves.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) vhost: VhostNet,
    tap: Arc<File>,
    /// The rings that are set up, and those that run.
    set: [bool; 2],
    running: [bool; 2],
}

impl Pair {
    pub(super) fn new(vhost: VhostNet, tap: Arc<File>) -> Pair {
        Pair { vhost, tap, set: [false; 2], running: [false; 2] }
    }

    fn start(&mut self) -> io::Result<()> {
        for (index, ring) in (0..).zip(0..2) {
            if self.set[ring] {
                self.vhost.start(index, self.tap.as_fd())?;
                self.running[ring] = true;
            }
        }
        Ok(())
    }

    fn stop(&mut self) -> io::Result<()> {
        for (index, running) in (0..).zip(&mut self.running) {
            if *running {
                self.vhost.stop(index)?;
                *running = false;
            }
        }
        Ok(())
    }
}

/// All pairs, and the memory that they all reach.
#[derive(Debug)]
pub(super) struct Pairs {
    pairs: Vec<Pair>,
    memory: Vec<VhostMemory>,
}

impl Pairs {
    pub(super) fn new(pairs: Vec<Pair>) -> Pairs {
        Pairs { pairs, memory: Vec::new() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter()
    }

    /// Closes all but the first `pairs`.
    pub(super) fn truncate(&mut self, pairs: u16) {
        self.pairs.truncate(pairs.into());
    }

    /// Sets up the ring of a queue.
    pub(super) fn set_ring(&mut self, queue: u16, setup: &QueueSetup, events: VhostEvents) -> io::Result<()> {
        let ring =
            VhostRing { size: setup.size, desc: setup.desc.get(), avail: setup.driver.get(), used: setup.device.get() };
        let index = usize::from(queue % 2);
        let pair = self.pairs.get_mut(usize::from(queue / 2)).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the driver's rings are in memory that this domain has mapped, and the driver
        // accesses them by atomic operations (`towpath_virtio::Area`).
        unsafe { pair.vhost.set_ring(index as u32, ring, events)? };
        pair.set[index] = true;
        Ok(())
    }

    /// Lets all rings run that are set up.
    pub(super) fn start(&mut self) -> io::Result<()> {
        self.pairs.iter_mut().try_for_each(Pair::start)
    }

    /// Stops all rings.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.pairs.iter_mut().try_for_each(Pair::stop)
    }

    /// Sets the table of all pairs.
    fn set_memory(&self) -> io::Result<()> {
        // SAFETY: the memory was mapped by `Dma::map`, whose callers keep it until it was unmapped,
        // and do not rely on what the device may write.
        self.pairs.iter().try_for_each(|pair| unsafe { pair.vhost.set_memory(&self.memory) })
    }
}

/// Memory of this process, of any kind. There is no IOMMU: what was mapped, the kernel may access
/// until it is unmapped.
#[derive(Clone)]
pub struct VhostNetDma {
    pairs: Arc<Mutex<Pairs>>,
    limits: Arc<Limits>,
}

impl VhostNetDma {
    pub(super) fn new(pairs: Pairs) -> VhostNetDma {
        let mut limits = Limits::new(false, towpath_sys::mmap::page_size(), vec![1..=u64::MAX]);
        let regions = std::fs::read_to_string(REGIONS_FILE).ok().and_then(|text| text.trim().parse().ok());
        limits.mappings = Some(regions.unwrap_or(REGIONS));
        VhostNetDma { pairs: Arc::new(Mutex::new(pairs)), limits: Arc::new(limits) }
    }

    pub(super) fn pairs(&self) -> MutexGuard<'_, Pairs> {
        lock(&self.pairs)
    }

    fn refused(&self, source: io::Error) -> MapError {
        match source.kind() {
            io::ErrorKind::ArgumentListTooLong => MapError::Mappings { limit: self.limits.mappings.unwrap_or(REGIONS) },
            _ => MapError::Os { step: "VHOST_SET_MEM_TABLE", source },
        }
    }
}

// The kernel takes a table of memory as a whole, and forgets the one before it.
// SAFETY: `alloc` makes new memory of this process alone. The kernel accesses what the table has,
// and none of what was in the one before it when the call that sets it has returned.
unsafe impl Dma for VhostNetDma {
    type Window = NoWindow;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        Ok(Region::new(len, Backing::Anonymous)?)
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, _: Access) -> Result<Iova, MapError> {
        let address = at.addr().get() as u64;
        let iova = Iova::new(address).ok_or(MapError::Foreign)?;
        let mut pairs = self.pairs();
        pairs.memory.push(VhostMemory { address, len: len as u64 });
        pairs.set_memory().map(|()| iova).map_err(|error| {
            pairs.memory.pop();
            // Some of the pairs may have it.
            match pairs.set_memory() {
                Ok(()) => self.refused(error),
                Err(error) => MapError::Os { step: "VHOST_SET_MEM_TABLE, again", source: error },
            }
        })
    }

    fn unmap(&self, iova: Iova, _: usize) -> Result<(), MapError> {
        let mut pairs = self.pairs();
        pairs.memory.retain(|memory| memory.address != iova.get());
        pairs.set_memory().map_err(|error| self.refused(error))
    }

    fn window(&self, _: u32, _: usize) -> Result<NoWindow, MapError> {
        Err(MapError::NoIommu)
    }
}

impl std::fmt::Debug for VhostNetDma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostNetDma").finish_non_exhaustive()
    }
}
