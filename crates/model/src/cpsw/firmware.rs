//! The calls to system firmware (TISCI).

use super::Cpsw;
use super::check::{At, Event, Rule};
use super::config::Family;
use super::device::{CHANNELS, RINGS};
use super::dma_view::DmaView;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_bus::tisci::{Refused, RingConfig, RxChannelConfig, RxFlowConfig, Tisci, TxChannelConfig};

/// Firmware of a [`Cpsw`]. It checks calls as TI's firmware does, and can refuse one for a test.
#[derive(Debug)]
pub struct Firmware {
    model: Cpsw,
    /// Calls until one is refused; 0 refuses none.
    countdown: AtomicU32,
}

impl Firmware {
    pub(crate) fn new(model: Cpsw) -> Firmware {
        Firmware { model, countdown: AtomicU32::new(0) }
    }

    /// Refuses the `n`-th call from now on, once.
    pub fn refuse(&self, n: u32) {
        self.countdown.store(n, Ordering::Relaxed);
    }

    fn call(&self, call: &'static str) -> Result<(), Refused> {
        let left = self.countdown.load(Ordering::Relaxed);
        if left > 0 {
            self.countdown.store(left - 1, Ordering::Relaxed);
        }
        if left == 1 { Err(Refused { call, what: "a refusal was asked for" }) } else { Ok(()) }
    }
}

fn check(call: &'static str, ok: bool, what: &'static str) -> Result<(), Refused> {
    if ok { Ok(()) } else { Err(Refused { call, what }) }
}

impl Tisci for Firmware {
    fn ring_config(&self, ring: &RingConfig) -> Result<(), Refused> {
        let call = "ring_config";
        self.call(call)?;
        check(call, usize::from(ring.ring) < RINGS, "there is no such ring")?;
        check(call, ring.count > 0 && ring.count < 1 << 16, "count is out of range")?;
        check(call, ring.address != 0 && ring.address.is_multiple_of(8), "address is zero or not aligned")?;
        let mut device = self.model.device();
        if device.is_running(ring.ring) || device.is_completing(ring.ring) {
            device.check.report(Rule::ConfigWhileRunning, At::ring(ring.ring), "ring set up while its channel runs");
        }
        device.check.record(Event::Config { ring: ring.ring });
        device.rings[usize::from(ring.ring)].configure(*ring);
        Ok(())
    }

    fn ring_reset(&self, ring: u16) -> Result<(), Refused> {
        let call = "ring_reset";
        self.call(call)?;
        let mut device = self.model.device();
        if device.is_running(ring) || device.is_completing(ring) {
            device.check.report(Rule::ConfigWhileRunning, At::ring(ring), "ring reset while its channel runs");
        }
        let super::device::Device { rings, check: checker, dma, .. } = &mut *device;
        let known = rings.get_mut(usize::from(ring)).filter(|ring| ring.config().is_some());
        known.ok_or(Refused { call, what: "the ring is not set up" })?.reset(&DmaView::new(dma), checker);
        Ok(())
    }

    fn tx_channel_config(&self, channel: &TxChannelConfig) -> Result<(), Refused> {
        let call = "tx_channel_config";
        self.call(call)?;
        let number = usize::from(channel.channel);
        check(call, number < CHANNELS, "there is no such channel")?;
        check(call, (8..=32).contains(&channel.fetch_words), "fetch size is out of range")?;
        let mut device = self.model.device();
        check(call, !device.tx[number].enabled(), "the channel is enabled")?;
        device.tx[number].config = Some(*channel);
        device.use_channel(number);
        Ok(())
    }

    fn rx_channel_config(&self, channel: &RxChannelConfig) -> Result<(), Refused> {
        let call = "rx_channel_config";
        self.call(call)?;
        check(call, usize::from(channel.channel) < CHANNELS, "there is no such channel")?;
        check(call, (1..=16).contains(&channel.flow_count), "flow count is out of range")?;
        let mut device = self.model.device();
        check(call, !device.rx.enabled(), "the channel is enabled")?;
        device.rx.config = Some(*channel);
        device.rx_number = channel.channel;
        Ok(())
    }

    fn rx_flow_config(&self, flow: &RxFlowConfig) -> Result<(), Refused> {
        let call = "rx_flow_config";
        self.call(call)?;
        let mut device = self.model.device();
        check(call, !device.rx.enabled(), "the channel is enabled")?;
        let mut flow = *flow;
        if device.config.soc.family() == Family::Pktdma {
            // The ring of a PKTDMA flow is fixed.
            let ring = device.config.soc.rx_ring(flow.flow);
            (flow.free_ring, flow.completion_ring) = (ring, ring);
        }
        let rings = [flow.free_ring, flow.completion_ring].map(usize::from);
        check(call, rings.iter().all(|&ring| ring < RINGS), "there is no such ring")?;
        device.rx.flows.insert(flow.flow, flow);
        Ok(())
    }

    fn psil_pair(&self, source: u16, destination: u16) -> Result<(), Refused> {
        let call = "psil_pair";
        self.call(call)?;
        self.set_pair(call, source, destination, true)
    }

    fn psil_unpair(&self, source: u16, destination: u16) -> Result<(), Refused> {
        let call = "psil_unpair";
        self.call(call)?;
        self.set_pair(call, source, destination, false)
    }
}

impl Firmware {
    fn set_pair(&self, call: &'static str, source: u16, destination: u16, on: bool) -> Result<(), Refused> {
        let mut device = self.model.device();
        let soc = device.config.soc;
        let base = soc.psil_base();
        if source == soc.rx_thread() {
            let channel = destination.checked_sub(0x8000 | base);
            check(call, channel == Some(device.rx_number), "no such receive channel")?;
            check(call, on || !device.rx.enabled(), "the channel is enabled")?;
            device.rx.paired = on.then_some(source);
            return Ok(());
        }
        let threads = soc.tx_thread()..soc.tx_thread() + 8;
        check(call, threads.contains(&destination), "no such thread of the switch")?;
        let channel = source.checked_sub(base).map_or(CHANNELS, usize::from);
        check(call, channel < CHANNELS, "no such transmit channel")?;
        let taken = device.tx.iter().any(|c| usize::from(c.number) != channel && c.paired == Some(destination));
        check(call, !taken, "the thread is paired with another channel")?;
        check(call, on || !device.tx[channel].enabled(), "the channel is enabled")?;
        device.tx[channel].paired = on.then_some(destination);
        Ok(())
    }
}
