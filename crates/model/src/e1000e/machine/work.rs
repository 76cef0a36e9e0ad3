//! Units of work, and the order they are done in: bursts, or one at a time by a seed.

use super::super::env::Env;
use super::super::regs::*;
use super::Machine;
use crate::iommu::Transfer;
use crate::seed::Seed;

/// Frames per direction and burst.
const BURST: usize = 64;

/// The kinds of units of work.
const UNITS: usize = 12;

impl Machine {
    fn prepare(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> bool {
        if self.dirty {
            self.refresh(env, transfer);
        }
        self.tick(env);
        if self.plan.draw(|f| f.flap) {
            self.link.flap(self.plan.faults.flap_turns);
        }
        if self.stalled == 0 && self.plan.draw(|f| f.stall) {
            self.stalled = match self.plan.faults.stall_turns {
                0 => u32::MAX,
                turns => turns,
            };
        }
        if self.stalled != 0 {
            self.stalled -= u32::from(self.stalled != u32::MAX);
            return false;
        }
        env.may_master() && env.registers.get(CTRL) & CTRL_MASTER_DISABLE == 0
    }

    /// Does one burst of everything that is possible; returns the number of units of work.
    pub(crate) fn turn(&mut self, env: &Env) -> usize {
        let mut transfer = env.dma.transfer();
        let mut done = 0;
        if self.prepare(env, &mut transfer) {
            for n in 0..2 {
                done += self.transmit(env, &mut transfer, n);
            }
            done += self.receive(env, &mut transfer);
        }
        self.finish(env, &mut transfer);
        done
    }

    fn transmit(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> usize {
        if !self.running.1 {
            return 0;
        }
        let mut done = 0;
        for _ in 0..BURST {
            let units = self.tx_fetch(env, transfer, n)
                + usize::from(self.tx_take(env, transfer, n))
                + usize::from(self.tx_leave(n))
                + usize::from(self.tx_write_back(transfer, n));
            done += units;
            if units == 0 {
                break;
            }
        }
        while self.tx_leave(n) || self.tx_write_back(transfer, n) {
            done += 1;
        }
        done
    }

    fn receive(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> usize {
        let mut done = 0;
        for _ in 0..BURST {
            let mut units = usize::from(self.arrive(env));
            units += self.rx.fetch(env, transfer, 0) + self.rx.fetch(env, transfer, 1);
            while self.store(env, transfer) {
                units += 1 + self.rx.fetch(env, transfer, 0) + self.rx.fetch(env, transfer, 1);
            }
            done += units;
            if units == 0 {
                break;
            }
        }
        for n in 0..2 {
            while self.rx_write_back(env, transfer, n) {
                done += 1;
            }
        }
        done
    }

    /// Does one unit of work, selected by the seed among those that are possible; returns false if
    /// none is.
    pub(crate) fn step(&mut self, env: &Env, seed: &mut Seed) -> bool {
        let mut transfer = env.dma.transfer();
        let mut done = false;
        if self.prepare(env, &mut transfer) {
            let first = seed.below(UNITS);
            done = (0..UNITS).any(|i| self.unit(env, &mut transfer, (first + i) % UNITS));
        }
        self.finish(env, &mut transfer);
        done
    }

    fn unit(&mut self, env: &Env, transfer: &mut Transfer<'_>, which: usize) -> bool {
        let n = which & 1;
        match which / 2 {
            0 => self.running.1 && self.tx_fetch(env, transfer, n) > 0,
            1 => self.running.1 && self.tx_take(env, transfer, n),
            2 => self.tx_leave(n),
            3 => self.tx_write_back(transfer, n),
            4 if n == 0 => self.arrive(env),
            4 => self.store(env, transfer),
            _ => self.rx_write_back(env, transfer, n) || self.running.0 && self.rx.fetch(env, transfer, n) > 0,
        }
    }

    fn tx_fetch(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> usize {
        self.tx.get_mut(n).map_or(0, |t| t.fetch(env, transfer))
    }

    fn tx_take(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> bool {
        let Machine { tx, settings, stats, .. } = self;
        tx.get_mut(n).is_some_and(|t| t.take(env, settings, transfer, stats))
    }

    /// Sends a frame to the wire, or back to the receiver. Without a link it stays in the packet
    /// buffer.
    fn tx_leave(&mut self, n: usize) -> bool {
        let Some(transmitter) = self.tx.get_mut(n) else { return false };
        let Some(frame) = transmitter.outbox.peek() else { return false };
        if self.settings.loopback || self.phy.loopback() {
            if self.looped.len() >= BURST {
                return false;
            }
            self.looped.push(frame.to_vec());
        } else if !self.link.up() || !self.wire.send(frame) {
            return false;
        }
        transmitter.outbox.pop();
        true
    }

    fn tx_write_back(&mut self, transfer: &mut Transfer<'_>, n: usize) -> bool {
        let Machine { tx, plan, .. } = self;
        let done = tx.get_mut(n).is_some_and(|t| t.write_back(transfer, plan));
        if done {
            self.causes |= cause::TXDW | cause::TXQ0 << n;
        }
        done
    }

    /// Receives a frame from the wire.
    fn arrive(&mut self, env: &Env) -> bool {
        if !self.running.0 || self.pause && !self.rx.has_room(env, &self.settings) {
            return false;
        }
        let frame = if self.looped.is_empty() {
            let mut frame = self.rx.vector();
            if !self.link.up() || !self.wire.receive(&mut frame) {
                self.rx.give_back(frame);
                return false;
            }
            frame
        } else {
            self.looped.remove(0)
        };
        self.take_in(env, frame);
        true
    }

    fn take_in(&mut self, env: &Env, frame: Vec<u8>) {
        let Machine { rx, settings, stats, plan, .. } = self;
        self.causes |= rx.arrive(env, settings, stats, plan, frame);
    }

    fn store(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> bool {
        let Machine { rx, stats, plan, .. } = self;
        self.running.0 && rx.store(env, transfer, stats, plan)
    }

    fn rx_write_back(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> bool {
        let done = self.rx.write_back(transfer, &mut self.plan, n);
        if done {
            self.causes |= cause::RXT0 | cause::RXQ0 << n;
            if self.rx.is_low(env, &self.settings, n) {
                self.causes |= cause::RXDMT0;
            }
        }
        done
    }

    /// Receives frames from the caller as if they came over the wire; returns how many had room.
    pub(crate) fn deliver<'a>(&mut self, env: &Env, frames: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut transfer = env.dma.transfer();
        if !self.prepare(env, &mut transfer) || !self.running.0 {
            return 0;
        }
        let mut count = 0;
        for bytes in frames {
            if !self.rx.has_room(env, &self.settings) {
                break;
            }
            let mut frame = self.rx.vector();
            frame.clear();
            frame.extend_from_slice(bytes);
            self.take_in(env, frame);
            loop {
                self.rx.fetch(env, &mut transfer, 0);
                self.rx.fetch(env, &mut transfer, 1);
                if !self.store(env, &mut transfer) {
                    break;
                }
            }
            count += 1;
        }
        for n in 0..2 {
            while self.rx_write_back(env, &mut transfer, n) {}
        }
        self.finish(env, &mut transfer);
        count
    }

    /// Ends a burst: checks owned descriptors, publishes statistics and interrupts.
    fn finish(&mut self, env: &Env, transfer: &mut Transfer<'_>) {
        if env.audits {
            self.rx.audit(env, transfer);
            self.tx.iter().for_each(|t| t.ring.audit(env, transfer));
        }
        self.stats.publish(&env.registers);
        self.interrupt(env);
    }
}
