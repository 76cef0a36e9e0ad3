//! The control of one ring: what the front end has set, and whether it runs.
//!
//! ```text
//!             NUM, ADDR, BASE, KICK, ENABLE 1 + features, memory
//!   stands ──────────────────────────────────────────────────────► runs
//!          ◄──────────────────────────────────────────────────────
//!             GET_VRING_BASE, ENABLE 0, the end of the connection
//! ```
//!
//! A ring runs when the last of what it needs has come, in whatever order. It may be enabled before
//! the rest, and stays so when `GET_VRING_BASE` stops it.
//!
//! A ring that is disabled stands: nothing of the guest's memory is accessed, its frames wait, and
//! it goes on where it was. libvhost-user and DPDK leave such a ring alone as well, while the
//! specification discards what it sends. Cloud Hypervisor resets a device by no other request, and
//! its guest has the memory of the ring back after that. It then sets the ring up anew.

use super::dirty_log::PageLog;
use super::in_flight_record::Records;
use super::memory::{GuestMemory, MemoryError};
use super::ring::{RingLog, RingSetup, RingSlot};
use std::sync::Arc;
use std::time::Duration;
use towpath_sys::EventFd;
use towpath_virtio::vhost_user::VringAddr;
use towpath_virtio::vhost_user::protocol::LOG_ALL;
use towpath_virtio::{Base, Format, InFlightRecord, QueueError};
use towpath_wire::virtio_net::feature::{RING_PACKED, VERSION_1};

/// The time that packets have to leave the buffers of a ring that is stopped. The guest waits for
/// it.
const PATIENCE: Duration = Duration::from_millis(100);

/// Why a ring does not start, or does not change.
#[derive(Debug, thiserror::Error)]
pub(super) enum RingRefusal {
    #[error("the guest did not acknowledge VERSION_1: the length of its headers is not known")]
    Legacy,
    #[error("{0} of a ring that runs can't change")]
    Running(&'static str),
    #[error("a ring of {size} descriptors: {least} to {most} are accepted")]
    Size { size: u32, least: u32, most: u16 },
    #[error("{0:#x} is no base of a split ring")]
    Base(u32),
    #[error("flags {0:#x} of a ring's addresses")]
    Flags(u32),
    #[error("{0} in place of 0 or 1")]
    Enable(u32),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Os(#[from] std::io::Error),
}

/// What a ring needs beside its own settings.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// Features that were acknowledged; `None` before, and after some were refused.
    pub(super) features: Option<u64>,
    pub(super) memory: GuestMemory,
    pub(super) log: Option<Arc<PageLog>>,
    pub(super) records: Option<Records>,
}

impl Surroundings {
    pub(super) fn format(&self) -> Format {
        if self.features.unwrap_or(0) & RING_PACKED != 0 { Format::Packed } else { Format::Split }
    }

