//! Addresses, ports and protocols, with the words in front of them.

use super::FilterError;
use super::ast::{Dir, Primitive, Proto};
use super::lex::Kind;
use super::names::{self, Over};
use super::parse::{KEYWORDS, Parser};
use std::net::{Ipv4Addr, Ipv6Addr};
use towpath_wire::ip::protocol;

/// What an address or number is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    Default,
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

/// The qualifiers of an address or number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Qualifiers {
    pub(super) proto: Option<Proto>,
    pub(super) dir: Dir,
    pub(super) address: Address,
}

impl Parser<'_> {
    pub(super) fn value(&mut self, q: Qualifiers) -> Result<Primitive, FilterError> {
        match q.address {
            Address::Port => self.ports(q, false),
            Address::PortRange => self.ports(q, true),
            Address::Proto => self.protocol(q.proto),
            Address::Host | Address::Net | Address::Default => self.host(q),
        }
    }

    fn host(&mut self, q: Qualifiers) -> Result<Primitive, FilterError> {
        let net = q.address == Address::Net;
        let kind = self.peek().kind.clone();
        if let (Kind::Mac(mac), Some(Proto::Ether), false) = (&kind, q.proto, net) {
            let primitive = Primitive::Mac { dir: q.dir, mac: *mac };
            self.advance();
            return Ok(primitive);
        }
        let wrong = |parser: &Self, form: &str| {
            let name = q.proto.map_or("", Proto::word);
            Err(parser.error(format!("does not go with {name}, which takes {form}")))
        };
        match (&kind, q.proto) {
            (Kind::Mac(_), _) => return Err(self.error("is a MAC address: write ether host, ether src or ether dst")),
            (_, Some(Proto::Ether)) => return wrong(self, "a MAC address"),
            (Kind::V6(_), Some(Proto::Ip | Proto::Arp | Proto::Rarp)) => return wrong(self, "an IPv4 address"),
            (Kind::V4(..) | Kind::Number(_), Some(Proto::Ip6)) => return wrong(self, "an IPv6 address"),
            (_, Some(Proto::Ip | Proto::Ip6 | Proto::Arp | Proto::Rarp) | None) => {}
            (_, Some(proto)) => {
                return Err(self.error(format!(
                    "is an address, and {name} has none: write {name} and host …",
                    name = proto.word()
                )));
            }
        }
        match kind {
            Kind::V4(address, bits) => {
                let whole = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                self.advance();
                let mask = if self.is_sign("/") {
                    self.advance();
                    let Kind::Number(len @ 0..=32) = self.peek().kind else {
                        return Err(self.unexpected("a prefix length from 0 to 32"));
                    };
                    Some(u32::MAX.checked_shl(32 - len).unwrap_or(0))
                } else if self.word() == "mask" {
                    self.advance();
                    let Kind::V4(mask, _) = self.peek().kind else {
                        return Err(self.unexpected("a mask such as 255.255.255.0"));
                    };
                    Some(mask.to_bits())
                } else {
                    None
                };
                let address = address.to_bits();
                if let Some(mask) = mask {
                    if !net {
                        return Err(self.error("is a mask, which only net has: write net"));
                    }
                    if address & !mask != 0 {
                        let covering = Ipv4Addr::from_bits(address & mask);
                        return Err(self.error(format!("leaves bits of the address: the network is {covering}")));
                    }
                    self.advance();
                }
                Ok(Primitive::V4 { proto: q.proto, dir: q.dir, address, mask: mask.unwrap_or(whole) })
            }
            Kind::Number(number) => {
                self.advance();
                let zeros = if net && number != 0 { number.leading_zeros() / 8 * 8 } else { 0 };
                let mask = u32::MAX << zeros;
                Ok(Primitive::V4 { proto: q.proto, dir: q.dir, address: number << zeros, mask })
            }
            Kind::V6(address) => {
                self.advance();
                let mut mask = u128::MAX;
                if self.is_sign("/") {
                    self.advance();
                    let Kind::Number(len @ 0..=128) = self.peek().kind else {
                        return Err(self.unexpected("a prefix length from 0 to 128"));
                    };
                    mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
                    if !net && len != 128 {
                        return Err(self.error("is a prefix length, which only net has: write net"));
                    }
                    if address.to_bits() & !mask != 0 {
                        let covering = Ipv6Addr::from_bits(address.to_bits() & mask);
                        return Err(self.error(format!("leaves bits of the address: the network is {covering}/{len}")));
                    }
                    self.advance();
                }
                Ok(Primitive::V6 { dir: q.dir, address, mask })
            }
            Kind::Word | Kind::Name if !KEYWORDS.contains(&self.word()) && Proto::named(self.word()).is_none() => {
                let near = self.suggestion();
                Err(self.error(format!("is a name, and names are not resolved: write an address{near}")))
            }
            _ => Err(self.unexpected("an address")),
        }
    }

    fn ports(&mut self, q: Qualifiers, range: bool) -> Result<Primitive, FilterError> {
        let transport = match q.proto {
            None => None,
            Some(Proto::Tcp) => Some(protocol::TCP),
            Some(Proto::Udp) => Some(protocol::UDP),
            Some(Proto::Sctp) => Some(protocol::SCTP),
            Some(proto) => {
                let name = proto.word();
                return Err(self.error(format!("is a port, and {name} has none: only tcp, udp and sctp have")));
            }
        };
        let token = self.peek().clone();
        let (first, last, over) = match token.kind {
            Kind::Number(number) => {
                let port = self.port(u16::try_from(number).ok())?;
                (port, port, None)
            }
            Kind::Word | Kind::Name => {
                let word = self.text_of(&token).trim_start_matches('\\');
                match names::service(word) {
                    Some((port, over)) => (port, port, Some(over)),
                    None => self.port_range(word, range)?,
                }
            }
            _ => return Err(self.unexpected("a port")),
        };
        let transport = match (over, transport) {
            (Some(Over::Tcp), None | Some(protocol::TCP)) => Some(protocol::TCP),
            (Some(Over::Udp), None | Some(protocol::UDP)) => Some(protocol::UDP),
            (Some(Over::Tcp), _) => return Err(self.error("is a port of tcp")),
            (Some(Over::Udp), _) => return Err(self.error("is a port of udp")),
            (_, transport) => transport,
        };
        self.advance();
        let (first, last) = (first.min(last), first.max(last));
        Ok(Primitive::Port { transport, dir: q.dir, first, last })
    }

    fn port(&self, port: Option<u16>) -> Result<u16, FilterError> {
        port.ok_or_else(|| self.error("must be a port from 0 to 65535"))
    }

    fn port_range(&self, word: &str, range: bool) -> Result<(u16, u16, Option<Over>), FilterError> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let ends = word.split_once('-').filter(|(first, last)| digits(first) && digits(last));
        match ends {
            Some((first, last)) if range => Ok((self.port(first.parse().ok())?, self.port(last.parse().ok())?, None)),
            Some(_) => Err(self.error(format!("is a range: write portrange {word}"))),
            None if range => Err(self.error("must be a range of ports such as 1024-2047")),
            None => {
                let near = names::closest(word, names::services());
                let near = near.map(|near| format!("; is it {near}?")).unwrap_or_default();
                Err(self.error(format!("is no port that has a name here: write its number{near}")))
            }
        }
    }

    fn protocol(&mut self, over: Option<Proto>) -> Result<Primitive, FilterError> {
        if !matches!(over, None | Some(Proto::Ether | Proto::Ip | Proto::Ip6)) {
            let name = over.map_or("", Proto::word);
            return Err(self.error(format!("is a protocol inside of {name}: only ether, ip and ip6 have proto")));
        }
        let token = self.peek().clone();
        let name = self.text_of(&token).trim_start_matches('\\');
        let ether = over == Some(Proto::Ether);
        let number = match token.kind {
            Kind::Number(number) => Some(number),
            Kind::Word | Kind::Name if ether => names::ether_type(name).map(u32::from),
            Kind::Word | Kind::Name => names::ip_protocol(name).map(u32::from),
            _ => None,
        };
        let Some(number) = number else {
            return Err(self.unexpected(if ether {
                "a type such as 0x88cc or ip"
            } else {
                "a protocol, 0 to 255 or tcp"
            }));
        };
        self.advance();
        Ok(if ether { Primitive::EtherProto(number) } else { Primitive::IpProto { version: over, number } })
    }
}
