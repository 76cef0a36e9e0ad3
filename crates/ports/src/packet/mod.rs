//! `packet:IF`: any interface of the kernel, through AF_PACKET sockets.
//!
//! ```text
//!   wire ──► driver ──┬──► the host's stack
//!                     └──► socket ──► PacketRx
//!                                     ring
//!
//!   wire ◄── driver ◄── qdisc ◄──┬── the host's stack
//!                         ▲      └ not received by PacketRx
//!                         └── sendmmsg ◄── PacketTx
//! ```
//!
//! * **Copies.** The host receives every packet too: a bridge or route of this port is in addition
//!   to the host's. To prevent that, give the interface no addresses, or drop the packets at tc's
//!   ingress, which comes behind the sockets (`__netif_receive_skb_core` in `net/core/dev.c`):
//!   `tc qdisc add dev eth1 clsact`, `tc filter add dev eth1 ingress matchall action drop`.
//!   Packets that the host or this port sends are not received (`PACKET_IGNORE_OUTGOING`).
//! * **Offloads.** Every packet has a virtio-net header (`PACKET_VNET_HDR`). The kernel has no
//!   option to disable offloads of received packets: they may have partial checksums, be
//!   super-packets of up to 64 KiB (TSO of a veth's peer, GRO, LRO), and have their VLAN tag in the
//!   metadata; the sending worker completes what its egress can't. Transmitted packets may be
//!   super-packets too: the driver or the kernel splits them. The kernel's offloads are probed on a
//!   scratch interface; a kind that is refused later is switched off for that queue, see
//!   [`TxQueue::offloads`].
//! * **Queues.** With `queues=N` the flows are distributed to N sockets by hash (`PACKET_FANOUT`),
//!   both directions of a flow to the same one.
//! * **Order.** The kernel has queues behind each socket: the driver's, and for a veth a backlog of
//!   each core. So a flow that changes its lane could be reordered there. It changes only after the
//!   kernel freed all packets of the old lane
//!   ([`TxBarrier::passed`](towpath_packet::port::TxBarrier::passed)), or after a second, because
//!   some drivers free packets late.
//! * **Link.** Packets for an interface that is down are dropped as [`DropReason::LinkDown`]; the
//!   queues work again when it is up. A deleted interface is [`State::Gone`].
//! * **Room to wait.** A packet of up to 1.9 KB waits in the ring, a longer one (TSO, GRO) in the
//!   socket's receive buffer too; what finds either full is lost. By default both grow with the
//!   memory: the rings of a port, 2 KiB for each packet that stay allocated, take at most 1/256 of
//!   it, 2048 to 16384 packets for each queue; the buffers, which take memory only while packets
//!   wait, as much again, 4 to 64 MiB for each queue. Without `CAP_NET_ADMIN` the kernel cuts the
//!   buffer to `net.core.rmem_max`, which the probe reports. Both were measured, see
//!   `docs/perf/kernel-ports.md`.
//! * **Losses of the kernel.** A full ring is [`Missed::SocketRing`], a full buffer
//!   [`Missed::SocketBuffer`]. Losses at the interface are [`Missed::VethPeer`] on a veth, else
//!   [`Missed::Interface`] and [`Missed::Device`]; behind the transmit queue [`Missed::Qdisc`] and
//!   [`Missed::Driver`].
//! * **System calls.** The kernel writes received packets to a ring of 2 KiB frames: no call for a
//!   packet of ordinary size, one call for a longer one. Up to 64 packets are sent with one call.
//!   Both were measured against the alternatives, see `docs/perf/kernel-ports.md`.
//!
//! | option | default | |
//! |---|---|---|
//! | `queues` | 1 | 1 to 256 |
//! | `netns` | that of the process | a name known to `ip netns`, or a path |
//! | `promisc` | on | receive frames for any address |
//! | `qdisc` | normal | `bypass`: straight to the driver |
//! | `ring` | 2048 to 16384 | packets that may wait to be received, see below |
//! | `rcvbuf` | 4 to 64 MiB | bytes of longer packets that may wait to be received, see below |
//! | `sndbuf` | 4M | bytes of packets that may wait to be transmitted |
//! | `csum`, `tso`, `uso` | prefer | require, prefer or off: of transmitted packets |
//!
//! | file | |
//! |---|---|
//! | `config.rs`, `probe.rs` | the options; the kernel's offloads |
//! | `rx.rs`, `tx.rs` | the queues |

mod config;
mod probe;
mod rx;
mod tx;

