//! The description of a port: what it is, what it can do, and what it needs of the packets that it
//! sends.

use super::PortError;
use crate::offload::Offloads;
use crate::packet::MAX_CHUNKS;
use crate::pool::PoolConfig;
use crate::region::Backing;
use std::borrow::Cow;
use towpath_wire::offload::LinkKind;

/// What the first bytes of a port's packets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
    /// Anything: the port does not parse packets.
    Any,
}

impl Layer {
    /// Whether packets of one can be sent through the other.
    pub fn fits(self, other: Layer) -> bool {
        self == other || self == Layer::Any || other == Layer::Any
    }
}

impl From<Layer> for LinkKind {
    /// [`Layer::Any`] counts as Ethernet.
    #[inline]
    fn from(layer: Layer) -> LinkKind {
        if layer == Layer::Ip { LinkKind::Ip } else { LinkKind::Ethernet }
    }
}

/// How much of a packet must be in the linear part when a port sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TxLinear {
    /// Nothing: all bytes may be in fragments.
    #[default]
    None,
    /// This many of the first bytes, or the whole packet if it is shorter.
    Header(u16),
    /// The whole packet.
    Whole,
}

/// The layout of packets that an egress sends without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxLayout {
    /// What must be linear.
    pub linear: TxLinear,
    /// Bytes in front of the packet, for headers of the port.
    pub headroom: u16,
    /// Bytes behind the packet that the port uses.
    pub tailroom: u16,
}

/// An ability of a port: whether it is in use, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ability {
    /// Its name, as in the port's options.
    pub name: &'static str,
    /// Whether it is in use.
    pub on: bool,
    /// What the probe found, in a few words.
    pub why: Cow<'static, str>,
    /// The command that turns it on, if there is one.
    pub hint: Option<String>,
}

impl Ability {
    /// The name of the ability of an interface whose link is up.
    pub const LINK: &'static str = "link";

    /// An ability without a command that turns it on.
    pub fn new(name: &'static str, on: bool, why: impl Into<Cow<'static, str>>) -> Ability {
        Ability { name, on, why: why.into(), hint: None }
    }

    /// With the command that turns it on.
    #[must_use]
    pub fn with_hint(self, hint: Option<String>) -> Ability {
        Ability { hint, ..self }
    }
}

/// The interface of the kernel behind a port, as it was when the port was opened.
///
/// A slave of a bond sends under the address of its [`master`](Interface::master): routes and
/// neighbours are the master's, and most modes give the slave the master's address. A transmitter
/// on a slave takes source addresses and next hops from the master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its name as such: `eth0`.
    pub name: String,
    /// Its index in its network namespace.
    pub index: u32,
    /// Its hardware address; `None` for an interface without Ethernet headers.
    pub mac: Option<[u8; 6]>,
    /// Its driver, as `ethtool -i` shows it; empty if it has none that is known.
    pub driver: String,
    /// Its queues, as `ethtool -l` shows them: the larger number of both directions; `None` if the
    /// driver reports none.
    pub queues: Option<u32>,
    /// The interface that it is a part of: a bond, a bridge.
    pub master: Option<Box<Interface>>,
    /// Of a bond: the slave that sends, in modes with one active slave. Zero copy is possible
    /// there.
    pub active_slave: Option<String>,
}

impl Interface {
    /// An interface of which no more is known.
    pub fn new(name: impl Into<String>, index: u32) -> Interface {
        Interface {
            name: name.into(),
            index,
            mac: None,
            driver: String::new(),
            queues: None,
            master: None,
            active_slave: None,
        }
    }

    /// The address that its frames are sent from: that of its master, if it has one.
    pub fn source_mac(&self) -> Option<[u8; 6]> {
        self.master.as_ref().and_then(|master| master.mac).or(self.mac)
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// How far apart the chunks of a pool should lie for a port.
///
/// At a distance that is a multiple of 2048 bytes, the headers of all packets share two of the 64
/// sets of a first-level cache. They leave it early, at this side and at the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Spacing {
    /// Any distance will do.
    #[default]
    Any,
    /// Not at a multiple of 2048 bytes: its other side is a process, which works on many of them.
    Spread,
    /// At a power of two: a device finds chunks page by page, and one that crosses pages costs it
    /// two look-ups, or is refused.
    InPages,
}

impl PoolConfig {
    /// With the memory and the chunks that ports wish for which have a pool of it in common: a
    /// memfd, if another process maps it, and chunks that are a line longer, where [`Spacing`]
    /// gains by it.
    ///
    /// ```
    /// use towpath_packet::port::{Info, Layer, Spacing};
    /// use towpath_packet::{Backing, PoolConfig};
    ///
    /// let port = |name| Info::new(name, Layer::Ethernet, 1500);
    /// let vm = port("vhost:/run/vm0.sock").with_spacing(Spacing::Spread);
    /// let nic = port("e1000e:vfio=0000:05:00.0").with_spacing(Spacing::InPages);
    /// let pool = PoolConfig::default();
    /// assert_eq!(pool.for_ports([&vm]).chunk, 2112);
    /// assert_eq!(pool.for_ports([&vm, &nic]).chunk, 2048);
    ///
    /// let back_end = port("virtio:user=/run/vhost.sock").with_shared_memory(true);
    /// assert_eq!(pool.for_ports([&nic, &back_end]).backing, Backing::Memfd);
    /// ```
    #[must_use]
    pub fn for_ports<'a>(mut self, ports: impl IntoIterator<Item = &'a Info>) -> PoolConfig {
        let (mut spread, mut in_pages) = (false, false);
        for info in ports {
            spread |= info.spacing == Spacing::Spread;
            in_pages |= info.spacing == Spacing::InPages;
            if info.shares_memory {
                self.backing = Backing::Memfd;
            }
        }
        if spread && !in_pages && self.chunk.is_multiple_of(2048) {
            self.chunk += LINE;
        }
        self
    }
}

