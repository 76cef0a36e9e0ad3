//! Whom a queue serves: they come from the thread that made them, and go back to it to be freed.

use super::gate::Gate;
use super::session::Session;
use std::ops::{Deref, DerefMut};
use towpath_packet::spsc::{Consumer, Producer};

/// What a queue has of a session.
pub(super) trait Member: Send {
    fn session(&self) -> &Session;
}

/// All that a queue serves, in the order in which they came.
#[derive(Debug)]
pub(super) struct Roster<M: Send> {
    members: Vec<M>,
    new: Consumer<M>,
    old: Producer<M>,
    /// Up to which change they are known.
    changes: u64,
}

impl<M: Member> Roster<M> {
    pub(super) fn new((new, old): (Consumer<M>, Producer<M>), sessions: usize) -> Roster<M> {
        Roster { members: Vec::with_capacity(sessions), new, old, changes: 0 }
    }

    /// Takes in who has come and hands back who has gone; whether there was any change.
    #[inline]
    pub(super) fn greet(&mut self, gate: &Gate) -> bool {
        let changes = gate.events.changes();
        if changes == self.changes {
            return false;
        }
        self.changes = changes;
        self.look(gate);
        true
    }

    #[cold]
    fn look(&mut self, gate: &Gate) {
        while self.members.len() < self.members.capacity()
            && let Some(member) = self.new.pop()
        {
            self.members.push(member);
        }
        let mut i = 0;
        while let Some(member) = self.members.get(i) {
            if member.session().is_closed() {
                drop(self.old.push(self.members.remove(i)));
                gate.call();
            } else {
                i += 1;
            }
        }
    }
}

impl<M: Send> Deref for Roster<M> {
    type Target = [M];

    #[inline]
    fn deref(&self) -> &[M] {
        &self.members
    }
}

impl<M: Send> DerefMut for Roster<M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [M] {
        &mut self.members
    }
}
