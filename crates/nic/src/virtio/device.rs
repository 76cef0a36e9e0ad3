//! The device as its queues share it: its condition, its reset and its end.

use super::command::Commands;
use super::config::Config;
use super::control::{Control, Fault};
use super::features::{CTRL_VLAN, GUEST_ANNOUNCE, RSS, STATUS};
use super::memory::RingMemory;
use super::rx::RxRing;
use super::transport::{Condition, QueueSetup, Transport};
use super::tx::TxRing;
use crate::common::end;
use crate::common::filter::Filter;
use crate::common::reset::{ResetCause, ResetDevice, ResetGroup, ResetScope};
use crate::common::settings::Follow;
use crate::sync::{Mutex, lock};
use std::borrow::Cow;
use towpath_bus::{BusError, Domain};
use towpath_packet::port::State;

/// Where the status is in the device's configuration (virtio 1.2 §5.1.4), and its bits.
const STATUS_AT: usize = 6;
const LINK_UP: u16 = 1;
const ANNOUNCE: u16 = 2;

/// The ring of a queue that has ended.
pub(super) type QueueRing<D> = end::QueueRing<RxRing<D>, TxRing<D>>;

/// The queues, as they are set up at the start and after each reset.
pub(super) struct Setup {
    pub(super) features: u64,
    pub(super) queues: Vec<(u16, QueueSetup)>,
    pub(super) memory: RingMemory,
    /// The control queue, if it was negotiated.
    pub(super) commands: Option<Commands>,
    /// Pairs of queues that are in use.
    pub(super) pairs: u16,
    /// The filter that the device has.
    pub(super) filter: Filter,
}

impl Setup {
    /// The features for a filter. With `CTRL_VLAN` a device receives the VLANs that it was given;
    /// without it, all (virtio 1.2 §5.1.6.5.3).
    fn features_for(&self, filter: &Filter) -> u64 {
        if filter.vlans.is_some() { self.features } else { self.features & !CTRL_VLAN }
    }
}

/// A started device.
pub(super) struct Device<T: Transport> {
    pub(super) transport: T,
    pub(super) config: Config,
    pub(super) control: Control,
    domain: Domain<T::Dma>,
    setup: Mutex<Setup>,
    features: u64,
    /// Pairs of queues that are in use.
    pairs: u16,
    resets: ResetGroup<QueueRing<T::Dma>>,
    /// Why the link is down, or the device is gone.
    reason: Mutex<Cow<'static, str>>,
}

impl<T: Transport> Device<T> {
    pub(super) fn new(
        transport: T,
        config: Config,
        control: Control,
        domain: Domain<T::Dma>,
        setup: Setup,
    ) -> Device<T> {
        let pairs = setup.pairs;
        Device {
            transport,
            config,
            control,
            domain,
            features: setup.features,
            pairs,
            setup: Mutex::new(setup),
            resets: ResetGroup::new(2 * u32::from(pairs)),
            reason: Mutex::new("the device was not started".into()),
        }
    }

    /// Tells the device, which was reset, of its features and queues, and lets it begin.
    ///
    /// # Errors
    /// [`BusError`] of the transport.
    pub(super) fn program(&self) -> Result<(), BusError> {
        self.program_setup(&mut lock(&self.setup))
    }

    fn program_setup(&self, setup: &mut Setup) -> Result<(), BusError> {
        setup.filter = self.control.filter();
        let features = setup.features_for(&setup.filter);
        self.transport.negotiate(features, setup.queues.len() as u16)?;
        for (index, queue) in &setup.queues {
            self.transport.set_queue(*index, queue)?;
        }
        let Setup { commands, pairs, filter, .. } = setup;
        if let Some(commands) = commands {
            commands.reset();
        }
        self.transport.run()?;
        if let Some(commands) = commands {
            let mac = self.control.device_mac();
            let refused = commands.configure(&self.transport, features, *pairs, &self.config)?
                + commands.set_filter(&self.transport, features, None, filter, mac);
            (0..refused).for_each(|_| self.control.fault(Fault::Refused));
        }
        Ok(())
    }

    /// Kicks the receive queue `index`, which got buffers that the device waits for; returns the
    /// number of kicks. With RSS all receive queues are kicked. QEMU reads packets on behalf of one
    /// of them before it hashes them. A packet that finds no buffer in the queue of its hash waits
    /// for a kick of the one that it was read for, and so do all behind it.
    #[inline]
    pub(super) fn kick_rx(&self, index: u16) -> u64 {
        self.transport.kick(index);
        if self.features & RSS == 0 {
            return 1;
        }
        let others = (0..self.pairs).map(|pair| 2 * pair).filter(|&other| other != index);
        others.for_each(|other| self.transport.kick(other));
        self.pairs.into()
    }

