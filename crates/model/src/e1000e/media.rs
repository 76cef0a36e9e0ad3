//! The link and the PHY behind the registers by which a driver reaches them: MDIC, EXTCNF_CTRL,
//! STATUS.

use super::config::Config;
use super::env::Env;
use super::link::Link;
use super::phy::{self, LinkEvent, Phy};
use super::regs::*;

pub(crate) struct Media {
    link: Link,
    /// Mb/s that both ends agree on.
    speed: u32,
    phy: Phy,
    /// The other end takes pause frames.
    partner_pauses: bool,
    /// Requests for the semaphore of PHY and NVM that are still denied.
    denied: u32,
}

impl Media {
    pub(crate) fn new(config: &Config) -> Media {
        Media {
            link: Link::new(config.negotiation),
            speed: config.speed,
            phy: Phy::new(config.phy, config.pause),
            partner_pauses: config.pause,
            denied: config.phy_denied,
        }
    }

    /// The device was reset: the link is negotiated anew. STATUS has been reset already.
    pub(crate) fn reset(&mut self) {
        self.link.restart();
    }

    #[inline]
    pub(crate) fn link_up(&self) -> bool {
        self.link.up()
    }

    /// Whether the PHY returns each frame.
    #[inline]
    pub(crate) fn loopback(&self) -> bool {
        self.phy.loopback()
    }

    #[inline]
    pub(crate) fn wants_link(&self) -> bool {
        self.phy.wants_link()
    }

    #[inline]
    pub(crate) fn partner_pauses(&self) -> bool {
        self.partner_pauses
    }

    pub(crate) fn set_partner_pause(&mut self, pause: bool) {
        self.partner_pauses = pause;
        self.phy.set_partner_pause(pause);
    }

    /// The other end offers another speed: the link is negotiated anew.
    pub(crate) fn set_speed(&mut self, env: &Env, speed: u32) {
        self.speed = speed;
        self.restart_link(env);
    }

    /// Takes the link down for `ticks` ticks.
    pub(crate) fn flap(&mut self, ticks: u32) {
        self.link.flap(ticks);
    }

    /// Advances the link by one tick. Returns true if it went up or down.
    #[inline]
    pub(crate) fn tick(&mut self, env: &Env, wanted: bool) -> bool {
        let changed = self.link.tick(wanted);
        if changed {
            self.show_link(env);
        }
        changed
    }

    /// A write of MDIC. Returns true if its end is to interrupt.
    pub(crate) fn mdic(&mut self, env: &Env, value: u32) -> bool {
        let (result, event) = self.phy.mdic(value);
        env.registers.set(MDIC, result);
        if event == LinkEvent::Restart {
            self.restart_link(env);
        }
        value & phy::MDIC_INTERRUPT != 0
    }

    /// Reads MDIC, which shows the end of a transaction.
    pub(crate) fn read_mdic(&mut self, env: &Env) -> u32 {
        let now = env.registers.get(MDIC);
        if let Some(done) = self.phy.end_of_transaction() {
            env.registers.set(MDIC, done);
        }
        now
    }

    /// A write of EXTCNF_CTRL: the bit of software stays set only if firmware grants it.
    pub(crate) fn request_phy(&mut self, env: &Env, value: u32) {
        let asks = value & EXTCNF_SOFTWARE != 0 && env.registers.get(EXTCNF_CTRL) & EXTCNF_SOFTWARE == 0;
        let denied = asks && self.denied > 0;
        self.denied -= u32::from(denied);
        env.registers.set(EXTCNF_CTRL, if denied { value & !EXTCNF_SOFTWARE } else { value });
    }

    pub(crate) fn reset_phy(&mut self, env: &Env) {
        self.phy.reset();
        self.restart_link(env);
    }

    /// A register of the PHY as it is.
    pub(crate) fn phy_register(&self, at: usize) -> u16 {
        self.phy.register(at)
    }

    /// The abilities that the last negotiation has advertised.
    pub(crate) fn advertised(&self) -> u16 {
        self.phy.advertised()
    }

    fn restart_link(&mut self, env: &Env) {
        self.link.restart();
        self.show_link(env);
    }

    fn show_link(&mut self, env: &Env) {
        self.phy.set_link(self.link.up());
        let speed = match self.speed {
            10 => 0,
            100 => STATUS_100,
            _ => STATUS_1000,
        };
        env.registers.change(STATUS, STATUS_LU | STATUS_SPEED, phy::status_link(self.link.up()) | speed);
    }
}
