//! Expressions for ports that steer by rules: `match=` of a port, whose device or program takes
//! fields of packets and no expressions.
//!
//! An expression is expanded to alternatives, each a [`Match`]. The fields are those of the
//! [rules](crate::rules): tags in front of a type do not matter, fragments have no ports, and an
//! address is that of an IP packet and not of ARP.

use super::ast::{Dir, Expr, Primitive, Proto};
use super::{FilterError, parse};
use crate::rules::{Match, Prefix, Rule, RuleError, Span};
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::ethernet::ethertype;
use towpath_wire::ip::protocol;

/// Most alternatives of one expression.
const MAX_MATCHES: usize = 64;
const MEND: &str = "a port that steers takes host, net, port, portrange, protocols, ether, vlan N, and, or; give the rest to \
                    --rule or record --filter";

/// The flows that a text names: a rule without its verdict, or an expression.
///
/// ```
/// use towpath_engine::filter::steering_matches;
/// assert_eq!(steering_matches("udp dport 53")?, steering_matches("udp dst port 53")?);
/// assert_eq!(steering_matches("tcp port 80")?.len(), 2);
/// assert!(steering_matches("not udp").is_err());
/// # Ok::<(), towpath_engine::rules::RuleError>(())
/// ```
///
/// # Errors
/// [`RuleError`] names the part that no field expresses, and where it can be used.
pub fn steering_matches(text: &str) -> Result<Vec<Match>, RuleError> {
    let old = match format!("pass {text}").parse::<Rule>() {
        Ok(rule) => return Ok(vec![rule.matches]),
        Err(error) => RuleError { rule: text.to_owned(), ..error },
    };
    let expr = match parse::parse(text) {
        Ok(expr) => expr,
        Err(error) => return Err(super::list::likelier(text, old, error)),
    };
    let matches = alternatives(text, &expr).map_err(|error| super::list::as_rule_error(text, error))?;
    match matches.is_empty() {
        true => Err(RuleError { rule: text.to_owned(), word: None, problem: "never matches".into() }),
        false => Ok(matches),
    }
}

fn alternatives(text: &str, expr: &Expr) -> Result<Vec<Match>, FilterError> {
    let matches = match expr {
        Expr::Or(a, b) => {
            let mut all = alternatives(text, a)?;
            all.extend(alternatives(text, b)?);
            all
        }
        Expr::And(a, b) => {
            let (left, right) = (alternatives(text, a)?, alternatives(text, b)?);
            left.iter().flat_map(|left| right.iter().filter_map(|right| both(*left, *right))).collect()
        }
        Expr::Not(inner) => {
            let [from, to] = extent(inner);
            return Err(FilterError::at(text, from, to - from, format!("can't be negated here: {MEND}")));
        }
        Expr::Is(primitive, [from, to]) => of(primitive)
            .ok_or_else(|| FilterError::at(text, *from, to - from, format!("is no field of a rule: {MEND}")))?,
    };
    if matches.len() > MAX_MATCHES {
        return Err(FilterError::at(text, 0, 0, format!("names more than {MAX_MATCHES} flows: {MEND}")));
    }
    Ok(matches)
}

/// The bytes of the text that an expression is from.
fn extent(expr: &Expr) -> [usize; 2] {
    match expr {
        Expr::Is(_, extent) => *extent,
        Expr::Not(inner) => extent(inner),
        Expr::And(a, b) | Expr::Or(a, b) => {
            let ([from, _], [_, to]) = (extent(a), extent(b));
            [from, to]
        }
    }
}

