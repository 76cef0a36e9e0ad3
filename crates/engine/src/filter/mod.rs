//! Filters: expressions of pcap-filter(7), compiled and applied to packets.
//!
//! ```text
//!   text ─► lex ─► parse, arith ─► Expr ─┬─► compile ─► Program ─► Filter::matches(&Packet)
//!                                        └─► steering ─► [Match], for ports that steer by rules
//! ```
//!
//! | file | content |
//! |---|---|
//! | `lex` | words and their places |
//! | `names` | fields, flags, ports and protocols with names; suggestions |
//! | `ast` | an expression as data |
//! | `parse` | conditions and lists |
//! | `values` | addresses, ports and protocols, with their qualifiers |
//! | `arith` | comparisons of computed numbers |
//! | `compile` | an expression as tests in a row, in libpcap's order |
//! | `program` | the tests, run on a packet |
//! | `steering` | an expression as [`Match`](crate::rules::Match)es of [rules](crate::rules) |
//! | `list` | [`FilterRules`]: verdicts by expressions and rules, with counted hits |
//! | `live` | [`LiveRules`]: rules that are replaced while their classifiers run |
//!
//! A filter gives the verdict that libpcap gives, also on packets that are cut short, tagged or
//! fragmented: the tests compare both, packet by packet. The language, and what of pcap-filter(7)
//! is left out, is in `docs/filters.md`.
//!
//! ```
//! use towpath_engine::filter::Filter;
//! let filter: Filter = "tcp port 80 or 443 and not src net 10.0.0.0/8".parse()?;
//! assert_eq!(filter.to_string(), "tcp port 80 or 443 and not src net 10.0.0.0/8");
//! let error = "tcp prot 80".parse::<Filter>().unwrap_err();
//! assert_eq!(error.column, 5);
//! # Ok::<(), towpath_engine::filter::FilterError>(())
//! ```
//!
//! # Cost
//!
//! A test is a bounded read, a mask and a compare. Nothing is allocated, and jumps lead forward
//! only. Bytes of a packet in several pieces are copied out one field at a time.

mod arith;
mod ast;
mod compile;
mod lex;
mod list;
mod live;
mod names;
mod parse;
mod program;
mod steering;
#[cfg(test)]
mod tests;
mod values;

pub use list::{FilterRules, Hits};
pub use live::LiveRules;
pub use steering::steering_matches;

use program::Program;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use towpath_packet::Packet;
use towpath_wire::LinkKind;

/// Longest expression, in bytes.
const MAX_TEXT: usize = 4096;

/// A compiled expression. A clone shares it.
#[derive(Debug, Clone)]
pub struct Filter(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    text: String,
    ethernet: Program,
    /// On links without an Ethernet header; or what of the expression needs one.
    ip: Result<Program, FilterError>,
}

impl Filter {
    /// Whether the expression can be applied to packets of such a link.
    ///
    /// # Errors
    /// [`FilterError`] names the part that is about an Ethernet header, on a link without one.
    pub fn check(&self, link: LinkKind) -> Result<(), FilterError> {
        match (link, &self.0.ip) {
            (LinkKind::Ip, Err(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Whether a packet matches. On a link that [`check`](Filter::check) refuses, none does.
    ///
    /// A VLAN tag in the metadata is read as if it were in the frame. The length of a super-packet
    /// is that of the whole.
    #[inline(never)]
    pub fn matches(&self, packet: &Packet, link: LinkKind) -> bool {
        self.program(link).is_some_and(|program| program.matches(packet))
    }

    /// Likewise for bytes in one piece.
    #[inline]
    pub fn matches_bytes(&self, bytes: &[u8], link: LinkKind) -> bool {
        self.program(link).is_some_and(|program| program.run(bytes))
    }

    #[inline]
    fn program(&self, link: LinkKind) -> Option<&Program> {
        match link {
            LinkKind::Ethernet => Some(&self.0.ethernet),
            LinkKind::Ip => self.0.ip.as_ref().ok(),
        }
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        let expr = parse::parse(text)?;
        let ethernet = compile::compile(text, &expr, LinkKind::Ethernet)?;
        let ip = compile::compile(text, &expr, LinkKind::Ip);
        Ok(Filter(Arc::new(Compiled { text: text.to_owned(), ethernet, ip })))
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Filter) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Filter {}

/// The expression as it was written.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("filter '{text}', column {column}: {}{problem}", .word.as_ref().map(|word| format!("'{word}' ")).unwrap_or_default())]
#[non_exhaustive]
pub struct FilterError {
    /// The expression.
    pub text: String,
    /// The place of the word, from 1 on, in characters.
    pub column: usize,
    /// The word that is wrong; `None` where one is missing.
    pub word: Option<String>,
    /// What is wrong with it, and what is expected.
    pub problem: String,
}

impl FilterError {
    /// About `len` bytes of the text.
    fn at(text: &str, at: usize, len: usize, problem: impl Into<String>) -> FilterError {
        let word = text.get(at..at + len).filter(|word| !word.is_empty());
        FilterError {
            text: text.to_owned(),
            column: text.get(..at).map_or(0, |before| before.chars().count()) + 1,
            word: word.map(str::to_owned),
            problem: problem.into(),
        }
    }
}