/// What a port is and can do, as the probe found when the port was opened.
///
/// ```
/// use towpath_packet::Offloads;
/// use towpath_packet::port::{Info, Layer};
///
/// let info = Info::new("tap:tp0", Layer::Ethernet, 1500)
///     .with_offloads(Offloads::CSUM, Offloads::NONE)
///     .with_max_queues(4);
/// assert!(info.queues(4).is_ok() && info.queues(5).is_err());
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Info {
    /// Its address: `tap:tp0`.
    pub name: String,
    /// What its packets begin with.
    pub layer: Layer,
    /// Length of the longest packet that is not a super-packet, from the first byte of the layer's
    /// payload: the MTU as Linux defines it, without an Ethernet header and VLAN tags.
    pub mtu: u32,
    /// The layout of the packets that it sends without a copy.
    pub tx_layout: TxLayout,
    /// Contiguous pieces that it can send as one packet.
    pub max_chunks: u16,
    /// Offloads of its transmit queues.
    pub tx_offloads: Offloads,
    /// Offloads that packets of its receive queues may need, unless
    /// [restricted](super::RxQueue::set_rx_offloads).
    pub rx_offloads: Offloads,
    /// Largest number of queues in each direction.
    pub max_queues: u16,
    /// Whether it ends by itself (a file, a count).
    pub finite: bool,
    /// Whether another process moves its packets, and maps the memory that they lie in: a pool of
    /// [`Backing::Memfd`](crate::Backing::Memfd) spares it copies.
    pub shares_memory: bool,
    /// How far apart the chunks of a pool should lie for it.
    pub spacing: Spacing,
    /// What the probe found, for people.
    pub abilities: Vec<Ability>,
    /// The interface of the kernel that it is or uses, if there is one.
    pub interface: Option<Interface>,
    /// The network namespace of that interface, if it is not that of the process: a name, or a
    /// path.
    pub netns: Option<String>,
}

impl Info {
    /// A port with one queue in each direction, without offloads, that sends packets of any layout.
    pub fn new(name: impl Into<String>, layer: Layer, mtu: u32) -> Info {
        Info {
            name: name.into(),
            layer,
            mtu,
            tx_layout: TxLayout::default(),
            max_chunks: MAX_CHUNKS as u16,
            tx_offloads: Offloads::NONE,
            rx_offloads: Offloads::NONE,
            max_queues: 1,
            finite: false,
            shares_memory: false,
            spacing: Spacing::Any,
            abilities: Vec::new(),
            interface: None,
            netns: None,
        }
    }

    /// With the network namespace of its interface.
    #[must_use]
    pub fn with_netns(self, netns: Option<String>) -> Info {
        Info { netns, ..self }
    }

    /// With a layout that it needs.
    #[must_use]
    pub fn with_tx_layout(self, tx_layout: TxLayout) -> Info {
        Info { tx_layout, ..self }
    }

    /// With a limit on the pieces of a packet.
    #[must_use]
    pub fn with_max_chunks(self, max_chunks: u16) -> Info {
        Info { max_chunks, ..self }
    }

    /// With offloads.
    #[must_use]
    pub fn with_offloads(self, tx_offloads: Offloads, rx_offloads: Offloads) -> Info {
        Info { tx_offloads, rx_offloads, ..self }
    }

    /// With several queues.
    #[must_use]
    pub fn with_max_queues(self, max_queues: u16) -> Info {
        Info { max_queues, ..self }
    }

    /// With an end of its own, or without.
    #[must_use]
    pub fn with_finite(self, finite: bool) -> Info {
        Info { finite, ..self }
    }

    /// With packets in memory that another process maps, or without.
    #[must_use]
    pub fn with_shared_memory(self, shares_memory: bool) -> Info {
        Info { shares_memory, ..self }
    }

    /// With a wish for the distance between chunks.
    #[must_use]
    pub fn with_spacing(self, spacing: Spacing) -> Info {
        Info { spacing, ..self }
    }

    /// With what the probe found.
    #[must_use]
    pub fn with_abilities(self, abilities: Vec<Ability>) -> Info {
        Info { abilities, ..self }
    }

    /// With the interface of the kernel behind it.
    #[must_use]
    pub fn with_interface(self, interface: Option<Interface>) -> Info {
        Info { interface, ..self }
    }

    /// Checks a number of queues.
    ///
    /// # Errors
    /// [`PortError::Option`] for zero, and for more than [`max_queues`](Self::max_queues).
    pub fn queues(&self, queues: u16) -> Result<u16, PortError> {
        if (1..=self.max_queues).contains(&queues) {
            return Ok(queues);
        }
        Err(PortError::Option {
            port: self.name.clone(),
            option: "queues".to_owned(),
            value: queues.to_string(),
            rule: format!("must be from 1 to {}", self.max_queues),
        })
    }
}
