//! Several ports joined at one place, run to completion by one thread.
//!
//! ```text
//!              ┌───────────────────────────── Hub ─────────────────────────────┐
//!   rx of 0 ───┼─► burst ─► verdicts ─┐                 ┌─► staged of 0 ─► Egress ─┼─► tx of 0
//!   rx of 1 ───┼─► burst ─► verdicts ─┼─► Switch ───────┼─► staged of 1 ─► Egress ─┼─► tx of 1
//!   rx of 2 ───┼─► burst ─► verdicts ─┘  which port?    └─► staged of 2 ─► Egress ─┼─► tx of 2
//!              └───────────────────────────────▲───────────────────────────────┘
//!                                    HubControl: attach, detach
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Hub`]: its turn, and its end; [`Switch`], which decides |
//! | `port` | [`HubPort`]: the queues of one port, and the packets staged for it |
//! | `ports` | [`Ports`]: all ports, as a switch sees them |
//! | `control` | [`HubControl`]: attaches and detaches ports from another thread |
//!
//! A turn takes one burst from each port. The packets of a burst for one egress are sent as one
//! batch. The order between an ingress and an egress is kept.
//!
//! **An egress that refuses packets blocks no other one**, and holds no ingress back: what it
//! refuses waits in a [bounded](HubPort::with_backlog) backlog. What does not fit is dropped as
//! `egress-full` at once; what waits is dropped by name after
//! [`egress_wait`](crate::route::RouteConfig::egress_wait).
//!
//! A port whose interface is deleted leaves by itself and is [reported](HubControl::lost). The hub
//! goes on while one port can receive.
//!
//! Balance: received + split + flooded = sent + merged + drops + held, at every moment between two
//! turns.

mod control;
mod port;
mod ports;

pub use control::{HubControl, Left};
pub use port::HubPort;
pub use ports::Ports;

use crate::route::Limit;
use crate::worker::{Ending, Task};
use control::{Command, Inbox};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, DropReason};

/// Turns of a busy hub between two looks at the links of its ports.
const TURNS_PER_TICK: u32 = 64;

/// Decides where the packets of a hub go.
pub trait Switch: Send {
    /// The switch's state of a port.
    type Port: Send;

    /// Sends each packet of a burst on, or drops it by name: the burst is empty afterwards.
    fn forward<R: RxQueue, T: TxQueue>(
        &mut self,
        ingress: usize,
        burst: &mut Batch,
        ports: &mut Ports<R, T, Self::Port>,
        now: Instant,
    );

    /// The link of a port went down.
    fn port_down(&mut self, number: usize);

    /// A port was detached, or never works again.
    fn port_gone(&mut self, number: usize) {
        self.port_down(number);
    }

    /// Called now and then, also while no packet moves. What it sends to `ports` leaves afterwards.
    fn tick<R: RxQueue, T: TxQueue>(&mut self, ports: &mut Ports<R, T, Self::Port>, now: Instant) {
        let _ = (ports, now);
    }

    /// What wakes an idle hub for a [`tick`](Switch::tick), besides packets.
    fn wake(&self) -> [Wake; 2] {
        [Wake::Never; 2]
    }

    /// The hub ends: packets that the switch holds are dropped by name.
    fn end(&mut self) {}
}

/// A port on its way out.
struct Leaving {
    number: usize,
    until: Instant,
    reply: Sender<Left>,
}

/// Joined ports, and the switch between them; owned by the thread that runs it.
pub struct Hub<R, T, S: Switch> {
    switch: S,
    ports: Ports<R, T, S::Port>,
    incoming: Batch,
    inbox: Arc<Inbox<R, T, S::Port>>,
    leaving: Vec<Leaving>,
    /// Ports that are gone, each by its number.
    lost: Vec<(usize, State)>,
    limit: Option<Arc<Limit>>,
    endless: bool,
    turns: u32,
}

impl<R: RxQueue, T: TxQueue, S: Switch> Hub<R, T, S> {
    /// A hub without ports.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left for an eventfd.
    pub fn new(switch: S) -> io::Result<Hub<R, T, S>> {
        Ok(Hub {
            switch,
            ports: Ports::default(),
            incoming: Batch::new(),
            inbox: Arc::new(Inbox::new()?),
            leaving: Vec::new(),
            lost: Vec::new(),
            limit: None,
            endless: false,
            turns: 0,
        })
    }

    /// Receives nothing more when `limit` is used up; packets beyond it are dropped as `stopped`.
    #[must_use]
    pub fn with_limit(mut self, limit: Arc<Limit>) -> Hub<R, T, S> {
        self.limit = Some(limit);
        self
    }

    /// Goes on when no port delivers anything any more: others are attached later.
    #[must_use]
    pub fn endless(mut self) -> Hub<R, T, S> {
        self.endless = true;
        self
    }

    /// Adds a port before the hub runs. A number is used once at a time.
    pub fn add(&mut self, number: usize, port: HubPort<R, T, S::Port>) {
        self.ports.insert(number, port);
    }

    /// A handle that attaches and detaches ports while the hub runs.
    pub fn control(&self) -> HubControl<R, T, S::Port> {
        HubControl::new(self.inbox.clone())
    }

    /// Obeys the commands that have arrived.
    #[cold]
    fn obey(&mut self, now: Instant) {
        for command in self.inbox.take() {
            match command {
                Command::Attach { number, port, reply } => {
                    self.ports.insert(number, *port);
                    let _ = reply.send(());
                }
                Command::Offloads(accept) => self.ports.set_rx_offloads(accept),
                Command::Detach { number, drain, reply } => {
                    self.ports.retire(number);
                    self.leaving.push(Leaving { number, until: now + drain, reply });
                }
            }
        }
    }

    /// Lets ports go whose packets have left, or whose time is over.
    #[cold]
    fn let_leave(&mut self) {
        let now = Instant::now();
        let (ports, switch, inbox) = (&mut self.ports, &mut self.switch, &self.inbox);
        self.leaving.retain(|leaving| {
            let Some(port) = ports.slot_mut(leaving.number) else {
                let _ = leaving.reply.send(Left { failure: None });
                return false;
            };
            port.flush_gro();
            port.send();
            if port.is_draining() && now < leaving.until {
                return true;
            }
            port.drop_held(DropReason::Stopped);
            let failure = port.close().err().map(std::borrow::Cow::into_owned);
            port.leave();
            ports.remove(leaving.number);
            switch.port_gone(leaving.number);
            inbox.forget_lost(leaving.number);
            let _ = leaving.reply.send(Left { failure });
            false
        });
    }

    /// A port never works again: it leaves the hub, which goes on.
    #[cold]
    fn lose(&mut self, number: usize, state: State) {
        let Some(port) = self.ports.slot_mut(number) else { return };
        port.lose();
        self.ports.retire(number);
        self.switch.port_gone(number);
        self.inbox.lost(number, &state);
        self.lost.push((number, state));
    }

    /// Looks at the links of all ports.
    #[cold]
    fn tick(&mut self) {
        self.turns = 0;
        let now = Instant::now();
        for at in 0..self.ports.members().len() {
            let number = usize::from(self.ports.members()[at]);
            if self.ports.slot_mut(number).is_some_and(HubPort::went_down) {
                self.switch.port_down(number);
            }
        }
        self.ports.begin(true);
        self.switch.tick(&mut self.ports, now);
        self.ports.send_staged();
    }

    fn is_used_up(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.used_up())
    }

    /// Takes what the limit grants of the burst.
    #[cold]
    fn apply_limit(&mut self, ingress: usize) {
        let Some(limit) = &self.limit else { return };
        let granted = limit.take(self.incoming.len());
        if let Some(port) = self.ports.slot_mut(ingress) {
            while self.incoming.len() > granted
                && let Some(packet) = self.incoming.pop()
            {
                port.counters().dropped_packet(DropReason::Stopped, &packet);
                port.cache().free(packet);
            }
        }
    }

    /// Receives a burst from one port and sends it on; returns the number of packets.
    #[inline]
    fn receive(&mut self, number: usize, now: &mut Option<Instant>) -> usize {
        let Some(port) = self.ports.slot_mut(number) else { return 0 };
        if !port.receives() {
            return 0;
        }
        let received = port.receive(&mut self.incoming);
        if received == 0 {
            if let Some(state) = port.check_ended() {
                self.lose(number, state);
            }
            return 0;
        }
        let is_sampled = port.is_sampled();
        if self.limit.is_some() {
            self.apply_limit(number);
        }
        let now = *now.get_or_insert_with(Instant::now);
        self.ports.begin(received < Batch::<64>::CAPACITY);
        self.switch.forward(number, &mut self.incoming, &mut self.ports, now);
        if is_sampled {
            self.ports.begin_sample(number);
        }
        self.ports.send_staged();
        if is_sampled {
            self.ports.end_samples();
        }
        received
    }
}

impl<R: RxQueue, T: TxQueue, S: Switch> Task for Hub<R, T, S> {
    fn turn(&mut self, stopping: bool) -> usize {
        if self.inbox.has_commands() {
            self.obey(Instant::now());
        }
        let mut moved = self.ports.retry(stopping);
        self.ports.end_samples();
        if !self.leaving.is_empty() {
            self.let_leave();
        }
        if stopping || self.is_used_up() {
            return moved;
        }
        let mut now = None;
        let members = self.ports.members().len();
        for at in 0..members {
            // A port that leaves makes the list shorter.
            let Some(&number) = self.ports.members().get(at) else { break };
            moved += self.receive(number.into(), &mut now);
        }
        self.turns += 1;
        if moved == 0 || self.turns >= TURNS_PER_TICK {
            self.tick();
        }
        moved
    }

    /// A hub whose ports have all been detached waits for new ones.
    fn is_exhausted(&self) -> bool {
        let ended = self.ports.iter().all(|(_, port)| !port.receives());
        self.is_used_up() || (ended && !self.endless && (self.ports.iter().next().is_some() || !self.lost.is_empty()))
    }

    fn is_draining(&self) -> bool {
        self.ports.iter().any(|(_, port)| port.is_draining())
    }

    fn wakes(&self, mut wait_for: impl FnMut(Wake, bool)) {
        wait_for(Wake::Readable(self.inbox.fd()), false);
        self.switch.wake().into_iter().for_each(|wake| wait_for(wake, false));
        if !self.leaving.is_empty() {
            wait_for(Wake::Poll, false);
        }
        for (_, port) in self.ports.iter() {
            port.wakes().into_iter().for_each(|(wake, sending)| wait_for(wake, sending));
        }
    }

    fn end(&mut self, number: usize) -> Ending {
        let mut faults = std::mem::take(&mut self.lost);
        self.switch.end();
        for number in self.ports.numbers() {
            let Some(port) = self.ports.slot_mut(number) else { continue };
            port.flush_gro();
            port.drop_held(DropReason::Stopped);
            let closed = port.close();
            if faults.iter().any(|(lost, _)| *lost == number) {
                continue;
            }
            match (closed, port.state()) {
                (Err(why), _) => faults.push((number, State::Gone(why))),
                (Ok(()), state @ State::Down(_)) => faults.push((number, state)),
                _ => {}
            }
        }
        for leaving in self.leaving.drain(..) {
            let _ = leaving.reply.send(Left { failure: None });
        }
        Ending { task: number, state: State::Up, faults }
    }
}

impl<R, T, S: Switch> Drop for Hub<R, T, S> {
    /// Commands that were not obeyed are answered by the end of their channels.
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl<R, T, S: Switch> std::fmt::Debug for Hub<R, T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("ports", &self.ports.members()).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl<R: RxQueue, T: TxQueue, S: Switch> Hub<R, T, S> {
    pub(crate) fn port_mut(&mut self, number: usize) -> Option<&mut HubPort<R, T, S::Port>> {
        self.ports.slot_mut(number)
    }
}

#[cfg(test)]
mod tests;
