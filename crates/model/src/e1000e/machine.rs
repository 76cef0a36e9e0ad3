//! The device: the effect of registers, the interrupts, and units of work in bursts or one by one.

use super::config::Config;
use super::env::Env;
use super::faults::FaultInjector;
use super::irq::Irqs;
use super::media::Media;
use super::phy;
use super::regs::*;
use super::rx::Receiver;
use super::settings::Settings;
use super::stats::{self, Stats};
use super::tx::{SharedContext, Transmitter};
use crate::iommu::Transfer;
use crate::seed::Seed;
use crate::wire::Wire;

/// Frames per direction and burst.
const BURST: usize = 64;

/// The kinds of units of work.
const UNITS: usize = 12;

pub(crate) struct Machine {
    settings: Settings,
    /// Registers were written since they were decoded.
    dirty: bool,
    rx: Receiver,
    tx: [Transmitter; 2],
    context: SharedContext,
    /// The link was lost with frames in the rings: transmission has stopped until a reset.
    tx_lost: bool,
    running: (bool, bool),
    wire: Box<dyn Wire>,
    /// Frames in loopback that are not received yet.
    loopback_frames: Vec<Vec<u8>>,
    /// The link has been up since the reset.
    was_up: bool,
    /// The link and the PHY.
    pub(super) media: Media,
    nvm: [u16; 64],
    mac: [u8; 6],
    stats: Stats,
    faults: FaultInjector,
    /// Bursts for which the device does nothing; `u32::MAX`: until reset.
    stalled: u32,
    causes: u32,
}

impl Machine {
    pub(crate) fn new(config: &Config, env: &Env, wire: Box<dyn Wire>) -> Machine {
        Machine {
            settings: Settings::new(&env.registers),
            dirty: true,
            rx: Receiver::new(),
            tx: [Transmitter::new(0), Transmitter::new(1)],
            context: SharedContext::default(),
            tx_lost: false,
            running: (false, false),
            wire,
            loopback_frames: Vec::new(),
            was_up: false,
            media: Media::new(config),
            nvm: phy::nvm(config.mac, config.manageability),
            mac: config.mac,
            stats: Stats::default(),
            faults: FaultInjector::new(config.faults),
            stalled: 0,
            causes: 0,
        }
    }

    /// CTRL.RST, or a function reset.
    pub(crate) fn reset(&mut self, env: &Env) {
        let mut transfer = env.dma.transfer();
        self.stop(&mut transfer);
        env.registers.reset(self.mac);
        env.order.reset();
        env.irqs().reset();
        self.media.reset();
        (self.context, self.tx_lost, self.was_up) = (SharedContext::default(), false, false);
        (self.dirty, self.stalled, self.causes) = (true, 0, 0);
        self.stats = Stats::default();
    }

    fn stop(&mut self, transfer: &mut Transfer<'_>) {
        self.rx.stop(transfer);
        self.tx.iter_mut().for_each(|t| t.stop(transfer));
        self.tx.iter().for_each(|t| self.context.release(t.ring.which));
        self.loopback_frames.clear();
        self.running = (false, false);
    }

    /// A register other than a tail was written.
    pub(crate) fn written(&mut self, env: &Env, at: usize) {
        self.dirty = true;
        if matches!(at, RCTL | TCTL) {
            self.refresh(env, &mut env.dma.transfer());
        }
        if at == CTRL {
            let disabled = env.registers.get(CTRL) & CTRL_MASTER_DISABLE != 0;
            env.registers.change(STATUS, STATUS_MASTER, if disabled { 0 } else { STATUS_MASTER });
            self.tick(env);
        }
    }

    /// A write of MDIC.
    pub(crate) fn mdic(&mut self, env: &Env, value: u32) {
        if self.media.mdic(env, value) {
            self.causes |= cause::MDAC;
            self.interrupt(env);
        }
    }

    /// A write of EERD.
    pub(crate) fn eerd(&mut self, env: &Env, value: u32) {
        env.registers.set(EERD, phy::eerd(&self.nvm, value));
    }

    /// Whether frames need no link.
    fn loops(&self) -> bool {
        self.settings.loopback || self.media.loopback()
    }

    /// Advances the link by one tick.
    pub(crate) fn tick(&mut self, env: &Env) {
        let wanted = env.registers.get(CTRL) & CTRL_SLU != 0 && self.media.wants_link() && self.wire.carrier();
        if self.media.tick(env, wanted) {
            self.causes |= cause::LSC;
            self.interrupt(env);
        }
        self.was_up |= self.media.link_up();
        // Without a link the chip stops DMA, and goes on with these frames never again (Linux:
        // `e1000_watchdog_task`).
        let lost = self.was_up && !self.media.link_up() && self.running.1 && !self.loops();
        self.tx_lost |= lost && self.tx.iter().any(|t| t.is_pending(env));
    }

    /// Decodes the registers, and starts or stops reception and transmission accordingly.
    fn refresh(&mut self, env: &Env, transfer: &mut Transfer<'_>) {
        self.dirty = false;
        self.settings = Settings::new(&env.registers);
        let (rx, tx) = (self.settings.rx_on, self.settings.tx_on);
        match (self.running.0, rx) {
            (false, true) => self.rx.start(env),
            (true, false) => self.rx.stop(transfer),
            _ => {}
        }
        if self.running.1 != tx {
            for transmitter in &mut self.tx {
                if tx {
                    transmitter.ring.start(env)
                } else {
                    transmitter.stop(transfer)
                }
                self.context.release(transmitter.ring.which);
            }
        }
        self.running = (rx, tx);
    }

