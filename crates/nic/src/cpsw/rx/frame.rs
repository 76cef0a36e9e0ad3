//! Frames out of what the device filled: popped together, looked up, unmapped together, made packets.

use super::super::descriptor::{Part, Received};
use super::super::doorbell::MOST;
use super::{NONE, RxFlow};
use towpath_bus::Bus;
use towpath_packet::{Checksum, FromDevice, InFlight, Packet};

/// A buffer that was taken back from the device.
pub(super) struct Taken {
    loan: InFlight<FromDevice>,
    place: Place,
}

/// What a buffer is to its frame.
enum Place {
    /// All of it.
    Whole(Received),
    /// The first of so many, and its bytes.
    First(Received, u16),
    /// A further one, with so many bytes.
    Further(usize),
    /// Nothing: the frame can't be.
    Waste,
}

/// A frame whose buffers have not all been joined.
struct Begun {
    packet: Packet,
    received: Received,
    left: u16,
}

impl<B: Bus> RxFlow<B> {
    /// Receives up to `room` frames; each goes to `deliver` with its MAC port, 1 and up. Returns how many.
    #[inline]
    pub(in super::super) fn poll(&mut self, room: usize, mut deliver: impl FnMut(Packet, u8)) -> usize {
        let room = room.min(MOST as usize);
        if self.singly {
            return self.poll_singly(room, deliver);
        }
        // Nothing is returned only when nothing is left: who sleeps then, until an interrupt whose level has to rise, sleeps rightly.
        loop {
            if self.known == 0 {
                self.look();
            }
            let n = (self.known as usize).min(room);
            if n == 0 {
                return 0;
            }
            self.known -= n as u32;
            let done = self.pop(n, &mut deliver);
            if done > 0 {
                return done;
            }
        }
    }

    fn poll_singly(&mut self, room: usize, mut deliver: impl FnMut(Packet, u8)) -> usize {
        let mut done = 0;
        while done < room {
            if self.known == 0 {
                self.look();
            }
            if self.known == 0 {
                break;
            }
            self.known -= 1;
            done += self.pop(1, &mut deliver);
            self.post(1);
        }
        done
    }

    #[inline]
    fn look(&mut self) {
        self.counts.occupancy_reads += 1;
        self.known = self.done.occupancy().0.min(self.posted);
    }

    fn pop(&mut self, n: usize, deliver: &mut impl FnMut(Packet, u8)) -> usize {
        let mut elements = std::mem::take(&mut self.popped);
        elements.clear();
        for _ in 0..n {
            let element = self.next_element();
            elements.push(element);
        }
        self.counts.completion_doorbells += self.done.pop(n as u32);
        let mut taken = std::mem::take(&mut self.taken);
        for &index in elements.iter().filter(|&&index| index != NONE) {
            let received = self.descriptors.read(index);
            if self.chain > 1 {
                self.gather(index, received, &mut taken);
                continue;
            }
            let Some(loan) = self.take(index, received.len) else { continue };
            let good = received.is_frame() && received.part.next == 0 && received.len <= loan.room();
            taken.push(Taken { loan, place: if good { Place::Whole(received) } else { self.waste() } });
        }
        self.popped = elements;
        if self.mapper.sync_iotlb().is_err() {
            // Loans that are dropped leak their packets: the device may keep them.
            taken.clear();
        }
        let (mut done, mut begun) = (0, None);
        for Taken { loan, place } in taken.drain(..) {
            let whole = match place {
                Place::Whole(received) => Some((loan.complete(received.len), received)),
                Place::First(received, left) => {
                    begun = Some(Begun { packet: loan.complete(received.part.len), received, left: left - 1 });
                    None
                }
                Place::Further(len) => begun.take().and_then(|frame| self.join(frame, loan.complete(len), &mut begun)),
                Place::Waste => {
                    self.cache.free(loan.complete(0));
                    None
                }
            };
            if let Some((mut packet, received)) = whole {
                if received.is_verified() {
                    packet.set_csum(Checksum::Verified);
                }
                self.counts.received += 1;
                done += 1;
                deliver(packet, received.port);
            }
        }
        self.taken = taken;
        done
    }

