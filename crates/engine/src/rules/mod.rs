//! Verdicts: what becomes of a packet, by rules in words or by a closure.
//!
//! ```text
//!   packet ── dissect_packet ──► Dissected ── Judge::judge ──► Verdict
//!                                    │          ├ Rules: the first rule that matches, else the default
//!                                    │          └ any FnMut(&Packet, &Dissected) -> Verdict
//!                                    └──► symmetric_hash: the lane, from the same look at the headers
//! ```
//!
//! # Rules in words
//!
//! A rule is a verdict and what to match, all of which must hold:
//!
//! | verdict | the packet |
//! |---|---|
//! | `pass` | goes on: steering, lanes, GRO, egress |
//! | `drop` | is dropped and counted as `filtered` |
//! | `tx` | leaves by the port that it came from |
//! | `redirect a`, `redirect b` | leaves by the named end of `fwd A B` |
//! | `lane N` | goes on in lane `N`, whatever its hash |
//!
//! | match | holds for |
//! |---|---|
//! | `tcp`, `udp`, `sctp`, `icmp`, `icmp6`, `proto N` | IP packets whose transport has this protocol number |
//! | `src PREFIX`, `dst PREFIX` | `10.0.0.0/8`, `2001:db8::/32`; without a length one address |
//! | `sport PORTS`, `dport PORTS` | `53` or `1024-2047`; whole packets of TCP, UDP or SCTP |
//! | `vlan IDS` | `100` or `100-199`; any tag, in the frame or beside the packet |
//! | `smac MAC`, `dmac MAC` | `02:00:00:00:00:01`, compared whole |
//! | `ip`, `ip6`, `arp`, `ether TYPE` | the type behind all tags, `0x88cc` |
//! | `frag` | parts of IP packets, the first included |
//! | `any` | everything; stands alone |
//!
//! `default VERDICT` says what becomes of packets that no rule matches; without it they pass.
//!
//! ```
//! use towpath_engine::rules::Rules;
//! let rules = Rules::parse(["pass tcp dport 22 src 10.0.0.0/8", "drop udp dport 53", "redirect b vlan 100", "default drop"])?;
//! assert_eq!(rules.len(), 3);
//! # Ok::<(), towpath_engine::rules::RuleError>(())
//! ```
//!
//! # What a rule does not see
//!
//! * **Ports of fragments.** Only the first fragment has them, and to treat it unlike the rest would tear packets apart:
//!   a rule with `sport` or `dport` matches no fragment. A set of rules that must let no fragment by says `drop frag` first.
//! * **Headers beyond the first [`LOOK`] bytes of a packet in pieces**, see [`dissect_packet`]. A packet that hides its
//!   ports behind a long row of extension headers matches no rule about ports; `default drop` with rules that pass is safe
//!   against that, a list of what to drop is not.
//! * **The inside of tunnels.**
//! * **What happens later.** Bytes in fragments that belong to an application are those of the moment of the look: it may
//!   change them after. Where a verdict must bind, make the headers linear first
//!   ([`Packet::make_linear`](towpath_packet::Packet::make_linear); a page needs a
//!   [head](towpath_packet::Cache::give_head) for that).
//!
//! # Cost
//!
//! No rule and no closure: nothing, [`Judge::constant`] says so. Else one dissection a packet, a key of 64 bytes made from
//! it, and for each rule up to the first that matches one masked compare of that key. Nothing is allocated.

mod compiled;
mod judge;
mod parse;
mod rule;
#[cfg(test)]
mod tests;
mod verdict;

pub use judge::{Judge, LOOK, dissect_packet, verdicts};
pub use parse::RuleError;
pub use rule::{Match, Prefix, Rule, Span};
pub use verdict::{PortSide, Verdict};

use compiled::{Compiled, Key};
use std::fmt;
use towpath_packet::Packet;
use towpath_wire::{Dissected, LinkKind, ethernet::ethertype};

/// An ordered list of rules; the first that matches decides.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    compiled: Vec<Compiled>,
    default: Verdict,
    /// Whether a rule asks for MAC addresses, which are read from the packet itself.
    macs: bool,
}

