//! Writes headers: the other side of the dissector, for generators, replies and tests.
//!
//! [`Headers`] describes the headers. [`Headers::write`] writes them before a payload in place;
//! [`Headers::emit`] also copies the payload there, and sums it in the same pass. A [`Template`]
//! holds the headers of one destination, with a [`Tunnel`], for many datagrams.
//!
//! ```
//! use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Transport, Udp};
//! let headers = Headers {
//!     link: Some(Link::default()),
//!     network: Network::Ip(
//!         Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]),
//!         Transport::Udp(Udp { src_port: 5000, dst_port: 53 }),
//!     ),
//! };
//! let mut buffer = [0; 1514];
//! let len = headers.emit(&mut buffer, b"hello", Checksums::Complete)?;
//! assert_eq!(len, 14 + 20 + 8 + 5);
//! # Ok::<(), towpath_wire::Error>(())
//! ```
//!
//! | file | |
//! |---|---|
//! | `network` | ARP and IP headers |
//! | `transport` | TCP, UDP and ICMP echo headers |
//! | `template` | [`Template`]: the headers of one destination, computed once |

mod network;
mod template;
mod transport;

pub use crate::offload::Checksums;
pub use network::{Arp, Ip, IpAddresses};
pub use template::{Template, Tunnel, UdpChecksum};
pub use transport::{Echo, Tcp, Transport, Udp, mss_and_window_scale, timestamps};

use crate::ethernet::{self, Mac, ethertype};
use crate::vlan::{self, Tag};
use crate::{Error, checksum};

/// The Ethernet header and its tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// Tags, the outer first; a TPID of 0 means no tag.
    pub tags: [Tag; 2],
}

impl Link {
    fn tags(&self) -> impl Iterator<Item = Tag> {
        self.tags.into_iter().filter(|tag| tag.tpid != 0)
    }

    /// Length of the header with its tags.
    #[must_use]
    pub fn header_len(&self) -> usize {
        ethernet::HEADER_LEN + self.tags().count() * vlan::HEADER_LEN
    }

    /// Writes the header, returns the bytes after it.
    fn write<'a>(&self, frame: &'a mut [u8], ethertype: u16) -> Result<&'a mut [u8], Error> {
        let (mut header, mut rest) = ethernet::Header::split_mut(frame)?;
        header.set_dst(self.dst);
        header.set_src(self.src);
        header.set_ethertype(self.tags().next().map_or(ethertype, |tag| tag.tpid));
        let mut tags = self.tags().peekable();
        while let Some(tag) = tags.next() {
            let (mut header, behind) = vlan::Header::split_mut(rest)?;
            header.set_tci(tag.tci.0);
            header.set_ethertype(tags.peek().map_or(ethertype, |inner| inner.tpid));
            rest = behind;
        }
        Ok(rest)
    }
}

/// The network layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network<'a> {
    /// An ARP message. What follows it in the frame is padding.
    Arp(Arp),
    /// An IP packet.
    Ip(Ip, Transport<'a>),
}

/// The headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers<'a> {
    /// `None` for a port that carries bare IP packets.
    pub link: Option<Link>,
    /// The network layer.
    pub network: Network<'a>,
}

#[allow(clippy::len_without_is_empty, reason = "there is always a network header")]
impl Headers<'_> {
    /// Where the transport header begins: the `start` of a partial checksum. For ARP, its end.
    #[must_use]
    pub fn transport_offset(&self) -> usize {
        let network = match &self.network {
            Network::Arp(_) => crate::arp::HEADER_LEN,
            Network::Ip(ip, _) => ip.header_len(),
        };
        self.link.map_or(0, |link| link.header_len()) + network
    }

    /// Length of all headers: where the payload belongs.
    #[must_use]
    pub fn len(&self) -> usize {
        let transport = match &self.network {
            Network::Arp(_) => 0,
            Network::Ip(_, transport) => transport.header_len(),
        };
        self.transport_offset() + transport
    }

    /// Writes the headers to the beginning of `frame`, whose bytes from [`len`](Self::len) to the
    /// end are the payload.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the frame is shorter than the headers, [`Error::Length`] if it is
    /// longer than an IP length field permits, [`Error::HeaderLength`] for more than 40 bytes of
    /// TCP options.
    #[inline]
    pub fn write(&self, frame: &mut [u8], checksums: Checksums) -> Result<(), Error> {
        let payload = frame.get(self.len()..).ok_or(Error::Truncated)?;
        let sum = match checksums {
            Checksums::Complete => checksum::sum(payload),
            Checksums::Partial if self.is_icmp_v4() => checksum::sum(payload),
            Checksums::Partial => 0,
        };
        self.write_summed(frame, sum, checksums)
    }

    /// Writes the headers and the payload to the beginning of `buffer` and returns the length of
    /// the frame.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn emit(&self, buffer: &mut [u8], payload: &[u8], checksums: Checksums) -> Result<usize, Error> {
        let len = self.len() + payload.len();
        let frame = buffer.get_mut(..len).ok_or(Error::Truncated)?;
        let target = frame.get_mut(self.len()..).ok_or(Error::Truncated)?;
        let sum = checksum::copy(target, payload);
        self.write_summed(frame, sum, checksums)?;
        Ok(len)
    }

    fn is_icmp_v4(&self) -> bool {
        matches!(&self.network, Network::Ip(ip, Transport::Echo(_)) if ip.is_v4())
    }

    /// Writes the headers before a payload with the given sum.
    fn write_summed(&self, frame: &mut [u8], payload: u16, checksums: Checksums) -> Result<(), Error> {
        let ethertype = match &self.network {
            Network::Arp(_) => ethertype::ARP,
            Network::Ip(ip, _) if ip.is_v4() => ethertype::IPV4,
            Network::Ip(..) => ethertype::IPV6,
        };
        let packet = match &self.link {
            Some(link) => link.write(frame, ethertype)?,
            None => frame,
        };
        match &self.network {
            Network::Arp(arp) => arp.write(packet),
            Network::Ip(ip, transport) => {
                let protocol = transport.protocol(ip.is_v4());
                let segment = ip.write(packet, protocol)?;
                let pseudo = match (ip.is_v4(), transport) {
                    (true, Transport::Echo(_)) => None,
                    _ => Some(ip.pseudo_sum(protocol, segment.len() as u32)),
                };
                transport.write(segment, ip.is_v4(), pseudo, payload, checksums)
            }
        }
    }
}
