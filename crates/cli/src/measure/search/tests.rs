//! The search against a device whose truth is known.
//!
//! The device passes `min(load, capacity)`, and loses in each trial a part of it between nothing
//! and `noise`. So there are three kinds of loads: those at which no trial has more loss than the
//! goal allows, those at which each has, and between them those at which it depends on the trial.
//! The first and the last kind are known exactly: a load of the last one is never a lower bound,
//! and one of the first never an upper bound. Between them both are right. The allowed loss lies
//! above the capacity: `1 - capacity / load <= loss` holds up to `capacity / (1 - loss)`.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
struct Device {
    capacity: f64,
    noise: f64,
    /// Each trial has all of the noise or none of it, instead of a part.
    extreme: bool,
}

impl Device {
    fn loss(&self, load: u64, noise: f64) -> f64 {
        1.0 - (1.0 - noise) * (self.capacity / load as f64).min(1.0)
    }
}

/// A number from 0 to 1 of the sequence that is SplitMix64's.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn goal() -> impl Strategy<Value = Goal> {
    let loss = prop_oneof![Just(0.0), Just(0.005), 0.0..0.3];
    let lengths = (1..20u32, prop_oneof![Just(1u32), 1..8u32], prop_oneof![Just(1.0), 1.0..30.0]);
    (loss, lengths, 0.0..0.7f64, prop_oneof![Just(0.005), 0.0005..0.2]).prop_map(|(loss, lengths, exceed, width)| {
        let (tenths, shorter, times) = lengths;
        let duration = Duration::from_millis(u64::from(tenths) * 100);
        Goal { loss, initial: duration / shorter, duration, sum: duration.mul_f64(times), exceed, width }
    })
}

fn device() -> impl Strategy<Value = Device> {
    let noise = prop_oneof![2 => Just(0.0), 1 => 0.0..0.01, 1 => 0.0..0.3];
    // Also beyond both ends of the range.
    (2.0..7.0f64, noise, any::<bool>()).prop_map(|(power, noise, extreme)| Device {
        capacity: 10f64.powf(power),
        noise,
        extreme,
    })
}

/// The class of a load by trials of one length, found by counting.
fn counted(goal: &Goal, outcomes: &[Outcome]) -> Class {
    let [mut low, mut high] = [0.0, 0.0];
    for outcome in outcomes {
        *(if outcome.loss > goal.loss { &mut high } else { &mut low }) += outcome.duration.as_secs_f64();
    }
    let to_come = (goal.sum.as_secs_f64() - low - high).max(0.0);
    let whole = low + high + to_come;
    if (high + to_come) / whole <= goal.exceed + 1e-9 {
        Class::Lower
    } else if high / whole > goal.exceed + 1e-9 {
        Class::Upper
    } else {
        Class::Undecided
    }
}

/// Runs a search to its end; returns the trials that it took.
fn run(search: &mut Search, device: Device, seed: u64) -> usize {
    let (mut state, mut trials) = (seed, 0);
    while let Some(next) = search.next() {
        let noise = random(&mut state);
        let noise = if device.extreme { noise.round() } else { noise } * device.noise;
        search.record(next.load, next.duration, device.loss(next.load, noise));
        trials += 1;
        assert!(trials < 5000, "it does not end: {next:?}");
    }
    trials
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(1500), ..ProptestConfig::default() })]

    #[test]
    fn the_bounds_are_right_wherever_the_truth_does_not_depend_on_chance_and_as_near_as_the_goal_asks(
        goals in prop::collection::vec(goal(), 1..4), device in device(), seed in any::<u64>(),
    ) {
        let (min, max) = (1000, 1_000_000);
        let mut search = Search::new(&goals, min, max);
        run(&mut search, device, seed);
        for found in search.found() {
            let Found { goal, bounds, throughput, complete } = found;
            prop_assert!(complete, "{found:?}");
            if let Some(lower) = bounds.lower {
                prop_assert!(device.loss(lower, 0.0) <= goal.loss, "never so little loss: {found:?}");
                let throughput = throughput.unwrap();
                let least = lower as f64 * (1.0 - goal.loss) - 1e-6;
                prop_assert!(throughput >= least && throughput <= lower as f64, "{found:?}");
                prop_assert!(throughput <= device.capacity * (1.0 + 1e-9), "more than it can: {found:?}");
            }
            if let Some(upper) = bounds.upper {
                prop_assert!(device.loss(upper, device.noise) > goal.loss, "always less loss: {found:?}");
            }
            match (bounds.lower, bounds.upper) {
                (Some(lower), Some(upper)) => {
                    prop_assert!(lower < upper && (upper - lower) as f64 <= (upper as f64 * goal.width).max(1.0), "{found:?}");
                }
                (Some(lower), None) => prop_assert_eq!(lower, max),
                (None, Some(upper)) => prop_assert_eq!(upper, min),
                (None, None) => prop_assert!(false, "no bound: {found:?}"),
            }
            if goals.iter().all(|other| other.initial == goal.duration && other.duration == goal.duration) {
                for (load, class) in [(bounds.lower, Class::Lower), (bounds.upper, Class::Upper)] {
                    if let Some(load) = load {
                        prop_assert_eq!(counted(&goal, &search.outcomes[&load]), class);
                    }
                }
            }
        }
    }

    #[test]
    fn without_chance_the_truth_lies_between_the_bounds(goal in goal(), power in 3.2..5.8f64, seed in any::<u64>()) {
        let device = Device { capacity: 10f64.powf(power), noise: 0.0, extreme: false };
        let truth = device.capacity / (1.0 - goal.loss);
        let mut search = Search::new(&[goal], 1000, 1_000_000);
        run(&mut search, device, seed);
        let Bounds { lower, upper } = search.found()[0].bounds;
        // At the load that is the truth, a rounding decides.
        prop_assert!(lower.is_none_or(|lower| lower as f64 <= truth * (1.0 + 1e-12)), "{lower:?} {truth}");
        prop_assert!(upper.is_none_or(|upper| upper as f64 >= truth * (1.0 - 1e-12)), "{upper:?} {truth}");
    }
}

#[test]
fn a_device_without_chance_takes_few_trials() {
    let duration = Duration::from_secs(1);
    let goal = Goal { loss: 0.0, initial: duration / 5, duration, sum: duration, exceed: 0.5, width: 0.005 };
    let device = Device { capacity: 123_456.0, noise: 0.0, extreme: false };
    let mut search = Search::new(&[goal], 1000, 10_000_000);
    let trials = run(&mut search, device, 1);
    assert!(trials < 20, "{trials}");
}

#[test]
fn what_is_found_so_far_is_known_at_any_time_and_not_complete() {
    let duration = Duration::from_secs(1);
    let goal = Goal { loss: 0.0, initial: duration, duration, sum: duration, exceed: 0.5, width: 0.005 };
    let mut search = Search::new(&[goal], 1000, 1_000_000);
    let none = search.found()[0];
    assert_eq!((none.bounds, none.throughput, none.complete), (Bounds::default(), None, false));
    assert_eq!(search.next(), Some(Next { load: 1_000_000, duration }));
    search.record(1_000_000, duration, 0.5);
    let one = search.found()[0];
    assert_eq!((one.bounds, one.complete), (Bounds { lower: None, upper: Some(1_000_000) }, false));
    assert_eq!(search.next(), Some(Next { load: 500_000, duration }), "what passed at the maximum");
}
