//! One ring: memory that both sides index, and the counts between them.
//!
//! ```text
//!   one-sided (ring accelerator)                     two-sided (PKTDMA)
//!     doorbell +n: software pushed n                   forward +n: software pushed n          slot i: forward
//!     doorbell −n: software popped n                   the engine fetches                             in flight
//!     the engine pops, or pushes                       the engine is through: reverse + 1             reverse
//!     occupancy: elements in the ring                  reverse −n: software took n back               empty
//! ```
//!
//! The count of a doorbell is a signed byte. Counts have 21 bits and wrap.

mod accesses;
mod doorbell;
mod window;

pub use accesses::Accesses;

use super::check::{At, Check, Event, Owner, Rule};
use super::view::View;
use std::collections::VecDeque;
use towpath_bus::tisci::{RingConfig, RingMode};

const COUNT: u32 = (1 << 21) - 1;
/// Reverse side: teardown is complete; written, it acknowledges that.
pub(crate) const TEARDOWN: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct Ring {
    number: u16,
    two_sided: bool,
    config: Option<RingConfig>,
    /// Next slot that a push goes to.
    head: u32,
    /// Next slot that a pop comes from.
    tail: u32,
    occupancy: u32,
    /// Pushed by the engine, but not yet visible in the count.
    hidden: u32,
    in_flight: u32,
    /// Two-sided: next slot that software takes back, and how many it may.
    back: u32,
    reverse: u32,
    teardown: bool,
    teardown_hidden: bool,
    /// Elements as they were announced.
    slots: Vec<u64>,
    /// What is in a ring of message mode.
    fifo: VecDeque<u64>,
    pub(crate) accesses: Accesses,
}

impl Ring {
    pub(crate) fn new(number: u16, two_sided: bool) -> Ring {
        Ring { number, two_sided, ..Ring::default() }
    }

    pub(crate) fn config(&self) -> Option<&RingConfig> {
        self.config.as_ref()
    }

    pub(crate) fn tag(&self) -> u8 {
        self.config.map_or(0, |config| config.asel)
    }

    fn size(&self) -> u32 {
        self.config.map_or(1, |config| config.count.max(1))
    }

    fn slot(&self, index: u32) -> u64 {
        self.config.map_or(0, |config| config.address) + 8 * u64::from(index)
    }

    pub(crate) fn is_message(&self) -> bool {
        self.config.is_some_and(|config| config.mode == RingMode::Message)
    }

    /// Elements that the engine can pop.
    pub(crate) fn available(&self) -> u32 {
        if self.is_message() { self.fifo.len() as u32 } else { self.occupancy }
    }

    pub(crate) fn configure(&mut self, config: RingConfig) {
        self.config = Some(config);
        self.slots = vec![0; config.count as usize];
        self.forget();
    }

    fn forget(&mut self) {
        (self.head, self.tail, self.back) = (0, 0, 0);
        (self.occupancy, self.hidden, self.in_flight, self.reverse) = (0, 0, 0, 0);
        (self.teardown, self.teardown_hidden) = (false, false);
        self.fifo.clear();
    }

    /// Indices and counts to zero; whatever was in it is the host's again.
    pub(crate) fn reset(&mut self, view: &View<'_>, check: &mut Check) {
        check.note(Event::Config { ring: self.number });
        let size = self.size();
        let (front, back) = match self.two_sided {
            true => (self.occupancy, self.reverse + self.hidden),
            false => (self.occupancy + self.hidden, 0),
        };
        let held = (0..front.min(size)).map(|i| self.tail + i);
        for index in held.chain((0..back.min(size)).map(|i| self.back + i)) {
            if let Some(&element) = self.slots.get((index % size) as usize) {
                check.advance(element, Owner::Free, false, At::ring(self.number), view);
            }
        }
        for element in std::mem::take(&mut self.fifo) {
            check.advance(element, Owner::Free, false, At::ring(self.number), view);
        }
        self.forget();
    }

    fn unchanged(&self, index: u32, view: &View<'_>, check: &mut Check) {
        let (was, now) = (self.slots[index as usize], view.load(self.slot(index)).unwrap_or(0));
        if was != now {
            let what = format!("slot held {was:#x} when it was announced, and {now:#x} later");
            check.broken(Rule::SlotRewritten, At::slot(self.number, index, was), what);
        }
    }

    /// The engine takes the next element.
    pub(crate) fn take(&mut self, view: &View<'_>, check: &mut Check) -> Option<(u32, u64)> {
        let index = self.tail;
        let element = if self.is_message() {
            let element = self.fifo.pop_front()?;
            if view.load(self.slot(index)) != Some(element) {
                let what = "the memory of a ring in message mode was stored to";
                check.broken(Rule::MessageMemory, At::slot(self.number, index, element), what);
            }
            element
        } else {
            if self.occupancy == 0 {
                return None;
            }
            if check.strict() {
                self.unchanged(index, view, check);
            }
            self.occupancy -= 1;
            self.in_flight += u32::from(self.two_sided);
            view.load(self.slot(index)).unwrap_or(0)
        };
        self.tail = (index + 1) % self.size();
        check.note(Event::Fetched { ring: self.number, index, element });
        Some((index, element))
    }

    /// The engine is through with an element: it comes back at its index, or is pushed.
    pub(crate) fn give(&mut self, element: u64, view: &View<'_>, check: &mut Check) {
        if self.two_sided {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.hidden += 1;
            check.note(Event::Completed { ring: self.number, index: 0, element });
            return;
        }
        let index = self.head;
        if self.occupancy + self.hidden >= self.size() {
            check.broken(Rule::CompletionOverflow, At::slot(self.number, index, element), "completion ring is full");
            return;
        }
        check.note(Event::Completed { ring: self.number, index, element });
        view.store(self.slot(index), element);
        self.slots[index as usize] = element;
        self.head = (index + 1) % self.size();
        self.hidden += 1;
    }

    /// Packets of a two-sided ring that the engine dropped without a trace.
    pub(crate) fn lost(&mut self, n: u32) {
        self.in_flight = self.in_flight.saturating_sub(n);
    }

    /// The end of a teardown, on a two-sided ring.
    pub(crate) fn mark(&mut self, check: &mut Check) {
        check.note(Event::Marker { ring: self.number });
        self.teardown_hidden = true;
    }

    pub(crate) fn lags(&self) -> bool {
        self.hidden > 0
    }

    pub(crate) fn marker_lags(&self) -> bool {
        self.teardown_hidden
    }

    /// The memory of completions has settled: the count shows them.
    pub(crate) fn publish(&mut self) {
        let n = std::mem::take(&mut self.hidden);
        if self.two_sided {
            self.reverse = (self.reverse + n) & COUNT;
        } else {
            self.occupancy = (self.occupancy + n) & COUNT;
        }
    }

    /// The end of a teardown shows: not before the last completions.
    pub(crate) fn publish_marker(&mut self) {
        self.publish();
        self.teardown |= std::mem::take(&mut self.teardown_hidden);
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

    /// Next slots of push and pop.
    pub(crate) fn indices(&self) -> (u32, u32) {
        (self.head, self.tail)
    }
}
