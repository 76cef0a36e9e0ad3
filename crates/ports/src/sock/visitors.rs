//! Who had sessions, and how they ended: for people.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use towpath_sys::seqpacket::Peer;

/// Sessions that are remembered, the last ones.
const REMEMBERED: usize = 64;

/// A session.
#[derive(Debug)]
struct Visitor {
    id: u64,
    peer: Peer,
    queue: u16,
    end: Option<&'static str>,
}

/// The last sessions of a port.
#[derive(Debug, Default)]
pub(super) struct Visitors(Mutex<VecDeque<Visitor>>);

impl Visitors {
    /// A session begins.
    pub(super) fn came(&self, id: u64, peer: Peer, queue: u16) {
        let mut visitors = self.lock();
        if visitors.len() == REMEMBERED {
            visitors.pop_front();
        }
        visitors.push_back(Visitor { id, peer, queue, end: None });
    }

    /// A session is over; it is told once.
    pub(super) fn left(&self, id: u64, why: &'static str) {
        if let Some(visitor) = self.lock().iter_mut().find(|visitor| visitor.id == id) {
            visitor.end = Some(why);
        }
    }

    /// All of them, a line each.
    pub(super) fn all(&self) -> Vec<String> {
        let tell = |Visitor { id, peer: Peer { pid, uid, .. }, queue, end }: &Visitor| {
            format!("session {id}: pid {pid}, uid {uid}, queue {queue}: {}", end.unwrap_or("here"))
        };
        self.lock().iter().map(tell).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Visitor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sessions_are_told_with_their_ends() {
        let visitors = Visitors::default();
        for id in 1..=70 {
            visitors.came(id, Peer { pid: 100 + id as i32, uid: 7, gid: 8 }, 1);
        }
        visitors.left(3, "left");
        visitors.left(70, "bad-chunk");
        let all = visitors.all();
        assert_eq!(all.len(), 64);
        assert_eq!(all[0], "session 7: pid 107, uid 7, queue 1: here");
        assert_eq!(all[63], "session 70: pid 170, uid 7, queue 1: bad-chunk");
    }
}
