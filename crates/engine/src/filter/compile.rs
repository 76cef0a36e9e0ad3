//! An expression as a program, test by test as libpcap's compiler writes it.
//!
//! The order of tests is part of the meaning, because a read beyond the packet ends the run. So
//! each function here follows the one of libpcap's `gencode.c` that its comment names.

use super::FilterError;
use super::ast::{Arith, Dir, Expr, Primitive, Proto};
use super::program::{ACCEPT, Compare, Load, Op, Program, REJECT, STACK, Step, Test};
use std::net::Ipv6Addr;
use towpath_wire::LinkKind;
use towpath_wire::ethernet::{HEADER_LEN, Mac, ethertype};
use towpath_wire::ip::protocol;

/// Largest length of an 802.3 frame; larger numbers are types.
const ETHER_MTU: u32 = 1500;
const QINQ_OLD: u32 = ethertype::QINQ_OLD as u32;
const RARP: u32 = 0x8035;
const IPV4: u32 = ethertype::IPV4 as u32;
const IPV6: u32 = ethertype::IPV6 as u32;
const ARP: u32 = ethertype::ARP as u32;
/// Next header of an IPv6 fragment.
const FRAGMENT: u32 = 44;

/// Tests that are joined.
#[derive(Debug, Clone)]
enum Cond {
    Test(Test),
    And(Box<Cond>, Box<Cond>),
    Or(Box<Cond>, Box<Cond>),
    Not(Box<Cond>),
}

impl Cond {
    fn and(self, other: Cond) -> Cond {
        Cond::And(self.into(), other.into())
    }

    fn or(self, other: Cond) -> Cond {
        Cond::Or(self.into(), other.into())
    }

    fn not(self) -> Cond {
        Cond::Not(self.into())
    }
}

fn compare(load: Load, mask: u32, compare: Compare, value: u32) -> Cond {
    Cond::Test(Test { load, mask, compare, value })
}

fn equal(at: u32, size: u8, value: u32) -> Cond {
    compare(Load::At { at, size }, u32::MAX, Compare::Equal, value)
}

fn masked(at: u32, size: u8, value: u32, mask: u32) -> Cond {
    compare(Load::At { at, size }, mask, Compare::Equal, value)
}

/// Words from the last one on (`gen_bcmp`).
fn bytes(at: u32, value: &[u8]) -> Cond {
    let mut end = value.len();
    let mut cond: Option<Cond> = None;
    while end > 0 {
        let size = if end >= 4 { 4 } else { end.min(2) };
        let part = value.get(end - size..end).unwrap_or_default();
        let number = part.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let one = equal(at + (end - size) as u32, size as u8, number);
        cond = Some(match cond {
            Some(cond) => cond.and(one),
            None => one,
        });
        end -= size;
    }
    cond.unwrap_or_else(never)
}

fn never() -> Cond {
    compare(Load::Value(0), u32::MAX, Compare::Equal, 1)
}

/// Compiles for links of one kind.
///
/// # Errors
/// What no packet of such a link has, or a computation that holds too many values.
pub(super) fn compile(text: &str, expr: &Expr, link: LinkKind) -> Result<Program, FilterError> {
    let ethernet = link == LinkKind::Ethernet;
    let mut compiler = Compiler {
        text,
        link_type: ethernet.then_some(12),
        payload: if ethernet { HEADER_LEN as u32 } else { 0 },
        ops: Vec::new(),
    };
    let cond = compiler.expr(expr)?;
    let mut steps = Vec::new();
    let start = emit(&cond, ACCEPT, REJECT, &mut steps);
    // They were emitted from the last one on.
    let Some(count) = u16::try_from(steps.len()).ok().filter(|count| *count < REJECT) else {
        return Err(FilterError::at(text, 0, 0, "makes more tests than a filter may have"));
    };
    let turned = |at: u16| if at >= REJECT { at } else { count - 1 - at };
    steps.reverse();
    for step in &mut steps {
        (step.yes, step.no) = (turned(step.yes), turned(step.no));
    }
    Ok(Program { steps, ops: compiler.ops, start: turned(start) })
}

/// Appends the tests in front of what follows them, and returns the first one's index.
fn emit(cond: &Cond, yes: u16, no: u16, steps: &mut Vec<Step>) -> u16 {
    match cond {
        Cond::Test(test) => {
            // More than fit are refused afterwards.
            let at = steps.len().min(usize::from(REJECT) - 1) as u16;
            steps.push(Step { test: *test, yes, no });
            at
        }
        Cond::Not(cond) => emit(cond, no, yes, steps),
        Cond::And(first, second) => {
            let second = emit(second, yes, no, steps);
            emit(first, second, no, steps)
        }
        Cond::Or(first, second) => {
            let second = emit(second, yes, no, steps);
            emit(first, yes, second, steps)
        }
    }
}

