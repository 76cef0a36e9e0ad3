//! Verdicts by rules and expressions, in order, with counted hits.

use super::{Filter, FilterError};
use crate::rules::{Classifier, Compiled, Key, Match, PortSide, Rule, RuleError, Rules, Verdict, parse_verdict};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Packet;
use towpath_wire::{Dissected, LinkKind};

/// An ordered list of verdicts, each with a rule or an expression; the first that matches decides.
///
/// A text that [`Rules`] reads has the meaning that it has there. Everything else is an expression
/// of pcap-filter(7); parentheses make one of a text that both read.
///
/// ```
/// use towpath_engine::filter::FilterRules;
/// let rules = FilterRules::parse(["drop udp dport 53", "tx tcp[tcpflags] & tcp-rst != 0", "default pass"])?;
/// assert_eq!(rules.hits().total(), [0, 0, 0]);
/// # Ok::<(), towpath_engine::rules::RuleError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FilterRules {
    entries: Vec<Entry>,
    default: Verdict,
    /// Whether any rule matches MAC addresses, which are read from the packet itself.
    macs: bool,
    hits: Hits,
}

#[derive(Debug, Clone)]
struct Entry {
    verdict: Verdict,
    condition: Condition,
}

#[derive(Debug, Clone)]
enum Condition {
    /// A rule of fields alone.
    Fields(Rule, Compiled),
    Filter(Filter),
}

impl FilterRules {
    /// Parses rules in order, with at most one `default VERDICT` among them.
    ///
    /// # Errors
    /// [`RuleError`] names the rule, the word, and the valid alternatives.
    pub fn parse<I>(texts: I) -> Result<FilterRules, RuleError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let mut list = FilterRules::default();
        let mut default = None;
        for text in texts {
            let text = text.as_ref();
            let one = match Rules::parse([text]) {
                Ok(one) => one,
                Err(error) => {
                    let entry = Entry::expression(text, error)?;
                    list.entries.push(entry);
                    continue;
                }
            };
            match one.as_slice() {
                [rule] => list
                    .entries
                    .push(Entry { verdict: rule.verdict, condition: Condition::Fields(*rule, Compiled::new(rule)) }),
                _ if default.replace(one.default_verdict()).is_some() => {
                    return Err(RuleError::at(text, "default", "is given twice"));
                }
                _ => {}
            }
        }
        list.default = default.unwrap_or_default();
        list.macs = list.entries.iter().any(|entry| match &entry.condition {
            Condition::Fields(rule, _) => rule.matches.src_mac.or(rule.matches.dst_mac).is_some(),
            Condition::Filter(_) => false,
        });
        list.hits = Hits::named(list.texts());
        Ok(list)
    }

    /// Passes what a filter matches, and drops the rest.
    pub fn only(filter: Filter) -> FilterRules {
        let entry = Entry { verdict: Verdict::Pass, condition: Condition::Filter(filter) };
        let mut list = FilterRules { entries: vec![entry], default: Verdict::Drop, ..FilterRules::default() };
        list.hits = Hits::named(list.texts());
        list
    }

    /// Whether there is no rule, so that every packet gets the default.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How often each rule decided, over all classifiers of this list and its clones.
    pub fn hits(&self) -> &Hits {
        &self.hits
    }

    /// The rules as text, and the default.
    fn texts(&self) -> Vec<String> {
        self.entries.iter().map(Entry::text).chain([format!("default {}", self.default)]).collect()
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.entries.iter().map(|entry| entry.verdict).chain([self.default])
    }

    fn first(&self, such: impl Fn(Verdict) -> bool) -> Option<String> {
        let at = self.verdicts().position(such)?;
        self.texts().into_iter().nth(at)
    }

    /// The first rule, or the default, that sends packets of this side back.
    pub fn first_reflecting(&self, side: PortSide) -> Option<String> {
        self.first(|verdict| verdict == Verdict::Tx || verdict == Verdict::Port(side))
    }

    /// The first rule, or the default, that chooses a lane.
    pub fn first_naming_lane(&self) -> Option<String> {
        self.first(|verdict| matches!(verdict, Verdict::Lane(_)))
    }

    /// Checks the rules for ports with this link header and a datapath with `lanes` lanes.
    ///
    /// # Errors
    /// As for [`Rules::check`]; also for an expression about headers that these packets lack.
    pub fn check(&self, link: LinkKind, lanes: u16) -> Result<(), RuleError> {
        let mut default = Rules::default();
        default.set_default(self.default);
        default.check(link, lanes)?;
        let one = |rule| {
            let mut rules = Rules::default();
            rules.push(rule);
            rules
        };
        for entry in &self.entries {
            match &entry.condition {
                Condition::Fields(rule, _) => one(*rule).check(link, lanes)?,
                Condition::Filter(filter) => {
                    filter.check(link).map_err(|error| as_rule_error(&entry.text(), error))?;
                    let any = one(Rule { verdict: entry.verdict, matches: Match::default() });
                    any.check(link, lanes).map_err(|error| RuleError { rule: entry.text(), ..error })?;
                }
            }
        }
        Ok(())
    }

    /// A classifier for packets of such a link, on one thread; its hits are added to
    /// [`hits`](FilterRules::hits).
    pub fn classifier(&self, link: LinkKind) -> Box<dyn Classifier> {
        Box::new(Counting { list: self.clone(), link, counts: self.hits.counts() })
    }
}

