//! A descriptor ring, from the device's view.
//!
//! ```text
//!       head            next_to_fetch             tail
//!   ─────┬───────────────┬───────────────────────┬─────
//!    done│ on the chip   │ in memory, device's    │ driver's
//! ```
//!
//! Up to 64 descriptors are on the chip, with their contents at the time of the fetch. The head
//! register follows the used descriptors.

use super::env::Env;
use super::regs::*;
use crate::iommu::Transfer;
use crate::violation::Ring;
use std::collections::VecDeque;

/// The capacity of the chip for descriptors of a ring.
const ON_CHIP: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetched {
    pub(crate) index: u32,
    pub(crate) words: [u64; 2],
    /// Strict: the buffer that the device owns through this descriptor.
    pub(crate) owned: (u64, usize),
}

#[derive(Debug)]
pub(crate) struct DescriptorRing {
    pub(crate) which: Ring,
    /// The offset of its registers.
    at: usize,
    base: u64,
    len: u32,
    fetch: u32,
    chip: VecDeque<Fetched>,
    /// A descriptor could not be read: the queue stops until reset.
    pub(crate) broken: bool,
}

impl DescriptorRing {
    pub(crate) fn new(which: Ring) -> DescriptorRing {
        let at = match which {
            Ring::Rx(n) => RDBAL + QUEUE * usize::from(n),
            Ring::Tx(n) => TDBAL + QUEUE * usize::from(n),
        };
        DescriptorRing { which, at, base: 0, len: 0, fetch: 0, chip: VecDeque::with_capacity(ON_CHIP), broken: false }
    }

    /// Starts the queue: latches the ring registers.
    pub(crate) fn start(&mut self, env: &Env) {
        let get = |offset| env.registers.get(self.at + offset);
        self.base = u64::from(get(BAH)) << 32 | u64::from(get(0) & !0xf);
        self.len = (get(LEN) & 0xf_ff80) / 16;
        self.fetch = get(HEAD) & 0xffff;
        self.chip.clear();
        self.broken = false;
    }

    /// Stops the queue and discards the fetched descriptors.
    pub(crate) fn stop(&mut self, transfer: &mut Transfer<'_>) {
        for fetched in self.chip.drain(..) {
            transfer.disown(fetched.owned.0, fetched.owned.1);
        }
        self.len = 0;
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn address(&self, index: u32) -> u64 {
        self.base + 16 * u64::from(index)
    }

    fn tail(&self, env: &Env) -> u32 {
        env.registers.get(self.at + TAIL) & 0xffff
    }

    /// Descriptors that the device owns: from the first one on the chip to the tail.
    pub(crate) fn available(&self, env: &Env) -> u32 {
        if self.len == 0 {
            return 0;
        }
        let tail = self.tail(env);
        let waiting = if tail < self.len { (tail + self.len - self.fetch) % self.len } else { 0 };
        waiting + self.chip.len() as u32
    }

    /// Fetches as many descriptors as possible; returns their number.
    #[inline]
    pub(crate) fn fetch(&mut self, env: &Env, transfer: &mut Transfer<'_>, buffer: usize) -> usize {
        let tail = self.tail(env);
        if self.len == 0 || tail == self.fetch || self.broken || tail >= self.len || self.fetch >= self.len {
            return 0;
        }
        let before = self.chip.len();
        while self.fetch != tail && self.chip.len() < ON_CHIP {
            let end = if tail > self.fetch { tail } else { self.len };
            let n = ((end - self.fetch) as usize).min(ON_CHIP - self.chip.len());
            let mut words = [[0; 2]; ON_CHIP];
            let Some(into) = words.get_mut(..n) else { break };
            if transfer.descriptors(self.address(self.fetch), into).is_err() {
                self.broken = true;
                break;
            }
            for (i, words) in into.iter().enumerate() {
                let mut fetched = Fetched { index: self.fetch + i as u32, words: *words, owned: (0, 0) };
                if env.violations.strict() {
                    super::strict::fetched(env, self.which, &mut fetched, buffer);
                    transfer.own(fetched.owned.0, fetched.owned.1);
                }
                self.chip.push_back(fetched);
            }
            self.fetch = (self.fetch + n as u32) % self.len;
        }
        self.chip.len() - before
    }

    /// The next descriptor.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&Fetched> {
        self.chip.front()
    }

    /// Consumes the next descriptor and advances the head.
    #[inline]
    pub(crate) fn take(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> Option<Fetched> {
        let fetched = self.chip.pop_front()?;
        if env.violations.strict() {
            super::strict::used(env, self, transfer, &fetched);
        }
        let next = if fetched.index + 1 == self.len { 0 } else { fetched.index + 1 };
        env.registers.set(self.at + HEAD, next);
        Some(fetched)
    }

    /// Strict: checks that the driver has not changed fetched descriptors in memory.
    pub(crate) fn check_owned(&self, env: &Env, transfer: &mut Transfer<'_>) {
        for fetched in &self.chip {
            super::strict::unchanged(env, self, transfer, fetched);
        }
    }
}
