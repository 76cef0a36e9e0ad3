//! `xdp:IF`: an interface's queues through AF_XDP sockets, without libxdp.
//!
//! ```text
//!   driver ── XDP program ──┬── a chosen flow ──► RX ring ──► XdpRx
//!             (sys::bpf)    └── the rest ──► the host          ▲ FILL ring
//!   driver ◄─────────────── sendto ◄── TX ring ◄── XdpTx
//!                                      COMPLETION ring ──► freed
//! ```
//!
//! Frames lie in the pool's own memory: between process and kernel nothing is copied.
//!
//! * **Flows.** Frames for the sockets do not reach the host: all frames of the used queues, or
//!   only those of `match=`, in the syntax of the [rules](towpath_engine::rules), several flows
//!   joined by `+`: `match=udp dport 4242+tcp dport 80`. Other queues of the interface stay the
//!   host's.
//! * **Only sending.** With `rx=off` no program is attached, and the host keeps all of its traffic.
//!   The sockets have no RX ring; in copy mode their FILL ring stays empty. A driver in zero-copy
//!   mode gets buffers there, because it may receive the host's frames into them. Some drivers send
//!   without copies only beside a program: any program on the interface will do, also another's.
//!   Opening takes `CAP_NET_RAW`, see `docs/senders.md`.
//! * **Bonds.** `xdp:bond0` sends and receives in copy mode, and the bond chooses the slave. Zero
//!   copy is the slave's: `xdp:eth1`. Its [`Info::interface`] has the bond as `master`, whose
//!   address and routes are those to send with ([`Interface::source_mac`]).
//! * **Life.** Program, map and sockets are descriptors: a killed process leaves nothing on the
//!   interface.
//! * **BTF.** The program's function has a name and a type, by which `bpftool` shows it and
//!   `xdpdump` attaches to its entry and exit. A kernel that refuses them runs the program without.
//! * **Modes.** The program runs in the driver (`native`) or in the stack (`generic`); the driver
//!   uses the UMEM (`zerocopy`) or the kernel copies (`copy`). Each can be required, preferred or
//!   switched off; a preferred mode that failed is reported at the start. `mode=native` and
//!   `mode=generic` require one.
//! * **Checksums and segments.** AF_XDP descriptors have no field for either. Transmitted packets
//!   may have partial checksums if the kernel reads TX metadata (Linux 6.8; in zero-copy mode the
//!   driver must support it). On a veth received packets have the partial checksums of the peer's
//!   stack, and with the program in the stack they may be TSO packets. Both are detected
//!   (`partial`), see `partial_checksum.rs`. A VLAN tag beside the frame is lost before any program
//!   runs: `ethtool -K PEER txvlan off`.
//! * **Stalls.** If no frame in flight is completed for the time `stall` while the link is up, the
//!   port counts an event and an error, and reopens the queue: its socket is closed, and its
//!   packets in flight are dropped as [`DropReason::Refused`]. A queue that stalls again without a
//!   completion changes to copy mode with `zerocopy=prefer`, and then to the stack with
//!   `native=prefer`; both are events. A required mode is kept.
//! * **Events** are in the summary, and shown while the port runs: stalls and fallbacks, frames
//!   that the driver dropped, invalid descriptors, and the kernel's statistics of the rings.
//! * **Self-test.** At the start the driver is woken once without a frame, which some drivers
//!   always refuse. A frame is sent only with `selftest=frame`, because the peer sees it.
//! * **Link.** An interface that is not up can be opened. Packets for an interface that is down are
//!   dropped as [`DropReason::LinkDown`]; the queues work again when it is up. A deleted interface
//!   is [`State::Gone`].
//!
//! | option | default | |
//! |---|---|---|
//! | `queue`, `queues` | 0, 1 | the first queue, and the number of queues |
//! | `netns` | that of the process | a name known to `ip netns`, or a path |
//! | `rx` | on | `off`: only send; a port opened as an egress only does not receive either |
//! | `native`, `generic`, `zerocopy`, `copy` | prefer | require, prefer or off |
//! | `mode` | auto | `native` or `generic`: that one or none |
//! | `frags` | prefer | packets of several fragments, both ways |
//! | `csum` | prefer | transmitted packets may have partial checksums |
//! | `timestamps` | off | two percentiles of the delays of transmitted packets, as events |
//! | `partial` | auto | `on`, `off`: partial checksums of received packets; auto: on a veth |
//! | `wakeup` | prefer | the kernel is called only if a ring needs a wakeup |
//! | `match` | everything | flows to receive |
//! | `ring` | 2048 | entries of each ring, a power of two |
//! | `txbudget` | 64 | frames that one call sends |
//! | `sndbuf` | 4M | bytes of frames that may wait to be transmitted |
//! | `busypoll`, `busybudget` | off, 64 | time (`20us`, at most 1s) and frames of a busy poll |
//! | `promisc` | on | receive frames for any address |
//! | `stall` | 1s | see above; at least 10ms |
//! | `selftest` | wake | `off`, `wake` or `frame` |
//! | `tx` | socket | `live`, `prefer-live`; `template` for `towpath gen`: see [`live`] |
//! | `burst` | 256 | frames that `tx=live` gathers for one call, at most 4096 |
//!
//! | file | |
//! |---|---|
//! | `mod.rs`, `config.rs` | the port, its options |
//! | `probe.rs`, `abilities.rs`, `errors.rs` | tries the modes; abilities; errors with hints |
//! | `program.rs` | the XDP program, and the program for `match=` |
//! | `umem.rs` | the pool's region as UMEM |
//! | `queue.rs`, `fallback.rs` | the socket and its rings, reopened after a stall, in which mode |
//! | `rx.rs`, `partial_checksum.rs` | RX and FILL rings; partial checksums of a veth |
//! | `tx/`, `in_flight_table.rs`, `tx_metadata.rs` | TX and COMPLETION rings; what is in flight |
//! | `events.rs` | counted events |
//! | `live/` | `tx=live`: frames of a program |

