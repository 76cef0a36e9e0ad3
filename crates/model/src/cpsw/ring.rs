//! One ring: memory with an index on both sides, and the occupancies.
//!
//! ```text
//!   one-sided (ring accelerator)            two-sided (PKTDMA)
//!     doorbell +n: software pushed n          forward +n: software pushed n     slot i: forward
//!     doorbell −n: software popped n          the engine fetches                        in flight
//!     the engine pops, or pushes              the engine completes: reverse + 1         reverse
//!     occupancy: elements in the ring         reverse −n: software popped n             empty
//! ```
//!
//! The count of a doorbell is a signed byte. Occupancies have 21 bits and wrap. A ring in message
//! mode has no doorbells: elements pass through its FIFO window.

use super::accesses::Accesses;
use super::check::{At, Checker, Event, Owner, Rule};
use super::dma_view::DmaView;
use super::setup::RingSetup;
use std::collections::VecDeque;

const COUNT: u32 = (1 << 21) - 1;
/// Reverse side: teardown is complete. A write acknowledges that.
pub(crate) const TEARDOWN: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct Ring {
    number: u16,
    two_sided: bool,
    setup: Option<RingSetup>,
    /// Slot of the next push.
    head: u32,
    /// Slot of the next pop.
    tail: u32,
    occupancy: u32,
    /// Elements that the engine pushed and that the occupancy does not show yet.
    hidden: u32,
    in_flight: u32,
    /// Two-sided: the slot that software pops next, and the number that it may pop.
    reverse_tail: u32,
    reverse: u32,
    teardown: bool,
    hidden_teardown: bool,
    /// Completions were pushed twice.
    repeats: bool,
    /// Elements as they were announced.
    slots: Vec<u64>,
    /// The elements of a ring in message mode.
    fifo: VecDeque<u64>,
    pub(crate) accesses: Accesses,
}

impl Ring {
    pub(crate) fn new(number: u16, two_sided: bool) -> Ring {
        Ring { number, two_sided, ..Ring::default() }
    }

    pub(crate) fn setup(&self) -> Option<&RingSetup> {
        self.setup.as_ref()
    }

    pub(crate) fn tag(&self) -> u8 {
        self.setup.map_or(0, |setup| setup.asel)
    }

    fn size(&self) -> u32 {
        self.setup.map_or(1, |setup| setup.count.max(1))
    }

    fn slot(&self, index: u32) -> u64 {
        self.setup.map_or(0, |setup| setup.address) + 8 * u64::from(index)
    }

    pub(crate) fn is_message(&self) -> bool {
        self.setup.is_some_and(|setup| setup.message)
    }

    /// Elements that the engine can pop.
    pub(crate) fn available(&self) -> u32 {
        if self.is_message() { self.fifo.len() as u32 } else { self.occupancy }
    }

    pub(crate) fn configure(&mut self, setup: RingSetup) {
        self.setup = Some(setup);
        self.slots = vec![0; setup.count as usize];
        self.clear();
    }

    fn clear(&mut self) {
        (self.head, self.tail, self.reverse_tail) = (0, 0, 0);
        (self.occupancy, self.hidden, self.in_flight, self.reverse) = (0, 0, 0, 0);
        (self.teardown, self.hidden_teardown, self.repeats) = (false, false, false);
        self.fifo.clear();
    }

    /// Clears indices and occupancies. The host owns the elements of the ring again.
    pub(crate) fn reset(&mut self, view: &DmaView<'_>, check: &mut Checker) {
        check.record(Event::Config { ring: self.number });
        let size = self.size();
        let (forward, reverse) = match self.two_sided {
            true => (self.occupancy, self.reverse + self.hidden),
            false => (self.occupancy + self.hidden, 0),
        };
        let held = (0..forward.min(size)).map(|i| self.tail + i);
        for index in held.chain((0..reverse.min(size)).map(|i| self.reverse_tail + i)) {
            if let Some(&element) = self.slots.get((index % size) as usize) {
                check.set_owner(element, Owner::Free, false, At::ring(self.number), view);
            }
        }
        for element in std::mem::take(&mut self.fifo) {
            check.set_owner(element, Owner::Free, false, At::ring(self.number), view);
        }
        self.clear();
    }

    fn check_slot(&self, index: u32, view: &DmaView<'_>, check: &mut Checker) {
        let (was, now) = (self.slots[index as usize], view.load(self.slot(index)).unwrap_or(0));
        if was != now {
            let what = format!("slot held {was:#x} when it was announced, and {now:#x} later");
            check.report(Rule::SlotRewritten, At::slot(self.number, index, was), what);
        }
    }

