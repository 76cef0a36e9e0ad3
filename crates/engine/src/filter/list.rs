//! Verdicts by rules and expressions, in order, with counted hits.

use super::{Filter, FilterError};
use crate::rules::{Classifier, Match, PortSide, Rule, RuleError, Rules, Verdict, parse_verdict};
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
/// let lines = ["drop udp dport 53", "tx tcp[tcpflags] & tcp-rst != 0", "default pass"];
/// let rules = FilterRules::parse(lines)?;
/// assert_eq!(rules.hits().total(), [0, 0, 0]);
/// # Ok::<(), towpath_engine::rules::RuleError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FilterRules {
    runs: Vec<Run>,
    default: Verdict,
    hits: Hits,
}

/// Neighbours in the list.
#[derive(Debug, Clone)]
enum Run {
    /// Rules, which share one look at the packet.
    Rules(Rules),
    Filter(Verdict, Filter),
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
        let (mut runs, mut default) = (Vec::new(), None);
        for text in texts {
            let text = text.as_ref();
            match Rules::parse([text]) {
                Err(error) => runs.push(Run::expression(text, error)?),
                Ok(one) => match (one.as_slice(), runs.last_mut()) {
                    ([rule], Some(Run::Rules(rules))) => rules.push(*rule),
                    ([_], _) => runs.push(Run::Rules(one)),
                    _ if default.replace(one.default_verdict()).is_some() => {
                        return Err(RuleError::at(text, "default", "is given twice"));
                    }
                    _ => {}
                },
            }
        }
        Ok(FilterRules::of(runs, default.unwrap_or_default()))
    }

    /// Passes what a filter matches, and drops the rest.
    pub fn only(filter: Filter) -> FilterRules {
        FilterRules::of(vec![Run::Filter(Verdict::Pass, filter)], Verdict::Drop)
    }

    fn of(runs: Vec<Run>, default: Verdict) -> FilterRules {
        let texts = runs.iter().flat_map(Run::texts).chain([format!("default {default}")]).collect();
        FilterRules { runs, default, hits: Hits::named(texts) }
    }

    /// Whether there is no rule, so that every packet gets the default.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How often each rule decided, over all classifiers of this list and its clones.
    pub fn hits(&self) -> &Hits {
        &self.hits
    }

    /// The text of the first rule, or the default, with such a verdict.
    fn first(&self, such: impl Fn(Verdict) -> bool) -> Option<String> {
        let at = self.runs.iter().flat_map(Run::verdicts).chain([self.default]).position(such)?;
        self.hits.texts().get(at).cloned()
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
        self.runs.iter().try_for_each(|run| run.check(link, lanes))?;
        let mut default = Rules::default();
        default.set_default(self.default);
        default.check(link, lanes)
    }

    /// A classifier for packets of such a link, on one thread; its hits are added to
    /// [`hits`](FilterRules::hits).
    pub fn classifier(&self, link: LinkKind) -> Box<dyn Classifier> {
        let (runs, default) = (self.runs.clone(), self.default);
        Box::new(Counting { runs, default, link, counts: self.hits.counts() })
    }
}

impl Run {
    /// `error`: why the text is no rule.
    fn expression(text: &str, error: RuleError) -> Result<Run, RuleError> {
        let Some((verdict, rest)) = parse_verdict(text) else { return Err(error) };
        match rest.parse() {
            Ok(filter) => Ok(Run::Filter(verdict, filter)),
            Err(wrong) => Err(likelier(text, error, wrong)),
        }
    }

    fn texts(&self) -> Vec<String> {
        match self {
            Run::Rules(rules) => rules.as_slice().iter().map(Rule::to_string).collect(),
            Run::Filter(verdict, filter) => vec![format!("{verdict} {filter}")],
        }
    }

    fn verdicts(&self) -> Vec<Verdict> {
        match self {
            Run::Rules(rules) => rules.as_slice().iter().map(|rule| rule.verdict).collect(),
            Run::Filter(verdict, _) => vec![*verdict],
        }
    }

    fn check(&self, link: LinkKind, lanes: u16) -> Result<(), RuleError> {
        match self {
            Run::Rules(rules) => rules.check(link, lanes),
            Run::Filter(verdict, filter) => {
                let text = format!("{verdict} {filter}");
                filter.check(link).map_err(|error| as_rule_error(&text, error))?;
                let mut any = Rules::default();
                any.push(Rule { verdict: *verdict, matches: Match::default() });
                any.check(link, lanes).map_err(|error| RuleError { rule: text, ..error })
            }
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

    /// Whether a classifier counts there still.
    pub(super) fn are_counted(&self) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().any(|one| Arc::strong_count(one) > 1)
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
    runs: Vec<Run>,
    default: Verdict,
    link: LinkKind,
    counts: Counts,
}

impl Classifier for Counting {
    /// Without a rule all packets pass uncounted.
    fn constant(&self) -> Option<Verdict> {
        (self.runs.is_empty() && self.default == Verdict::Pass).then_some(Verdict::Pass)
    }

    #[inline]
    fn classify(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        let (mut at, mut verdict) = (0, self.default);
        for run in &self.runs {
            let (matches, len) = match run {
                Run::Rules(rules) => (rules.first(packet, found), rules.len()),
                Run::Filter(verdict, filter) => (filter.matches(packet, self.link).then_some((0, *verdict)), 1),
            };
            if let Some((n, decided)) = matches {
                (at, verdict) = (at + n, decided);
                break;
            }
            at += len;
        }
        if let Some(hits) = self.counts.get(at) {
            // No other thread writes it.
            hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        verdict
    }
}