mod abilities;
mod config;
mod errors;
mod events;
mod fallback;
mod in_flight_table;
pub mod live;
mod partial_checksum;
mod probe;
mod program;
mod queue;
mod rx;
#[cfg(test)]
mod tests;
mod tx;
mod tx_metadata;
mod umem;

pub use config::{Config, KIND, Partial, SelfTest, Transmit};
pub use rx::{SocketRx, XdpRx};
pub use tx::{SocketTx, XdpTx};

use super::kernel::edge::{self, EdgeKind, KernelEdge};
use super::kernel::interface::interface;
use super::kernel::link::{self, LinkWatch};
use crate::null::NullRx;
use crate::uri::Want;
use abilities::{abilities, timestamps};
use events::{EventControl, Events};
use live::{LiveProgram, LiveTx};
use probe::Probed;
use queue::{Attached, PortShared, QueueShared, retry_while_busy, split_rings};
use std::sync::{Arc, Mutex, Weak};
use towpath_packet::Offloads;
use towpath_packet::port::{
    Ability, Calls, Capability, Edge, Info, Layer, Needs, Port, PortControl, PortError, Queues, Spacing, Start,
    TxLayout,
};
#[cfg(doc)]
use towpath_packet::{
    DropReason,
    port::{Interface, State},
};
use towpath_sys::af_packet;
use towpath_sys::bpf::AttachMode;
use towpath_sys::netdev::Control;
use towpath_sys::netdev_genl::{Device, Features};
use towpath_sys::netns::{self, Namespace};
use towpath_sys::rtnl::Link;
use umem::Umem;

/// TCP super-packets, as a stack hands them to a device.
const TSO: Offloads = Offloads::TSO4.with(Offloads::TSO6);

/// An interface with the program attached.
#[derive(Debug)]
pub struct XdpPort {
    info: Info,
    config: Config,
    control: Arc<Control>,
    index: i32,
    found: Box<Probed>,
    /// `None` if the port does not receive.
    attached: Option<Attached>,
    /// Received frames are examined for partial checksums.
    partial: bool,
    /// Transmitted packets are timed.
    timed: bool,
    live: Option<LiveProgram>,
    events: Arc<Events>,
    link: Option<Link>,
    edge: Arc<KernelEdge>,
}

/// Attaches the program and tries the modes of sockets. Nothing is received yet.
///
/// # Errors
/// [`PortError::Option`] for a value that breaks a rule, [`PortError::Os`] for a step that the
/// kernel refused, with a hint (another program is attached, the queue is busy, the interface is
/// down), [`PortError::Input`] for an interface that is no Ethernet, [`PortError::Required`] for a
/// required ability that is missing.
pub fn open(config: Config) -> Result<XdpPort, PortError> {
    config.check()?;
    let netns = config.netns.clone();
    netns::within(netns.as_deref(), || examine(config.clone())).map_err(errors::netns_error(&config))?
}