    fn interrupt(&mut self, env: &Env) {
        let causes = std::mem::take(&mut self.causes);
        if causes != 0 {
            let faults = &mut self.faults;
            let mut irqs = env.irqs();
            Irqs::raise(&mut irqs, &env.registers, causes, || faults.inject(|f| f.interrupt));
        }
    }

    /// The wire's descriptor for a device that is about to sleep; `None` while it cannot receive.
    pub(crate) fn wire_wake(&mut self, env: &Env) -> Option<std::os::fd::RawFd> {
        let receives = self.running.0 && self.media.link_up() && self.rx.has_room(env, &self.settings);
        if receives { self.wire.wake() } else { None }
    }

    /// Frames in the packet buffer.
    pub(crate) fn waiting(&self) -> usize {
        self.rx.waiting()
    }

    fn prepare(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> bool {
        if self.dirty {
            self.refresh(env, transfer);
        }
        self.tick(env);
        if !self.media.link_up() {
            // Noise (Linux: `e1000_init_hw_82571`).
            self.stats.add(stats::SYMERRS, 3);
            self.stats.add(stats::SEC, 1);
        }
        if self.faults.inject(|f| f.flap) {
            self.media.flap(self.faults.rates.flap_turns);
        }
        if self.stalled == 0 && self.faults.inject(|f| f.stall) {
            self.stalled = match self.faults.rates.stall_turns {
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
        if !self.transmits() {
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
            0 => self.transmits() && self.tx_fetch(env, transfer, n) > 0,
            1 => self.transmits() && self.tx_take(env, transfer, n),
            2 => self.transmits() && self.tx_leave(n),
            3 => self.transmits() && self.tx_write_back(transfer, n),
            4 if n == 0 => self.arrive(env),
            4 => self.store(env, transfer),
            _ => self.rx_write_back(env, transfer, n) || self.running.0 && self.rx.fetch(env, transfer, n) > 0,
        }
    }

    fn transmits(&self) -> bool {
        self.running.1 && !self.tx_lost
    }

    fn tx_fetch(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> usize {
        let Some(transmitter) = self.tx.get_mut(n) else { return 0 };
        let fetched = transmitter.fetch(env, transfer);
        if transmitter.ring.broken {
            self.context.release(transmitter.ring.which);
        }
        fetched
    }

    fn tx_take(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> bool {
        let Machine { tx, settings, context, stats, .. } = self;
        tx.get_mut(n).is_some_and(|t| t.take(env, settings, context, transfer, stats))
    }

    /// Sends a frame to the wire, or back to the receiver. Without a link it stays in the packet
    /// buffer.
    fn tx_leave(&mut self, n: usize) -> bool {
        let loops = self.loops();
        let Some(transmitter) = self.tx.get_mut(n) else { return false };
        let Some(frame) = transmitter.outbox.peek() else { return false };
        if loops {
            if self.loopback_frames.len() >= BURST {
                return false;
            }
            self.loopback_frames.push(frame.to_vec());
        } else if !self.media.link_up() || !self.wire.send(frame) {
            return false;
        }
        transmitter.outbox.pop();
        true
    }

    fn tx_write_back(&mut self, transfer: &mut Transfer<'_>, n: usize) -> bool {
        let Machine { tx, faults, .. } = self;
        let done = tx.get_mut(n).is_some_and(|t| t.write_back(transfer, faults));
        if done {
            self.causes |= cause::TXDW | cause::TXQ0 << n;
        }
        done
    }

    /// Whether pause frames stop the other end while the packet buffer is full.
    fn pauses_sender(&self, env: &Env) -> bool {
        self.media.partner_pauses() && env.registers.get(CTRL) & CTRL_TFCE != 0 && env.registers.get(FCRTH) != 0
    }

    /// Receives a frame from the wire.
    fn arrive(&mut self, env: &Env) -> bool {
        if !self.running.0 || self.pauses_sender(env) && !self.rx.has_room(env, &self.settings) {
            return false;
        }
        let frame = if self.loopback_frames.is_empty() {
            let mut frame = self.rx.vector();
            if !self.media.link_up() || !self.wire.receive(&mut frame) {
                self.rx.recycle(frame);
                return false;
            }
            frame
        } else {
            self.loopback_frames.remove(0)
        };
        self.receive_frame(env, frame);
        true
    }

    fn receive_frame(&mut self, env: &Env, frame: Vec<u8>) {
        let Machine { rx, settings, stats, faults, .. } = self;
        self.causes |= rx.arrive(env, settings, stats, faults, frame);
    }

    fn store(&mut self, env: &Env, transfer: &mut Transfer<'_>) -> bool {
        let Machine { rx, stats, faults, .. } = self;
        self.running.0 && rx.store(env, transfer, stats, faults)
    }

    fn rx_write_back(&mut self, env: &Env, transfer: &mut Transfer<'_>, n: usize) -> bool {
        let done = self.rx.write_back(transfer, &mut self.faults, n);
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
            self.receive_frame(env, frame);
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
        if env.checks_owned {
            self.rx.check_owned(env, transfer);
            self.tx.iter().for_each(|t| t.ring.check_owned(env, transfer));
        }
        self.stats.publish(&env.registers);
        self.interrupt(env);
    }
}
