//! MAC ports of a CPSW by their URIs: `cpsw:model?ports=2,batch=64@tap:far`,
//! `cpsw:platform=/dev/towpath-cpsw0?ports=2`.
//!
//! ```text
//!   cpsw:platform=FILE?ports=2    the switch of this board, by the device of its kernel module
//!   cpsw:model?ports=2            first opened: MAC port 1, second: MAC port 2, of one device
//!   cpsw:model?ports=2,port=2     this MAC port
//!   cpsw:model?frame=9018,buffers=6   jumbo frames, in up to this many buffers
//!   cpsw:model?policy=strict      buffers mapped one by one, through the model's IOMMU
//!   cpsw:model?link=loopback      the MAC returns each frame; phy, inband or fixed;
//!                                 interface=rgmii, rmii or sgmii; phys=0:3, mdio=manual or
//!                                 automatic, pause=full
//!   …@tap:far                     the port's wire; by default ports 1 and 2, 3 and 4, … are
//!                                 joined by a cable, and the last port of an odd number is looped
//!                                 back
//! ```

use crate::pci;
use crate::port_wire::PortWire;
use std::sync::Arc;
use towpath_bus::platform::PlatformBus;
use towpath_model::cpsw::{self as model, Cpsw, CpswBus};
use towpath_model::wire::{Loopback, Unplugged, cable};
use towpath_nic::cpsw::{BatchSize, Config, CpswPort, FlowControl, Interface, LinkSource, MdioAccess, Soc, open};
use towpath_packet::port::PortError;
use towpath_ports::kind::{Kind, PortOption};
use towpath_ports::uri::{Options, Uri};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "cpsw",
    example: "cpsw:model?ports=2",
    what: "TI's CPSW switch, a MAC port of it: on a model (…@PORT names its wire), or a board's own by cpsw:platform=FILE",
    options: &[
        PortOption::new("soc", "am64x|am62x|j784s4|j784s4-mcu|j7200", "am64x", "the SoC of the switch", "soc=j7200"),
        PortOption::new("port", "1–ports", "the next that is free", "which MAC port", "port=2"),
        PortOption::new("ports", "1–8", "2", "MAC ports of the switch", "ports=2"),
        PortOption::new("channels", "1–8", "8", "transmit channels", "channels=2"),
        PortOption::new("flows", "1–8", "1", "receive flows", "flows=2"),
        PortOption::new("tx", "2–32768", "516", "entries of a transmit ring", "tx=1024"),
        PortOption::new("descriptors", "2–32768", "500", "transmit descriptors of a channel", "descriptors=1000"),
        PortOption::new("rx", "2–32768", "500", "entries of a receive ring", "rx=1024"),
        PortOption::new("frame", "BYTES, 64–9604", "2024", "longest frame", "frame=1522"),
        PortOption::new("buffers", "1–16", "1", "buffers of a received frame", "buffers=2"),
        PortOption::new(
            "link",
            "phy|inband|fixed|loopback",
            "phy",
            "what the state of the link is read from",
            "link=fixed",
        ),
        PortOption::new("interface", "rgmii|rmii|sgmii", "rgmii", "interface to the PHYs", "interface=sgmii"),
        PortOption::new(
            "phys",
            "ADDRESS with :, 0–31",
            "0:1:2:3:4:5:6:7",
            "addresses of the PHYs, in the order of the ports",
            "phys=0:3",
        ),
        PortOption::new("mdio", "manual|automatic", "by the SoC", "how MDIO is driven", "mdio=manual"),
        pci::PAUSE,
        pci::POLICY,
        pci::BATCH,
    ],
};

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
        let Wanted { config, soc, port: wanted } = read(uri)?;
        let soc = soc.map_or(SOCS[0].1.1, |(_, model)| model);
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
        let lenient = model::Config::lenient(soc, ports);
        let modelled = lenient.phy_addresses(config.phys).in_band_status(true);
        let model = Cpsw::new(modelled).map_err(os)?;
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
    read(&device).map(|wanted| (wanted.config, wire))
}

/// Where the device is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BusChoice<'a> {
    /// The model.
    Model,
    /// The board's own, by the device file of a kernel module.
    Platform(&'a str),
}

