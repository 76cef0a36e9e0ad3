//! The parser: the grammar of pcap-filter(7), without the words of links that no port has.
//!
//! `and` and `or` bind alike, from the left; `not` binds tighter. A number or an address without
//! qualifiers has those of the condition before it: `port 80 or 443`, `src (net 10 or 172.16)`.

use super::FilterError;
use super::ast::{Dir, Expr, PROTOS, Primitive, Proto};
use super::lex::{self, Kind, Token};
use super::names;
use super::values::{Address, Qualifiers};

/// Nested parentheses, `not` and signs.
const MAX_DEPTH: usize = 64;
const CONDITIONS: &str = "a protocol (tcp, udp, ip6, arp, …), host, net, port, portrange, proto, src, dst, ether, vlan, \
                          less, greater, broadcast, multicast, a comparison such as tcp[13] & 2 != 0, not or (";

/// Words of pcap-filter(7) that are refused, and why.
const REFUSED: [(&str, &str); 24] = [
    ("mpls", "MPLS headers are not followed"),
    ("pppoed", "PPPoE headers are not followed: write ether proto 0x8863"),
    ("pppoes", "PPPoE headers are not followed: write ether proto 0x8864"),
    ("geneve", "the inside of tunnels is not followed"),
    ("gateway", "names are not resolved: write ether host MAC and not host ADDRESS"),
    ("protochain", "chains of headers are not followed: write proto"),
    ("inbound", "packets have no direction here: give the rule to the port that receives them"),
    ("outbound", "packets have no direction here: give the rule to the port that receives them"),
    ("ifindex", "a packet's interface is the port that the rule is given to"),
    ("on", "is about the packet filter of BSD"),
    ("ifname", "is about the packet filter of BSD"),
    ("rnr", "is about the packet filter of BSD"),
    ("reason", "is about the packet filter of BSD"),
    ("action", "is about the packet filter of BSD"),
    ("wlan", "no port has frames of 802.11"),
    ("type", "no port has frames of 802.11"),
    ("subtype", "no port has frames of 802.11"),
    ("radio", "no port has frames of 802.11"),
    ("fddi", "no port has frames of FDDI"),
    ("tr", "no port has frames of Token Ring"),
    ("ppp", "no port has frames of PPP"),
    ("slip", "no port has frames of SLIP"),
    ("llc", "write ether[12:2] <= 1500 for frames of 802.2"),
    ("byte", "write ether[N] = VALUE"),
];

/// Words that are no names.
pub(super) const KEYWORDS: [&str; 23] = [
    "host",
    "net",
    "mask",
    "port",
    "portrange",
    "proto",
    "src",
    "dst",
    "and",
    "or",
    "not",
    "less",
    "greater",
    "len",
    "length",
    "vlan",
    "broadcast",
    "multicast",
    "sport",
    "dport",
    "mpls",
    "pppoes",
    "gateway",
];

pub(super) struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
}

/// A condition and the qualifiers that a bare number behind it has.
type Parsed = (Expr, Option<Qualifiers>);

pub(super) fn parse(text: &str) -> Result<Expr, FilterError> {
    let tokens = lex::words(text)?;
    let mut parser = Parser { text, tokens, next: 0, depth: 0 };
    let (expr, _) = parser.expr(None)?;
    match parser.peek().kind {
        Kind::End => Ok(expr),
        _ => Err(parser.unexpected("and, or, or the end")),
    }
}

impl<'a> Parser<'a> {
    /// The token that is `ahead` of the next one.
    pub(super) fn look(&self, ahead: usize) -> &Token {
        const END: Token = Token { kind: Kind::End, at: 0, len: 0, closed_by: 0 };
        self.tokens.get(self.next + ahead).or(self.tokens.last()).unwrap_or(&END)
    }

    pub(super) fn peek(&self) -> &Token {
        self.look(0)
    }

