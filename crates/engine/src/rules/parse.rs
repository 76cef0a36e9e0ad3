//! The parser of rules.

use super::rule::{ETHERTYPES, PROTOCOLS};
use super::{Match, PortSide, Prefix, Rule, Span, Verdict};
use std::net::IpAddr;
use std::str::{FromStr, SplitWhitespace};
use towpath_wire::ethernet::{Mac, ethertype, parse_mac};
use towpath_wire::ip::protocol;

const VERDICTS: &str = "pass, drop, tx, redirect a, redirect b or lane N";
const MATCHES: &str = "tcp, udp, sctp, icmp, icmp6, proto, src, dst, sport, dport, vlan, smac, dmac, ip, ip6, arp, ether, frag \
                       or any";

/// Why a rule is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule '{rule}': {}{problem}", .word.as_ref().map(|word| format!("'{word}' ")).unwrap_or_default())]
#[non_exhaustive]
pub struct RuleError {
    /// The rule as written.
    pub rule: String,
    /// The word that is wrong; `None` where one is missing.
    pub word: Option<String>,
    /// What is wrong with it, and the valid alternatives.
    pub problem: String,
}

impl RuleError {
    pub(crate) fn at(rule: &str, word: &str, problem: impl Into<String>) -> RuleError {
        RuleError { rule: rule.to_owned(), word: Some(word.to_owned()), problem: problem.into() }
    }
}

/// A parsed line.
pub(super) enum Line {
    Rule(Rule),
    Default(Verdict),
}

pub(super) fn line(text: &str) -> Result<Line, RuleError> {
    let mut words = Words { rule: text, words: text.split_whitespace() };
    let first = words.next(&format!("a rule begins with {VERDICTS}; or it is default and one of these"))?;
    if first == "default" {
        let word = words.next(&format!("default wants {VERDICTS}"))?;
        let verdict = verdict(word, &mut words)?;
        return match words.words.next() {
            None => Ok(Line::Default(verdict)),
            Some(word) => Err(words.error(word, "is too much: default applies to all packets that no rule matches")),
        };
    }
    let verdict = verdict(first, &mut words)?;
    let matches = matches(&mut words)?;
    Ok(Line::Rule(Rule { verdict, matches }))
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        match line(text)? {
            Line::Rule(rule) => Ok(rule),
            Line::Default(_) => Err(RuleError::at(text, "default", "belongs to a list of rules, not to one")),
        }
    }
}

