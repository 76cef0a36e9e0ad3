//! `packet:IF`: any interface of the kernel, through AF_PACKET sockets.
//!
//! ```text
//!   wire ──► driver ──┬──► the host's stack            wire ◄── driver ◄── qdisc ◄──┬── the host's stack
//!                     └──► socket ──► PacketRx                               ▲      └ never seen by PacketRx
//!                                     ring                                   └── sendmmsg ◄── PacketTx
//! ```
//!
//! * **Copies.** The host still gets what comes in: a bridge or route made by this port is in addition to what the host does.
//!   Keep addresses off the interface, or filter there, if that is not wanted. What the host sends is left out
//!   (`PACKET_IGNORE_OUTGOING`), and so is what this port sends.
//! * **Offloads.** Every packet has a virtio-net header (`PACKET_VNET_HDR`). The kernel cannot be told to leave anything out, so
//!   received packets may have partial checksums, be super-packets of up to 64 KiB (TSO of a veth's other end, GRO, LRO), and
//!   have their VLAN tag beside them; whoever sends them finishes what the egress can't. What is sent may be super-packets
//!   as well: the driver cuts them, or the kernel for it. What the kernel takes is found out on a scratch interface; a kind
//!   that is refused later is switched off for that queue, see [`TxQueue::offloads`].
//! * **Queues.** With `queues=N` the flows are shared among N sockets by hash (`PACKET_FANOUT`), both directions of a flow to
//!   the same.
//! * **Order.** The kernel has queues of its own behind each socket: the driver's, and for a veth a backlog for each core. So a flow
//!   that changes its lane could overtake itself there. It changes only when the kernel has let go of what the old lane sent
//!   ([`TxBarrier::passed`](towpath_packet::port::TxBarrier::passed)), or has kept it for 100 ms, which some drivers do for their own convenience.
//! * **Link.** Packets for an interface that is down are dropped as [`DropReason::LinkDown`]; the queues work again when the
//!   link does. A deleted interface is [`State::Gone`]. What the kernel dropped because the socket's buffer was full is
//!   counted as missed.
//!
//! * **Receiving** goes through a ring of 2 KiB frames that the kernel fills: no system call, and no wait, for packets of ordinary
//!   size. A longer one takes one call. **Sending** takes one call for up to 64 packets. Both were measured against the
//!   alternatives, see `docs/perf/kernel-ports.md`.
//!
//! | option | default | |
//! |---|---|---|
//! | `queues` | 1 | 1 to 256 |
//! | `netns` | that of the process | a name known to `ip netns`, or a path |
//! | `promisc` | on | receive frames for any address |
//! | `qdisc` | normal | `bypass`: straight to the driver |
//! | `ring` | 2048 | packets that may wait to be received |
//! | `rcvbuf`, `sndbuf` | 4M | bytes of longer packets that may wait to be received, of all that may be on their way out |
//! | `csum`, `tso`, `uso` | prefer | require, prefer or off: what is sent |

mod config;
mod probe;
mod rx;
mod tx;

pub use super::kernel::ability::Wants;
pub use config::Config;
pub use rx::PacketRx;
pub use towpath_sys::af_packet::Qdisc;
pub use tx::PacketTx;

use super::kernel::ability;
use super::kernel::link::LinkWatch;
use std::io;
use std::sync::Arc;
use towpath_packet::port::{Info, Layer, Port, PortError, Queues, Start, TxLinear};
#[cfg(doc)]
use towpath_packet::{
    DropReason,
    port::{State, TxQueue},
};
use towpath_packet::{MAX_CHUNKS, Offloads};
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::Control;
use towpath_sys::netns;
use towpath_sys::packet_ring::Ring;

/// An interface that was looked at, with the sockets to use it.
#[derive(Debug)]
pub struct PacketPort {
    info: Info,
    control: Arc<Control>,
    index: i32,
    queues: Vec<Sockets>,
}

/// The sockets of one queue. Two, so that neither direction takes the other's lock, or its errors.
#[derive(Debug)]
struct Sockets {
    rx: Socket,
    ring: Ring,
    tx: Socket,
}

