//! Rings of sessions that have ended.
//!
//! An application may still read its rings when its session has ended: what it received last, and
//! the statistics. So the rings stay as they are for a time, on the account of its user. Then their
//! pages are freed: the application may keep the descriptor for as long as it likes, but not pages
//! that are charged to this process.
//!
//! Rings without pages read as zeroes, which contradicts what the application has counted. It sees
//! the end of its connection then, which is shut down before its session ends.
//!
//! **When the port ends**, no application has broken a rule, and no session follows. The rings stay
//! as they are then: all that was completed or received can still be taken. The limits of the
//! account bound them.

use super::account::Share;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_packet::UntrustedMem;
use towpath_sys::memfd;

/// How long rings stay as they are.
const STAY: Duration = Duration::from_secs(5);
/// Most sessions of one user whose rings stay, and of all: each has a descriptor.
const MAX_OF_USER: usize = 32;
const MAX: usize = 256;

/// The memory of a session's rings, and its share of the account.
#[derive(Debug)]
pub(in crate::sock) struct RingPages {
    pub(in crate::sock) memory: UntrustedMem,
    pub(in crate::sock) share: Share,
}

impl RingPages {
    /// Frees the pages, then gives the share back.
    fn free(mut self) {
        let freed = self.memory.fd().is_some_and(|fd| memfd::free_pages(fd, self.memory.len()).is_ok());
        if !freed {
            self.share.keep(super::Resource::Metadata);
        }
    }
}

/// The rings of sessions that ended lately, in the order in which they did.
#[derive(Debug, Default)]
pub(in crate::sock) struct EndedRings {
    rings: Mutex<VecDeque<(Instant, RingPages)>>,
    port_ended: AtomicBool,
}

impl EndedRings {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, RingPages)>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port ends: sessions that end from here on keep the pages of their rings.
    pub(in crate::sock) fn end_port(&self) {
        self.port_ended.store(true, Ordering::Relaxed);
    }

    /// Adds the rings of a session. Those that are too many are freed now, the oldest first, those
    /// of the same user before others.
    pub(in crate::sock) fn add(&self, rings: RingPages) {
        // Relaxed: the thread that set it gave up its reference to the session later, and this is
        // the drop of the last one.
        if self.port_ended.load(Ordering::Relaxed) {
            return;
        }
        let mut ended = self.lock();
        let user = rings.share.user();
        let is_own = |(_, other): &(Instant, RingPages)| other.share.user() == user;
        let first_own = ended.iter().position(is_own);
        let excess = match ended.iter().filter(|other| is_own(other)).count() {
            MAX_OF_USER.. => first_own.and_then(|at| ended.remove(at)),
            _ if ended.len() >= MAX => ended.pop_front(),
            _ => None,
        };
        ended.push_back((Instant::now(), rings));
        drop(ended);
        if let Some((_, rings)) = excess {
            rings.free();
        }
    }

    /// Frees the rings whose time is over.
    pub(in crate::sock) fn free_old(&self) {
        self.free_older_than(STAY);
    }

    fn free_older_than(&self, age: Duration) {
        let mut ended = self.lock();
        while ended.front().is_some_and(|(since, _)| since.elapsed() >= age)
            && let Some((_, rings)) = ended.pop_front()
        {
            rings.free();
        }
    }

    /// Ends the time of all rings.
    #[cfg(test)]
    pub(in crate::sock) fn free_all(&self) {
        self.free_older_than(Duration::ZERO);
    }
}
