//! Second-level page tables (VT-d §3.7, §9.8): pages of 512 entries.
//!
//! ```text
//!   level 4 (3) ──► level 3 ──► level 2 ──► level 1 ──► page    entry of a table: address | rights
//!                      └ 1 GiB     └ 2 MiB     └ 4 KiB         of a page: address | large | rights
//! ```
//!
//! A table exists as long as the tree, so an entry that points to a table never changes while the
//! unit walks it. The exception is the leaf tables of a window, which are installed and removed as
//! a whole.

use super::phys_memory::{PAGE, PhysMemory};
use super::registers::Capabilities;
use super::table_pages::{PER_PAGE, TablePages};
use crate::dma::{Access, MapError};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The bits of an entry besides the address (§9.8).
const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
/// The entry maps a large page instead of pointing to a table.
const LARGE: u64 = 1 << 7;

/// The permission bits of an entry.
#[inline]
pub(super) fn rights(access: Access) -> u64 {
    match access {
        Access::Read => READ,
        Access::Write => WRITE,
        Access::Both => READ | WRITE,
    }
}

/// Bytes that one entry of a table at `level` covers.
const fn span(level: u32) -> u64 {
    PAGE << (9 * (level - 1))
}

/// The entry of an unmapped page.
const ABSENT: u64 = 0;

/// Tables per memory allocation.
const TABLES_AT_ONCE: usize = 16;

/// The page tables of a device, and the memory that they are allocated from.
pub(super) struct PageTables<P> {
    memory: P,
    /// Zeroed, unused pages.
    spare: Vec<TablePages>,
    levels: u32,
    /// The levels whose entries may map a page.
    large: [bool; 4],
    top: Table,
}

struct Table {
    words: TablePages,
    children: BTreeMap<usize, Table>,
}

impl<P: PhysMemory> PageTables<P> {
    pub(super) fn new(memory: P, capabilities: &Capabilities) -> Result<PageTables<P>, MapError> {
        let mut spare = Vec::new();
        let top = alloc_table(&memory, &mut spare)?;
        let large = [true, capabilities.pages_2m, capabilities.pages_1g, false];
        Ok(PageTables { memory, spare, levels: capabilities.levels(), large, top })
    }

    /// The physical address of the top table.
    pub(super) fn root(&self) -> u64 {
        self.top.words.physical()
    }

    /// Maps the pages from `iova` on to those from `physical` on, with the largest pages that fit.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory for a table. Part of the range may be mapped then.
    pub(super) fn map(&mut self, iova: u64, physical: u64, len: u64, access: Access) -> Result<(), MapError> {
        let (mut done, rights) = (0, rights(access));
        while done < len {
            let (iova, physical, rest) = (iova + done, physical + done, len - done);
            done += self.map_one(iova, physical, rest, rights)?;
        }
        Ok(())
    }

    /// Stores one entry, at the highest level possible; returns the bytes that it covers.
    fn map_one(&mut self, iova: u64, physical: u64, len: u64, rights: u64) -> Result<u64, MapError> {
        let (mut table, mut level) = (&mut self.top, self.levels);
        loop {
            let (span, index) = (span(level), index(iova, level));
            let may = self.large.get(level as usize - 1).copied().unwrap_or(false);
            if may && len >= span && (iova | physical).is_multiple_of(span) && !table.children.contains_key(&index) {
                let large = if level > 1 { LARGE } else { 0 };
                table.store(index, physical | large | rights);
                return Ok(span);
            }
            table = table.descend(index, &self.memory, &mut self.spare)?;
            level -= 1;
        }
    }

    /// Clears the entries between `iova` and `iova + len`. The IOTLB may still hold them.
    pub(super) fn unmap(&mut self, iova: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let (mut table, mut level) = (&self.top, self.levels);
            let at = iova + done;
            let mut i = index(at, level);
            while let Some(children) = table.children.get(&i) {
                (table, level) = (children, level - 1);
                i = index(at, level);
            }
            table.store(i, ABSENT);
            done += span(level) - at % span(level);
        }
    }

    /// Installs `leaves` (whole level 1 tables) from `iova` on, a multiple of the bytes that one
    /// table covers. No table of the tree itself may hold a mapping there.
    pub(super) fn install_leaves(&mut self, iova: u64, leaves: &TablePages) -> Result<(), MapError> {
        for n in 0..leaves.count() / PER_PAGE {
            let at = iova + n as u64 * span(2);
            let physical = leaves.physical() + n as u64 * PAGE;
            let level2 = self.level2(at)?;
            let index = index(at, 2);
            level2.children.remove(&index);
            level2.store(index, physical | READ | WRITE);
        }
        Ok(())
    }

    /// Removes installed leaf tables. The IOTLB may still hold their entries.
    pub(super) fn remove_leaves(&mut self, iova: u64, leaves: &TablePages) {
        for n in 0..leaves.count() / PER_PAGE {
            let at = iova + n as u64 * span(2);
            if let Ok(level2) = self.level2(at) {
                level2.store(index(at, 2), ABSENT);
            }
        }
    }

    /// The level 2 table that translates `iova`.
    fn level2(&mut self, iova: u64) -> Result<&mut Table, MapError> {
        let (mut table, mut level) = (&mut self.top, self.levels);
        while level > 2 {
            table = table.descend(index(iova, level), &self.memory, &mut self.spare)?;
            level -= 1;
        }
        Ok(table)
    }

    /// Leaks the tables: the unit may access them for ever.
    pub(super) fn leak(&self) {
        self.top.leak();
    }
}

impl Table {
    fn store(&self, index: usize, word: u64) {
        if let Some(at) = self.words.at(index) {
            // Release: the table or buffer behind the entry is complete before the unit can walk to
            // it.
            at.store(word, Ordering::Release);
        }
    }

    /// The table one level down, allocated if absent.
    fn descend<P: PhysMemory>(
        &mut self,
        index: usize,
        memory: &P,
        spare: &mut Vec<TablePages>,
    ) -> Result<&mut Table, MapError> {
        if !self.children.contains_key(&index) {
            let table = alloc_table(memory, spare)?;
            self.store(index, table.words.physical() | READ | WRITE);
            self.children.insert(index, table);
        }
        self.children.get_mut(&index).ok_or(MapError::Refused("no table"))
    }

    fn leak(&self) {
        self.words.leak();
        self.children.values().for_each(Table::leak);
    }
}

fn alloc_table<P: PhysMemory>(memory: &P, spare: &mut Vec<TablePages>) -> Result<Table, MapError> {
    if spare.is_empty() {
        let pages = TablePages::alloc(memory, TABLES_AT_ONCE)?;
        spare.extend((0..TABLES_AT_ONCE).rev().filter_map(|n| pages.page(n)));
    }
    let words = spare.pop().ok_or(MapError::Refused("no table"))?;
    Ok(Table { words, children: BTreeMap::new() })
}

/// The index of the entry that translates `iova` in a table at `level`.
const fn index(iova: u64, level: u32) -> usize {
    (iova / span(level)) as usize % PER_PAGE
}

#[cfg(test)]
mod tests;