/// The alternatives of one condition; `None` if it is not one about fields.
fn of(primitive: &Primitive) -> Option<Vec<Match>> {
    let any = Match::default();
    Some(match *primitive {
        Primitive::Proto(proto) => vec![of_proto(proto)?],
        Primitive::V4 { proto: None | Some(Proto::Ip), dir, address, mask } => {
            prefix(Ipv4Addr::from_bits(address).into(), mask.leading_ones(), mask.count_ones(), dir)?
        }
        Primitive::V6 { dir, address, mask } => prefix(address.into(), mask.leading_ones(), mask.count_ones(), dir)?,
        Primitive::Mac { dir, mac } => {
            directed(dir, Match { src_mac: Some(mac), ..any }, Match { dst_mac: Some(mac), ..any })
        }
        Primitive::Port { transport, dir, first, last } => {
            let span = Some(Span::new(first, last)?);
            let any = Match { protocol: transport, ..any };
            directed(dir, Match { src_port: span, ..any }, Match { dst_port: span, ..any })
        }
        Primitive::IpProto { version, number } => {
            let ethertype = match version {
                Some(Proto::Ip) => Some(ethertype::IPV4),
                Some(_) => Some(ethertype::IPV6),
                None => None,
            };
            vec![Match { ethertype, protocol: Some(number.try_into().ok()?), ..any }]
        }
        Primitive::EtherProto(number) => {
            let number = u16::try_from(number).ok().filter(|number| *number >= ethertype::MIN);
            vec![Match { ethertype: Some(number.filter(|number| !ethertype::is_tag(*number))?), ..any }]
        }
        Primitive::Vlan(Some(id)) => vec![Match { vlan: Some(id.into()), ..any }],
        Primitive::Broadcast => vec![Match { dst_mac: Some([0xff; 6]), ..any }],
        _ => return None,
    })
}

fn of_proto(proto: Proto) -> Option<Match> {
    let any = Match::default();
    let over = |number| Match { protocol: Some(number), ..any };
    let kind = |number| Match { ethertype: Some(number), ..any };
    Some(match proto {
        Proto::Ip => kind(ethertype::IPV4),
        Proto::Ip6 => kind(ethertype::IPV6),
        Proto::Arp => kind(ethertype::ARP),
        Proto::Rarp => kind(0x8035),
        Proto::Tcp => over(protocol::TCP),
        Proto::Udp => over(protocol::UDP),
        Proto::Sctp => over(protocol::SCTP),
        Proto::Icmp => over(protocol::ICMP),
        Proto::Icmp6 => over(protocol::ICMPV6),
        Proto::OverIp(number) => over(number),
        Proto::OverIp4(number) => Match { ethertype: Some(ethertype::IPV4), ..over(number) },
        Proto::Ether | Proto::Link(_) => return None,
    })
}

/// A mask with holes is none.
fn prefix(address: IpAddr, leading: u32, ones: u32, dir: Dir) -> Option<Vec<Match>> {
    let prefix = Some(Prefix::new(address, u8::try_from(leading).ok()?).filter(|_| leading == ones)?);
    let any = Match::default();
    Some(directed(dir, Match { src: prefix, ..any }, Match { dst: prefix, ..any }))
}

fn directed(dir: Dir, src: Match, dst: Match) -> Vec<Match> {
    match dir {
        Dir::Src => vec![src],
        Dir::Dst => vec![dst],
        Dir::Either => vec![src, dst],
        Dir::Both => both(src, dst).into_iter().collect(),
    }
}

/// What both match; `None` if no packet does.
fn both(a: Match, b: Match) -> Option<Match> {
    let joined = Match {
        ethertype: meet(a.ethertype, b.ethertype, same)?,
        protocol: meet(a.protocol, b.protocol, same)?,
        src: meet(a.src, b.src, narrower)?,
        dst: meet(a.dst, b.dst, narrower)?,
        src_port: meet(a.src_port, b.src_port, overlap)?,
        dst_port: meet(a.dst_port, b.dst_port, overlap)?,
        vlan: meet(a.vlan, b.vlan, overlap)?,
        src_mac: meet(a.src_mac, b.src_mac, same)?,
        dst_mac: meet(a.dst_mac, b.dst_mac, same)?,
        fragment: a.fragment || b.fragment,
    };
    crate::rules::contradiction(&joined).is_none().then_some(joined)
}

/// `None` if both are required and have nothing in common.
fn meet<T>(a: Option<T>, b: Option<T>, common: impl FnOnce(T, T) -> Option<T>) -> Option<Option<T>> {
    match (a, b) {
        (Some(a), Some(b)) => common(a, b).map(Some),
        (one, other) => Some(one.or(other)),
    }
}

fn same<T: PartialEq>(a: T, b: T) -> Option<T> {
    (a == b).then_some(a)
}

fn narrower(a: Prefix, b: Prefix) -> Option<Prefix> {
    match (a.contains(&b), b.contains(&a)) {
        (true, _) => Some(b),
        (_, true) => Some(a),
        _ => None,
    }
}

fn overlap(a: Span, b: Span) -> Option<Span> {
    Span::new(a.first().max(b.first()), a.last().min(b.last()))
}
