//! The device: the effect of registers, the link, the interrupts, and units of work in bursts or
//! one by one.

use super::Config;
mod work;

use super::env::Env;
use super::faults::Plan;
use super::irq::Irqs;
use super::link::Link;
use super::phy::{self, LinkEvent, Phy};
use super::regs::*;
use super::rx::Receiver;
use super::settings::Settings;
use super::stats::Stats;
use super::tx::Transmitter;
use crate::iommu::Transfer;
use crate::wire::Wire;

pub(crate) struct Machine {
    settings: Settings,
    /// Registers were written since they were decoded.
    dirty: bool,
    rx: Receiver,
    tx: [Transmitter; 2],
    running: (bool, bool),
    wire: Box<dyn Wire>,
    /// Frames in loopback that are not received yet.
    looped: Vec<Vec<u8>>,
    link: Link,
    phy: Phy,
    nvm: [u16; 64],
    mac: [u8; 6],
    stats: Stats,
    plan: Plan,
    pause: bool,
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
            running: (false, false),
            wire,
            looped: Vec::new(),
            link: Link::new(config.negotiation),
            phy: Phy::new(),
            nvm: phy::nvm(config.mac),
            mac: config.mac,
            stats: Stats::default(),
            plan: Plan::new(config.faults),
            pause: config.pause,
            stalled: 0,
            causes: 0,
        }
    }

    /// CTRL.RST, or a function reset.
    pub(crate) fn reset(&mut self, env: &Env) {
        let mut transfer = env.dma.transfer();
        self.stop(&mut transfer);
        self.tx.iter_mut().for_each(Transmitter::reset);
        env.registers.reset(self.mac);
        env.irqs().reset();
        self.link.restart();
        (self.dirty, self.stalled, self.causes) = (true, 0, 0);
        self.stats = Stats::default();
    }

    fn stop(&mut self, transfer: &mut Transfer<'_>) {
        self.rx.stop(transfer);
        self.tx.iter_mut().for_each(|t| t.stop(transfer));
        self.looped.clear();
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

    pub(crate) fn mdic(&mut self, env: &Env, value: u32) {
        let (result, event) = self.phy.mdic(value);
        env.registers.set(MDIC, result);
        if event == LinkEvent::Restart {
            self.restart_link(env);
        }
        if value & phy::MDIC_INTERRUPT != 0 {
            self.causes |= cause::MDAC;
            self.interrupt(env);
        }
    }

    pub(crate) fn restart_link(&mut self, env: &Env) {
        self.link.restart();
        self.show_link(env);
    }

    pub(crate) fn reset_phy(&mut self, env: &Env) {
        self.phy = Phy::new();
        self.restart_link(env);
    }

    pub(crate) fn eerd(&mut self, env: &Env, value: u32) {
        env.registers.set(EERD, phy::eerd(&self.nvm, value));
    }

    fn show_link(&mut self, env: &Env) {
        self.phy.set_link(self.link.up());
        env.registers.change(STATUS, STATUS_LU, phy::status_link(self.link.up()));
    }

    /// Advances the link by one tick.
    pub(crate) fn tick(&mut self, env: &Env) {
        let wanted = env.registers.get(CTRL) & CTRL_SLU != 0 && self.phy.powered() && self.wire.carrier();
        if self.link.tick(wanted) {
            self.show_link(env);
            self.causes |= cause::LSC;
            self.interrupt(env);
        }
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
                if tx { transmitter.ring.start(env) } else { transmitter.stop(transfer) }
            }
        }
        self.running = (rx, tx);
    }

    fn interrupt(&mut self, env: &Env) {
        let causes = std::mem::take(&mut self.causes);
        if causes != 0 {
            let plan = &mut self.plan;
            let mut irqs = env.irqs();
            Irqs::raise(&mut irqs, &env.registers, causes, || plan.draw(|f| f.interrupt));
        }
    }

    /// The wire's descriptor for a device that is about to sleep; `None` while it cannot receive.
    pub(crate) fn wire_wake(&mut self, env: &Env) -> Option<std::os::fd::RawFd> {
        let receives = self.running.0 && self.link.up() && self.rx.has_room(env, &self.settings);
        if receives { self.wire.wake() } else { None }
    }

    /// Frames in the packet buffer.
    pub(crate) fn waiting(&self) -> usize {
        self.rx.waiting()
    }
}
