//! `xdp:IF`: an interface's queues, through AF_XDP sockets, without a library.
//!
//! ```text
//!   driver ── our program ──┬── a flow of ours ──► RX ring ──► XdpRx          frames lie in the pool's own memory: between
//!             (sys::bpf)    └── the rest ──► the host          ▲ FILL ring    process and kernel nothing is copied
//!   driver ◄─────────────── sendto ◄── TX ring ◄── XdpTx
//!                                      COMPLETION ring ──► home
//! ```
//!
//! * **Takes.** What the program sends to the sockets does not reach the host any more: everything of the queues that are used,
//!   or only what `match=` names, in the words of the [rules](crate::rules), several flows joined by `+`:
//!   `match=udp dport 4242+tcp dport 80`. Queues of the interface that are not used stay the host's.
//! * **Ends with the process.** Program, map and sockets are descriptors; a process that is killed leaves nothing on the interface.
//! * **Modes.** The program runs in the driver (`native`) or in the stack (`generic`); the driver uses our memory (`zerocopy`) or
//!   the kernel copies (`copy`). Each can be required, preferred or switched off; what is preferred and was not to be had is
//!   said at the start. `mode=native` and `mode=generic` are short for requiring one.
//! * **Checksums and segments.** AF_XDP has no word for either. Sent packets may have partial checksums where the kernel reads
//!   metadata of frames (Linux 6.8; a driver without copies must say that it completes them). Received ones have what
//!   the sending stack left to a device that is none: on a veth the checksum, and with the program in the stack, also
//!   segmentation. Both are recognised (`partial`), see `partial.rs`. A VLAN tag that the sending stack left *beside* the frame
//!   is lost before any program runs: `ethtool -K PEER txvlan off`.
//! * **Stalls.** When nothing of what was sent is completed for `stall` while the link is up, that is an event of the port (and
//!   counted as its error), and the queue is made anew: its socket is closed, and what was on its way is dropped as
//!   [`DropReason::Refused`]. A queue that stalls again, with nothing completed in between, copies from then on where
//!   `zerocopy=prefer`, and then has the program in the stack where `native=prefer`; both are events. What is required is kept.
//! * **Events** are in the summary, and shown while it runs: stalls and what came of them, frames that the driver dropped after
//!   the kernel had taken them, descriptors that the kernel found invalid, what the kernel's own statistics say of rings.
//! * **Self-test.** At the start the driver is woken once with nothing to send, which some refuse for ever. A frame is sent only
//!   if asked (`selftest=frame`), because whoever is at the other end sees it.
//! * **Link.** An interface that is not up is opened, and said to be down. Packets for an interface that is down are dropped as [`DropReason::LinkDown`]; the queues work again when it is up. A
//!   deleted interface is [`State::Gone`].
//!
//! | option | default | |
//! |---|---|---|
//! | `queue`, `queues` | 0, 1 | the first queue, and how many from there |
//! | `netns` | that of the process | a name known to `ip netns`, or a path |
//! | `native`, `generic`, `zerocopy`, `copy` | prefer | require, prefer or off |
//! | `mode` | auto | `native` or `generic`: that one or none |
//! | `frags` | prefer | packets in several pieces, both ways |
//! | `csum` | prefer | sent packets may have partial checksums |
//! | `timestamps` | off | how long sent packets take to leave: two percentiles among the events, see `timing.rs` |
//! | `partial` | auto | `on`, `off`: received packets are looked at for partial checksums; auto: on a veth |
//! | `wakeup` | prefer | the kernel is called only when it asks for it |
//! | `match` | everything | flows that are received |
//! | `ring` | 2048 | entries of each ring, a power of two |
//! | `txbudget` | 64 | frames that one call may send |
//! | `sndbuf` | 4M | bytes that may be on their way out |
//! | `busypoll`, `busybudget` | off, 64 | run the driver's receive loop from here, so long (`20us`, at most 1s) and for so many frames |
//! | `promisc` | on | receive frames for any address |
//! | `stall` | 1s | see above; at least 10ms |
//! | `selftest` | wake | `off`, `wake` or `frame` |
//! | `tx` | socket | `live`, `prefer-live`; `template` for `towpath gen`: see [`live`] |
//! | `burst` | 256 | frames that `tx=live` gathers for one call, at most 1024 |

mod abilities;
mod ask;
mod config;
mod either;
mod events;
mod fallback;
mod in_flight_table;
pub mod live;
mod metadata;
mod partial;
mod probe;
mod program;
mod queue;
mod rings;
mod rx;
#[cfg(test)]
mod tests;
mod timing;
mod tx;
mod umem;