    pub(super) fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len().saturating_sub(1));
    }

    /// What stands behind the parenthesis that closes the next one.
    pub(super) fn after_parens(&self) -> &Kind {
        self.tokens.get(self.peek().closed_by + 1).map_or(&Kind::End, |token| &token.kind)
    }

    pub(super) fn text_of(&self, token: &Token) -> &'a str {
        let text: &'a str = self.text;
        text.get(token.at..token.at + token.len).unwrap_or_default()
    }

    /// The next word, if it is one; empty otherwise.
    pub(super) fn word(&self) -> &'a str {
        self.word_at(0)
    }

    fn word_at(&self, ahead: usize) -> &'a str {
        let token = self.look(ahead);
        if token.kind == Kind::Word { self.text_of(token) } else { "" }
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek().kind, Kind::Sign(known) if known == sign)
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> FilterError {
        let token = self.peek();
        FilterError::at(self.text, token.at, token.len, problem)
    }

    /// The next word is none of what is expected here.
    pub(super) fn unexpected(&self, expected: &str) -> FilterError {
        let word = self.word();
        if self.peek().kind == Kind::End {
            return self.error(format!("ends too early: {expected} must follow"));
        }
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == word) {
            return self.error(format!("is not in this language: {why}"));
        }
        self.error(format!("must be {expected}{}", self.suggestion()))
    }

    /// The keyword that the next word most likely means.
    pub(super) fn suggestion(&self) -> String {
        let word = self.word();
        let known = KEYWORDS.iter().copied().chain(PROTOS.iter().map(|(word, _)| *word)).filter(|known| *known != word);
        let near = names::closest(word, known).filter(|_| !word.is_empty());
        near.map(|near| format!("; is it {near}?")).unwrap_or_default()
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<(), FilterError> {
        if !self.is_sign(sign) {
            return Err(self.unexpected(sign));
        }
        self.advance();
        Ok(())
    }

    /// Runs a part of the grammar one level deeper.
    pub(super) fn deeper<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, FilterError>,
    ) -> Result<T, FilterError> {
        if self.depth >= MAX_DEPTH {
            return Err(self.error(format!("is nested more than {MAX_DEPTH} times")));
        }
        self.depth += 1;
        let parsed = part(self);
        self.depth -= 1;
        parsed
    }

    fn joins(&self) -> Option<bool> {
        match (&self.peek().kind, self.word()) {
            (_, "and") | (Kind::Sign("&&"), _) => Some(true),
            (_, "or") | (Kind::Sign("||"), _) => Some(false),
            _ => None,
        }
    }

    fn expr(&mut self, inherited: Option<Qualifiers>) -> Result<Parsed, FilterError> {
        let (mut expr, mut qualifiers) = self.term(inherited)?;
        while let Some(and) = self.joins() {
            self.advance();
            // A word that is no keyword has a meaning only where a port or a protocol can follow.
            let is_id = self.begins_id() && (qualifiers.is_some() || self.word().is_empty());
            let (right, last) = match is_id {
                true => (self.id(qualifiers)?, qualifiers),
                false => self.term(qualifiers)?,
            };
            expr = join(and, expr, right);
            qualifiers = last;
        }
        Ok((expr, qualifiers))
    }

    /// Whether a number, an address or a list of them follows, and not a comparison.
    fn begins_id(&self) -> bool {
        let skip = |n: usize| matches!(self.look(n).kind, Kind::Sign("(" | "!")) || self.word_at(n) == "not";
        let first = (0..).take_while(|n| skip(*n)).count();
        match self.look(first).kind {
            Kind::V4(..) | Kind::V6(_) | Kind::Mac(_) | Kind::Name => true,
            Kind::Number(_) => {
                let closing = (first + 1..).take_while(|n| self.look(*n).kind == Kind::Sign(")")).count();
                !matches!(self.look(first + 1 + closing).kind, Kind::Sign(sign) if sign != ")" && sign != "&&" && sign != "||")
            }
            Kind::Word => self.is_name(first),
            _ => false,
        }
    }

    /// Whether the word is the name of a port or protocol, and no keyword.
    fn is_name(&self, ahead: usize) -> bool {
        let word = self.word_at(ahead);
        !word.is_empty()
            && !KEYWORDS.contains(&word)
            && Proto::named(word).is_none()
            && !REFUSED.iter().any(|(refused, _)| *refused == word)
    }

    fn negates(&mut self) -> bool {
        let negates = self.is_sign("!") || self.word() == "not";
        if negates {
            self.advance();
        }
        negates
    }

    fn term(&mut self, inherited: Option<Qualifiers>) -> Result<Parsed, FilterError> {
        let from = self.peek().at;
        if self.negates() {
            let (expr, qualifiers) = self.deeper(|parser| parser.term(inherited))?;
            return Ok((Expr::Not(expr.into()), qualifiers));
        }
        if self.is_sign("(") && !self.begins_arith() {
            self.advance();
            let (expr, _) = self.deeper(|parser| parser.expr(inherited))?;
            self.expect(")")?;
            return Ok((expr, inherited));
        }
        if self.begins_arith() {
            let relation = self.relation()?;
            return Ok((self.is(relation, from), None));
        }
        let word = self.word();
        let unqualified = match word {
            "less" | "greater" => {
                self.advance();
                let bytes = self.number("a number of bytes")?;
                Some(Primitive::Length { at_least: word == "greater", bytes })
            }
            "vlan" => {
                self.advance();
                Some(Primitive::Vlan(self.vlan_id()?))
            }
            _ => None,
        };
        if let Some(primitive) = unqualified {
            return Ok((self.is(primitive, from), None));
        }
        let proto = Proto::named(word);
        if proto.is_some() {
            self.advance();
        }
        let cast = match (self.word(), proto) {
            ("broadcast", None | Some(Proto::Ether)) => Primitive::Broadcast,
            ("broadcast", Some(Proto::Ip)) => {
                return Err(
                    self.error("takes the netmask of the network, which is not known: write dst host 10.0.0.255")
                );
            }
            ("multicast", None) => Primitive::Multicast(Proto::Ether),
            ("multicast", Some(proto @ (Proto::Ether | Proto::Ip | Proto::Ip6))) => Primitive::Multicast(proto),
            ("broadcast" | "multicast", Some(proto)) => {
                return Err(self.error(format!("does not go with {}: only with ether, ip and ip6", proto.word())));
            }
            _ => return self.qualified(proto, from),
        };
        self.advance();
        Ok((self.is(cast, from), None))
    }

    fn is(&self, primitive: Primitive, from: usize) -> Expr {
        let to = self.tokens.get(self.next.saturating_sub(1)).map_or(from, |token| token.at + token.len);
        Expr::Is(primitive, [from, to])
    }

    fn vlan_id(&mut self) -> Result<Option<u16>, FilterError> {
        let parens = (0..).take_while(|n| self.look(*n).kind == Kind::Sign("(")).count();
        let Kind::Number(id) = self.look(parens).kind else { return Ok(None) };
        (0..parens).for_each(|_| self.advance());
        if id > 4095 {
            return Err(self.error("must be a VLAN identifier from 0 to 4095"));
        }
        self.advance();
        for _ in 0..parens {
            self.expect(")")?;
        }
        Ok(Some(id as u16))
    }

    fn number(&mut self, what: &str) -> Result<u32, FilterError> {
        let Kind::Number(number) = self.peek().kind else { return Err(self.unexpected(what)) };
        self.advance();
        Ok(number)
    }

    /// What follows the word of a protocol, if there was one.
    fn qualified(&mut self, proto: Option<Proto>, from: usize) -> Result<Parsed, FilterError> {
        let mut dir = None;
        let address = match self.word() {
            "src" | "dst" => {
                let first = self.word();
                let other = if first == "src" { "dst" } else { "src" };
                self.advance();
                let both = self.joins().filter(|_| self.word_at(1) == other);
                if both.is_some() {
                    self.advance();
                    self.advance();
                }
                dir = Some(match (both, first) {
                    (Some(true), _) => Dir::Both,
                    (Some(false), _) => Dir::Either,
                    (None, "src") => Dir::Src,
                    (None, _) => Dir::Dst,
                });
                self.address()
            }
            "sport" | "dport" => {
                dir = Some(if self.word() == "sport" { Dir::Src } else { Dir::Dst });
                self.advance();
                Some(Address::Port)
            }
            "proto" => {
                self.advance();
                Some(Address::Proto)
            }
            _ => self.address(),
        };
        if dir.is_none() && address.is_none() {
            return match proto {
                Some(Proto::Ether) => Err(self.unexpected("host, src, dst, proto, broadcast, multicast or [")),
                Some(proto) => {
                    let expr = self.is(Primitive::Proto(proto), from);
                    Ok((expr, None))
                }
                None => Err(self.unexpected(CONDITIONS)),
            };
        }
        let address = address.unwrap_or(Address::Default);
        let qualifiers = Qualifiers { proto, dir: dir.unwrap_or(Dir::Either), address };
        let expr = self.id(Some(qualifiers))?;
        Ok((expr, Some(qualifiers)))
    }

    fn address(&mut self) -> Option<Address> {
        let address = match self.word() {
            "host" => Address::Host,
            "net" => Address::Net,
            "port" => Address::Port,
            "portrange" => Address::PortRange,
            _ => return None,
        };
        self.advance();
        Some(address)
    }

    /// A number, an address, or a list of them in parentheses.
    fn id(&mut self, qualifiers: Option<Qualifiers>) -> Result<Expr, FilterError> {
        if self.negates() {
            let expr = self.deeper(|parser| parser.id(qualifiers))?;
            return Ok(Expr::Not(expr.into()));
        }
        if self.is_sign("(") {
            self.advance();
            let mut expr = self.deeper(|parser| parser.id(qualifiers))?;
            while let Some(and) = self.joins() {
                self.advance();
                let right = self.deeper(|parser| parser.id(qualifiers))?;
                expr = join(and, expr, right);
            }
            self.expect(")")?;
            return Ok(expr);
        }
        let Some(qualifiers) = qualifiers else {
            return Err(self.error("has no meaning without host, net, port or another word in front of it"));
        };
        let from = self.peek().at;
        let primitive = self.value(qualifiers)?;
        Ok(self.is(primitive, from))
    }
}

fn join(and: bool, left: Expr, right: Expr) -> Expr {
    if and { Expr::And(left.into(), right.into()) } else { Expr::Or(left.into(), right.into()) }
}