    #[inline]
    fn next_element(&mut self) -> u16 {
        let slot = self.back as usize;
        self.back = if self.back + 1 == self.size { 0 } else { self.back + 1 };
        let index = match &self.completions {
            None => self.order.get_mut(slot).map_or(NONE, |order| std::mem::replace(order, NONE)),
            Some(completions) => self.descriptors.index(completions.load64(slot * 8)).unwrap_or(NONE),
        };
        let ours = self.is_away(index);
        if !ours {
            self.counts.strays += 1;
        }
        if ours { index } else { NONE }
    }

    /// Whether a descriptor is with the device.
    #[inline]
    fn is_away(&self, index: u16) -> bool {
        self.shadows.get(usize::from(index)).is_some_and(|shadow| shadow.loan.is_some())
    }

    /// A frame more that can't be.
    #[cold]
    fn waste(&mut self) -> Place {
        self.counts.broken += 1;
        Place::Waste
    }

    /// Takes the buffers of a frame back. It is one if each buffer was filled before the next was begun, and the last has the frame's end.
    ///
    /// What the device linked is looked up: a descriptor that it does not have, or has named before, ends the chain. Those that it
    /// keeps from us that way are missing until the channel is torn down.
    fn gather(&mut self, first: u16, received: Received, taken: &mut Vec<Taken>) {
        let (begin, mut good) = (taken.len(), received.is_frame());
        let (mut index, mut part, mut left) = (first, received.part, received.len);
        for parts in 1..=self.chain {
            let after = self.after(index, part);
            let Some(loan) = self.take(index, part.len) else {
                good = false;
                break;
            };
            let here = left.min(loan.room());
            good &= part.len == here;
            left -= here;
            taken.push(Taken { loan, place: Place::Further(here) });
            if left == 0 || parts == self.chain || after == NONE {
                good &= left == 0 && (self.linked || after == NONE);
                self.keep(if self.linked { after } else { NONE });
                break;
            }
            (index, part) = (after, self.descriptors.read_part(after));
        }
        let parts = (taken.len() - begin) as u16;
        if good && let Some(first) = taken.get_mut(begin) {
            first.place = if parts == 1 { Place::Whole(received) } else { Place::First(received, parts) };
            return;
        }
        self.counts.broken += 1;
        taken.iter_mut().skip(begin).for_each(|taken| taken.place = Place::Waste);
    }

    /// Where a frame goes on after a descriptor, before that is taken.
    fn after(&self, index: u16, part: Part) -> u16 {
        let after = if self.linked {
            self.shadows.get(usize::from(index)).map_or(NONE, |shadow| shadow.next)
        } else {
            self.descriptors.index(part.next).unwrap_or(NONE)
        };
        if after != index && self.is_away(after) { after } else { NONE }
    }

    /// The rest of a chain was not needed: it stays as it is, mapped, for the next.
    fn keep(&mut self, mut index: u16) {
        while let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
            self.kept.push(index);
            index = std::mem::replace(&mut shadow.next, NONE);
        }
    }

    /// Adds a buffer to a frame; the frame, if it was the last.
    fn join(&mut self, frame: Begun, buffer: Packet, begun: &mut Option<Begun>) -> Option<(Packet, Received)> {
        let Begun { mut packet, received, left } = frame;
        if let Err(buffer) = packet.append(buffer) {
            self.counts.broken += 1;
            self.cache.free(packet);
            self.cache.free(buffer);
            return None;
        }
        if left == 1 {
            return Some((packet, received));
        }
        *begun = Some(Begun { packet, received, left: left - 1 });
        None
    }

    /// Takes a buffer back from the device, which wrote `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, index: u16, len: usize) -> Option<InFlight<FromDevice>> {
        let shadow = self.shadows.get_mut(usize::from(index))?;
        let (loan, mapped) = (shadow.loan.take()?, shadow.mapped.take()?);
        self.posted -= u32::from(std::mem::take(&mut shadow.listed));
        self.mapper.sync_for_cpu(&mapped, len.min(loan.room()));
        let unmapped = self.mapper.unmap(mapped);
        self.recycler.give(index);
        // One that the device may keep is leaked with its loan.
        unmapped.is_ok().then_some(loan)
    }
}
