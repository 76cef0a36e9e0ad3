//! The MAC of one port, by the steps of Linux (`am65-cpsw-nuss.c`: `am65_cpsw_nuss_ndo_slave_open`,
//! `_mac_link_up`, `_mac_link_down`).
//!
//! ```text
//!   start ─► stopped ──link up──► passes frames ──link down──► commanded idle ──► stop
//!   reset    control 0            enabled, then the lookup     lookup disabled first
//!                                 forwards
//! ```

use super::config::{Config, Interface, LinkSource};
use super::regs::{ale, mac, switch};
use crate::common::phy::PauseFrames;
use std::time::Duration;
use towpath_bus::{BusError, Mmio, Reg};

/// The longest time until a MAC is idle, or its reset has ended.
const TIMEOUT: Duration = Duration::from_millis(100);

/// A link that is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkMode {
    /// Mb/s.
    pub(super) speed: u32,
    pub(super) full_duplex: bool,
    pub(super) pause: PauseFrames,
}

impl LinkMode {
    /// Without a negotiation.
    pub(super) const FIXED: LinkMode =
        LinkMode { speed: 1000, full_duplex: true, pause: PauseFrames { rx: false, tx: false } };
}

/// The MAC of one port.
#[derive(Debug)]
pub(super) struct Mac<M> {
    bar: M,
    /// 1 and up.
    port: u8,
    interface: Interface,
    loopback: bool,
}

impl<M: Mmio> Mac<M> {
    pub(super) fn new(bar: M, port: u8, config: &Config) -> Mac<M> {
        let loopback = config.link == LinkSource::Loopback;
        Mac { bar, port, interface: config.interface, loopback }
    }

    fn register(&self, register: Reg) -> Reg {
        register.nth(u32::from(self.port), switch::STRIDE)
    }

    /// Resets the MAC from any state; no frame passes it. Its source address stays.
    ///
    /// # Errors
    /// [`BusError::Timeout`] if the reset does not end.
    pub(super) fn reset(&self, device: &str) -> Result<(), BusError> {
        // A reset may clear the source address of pause frames, which the boot loader has set.
        let (low, high) = (self.register(mac::SA_L), self.register(mac::SA_H));
        let known = (low.read(&self.bar), high.read(&self.bar));
        self.forward(false);
        self.idle();
        let control = self.register(mac::CONTROL);
        control.write(&self.bar, 0);
        let reset = self.register(mac::SOFT_RESET);
        reset.write(&self.bar, mac::RESET);
        let ended = reset.wait(&self.bar, mac::RESET, 0, TIMEOUT);
        ended.map_err(|source| BusError::Timeout {
            device: format!("{device}.{}", self.port),
            step: "reset of the MAC",
            source,
        })?;
        control.write(&self.bar, 0);
        // Without one, the port gets the local address 02:00:00:00:00:0p.
        let known = if known == (0, 0) { (u32::from(self.port) << 8, 2) } else { known };
        low.write(&self.bar, known.0);
        high.write(&self.bar, known.1);
        Ok(())
    }

    /// Starts the port, which passes no frame before its link is up: the limit of frames, and one
    /// priority for all that it sends.
    ///
    /// # Errors
    /// As [`reset`](Mac::reset).
    pub(super) fn start(&self, device: &str, max_len: u32) -> Result<(), BusError> {
        self.reset(device)?;
        // The FIFOs of a MAC have fixed priorities: with one priority for all none starves.
        self.register(switch::TX_PRI_MAP).write(&self.bar, 0);
        self.register(switch::VLAN).write(&self.bar, 0);
        self.register(switch::P0_RX_MAXLEN).write(&self.bar, max_len);
        Ok(())
    }

    /// Lets frames pass, at the speed of the link.
    pub(super) fn link_up(&self, link: LinkMode) {
        let when = |on: bool, bits: u32| if on { bits } else { 0 };
        let bits = mac::GMII_EN
            | when(link.full_duplex, mac::FULL_DUPLEX)
            | when(link.speed == 1000, mac::GIG)
            | when(self.interface == Interface::Sgmii, mac::EXT_EN)
            | when(self.interface == Interface::Rgmii && link.speed == 10, mac::EXT_EN)
            | when(self.interface == Interface::Rmii && link.speed == 100, mac::IFCTL_A)
            // The names are the MAC's: it sends pause frames in order to receive less.
            | when(link.pause.rx, mac::TX_FLOW_EN)
            | when(link.pause.tx, mac::RX_FLOW_EN)
            | when(self.loopback, mac::LOOPBACK);
        self.register(mac::CONTROL).change(&self.bar, mac::CMD_IDLE | mac::LINK, bits);
        self.forward(true);
    }

    /// Stops frames, those from the switch first.
    pub(super) fn link_down(&self) {
        self.forward(false);
        self.idle();
        self.register(mac::CONTROL).change(&self.bar, mac::LINK, 0);
    }

    /// Stops the port for good.
    pub(super) fn stop(&self) {
        self.link_down();
        self.register(mac::CONTROL).write(&self.bar, 0);
    }

    /// Commands the MAC idle. A MAC that does not become idle is reset or stopped all the same, as
    /// in Linux.
    fn idle(&self) {
        self.register(mac::CONTROL).change(&self.bar, 0, mac::CMD_IDLE);
        let status = self.register(mac::STATUS);
        self.bar.poll(TIMEOUT, || status.read(&self.bar) & mac::IDLE != 0);
    }

    /// Whether the lookup forwards frames from and to the port. All frames that arrive go to the
    /// host, and none to other MAC ports.
    fn forward(&self, on: bool) {
        let state = if on { ale::FORWARD } else { ale::DISABLED };
        let control = state | ale::NO_LEARN | ale::NO_SOURCE_UPDATE | ale::MAC_ONLY | ale::MAC_ONLY_COPY_ALL;
        ale::PORT_CONTROL.nth(u32::from(self.port), 4).write(&self.bar, control);
    }
}