fn examine(config: Config) -> Result<XdpPort, PortError> {
    let failed = |step: &'static str| errors::os_error(&config, step);
    let port = config.port();
    let name = &config.interface;
    let control = Control::new().map_err(failed("socket"))?;
    let index = control.index(name).map_err(failed("find the interface"))?;
    let hardware = control.hardware_type(name).map_err(failed("SIOCGIFHWADDR"))?;
    if !matches!(hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
        let what = format!("the interface carries no Ethernet (hardware type {hardware}): packet: takes it");
        return Err(PortError::Input { port, what });
    }
    let mtu = control.mtu(name).map_err(failed("SIOCGIFMTU"))?;
    let mac = control.mac(name).map_err(failed("SIOCGIFHWADDR"))?;
    let driver = control.driver(name).unwrap_or_default();
    errors::check_queues(&config, &control)?;
    let device = Device::new(index).map_err(failed("socket(AF_NETLINK)"))?;
    let features = device.features().ok();
    let busy_poll = probe::busy_poll(&config)?;
    let on = if config.receives() { Some(probe::attach(&config, index)?) } else { None };
    let found = probe::probe(&config, index, mtu, (mac, &driver), on.as_ref(), features)?;
    let promiscuous = if config.promiscuous && on.is_some() {
        let socket = af_packet::Socket::new().map_err(failed("socket(AF_PACKET)"))?;
        socket.set_promiscuous(index).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
        Some(socket)
    } else {
        None
    };
    let partial = match config.partial {
        _ if on.is_none() => false,
        Partial::Auto => driver == "veth",
        Partial::On => true,
        Partial::Off => false,
    };
    let (live, transmit) = transmit(&config, index, &driver, features)?;
    let metadata = found.metadata.is_ok()
        && config.csum != Want::Off
        && (!found.zero_copy() || features.is_some_and(Features::tx_checksum));
    let rx_offloads = match (partial, found.mode) {
        (true, Some(AttachMode::Native)) => Offloads::CSUM,
        (true, Some(AttachMode::Generic)) => Offloads::CSUM.with(TSO),
        (true, None) | (false, _) => Offloads::NONE,
    };
    let mut abilities = abilities(&config, &found, features, partial, mtu)?;
    let state = link::ability(&config.interface, config.netns.as_deref(), control.link_state(index));
    abilities.insert(0, state);
    let link = Link::new(index).ok();
    abilities.push(Ability::new("busypoll", true, busy_poll));
    let timed = live.is_none() && config.timestamps != Want::Off && timestamps(&found, features).is_ok();
    abilities.push(transmit);
    let headroom = if (metadata || timed) && live.is_none() { tx_metadata::LEN as u16 } else { 0 };
    let tx_offloads = if metadata && live.is_none() { Offloads::CSUM } else { Offloads::NONE };
    let info = Info::new(port, Layer::Ethernet, mtu)
        .with_tx_layout(TxLayout { headroom, ..TxLayout::default() })
        .with_netns(config.netns.clone())
        .with_max_chunks(found.max_frags)
        .with_offloads(tx_offloads, rx_offloads)
        .with_max_queues(config.queues)
        .with_spacing(Spacing::InPages)
        .with_interface(link.as_ref().and_then(|link| interface(&control, link)))
        .with_abilities(abilities);
    let attached = on.map(|on| {
        let link = Mutex::new((on.mode, Some(on.link)));
        Attached { map: on.map, link, program: on.program, _promiscuous: promiscuous }
    });
    let (control, events, found) = (Arc::new(control), Arc::default(), Box::new(found));
    let edge = KernelEdge::new(EdgeKind::Xdp);
    Ok(XdpPort { info, config, control, index, found, attached, partial, timed, live, events, link, edge })
}

/// The way packets are transmitted: the program of `tx=live`, if it works, and the report.
fn transmit(
    config: &Config,
    index: i32,
    driver: &str,
    features: Option<Features>,
) -> Result<(Option<LiveProgram>, Ability), PortError> {
    let (possible, hint) = (live::possible(features), live::hint(driver));
    let made = match config.transmit {
        Transmit::Socket => {
            let why = match possible {
                Ok(()) => "through the socket; tx=live is possible".to_owned(),
                Err(why) => format!("through the socket; tx=live is not possible: {why}; to fix it, {hint}"),
            };
            return Ok((None, Ability::new("tx", true, why)));
        }
        Transmit::Template => {
            return Err(config.error(
                "tx",
                "template",
                "is for towpath gen, which then makes its frames in the kernel",
            ));
        }
        Transmit::Live | Transmit::PreferLive => {
            possible.and_then(|()| LiveProgram::new(config, index).map_err(|error| error.to_string()))
        }
    };
    let ability = |on, why: String| Ability::new("tx", on, why).with_hint((!on).then(|| hint.to_owned()));
    match made {
        Ok(live) => Ok((Some(live), ability(true, "as frames of a program".to_owned()))),
        Err(why) if config.transmit == Transmit::Live => Err(config.error("tx", "live", format!("{why} ({hint})"))),
        Err(why) => Ok((None, ability(false, format!("through the socket, because {why}")))),
    }
}

