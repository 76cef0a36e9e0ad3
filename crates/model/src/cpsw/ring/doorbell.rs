//! Doorbells: what the processor pushed and popped.

use super::super::check::{At, Check, Event, Owner, Rule};
use super::super::view::View;
use super::{COUNT, Ring, TEARDOWN};

impl Ring {
    /// Whether the processor may ring; says so if not.
    fn exposed(&self, check: &mut Check) -> bool {
        if self.config.is_none() {
            check.broken(Rule::Unconfigured, At::ring(self.number), "doorbell of a ring that is not set up");
        } else if self.is_message() {
            check.broken(Rule::MessageDoorbell, At::ring(self.number), "doorbell of a ring in message mode");
        }
        self.config.is_some() && !self.is_message()
    }

    /// The count in a doorbell; `sign` are the other bits that may repeat its sign.
    fn count(&self, value: u32, sign: u32, check: &mut Check) -> i32 {
        let count = i32::from(value as u8 as i8);
        let rest = value & sign;
        if rest != 0 && !(rest == sign && count < 0) {
            let what = format!("doorbell {value:#010x}: bits beside the count are set");
            check.broken(Rule::DoorbellBits, At::ring(self.number), what);
        }
        count
    }

    /// The doorbell of a one-sided ring, or of the forward side. `running`: a channel that fetches from it is enabled.
    pub(crate) fn doorbell(&mut self, value: u32, running: bool, view: &View<'_>, check: &mut Check) {
        self.accesses.doorbells += 1;
        check.note(Event::Doorbell { ring: self.number, value });
        if !self.exposed(check) {
            return;
        }
        match self.count(value, 0xffff_ff00, check) {
            n @ 0.. => self.pushed(n.unsigned_abs(), view, check),
            n => {
                if running {
                    let what = format!("doorbell {value:#x} pops from a submission ring whose channel runs");
                    check.broken(Rule::PopWhileRunning, At::ring(self.number), what);
                }
                self.popped(n.unsigned_abs(), view, check);
            }
        }
    }

    fn pushed(&mut self, n: u32, view: &View<'_>, check: &mut Check) {
        let used = self.occupancy + self.hidden + self.in_flight + self.reverse;
        if used + n > self.size() {
            let what = format!("{n} pushed with {used} of {} slots in use", self.size());
            check.broken(Rule::Overflow, At::ring(self.number), what);
        }
        if !check.strict() {
            self.head = (self.head + n) % self.size();
        }
        for _ in 0..if check.strict() { n } else { 0 } {
            let index = self.head;
            let element = view.load(self.slot(index)).unwrap_or(0);
            self.slots[index as usize] = element;
            check.pushed(self.number, index, element, self.tag(), view);
            self.head = (index + 1) % self.size();
        }
        self.occupancy = (self.occupancy + n) & COUNT;
    }

    fn popped(&mut self, n: u32, view: &View<'_>, check: &mut Check) {
        if n > self.occupancy {
            let what = format!("{n} popped of {}", self.occupancy);
            check.broken(Rule::Underflow, At::ring(self.number), what);
        }
        if !check.strict() {
            self.tail = (self.tail + n.min(self.occupancy)) % self.size();
        }
        for _ in 0..if check.strict() { n.min(self.occupancy) } else { 0 } {
            let index = self.tail;
            let element = self.slots[index as usize];
            check.note(Event::Popped { ring: self.number, index, element });
            check.advance(element, Owner::Free, false, At::slot(self.number, index, element), view);
            self.tail = (index + 1) % self.size();
        }
        self.occupancy = self.occupancy.wrapping_sub(n) & COUNT;
    }

    /// The doorbell of the reverse side.
    pub(crate) fn reverse_doorbell(&mut self, value: u32, view: &View<'_>, check: &mut Check) {
        self.accesses.doorbells += 1;
        check.note(Event::Reverse { ring: self.number, value });
        if !self.exposed(check) {
            return;
        }
        let count = self.count(value, 0x7fff_ff00, check);
        if value & TEARDOWN != 0 {
            if count != 0 {
                let what = format!("doorbell {value:#010x} acknowledges teardown together with a count");
                check.broken(Rule::AckWithCount, At::ring(self.number), what);
            } else if !self.teardown {
                let what = "teardown acknowledged that was not shown";
                check.broken(Rule::AckWithoutTeardown, At::ring(self.number), what);
            }
            self.teardown = false;
        }
        let n = count.unsigned_abs();
        if count > 0 || n > self.reverse {
            let what = format!("{} on the reverse side, which has {}", count, self.reverse);
            check.broken(Rule::Underflow, At::ring(self.number), what);
        }
        if !check.strict() {
            self.back = (self.back + n.min(self.reverse)) % self.size();
        }
        for _ in 0..if check.strict() { n.min(self.reverse) } else { 0 } {
            let index = self.back;
            let element = self.slots[index as usize];
            self.unchanged(index, view, check);
            check.note(Event::Popped { ring: self.number, index, element });
            check.advance(element, Owner::Free, false, At::slot(self.number, index, element), view);
            self.back = (index + 1) % self.size();
        }
        self.reverse = if count > 0 { self.reverse + n } else { self.reverse.wrapping_sub(n) } & COUNT;
    }
}