/// The remaining words.
struct Words<'a> {
    rule: &'a str,
    words: SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn error(&self, word: &str, problem: impl Into<String>) -> RuleError {
        RuleError::at(self.rule, word, problem)
    }

    /// The next word; `missing` describes it if there is none.
    fn next(&mut self, missing: &str) -> Result<&'a str, RuleError> {
        let error =
            || RuleError { rule: self.rule.to_owned(), word: None, problem: format!("ends too early: {missing}") };
        self.words.next().ok_or_else(error)
    }

    /// The value after `name`, parsed by `read`, whose error describes the problem.
    fn value<T>(
        &mut self,
        name: &str,
        form: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, RuleError> {
        let word = self.next(&format!("{name} wants {form}"))?;
        read(word).map_err(|problem| self.error(word, problem))
    }

    /// Parses the value of the match `name`, which may occur once, into `to`.
    fn once<T>(
        &mut self,
        to: &mut Option<T>,
        name: &str,
        what: &str,
        form: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<(), RuleError> {
        let value = self.value(name, form, read)?;
        set(to, value, name, what, self)
    }
}

/// The text behind its first word.
fn behind(text: &str) -> Option<&str> {
    Some(text.trim_start().split_once(char::is_whitespace)?.1.trim())
}

/// The verdict at the beginning of a rule, and the rest of its text.
pub(crate) fn parse_verdict(text: &str) -> Option<(Verdict, &str)> {
    let mut words = Words { rule: text, words: text.split_whitespace() };
    let first = words.words.next()?;
    let verdict = verdict(first, &mut words).ok()?;
    let rest = behind(text)?;
    Some((verdict, if matches!(first, "redirect" | "lane") { behind(rest)? } else { rest }))
}

fn verdict(word: &str, words: &mut Words<'_>) -> Result<Verdict, RuleError> {
    Ok(match word {
        "pass" => Verdict::Pass,
        "drop" => Verdict::Drop,
        "tx" => Verdict::Tx,
        "redirect" => Verdict::Port(words.value(word, "a or b", |word| match word {
            "a" | "A" => Ok(PortSide::A),
            "b" | "B" => Ok(PortSide::B),
            _ => Err("must be a or b, the ends of fwd A B (for a lane write lane N)".to_owned()),
        })?),
        "lane" => Verdict::Lane(words.value(word, "the number of a lane", |word| {
            digits(word).ok_or_else(|| "must be the number of a lane, from 0 to 65535".to_owned())
        })?),
        _ => return Err(words.error(word, format!("must be {VERDICTS}"))),
    })
}

fn matches(words: &mut Words<'_>) -> Result<Match, RuleError> {
    let first = words.next(&format!("what to match is missing: {MATCHES} (all packets)"))?;
    if first == "any" {
        return match words.words.next() {
            None => Ok(Match::default()),
            Some(word) => Err(words.error(word, "is too much: any stands alone")),
        };
    }
    let mut matches = Match::default();
    let mut word = Some(first);
    while let Some(name) = word {
        one(name, words, &mut matches)?;
        if let Some(problem) = contradiction(&matches) {
            return Err(words.error(name, problem));
        }
        word = words.words.next();
    }
    Ok(matches)
}

/// Parses one match, whose name was already read.
fn one(name: &str, words: &mut Words<'_>, to: &mut Match) -> Result<(), RuleError> {
    if let Some((_, number)) = PROTOCOLS.iter().find(|(known, _)| *known == name) {
        return set(&mut to.protocol, *number, name, "the protocol", words);
    }
    if let Some((_, number)) = ETHERTYPES.iter().find(|(known, _)| *known == name) {
        return set(&mut to.ethertype, *number, name, "the type", words);
    }
    match name {
        "proto" => words.once(&mut to.protocol, name, "the protocol", "a protocol number", proto),
        "ether" => words.once(&mut to.ethertype, name, "the type", "a type such as 0x88cc", ether),
        "src" => words.once(&mut to.src, name, "the source address", PREFIX, prefix),
        "dst" => words.once(&mut to.dst, name, "the destination address", PREFIX, prefix),
        "sport" => words.once(&mut to.src_port, name, "the source port", PORTS, ports),
        "dport" => words.once(&mut to.dst_port, name, "the destination port", PORTS, ports),
        "vlan" => words.once(&mut to.vlan, name, "the VLAN", "an identifier or a range such as 100-199", vlan),
        "smac" => words.once(&mut to.src_mac, name, "the source MAC address", "a MAC address", mac),
        "dmac" => words.once(&mut to.dst_mac, name, "the destination MAC address", "a MAC address", mac),
        "frag" if to.fragment => Err(words.error(name, "is given twice")),
        "frag" => {
            to.fragment = true;
            Ok(())
        }
        "any" => Err(words.error(name, "is too much: any stands alone")),
        _ => Err(words.error(name, format!("must be {MATCHES}"))),
    }
}

fn set<T>(to: &mut Option<T>, value: T, name: &str, what: &str, words: &Words<'_>) -> Result<(), RuleError> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(words.error(name, format!("says {what} a second time"))),
    }
}

