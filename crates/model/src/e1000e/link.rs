//! The link: carrier, negotiation, flaps.
//!
//! Time is counted in *ticks*: a burst or step of the device, or a read of STATUS by the driver. A
//! driver that polls the link of a stepped device therefore sees it come up.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Down,
    /// The remaining ticks.
    Negotiating(u32),
    Up,
}

#[derive(Debug)]
pub(crate) struct Link {
    state: State,
    negotiation: u32,
    /// The remaining ticks for which the link stays down.
    flap: u32,
}

impl Link {
    pub(crate) fn new(negotiation: u32) -> Link {
        Link { state: State::Down, negotiation, flap: 0 }
    }

    pub(crate) fn up(&self) -> bool {
        self.state == State::Up
    }

    /// Restarts the negotiation.
    pub(crate) fn restart(&mut self) {
        self.state = State::Down;
    }

    /// Takes the link down for `ticks` ticks.
    pub(crate) fn flap(&mut self, ticks: u32) {
        self.flap = ticks.max(1);
    }

    /// Advances one tick. `wanted`: driver and wire allow a link. Returns true if the link went up
    /// or down.
    #[inline]
    pub(crate) fn tick(&mut self, wanted: bool) -> bool {
        let before = self.up();
        let wanted = wanted && self.flap == 0;
        self.flap = self.flap.saturating_sub(1);
        self.state = match self.state {
            _ if !wanted => State::Down,
            State::Down if self.negotiation == 0 => State::Up,
            State::Down => State::Negotiating(self.negotiation),
            State::Negotiating(n) if n > 1 => State::Negotiating(n - 1),
            State::Negotiating(_) | State::Up => State::Up,
        };
        before != self.up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiation_takes_its_ticks() {
        let mut link = Link::new(3);
        let changes: Vec<_> = (0..6).map(|_| link.tick(true)).collect();
        assert_eq!(changes, [false, false, false, true, false, false]);
    }

    #[test]
    fn it_goes_down_at_once_if_it_is_not_wanted() {
        let mut link = Link::new(0);
        assert!(link.tick(true) && link.up());
        assert!(link.tick(false) && !link.up());
    }

    #[test]
    fn a_flap_ends_by_itself() {
        let mut link = Link::new(0);
        link.tick(true);
        link.flap(2);
        let up: Vec<_> = (0..4)
            .map(|_| {
                link.tick(true);
                link.up()
            })
            .collect();
        assert_eq!(up, [false, false, true, true]);
    }
}