impl BusChoice<'_> {
    pub(crate) fn of(uri: &Uri) -> Result<BusChoice<'_>, PortError> {
        match uri.target().split_once('=') {
            None if uri.target() == "model" => Ok(BusChoice::Model),
            Some(("platform", file)) if file.starts_with('/') => Ok(BusChoice::Platform(file)),
            Some(("platform", _)) => {
                Err(uri.error("say the device file of the kernel module: cpsw:platform=/dev/towpath-cpsw0"))
            }
            _ => Err(uri.error("say where the device is: cpsw:platform=/dev/towpath-cpsw0, or cpsw:model")),
        }
    }
}

/// What a URI asks for.
struct Wanted {
    /// Without its SoC, if the URI names none.
    config: Config,
    /// The SoC by name, and its model.
    soc: Option<(Soc, model::Soc)>,
    /// Index of the port.
    port: Option<usize>,
}

const SOCS: [(&str, (Soc, model::Soc)); 5] = [
    ("am64x", (Soc::AM64X, model::Soc::Am64x)),
    ("am62x", (Soc::AM62X, model::Soc::Am62x)),
    ("j784s4", (Soc::J784S4, model::Soc::J784s4)),
    ("j784s4-mcu", (Soc::J784S4_MCU, model::Soc::J784s4Mcu)),
    ("j7200", (Soc::J7200, model::Soc::J7200)),
];

/// The driver's configuration, and the index of the wanted port.
fn read(uri: &Uri) -> Result<Wanted, PortError> {
    BusChoice::of(uri)?;
    let mut options = uri.options(KIND.options);
    let soc = options.choice("soc", &SOCS)?;
    let config = configure(&mut options)?.soc(soc.map_or(SOCS[0].1.0, |(soc, _)| soc));
    let port = options.number("port", 1..=u64::from(config.ports))?.map(|n| n as usize - 1);
    options.finish()?;
    Ok(Wanted { config, soc, port })
}

/// The driver's configuration, without its SoC.
fn configure(options: &mut Options) -> Result<Config, PortError> {
    let default = Config::default();
    let few =
        |options: &mut Options, name, default: u8| options.number(name, 1..=8).map(|n| n.map_or(default, |n| n as u8));
    let many = |options: &mut Options, name, default: u32| {
        options.number(name, 2..=32_768).map(|n| n.map_or(default, |n| n as u32))
    };
    let ports = few(options, "ports", default.ports)?;
    let batch = options.number("batch", 1..=127)?.and_then(|n| BatchSize::new(n as u8)).unwrap_or(default.batch);
    let links = [
        ("phy", LinkSource::Phy),
        ("inband", LinkSource::InBand),
        ("fixed", LinkSource::Fixed),
        ("loopback", LinkSource::Loopback),
    ];
    let interfaces = [("rgmii", Interface::Rgmii), ("rmii", Interface::Rmii), ("sgmii", Interface::Sgmii)];
    let accesses = [("manual", MdioAccess::Manual), ("automatic", MdioAccess::Automatic)];
    let pauses =
        [("full", FlowControl::Full), ("rx", FlowControl::Rx), ("tx", FlowControl::Tx), ("off", FlowControl::Off)];
    let config = default
        .ports(ports)
        .tx_channels(few(options, "channels", default.tx_channels)?)
        .rx_flows(few(options, "flows", default.rx_flows)?)
        .tx_ring(many(options, "tx", default.tx_ring)?)
        .tx_descriptors(many(options, "descriptors", default.tx_descriptors)?)
        .rx_ring(many(options, "rx", default.rx_ring)?)
        .max_len(options.number("frame", 64..=9604)?.map_or(default.max_len, |n| n as u32))
        .rx_buffers(options.number("buffers", 1..=16)?.map_or(default.rx_buffers, |n| n as u8))
        .link(options.choice("link", &links)?.unwrap_or(default.link))
        .interface(options.choice("interface", &interfaces)?.unwrap_or(default.interface))
        .phys(phys(options, default.phys)?)
        .mdio(options.choice("mdio", &accesses)?)
        .flow_control(options.choice("pause", &pauses)?.unwrap_or(default.flow_control))
        .policy(pci::dma_policy(options)?.unwrap_or(default.policy))
        .batch(batch);
    Ok(config)
}

/// The addresses of the PHYs, in the order of the ports: `phys=0:3`.
fn phys(options: &mut Options, mut phys: [u8; 8]) -> Result<[u8; 8], PortError> {
    let Some(text) = options.text("phys") else { return Ok(phys) };
    let rule = "must be up to 8 addresses from 0 to 31, one a port, as in phys=0:3";
    let mut places = phys.iter_mut();
    for word in text.split(':') {
        let address = word.parse().ok().filter(|&address| address < 32);
        match (places.next(), address) {
            (Some(place), Some(address)) => *place = address,
            _ => return Err(options.error("phys", &text, rule)),
        }
    }
    Ok(phys)
}

