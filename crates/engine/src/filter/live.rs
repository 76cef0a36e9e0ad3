//! Rules that are replaced while their classifiers run.
//!
//! ```text
//!   replace ─► slot of each classifier: next, then generation + 1
//!   worker  ─► at a burst: one relaxed load; if it is new, the classifier and `next` change places
//! ```
//!
//! The worker never waits: while the slot is locked, the burst has the rules before. What it had is
//! left in the slot, and freed by the next replacement.

use super::{FilterRules, Hits};
use crate::rules::{Classifier, Verdict};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_packet::Packet;
use towpath_wire::{Dissected, LinkKind};

/// Rules that can be replaced from any thread; a clone refers to the same rules.
#[derive(Clone, Default)]
pub struct LiveRules(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    rules: FilterRules,
    slots: Vec<(Arc<Slot>, LinkKind)>,
    /// Of lists that were replaced, and that a worker may still have.
    before: Vec<Hits>,
    /// Hits of lists that are no longer in use, of the rules that are in force.
    ended: BTreeMap<String, u64>,
}

impl State {
    /// What earlier lists decided by a rule of this text.
    fn earlier(&self, text: &str) -> u64 {
        let of = |hits: &Hits| {
            hits.texts().iter().zip(hits.total()).filter(|(known, _)| *known == text).map(|(_, n)| n).sum::<u64>()
        };
        self.ended.get(text).copied().unwrap_or(0) + self.before.iter().map(of).sum::<u64>()
    }

    /// Adds up what can grow no more.
    fn collect(&mut self) {
        let (held, ended): (Vec<_>, _) = std::mem::take(&mut self.before).into_iter().partition(Hits::are_counted);
        self.before = held;
        for hits in ended {
            for (text, n) in hits.texts().iter().zip(hits.total()) {
                *self.ended.entry(text.clone()).or_default() += n;
            }
        }
        // What is no longer there is forgotten.
        let texts = self.rules.hits().texts();
        self.ended.retain(|text, _| texts.contains(text));
    }
}

struct Slot {
    generation: AtomicU64,
    next: Mutex<Box<dyn Classifier>>,
}

impl LiveRules {
    /// Begins with `rules`.
    pub fn new(rules: FilterRules) -> LiveRules {
        LiveRules(Arc::new(Mutex::new(State { rules, ..State::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many packets each rule decided on, the default as the last. A rule that stays when the
    /// others are replaced keeps its number.
    pub fn hits(&self) -> Vec<(String, u64)> {
        let state = self.lock();
        let hits = state.rules.hits();
        let all = hits.texts().iter().zip(hits.total());
        all.map(|(text, n)| (text.clone(), n + state.earlier(text))).collect()
    }

    /// The rules that were given last.
    pub fn rules(&self) -> FilterRules {
        self.lock().rules.clone()
    }

    /// Replaces the rules. Each classifier has the new ones from its next burst on. The rules are
    /// not checked against a link or lanes: see [`FilterRules::check`].
    pub fn replace(&self, rules: FilterRules) {
        let mut state = self.lock();
        // A classifier that is dropped holds its slot no more.
        state.slots.retain(|(slot, _)| Arc::strong_count(slot) > 1);
        for (slot, link) in &state.slots {
            let mut next = slot.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = rules.classifier(*link);
            slot.generation.fetch_add(1, Ordering::Relaxed);
        }
        let before = std::mem::replace(&mut state.rules, rules);
        state.before.push(before.hits().clone());
        state.collect();
    }

    /// A classifier for packets of such a link, on one thread.
    pub fn classifier(&self, link: LinkKind) -> Box<dyn Classifier> {
        let mut state = self.lock();
        let next = Mutex::new(FilterRules::default().classifier(link));
        let slot = Arc::new(Slot { generation: AtomicU64::new(0), next });
        state.slots.push((slot.clone(), link));
        Box::new(Live { current: state.rules.classifier(link), slot, seen: 0 })
    }
}

impl std::fmt::Debug for LiveRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LiveRules").field(&self.rules()).finish()
    }
}

/// The classifier of one thread.
struct Live {
    current: Box<dyn Classifier>,
    slot: Arc<Slot>,
    seen: u64,
}

impl Live {
    #[cold]
    fn take_next(&mut self) {
        let Ok(mut next) = self.slot.next.try_lock() else { return };
        std::mem::swap(&mut self.current, &mut next);
        // It changes only while the slot is locked.
        self.seen = self.slot.generation.load(Ordering::Relaxed);
    }
}

impl Classifier for Live {
    fn begin_burst(&mut self) {
        if self.slot.generation.load(Ordering::Relaxed) != self.seen {
            self.take_next();
        }
    }

    fn classify(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        self.current.classify(packet, found)
    }

    fn constant(&self) -> Option<Verdict> {
        self.current.constant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_the_rules_that_were_given_before_it() {
        let live = LiveRules::default();
        let mut classifier = live.classifier(LinkKind::Ethernet);
        assert_eq!(classifier.constant(), Some(Verdict::Pass));
        live.replace(FilterRules::parse(["drop any"]).unwrap());
        assert_eq!(classifier.constant(), Some(Verdict::Pass));
        classifier.begin_burst();
        assert_eq!(classifier.constant(), None);
        live.replace(FilterRules::default());
        classifier.begin_burst();
        assert_eq!(classifier.constant(), Some(Verdict::Pass));
    }

    #[test]
    fn a_rule_that_stays_keeps_its_hits_and_what_is_gone_is_forgotten() {
        let live = LiveRules::new(FilterRules::parse(["drop udp", "drop tcp"]).unwrap());
        let mut classifier = live.classifier(LinkKind::Ethernet);
        let packet = Packet::from_owner([0; 60]).unwrap();
        let found = crate::rules::dissect_packet(&packet, LinkKind::Ethernet);
        let hits = || live.hits().into_iter().map(|(_, n)| n).collect::<Vec<_>>();
        classifier.classify(&packet, &found);
        live.replace(FilterRules::parse(["drop tcp"]).unwrap());
        assert_eq!(hits(), [0, 1]);
        // The worker has the rules before until its next burst.
        classifier.classify(&packet, &found);
        assert_eq!(hits(), [0, 2]);
        for _ in 0..3 {
            classifier.begin_burst();
            classifier.classify(&packet, &found);
            live.replace(FilterRules::parse(["drop tcp"]).unwrap());
        }
        assert_eq!(hits(), [0, 5]);
        live.replace(FilterRules::parse(["default drop"]).unwrap());
        classifier.begin_burst();
        live.replace(FilterRules::default());
        classifier.begin_burst();
        live.replace(FilterRules::default());
        let state = live.lock();
        assert!(state.before.len() <= 2 && state.ended.is_empty(), "{:?}", state.ended);
    }

    #[test]
    fn slots_of_dropped_classifiers_are_freed() {
        let live = LiveRules::default();
        for _ in 0..1000 {
            drop(live.classifier(LinkKind::Ethernet));
            live.replace(FilterRules::default());
        }
        assert!(live.0.lock().unwrap().slots.is_empty());
    }
}
