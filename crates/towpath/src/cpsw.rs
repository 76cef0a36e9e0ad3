//! MAC ports of a CPSW by their URIs: `cpsw:model?ports=2,batch=64@tap:far`.
//!
//! ```text
//!   cpsw:model?ports=2            first opened: MAC port 1, second: MAC port 2, of one device
//!   cpsw:model?ports=2,port=2     this MAC port
//!   cpsw:model?frame=9018,buffers=6   jumbo frames, in up to this many buffers
//!   cpsw:model?policy=strict      buffers mapped one by one, through the model's IOMMU
//!   …@tap:far                     the port's wire; by default ports 1 and 2, 3 and 4, … are joined
//!                                 by a cable, and the last port of an odd number is looped back
//! ```

use crate::e1000e;
use crate::port_wire::PortWire;
use std::sync::Arc;
use towpath_model::cpsw::{self as model, Cpsw, CpswBus};
use towpath_model::wire::{Loopback, Unplugged, cable};
use towpath_nic::cpsw::{BatchSize, Config, CpswPort, Soc, open};
use towpath_packet::port::PortError;
use towpath_ports::uri::{Options, Uri};

/// Frames that a cable between two ports holds, each way.
const CABLE: usize = 512;

/// Open models that have ports left.
#[derive(Default)]
pub(crate) struct CpswModels {
    models: Vec<CpswModel>,
}

struct CpswModel {
    config: Config,
    model: Cpsw,
    ports: Vec<Option<CpswPort<CpswBus>>>,
    /// Ports with an explicit wire.
    wired: Vec<bool>,
}

/// Splits the URI of a MAC port from the URI of its wire, if there is one.
pub(crate) fn split(uri: &Uri) -> Result<(Uri, Option<Uri>), PortError> {
    match uri.as_str().split_once('@') {
        None => Ok((uri.clone(), None)),
        Some((device, wire)) => Ok((device.parse()?, Some(wire.parse()?))),
    }
}

impl CpswModels {
    /// Opens a MAC port; makes a device if no model with the same options has the port left.
    pub(crate) fn open(&mut self, uri: &Uri, wire: Option<PortWire>) -> Result<CpswPort<CpswBus>, PortError> {
        let (config, soc, wanted) = read(uri)?;
        let has = |model: &&mut CpswModel| match wanted {
            Some(port) => model.ports.get(port).is_some_and(Option::is_some),
            None => model.ports.iter().any(Option::is_some),
        };
        let known = self.models.iter_mut().filter(|model| model.config == config).find(has);
        let model = match known {
            Some(model) => model,
            None => {
                self.models.push(CpswModel::new(uri, config, soc)?);
                self.models.last_mut().ok_or_else(|| uri.error("no model"))?
            }
        };
        let index = wanted.or_else(|| model.ports.iter().position(Option::is_some)).unwrap_or(0);
        if let Some(wire) = wire {
            model.plug(index, wire);
        }
        model.ports.get_mut(index).and_then(Option::take).ok_or_else(|| uri.error("there is no such port"))
    }
}

impl CpswModel {
    fn new(uri: &Uri, config: Config, soc: model::Soc) -> Result<CpswModel, PortError> {
        let ports = config.ports;
        let os =
            |source| PortError::Os { port: uri.short(), step: "start of the model".to_owned(), source, hint: None };
        let model = Cpsw::new(model::Config::lenient(soc, ports)).map_err(os)?;
        for port in (1..=ports).step_by(2) {
            if port == ports {
                model.plug(port, Loopback::default());
            } else {
                let (near, far) = cable(CABLE);
                model.plug(port, near);
                model.plug(port + 1, far);
            }
        }
        let bus = model.running_bus().map_err(os)?;
        let (opened, _) =
            open(bus, Arc::new(model.firmware()), config).map_err(|error| uri.error(error.to_string()))?;
        let wired = vec![false; usize::from(ports)];
        Ok(CpswModel { config, model, ports: opened.into_iter().map(Some).collect(), wired })
    }

    /// Connects a port to its own wire. The port at the other end of its cable loses the carrier,
    /// unless it has a wire of its own.
    fn plug(&mut self, index: usize, wire: PortWire) {
        self.model.plug(index as u8 + 1, wire);
        if let Some(wired) = self.wired.get_mut(index) {
            *wired = true;
        }
        let other = index ^ 1;
        if self.wired.get(other) == Some(&false) {
            self.model.plug(other as u8 + 1, Unplugged);
        }
    }
}

