//! What the device can do next, and doing it: one action at a time.

use super::super::config::{Family, RxMarker};
use super::super::tx::TEARDOWN;
use super::super::view::View;
use super::{Device, RINGS};

/// One thing that the device can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Fetch(usize),
    Read(usize),
    Transmit(usize),
    Complete(usize),
    EndTx(usize),
    Take,
    Write,
    WriteBack,
    CompleteRx,
    EndRx,
    Publish(usize),
    PublishMarker(usize),
    Drain(usize),
    Arrive(usize),
}

impl Device {
    /// What can be done next.
    fn list(&mut self) {
        self.enabled.clear();
        for &c in &self.used {
            let channel = &self.tx[c];
            let ring = &self.rings[usize::from(channel.ring) % RINGS];
            let can = [
                (channel.can_fetch(ring), Action::Fetch(c)),
                (channel.can_read(), Action::Read(c)),
                (channel.can_transmit(&self.switch), Action::Transmit(c)),
                (channel.can_complete(), Action::Complete(c)),
                (channel.can_mark(), Action::EndTx(c)),
            ];
            self.enabled.extend(can.iter().filter(|(can, _)| *can).map(|&(_, action)| action));
        }
        let depth = usize::from(self.config.prefetch.clamp(1, 16));
        let can = [
            (self.rx.can_take(&self.switch, &self.rings, depth), Action::Take),
            (self.rx.can_write(), Action::Write),
            (self.rx.can_write_back(), Action::WriteBack),
            (self.rx.can_complete(), Action::CompleteRx),
            (self.rx.can_end(&self.switch), Action::EndRx),
        ];
        self.enabled.extend(can.iter().filter(|(can, _)| *can).map(|&(_, action)| action));
        for &r in &self.lagging {
            if self.rings[r].lags() {
                self.enabled.push(Action::Publish(r));
            }
            if self.rings[r].marker_lags() {
                self.enabled.push(Action::PublishMarker(r));
            }
        }
        for port in 0..self.switch.ports.len() {
            if self.switch.can_drain(port) {
                self.enabled.push(Action::Drain(port));
            }
            if self.rx.peer & TEARDOWN == 0 && self.switch.can_arrive(port) {
                self.enabled.push(Action::Arrive(port));
            }
        }
    }

    /// One action, chosen by `choice` among those that are possible; false when there is none.
    pub(crate) fn step(&mut self, choice: u64) -> bool {
        self.list();
        if self.enabled.is_empty() {
            return false;
        }
        let action = self.enabled[(choice % self.enabled.len() as u64) as usize];
        self.act(action)
    }

    pub(crate) fn random_step(&mut self) -> bool {
        let choice = self.seed.next();
        self.step(choice)
    }

    /// Everything that is possible, each thing once, in a fixed order; returns how many there were.
    pub(crate) fn sweep(&mut self) -> usize {
        self.list();
        let actions = std::mem::take(&mut self.enabled);
        let done = actions.iter().filter(|&&action| self.act(action)).count();
        self.enabled = actions;
        done
    }

    fn given(&mut self, ring: u16) {
        let ring = usize::from(ring);
        if !self.config.lag {
            self.rings[ring].publish_marker();
        } else if !self.lagging.contains(&ring) {
            self.lagging.push(ring);
        }
    }

    fn act(&mut self, action: Action) -> bool {
        self.steps += 1;
        let dma = self.dma.clone();
        let (view, family) = (&View::new(&dma), self.config.soc.family());
        match action {
            Action::Drain(port) => return self.switch.drain(port),
            Action::Arrive(port) => {
                if self.rx.enabled() {
                    self.switch.arrive(port);
                } else {
                    self.switch.discard(port);
                }
            }
            Action::Publish(ring) => {
                self.rings[ring].publish();
                self.settle(ring);
            }
            Action::PublishMarker(ring) => {
                self.rings[ring].publish_marker();
                self.settle(ring);
            }
            Action::Fetch(c) | Action::Read(c) | Action::Transmit(c) | Action::Complete(c) | Action::EndTx(c) => {
                self.act_tx(action, c, view);
            }
            Action::Take => self.rx.take(&mut self.switch, &mut self.rings, family, view, &mut self.check),
            Action::Write => self.rx.write(family, view, &mut self.check),
            Action::WriteBack => self.rx.write_back(family, view, &mut self.check),
            Action::CompleteRx => {
                if let Some((element, ring)) = self.rx.complete(&mut self.switch, view, &mut self.check)
                    && let Some(completion) = self.rings.get_mut(usize::from(ring))
                {
                    completion.give(element, view, &mut self.check);
                    self.given(ring);
                }
            }
            Action::EndRx => self.end_rx(),
        }
        true
    }

    fn act_tx(&mut self, action: Action, c: usize, view: &View<'_>) {
        let Device { tx, rings, switch, check, config, .. } = self;
        let channel = &mut tx[c];
        let number = usize::from(channel.ring) % RINGS;
        let returns = match config.soc.family() {
            Family::Pktdma => channel.ring,
            Family::Udma => channel.config.map_or(0, |config| config.completion_ring),
        };
        match action {
            Action::Fetch(_) => channel.fetch(&mut rings[number], config.soc.family(), view, check),
            Action::Read(_) => channel.read(&rings[number], switch, view, check),
            Action::Transmit(_) => channel.transmit(switch),
            Action::Complete(_) => {
                if let Some(element) = channel.complete(config.poison, view, check)
                    && let Some(ring) = rings.get_mut(usize::from(returns))
                {
                    ring.give(element, view, check);
                    self.given(returns);
                }
            }
            _ => {
                let record = channel.end_teardown();
                if let Some(ring) = rings.get_mut(usize::from(returns)) {
                    match config.soc.family() {
                        Family::Pktdma => ring.mark(check),
                        Family::Udma => ring.give(record, view, check),
                    }
                    self.given(returns);
                }
            }
        }
    }

    fn end_rx(&mut self) {
        self.rx.end_teardown();
        self.switch.flush();
        if !self.config.soc.marks_rx_teardown() {
            return;
        }
        let Some(config) = self.rx.config else { return };
        let flows = match self.config.rx_marker {
            RxMarker::FirstFlow => 1,
            RxMarker::AllFlows => config.flow_count,
        };
        for flow in config.flow_start..config.flow_start + flows {
            let ring = self.config.soc.rx_ring(flow);
            self.rings[usize::from(ring)].mark(&mut self.check);
            self.given(ring);
        }
    }

    fn settle(&mut self, ring: usize) {
        if !self.rings[ring].lags() && !self.rings[ring].marker_lags() {
            self.lagging.retain(|&other| other != ring);
        }
    }
}