    /// Looks at the condition of the device, and notes the link. Returns why it is to be reset, if
    /// it is.
    #[cold]
    pub(super) fn check(&self) -> Option<ResetCause> {
        match self.transport.condition() {
            Condition::Up => {
                self.check_link();
                None
            }
            Condition::Down(why) => {
                *lock(&self.reason) = why;
                self.control.set_link(false);
                None
            }
            Condition::NeedsReset => Some(ResetCause::Stall),
            Condition::Back => {
                // The link is up again after the reset.
                self.control.set_link(false);
                Some(ResetCause::Known)
            }
            Condition::Gone(why) => {
                *lock(&self.reason) = why;
                self.control.set_link(false);
                self.resets.give_up();
                None
            }
        }
    }

    /// Reads the link from the device's configuration, if it has one.
    fn check_link(&self) {
        let mut bytes = [0; 2];
        let known = self.features & STATUS != 0 && self.transport.config(STATUS_AT, &mut bytes);
        let status = if known { u16::from_le_bytes(bytes) } else { LINK_UP };
        let up = status & LINK_UP != 0;
        if !up {
            *lock(&self.reason) = "the link is down".into();
        }
        self.control.set_link(up);
        if status & ANNOUNCE != 0 && self.features & GUEST_ANNOUNCE != 0 {
            let setup = &mut *lock(&self.setup);
            if let Some(commands) = &mut setup.commands {
                commands.acknowledge_announce(&self.transport);
            }
        }
    }

    /// The device broke a ring. Returns why it is to be reset, if it is.
    #[cold]
    pub(super) fn broken(&self) -> Option<ResetCause> {
        if T::RECONNECTS {
            self.transport.disconnect();
            self.control.set_link(false);
            return None;
        }
        Some(ResetCause::Stall)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.resets.is_gone()
    }

    pub(super) fn state(&self) -> State {
        if self.is_gone() {
            State::Gone(lock(&self.reason).clone())
        } else if !self.control.link_is_up() {
            State::Down(lock(&self.reason).clone())
        } else {
            State::Up
        }
    }
}

impl<T: Transport> Follow for Device<T> {
    fn is_gone(&self) -> bool {
        self.resets.is_gone()
    }

    #[cold]
    fn follow(&self) {
        let setup = &mut *lock(&self.setup);
        let filter = self.control.filter();
        if filter == setup.filter {
            return;
        }
        let features = setup.features_for(&filter);
        if features != setup.features_for(&setup.filter) {
            // Features are negotiated after a reset, with which the device gets the filter.
            self.resets.request_change();
            return;
        }
        let Some(commands) = &mut setup.commands else { return };
        let (before, mac) = (Some(&setup.filter), self.control.device_mac());
        let refused = commands.set_filter(&self.transport, features, before, &filter, mac);
        (0..refused).for_each(|_| self.control.fault(Fault::Refused));
        setup.filter = filter;
    }
}

impl<T: Transport> ResetDevice for Device<T> {
    type Ring = QueueRing<T::Dma>;

    #[inline]
    fn resets(&self) -> &ResetGroup<QueueRing<T::Dma>> {
        &self.resets
    }

    fn reset(&self, scope: ResetScope) -> bool {
        let mut setup = lock(&self.setup);
        if setup.features_for(&setup.filter) == setup.features_for(&self.control.filter()) {
            self.control.fault(Fault::Reset);
        }
        let answers = self.transport.reset(scope == ResetScope::Function);
        if answers {
            setup.memory.zero();
        }
        let done = answers && self.program_setup(&mut setup).is_ok();
        drop(setup);
        if done {
            self.check();
        } else if T::RECONNECTS {
            // It went away again: the queues run, and find the link down.
            self.transport.disconnect();
            self.control.set_link(false);
            return true;
        } else {
            *lock(&self.reason) = "the device does not answer, and was given up".into();
        }
        done
    }

    fn end(&self, rings: Vec<QueueRing<T::Dma>>) {
        // No further command is sent.
        lock(&self.setup).commands = None;
        let idle = self.transport.stop();
        end::end(rings, idle, &self.domain);
    }
}