/// Opens the sockets and finds out what the kernel takes. Nothing is received yet.
///
/// # Errors
/// [`PortError::Option`] for a value that breaks a rule, [`PortError::Os`] for a step that the kernel refused, with what
/// would mend it, [`PortError::Input`] for an interface that carries neither Ethernet nor IP,
/// [`PortError::Required`] for an ability that is required and not there.
pub fn open(config: Config) -> Result<PacketPort, PortError> {
    config.check()?;
    let port = config.port();
    let found = probe::probe();
    let abilities = ability::report(&port, config.wants, &found)?;
    let inside = || {
        let failed = |step: &'static str| os(&config, step);
        let control = Control::new().map_err(failed("socket"))?;
        let index = control.index(&config.interface).map_err(failed("find the interface"))?;
        let hardware = control.hardware(&config.interface).map_err(failed("SIOCGIFHWADDR"))?;
        let layer = layer(hardware).ok_or_else(|| PortError::Input {
            port: port.clone(),
            what: format!("the interface carries neither Ethernet nor IP (hardware type {hardware})"),
        })?;
        let mtu = control.mtu(&config.interface).map_err(failed("SIOCGIFMTU"))?;
        let queues = (0..config.queues).map(|_| sockets(&config, index)).collect::<Result<Vec<_>, _>>()?;
        let info = Info {
            name: port.clone(),
            layer,
            mtu,
            tx_linear: TxLinear::None,
            headroom: 0,
            tailroom: 0,
            max_chunks: MAX_CHUNKS as u16,
            tx_offloads: found.tx.and(config.wants.allowed()),
            rx_offloads: Offloads::ALL,
            max_queues: config.queues,
            finite: false,
            abilities,
        };
        Ok(PacketPort { info, control: Arc::new(control), index, queues })
    };
    let netns = config.netns.as_deref();
    netns::within(netns, inside).map_err(os(&config, "enter the namespace"))?
}

/// IP packets without anything in front (`include/uapi/linux/if_arp.h`).
const ARPHRD_RAWIP: u16 = 519;

/// What an interface's frames begin with (`ARPHRD_*`).
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
    rx.set_receive_buffer(config.receive_buffer).map_err(failed("SO_RCVBUF"))?;
    if config.promiscuous {
        rx.promiscuous(index).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
    }
    let ring = Ring::new(&rx, config.ring.into()).map_err(failed("PACKET_RX_RING"))?;
    let tx = Socket::new().map_err(failed("socket(AF_PACKET)"))?;
    tx.set_qdisc(config.qdisc).map_err(failed("PACKET_QDISC_BYPASS"))?;
    tx.set_send_buffer(config.send_buffer).map_err(failed("SO_SNDBUF"))?;
    tx.bind_for_sending(index).map_err(failed("bind"))?;
    Ok(Sockets { rx, ring, tx })
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

    fn start(self, start: Start) -> Result<Queues<PacketRx, PacketTx>, PortError> {
        let PacketPort { info, control, index, mut queues } = self;
        info.queues(start.queues)?;
        queues.truncate(start.queues.into());
        let sockets: Vec<_> = queues.iter().map(|q| &q.rx).collect();
        listen(&sockets, index).map_err(|source| PortError::Os {
            port: info.name.clone(),
            step: "bind".to_owned(),
            source,
            hint: None,
        })?;
        let watch = || LinkWatch::new(control.clone(), index);
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for (number, q) in queues.into_iter().enumerate() {
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            rx.push(PacketRx::new(&info, (q.rx, q.ring), number, watch(), &start.pool)?);
            tx.push(PacketTx::new(&info, q.tx, watch(), &start.pool)?);
        }
        Ok(Queues { rx, tx })
    }
}

/// Binds the sockets, of several as one group. Until the last one is a member of it all drop what arrives, because a socket
/// that is bound but no member gets every packet, and the members would get them too.
fn listen(sockets: &[&Socket], index: i32) -> io::Result<()> {
    if let [only] = sockets {
        return only.bind_for_receiving(index);
    }
    let mut group = None;
    for socket in sockets {
        socket.close_gate()?;
        socket.bind_for_receiving(index)?;
        match group {
            None => group = Some(socket.found_group()?),
            Some(group) => socket.join_group(group)?,
        }
    }
    sockets.iter().try_for_each(|socket| socket.open_gate())
}
