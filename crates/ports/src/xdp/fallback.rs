//! The fallback of a queue that stalls repeatedly: from zero copy to copy, from native to generic.
//!
//! ```text
//!   stalled ──► reopened in the same mode ──► stalled again, without a completion
//!                                               └──► fallback:   zero copy ──► copy      zerocopy=prefer
//!                                                               native    ──► generic   native=prefer, in copy mode
//! ```
//!
//! A required mode is kept: the queue is reopened in it again and again. A fallback is not undone
//! while the port runs.

use super::config::Config;
use crate::uri::Want;
use towpath_sys::bpf::AttachMode;

/// Stalls in a row, without a completion, before a fallback.
const STALLS_BEFORE_FALLBACK: u32 = 2;

/// A change of mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    /// From zero copy to copy mode.
    Copy,
    /// The program moves from the driver to the stack.
    Generic,
}

/// Consecutive stalls of one queue.
#[derive(Debug, Default)]
pub(super) struct StallCount(u32);

impl StallCount {
    /// Counts a stall; `worked` if a frame was completed since the queue was opened.
    pub(super) fn stalled(&mut self, worked: bool) {
        self.0 = if worked { 1 } else { self.0.saturating_add(1) };
    }

    /// The fallback that is due and permitted; `mode` of the program, if the port has one.
    pub(super) fn fallback(&mut self, config: &Config, zero_copy: bool, mode: Option<AttachMode>) -> Option<Fallback> {
        if self.0 < STALLS_BEFORE_FALLBACK {
            return None;
        }
        let may = |mode, other| mode == Want::Prefer && other != Want::Off;
        let step = match (zero_copy, mode) {
            (true, _) => may(config.zero_copy, config.copy).then_some(Fallback::Copy),
            (false, Some(AttachMode::Native)) => may(config.native, config.generic).then_some(Fallback::Generic),
            (false, Some(AttachMode::Generic) | None) => None,
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

    /// The fallback of each stall in a row, from zero copy in the driver on.
    fn fallbacks(config: &Config) -> Vec<Option<Fallback>> {
        let (mut zero_copy, mut mode, mut stalls) = (true, AttachMode::Native, StallCount::default());
        let mut stall = |_| {
            stalls.stalled(false);
            let step = stalls.fallback(config, zero_copy, Some(mode));
            match step {
                Some(Fallback::Copy) => zero_copy = false,
                Some(Fallback::Generic) => mode = AttachMode::Generic,
                None => {}
            }
            step
        };
        (0..6).map(&mut stall).collect()
    }

    #[test]
    fn a_preferred_mode_falls_back_at_every_second_stall_in_a_row() {
        let steps = fallbacks(&Config::default());
        assert_eq!(steps, [None, Some(Fallback::Copy), None, Some(Fallback::Generic), None, None]);
    }

    #[test]
    fn a_required_mode_and_one_without_alternative_are_kept() {
        let d = Config::default();
        for keeps in [Config { zero_copy: Want::Require, ..d.clone() }, Config { copy: Want::Off, ..d.clone() }] {
            assert_eq!(fallbacks(&keeps), [None; 6]);
        }
        for keeps in [Config { native: Want::Require, ..d.clone() }, Config { generic: Want::Off, ..d }] {
            assert_eq!(fallbacks(&keeps), [None, Some(Fallback::Copy), None, None, None, None]);
        }
    }

    #[test]
    fn a_queue_that_worked_in_between_keeps_its_mode() {
        let mut stalls = StallCount::default();
        for _ in 0..5 {
            stalls.stalled(true);
            assert_eq!(stalls.fallback(&Config::default(), true, Some(AttachMode::Native)), None);
        }
    }
}