impl Entry {
    /// `error`: why it is no rule of fields.
    fn expression(text: &str, error: RuleError) -> Result<Entry, RuleError> {
        let Some((verdict, rest)) = parse_verdict(text) else { return Err(error) };
        match rest.parse::<Filter>() {
            Ok(filter) => Ok(Entry { verdict, condition: Condition::Filter(filter) }),
            Err(wrong) => Err(likelier(text, error, wrong)),
        }
    }

    fn text(&self) -> String {
        match &self.condition {
            Condition::Fields(rule, _) => rule.to_string(),
            Condition::Filter(filter) => format!("{} {filter}", self.verdict),
        }
    }
}

/// Words of rules that expressions lack.
const FIELD_WORDS: [&str; 5] = ["smac", "dmac", "frag", "any", "default"];

/// The error that fits a text that is neither a rule of fields nor an expression.
pub(super) fn likelier(text: &str, rule: RuleError, filter: FilterError) -> RuleError {
    let has = |words: &[&str]| text.split_whitespace().any(|word| words.contains(&word));
    let ends_early = rule.word.is_none();
    let is_rule = has(&FIELD_WORDS) || (ends_early && !has(&["and", "or", "not", "&&", "||"]));
    // A contradiction is the meaning of a rule and not its spelling.
    let contradicts = rule.problem.contains("never matches") || rule.problem.starts_with("mixes");
    if is_rule || contradicts { rule } else { as_rule_error(text, filter) }
}

pub(super) fn as_rule_error(rule: &str, error: FilterError) -> RuleError {
    let place = match error.word {
        Some(_) => format!(" (column {} of '{}')", error.column, error.text),
        None => String::new(),
    };
    RuleError { rule: rule.to_owned(), word: error.word, problem: format!("{}{place}", error.problem) }
}

/// How often each rule decided.
#[derive(Debug, Clone, Default)]
pub struct Hits {
    texts: Arc<[String]>,
    /// Of each classifier; only its thread writes there.
    counts: Arc<Mutex<Vec<Counts>>>,
}

type Counts = Arc<[AtomicU64]>;

impl Hits {
    fn named(texts: Vec<String>) -> Hits {
        Hits { texts: texts.into(), counts: Arc::default() }
    }

    fn counts(&self) -> Counts {
        let counts: Counts = self.texts.iter().map(|_| AtomicU64::new(0)).collect();
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        counts
    }

    /// The rules in their order, the default last.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Packets that each of them decided on, so far.
    pub fn total(&self) -> Vec<u64> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |n: usize| counts.iter().filter_map(|one| one.get(n)).map(|hits| hits.load(Ordering::Relaxed)).sum();
        (0..self.texts.len()).map(sum).collect()
    }
}

/// The classifier of one thread.
struct Counting {
    list: FilterRules,
    link: LinkKind,
    counts: Counts,
}

impl Classifier for Counting {
    /// Without a rule all packets pass uncounted.
    fn constant(&self) -> Option<Verdict> {
        (self.list.entries.is_empty() && self.list.default == Verdict::Pass).then_some(Verdict::Pass)
    }

    #[inline]
    fn classify(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        let mut key = None;
        let matching = self.list.entries.iter().enumerate().find(|(_, entry)| match &entry.condition {
            Condition::Fields(_, rule) => {
                rule.matches(key.get_or_insert_with(|| Key::new(packet, found, self.list.macs)))
            }
            Condition::Filter(filter) => filter.matches(packet, self.link),
        });
        let (at, verdict) = matching.map_or((self.list.entries.len(), self.list.default), |(n, e)| (n, e.verdict));
        if let Some(hits) = self.counts.get(at) {
            // No other thread writes it.
            hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        verdict
    }
}
