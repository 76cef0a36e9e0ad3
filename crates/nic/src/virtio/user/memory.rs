//! The regions that are shared with a back end, and how far it has them.
//!
//! ```text
//!   map_region ──► Waiting ── SET_MEM_TABLE, acknowledged ──► Mapped ── unmap ──► a table without it
//!                     └────── refused ──► Refused, until the region is gone
//! ```
//!
//! A running port adds and removes memory of applications. No worker waits for the back end: a
//! packet in memory that is not acknowledged yet is copied.

use super::connection::{Answer, Connection};
use std::os::fd::OwnedFd;
use towpath_bus::{BusError, Iova, MapError};
use towpath_packet::{RegionHandle, WeakRegionHandle};
use towpath_virtio::vhost_user::MAX_REGIONS;

/// A region that the back end maps.
#[derive(Debug)]
pub(in super::super) struct SharedRegion {
    /// Its address in this process, by which both sides name it.
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) file: OwnedFd,
    /// Where it begins in its file.
    pub(super) offset: u64,
}

impl SharedRegion {
    fn try_clone(&self) -> std::io::Result<SharedRegion> {
        let SharedRegion { address, len, ref file, offset } = *self;
        Ok(SharedRegion { address, len, file: file.try_clone()?, offset })
    }
}

#[derive(Debug)]
enum Phase {
    /// The driver does not use it yet.
    Waiting(WeakRegionHandle),
    Mapped,
    /// The back end did not take a table with it. It is in no further one.
    Refused(WeakRegionHandle),
}

#[derive(Debug)]
struct Entry {
    region: SharedRegion,
    /// The version of the first table that has it.
    since: u64,
    phase: Phase,
}

impl Entry {
    fn is_refused(&self) -> bool {
        matches!(self.phase, Phase::Refused(_))
    }
}

/// All regions.
#[derive(Debug, Default)]
pub(in super::super) struct SharedRegions {
    entries: Vec<Entry>,
    /// Counts changes of the table.
    version: u64,
}

impl SharedRegions {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The regions of the table.
    pub(super) fn table(&self) -> Vec<&SharedRegion> {
        self.entries.iter().filter(|entry| !entry.is_refused()).map(|entry| &entry.region).collect()
    }

    /// The table for another thread.
    pub(super) fn copy(&self) -> std::io::Result<Vec<SharedRegion>> {
        self.table().into_iter().map(SharedRegion::try_clone).collect()
    }

    /// Adds a region that waits for the back end, unless it is there.
    pub(super) fn add(&mut self, handle: &RegionHandle, region: SharedRegion) -> Result<(), MapError> {
        if self.entries.iter().any(|entry| entry.region.address == region.address) {
            return Ok(());
        }
        if self.table().len() >= MAX_REGIONS {
            return Err(MapError::Mappings { limit: MAX_REGIONS as u64 });
        }
        self.version += 1;
        self.entries.push(Entry { region, since: self.version, phase: Phase::Waiting(handle.downgrade()) });
        Ok(())
    }

    /// The driver may use a region: `acked` is the version that the back end has, or nothing if it
    /// has none yet.
    pub(super) fn map(&mut self, address: Iova, acked: Option<u64>) -> Result<Iova, MapError> {
        let entry = self.entries.iter_mut().find(|entry| entry.region.address == address.get());
        match entry {
            Some(entry) if entry.is_refused() => Err(MapError::Refused("the back end did not take the memory")),
            Some(entry) if acked.is_none_or(|acked| acked >= entry.since) => {
                entry.phase = Phase::Mapped;
                Ok(address)
            }
            _ => Err(MapError::Pending),
        }
    }

    /// Removes a mapped region.
    pub(super) fn remove(&mut self, address: Iova) {
        self.entries.retain(|entry| entry.region.address != address.get());
        self.version += 1;
    }

    /// Removes regions that nothing waits for any more.
    pub(super) fn remove_gone(&mut self) {
        let tabled = self.table().len();
        self.entries.retain(|entry| match &entry.phase {
            Phase::Waiting(handle) | Phase::Refused(handle) => !handle.is_gone(),
            Phase::Mapped => true,
        });
        if self.table().len() < tabled {
            self.version += 1;
        }
    }

    /// The back end did not take the table of a version. Returns whether it had regions that were
    /// new.
    fn refuse(&mut self, version: u64) -> bool {
        let mut refused = false;
        for entry in self.entries.iter_mut().filter(|entry| entry.since <= version) {
            if let Phase::Waiting(handle) = &entry.phase {
                entry.phase = Phase::Refused(handle.clone());
                refused = true;
            }
        }
        self.version += u64::from(refused);
        refused
    }

    /// Takes what a back end has answered, and sends it the table if that has changed: one table
    /// at a time. It waits for nothing.
    ///
    /// # Errors
    /// [`BusError`]: the connection is lost, or to be given up.
    pub(super) fn sync(&mut self, connection: &mut Connection) -> Result<(), BusError> {
        self.remove_gone();
        if let Some(Answer { version, taken }) = connection.answer()?
            && !taken
            && !self.refuse(version)
        {
            return Err(connection.refuses_memory());
        }
        match connection.acked() {
            Some(acked) if acked != self.version && !connection.is_pending() => {
                connection.offer_memory(&self.table(), self.version)
            }
            _ => Ok(()),
        }
    }
}