pub use super::kernel::ability::Wants;
pub use config::{Config, KIND};
pub use rx::PacketRx;
pub use towpath_sys::af_packet::Qdisc;
pub use tx::PacketTx;

use super::kernel::ability;
use super::kernel::edge::{self, EdgeKind, KernelEdge};
use super::kernel::interface::interface;
use super::kernel::link::{self, LinkWatch};
use std::io;
use std::sync::{Arc, Weak};
use towpath_packet::port::{Ability, Calls, Edge, Info, Layer, Needs, Port, PortError, Queues, Start};
#[cfg(doc)]
use towpath_packet::{
    DropReason, Missed,
    port::{State, TxQueue},
};
use towpath_packet::{MAX_CHUNKS, Offloads};
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::Control;
use towpath_sys::packet_ring::{FRAME, Ring};
use towpath_sys::rtnl::Link;
use towpath_sys::{host, netns};

/// An interface with its sockets.
#[derive(Debug)]
pub struct PacketPort {
    info: Info,
    control: Arc<Control>,
    index: i32,
    queues: Vec<Sockets>,
    link: Option<Link>,
    edge: Arc<KernelEdge>,
}

/// The sockets of one queue: two, so that neither direction takes the lock or the errors of the
/// other.
#[derive(Debug)]
struct Sockets {
    rx: Socket,
    ring: Ring,
    tx: Socket,
}

/// Opens the sockets and probes the kernel's offloads. Nothing is received yet.
///
/// # Errors
/// [`PortError::Option`] for a value that breaks a rule, [`PortError::Os`] for a step that the
/// kernel refused, with a hint, [`PortError::Input`] for an interface that carries neither Ethernet
/// nor IP, [`PortError::Required`] for a required ability that is missing.
pub fn open(config: Config) -> Result<PacketPort, PortError> {
    config.check()?;
    let port = config.port();
    let found = probe::probe();
    let mut abilities = ability::report(&port, config.wants, &found)?;
    let inside = || {
        let failed = |step: &'static str| os(&config, step);
        let control = Control::new().map_err(failed("socket"))?;
        let index = control.index(&config.interface).map_err(failed("find the interface"))?;
        let hardware = control.hardware_type(&config.interface).map_err(failed("SIOCGIFHWADDR"))?;
        let layer = layer(hardware).ok_or_else(|| PortError::Input {
            port: port.clone(),
            what: format!("the interface carries neither Ethernet nor IP (hardware type {hardware})"),
        })?;
        let mtu = control.mtu(&config.interface).map_err(failed("SIOCGIFMTU"))?;
        let queues = (0..config.queues).map(|_| sockets(&config, index)).collect::<Result<Vec<_>, _>>()?;
        abilities.push(link::ability(&config.interface, config.netns.as_deref(), control.link_state(index)));
        let first: Option<&Sockets> = queues.first();
        abilities.extend(first.map(|first| waiting(&config, first)).into_iter().flatten());
        let link = Link::new(index).ok();
        let info = Info::new(port.clone(), layer, mtu)
            .with_netns(config.netns.clone())
            .with_max_chunks(MAX_CHUNKS as u16)
            .with_offloads(found.tx.and(config.wants.allowed()), Offloads::ALL)
            .with_max_queues(config.queues)
            .with_interface(link.as_ref().and_then(|link| interface(&control, link)))
            .with_abilities(abilities);
        let edge = KernelEdge::new(EdgeKind::Packet);
        Ok(PacketPort { info, control: Arc::new(control), index, queues, link, edge })
    };
    let netns = config.netns.as_deref();
    netns::within(netns, inside).map_err(os(&config, "enter the namespace"))?
}

/// IP packets without a link header (`include/uapi/linux/if_arp.h`).
const ARPHRD_RAWIP: u16 = 519;

/// The layer of an interface's frames, by its type (`ARPHRD_*`).
fn layer(hardware: u16) -> Option<Layer> {
    match hardware {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(Layer::Ethernet),
        libc::ARPHRD_NONE | ARPHRD_RAWIP => Some(Layer::Ip),
        _ => None,
    }
}