pub use config::{Config, Partial, SelfTest, Transmit};
pub use either::XdpTx;
pub use rx::XdpRx;
pub use tx::SocketTx;

use super::kernel::link::LinkWatch;
use crate::uri::Want;
use abilities::{abilities, link, timestamps};
use events::{Events, Watch};
use live::{Live, LiveTx};
use probe::Found;
use queue::{Attached, Queue, Setup, halves, patiently};
use std::sync::{Arc, Mutex};
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, Info, Layer, Port, PortControl, PortError, Queues, Start, TxLinear};
#[cfg(doc)]
use towpath_packet::{DropReason, port::State};
use towpath_sys::bpf::Hook;
use towpath_sys::netdev::Control;
use towpath_sys::netdev_genl::{Device, Features};
use towpath_sys::{af_packet, netns};
use umem::Frames;

/// TCP super-packets, as a stack leaves them to a device.
const SEGMENTS: Offloads = Offloads::TSO4.with(Offloads::TSO6);

/// An interface with our program on it, examined.
#[derive(Debug)]
pub struct XdpPort {
    info: Info,
    config: Config,
    control: Arc<Control>,
    index: i32,
    found: Box<Found>,
    attached: Attached,
    /// Whether received frames are looked at for what their sender left undone.
    notes: bool,
    /// Whether sent packets are timed.
    timed: bool,
    live: Option<Live>,
    events: Arc<Events>,
}

/// Attaches the program and finds out how sockets can be bound. Nothing is received yet.
///
/// # Errors
/// [`PortError::Option`] for a value that breaks a rule, [`PortError::Os`] for a step that the kernel refused, with what would
/// mend it (another program is attached, the queue is taken, the interface is down), [`PortError::Input`] for an interface
/// that is no Ethernet, [`PortError::Required`] for an ability that is required and not there.
pub fn open(config: Config) -> Result<XdpPort, PortError> {
    config.check()?;
    let netns = config.netns.clone();
    netns::within(netns.as_deref(), || examine(config.clone())).map_err(ask::namespace(&config))?
}

fn examine(config: Config) -> Result<XdpPort, PortError> {
    let failed = |step: &'static str| ask::os(&config, step);
    let port = config.port();
    let name = &config.interface;
    let control = Control::new().map_err(failed("socket"))?;
    let index = control.index(name).map_err(failed("find the interface"))?;
    let hardware = control.hardware(name).map_err(failed("SIOCGIFHWADDR"))?;
    if !matches!(hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
        let what = format!("the interface carries no Ethernet (hardware type {hardware}): packet: takes it");
        return Err(PortError::Input { port, what });
    }
    let mtu = control.mtu(name).map_err(failed("SIOCGIFMTU"))?;
    let mac = control.mac(name).map_err(failed("SIOCGIFHWADDR"))?;
    let driver = control.driver(name).unwrap_or_default();
    ask::queues(&config, &control)?;
    let device = Device::new(index).map_err(failed("socket(AF_NETLINK)"))?;
    let said = device.features().ok();
    let busy_poll = probe::busy_poll(&config)?;
    let on = probe::attach(&config, index)?;
    let found = probe::probe(&config, index, mtu, mac, &on, said)?;
    let promiscuous = if config.promiscuous {
        let socket = af_packet::Socket::new().map_err(failed("socket(AF_PACKET)"))?;
        socket.promiscuous(index).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
        Some(socket)
    } else {
        None
    };
    let notes = match config.partial {
        Partial::Auto => driver == "veth",
        Partial::On => true,
        Partial::Off => false,
    };
    let (live, transmit) = transmit(&config, index, &driver, said)?;
    let metadata = found.metadata.is_ok()
        && config.csum != Want::Off
        && (!found.zero_copy() || said.is_some_and(Features::checksums));
    let rx_offloads = match (notes, found.hook) {
        (false, _) => Offloads::NONE,
        (true, Hook::Native) => Offloads::CSUM,
        (true, Hook::Generic) => Offloads::CSUM.with(SEGMENTS),
    };
    let mut abilities = abilities(&config, &found, said, notes, mtu)?;
    abilities.insert(0, link(&config, control.link(index)));
    abilities.push(Ability { name: "busypoll", on: true, why: busy_poll.into(), mend: None });
    let timed = live.is_none() && config.timestamps != Want::Off && timestamps(&found, said).is_ok();
    abilities.push(transmit);
    let info = Info {
        name: port,
        layer: Layer::Ethernet,
        mtu,
        tx_linear: TxLinear::None,
        headroom: if (metadata || timed) && live.is_none() { metadata::LEN as u16 } else { 0 },
        tailroom: 0,
        max_chunks: found.pieces,
        tx_offloads: if metadata && live.is_none() { Offloads::CSUM } else { Offloads::NONE },
        rx_offloads,
        max_queues: config.queues,
        finite: false,
        abilities,
    };
    let attachment = Mutex::new((found.hook, Some(on.link)));
    let attached = Attached { map: on.map, link: attachment, program: on.program, _promiscuous: promiscuous };
    let (control, events, found) = (Arc::new(control), Arc::default(), Box::new(found));
    Ok(XdpPort { info, config, control, index, found, attached, notes, timed, live, events })
}

