//! The link of one MAC port: where its state comes from, and what follows from a change.
//!
//! | source | state | for |
//! |---|---|---|
//! | `Phy` | BMSR, and the abilities of both ends, by MDIO | a PHY at any interface |
//! | `InBand` | the switch's own status register | RGMII if the PHY sends it in the gaps; SGMII |
//! | `Fixed` | always 1000 Mb/s, full duplex | a MAC at the other end |
//! | `Loopback` | as `Fixed`; the MAC returns each frame | the first test of a board |
//!
//! One transmit queue of the port looks now and then ([`PortLink::check`]); all queues read the
//! last state. A link that went down and came up between two looks has a latched bit in BMSR: it
//! counts as down once, so that a new speed is seen.

use super::config::{Config, Interface, LinkSource};
use super::error::CpswError;
use super::mac::{LinkMode, Mac};
use super::mdio::MdioBus;
use super::regs::{sgmii, switch};
use crate::common::link::{LinkCell, LinkStatus};
use crate::common::phy::{self, FlowControl, Mdio, MdioError};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use towpath_bus::{BusError, Mmio};

/// The link of one port.
#[derive(Debug)]
pub(super) struct PortLink<M: Mmio> {
    bar: M,
    /// 1 and up.
    port: u8,
    source: LinkSource,
    interface: Interface,
    flow_control: FlowControl,
    address: u8,
    mdio: Arc<Mutex<MdioBus<M>>>,
    mac: Mutex<Mac<M>>,
    status: Arc<LinkCell>,
}

impl<M: Mmio> PortLink<M> {
    /// The link of MAC port `port`, 1 and up, which is down.
    pub(super) fn new(bar: &M, port: u8, config: &Config, mdio: &Arc<Mutex<MdioBus<M>>>) -> PortLink<M> {
        PortLink {
            bar: bar.clone(),
            port,
            source: config.link,
            interface: config.interface,
            flow_control: config.flow_control,
            address: config.phys.get(usize::from(port) - 1).copied().unwrap_or(0),
            mdio: mdio.clone(),
            mac: Mutex::new(Mac::new(bar.clone(), port, config)),
            status: Arc::default(),
        }
    }

    /// The state, as all handles see it.
    pub(super) fn status(&self) -> &Arc<LinkCell> {
        &self.status
    }