/// Why no packet can match all of this: a rule that never matches is a mistake, and a `drop` rule
/// that never matches is a hole.
pub(crate) fn contradiction(matches: &Match) -> Option<&'static str> {
    let v4 = |prefix: &Option<Prefix>| prefix.map(|prefix| prefix.address().is_ipv4());
    let (src, dst) = (v4(&matches.src), v4(&matches.dst));
    let ip_version = src.or(dst);
    let needs_ip = ip_version.is_some() || matches.protocol.is_some() || matches.fragment;
    let ports = matches.src_port.or(matches.dst_port).is_some();
    match (matches.ethertype, matches.protocol, ip_version) {
        _ if src.zip(dst).is_some_and(|(src, dst)| src != dst) => {
            Some("mixes IPv4 and IPv6: no packet has both addresses")
        }
        (Some(ethertype::IPV4), _, Some(false)) | (Some(ethertype::IPV6), _, Some(true)) => {
            Some("never matches: type and address are of different versions of IP")
        }
        (Some(other), ..) if (needs_ip || ports) && other != ethertype::IPV4 && other != ethertype::IPV6 => {
            Some("never matches: a packet of this type is not IP")
        }
        (_, Some(protocol::ICMP), Some(false)) | (Some(ethertype::IPV6), Some(protocol::ICMP), _) => {
            Some("never matches: over IPv6 it is icmp6")
        }
        (_, Some(protocol::ICMPV6), Some(true)) | (Some(ethertype::IPV4), Some(protocol::ICMPV6), _) => {
            Some("never matches: over IPv4 it is icmp")
        }
        (_, Some(number), _) if ports && !matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP) => {
            Some("never matches: only tcp, udp and sctp have ports")
        }
        _ if ports && matches.fragment => Some("never matches: fragments are not looked at for ports"),
        _ => None,
    }
}

const PREFIX: &str = "an address or a prefix such as 10.0.0.0/8 or 2001:db8::/32";
const PORTS: &str = "a port or a range such as 1024-2047";

fn prefix(word: &str) -> Result<Prefix, String> {
    let (address, len) = match word.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (word, None),
    };
    let address: IpAddr = address.parse().map_err(|_| format!("must be {PREFIX}"))?;
    let most: u8 = if address.is_ipv4() { 32 } else { 128 };
    let len = match len {
        Some(len) => digits(len).and_then(|len| u8::try_from(len).ok()).filter(|len| *len <= most),
        None => Some(most),
    };
    let covering = len.and_then(|len| Prefix::covering(address, len));
    let covering = covering.ok_or_else(|| format!("must have a prefix length from 0 to {most}"))?;
    if covering.address() != address {
        return Err(format!("has bits behind the prefix: write {covering}"));
    }
    Ok(covering)
}

/// A decimal number, without sign.
fn digits(word: &str) -> Option<u16> {
    word.parse().ok().filter(|_| word.bytes().all(|byte| byte.is_ascii_digit()))
}

fn proto(word: &str) -> Result<u8, String> {
    let number = digits(word).and_then(|number| u8::try_from(number).ok());
    number.ok_or_else(|| "must be a protocol number from 0 to 255".to_owned())
}

fn span(word: &str, most: u16, what: &str, example: &str) -> Result<Span, String> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let number = |word| digits(word).filter(|number| *number <= most);
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(format!("must be {what} from 0 to {most}, or a range of them: {example}"));
    };
    Span::new(first, last).ok_or_else(|| format!("is an empty range: write {last}-{first}"))
}

fn ports(word: &str) -> Result<Span, String> {
    span(word, u16::MAX, "a port", "1024-2047")
}

fn vlan(word: &str) -> Result<Span, String> {
    span(word, 4095, "a VLAN identifier", "100-199")
}

fn ether(word: &str) -> Result<u16, String> {
    let hex = word.strip_prefix("0x").filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match hex.and_then(|hex| u16::from_str_radix(hex, 16).ok()) {
        Some(tag) if ethertype::is_tag(tag) => Err("announces a VLAN tag: write vlan and its identifier".to_owned()),
        Some(number) if number >= ethertype::MIN => Ok(number),
        _ => Err("must be an Ethernet type from 0x0600 to 0xffff".to_owned()),
    }
}

fn mac(word: &str) -> Result<Mac, String> {
    parse_mac(word).ok_or_else(|| "must be six bytes in hexadecimal: 02:00:00:00:00:01".to_owned())
}
