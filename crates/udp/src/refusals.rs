//! The segment sizes that the kernel refused.

/// Messages that are sent without `UDP_SEGMENT` before it is tried again: a route, a device or a
/// path MTU may have changed.
const TRY_AGAIN: u32 = 4096;

/// Which messages are sent without `UDP_SEGMENT`.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// The smallest segment size that was refused.
    from: usize,
    /// Messages until all sizes are tried again.
    left: u32,
}

impl Refusals {
    /// Nothing was refused yet; or everything is, for a kernel without `UDP_SEGMENT`.
    pub(crate) fn new(segmentation: bool) -> Refusals {
        if segmentation { Refusals { from: usize::MAX, left: 0 } } else { Refusals { from: 0, left: u32::MAX } }
    }

    pub(crate) fn allows(&self, segment: usize) -> bool {
        segment < self.from
    }

    /// Segments of this size were refused, and their datagrams accepted one by one.
    pub(crate) fn refused(&mut self, segment: usize) {
        *self = Refusals { from: self.from.min(segment), left: TRY_AGAIN };
    }

    /// A message was sent as single datagrams.
    pub(crate) fn sent_singly(&mut self) {
        if self.left == u32::MAX {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.from = usize::MAX;
        }
    }

    /// The smallest size that is refused now.
    pub(crate) fn from(&self) -> Option<usize> {
        (self.from != usize::MAX).then_some(self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_size_and_larger_ones_are_tried_again_after_some_messages() {
        let mut refusals = Refusals::new(true);
        refusals.refused(1400);
        refusals.refused(1500);
        assert!(refusals.allows(1399) && !refusals.allows(1400));
        (1..TRY_AGAIN).for_each(|_| refusals.sent_singly());
        assert_eq!(refusals.from(), Some(1400));
        refusals.sent_singly();
        assert!(refusals.allows(1500));
    }

    #[test]
    fn a_kernel_without_segmentation_is_not_tried_again() {
        let mut refusals = Refusals::new(false);
        (0..2 * TRY_AGAIN).for_each(|_| refusals.sent_singly());
        assert!(!refusals.allows(1));
    }
}