/// The offsets at this place of the text: a `vlan` moves them for all that follows.
struct Compiler<'a> {
    text: &'a str,
    /// Offset of the ethertype; `None` without an Ethernet header.
    link_type: Option<u32>,
    /// Offset of the payload of the link layer.
    payload: u32,
    ops: Vec<Op>,
}

impl Compiler<'_> {
    fn expr(&mut self, expr: &Expr) -> Result<Cond, FilterError> {
        Ok(match expr {
            Expr::And(a, b) => {
                let a = self.expr(a)?;
                a.and(self.expr(b)?)
            }
            Expr::Or(a, b) => {
                let a = self.expr(a)?;
                a.or(self.expr(b)?)
            }
            Expr::Not(expr) => self.expr(expr)?.not(),
            Expr::Is(primitive, [from, to]) => {
                let needs_ethernet = matches!(
                    primitive,
                    Primitive::Vlan(_)
                        | Primitive::Mac { .. }
                        | Primitive::Broadcast
                        | Primitive::Multicast(Proto::Ether)
                );
                if needs_ethernet && self.link_type.is_none() {
                    let problem = "is about an Ethernet header, and the port carries bare IP packets";
                    return Err(FilterError::at(self.text, *from, to - from, problem));
                }
                self.primitive(primitive).map_err(|problem| FilterError::at(self.text, *from, to - from, problem))?
            }
        })
    }

    fn primitive(&mut self, primitive: &Primitive) -> Result<Cond, String> {
        Ok(match *primitive {
            Primitive::Proto(proto) => self.proto(proto),
            Primitive::V4 { proto, dir, address, mask } => match proto {
                Some(Proto::Arp) => self.host(dir, address, mask, ARP, [14, 24]),
                Some(Proto::Rarp) => self.host(dir, address, mask, RARP, [14, 24]),
                Some(_) => self.host(dir, address, mask, IPV4, [12, 16]),
                // gen_host: also the addresses in ARP.
                None => {
                    let ip = self.host(dir, address, mask, IPV4, [12, 16]);
                    let arp = self.host(dir, address, mask, ARP, [14, 24]);
                    ip.or(arp).or(self.host(dir, address, mask, RARP, [14, 24]))
                }
            },
            Primitive::V6 { dir, address, mask } => {
                self.directed(dir, |compiler, src| compiler.host6(address, mask, if src { 8 } else { 24 }))
            }
            Primitive::Mac { dir, mac } => self.directed(dir, |_, src| self::mac(mac, src)),
            Primitive::Port { transport, dir, first, last } => self.ports(transport, dir, first, last),
            Primitive::IpProto { version, number } => match version {
                Some(Proto::Ip) => self.over4(number),
                Some(_) => self.over6(number),
                None => self.over4(number).or(self.over6(number)),
            },
            Primitive::EtherProto(number) => self.link(number),
            Primitive::Vlan(id) => self.vlan(id),
            Primitive::Broadcast => mac([0xff; 6], false),
            Primitive::Multicast(Proto::Ip) => {
                let first = Load::At { at: self.payload + 16, size: 1 };
                self.link(IPV4).and(compare(first, u32::MAX, Compare::NotLess, 224))
            }
            Primitive::Multicast(Proto::Ip6) => self.link(IPV6).and(equal(self.payload + 24, 1, 255)),
            Primitive::Multicast(_) => compare(Load::At { at: 0, size: 1 }, u32::MAX, Compare::Common, 1),
            Primitive::Length { at_least: true, bytes } => compare(Load::Len, u32::MAX, Compare::NotLess, bytes),
            Primitive::Length { at_least: false, bytes } => compare(Load::Len, u32::MAX, Compare::Greater, bytes).not(),
            Primitive::Relation { ref a, compare, negated, ref b } => self.relation(a, compare, negated, b)?,
        })
    }

    /// `gen_proto_abbrev`.
    fn proto(&self, proto: Proto) -> Cond {
        let over = |number: u8| self.over4(number.into()).or(self.over6(number.into()));
        match proto {
            // The parser takes ether with something behind it only.
            Proto::Ether => never().not(),
            Proto::Ip => self.link(IPV4),
            Proto::Ip6 => self.link(IPV6),
            Proto::Arp => self.link(ARP),
            Proto::Rarp => self.link(RARP),
            Proto::Link(number) => self.link(number.into()),
            Proto::Tcp => over(protocol::TCP),
            Proto::Udp => over(protocol::UDP),
            Proto::Sctp => over(protocol::SCTP),
            Proto::OverIp(number) => over(number),
            Proto::Icmp => self.over4(protocol::ICMP.into()),
            Proto::OverIp4(number) => self.over4(number.into()),
            Proto::Icmp6 => self.over6(protocol::ICMPV6.into()),
        }
    }

    /// The type of the link layer, or the SAP of an 802.2 header (`gen_linktype`).
    fn link(&self, number: u32) -> Cond {
        let Some(at) = self.link_type else {
            return match number {
                IPV4 => masked(0, 1, 0x40, 0xf0),
                IPV6 => masked(0, 1, 0x60, 0xf0),
                _ => never(),
            };
        };
        let has_length = || compare(Load::At { at, size: 2 }, u32::MAX, Compare::Greater, ETHER_MTU).not();
        let snap = |[a, b, c]: [u8; 3], kind: u16| {
            let [d, e] = kind.to_be_bytes();
            bytes(self.payload, &[0xaa, 0xaa, 3, a, b, c, d, e])
        };
        match number {
            0xfe | 0x06 | 0xf0 => has_length().and(equal(self.payload, 2, number << 8 | number)),
            0xe0 => {
                let sap = equal(self.payload, 1, 0xe0).or(equal(self.payload, 2, 0xffff));
                let any = snap([0; 3], 0x8137).or(sap);
                equal(at, 2, 0x8137).or(has_length().and(any))
            }
            0x809b => equal(at, 2, number).or(has_length().and(snap([0x08, 0x00, 0x07], 0x809b))),
            0x80f3 => equal(at, 2, number).or(has_length().and(snap([0; 3], 0x80f3))),
            0..=ETHER_MTU => has_length().and(equal(at + 2, 1, number)),
            _ => equal(at, 2, number),
        }
    }

    /// `gen_proto` for IPv4.
    fn over4(&self, number: u32) -> Cond {
        self.link(IPV4).and(equal(self.payload + 9, 1, number))
    }

    /// Likewise for IPv6: also behind a fragment header.
    fn over6(&self, number: u32) -> Cond {
        let next = equal(self.payload + 6, 1, number);
        let behind = equal(self.payload + 6, 1, FRAGMENT).and(equal(self.payload + 40, 1, number));
        self.link(IPV6).and(next.or(behind))
    }

    fn directed(&self, dir: Dir, one: impl Fn(&Self, bool) -> Cond) -> Cond {
        match dir {
            Dir::Src => one(self, true),
            Dir::Dst => one(self, false),
            Dir::Either => one(self, true).or(one(self, false)),
            Dir::Both => one(self, true).and(one(self, false)),
        }
    }

    /// `gen_hostop`: offsets of source and destination.
    fn host(&self, dir: Dir, address: u32, mask: u32, link: u32, [src, dst]: [u32; 2]) -> Cond {
        self.directed(dir, |compiler, is_src| {
            let at = compiler.payload + if is_src { src } else { dst };
            compiler.link(link).and(masked(at, 4, address, mask))
        })
    }

    /// `gen_hostop6`.
    fn host6(&self, address: Ipv6Addr, mask: u128, at: u32) -> Cond {
        let word = |value: u128, n: u32| (value >> (96 - 32 * n)) as u32;
        (0..4).fold(self.link(IPV6), |cond, n| {
            cond.and(masked(self.payload + at + 4 * n, 4, word(address.to_bits(), n), word(mask, n)))
        })
    }

    /// `gen_port` and `gen_portrange`, first for IPv6. Of fragments, only the first has ports.
    fn ports(&self, transport: Option<u8>, dir: Dir, first: u16, last: u16) -> Cond {
        let port = |v6: bool, src: bool| {
            let (l3, at, size) = (self.payload, if src { 0 } else { 2 }, 2);
            let load = if v6 { Load::At { at: l3 + 40 + at, size } } else { Load::Transport { l3, at, size } };
            let test = |how, value: u16| compare(load, u32::MAX, how, value.into());
            match first == last {
                true => test(Compare::Equal, first),
                false => test(Compare::NotLess, first).and(test(Compare::Greater, last).not()),
            }
        };
        let over = |v6: bool, transport: u8| {
            let ports = self.directed(dir, |_, src| port(v6, src));
            let protocol = equal(self.payload + if v6 { 6 } else { 9 }, 1, transport.into());
            if v6 { protocol.and(ports) } else { protocol.and(self.first_fragment()).and(ports) }
        };
        let version = |v6: bool| {
            let transports = match transport {
                Some(transport) => over(v6, transport),
                // gen_or(tmp, b1) puts SCTP in front.
                None => over(v6, protocol::SCTP).or(over(v6, protocol::TCP).or(over(v6, protocol::UDP))),
            };
            self.link(if v6 { IPV6 } else { IPV4 }).and(transports)
        };
        version(true).or(version(false))
    }

    /// `gen_ipfrag`.
    fn first_fragment(&self) -> Cond {
        compare(Load::At { at: self.payload + 6, size: 2 }, u32::MAX, Compare::Common, 0x1fff).not()
    }

    /// `gen_vlan`: what follows is about the inside of the tag.
    fn vlan(&mut self, id: Option<u16>) -> Cond {
        let tagged = self.link(ethertype::VLAN.into()).or(self.link(ethertype::QINQ.into())).or(self.link(QINQ_OLD));
        let cond = match id {
            Some(id) => tagged.and(masked(self.payload, 2, id.into(), 0x0fff)),
            None => tagged,
        };
        self.link_type = self.link_type.map(|at| at + 4);
        self.payload += 4;
        cond
    }

    /// `gen_relation`: the packet has the headers of both sides, and then they are computed.
    fn relation(&mut self, a: &Arith, how: Compare, negated: bool, b: &Arith) -> Result<Cond, String> {
        let first = self.ops.len() as u32;
        let left = self.arith(a, 0)?;
        let right = self.arith(b, 1)?;
        let mut load = Load::Computed { first, count: self.ops.len() as u32 - first };
        let mut value = 0;
        // A plain field and a number need no stack.
        if let Arith::Number(number) = b {
            match *self.ops.get(first as usize..).unwrap_or_default() {
                [Op::Push(index), Op::Load { base, size }, Op::Push(_)] if base.checked_add(index).is_some() => {
                    (load, value) = (Load::At { at: base + index, size }, *number);
                }
                [Op::Push(at), Op::Transport { l3, size }, Op::Push(_)] => {
                    (load, value) = (Load::Transport { l3, at, size }, *number);
                }
                [Op::Len, Op::Push(_)] => (load, value) = (Load::Len, *number),
                _ => {}
            }
        }
        let mut cond = compare(load, u32::MAX, how, value);
        if !matches!(load, Load::Computed { .. }) {
            self.ops.truncate(first as usize);
        }
        if negated {
            cond = cond.not();
        }
        Ok(match (left, right) {
            (Some(left), Some(right)) => left.and(right).and(cond),
            (Some(one), None) | (None, Some(one)) => one.and(cond),
            (None, None) => cond,
        })
    }

    /// Appends the operations that leave a number on the stack, above `held` others; returns the
    /// condition under which there is one.
    fn arith(&mut self, arith: &Arith, held: usize) -> Result<Option<Cond>, String> {
        if held >= STACK {
            return Err(format!("holds more than {STACK} numbers at once: write it with fewer parentheses"));
        }
        Ok(match arith {
            Arith::Number(number) => {
                self.ops.push(Op::Push(*number));
                None
            }
            Arith::Len => {
                self.ops.push(Op::Len);
                None
            }
            Arith::Negate(inner) => {
                let cond = self.arith(inner, held)?;
                self.ops.push(Op::Negate);
                cond
            }
            Arith::Binary(binary, a, b) => {
                let cond = self.arith(a, held)?;
                // gen_arth drops the condition of the right side.
                self.arith(b, held + 1)?;
                self.ops.push(Op::Binary(*binary));
                cond
            }
            Arith::Load { proto, index, size } => {
                let inner = self.arith(index, held)?;
                self.load(*proto, inner, *size)
            }
        })
    }

    /// `gen_load`.
    fn load(&mut self, proto: Proto, inner: Option<Cond>, size: u8) -> Option<Cond> {
        let l3 = self.payload;
        let then = |inner: Option<Cond>, cond: Cond| match inner {
            Some(inner) => inner.and(cond),
            None => cond,
        };
        match proto {
            Proto::Ether => {
                self.ops.push(Op::Load { base: 0, size });
                inner
            }
            Proto::Ip | Proto::Ip6 | Proto::Arp | Proto::Rarp | Proto::Link(_) => {
                self.ops.push(Op::Load { base: l3, size });
                Some(then(inner, self.proto(proto)))
            }
            Proto::Icmp6 => {
                self.ops.push(Op::Load { base: l3 + 40, size });
                Some(then(inner, self.link(IPV6)).and(equal(l3 + 6, 1, protocol::ICMPV6.into())))
            }
            Proto::Tcp | Proto::Udp | Proto::Sctp | Proto::Icmp | Proto::OverIp4(_) | Proto::OverIp(_) => {
                self.ops.push(Op::Transport { l3, size });
                let cond = then(inner, self.proto(proto).and(self.first_fragment()));
                Some(self.link(IPV4).and(cond))
            }
        }
    }
}

/// `gen_ehostop`.
fn mac(mac: Mac, src: bool) -> Cond {
    bytes(if src { 6 } else { 0 }, &mac)
}
