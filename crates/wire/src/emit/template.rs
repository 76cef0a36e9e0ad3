//! The headers of one destination, computed once and copied in front of each payload.
//!
//! ```text
//!   Link │ Tunnel                          │ Ip │ Udp │ payload
//!        │ IP in IP: Ip                    │
//!        │ GRE:      Ip, Gre (key)         │
//!        │ VXLAN:    Ip, Udp, Vxlan, Link  │
//! ```
//!
//! Only lengths, the checksums of IPv4 headers and, if there is one, that of UDP depend on the
//! payload.

use super::{Ip, Link, Udp};
use crate::ethernet::ethertype;
use crate::ip::protocol;
use crate::{Error, checksum, ethernet, gre, ipv4, ipv6, udp, vlan, vxlan};

/// Headers that carry a packet of another address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// IP in IP: IPv4 in IPv4 ([RFC 2003](https://www.rfc-editor.org/rfc/rfc2003)), IPv6 in IPv4
    /// ([RFC 4213](https://www.rfc-editor.org/rfc/rfc4213)), any in IPv6
    /// ([RFC 2473](https://www.rfc-editor.org/rfc/rfc2473)).
    IpIp {
        /// The outer header.
        ip: Ip,
    },
    /// GRE ([RFC 2784](https://www.rfc-editor.org/rfc/rfc2784)).
    Gre {
        /// The outer header.
        ip: Ip,
        /// The key ([RFC 2890](https://www.rfc-editor.org/rfc/rfc2890)).
        key: Option<u32>,
    },
    /// VXLAN ([RFC 7348](https://www.rfc-editor.org/rfc/rfc7348)), without an outer UDP checksum.
    Vxlan {
        /// The outer header.
        ip: Ip,
        /// The outer ports.
        udp: Udp,
        /// Network identifier, 24 bits.
        vni: u32,
        /// The Ethernet header inside.
        inner: Link,
    },
}

impl Tunnel {
    /// The outer IP header.
    #[must_use]
    pub const fn ip(&self) -> &Ip {
        match self {
            Tunnel::IpIp { ip } | Tunnel::Gre { ip, .. } | Tunnel::Vxlan { ip, .. } => ip,
        }
    }

    /// Length of all headers of the tunnel.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.ip().header_len()
            + match self {
                Tunnel::IpIp { .. } => 0,
                Tunnel::Gre { key, .. } => gre::HEADER_LEN + if key.is_some() { 4 } else { 0 },
                Tunnel::Vxlan { inner, .. } => udp::HEADER_LEN + vxlan::HEADER_LEN + inner.header_len(),
            }
    }
}

/// Whether datagrams have a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UdpChecksum {
    /// The sum over the payload.
    #[default]
    Full,
    /// None: the field is 0 ([RFC 768](https://www.rfc-editor.org/rfc/rfc768)). IPv4 only.
    None,
}

/// Longest headers: tagged twice, VXLAN over IPv6, tagged twice, UDP over IPv6.
const MAX_LEN: usize =
    2 * (ethernet::HEADER_LEN + 2 * vlan::HEADER_LEN) + 2 * (ipv6::HEADER_LEN + udp::HEADER_LEN) + vxlan::HEADER_LEN;

/// An IP header in a template, and the UDP header behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layer {
    ip: u8,
    is_v4: bool,
    /// Where the UDP header is.
    udp: Option<u8>,
}

/// The headers of UDP datagrams to one destination.
///
/// ```
/// use towpath_wire::emit::{Ip, Link, Template, Udp, UdpChecksum};
///
/// let ip = Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]);
/// let udp = Udp { src_port: 5000, dst_port: 8001 };
/// let template = Template::udp(Some(Link::default()), None, ip, udp, UdpChecksum::None)?;
/// let mut frame = [0; 14 + 20 + 8 + 5];
/// frame[template.len()..].copy_from_slice(b"shred");
/// template.write(&mut frame)?;
/// assert_eq!(&frame[36..42], [0x1f, 0x41, 0, 13, 0, 0]);
/// # Ok::<(), towpath_wire::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    bytes: [u8; MAX_LEN],
    len: u8,
    outer: Option<Layer>,
    inner: Layer,
    checksum: UdpChecksum,
    /// The sum of the inner pseudo-header without its length.
    pseudo: u16,
}