impl Port for XdpPort {
    type Rx = XdpRx;
    type Tx = XdpTx;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(EventControl(self.events.clone())))
    }

    fn edge(&self) -> Option<Arc<dyn Edge>> {
        Some(self.edge.clone())
    }

    fn needs(&self) -> Needs {
        let needs = edge::needs(self.link.as_ref()).calls([Calls::Sockets, Calls::Interface]);
        let needs = if self.live.is_some() { needs.calls([Calls::ProgramRun]) } else { needs };
        // A queue that stalls is reopened: a socket, its UMEM, and the size of its buffer.
        let rights = [Capability::NetRaw, Capability::IpcLock, Capability::NetAdmin];
        let needs = rights.into_iter().fold(needs.calls([Calls::Xdp]), Needs::capability);
        // Sockets belong to the namespace of the thread that opens them.
        match self.config.netns {
            Some(_) => needs.calls([Calls::Namespaces]).capability(Capability::SysAdmin),
            None => needs,
        }
    }

    fn start(self, start: Start) -> Result<Queues<XdpRx, XdpTx>, PortError> {
        let XdpPort { info, config, control, index, found, attached, partial, timed, live, events, link, edge } = self;
        info.queues(start.queues)?;
        let mut lives = Vec::new();
        if let Some(first) = live {
            lives.push(first);
            for _ in 1..start.queues {
                lives.push(LiveProgram::new(&config, index)?);
            }
        }
        let mut lives = lives.into_iter();
        let metadata = found.metadata.clone().unwrap_or(0);
        let umem = Umem::new(&config, &start.pool, info.mtu, metadata)?;
        let first = u32::from(config.queue);
        let (flags, queues, edge) = (found.flags, start.queues, edge.start(link, Weak::new()));
        let netns = Namespace::open(config.netns.as_deref()).map_err(errors::netns_error(&config))?;
        let port = Arc::new(PortShared { config, netns, index, flags, attached, umem, queues, events, _edge: edge });
        let watch = || LinkWatch::new(control.clone(), index);
        let mtu = partial.then_some(info.mtu as usize);
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        let mut shared = None;
        for number in first..first + u32::from(start.queues) {
            let failed = |source| errors::bind_error(&port.config, number, source);
            let (socket, mut rings) = port.open(shared.as_deref()).map_err(failed)?;
            let socket = Arc::new(socket);
            let queue = Arc::new(QueueShared::new(port.clone(), number, socket.clone()));
            // The FILL ring has buffers before the socket is bound.
            let posted = port.fill_for_host(&mut rings, port.flags);
            let (rx_rings, tx_rings) = split_rings(&socket, rings, port.flags);
            rx.push(match rx_rings {
                Some(rings) => XdpRx::Socket(Box::new(SocketRx::new(queue.clone(), rings, mtu, watch())?)),
                None => {
                    queue.close_half(posted.into_iter(), false);
                    XdpRx::Off(NullRx::default())
                }
            });
            tx.push(match lives.next() {
                None => XdpTx::Socket(Box::new(SocketTx::new(queue, tx_rings, &info, timed, watch(), &start.pool)?)),
                Some(live) => {
                    drop(tx_rings);
                    queue.close_half(std::iter::empty(), false);
                    let config = &port.config;
                    let account = || live::TxAccount::new(control.clone(), index);
                    let account = port.netns.run(account).and_then(|made| made);
                    let account = account.map_err(errors::os_error(config, "socket(AF_NETLINK)"))?;
                    XdpTx::Live(Box::new(LiveTx::new(live, &info, config.burst, account, &start.pool)?))
                }
            });
            retry_while_busy(|| port.bind(&socket, number, port.flags, shared.as_deref())).map_err(failed)?;
            shared.get_or_insert(socket);
        }
        Ok(Queues { rx, tx })
    }
}