    fn record(&self, ring: usize) -> Option<InFlightRecord> {
        self.records.as_ref()?.of(ring, self.format())
    }
}

/// One ring, as the control thread has it.
#[derive(Debug)]
pub(super) struct RingControl {
    slot: Arc<RingSlot>,
    index: usize,
    max_size: u16,
    size: Option<u16>,
    addr: Option<VringAddr>,
    /// As the front end sends it.
    base: Option<u32>,
    /// The outer one: it was set. The inner one: there is a descriptor.
    kick: Option<Option<EventFd>>,
    call: Option<Arc<EventFd>>,
    err: Option<Arc<EventFd>>,
    enabled: bool,
    /// The format in which it runs.
    running: Option<Format>,
    /// It has run since the front end last learned, or set, where it goes on.
    has_run: bool,
}

impl RingControl {
    /// A ring of a front end that connected just now.
    pub(super) fn new(slot: Arc<RingSlot>, index: usize, max_size: u16) -> RingControl {
        RingControl {
            slot,
            index,
            max_size,
            size: None,
            addr: None,
            base: None,
            kick: None,
            call: None,
            err: None,
            enabled: false,
            running: None,
            has_run: false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn must_stand(&self, what: &'static str) -> Result<(), RingRefusal> {
        if self.is_running() { Err(RingRefusal::Running(what)) } else { Ok(()) }
    }

    pub(super) fn set_size(&mut self, size: u32) -> Result<(), RingRefusal> {
        self.must_stand("the size")?;
        let fits = u16::try_from(size).ok().filter(|size| (1..=self.max_size).contains(size));
        self.size = Some(fits.ok_or(RingRefusal::Size { size, least: 1, most: self.max_size })?);
        Ok(())
    }

    pub(super) fn set_base(&mut self, base: u32, around: &Surroundings) -> Result<(), RingRefusal> {
        self.must_stand("the base")?;
        self.forget_record(around);
        self.base = Some(base);
        Ok(())
    }

    /// Sets the addresses; those of a ring that runs may only change how it is logged.
    pub(super) fn set_addr(&mut self, addr: VringAddr, around: &Surroundings) -> Result<(), RingRefusal> {
        if addr.flags & !VringAddr::LOG != 0 {
            return Err(RingRefusal::Flags(addr.flags));
        }
        let places = |addr: &VringAddr| (addr.desc, addr.avail, addr.used);
        if self.addr.as_ref().is_none_or(|old| places(old) != places(&addr)) {
            self.must_stand("the addresses")?;
        }
        self.addr = Some(addr);
        self.set_log(around);
        Ok(())
    }

    pub(super) fn set_kick(&mut self, kick: Option<EventFd>) -> Result<(), RingRefusal> {
        if self.is_running() {
            let another = kick.as_ref().map(EventFd::try_clone).transpose()?;
            self.slot.change(|ring| ring.setup.kick = another);
        }
        self.kick = Some(kick);
        Ok(())
    }

    pub(super) fn set_call(&mut self, call: Option<EventFd>) -> Result<(), RingRefusal> {
        if self.is_running() {
            let another = call.as_ref().map(EventFd::try_clone).transpose()?;
            self.slot.change(|ring| ring.setup.call = another);
        }
        self.call = call.map(Arc::new);
        self.watch();
        Ok(())
    }

    pub(super) fn set_err(&mut self, err: Option<EventFd>) -> Result<(), RingRefusal> {
        if self.is_running() {
            let another = err.as_ref().map(EventFd::try_clone).transpose()?;
            self.slot.change(|ring| ring.setup.err = another);
        }
        self.err = err.map(Arc::new);
        self.watch();
        Ok(())
    }

    fn watch(&self) {
        self.slot.watch([self.call.clone(), self.err.clone()].into_iter().flatten());
    }

    /// Sets whether the ring may run; one that may not is stopped.
    pub(super) fn set_enabled(&mut self, value: u32) -> Result<(), RingRefusal> {
        self.enabled = match value {
            0 => false,
            1 => true,
            other => return Err(RingRefusal::Enable(other)),
        };
        if !self.enabled {
            self.suspend();
        }
        Ok(())
    }

    /// Begins or ends to log, as the features and the addresses have it.
    pub(super) fn set_log(&self, around: &Surroundings) {
        if self.is_running() {
            let log = self.log(around);
            self.slot.change(|ring| ring.setup.log = log);
        }
    }

    /// Sets bit LOG_ALL of the features that a running ring has.
    fn log(&self, around: &Surroundings) -> Option<RingLog> {
        let pages = around.log.as_ref().filter(|_| around.features.unwrap_or(0) & LOG_ALL != 0)?;
        let used = self.addr.filter(|addr| addr.flags & VringAddr::LOG != 0).map(|addr| addr.log);
        Some(RingLog { pages: pages.clone(), used })
    }

    /// Starts the ring, if all that it needs is there and it does not run yet.
    pub(super) fn start(&mut self, around: &Surroundings) -> Result<(), RingRefusal> {
        let (Some(kick), Some(size), Some(addr), Some(features)) = (&self.kick, self.size, self.addr, around.features)
        else {
            return Ok(());
        };
        if self.is_running() || !self.enabled || around.memory.is_empty() {
            return Ok(());
        }
        if features & VERSION_1 == 0 {
            return Err(RingRefusal::Legacy);
        }
        let format = around.format();
        format.check_size(size)?;
        let base = self.base.map_or(Base::start(format), |num| Base::from_vring(format, num));
        if let Some(num) = self.base.filter(|num| format == Format::Split && *num > u16::MAX.into()) {
            return Err(RingRefusal::Base(num));
        }
        let clone = |event: &Option<Arc<EventFd>>| event.as_ref().map(|event| event.try_clone()).transpose();
        self.slot.start(RingSetup {
            format,
            size,
            areas: around.memory.areas(format, size, &addr)?,
            base,
            features,
            memory: around.memory.guest(),
            kick: kick.as_ref().map(EventFd::try_clone).transpose()?,
            call: clone(&self.call)?,
            err: clone(&self.err)?,
            log: self.log(around),
            record: around.record(self.index),
        })?;
        (self.running, self.has_run) = (Some(format), true);
        Ok(())
    }

    /// A ring that did not start waits for another kick descriptor.
    pub(super) fn forget_kick(&mut self) {
        self.kick = None;
    }

    /// Stops the ring if it runs, so that it can start again where it stopped.
    pub(super) fn suspend(&mut self) {
        if let Some(format) = self.running.take()
            && let Some(stopped) = self.slot.stop(PATIENCE)
        {
            self.base = Some(stopped.base.to_vring(format));
        }
    }

    /// The record of a ring that has run does not count once the front end knows where it goes on.
    fn forget_record(&mut self, around: &Surroundings) {
        if std::mem::take(&mut self.has_run)
            && let Some(record) = around.record(self.index)
        {
            record.clear();
        }
    }

    /// Stops the ring, and returns where another device can go on.
    pub(super) fn stop(&mut self, around: &Surroundings) -> u32 {
        self.suspend();
        self.forget_record(around);
        self.kick = None;
        let format = around.format();
        self.base.unwrap_or(Base::start(format).to_vring(format))
    }

    /// The device is reset: nothing but the descriptors for calls and errors is left.
    pub(super) fn reset(&mut self) {
        self.suspend();
        (self.size, self.addr, self.base, self.kick, self.enabled) = (None, None, None, None, false);
    }

    /// Lets a worker go on that is held by a counter which the front end filled.
    pub(super) fn relieve(&self) {
        self.slot.relieve();
    }

    /// Whether a counter was full since the last call.
    pub(super) fn take_full(&self) -> bool {
        self.slot.take_full()
    }

    /// The front end is gone: nothing is returned to it.
    pub(super) fn discard(&mut self) {
        self.running = None;
        self.slot.discard();
        self.slot.watch([]);
    }
}
