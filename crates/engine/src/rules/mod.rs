//! Verdicts on packets, by textual rules or by a closure.
//!
//! ```text
//!   packet ── dissect_packet ──► Dissected ── Classifier::classify ──► Verdict
//!                                    │          ├ Rules: the first match, else the default
//!                                    │          └ any FnMut(&Packet, &Dissected) -> Verdict
//!                                    └──► symmetric_hash: the lane, from the same dissection
//! ```
//!
//! | file | content |
//! |---|---|
//! | `classifier` | [`Classifier`], [`dissect_packet`] |
//! | `verdict` | [`Verdict`], [`PortSide`] |
//! | `rule` | [`Rule`] as data, and its text form |
//! | `parse` | rules from text, [`RuleError`] |
//! | `compiled` | a rule as masked compares |
//! | `cover` | whether one match covers another one |
//!
//! # Syntax
//!
//! A rule is a verdict and a list of matches, all of which must hold:
//!
//! | verdict | the packet |
//! |---|---|
//! | `pass` | continues: steering, lanes, GRO, egress |
//! | `drop` | is dropped and counted as `filtered` |
//! | `tx` | leaves by the port that it came from |
//! | `redirect a`, `redirect b` | leaves by the named end of `fwd A B` |
//! | `lane N` | continues in lane `N`, whatever its hash |
//!
//! | match | holds for |
//! |---|---|
//! | `tcp`, `udp`, `sctp`, `icmp`, `icmp6`, `proto N` | IP packets with this transport protocol |
//! | `src PREFIX`, `dst PREFIX` | `10.0.0.0/8`, `2001:db8::/32`; without a length one address |
//! | `sport PORTS`, `dport PORTS` | `53` or `1024-2047`; unfragmented TCP, UDP or SCTP |
//! | `vlan IDS` | `100` or `100-199`; any tag, in the frame or in the metadata |
//! | `smac MAC`, `dmac MAC` | `02:00:00:00:00:01`, the whole address |
//! | `ip`, `ip6`, `arp`, `ether TYPE` | the type behind all tags, `0x88cc` |
//! | `frag` | fragments of IP packets, the first included |
//! | `any` | everything; stands alone |
//!
//! `default VERDICT` is the verdict on packets that no rule matches; without it they pass.
//!
//! ```
//! use towpath_engine::rules::Rules;
//! let rules = Rules::parse([
//!     "pass tcp dport 22 src 10.0.0.0/8",
//!     "drop udp dport 53",
//!     "redirect b vlan 100",
//!     "default drop",
//! ])?;
//! assert_eq!(rules.len(), 3);
//! # Ok::<(), towpath_engine::rules::RuleError>(())
//! ```
//!
//! # What rules do not see
//!
//! * **Ports of fragments.** Only the first fragment has ports, and treating it differently from
//!   the rest would tear packets apart: a rule with `sport` or `dport` matches no fragment. Rules
//!   that must stop fragments begin with `drop frag`.
//! * **Headers beyond the first [`DISSECT_LEN`] bytes of a packet of fragments**, see
//!   [`dissect_packet`]. A packet that hides its ports behind many extension headers matches no
//!   rule about ports. `default drop` with `pass` rules is safe against that; a list of `drop`
//!   rules is not.
//! * **The inside of tunnels.**
//! * **Later changes.** Fragments in an application's memory are dissected as they are at that
//!   moment, and the application may change them later. Where a verdict must bind, make the headers
//!   linear first ([`Packet::make_linear`](towpath_packet::Packet::make_linear); a page needs a
//!   [head](towpath_packet::Cache::ensure_head) for that).
//!
//! # Cost
//!
//! Without rules and closure: none ([`Classifier::constant`]). Otherwise one dissection per packet,
//! a key of 64 bytes made from it, and one masked compare of that key for each rule up to the first
//! match. Nothing is allocated.

mod classifier;
mod compiled;
mod cover;
mod parse;
mod rule;
#[cfg(test)]
mod tests;
mod verdict;

pub(crate) use classifier::symmetric_hash;
pub use classifier::{Classifier, DISSECT_LEN, classify_batch, dissect_packet};
pub use parse::RuleError;
pub(crate) use parse::{contradiction, parse_verdict};
pub use rule::{Match, Prefix, Rule, Span};
pub use verdict::{PortSide, Verdict};

use compiled::{Compiled, Key};
use std::fmt;
use towpath_packet::Packet;
use towpath_wire::ethernet::ethertype;
use towpath_wire::{Dissected, LinkKind};

/// An ordered list of rules; the first that matches decides.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    compiled: Vec<Compiled>,
    default: Verdict,
    /// Whether any rule matches MAC addresses, which are read from the packet itself.
    macs: bool,
}

impl Rules {
    /// Parses rules in order, with at most one `default VERDICT` among them.
    ///
    /// # Errors
    /// [`RuleError`] names the rule, the word, and the valid alternatives.
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

    /// Appends a rule.
    pub fn push(&mut self, rule: Rule) {
        self.compiled.push(Compiled::new(&rule));
        self.macs |= rule.matches.src_mac.is_some() || rule.matches.dst_mac.is_some();
        self.rules.push(rule);
    }

    /// Sets the verdict on packets that no rule matches.
    pub fn set_default(&mut self, verdict: Verdict) {
        self.default = verdict;
    }

    /// The verdict on packets that no rule matches.
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

    /// The first rule, or the default, that sends packets of this side back.
    pub fn first_reflecting(&self, side: PortSide) -> Option<String> {
        self.text_of(|verdict| verdict == Verdict::Tx || verdict == Verdict::Port(side))
    }

    /// The first rule, or the default, that chooses a lane.
    pub fn first_naming_lane(&self) -> Option<String> {
        self.text_of(|verdict| matches!(verdict, Verdict::Lane(_)))
    }

    /// The first rule, or the default, whose verdict matches `such`.
    fn text_of(&self, such: impl Fn(Verdict) -> bool) -> Option<String> {
        let rule = self.rules.iter().find(|rule| such(rule.verdict)).map(Rule::to_string);
        rule.or_else(|| such(self.default).then(|| format!("default {}", self.default)))
    }

    /// Checks the rules for ports with this link header and a datapath with `lanes` lanes.
    ///
    /// # Errors
    /// [`RuleError`] names the first rule with a lane that does not exist, or with a field that no
    /// packet of these ports has.
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

    /// The index of the first rule that matches. `found` is the result of [`dissect_packet`].
    #[inline]
    pub fn first_match(&self, packet: &Packet, found: &Dissected) -> Option<usize> {
        self.first(packet, found).map(|(at, _)| at)
    }

    /// The index of the first rule that matches, and its verdict.
    #[inline(always)]
    pub(crate) fn first(&self, packet: &Packet, found: &Dissected) -> Option<(usize, Verdict)> {
        let key = Key::new(packet, found, self.macs);
        let mut rules = self.compiled.iter().enumerate();
        rules.find(|(_, rule)| rule.matches(&key)).map(|(at, rule)| (at, rule.verdict()))
    }

    /// The verdict on a packet. `found` is the result of [`dissect_packet`].
    #[inline(always)]
    pub fn classify(&self, packet: &Packet, found: &Dissected) -> Verdict {
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

/// One rule per line, the default last.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            writeln!(f, "{rule}")?;
        }
        write!(f, "default {}", self.default)
    }
}

impl Classifier for Rules {
    #[inline(always)]
    fn classify(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        Rules::classify(self, packet, found)
    }

    #[inline]
    fn constant(&self) -> Option<Verdict> {
        self.is_empty().then_some(self.default)
    }
}
