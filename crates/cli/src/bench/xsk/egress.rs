//! The egress ports.

use super::back_end::{BackEnd, BackEndPlace};
use crate::args::Read;
use crate::bench::netns::Namespace;
use std::error::Error;
use std::process::Command;
use towpath::model::e1000e::{self as model, Device};
use towpath::model::{iommu, wire};
use towpath::nic::e1000e::{Config, E1000e};
use towpath::{AnyPort, Opener, Role};

/// A kind of egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Egress {
    Veth,
    E1000e,
    Virtio,
    VirtioDpdk,
    Tap,
    Packet,
    Xdp,
}

/// An opened egress.
pub(super) struct Opened {
    pub(super) port: AnyPort,
    /// The other end of a pair in memory.
    pub(super) far: Option<AnyPort>,
    /// The other side of a vhost-user socket.
    pub(super) back_end: Option<BackEnd>,
    /// A model, which is stepped.
    pub(super) device: Option<Device>,
    /// The namespace of its interface.
    pub(super) namespace: Option<Namespace>,
}

impl Egress {
    pub(super) const ALL: &[Egress] =
        &[Egress::Veth, Egress::E1000e, Egress::Virtio, Egress::VirtioDpdk, Egress::Tap, Egress::Packet, Egress::Xdp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Egress::Veth => "veth",
            Egress::E1000e => "e1000e",
            Egress::Virtio => "virtio",
            Egress::VirtioDpdk => "virtio-dpdk",
            Egress::Tap => "tap",
            Egress::Packet => "packet",
            Egress::Xdp => "xdp",
        }
    }

    pub(super) fn what(self) -> &'static str {
        match self {
            Egress::Veth => "a pair in memory",
            Egress::E1000e => "the e1000e driver, on the model of its device",
            Egress::Virtio => "the virtio driver, whose back end is towpath's vhost:, with an application behind it",
            Egress::VirtioDpdk => "the virtio driver, whose back end is DPDK's net_vhost (testpmd, rxonly)",
            Egress::Tap => "an interface of the kernel, which drops: writev of one page, or of linear bytes",
            Egress::Packet => "AF_PACKET on a veth of the kernel, whose other end drops",
            Egress::Xdp => "AF_XDP on a veth of the kernel, whose other end drops",
        }
    }

    /// The reader of the bytes: how many it reads, and where. That of the pair in memory
    /// is chosen.
    pub(super) fn reader(self, read: Read, core: Option<usize>, back_end: BackEndPlace) -> String {
        let place = core.map_or("in the datapath's thread, timed".to_owned(), |core| {
            format!("in a thread of its own on core {core}, timed there")
        });
        match (self, read) {
            (Egress::Veth, Read::None) => format!("the far end reads nothing and frees, {place}"),
            (Egress::Veth, Read::Head) => format!("the far end reads 64 bytes of each frame, {place}"),
            (Egress::Veth, Read::All) => format!("the far end reads every byte, {place}"),
            (Egress::Virtio, _) => {
                format!("an application copies every byte, on core {}, and counts the rate", back_end.core)
            }
            (Egress::VirtioDpdk, _) => {
                let BackEndPlace { core, huge } = back_end;
                let pages = if huge { "huge" } else { "small" };
                format!("DPDK copies every byte to memory in {pages} pages, on core {core}, and counts the rate")
            }
            (Egress::E1000e, _) => "the device reads every byte by DMA, not timed".to_owned(),
            (Egress::Xdp, _) => {
                "the kernel copies every byte, timed, and the port those of a page before it".to_owned()
            }
            (Egress::Tap | Egress::Packet, _) => "the kernel copies every byte, timed".to_owned(),
        }
    }

    /// Opens the egress; a back end runs from now on.
    pub(super) fn open(self, place: BackEndPlace) -> Result<Opened, Box<dyn Error>> {
        let mut opener = Opener::new();
        let mut open = |address: &str, role| opener.open(&address.parse()?, role);
        let plain = |port| Opened { port, far: None, back_end: None, device: None, namespace: None };
        match self {
            Egress::Veth => {
                let port = open("veth:bench", Role::Egress)?;
                Ok(Opened { far: Some(open("veth:bench", Role::Ingress)?), ..plain(port) })
            }
            Egress::E1000e => {
                let config = model::Config::default().iommu(iommu::Config::off());
                let bus = model::launch(config, wire::Sink)?;
                let device = bus.device();
                let port = E1000e::open(bus, "e1000e:model", Config::default())?;
                Ok(Opened { device: Some(device), ..plain(AnyPort::E1000eModel(Box::new(port))) })
            }
            Egress::Virtio | Egress::VirtioDpdk => {
                let dpdk = self == Egress::VirtioDpdk;
                let (back_end, path) = if dpdk { BackEnd::dpdk(place)? } else { BackEnd::towpath(place.core)? };
                let port = open(&format!("virtio:user={}", path.display()), Role::Egress)?;
                Ok(Opened { back_end: Some(back_end), ..plain(port) })
            }
            Egress::Tap => {
                let namespace = Namespace::new(None)?;
                let port = open(&format!("tap:bench0?netns={}", namespace.path()), Role::Egress)?;
                Ok(Opened { namespace: Some(namespace), ..plain(port) })
            }
            Egress::Packet | Egress::Xdp => {
                let namespace = Namespace::new(None)?;
                namespace.run(pair)??;
                let address = format!("{}:bench0?netns={}", self.name(), namespace.path());
                let port = open(&address, Role::Egress)?;
                Ok(Opened { namespace: Some(namespace), ..plain(port) })
            }
        }
    }
}

/// Makes a veth pair; the far end has no reader.
fn pair() -> Result<(), String> {
    for args in ["link add bench0 type veth peer name bench1", "link set bench0 up", "link set bench1 up"] {
        let output = Command::new("ip").args(args.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
        if !output.status.success() {
            return Err(format!("ip {args}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
    }
    Ok(())
}