/// How packets are sent: the program for it, tried out, if that is as frames of one.
fn transmit(
    config: &Config,
    index: i32,
    driver: &str,
    said: Option<Features>,
) -> Result<(Option<Live>, Ability), PortError> {
    let (possible, mend) = (live::possible(said), live::mend(driver));
    let made = match config.transmit {
        Transmit::Socket => {
            let why = match possible {
                Ok(()) => "through the socket; tx=live is to be had".to_owned(),
                Err(why) => format!("through the socket; tx=live is not to be had: {why}; to mend it, {mend}"),
            };
            return Ok((None, Ability { name: "tx", on: true, why: why.into(), mend: None }));
        }
        Transmit::Template => {
            return Err(config.error(
                "tx",
                "template",
                "is for towpath gen, which then makes its frames in the kernel",
            ));
        }
        Transmit::Live | Transmit::PreferLive => {
            possible.and_then(|()| Live::new(config, index).map_err(|error| error.to_string()))
        }
    };
    let ability = |on, why: String| Ability { name: "tx", on, why: why.into(), mend: (!on).then(|| mend.to_owned()) };
    match made {
        Ok(live) => Ok((Some(live), ability(true, "as frames of a program".to_owned()))),
        Err(why) if config.transmit == Transmit::Live => Err(config.error("tx", "live", format!("{why} ({mend})"))),
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
        Some(Arc::new(Watch(self.events.clone())))
    }

    fn start(self, start: Start) -> Result<Queues<XdpRx, XdpTx>, PortError> {
        let XdpPort { info, config, control, index, found, attached, notes, timed, live, events } = self;
        info.queues(start.queues)?;
        let mut lives = Vec::new();
        if let Some(first) = live {
            lives.push(first);
            for _ in 1..start.queues {
                lives.push(Live::new(&config, index)?);
            }
        }
        let mut lives = lives.into_iter();
        let metadata = found.metadata.clone().unwrap_or(0);
        let frames = Frames::new(&config, &start.pool, info.mtu, metadata)?;
        let first = u32::from(config.queue);
        let setup =
            Arc::new(Setup { config, index, flags: found.flags, attached, frames, queues: start.queues, events });
        let watch = || LinkWatch::new(control.clone(), index);
        let mtu = notes.then_some(info.mtu as usize);
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        let mut shared = None;
        for number in first..first + u32::from(start.queues) {
            let failed = |source| ask::bind_failed(&setup.config, number, source);
            let (socket, rings) = setup.open(shared.as_deref()).map_err(failed)?;
            let socket = Arc::new(socket);
            let queue = Arc::new(Queue::new(setup.clone(), number, socket.clone()));
            let (rx_rings, tx_rings) = halves(&socket, rings);
            // The FILL ring has buffers before the driver looks at it.
            rx.push(XdpRx::new(queue.clone(), rx_rings, mtu, watch())?);
            tx.push(match lives.next() {
                None => XdpTx::Socket(Box::new(SocketTx::new(queue, tx_rings, &info, timed, watch(), &start.pool)?)),
                Some(live) => {
                    drop(tx_rings);
                    queue.leave(std::iter::empty(), false);
                    let config = &setup.config;
                    let device = || Device::new(index);
                    let device = netns::within(config.netns.as_deref(), device).and_then(|made| made);
                    let device = device.map_err(ask::os(config, "socket(AF_NETLINK)"))?;
                    let link = (control.clone(), index);
                    XdpTx::Live(Box::new(LiveTx::new(live, &info, config.burst, device, link, &start.pool)?))
                }
            });
            patiently(|| setup.bind(&socket, number, setup.flags, shared.as_deref())).map_err(failed)?;
            shared.get_or_insert(socket);
        }
        Ok(Queues { rx, tx })
    }
}