/// Open devices of this board that have ports left.
#[derive(Default)]
pub(crate) struct CpswBoards {
    boards: Vec<CpswBoard>,
}

struct CpswBoard {
    /// The device file.
    file: String,
    config: Config,
    ports: Vec<Option<CpswPort<PlatformBus>>>,
}

impl CpswBoards {
    /// Opens a MAC port of the device behind `file`, which is opened with the first of its ports.
    pub(crate) fn open(&mut self, uri: &Uri, file: &str) -> Result<CpswPort<PlatformBus>, PortError> {
        let Wanted { config, soc, port } = read(uri)?;
        let error = |error: String| uri.error(error);
        if !self.boards.iter().any(|board| board.file == file) {
            let bus = PlatformBus::open(file.as_ref()).map_err(|e| error(e.to_string()))?;
            let found = SOCS.iter().find(|(name, _)| *name == bus.soc()).map(|&(_, (soc, _))| soc);
            let soc = match (soc, found) {
                (Some((soc, _)), Some(found)) if soc == found => soc,
                (None, Some(found)) => found,
                (_, found) => {
                    let known = found.map_or("which is not known", |found| found.name);
                    return Err(error(format!(
                        "the kernel module says that this is '{}' ({known}): leave soc= out",
                        bus.soc()
                    )));
                }
            };
            let firmware = bus.firmware();
            let (ports, _) = open(bus, firmware, config.soc(soc)).map_err(|e| error(e.to_string()))?;
            let ports = ports.into_iter().map(Some).collect();
            self.boards.push(CpswBoard { file: file.to_owned(), config, ports });
        }
        let known = self.boards.iter_mut().find(|board| board.file == file);
        let CpswBoard { config: opened, ports, .. } = known.ok_or_else(|| error("no device".to_owned()))?;
        if *opened != config {
            return Err(error("the device is open with other options: give all its ports the same".to_owned()));
        }
        let index = port.or_else(|| ports.iter().position(Option::is_some)).unwrap_or(0);
        ports.get_mut(index).and_then(Option::take).ok_or_else(|| error("this port is open already".to_owned()))
    }
}

impl std::fmt::Debug for CpswBoards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.boards.iter().map(|board| &board.file)).finish()
    }
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
    fn a_port_of_a_board_needs_the_device_file_of_its_kernel_module() {
        let mut boards = CpswBoards::default();
        let mut open = |text: &str| {
            let uri: Uri = text.parse().unwrap();
            let BusChoice::Platform(file) = BusChoice::of(&uri)? else { panic!("{text}") };
            boards.open(&uri, file).map(|port| port.number())
        };
        for (text, part) in [
            ("cpsw:platform=/dev/towpath-no-such-device", "not loaded: see docs/board.md"),
            ("cpsw:platform=/dev/null?ports=2,soc=am64x,link=inband", "no device of the kernel module"),
            ("cpsw:platform=/dev/null?batch=128", "from 1 to 127"),
            ("cpsw:platform=towpath-cpsw0", "cpsw:platform=/dev/towpath-cpsw0"),
            ("cpsw:board", "say where the device is"),
        ] {
            let error = open(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_options_of_links_reach_the_driver() {
        let uri = "cpsw:model?link=phy,interface=rmii,phys=4:7,mdio=automatic,pause=tx".parse().unwrap();
        let (config, _) = config_from_uri(&uri).unwrap();
        assert_eq!((config.phys[0], config.phys[1], config.phys[2]), (4, 7, 2));
        assert_eq!((config.link, config.interface), (LinkSource::Phy, Interface::Rmii));
        assert_eq!((config.mdio, config.flow_control), (Some(MdioAccess::Automatic), FlowControl::Tx));
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
            ("cpsw:model?link=wire", "phy, inband, fixed, loopback"),
            ("cpsw:model?interface=mii", "rgmii, rmii, sgmii"),
            ("cpsw:model?phys=0:32", "from 0 to 31"),
            ("cpsw:model?phys=0:1:2:3:4:5:6:7:8", "up to 8 addresses"),
            ("cpsw:model?mdio=fast", "manual, automatic"),
            ("cpsw:model?pause=on", "full, rx, tx, off"),
        ] {
            let error = open(&mut models, text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
