//! Second-level tables (VT-d §3.7, §9.8): a tree of pages with 512 words each.
//!
//! ```text
//!   level 4 (3) ──► level 3 ──► level 2 ──► level 1 ──► page           a word that names a table: address | read | write
//!                      └ 1 GiB     └ 2 MiB     └ 4 KiB                  a word that names a page: address | large | rights
//! ```
//!
//! A table that exists stays until the tree goes, so that a word that names one never changes under the unit's eyes; the
//! exception is a window's bottom tables, which are grafted and pruned as a whole.

use super::registers::Capabilities;
use super::words::{PER_PAGE, Words};
use super::{Memory, PAGE};
use crate::dma::{Access, MapError};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// What a word says besides the address (§9.8).
const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
/// It names a page, not a table, above the bottom level.
const LARGE: u64 = 1 << 7;

/// The bits of a word that name a page: what the device may do with it.
#[inline]
pub(super) fn rights(access: Access) -> u64 {
    match access {
        Access::Read => READ,
        Access::Write => WRITE,
        Access::Both => READ | WRITE,
    }
}

/// Bytes that one word of a table at `level` covers.
const fn span(level: u32) -> u64 {
    PAGE << (9 * (level - 1))
}

/// A page that nothing is mapped to.
const ABSENT: u64 = 0;

/// Tables that one allocation holds.
const CHUNK: usize = 16;

/// A device's tables, and the memory that they are made of.
pub(super) struct Tree<P> {
    memory: P,
    /// Pages that are zero and not in use yet.
    spare: Vec<Words>,
    levels: u32,
    /// Levels at which a word may name a page.
    large: [bool; 4],
    top: Table,
}

struct Table {
    words: Words,
    below: BTreeMap<usize, Table>,
}

impl<P: Memory> Tree<P> {
    pub(super) fn new(memory: P, capabilities: &Capabilities) -> Result<Tree<P>, MapError> {
        let mut spare = Vec::new();
        let top = take(&memory, &mut spare)?;
        let large = [true, capabilities.pages_2m, capabilities.pages_1g, false];
        Ok(Tree { memory, spare, levels: capabilities.levels(), large, top })
    }

    /// Physical address of the top table.
    pub(super) fn root(&self) -> u64 {
        self.top.words.physical()
    }

    /// Maps the pages from `iova` on to those from `physical` on, with the largest that fit.
    ///
    /// # Errors
    /// [`MapError`] when there is no memory for a table; part of the range may be mapped then.
    pub(super) fn map(&mut self, iova: u64, physical: u64, len: u64, access: Access) -> Result<(), MapError> {
        let (mut done, rights) = (0, rights(access));
        while done < len {
            let (iova, physical, rest) = (iova + done, physical + done, len - done);
            done += self.map_one(iova, physical, rest, rights)?;
        }
        Ok(())
    }

    /// Fills in one word, as high up as possible; returns the bytes that it covers.
    fn map_one(&mut self, iova: u64, physical: u64, len: u64, rights: u64) -> Result<u64, MapError> {
        let (mut table, mut level) = (&mut self.top, self.levels);
        loop {
            let (span, index) = (span(level), index(iova, level));
            let may = self.large.get(level as usize - 1).copied().unwrap_or(false);
            if may && len >= span && (iova | physical).is_multiple_of(span) && !table.below.contains_key(&index) {
                let large = if level > 1 { LARGE } else { 0 };
                table.store(index, physical | large | rights);
                return Ok(span);
            }
            table = table.descend(index, &self.memory, &mut self.spare)?;
            level -= 1;
        }
    }

    /// Takes away what was mapped between `iova` and `iova + len`. The unit may still know it.
    pub(super) fn unmap(&mut self, iova: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let (mut table, mut level) = (&self.top, self.levels);
            let at = iova + done;
            let mut i = index(at, level);
            while let Some(below) = table.below.get(&i) {
                (table, level) = (below, level - 1);
                i = index(at, level);
            }
            table.store(i, ABSENT);
            done += span(level) - at % span(level);
        }
    }

    /// Puts in `bottom` (whole tables of level 1) from `iova` on, a multiple of what one of them covers. No table of the tree's own
    /// may hold a mapping there.
    pub(super) fn graft(&mut self, iova: u64, bottom: &Words) -> Result<(), MapError> {
        for n in 0..bottom.count() / PER_PAGE {
            let at = iova + n as u64 * span(2);
            let physical = bottom.physical() + n as u64 * PAGE;
            let level2 = self.level2(at)?;
            let index = index(at, 2);
            level2.below.remove(&index);
            level2.store(index, physical | READ | WRITE);
        }
        Ok(())
    }

    /// Takes out what was grafted. The unit may still know it.
    pub(super) fn prune(&mut self, iova: u64, bottom: &Words) {
        for n in 0..bottom.count() / PER_PAGE {
            let at = iova + n as u64 * span(2);
            if let Ok(level2) = self.level2(at) {
                level2.store(index(at, 2), ABSENT);
            }
        }
    }

    /// The table of level 2 that `iova` goes through.
    fn level2(&mut self, iova: u64) -> Result<&mut Table, MapError> {
        let (mut table, mut level) = (&mut self.top, self.levels);
        while level > 2 {
            table = table.descend(index(iova, level), &self.memory, &mut self.spare)?;
            level -= 1;
        }
        Ok(table)
    }

    /// The unit may use the tables for ever: they are never given back.
    pub(super) fn leak(&self) {
        self.top.leak();
    }
}

impl Table {
    fn store(&self, index: usize, word: u64) {
        if let Some(at) = self.words.at(index) {
            // Release: the table or the buffer that the word names is complete before the unit can find it.
            at.store(word, Ordering::Release);
        }
    }

    /// The table below, made if there is none.
    fn descend<P: Memory>(&mut self, index: usize, memory: &P, spare: &mut Vec<Words>) -> Result<&mut Table, MapError> {
        if !self.below.contains_key(&index) {
            let table = take(memory, spare)?;
            self.store(index, table.words.physical() | READ | WRITE);
            self.below.insert(index, table);
        }
        self.below.get_mut(&index).ok_or(MapError::Refused("no table"))
    }

    fn leak(&self) {
        self.words.leak();
        self.below.values().for_each(Table::leak);
    }
}

fn take<P: Memory>(memory: &P, spare: &mut Vec<Words>) -> Result<Table, MapError> {
    if spare.is_empty() {
        let chunk = Words::alloc(memory, CHUNK)?;
        spare.extend((0..CHUNK).rev().filter_map(|n| chunk.page(n)));
    }
    let words = spare.pop().ok_or(MapError::Refused("no table"))?;
    Ok(Table { words, below: BTreeMap::new() })
}

/// Which word of a table at `level` an address goes through.
const fn index(iova: u64, level: u32) -> usize {
    (iova / span(level)) as usize % PER_PAGE
}

#[cfg(test)]
mod tests;