/// The driver's configuration from a URI, and the URI of the wire: no device is made.
///
/// # Errors
/// [`PortError::Input`] names the option, its value and the rule.
pub fn config_from_uri(uri: &Uri) -> Result<(Config, Option<Uri>), PortError> {
    let (device, wire) = split(uri)?;
    read(&device).map(|(config, ..)| (config, wire))
}

/// The driver's configuration, the modelled system, and the index of the wanted port.
fn read(uri: &Uri) -> Result<(Config, model::Soc, Option<usize>), PortError> {
    if uri.target() != "model" {
        return Err(uri.error("only the model can be driven from here: cpsw:model"));
    }
    let mut options = uri.options();
    let (config, soc) = configure(&mut options)?;
    let wanted = options.number("port", 1..=u64::from(config.ports))?.map(|n| n as usize - 1);
    options.finish()?;
    Ok((config, soc, wanted))
}

/// The driver's configuration, and the modelled system.
fn configure(options: &mut Options) -> Result<(Config, model::Soc), PortError> {
    let default = Config::default();
    let socs = [
        ("am64x", (Soc::AM64X, model::Soc::Am64x)),
        ("am62x", (Soc::AM62X, model::Soc::Am62x)),
        ("j784s4", (Soc::J784S4, model::Soc::J784s4)),
        ("j784s4-mcu", (Soc::J784S4_MCU, model::Soc::J784s4Mcu)),
        ("j7200", (Soc::J7200, model::Soc::J7200)),
    ];
    let (soc, modelled) = options.choice("soc", &socs)?.unwrap_or(socs[0].1);
    let few =
        |options: &mut Options, name, default: u8| options.number(name, 1..=8).map(|n| n.map_or(default, |n| n as u8));
    let many = |options: &mut Options, name, default: u32| {
        options.number(name, 2..=32_768).map(|n| n.map_or(default, |n| n as u32))
    };
    let ports = few(options, "ports", default.ports)?;
    let batch = options.number("batch", 1..=127)?.and_then(|n| BatchSize::new(n as u8)).unwrap_or(default.batch);
    let config = default
        .soc(soc)
        .ports(ports)
        .tx_channels(few(options, "channels", default.tx_channels)?)
        .rx_flows(few(options, "flows", default.rx_flows)?)
        .tx_ring(many(options, "tx", default.tx_ring)?)
        .tx_descriptors(many(options, "descriptors", default.tx_descriptors)?)
        .rx_ring(many(options, "rx", default.rx_ring)?)
        .max_len(options.number("frame", 64..=9604)?.map_or(default.max_len, |n| n as u32))
        .rx_buffers(options.number("buffers", 1..=16)?.map_or(default.rx_buffers, |n| n as u8))
        .policy(e1000e::dma_policy(options)?.unwrap_or(default.policy))
        .batch(batch);
    Ok((config, modelled))
}

impl std::fmt::Debug for CpswModels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.models.iter().map(|model| &model.config)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(models: &mut CpswModels, text: &str) -> Result<u8, PortError> {
        models.open(&text.parse().unwrap(), None).map(|port| port.number())
    }

    #[test]
    fn ports_of_one_device_are_opened_one_after_the_other_and_by_number() {
        let mut models = CpswModels::default();
        assert_eq!(open(&mut models, "cpsw:model?ports=2").unwrap(), 1);
        assert_eq!(open(&mut models, "cpsw:model?ports=2").unwrap(), 2);
        assert_eq!(models.models.len(), 1);
        assert_eq!(open(&mut models, "cpsw:model?ports=4,port=3").unwrap(), 3);
        assert_eq!(open(&mut models, "cpsw:model?ports=4").unwrap(), 1);
        assert_eq!(models.models.len(), 2);
        assert_eq!(open(&mut models, "cpsw:model?ports=1,policy=strict,frame=9018,buffers=6").unwrap(), 1);
    }

    #[test]
    fn options_that_break_a_rule_are_named() {
        let mut models = CpswModels::default();
        for (text, part) in [
            ("cpsw:model?batch=128", "from 1 to 127"),
            ("cpsw:model?ports=9", "from 1 to 8"),
            ("cpsw:model?ports=2,port=3", "from 1 to 2"),
            ("cpsw:model?policy=lazy", "persistent, strict, deferred"),
            ("cpsw:model?soc=j7200,buffers=2", "exposed rings"),
            ("cpsw:model?frame=9605", "from 64 to 9604"),
            ("cpsw:model?soc=x", "am64x, am62x, j784s4"),
            ("cpsw:model?speed=1", "no such option"),
            ("cpsw:eth0", "cpsw:model"),
        ] {
            let error = open(&mut models, text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
