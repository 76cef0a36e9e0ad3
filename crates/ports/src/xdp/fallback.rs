//! What a queue that stays stalled gives up, if that is allowed.
//!
//! ```text
//!   stalled ──► made anew, as it was ──► stalled again, nothing completed in between
//!                                           └──► the next step down:   zero copy ──► copy      zerocopy=prefer
//!                                                                      native    ──► generic   native=prefer, copying
//! ```
//!
//! What is required is kept: such a queue is made anew as it is, again and again. There is no way back up while the port runs.

use super::config::Config;
use crate::uri::Want;
use towpath_sys::bpf::Hook;

/// Stalls in a row, without anything completed, before something is given up.
const STRIKES: u32 = 2;

/// A way that is given up for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Frames are copied from now on.
    Copy,
    /// The program runs in the stack from now on.
    Generic,
}

/// Stalls of one queue in a row.
#[derive(Debug, Default)]
pub(super) struct Strikes(u32);

impl Strikes {
    /// The queue stalled; `worked` if anything was completed since it was made.
    pub(super) fn stalled(&mut self, worked: bool) {
        self.0 = if worked { 1 } else { self.0.saturating_add(1) };
    }

    /// What to give up now, if there is something to be given up.
    pub(super) fn step(&mut self, config: &Config, zero_copy: bool, hook: Hook) -> Option<Step> {
        if self.0 < STRIKES {
            return None;
        }
        let may = |this, other| this == Want::Prefer && other != Want::Off;
        let step = match (zero_copy, hook) {
            (true, _) => may(config.zero_copy, config.copy).then_some(Step::Copy),
            (false, Hook::Native) => may(config.native, config.generic).then_some(Step::Generic),
            (false, Hook::Generic) => None,
        };
        if step.is_some() {
            self.0 = 0;
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given up with each stall in a row, from zero copy in the driver on.
    fn ladder(config: &Config) -> Vec<Option<Step>> {
        let (mut zero_copy, mut hook, mut strikes) = (true, Hook::Native, Strikes::default());
        let mut stall = |_| {
            strikes.stalled(false);
            let step = strikes.step(config, zero_copy, hook);
            match step {
                Some(Step::Copy) => zero_copy = false,
                Some(Step::Generic) => hook = Hook::Generic,
                None => {}
            }
            step
        };
        (0..6).map(&mut stall).collect()
    }

    #[test]
    fn what_is_preferred_is_given_up_at_every_second_stall_in_a_row() {
        let steps = ladder(&Config::default());
        assert_eq!(steps, [None, Some(Step::Copy), None, Some(Step::Generic), None, None]);
    }

    #[test]
    fn what_is_required_and_what_has_no_other_way_is_kept() {
        let d = Config::default();
        for keeps in [Config { zero_copy: Want::Require, ..d.clone() }, Config { copy: Want::Off, ..d.clone() }] {
            assert_eq!(ladder(&keeps), [None; 6]);
        }
        for keeps in [Config { native: Want::Require, ..d.clone() }, Config { generic: Want::Off, ..d }] {
            assert_eq!(ladder(&keeps), [None, Some(Step::Copy), None, None, None, None]);
        }
    }

    #[test]
    fn a_queue_that_worked_in_between_is_given_another_chance() {
        let mut strikes = Strikes::default();
        for _ in 0..5 {
            strikes.stalled(true);
            assert_eq!(strikes.step(&Config::default(), true, Hook::Native), None);
        }
    }
}
