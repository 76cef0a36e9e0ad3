//! A port of any kind by its URI: one enum, one match per batch.

use crate::port_wire::PortWire;
use crate::{cpsw, e1000e, pci, tap, virtio};
use std::sync::Arc;
use towpath_bus::platform::PlatformBus;
use towpath_bus::qtest::QtestBus;
use towpath_bus::vfio::VfioBus;
use towpath_engine::lane::{LaneRx, Steer};
use towpath_model::cpsw::CpswBus;
use towpath_model::e1000e::ModelBus;
use towpath_model::virtio::VirtioBus;
use towpath_nic::cpsw::CpswPort;
use towpath_nic::e1000e::E1000e;
use towpath_nic::virtio::{PciTransport, UserTransport, VhostNetTransport, VirtioNet};
use towpath_packet::port::{Calls, Edge, Info, Layer, Needs, Port, PortControl, PortError, Queues, Start, Started};
use towpath_packet::{delegate_rx_queue, delegate_tx_queue};
use towpath_ports::kind::{Kind, did_you_mean};
use towpath_ports::uri::Uri;
use towpath_ports::{fault, generator, null, packet, pcap, sock, tun, veth, vhost, xdp};

/// The use that a port is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It receives packets.
    Ingress,
    /// It sends packets.
    Egress,
    /// Both.
    Both,
}

/// All kinds of ports that [`Opener::open`] opens.
pub const KINDS: &[&Kind] = &[
    &tun::TAP,
    &tun::TUN,
    &packet::KIND,
    &xdp::KIND,
    &sock::KIND,
    &veth::KIND,
    &pcap::KIND,
    &generator::KIND,
    &null::KIND,
    &e1000e::KIND,
    &vhost::KIND,
    &virtio::KIND,
    &cpsw::KIND,
    &fault::KIND,
];