    /// Whether the link was up when it was looked at last: one load.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.status.is_up()
    }

    /// Resets the MAC from any state; no frame passes it.
    ///
    /// # Errors
    /// The reset does not end.
    pub(super) fn reset(&self, device: &str) -> Result<(), BusError> {
        lock(&self.mac).reset(device)
    }

    /// Starts MAC and PHY. A PHY that negotiates already is left alone, with its link; all its
    /// settings stay, those of the delays of RGMII above all.
    ///
    /// # Errors
    /// The MAC's reset does not end, or the PHY does not answer.
    pub(super) fn start(&self, device: &str, max_len: u32) -> Result<(), CpswError> {
        lock(&self.mac).start(device, max_len)?;
        if self.source == LinkSource::Phy {
            let mut mdio = lock(&self.mdio);
            let started = start_phy(&mut mdio.phy(self.address), self.flow_control);
            started.map_err(|_| CpswError::Phy { port: self.port, address: self.address })?;
        }
        self.check();
        Ok(())
    }

    /// Stops the MAC, then the PHY, so that the partner sees no link to a dead port.
    pub(super) fn stop(&self) {
        let mac = lock(&self.mac);
        self.set(None);
        mac.stop();
        if self.source == LinkSource::Phy {
            // A PHY that does not answer has no power to lose.
            let _ = phy::power_down(&mut lock(&self.mdio).phy(self.address));
        }
    }

    fn set(&self, mode: Option<LinkMode>) {
        let LinkMode { speed, full_duplex, .. } = mode.unwrap_or(LinkMode { speed: 0, ..LinkMode::FIXED });
        self.status.set(LinkStatus { up: mode.is_some(), speed, full_duplex });
    }

    /// Looks at the link, and starts or stops the MAC if it changed; returns whether it did. Costs
    /// one transaction on the management bus while the link stays up.
    #[cold]
    pub(super) fn check(&self) -> bool {
        let mac = lock(&self.mac);
        let was = self.is_up();
        let now = self.read(was);
        match now {
            Some(_) if was => return false,
            Some(mode) => mac.link_up(mode),
            None if was => mac.link_down(),
            None => return false,
        }
        self.set(now);
        true
    }

    /// The link, if it is up. If it `was` up, a loss since then counts as down.
    fn read(&self, was: bool) -> Option<LinkMode> {
        let index = u32::from(self.port) - 1;
        match (self.source, self.interface) {
            (LinkSource::Fixed | LinkSource::Loopback, _) => Some(LinkMode::FIXED),
            (LinkSource::Phy, _) => {
                let mut mdio = lock(&self.mdio);
                read_phy(&mut mdio.phy(self.address), self.flow_control, was).ok().flatten()
            }
            (LinkSource::InBand, Interface::Sgmii) => {
                let status = sgmii::STATUS.nth(index, sgmii::STRIDE).read(&self.bar);
                (status & sgmii::LINK != 0).then_some(LinkMode::FIXED)
            }
            (LinkSource::InBand, _) => {
                let status = switch::RGMII_STATUS.nth(index, 4).read(&self.bar);
                let speed = match status >> switch::RGMII_SPEED_SHIFT & 3 {
                    0 => 10,
                    1 => 100,
                    _ => 1000,
                };
                let full_duplex = status & switch::RGMII_FULL_DUPLEX != 0;
                let up = status & switch::RGMII_LINK != 0 && status != u32::MAX;
                up.then_some(LinkMode { speed, full_duplex, ..LinkMode::FIXED })
            }
        }
    }
}

/// A port that was started. It is stopped with the last queue of the port.
#[derive(Debug)]
pub(super) struct StartedPort<M: Mmio>(Arc<PortLink<M>>);

impl<M: Mmio> StartedPort<M> {
    /// Starts a port.
    ///
    /// # Errors
    /// As [`PortLink::start`]. The MAC is stopped.
    pub(super) fn start(link: &Arc<PortLink<M>>, device: &str, max_len: u32) -> Result<StartedPort<M>, CpswError> {
        let started = StartedPort(link.clone());
        started.0.start(device, max_len)?;
        Ok(started)
    }
}

impl<M: Mmio> std::ops::Deref for StartedPort<M> {
    type Target = PortLink<M>;

    fn deref(&self) -> &PortLink<M> {
        &self.0
    }
}

impl<M: Mmio> Drop for StartedPort<M> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Lets a PHY negotiate, unless it does already.
fn start_phy(phy: &mut impl Mdio, flow_control: FlowControl) -> Result<(), MdioError> {
    // The identifier of a PHY that is not there is all ones.
    if phy::identifier(phy)? == u32::MAX {
        return Err(MdioError::Silent);
    }
    if phy::negotiates(phy)? {
        return Ok(());
    }
    phy::power_up(phy)?;
    phy::advertise(phy, flow_control)?;
    phy::restart(phy)
}

fn read_phy(phy: &mut impl Mdio, flow_control: FlowControl, was: bool) -> Result<Option<LinkMode>, MdioError> {
    if was {
        // The rest does not change without a loss of the link.
        return Ok(phy::link(phy)?.then_some(LinkMode::FIXED));
    }
    // The first read tells of a loss in the past.
    phy::link(phy)?;
    if !phy::link(phy)? {
        return Ok(None);
    }
    let Some((speed, full_duplex)) = phy::mode(phy)? else { return Ok(None) };
    let pause = if full_duplex { phy::pause(phy, flow_control)? } else { None };
    Ok(Some(LinkMode { speed, full_duplex, pause: pause.unwrap_or_default() }))
}
