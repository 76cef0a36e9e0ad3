//! Socket addresses as the bytes of `sockaddr_in` and `sockaddr_in6`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of a `sockaddr_in`.
const V4: usize = size_of::<libc::sockaddr_in>();
/// Bytes of a `sockaddr_in6`, the longer one.
const V6: usize = size_of::<libc::sockaddr_in6>();

/// Room for an address of either family, aligned as both.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(super) struct Name(pub(super) [u8; V6]);

impl Name {
    pub(super) const EMPTY: Name = Name([0; V6]);

    /// Writes an address, IPv4 as a mapped one for an IPv6 socket; returns its length.
    pub(super) fn write(&mut self, address: &SocketAddr, v6: bool) -> usize {
        let (family, len) = match address {
            SocketAddr::V4(_) if !v6 => (libc::AF_INET, V4),
            _ => (libc::AF_INET6, V6),
        };
        self.0 = [0; V6];
        self.0[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        self.0[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) if !v6 => self.0[4..8].copy_from_slice(&v4.ip().octets()),
            SocketAddr::V4(v4) => self.0[8..24].copy_from_slice(&v4.ip().to_ipv6_mapped().octets()),
            SocketAddr::V6(v6) => {
                self.0[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                self.0[8..24].copy_from_slice(&v6.ip().octets());
                self.0[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        len
    }

    /// The address in the first `len` bytes, a mapped one as IPv4; `None` for another family or
    /// too few bytes.
    pub(super) fn read(&self, len: usize) -> Option<SocketAddr> {
        let bytes = self.0.get(..len)?;
        let family = libc::c_int::from(u16::from_ne_bytes(array(bytes, 0)?));
        let port = u16::from_be_bytes(array(bytes, 2)?);
        if family == libc::AF_INET {
            return Some((array::<4>(bytes, 4)?, port).into());
        }
        if family != libc::AF_INET6 {
            return None;
        }
        let address = Ipv6Addr::from(array::<16>(bytes, 8)?);
        if let IpAddr::V4(mapped) = address.to_canonical() {
            return Some((mapped, port).into());
        }
        let flow = u32::from_be_bytes(array(bytes, 4)?);
        let scope = u32::from_ne_bytes(array(bytes, 24)?);
        Some(SocketAddrV6::new(address, port, flow, scope).into())
    }
}

/// The `N` bytes at an offset, if there are as many.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_written_is_read_again_on_sockets_of_both_families() {
        let mut name = Name::EMPTY;
        for text in ["192.0.2.7:5000", "[2001:db8::1]:443"] {
            let address = text.parse().unwrap();
            let len = name.write(&address, true);
            assert_eq!(name.read(len), Some(address));
        }
        let link = SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 5, 3).into();
        let len = name.write(&link, true);
        assert_eq!(name.read(len), Some(link));
        let v4 = "192.0.2.7:5000".parse().unwrap();
        let len = name.write(&v4, false);
        assert_eq!((len, name.read(len)), (16, Some(v4)));
    }

    #[test]
    fn an_address_of_another_family_or_with_bytes_missing_is_none() {
        let mut name = Name::EMPTY;
        let len = name.write(&"[2001:db8::1]:443".parse().unwrap(), true);
        assert!((0..len).all(|len| name.read(len).is_none()));
        assert_eq!(name.read(V6 + 1), None);
        name.0[0] = libc::AF_UNIX as u8;
        assert_eq!(name.read(len), None);
    }
}