impl Rules {
    /// Rules in words, in their order, and at most one `default VERDICT` among them.
    ///
    /// # Errors
    /// [`RuleError`] names the rule, the word, and what could stand there.
    pub fn parse<I>(texts: I) -> Result<Rules, RuleError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let mut rules = Rules::default();
        let mut default = None;
        for text in texts {
            match parse::line(text.as_ref())? {
                parse::Line::Rule(rule) => rules.push(rule),
                parse::Line::Default(verdict) => {
                    if default.replace(verdict).is_some() {
                        return Err(RuleError::at(text.as_ref(), "default", "is given twice"));
                    }
                }
            }
        }
        rules.default = default.unwrap_or_default();
        Ok(rules)
    }

    /// Adds a rule behind the others.
    pub fn push(&mut self, rule: Rule) {
        self.compiled.push(Compiled::new(&rule));
        self.macs |= rule.matches.src_mac.is_some() || rule.matches.dst_mac.is_some();
        self.rules.push(rule);
    }

    /// Sets what becomes of packets that no rule matches.
    pub fn set_default(&mut self, verdict: Verdict) {
        self.default = verdict;
    }

    /// What becomes of packets that no rule matches.
    pub fn default_verdict(&self) -> Verdict {
        self.default
    }

    /// The rules in their order.
    pub fn as_slice(&self) -> &[Rule] {
        &self.rules
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule, so that every packet gets the default.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The first rule, or the default, that sends packets of this end back to it.
    pub fn turns_back(&self, side: PortSide) -> Option<String> {
        self.first(|verdict| verdict == Verdict::Tx || verdict == Verdict::Port(side))
    }

    /// The first rule, or the default, that chooses a lane.
    pub fn names_a_lane(&self) -> Option<String> {
        self.first(|verdict| matches!(verdict, Verdict::Lane(_)))
    }

    /// The first rule, or the default, with such a verdict.
    fn first(&self, such: impl Fn(Verdict) -> bool) -> Option<String> {
        let rule = self.rules.iter().find(|rule| such(rule.verdict)).map(Rule::to_string);
        rule.or_else(|| such(self.default).then(|| format!("default {}", self.default)))
    }

    /// Whether the rules make sense where they are to be used: on ports with this link header, in a datapath with `lanes`
    /// lanes.
    ///
    /// # Errors
    /// [`RuleError`] names the first rule that asks for a lane that is not there, or for what no packet of such a port has.
    pub fn check(&self, link: LinkKind, lanes: u16) -> Result<(), RuleError> {
        let default = (format!("default {}", self.default), self.default, Match::default());
        for (text, verdict, matches) in
            self.rules.iter().map(|r| (r.to_string(), r.verdict, r.matches)).chain([default])
        {
            if let Verdict::Lane(lane) = verdict
                && lane >= lanes
            {
                let allowed = match lanes {
                    0 => "there are no lanes".to_owned(),
                    1 => "the only lane is 0".to_owned(),
                    _ => format!("lanes are 0 to {}", lanes - 1),
                };
                return Err(RuleError::at(&text, &format!("lane {lane}"), allowed));
            }
            let word = match matches {
                _ if link == LinkKind::Ethernet => continue,
                Match { src_mac: Some(_), .. } => "smac",
                Match { dst_mac: Some(_), .. } => "dmac",
                Match { vlan: Some(_), .. } => "vlan",
                Match { ethertype: Some(ethertype::ARP), .. } => "arp",
                Match { ethertype: Some(other), .. } if !matches!(other, ethertype::IPV4 | ethertype::IPV6) => "ether",
                _ => continue,
            };
            return Err(RuleError::at(&text, word, "the port carries bare IP packets, which have no Ethernet header"));
        }
        Ok(())
    }

    /// The number of the first rule that matches. `found` is what [`dissect_packet`] found in `packet`.
    #[inline]
    pub fn first_match(&self, packet: &Packet, found: &Dissected) -> Option<usize> {
        let key = Key::new(packet, found, self.macs);
        self.compiled.iter().position(|rule| rule.matches(&key))
    }

    /// What becomes of the packet. `found` is what [`dissect_packet`] found in it.
    #[inline]
    pub fn judge(&self, packet: &Packet, found: &Dissected) -> Verdict {
        let key = Key::new(packet, found, self.macs);
        let matching = self.compiled.iter().find(|rule| rule.matches(&key));
        matching.map_or(self.default, Compiled::verdict)
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        self.rules == other.rules && self.default == other.default
    }
}

impl Eq for Rules {}

/// One rule a line, the default last.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            writeln!(f, "{rule}")?;
        }
        write!(f, "default {}", self.default)
    }
}

impl Judge for Rules {
    #[inline]
    fn judge(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        Rules::judge(self, packet, found)
    }

    #[inline]
    fn constant(&self) -> Option<Verdict> {
        self.is_empty().then_some(self.default)
    }
}