fn sockets(config: &Config, index: i32) -> Result<Sockets, PortError> {
    let failed = |step| os(config, step);
    let rx = Socket::new().map_err(failed("socket(AF_PACKET)"))?;
    rx.ignore_outgoing().map_err(failed("PACKET_IGNORE_OUTGOING"))?;
    rx.set_receive_buffer(config.receive_buffer(host::memory())).map_err(failed("SO_RCVBUF"))?;
    if config.promiscuous {
        rx.set_promiscuous(index).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
    }
    let ring = Ring::new(&rx, config.ring(host::memory()).into()).map_err(failed("PACKET_RX_RING"))?;
    let tx = Socket::new().map_err(failed("socket(AF_PACKET)"))?;
    tx.set_qdisc(config.qdisc).map_err(failed("PACKET_QDISC_BYPASS"))?;
    tx.set_send_buffer(config.send_buffer).map_err(failed("SO_SNDBUF"))?;
    tx.bind_tx(index).map_err(failed("bind"))?;
    Ok(Sockets { rx, ring, tx })
}

/// How much may wait to be received, and what that costs.
fn waiting(config: &Config, sockets: &Sockets) -> [Ability; 2] {
    let (frames, wanted) = (sockets.ring.frames(), config.receive_buffer(host::memory()));
    let ring = format!("{frames} packets may wait in each queue: {:.1} MB of memory", (frames * FRAME) as f64 / 1e6);
    let got = sockets.rx.receive_buffer().unwrap_or(wanted);
    let buffer = format!("{:.1} MB of packets longer than 1.9 KB may wait in each queue", f64::from(got) / 1e6);
    // Without CAP_NET_ADMIN the kernel cuts the buffer to net.core.rmem_max.
    let buffer = if got >= wanted {
        Ability::new("rcvbuf", true, buffer)
    } else {
        let why = format!("{buffer}: net.core.rmem_max, in place of {:.1} MB", f64::from(wanted) / 1e6);
        Ability::new("rcvbuf", false, why).with_hint(Some(format!("sysctl -w net.core.rmem_max={wanted}")))
    };
    [Ability::new("ring", true, ring), buffer]
}

fn os<'a>(config: &'a Config, step: &'static str) -> impl FnOnce(io::Error) -> PortError + use<'a> {
    move |source| {
        let hint = match source.raw_os_error() {
            Some(libc::EPERM) if step.starts_with("enter") => Some("run as root: that needs cap_sys_admin".to_owned()),
            Some(libc::EPERM | libc::EACCES) => {
                Some("run as root, or: setcap cap_net_raw,cap_net_admin+ep \"$(command -v towpath)\"".to_owned())
            }
            Some(libc::ENOENT) if step.starts_with("enter") => Some("ip netns list shows the names".to_owned()),
            Some(libc::ENODEV) => Some("ip link shows the interfaces".to_owned()),
            Some(libc::EAFNOSUPPORT) => Some("modprobe af_packet".to_owned()),
            _ => None,
        };
        PortError::Os { port: config.port(), step: step.to_owned(), source, hint }
    }
}

impl Port for PacketPort {
    type Rx = PacketRx;
    type Tx = PacketTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn edge(&self) -> Option<Arc<dyn Edge>> {
        Some(self.edge.clone())
    }

    fn needs(&self) -> Needs {
        edge::needs(self.link.as_ref()).calls([Calls::Sockets, Calls::Interface])
    }

    fn start(self, start: Start) -> Result<Queues<PacketRx, PacketTx>, PortError> {
        let PacketPort { info, control, index, mut queues, link, edge } = self;
        info.queues(start.queues)?;
        queues.truncate(start.queues.into());
        let edge = edge.start(link, Weak::new());
        let sockets: Vec<_> = queues.iter().map(|q| &q.rx).collect();
        bind_sockets(&sockets, index).map_err(|source| PortError::Os {
            port: info.name.clone(),
            step: "bind".to_owned(),
            source,
            hint: None,
        })?;
        let watch = || LinkWatch::new(control.clone(), index);
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (number, q) in queues.into_iter().enumerate() {
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            rx.push(PacketRx::new(&info, (q.rx, q.ring), number, watch(), &edge, &start.pool)?);
            tx.push(PacketTx::new(&info, q.tx, watch(), &edge, &start.pool)?);
        }
        Ok(Queues { rx, tx })
    }
}

/// Binds the sockets, several as one fanout group. All of them drop packets until the last one has
/// joined: a bound socket that is no member receives every packet, in addition to the members.
fn bind_sockets(sockets: &[&Socket], index: i32) -> io::Result<()> {
    if let [only] = sockets {
        return only.bind_rx(index);
    }
    let mut group = None;
    for socket in sockets {
        socket.attach_drop_filter()?;
        socket.bind_rx(index)?;
        match group {
            None => group = Some(socket.create_fanout()?),
            Some(group) => socket.join_fanout(group)?,
        }
    }
    sockets.iter().try_for_each(|socket| socket.detach_filter())
}
