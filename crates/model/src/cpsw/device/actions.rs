//! The actions of the device, performed one at a time.

use super::super::config::RxMarker;
use super::super::dma_view::DmaView;
use super::super::soc::Family;
use super::super::tx::TEARDOWN;
use super::{Device, RINGS};

/// An action of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Fetch(usize),
    Read(usize),
    Transmit(usize),
    Complete(usize),
    EndTx(usize),
    FetchRx,
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
    /// Whether another channel goes first: under fixed priority that of a higher thread, as long as
    /// it has a packet. By turns, each channel has its turn by the order of actions.
    fn is_preempted(&self, channel: usize) -> bool {
        let thread = self.tx[channel].thread;
        let mut others =
            self.used.iter().map(|&c| &self.tx[c]).filter(|other| other.enabled() && other.thread > thread);
        self.switch.is_strict()
            && others.any(|other| other.contends(&self.rings[usize::from(other.ring) % RINGS], &self.switch))
    }

    /// Lists the actions that are possible now.
    fn list_actions(&mut self) {
        self.actions.clear();
        let family = self.config.soc.family();
        for &c in &self.used {
            let channel = &self.tx[c];
            let ring = &self.rings[usize::from(channel.ring) % RINGS];
            let waits = self.rings[usize::from(channel.return_ring(family)) % RINGS].waits();
            let can = [
                (channel.can_fetch(ring), Action::Fetch(c)),
                (channel.can_read(), Action::Read(c)),
                (channel.can_transmit(&self.switch) && !self.is_preempted(c), Action::Transmit(c)),
                (channel.can_complete() && !waits, Action::Complete(c)),
                (channel.can_mark() && !waits, Action::EndTx(c)),
            ];
            self.actions.extend(can.iter().filter(|(can, _)| *can).map(|&(_, action)| action));
        }
        let depth = usize::from(self.config.prefetch.clamp(1, 16));
        let can = [
            (self.rx.can_fetch(&self.switch, &self.rings, depth), Action::FetchRx),
            (self.rx.can_write(), Action::Write),
            (self.rx.can_write_back(), Action::WriteBack),
            (self.rx.can_complete(), Action::CompleteRx),
            (self.rx.can_end(&self.switch), Action::EndRx),
        ];
        self.actions.extend(can.iter().filter(|(can, _)| *can).map(|&(_, action)| action));
        for &r in &self.lagging {
            if self.rings[r].has_hidden() {
                self.actions.push(Action::Publish(r));
            }
            if self.rings[r].has_hidden_marker() {
                self.actions.push(Action::PublishMarker(r));
            }
        }
        for port in 0..self.switch.ports.len() {
            if self.switch.can_drain(port) {
                self.actions.push(Action::Drain(port));
            }
            if self.rx.peer & TEARDOWN == 0 && self.switch.can_arrive(port) {
                self.actions.push(Action::Arrive(port));
            }
        }
    }

    /// Performs one of the possible actions, chosen by `choice`; false if there is none.
    pub(crate) fn step(&mut self, choice: u64) -> bool {
        self.list_actions();
        if self.actions.is_empty() {
            return false;
        }
        let action = self.actions[(choice % self.actions.len() as u64) as usize];
        self.act(action)
    }

    pub(crate) fn random_step(&mut self) -> bool {
        let choice = self.seed.next();
        self.step(choice)
    }

    /// Performs each possible action once, in a fixed order; returns their number.
    pub(crate) fn sweep(&mut self) -> usize {
        self.list_actions();
        let actions = std::mem::take(&mut self.actions);
        let done = actions.iter().filter(|&&action| self.act(action)).count();
        self.actions = actions;
        done
    }

    fn completed(&mut self, ring: u16) {
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
        let (view, family) = (&DmaView::new(&dma), self.config.soc.family());
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
            Action::FetchRx => self.rx.fetch(&mut self.switch, &mut self.rings, family, view, &mut self.check),
            Action::Write => self.rx.write(family, view, &mut self.check),
            Action::WriteBack => self.rx.write_back(family, view, &mut self.check),
            Action::CompleteRx => {
                if let Some((element, ring)) = self.rx.complete(&mut self.switch, view, &mut self.check)
                    && let Some(completion) = self.rings.get_mut(usize::from(ring))
                {
                    completion.complete(element, view, &mut self.check);
                    self.completed(ring);
                }
            }
            Action::EndRx => self.end_rx(),
        }
        true
    }

    fn act_tx(&mut self, action: Action, c: usize, view: &DmaView<'_>) {
        let Device { tx, rings, switch, check, config, repeated, .. } = self;
        let channel = &mut tx[c];
        let number = usize::from(channel.ring) % RINGS;
        let returns = channel.return_ring(config.soc.family());
        match action {
            Action::Fetch(_) => channel.fetch(&mut rings[number], config.soc.family(), view, check),
            Action::Read(_) => channel.read(&rings[number], switch, view, check),
            Action::Transmit(_) => channel.transmit(switch),
            Action::Complete(_) => {
                if let Some(element) = channel.complete(config.poison, view, check)
                    && let Some(ring) = rings.get_mut(usize::from(returns))
                {
                    ring.complete(element, view, check);
                    if *repeated > 0 && config.soc.family() == Family::Udma && ring.has_room() {
                        *repeated -= 1;
                        ring.repeat(element, view, check);
                    }
                    self.completed(returns);
                }
            }
            _ => {
                let record = channel.end_teardown();
                if let Some(ring) = rings.get_mut(usize::from(returns)) {
                    match config.soc.family() {
                        Family::Pktdma => ring.mark_teardown(check),
                        Family::Udma => ring.complete(record, view, check),
                    }
                    self.completed(returns);
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
        let flows = match self.config.rx_marker {
            RxMarker::FirstFlow => 1,
            RxMarker::AllFlows => self.rx.flow_count(&self.switch),
        };
        let first = self.switch.flow_base;
        for flow in first..first + flows {
            let ring = self.config.soc.rx_ring(flow);
            self.rings[usize::from(ring)].mark_teardown(&mut self.check);
            self.completed(ring);
        }
    }

    fn settle(&mut self, ring: usize) {
        if !self.rings[ring].has_hidden() && !self.rings[ring].has_hidden_marker() {
            self.lagging.retain(|&other| other != ring);
        }
    }
}