#[allow(clippy::len_without_is_empty, reason = "there is always a UDP header")]
impl Template {
    /// The headers of datagrams from and to the ports of `udp`; without `link` for a port that
    /// carries bare IP packets.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for IPv6 without a checksum, which receivers drop
    /// ([RFC 8200](https://www.rfc-editor.org/rfc/rfc8200#section-8.1)).
    pub fn udp(
        link: Option<Link>,
        tunnel: Option<Tunnel>,
        ip: Ip,
        udp: Udp,
        checksum: UdpChecksum,
    ) -> Result<Template, Error> {
        if !ip.is_v4() && checksum == UdpChecksum::None {
            return Err(Error::Unsupported);
        }
        let ethertype = |ip: &Ip| if ip.is_v4() { ethertype::IPV4 } else { ethertype::IPV6 };
        let mut bytes = [0; MAX_LEN];
        let mut rest = &mut bytes[..];
        if let Some(link) = link {
            rest = link.write(rest, ethertype(tunnel.as_ref().map_or(&ip, Tunnel::ip)))?;
        }
        let mut outer = None;
        if let Some(tunnel) = &tunnel {
            let at = MAX_LEN - rest.len();
            let layer = |udp| Some(Layer { ip: at as u8, is_v4: tunnel.ip().is_v4(), udp });
            outer = layer(None);
            match tunnel {
                Tunnel::IpIp { ip: outer } => {
                    let protocol = if ip.is_v4() { protocol::IPV4 } else { protocol::IPV6 };
                    rest = outer.write(rest, protocol)?;
                }
                Tunnel::Gre { ip: outer, key } => {
                    let (mut header, after) = gre::Header::split_mut(outer.write(rest, protocol::GRE)?)?;
                    header.set_flags(if key.is_some() { gre::FLAG_KEY } else { 0 });
                    header.set_protocol(ethertype(&ip));
                    rest = after;
                    if let Some(key) = key {
                        let (field, after) = rest.split_first_chunk_mut().ok_or(Error::Truncated)?;
                        *field = key.to_be_bytes();
                        rest = after;
                    }
                }
                Tunnel::Vxlan { ip: outer_ip, udp, vni, inner } => {
                    rest = outer_ip.write(rest, protocol::UDP)?;
                    outer = layer(Some((MAX_LEN - rest.len()) as u8));
                    rest = udp.write_ports(rest)?;
                    let (mut header, after) = vxlan::Header::split_mut(rest)?;
                    header.set_flags(vxlan::FLAG_VNI);
                    header.set_vni(*vni);
                    rest = inner.write(after, ethertype(&ip))?;
                }
            }
        }
        let at = (MAX_LEN - rest.len()) as u8;
        rest = ip.write(rest, protocol::UDP)?;
        let inner = Layer { ip: at, is_v4: ip.is_v4(), udp: Some((MAX_LEN - rest.len()) as u8) };
        rest = udp.write_ports(rest)?;
        let len = (MAX_LEN - rest.len()) as u8;
        Ok(Template { bytes, len, outer, inner, checksum, pseudo: ip.pseudo_sum(protocol::UDP, 0) })
    }

    /// Length of all headers: the room to leave in front of a payload.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Writes the headers to the beginning of `frame`, whose bytes from [`len`](Self::len) to the
    /// end are the payload.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the frame is shorter than the headers, [`Error::Length`] if it is
    /// longer than a length field permits.
    #[inline]
    pub fn write(&self, frame: &mut [u8]) -> Result<(), Error> {
        let headers = self.bytes.get(..self.len()).ok_or(Error::Truncated)?;
        frame.get_mut(..self.len()).ok_or(Error::Truncated)?.copy_from_slice(headers);
        if let Some(outer) = &self.outer {
            outer.set_lengths(frame)?;
        }
        self.inner.set_lengths(frame)?;
        if self.checksum == UdpChecksum::Full {
            let datagram = frame.get_mut(usize::from(self.inner.udp.unwrap_or_default())..).ok_or(Error::Truncated)?;
            // The length is in the pseudo-header, and in the header whose sum is added.
            let length = u16::try_from(datagram.len()).map_err(|_| Error::Length)?;
            let pseudo = checksum::add(self.pseudo, checksum::sum(&length.to_be_bytes()));
            let check = checksum::finish(checksum::add(pseudo, checksum::sum(datagram)));
            let (mut header, _) = udp::Header::split_mut(datagram)?;
            header.set_checksum(if check == 0 { 0xffff } else { check });
        }
        Ok(())
    }
}

impl Layer {
    /// Sets the lengths of a packet that ends with `frame`.
    #[inline]
    fn set_lengths(&self, frame: &mut [u8]) -> Result<(), Error> {
        let packet = frame.get_mut(usize::from(self.ip)..).ok_or(Error::Truncated)?;
        let length = |len: usize| u16::try_from(len).map_err(|_| Error::Length);
        let len = packet.len();
        if self.is_v4 {
            let (mut header, _) = ipv4::Header::split_mut(packet)?;
            header.set_total_len(length(len)?);
            header.fill_checksum();
        } else {
            let (mut header, rest) = ipv6::Header::split_mut(packet)?;
            header.set_payload_len(length(rest.len())?);
        }
        if let Some(at) = self.udp {
            let datagram = frame.get_mut(usize::from(at)..).ok_or(Error::Truncated)?;
            let len = datagram.len();
            udp::Header::split_mut(datagram)?.0.set_length(length(len)?);
        }
        Ok(())
    }
}
