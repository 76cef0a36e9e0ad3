//! Elements that pass through a ring's window: message mode.

use super::super::check::{At, Check, Owner, Rule};
use super::super::view::View;
use super::Ring;

impl Ring {
    /// An element through the window: at the tail, or pushed in front of all others.
    pub(crate) fn fifo_push(&mut self, element: u64, tail: bool, view: &View<'_>, check: &mut Check) {
        self.accesses.fifo_writes += 1;
        if !self.is_message() {
            check.broken(Rule::FifoAccess, At::ring(self.number), "window of a ring that is not in message mode");
            return;
        }
        if self.fifo.len() >= self.size() as usize {
            check.broken(Rule::FifoOverflow, At::ring(self.number), "element pushed to a full ring");
            return;
        }
        check.pushed(self.number, self.head, element, self.tag(), view);
        if tail {
            view.store(self.slot(self.head), element);
            self.head = (self.head + 1) % self.size();
            self.fifo.push_back(element);
        } else {
            self.tail = (self.tail + self.size() - 1) % self.size();
            view.store(self.slot(self.tail), element);
            self.fifo.push_front(element);
        }
    }

    /// The engine gives back what it took in vain: in front of all others.
    pub(crate) fn push_back(&mut self, element: u64, view: &View<'_>, check: &mut Check) {
        check.advance(element, Owner::Pushed, false, At::ring(self.number), view);
        self.tail = (self.tail + self.size() - 1) % self.size();
        view.store(self.slot(self.tail), element);
        if self.is_message() {
            self.fifo.push_front(element);
        } else {
            self.occupancy += 1;
        }
    }

    /// An element out of the window; 0 from an empty ring.
    pub(crate) fn fifo_pop(&mut self, running: bool, view: &View<'_>, check: &mut Check) -> u64 {
        self.accesses.fifo_reads += 1;
        let element = self.fifo.pop_front().unwrap_or(0);
        if element != 0 {
            if running {
                let what = "element read from a submission ring whose channel runs";
                check.broken(Rule::PopWhileRunning, At::ring(self.number), what);
            }
            self.tail = (self.tail + 1) % self.size();
            check.advance(element, Owner::Free, false, At::ring(self.number), view);
        }
        element
    }
}