    /// The engine fetches the next element.
    pub(crate) fn fetch(&mut self, view: &DmaView<'_>, check: &mut Checker) -> Option<(u32, u64)> {
        let index = self.tail;
        let element = if self.is_message() {
            let element = self.fifo.pop_front()?;
            if view.load(self.slot(index)) != Some(element) {
                let what = "the memory of a ring in message mode was stored to";
                check.report(Rule::MessageMemory, At::slot(self.number, index, element), what);
            }
            element
        } else {
            if self.occupancy == 0 {
                return None;
            }
            if check.strict() {
                self.check_slot(index, view, check);
            }
            self.occupancy -= 1;
            self.in_flight += u32::from(self.two_sided);
            view.load(self.slot(index)).unwrap_or(0)
        };
        self.tail = (index + 1) % self.size();
        check.record(Event::Fetched { ring: self.number, index, element });
        Some((index, element))
    }

    /// The engine completes an element: at its own index, or by a push.
    pub(crate) fn complete(&mut self, element: u64, view: &DmaView<'_>, check: &mut Checker) {
        if self.two_sided {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.hidden += 1;
            check.record(Event::Completed { ring: self.number, index: 0, element });
            return;
        }
        let index = self.head;
        if self.occupancy + self.hidden >= self.size() {
            check.report(Rule::CompletionOverflow, At::slot(self.number, index, element), "completion ring is full");
            return;
        }
        check.record(Event::Completed { ring: self.number, index, element });
        view.store(self.slot(index), element);
        self.slots[index as usize] = element;
        self.head = (index + 1) % self.size();
        self.hidden += 1;
    }

    /// Whether the engine can push one more element.
    pub(crate) fn has_room(&self) -> bool {
        self.occupancy + self.hidden < self.size()
    }

    /// The engine pushes a completion for the second time.
    pub(crate) fn repeat(&mut self, element: u64, view: &DmaView<'_>, check: &mut Checker) {
        self.repeats = true;
        self.complete(element, view, check);
    }

    /// Whether the engine waits for the host to pop: repeated completions have taken slots that the
    /// host did not count.
    pub(crate) fn waits(&self) -> bool {
        self.repeats && !self.has_room()
    }

    /// The engine dropped packets of a two-sided ring without a completion.
    pub(crate) fn drop_in_flight(&mut self, n: u32) {
        self.in_flight = self.in_flight.saturating_sub(n);
    }

    /// The end of a teardown, on a two-sided ring.
    pub(crate) fn mark_teardown(&mut self, check: &mut Checker) {
        check.record(Event::Marker { ring: self.number });
        self.hidden_teardown = true;
    }

    pub(crate) fn has_hidden(&self) -> bool {
        self.hidden > 0
    }

    pub(crate) fn has_hidden_marker(&self) -> bool {
        self.hidden_teardown
    }

    /// The occupancy shows the completions, whose memory has been written.
    pub(crate) fn publish(&mut self) {
        let n = std::mem::take(&mut self.hidden);
        if self.two_sided {
            self.reverse = (self.reverse + n) & COUNT;
        } else {
            self.occupancy = (self.occupancy + n) & COUNT;
        }
    }

    /// The end of a teardown shows, with the last completions and not before them.
    pub(crate) fn publish_marker(&mut self) {
        self.publish();
        self.teardown |= std::mem::take(&mut self.hidden_teardown);
    }

    /// Whether the interrupt is asserted.
    pub(crate) fn level(&self) -> bool {
        if self.two_sided { self.reverse != 0 || self.teardown } else { self.occupancy != 0 }
    }

    pub(crate) fn read_occupancy(&mut self) -> u32 {
        self.accesses.occupancies += 1;
        self.available()
    }

    pub(crate) fn read_reverse(&mut self) -> u32 {
        self.accesses.occupancies += 1;
        self.reverse | if self.teardown { TEARDOWN } else { 0 }
    }

    /// Slots of the next push and pop.
    pub(crate) fn indices(&self) -> (u32, u32) {
        (self.head, self.tail)
    }

    /// Whether the ring has doorbells; reports a violation if not.
    fn exposed(&self, check: &mut Checker) -> bool {
        if self.setup.is_none() {
            check.report(Rule::Unconfigured, At::ring(self.number), "doorbell of a ring that is not set up");
        } else if self.is_message() {
            check.report(Rule::MessageDoorbell, At::ring(self.number), "doorbell of a ring in message mode");
        }
        self.setup.is_some() && !self.is_message()
    }

    /// The count of a doorbell. The bits of `sign` may repeat its sign.
    fn count(&self, value: u32, sign: u32, check: &mut Checker) -> i32 {
        let count = i32::from(value as u8 as i8);
        let rest = value & sign;
        if rest != 0 && !(rest == sign && count < 0) {
            let what = format!("doorbell {value:#010x}: bits beside the count are set");
            check.report(Rule::DoorbellBits, At::ring(self.number), what);
        }
        count
    }