macro_rules! any_port {
    ($($(#[$doc:meta])* $variant:ident: $port:ty,)* @lanes) => {
        /// An opened port of any kind.
        #[derive(Debug)]
        pub enum AnyPort { $($(#[$doc])* $variant($port),)* }

        /// Its receive queue.
        #[derive(Debug)]
        pub enum AnyRx {
            $($(#[$doc])* $variant(<$port as Port>::Rx),)*
            /// The ring of a lane.
            Lane(LaneRx),
        }

        /// Its transmit queue.
        #[derive(Debug)]
        pub enum AnyTx {
            $($(#[$doc])* $variant(<$port as Port>::Tx),)*
            /// The rings to all lanes.
            Steer(Steer),
        }

        #[deny(clippy::missing_trait_methods)]
        impl Port for AnyPort {
            type Rx = AnyRx;
            type Tx = AnyTx;

            fn info(&self) -> &Info {
                match self { $(AnyPort::$variant(port) => port.info(),)* }
            }

            fn control(&self) -> Option<Arc<dyn PortControl>> {
                match self { $(AnyPort::$variant(port) => port.control(),)* }
            }

            fn edge(&self) -> Option<Arc<dyn Edge>> {
                match self { $(AnyPort::$variant(port) => port.edge(),)* }
            }

            fn needs(&self) -> Needs {
                match self { $(AnyPort::$variant(port) => port.needs(),)* }
            }

            fn start(self, start: Start) -> Result<Queues<AnyRx, AnyTx>, PortError> {
                match self {
                    $(AnyPort::$variant(port) => Ok(port.start(start)?.map(AnyRx::$variant, AnyTx::$variant)),)*
                }
            }

            fn start_with_info(self, start: Start) -> Result<Started<AnyPort>, PortError> {
                match self {
                    $(AnyPort::$variant(port) => {
                        let (info, queues) = port.start_with_info(start)?;
                        Ok((info, queues.map(AnyRx::$variant, AnyTx::$variant)))
                    })*
                }
            }
        }

        delegate_rx_queue!(impl[] for AnyRx {
            $(AnyRx::$variant(queue) => queue,)*
            AnyRx::Lane(queue) => queue,
        });

        delegate_tx_queue!(impl[] for AnyTx {
            $(AnyTx::$variant(queue) => queue,)*
            AnyTx::Steer(queue) => queue,
        });
    };
}

any_port! {
    /// `cpsw:model`
    Cpsw: Box<CpswPort<CpswBus>>,
    /// `cpsw:platform=`
    CpswPlatform: Box<CpswPort<PlatformBus>>,
    /// `e1000e:vfio=`
    E1000eVfio: Box<E1000e<VfioBus>>,
    /// `e1000e:qtest=`
    E1000eQtest: Box<E1000e<QtestBus>>,
    /// `e1000e:model`
    E1000eModel: Box<E1000e<ModelBus>>,
    /// `fault:`
    Fault: Box<fault::FaultPort<AnyPort>>,
    /// `gen:`
    Gen: generator::GenPort,
    /// `null:`
    Null: null::NullPort,
    /// `packet:`
    Packet: packet::PacketPort,
    /// `pcap:`
    Pcap: pcap::PcapPort,
    /// `sock:`
    Sock: sock::SockPort,
    /// `tap:` with `vhost=`
    TapVhost: Box<VirtioNet<VhostNetTransport>>,
    /// `tap:` and `tun:`
    Tun: tun::TunPort,
    /// `veth:`
    Veth: veth::VethPort,
    /// `vhost:`
    Vhost: Box<vhost::VhostPort>,
    /// `virtio:vfio=`
    VirtioVfio: Box<VirtioNet<PciTransport<VfioBus>>>,
    /// `virtio:qtest=`
    VirtioQtest: Box<VirtioNet<PciTransport<QtestBus>>>,
    /// `virtio:model`
    VirtioModel: Box<VirtioNet<PciTransport<VirtioBus>>>,
    /// `virtio:user=`
    VirtioUser: Box<VirtioNet<UserTransport>>,
    /// `xdp:`
    Xdp: xdp::XdpPort,
    /// `xdp:` with `tx=template`
    XdpTemplate: xdp::live::TemplatePort,
    @lanes
}

impl AnyPort {
    /// Makes the packets of a capture those of an egress of `layer`, see
    /// [`PcapPort::convert_to`](pcap::PcapPort::convert_to). Other ports stay as they are.
    pub(crate) fn convert_to(&mut self, layer: Layer) {
        if let AnyPort::Pcap(file) = self {
            file.convert_to(layer);
        }
    }
}

/// Ports that a port may stand behind (`fault:drop=1%@tap:tp0` is behind one).
pub(crate) const MAX_BEHIND: usize = 8;

pub(crate) fn unknown_kind(uri: &Uri) -> PortError {
    let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
    let meant = did_you_mean(uri.scheme(), known.iter().copied());
    uri.error(format!("there is no port of kind '{}'; there are: {}{meant}", uri.scheme(), known.join(", ")))
}

pub(crate) fn both_ways(uri: &Uri) -> PortError {
    uri.error("a file goes one way: use --oneway, record or replay")
}

/// Opens ports by their URIs.
///
/// It keeps the in-memory pairs of which one end is open, so both ends must be opened by the
/// same opener.
#[derive(Debug, Default)]
pub struct Opener {
    links: veth::Pairs,
    cpsw_models: cpsw::CpswModels,
    cpsw_boards: cpsw::CpswBoards,
}

impl Opener {
    /// An opener without pairs.
    pub fn new() -> Opener {
        Opener::default()
    }

    /// Checks that every opened pair has both ends; called when all ports are open.
    ///
    /// # Errors
    /// [`PortError::Input`] names an in-memory pair of which only one end was opened.
    pub fn check(&self) -> Result<(), PortError> {
        match self.links.unpaired() {
            None => Ok(()),
            Some(name) => Err(PortError::Input {
                port: format!("veth:{name}"),
                what: "only one end was opened: what is sent into it would go nowhere".to_owned(),
            }),
        }
    }

    /// Opens `to` as a generator of the frames that `frames`, a `gen:` URI, describes; `None`
    /// unless the options of `to` ask for it. The port is an ingress; its frames are sent inside
    /// the kernel.
    ///
    /// # Errors
    /// Errors of the port, or of the generator's options.
    pub fn open_template_generator(&mut self, to: &Uri, frames: &Uri) -> Result<Option<AnyPort>, PortError> {
        if to.scheme() != "xdp" {
            return Ok(None);
        }
        let config = xdp::Config::from_uri(to)?;
        if config.transmit != xdp::Transmit::Template {
            return Ok(None);
        }
        let frames = generator::Config::from_uri(frames)?;
        xdp::live::open_templates(&config, &frames).map(|port| Some(AnyPort::XdpTemplate(port)))
    }

    /// Opens the port of a URI.
    ///
    /// # Errors
    /// [`PortError::Input`] for an unknown scheme, a port that can't be used for `role`, or one
    /// that stands behind too many others;
    /// otherwise the error of the port.
    pub fn open(&mut self, uri: &Uri, role: Role) -> Result<AnyPort, PortError> {
        self.open_behind(0, uri, role)
    }

    /// Opens the port of a URI that stands behind `ports` others in its text: `fault:…@URI`.
    fn open_behind(&mut self, ports: usize, uri: &Uri, role: Role) -> Result<AnyPort, PortError> {
        if ports > MAX_BEHIND {
            return Err(uri.error(format!("stands behind {ports} ports: must be behind at most {MAX_BEHIND}")));
        }
        let ports = ports + 1;
        match uri.scheme() {
            "fault" => {
                let (config, inner) = fault::Config::from_uri(uri)?;
                let inner = self.open_behind(ports, &inner, role)?;
                fault::open(config, inner).map(|port| AnyPort::Fault(Box::new(port)))
            }
            "cpsw" => {
                let (device, wire) = cpsw::split(uri)?;
                if let cpsw::BusChoice::Platform(file) = cpsw::BusChoice::of(&device)? {
                    if wire.is_some() {
                        return Err(uri.error("the port of a board has a wire of its own: leave @ out"));
                    }
                    let port = self.cpsw_boards.open(&device, file)?;
                    let needs = Needs::none().calls([Calls::Platform]);
                    return Ok(AnyPort::CpswPlatform(Box::new(port.with_needs(needs))));
                }
                let wire = wire.map(|wire| self.open_behind(ports, &wire, Role::Both)).transpose()?;
                let needs = wire.as_ref().map(AnyPort::needs).unwrap_or_default();
                let wire = wire.map(PortWire::new).transpose()?;
                let port = self.cpsw_models.open(&device, wire)?;
                Ok(AnyPort::Cpsw(Box::new(port.with_needs(needs))))
            }
            "e1000e" => {
                let (device, wire) = pci::split(uri)?;
                let wire = wire.map(|wire| self.open_behind(ports, &wire, Role::Both)).transpose()?;
                match e1000e::BusChoice::of(&device)? {
                    e1000e::BusChoice::Vfio(function) => {
                        e1000e::vfio(&device, function).map(|port| AnyPort::E1000eVfio(Box::new(port)))
                    }
                    e1000e::BusChoice::Qtest(socket) => {
                        e1000e::qtest(&device, socket).map(|port| AnyPort::E1000eQtest(Box::new(port)))
                    }
                    e1000e::BusChoice::Model => {
                        e1000e::model(&device, wire).map(|port| AnyPort::E1000eModel(Box::new(port)))
                    }
                }
            }
            "gen" => generator::open(generator::Config::from_uri(uri)?).map(AnyPort::Gen),
            "null" => null::open(null::Config::from_uri(uri)?).map(AnyPort::Null),
            "veth" => self.links.open(&veth::Config::from_uri(uri)?).map(AnyPort::Veth),
            "packet" => packet::open(packet::Config::from_uri(uri)?).map(AnyPort::Packet),
            "pcap" => {
                let role = match role {
                    Role::Ingress => pcap::Role::Ingress,
                    Role::Egress => pcap::Role::Egress,
                    Role::Both => return Err(both_ways(uri)),
                };
                pcap::open(pcap::Config::from_uri(uri, role)?).map(AnyPort::Pcap)
            }
            "sock" => sock::open(sock::Config::from_uri(uri)?).map(AnyPort::Sock),
            "vhost" => vhost::open(vhost::Config::from_uri(uri)?).map(|port| AnyPort::Vhost(Box::new(port))),
            "xdp" => {
                let config = xdp::Config::from_uri(uri)?;
                let config = match role {
                    Role::Ingress => config.for_ingress()?,
                    Role::Egress => config.for_egress(),
                    Role::Both => config,
                };
                xdp::open(config).map(AnyPort::Xdp)
            }
            "virtio" => {
                let (device, wire) = pci::split(uri)?;
                let wire = wire.map(|wire| self.open_behind(ports, &wire, Role::Both)).transpose()?;
                match virtio::DeviceChoice::of(&device)? {
                    virtio::DeviceChoice::User(path) => {
                        virtio::user(&device, path).map(|port| AnyPort::VirtioUser(Box::new(port)))
                    }
                    virtio::DeviceChoice::Vfio(function) => {
                        virtio::vfio(&device, function).map(|port| AnyPort::VirtioVfio(Box::new(port)))
                    }
                    virtio::DeviceChoice::Qtest(socket) => {
                        virtio::qtest(&device, socket).map(|port| AnyPort::VirtioQtest(Box::new(port)))
                    }
                    virtio::DeviceChoice::Model => {
                        virtio::model(&device, wire).map(|port| AnyPort::VirtioModel(Box::new(port)))
                    }
                }
            }
            "tap" | "tun" => tap::open(uri),
            _ => Err(unknown_kind(uri)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_kind_is_answered_with_the_one_that_is_meant() {
        let error = Opener::new().open(&"pakcet:eth1".parse().unwrap(), Role::Both).unwrap_err().to_string();
        assert!(error.contains("did you mean packet?"), "{error}");
    }

    #[test]
    fn a_port_stands_behind_a_bounded_number_of_others() {
        let open = |faults: usize| {
            let uri = format!("{}null:", "fault:@".repeat(faults)).parse().unwrap();
            Opener::new().open(&uri, Role::Both).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(open(MAX_BEHIND), Ok(()));
        assert!(open(MAX_BEHIND + 1).unwrap_err().contains("behind at most 8"));
        // So many would overflow the stack.
        assert!(open(10_000).is_err());
        let wires = format!("{}null:", "cpsw:model@".repeat(10_000)).parse().unwrap();
        assert!(Opener::new().open(&wires, Role::Both).is_err());
    }
}
