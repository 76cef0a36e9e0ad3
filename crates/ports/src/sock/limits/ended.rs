//! Rings of sessions that have ended.
//!
//! An application may keep the descriptor of its rings for as long as it likes, but not pages that
//! are charged to this process. The page with the statistics is the exception: they explain the end
//! of a session, so those of the last sessions stay readable.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Region;
use towpath_sys::memfd;
use towpath_sys::mmap::page_size;

/// Sessions whose statistics stay.
const KEPT: usize = 64;

/// The rings of the last sessions that ended, of which the statistics are left.
#[derive(Debug, Default)]
pub(in crate::sock) struct EndedRings(Mutex<VecDeque<Arc<Region>>>);

impl EndedRings {
    /// Frees the pages of rings, except those from the statistics on, which are the last bytes.
    /// Those are freed when as many sessions again have ended.
    pub(in crate::sock) fn add(&self, rings: Arc<Region>, statistics: u64) {
        free(&rings, statistics as usize / page_size() * page_size());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(rings);
        if kept.len() > KEPT
            && let Some(oldest) = kept.pop_front()
        {
            free(&oldest, oldest.len());
        }
    }
}

impl Drop for EndedRings {
    fn drop(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        kept.drain(..).for_each(|rings| free(&rings, rings.len()));
    }
}

fn free(rings: &Region, len: usize) {
    if len > 0
        && let Some(fd) = rings.fd()
    {
        // The seals of the rings allow it; a failure leaves what the account has counted.
        let _ = memfd::free_pages(fd, len);
    }
}
