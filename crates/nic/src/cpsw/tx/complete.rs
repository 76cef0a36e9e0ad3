//! What the device is through with: looked for when it pays, popped together, handed over to be freed.

use super::super::doorbell::MOST;
use super::{LAST, TxChannel};
use towpath_bus::Bus;
use towpath_packet::Batch;

impl<B: Bus> TxChannel<B> {
    /// Takes back what the device is through with, if it is worth a look: when enough is in flight, when room is short, or
    /// when nothing was sent since the last time. Returns how many packets were handed to `free`.
    #[inline]
    pub(crate) fn reclaim(&mut self, batch: u8, free: &mut impl FnMut(&mut Batch)) -> usize {
        self.flush();
        let busy = std::mem::take(&mut self.busy);
        if self.in_flight == 0 {
            return 0;
        }
        let short = self.size - self.in_flight <= self.size / 4 || self.recycler.len() <= self.shadows.len() / 4;
        let enough = (2 * u32::from(batch)).min(self.size / 2).max(self.look_at);
        if busy && !short && self.in_flight < enough && !self.singly {
            return 0;
        }
        let done = self.collect(free);
        // A device that is behind is not asked again before another batch was sent.
        self.look_at = if done < usize::from(batch) { self.in_flight + u32::from(batch) } else { 0 };
        done
    }

    /// Takes back all that the device is through with.
    pub(crate) fn collect(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        let mut done = self.pop(free);
        if self.singly {
            // Until the count says that there is none.
            while let n @ 1.. = self.pop(free) {
                done += n;
            }
        }
        done
    }

    /// Reads the count once and pops as many; returns how many packets came back.
    fn pop(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        let (count, marked) = self.done.occupancy();
        self.counts.occupancy_reads += 1;
        if count == 0 {
            // The marker comes after the last completion, so it is believed only when there is none.
            if marked && self.completions.is_none() {
                self.done.acknowledge_teardown();
                self.torn_down = true;
            }
            return 0;
        }
        let (mut batch, mut elements) = (Batch::new(), std::mem::take(&mut self.popped));
        let (mut left, mut done) = (count.min(self.back_size), 0);
        let most = if self.singly { 1 } else { MOST };
        while left > 0 {
            let n = left.min(most);
            elements.clear();
            for _ in 0..n {
                let element = self.next_element();
                elements.push(element);
            }
            self.counts.completion_doorbells += self.done.pop(n);
            left -= n;
            for &first in elements.iter().filter(|&&first| first != LAST) {
                self.in_flight = self.in_flight.saturating_sub(1);
                done += 1;
                if let Some(packet) = self.release(first) {
                    if batch.room() == 0 {
                        self.hand_over(&mut batch, free);
                    }
                    let _ = batch.push(packet);
                }
            }
        }
        self.popped = elements;
        self.hand_over(&mut batch, free);
        self.counts.completed += done as u64;
        done
    }

    /// The next completed packet's first descriptor; [`LAST`] for what is none of ours.
    #[inline]
    fn next_element(&mut self) -> u16 {
        let slot = self.back as usize;
        self.back = if self.back + 1 == self.back_size { 0 } else { self.back + 1 };
        let first = match &self.completions {
            None => self.order.get_mut(slot).map_or(LAST, |order| std::mem::replace(order, LAST)),
            Some(completions) => {
                let element = completions.load64(slot * 8);
                if element & 0xf == 1 {
                    self.torn_down = true;
                    return LAST;
                }
                self.descriptors.index(element).unwrap_or(LAST)
            }
        };
        let ours = self.shadows.get(usize::from(first)).is_some_and(|shadow| shadow.loan.is_some());
        if !ours {
            self.counts.strays += 1;
        }
        if ours { first } else { LAST }
    }

    /// Packets go home only after nothing can reach them any more.
    #[inline]
    fn hand_over(&mut self, batch: &mut Batch, free: &mut impl FnMut(&mut Batch)) {
        if batch.is_empty() {
            return;
        }
        if self.mapper.sync_iotlb().is_ok() {
            free(batch);
        } else {
            std::mem::forget(std::mem::take(batch));
        }
    }

    /// What was announced and never fetched, of a channel that has been torn down: takes it off the ring and back.
    pub(crate) fn drain(&mut self, free: &mut impl FnMut(&mut Batch)) -> usize {
        let (left, _) = self.submit.occupancy();
        self.submit.pop(left.min(self.in_flight));
        let mut batch = Batch::new();
        let mut done = 0;
        for index in 0..self.shadows.len() as u16 {
            let has = self.shadows.get(usize::from(index)).is_some_and(|shadow| shadow.loan.is_some());
            if has && let Some(packet) = self.release(index) {
                done += 1;
                if batch.room() == 0 {
                    self.hand_over(&mut batch, free);
                }
                let _ = batch.push(packet);
            }
        }
        self.hand_over(&mut batch, free);
        let _ = self.mapper.flush();
        (self.head, self.back, self.staged, self.in_flight) = (0, 0, 0, 0);
        self.order.fill(LAST);
        done
    }
}
