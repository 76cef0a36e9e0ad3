//! Flows that are flushed together, and opened again by their predictions.

use core::mem::swap;

use super::{Chain, Flow, HEADS, Table};

impl<S> Table<S> {
    /// Opens the closed flow at `at` again, with the packet that was predicted when [everything was
    /// closed](Self::close_all). Its state is what it would be after its second packet. Returns the
    /// packet if there is no room, or if others of its chain are held.
    #[inline(always)]
    pub(crate) fn reopen(&mut self, at: u16, segment: S) -> Option<S> {
        let next = self.slot(self.next);
        if !self.has_room() || (usize::from(at) != next && !self.exchange(at, next)) {
            return Some(segment);
        }
        let Some(&Flow { hash, .. }) = self.flows.get(next) else { return Some(segment) };
        let Chain(None) = self.chain(hash.into()) else { return Some(segment) };
        let Some(flow) = self.flows.get_mut(next).filter(|flow| flow.segment.is_none()) else { return Some(segment) };
        self.heads[hash as usize % HEADS] = next as u16;
        flow.segment = Some(segment);
        flow.set_most(flow.most);
        flow.chain = next as u16;
        flow.flags = 0;
        flow.reopened = true;
        if let Some(opened) = self.opened.get_mut(next) {
            *opened = self.now;
        }
        self.next += 1;
        self.held += 1;
        None
    }

    /// Two closed flows change slots. What is expected after them is what was expected after the
    /// slots. `false` if they are not two.
    #[inline(never)]
    fn exchange(&mut self, at: u16, next: usize) -> bool {
        let Ok([one, other]) = self.flows.get_disjoint_mut([at.into(), next]) else { return false };
        swap(one, other);
        swap(&mut one.trail, &mut other.trail);
        // So that the other one is found as well.
        let head = &mut self.heads[one.hash as usize % HEADS];
        if usize::from(*head) == next {
            *head = at;
        }
        true
    }

    /// Closes the oldest flow, on the way to closing all: chains are not maintained, so the caller
    /// repeats it until `None`. Predictions stay, to [reopen](Self::reopen) flows with.
    #[inline(always)]
    pub(crate) fn close_all(&mut self) -> Option<(S, &Flow<S>)> {
        while self.first < self.next {
            let at = self.slot(self.first);
            self.first += 1;
            if self.flows.get(at)?.segment.is_some() {
                let flow = self.flows.get_mut(at)?;
                return Some((flow.segment.take()?, flow));
            }
        }
        (self.first, self.next, self.held) = (0, 0, 0);
        None
    }
}