    /// The doorbell of a one-sided ring, or of the forward side. `running`: a channel that fetches
    /// from the ring is enabled.
    pub(crate) fn doorbell(&mut self, value: u32, running: bool, view: &DmaView<'_>, check: &mut Checker) {
        self.accesses.doorbells += 1;
        check.record(Event::Doorbell { ring: self.number, value });
        if !self.exposed(check) {
            return;
        }
        match self.count(value, 0xffff_ff00, check) {
            n @ 0.. => self.pushed(n.unsigned_abs(), view, check),
            n => {
                if running {
                    let what = format!("doorbell {value:#x} pops from a submission ring whose channel runs");
                    check.report(Rule::PopWhileRunning, At::ring(self.number), what);
                }
                self.popped(n.unsigned_abs(), view, check);
            }
        }
    }

    fn pushed(&mut self, n: u32, view: &DmaView<'_>, check: &mut Checker) {
        let used = self.occupancy + self.hidden + self.in_flight + self.reverse;
        if used + n > self.size() {
            let what = format!("{n} pushed with {used} of {} slots in use", self.size());
            check.report(Rule::Overflow, At::ring(self.number), what);
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

    fn popped(&mut self, n: u32, view: &DmaView<'_>, check: &mut Checker) {
        if n > self.occupancy {
            let what = format!("{n} popped of {}", self.occupancy);
            check.report(Rule::Underflow, At::ring(self.number), what);
        }
        if !check.strict() {
            self.tail = (self.tail + n.min(self.occupancy)) % self.size();
        }
        for _ in 0..if check.strict() { n.min(self.occupancy) } else { 0 } {
            let index = self.tail;
            let element = self.slots[index as usize];
            check.record(Event::Popped { ring: self.number, index, element });
            check.set_owner(element, Owner::Free, false, At::slot(self.number, index, element), view);
            self.tail = (index + 1) % self.size();
        }
        self.occupancy = self.occupancy.wrapping_sub(n) & COUNT;
    }

    /// The doorbell of the reverse side.
    pub(crate) fn reverse_doorbell(&mut self, value: u32, view: &DmaView<'_>, check: &mut Checker) {
        self.accesses.doorbells += 1;
        check.record(Event::Reverse { ring: self.number, value });
        if !self.exposed(check) {
            return;
        }
        let count = self.count(value, 0x7fff_ff00, check);
        if value & TEARDOWN != 0 {
            if count != 0 {
                let what = format!("doorbell {value:#010x} acknowledges teardown together with a count");
                check.report(Rule::AckWithCount, At::ring(self.number), what);
            } else if !self.teardown {
                let what = "teardown acknowledged that was not shown";
                check.report(Rule::AckWithoutTeardown, At::ring(self.number), what);
            }
            self.teardown = false;
        }
        let n = count.unsigned_abs();
        if count > 0 || n > self.reverse {
            let what = format!("{} on the reverse side, which has {}", count, self.reverse);
            check.report(Rule::Underflow, At::ring(self.number), what);
        }
        if !check.strict() {
            self.reverse_tail = (self.reverse_tail + n.min(self.reverse)) % self.size();
        }
        for _ in 0..if check.strict() { n.min(self.reverse) } else { 0 } {
            let index = self.reverse_tail;
            let element = self.slots[index as usize];
            self.check_slot(index, view, check);
            check.record(Event::Popped { ring: self.number, index, element });
            check.set_owner(element, Owner::Free, false, At::slot(self.number, index, element), view);
            self.reverse_tail = (index + 1) % self.size();
        }
        self.reverse = if count > 0 { self.reverse + n } else { self.reverse.wrapping_sub(n) } & COUNT;
    }

    /// Pushes an element through the FIFO window, at the tail or at the head.
    pub(crate) fn fifo_push(&mut self, element: u64, tail: bool, view: &DmaView<'_>, check: &mut Checker) {
        self.accesses.fifo_writes += 1;
        if !self.is_message() {
            check.report(Rule::FifoAccess, At::ring(self.number), "window of a ring that is not in message mode");
            return;
        }
        if self.fifo.len() >= self.size() as usize {
            check.report(Rule::FifoOverflow, At::ring(self.number), "element pushed to a full ring");
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

    /// The engine pushes an element that it did not use back to the head.
    pub(crate) fn push_back(&mut self, element: u64, view: &DmaView<'_>, check: &mut Checker) {
        check.set_owner(element, Owner::Pushed, false, At::ring(self.number), view);
        self.tail = (self.tail + self.size() - 1) % self.size();
        view.store(self.slot(self.tail), element);
        if self.is_message() {
            self.fifo.push_front(element);
        } else {
            self.occupancy += 1;
        }
    }

    /// Pops an element through the FIFO window; 0 from an empty ring.
    pub(crate) fn fifo_pop(&mut self, running: bool, view: &DmaView<'_>, check: &mut Checker) -> u64 {
        self.accesses.fifo_reads += 1;
        let element = self.fifo.pop_front().unwrap_or(0);
        if element != 0 {
            if running {
                let what = "element read from a submission ring whose channel runs";
                check.report(Rule::PopWhileRunning, At::ring(self.number), what);
            }
            self.tail = (self.tail + 1) % self.size();
            check.set_owner(element, Owner::Free, false, At::ring(self.number), view);
        }
        element
    }
}
