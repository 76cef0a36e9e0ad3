//! One front end, from its connection to its end: what it asked for, and what it is answered.
//!
//! Requests are answered strictly in order. A request that is refused is acknowledged as failed if
//! the front end asked for that. Else the connection is closed: the front end would go on as if the
//! request had been done. Refused features show in the device's status as well, where that was
//! negotiated.
//!
//! Nothing that a front end sends makes its part of this process grow: memory, descriptors and
//! mappings are bounded by the numbers of its rings and its memory slots.

use super::descriptors::Descriptors;
use super::dirty_log::PageLog;
use super::features;
use super::in_flight_record::{Bounds, RecordError, Records};
use super::memory::{GuestMemory, MAX_SLOTS};
use super::rarp::Rarp;
use super::refusal::{End, Refusal};
use super::ring::RingSlot;
use super::ring_control::{RingControl, RingRefusal, Surroundings};
use super::stats::PortEvents;
use crate::closing::Closer;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use towpath_virtio::vhost_user::protocol::{self, LOG_ALL, PROTOCOL_FEATURES};
use towpath_virtio::vhost_user::{
    Channel, ConfigSpace, InFlightArea, Log, MemoryTable, Message, PayloadError, Request, SingleRegion, VringAddr,
    VringFd, VringState, read_u64,
};
use towpath_wire::virtio_net::feature::VERSION_1;

/// Bit of the device's status: the features were accepted.
const FEATURES_OK: u8 = 8;
/// Smallest MTU of any interface.
const MIN_MTU: u64 = 68;

/// What the sessions of a port have in common.
#[derive(Debug)]
pub(super) struct DeviceParts {
    /// Features that are offered.
    pub(super) offered: u64,
    /// Features of the protocol that are offered.
    pub(super) protocol: u64,
    pub(super) max_size: u16,
    pub(super) mtu: Option<u16>,
    /// The ring of each index: the guest's receive queue of a pair, then its transmit queue.
    pub(super) slots: Vec<Arc<RingSlot>>,
    pub(super) rarp: Arc<Rarp>,
    pub(super) events: Arc<PortEvents>,
    pub(super) closer: Arc<Closer>,
}

/// A connected front end.
#[derive(Debug)]
pub(super) struct Session {
    id: u64,
    device: Arc<DeviceParts>,
    rings: Vec<RingControl>,
    /// What was set of all rings.
    around: Surroundings,
    protocol: u64,
    status: u8,
}

/// A reply of the request's own; `None` if it has none.
type Answer = Result<Option<Vec<u8>>, Refusal>;

impl Session {
    /// The session of a front end that connected just now.
    pub(super) fn new(id: u64, device: Arc<DeviceParts>) -> Session {
        let control = |(index, slot): (usize, &Arc<RingSlot>)| RingControl::new(slot.clone(), index, device.max_size);
        let rings = device.slots.iter().enumerate().map(control).collect();
        Session { id, device, rings, around: Surroundings::default(), protocol: 0, status: 0 }
    }

    /// Answers one message.
    pub(super) fn serve(&mut self, channel: &Channel, message: Message) -> Result<(), End> {
        let Message { number, is_reply, needs_reply, payload, fds, .. } = message;
        let device = self.device.clone();
        let fds = Descriptors::new(fds, &device.closer);
        if is_reply {
            return Err(End::Reply);
        }
        let request = Request::from_number(number).ok_or(End::Unknown(number))?;
        let answer = self.answer(request, &payload, fds);
        // The bit counts from the request on that sets it.
        let acknowledges = needs_reply && self.protocol & protocol::REPLY_ACK != 0 && !request.has_reply();
        let acknowledge = |failed: bool| channel.reply(request, &u64::from(failed).to_ne_bytes(), &[]);
        match answer {
            Ok(Some(reply)) => {
                let records = self.around.records.as_ref().filter(|_| request == Request::GetInflightFd);
                let fds: Vec<_> = records.and_then(Records::file).into_iter().collect();
                channel.reply(request, &reply, &fds)?;
            }
            Ok(None) if acknowledges => acknowledge(false)?,
            Ok(None) => {}
            Err(why) => {
                device.events.requests_refused.fetch_add(1, Relaxed);
                let shown = request == Request::SetFeatures && self.protocol & protocol::STATUS != 0;
                if !acknowledges && !shown {
                    return Err(End::Refused { request, why });
                }
                device.events.log.refused(self.id, format!("{request}: {why}"));
                if acknowledges {
                    acknowledge(true)?;
                }
            }
        }
        self.check_shared()
    }

    /// Whether a counter of the front end was full.
    fn take_full(&self) -> bool {
        let full = self.rings.iter().filter(|ring| ring.take_full()).count();
        self.device.events.relieved.fetch_add(full as u64, Relaxed);
        full > 0
    }

    /// What the front end shares: its memory, and counters that were full.
    fn check_shared(&self) -> Result<(), End> {
        let logs = self.around.log.as_ref().is_some_and(|log| log.is_lost());
        let lost = self.around.memory.is_lost() || logs || self.around.records.as_ref().is_some_and(Records::is_lost);
        match (lost, self.take_full()) {
            (_, true) => Err(End::Counter),
            (true, false) => Err(End::Lost),
            (false, false) => Ok(()),
        }
    }

    /// Looks after what no message announces.
    pub(super) fn check(&self) -> Result<(), End> {
        self.rings.iter().for_each(RingControl::relieve);
        self.check_shared()
    }

    /// The front end is gone, or is hung up on. Returns whether it has held a worker by a counter
    /// that was full.
    pub(super) fn end(mut self, why: &End) -> bool {
        for ring in &mut self.rings {
            if matches!(why, End::Port) {
                // Its guest gets its buffers back.
                ring.suspend();
            }
            ring.discard();
        }
        // It may have been full until the ring was taken out.
        self.take_full() || matches!(why, End::Counter)
    }

    fn answer(&mut self, request: Request, payload: &[u8], mut fds: Descriptors<'_>) -> Answer {
        use Request::*;
        let with_fds = matches!(
            request,
            SetMemTable
                | SetLogBase
                | SetLogFd
                | SetVringKick
                | SetVringCall
                | SetVringErr
                | SetInflightFd
                | AddMemReg
                | RemMemReg
        );
        if !with_fds {
            fds.exactly(0)?;
        }
        let number = |n: u64| Ok(Some(n.to_ne_bytes().to_vec()));
        match request {
            GetFeatures => empty(payload).and_then(|()| number(self.device.offered)),
            SetFeatures => self.set_features(read_u64(payload)?),
            GetProtocolFeatures => empty(payload).and_then(|()| number(self.device.protocol)),
            SetProtocolFeatures => self.set_protocol(read_u64(payload)?),
            GetQueueNum => empty(payload).and_then(|()| number(self.rings.len() as u64 / 2)),
            GetMaxMemSlots => empty(payload).and_then(|()| number(MAX_SLOTS as u64)),
            // A device has one owner: its connection. Only that ends the ownership.
            SetOwner | ResetOwner => empty(payload).map(|()| None),
            SetMemTable => self.set_memory(&MemoryTable::from_bytes(payload)?, fds),
            AddMemReg => self.add_region(&SingleRegion::from_bytes(payload)?, fds),
            RemMemReg => self.remove_region(&SingleRegion::from_bytes(payload)?),
            SetLogBase => self.set_log_base(Log::from_bytes(payload)?, fds),
            SetLogFd => {
                empty(payload)?;
                // Nothing is announced by it.
                fds.event(true).map(|_| None).map_err(Refusal::from)
            }
            SetVringNum => self.ring_state(payload, |ring, num, _| ring.set_size(num)),
            SetVringBase => self.ring_state(payload, |ring, num, around| ring.set_base(num, around)),
            SetVringEnable => self.ring_state(payload, |ring, num, _| ring.set_enabled(num)),
            SetVringAddr => {
                let addr = VringAddr::from_bytes(payload)?;
                self.with_ring(addr.index, |ring, around| ring.set_addr(addr, around))
            }
            GetVringBase => self.get_base(VringState::from_bytes(payload)?),
            SetVringKick => self.ring_event(payload, fds, RingControl::set_kick),
            SetVringCall => self.ring_event(payload, fds, RingControl::set_call),
            SetVringErr => self.ring_event(payload, fds, RingControl::set_err),
            GetConfig => self.get_config(ConfigSpace::from_bytes(payload)?),
            SetConfig => {
                self.negotiated(protocol::CONFIG, "CONFIG")?;
                ConfigSpace::from_bytes(payload)?;
                Err(Refusal::Config)
            }
            SendRarp => self.send_rarp(read_u64(payload)?),
            NetSetMtu => self.set_mtu(read_u64(payload)?),
            GetStatus => {
                self.negotiated(protocol::STATUS, "STATUS")?;
                empty(payload).and_then(|()| number(self.status.into()))
            }
            SetStatus => self.set_status(read_u64(payload)?),
            GetInflightFd => self.make_records(payload),
            SetInflightFd => self.set_records(InFlightArea::from_padded(payload)?, fds),
            ResetDevice => self.reset(payload),
            _ => Err(Refusal::NotOffered),
        }
    }

    fn negotiated(&self, bit: u64, name: &'static str) -> Result<(), Refusal> {
        if self.protocol & bit != 0 { Ok(()) } else { Err(Refusal::NotNegotiated(name)) }
    }

    fn set_features(&mut self, bits: u64) -> Answer {
        let foreign = bits & !self.device.offered;
        let running = self.rings.iter().any(RingControl::is_running);
        let changed = (self.around.features.unwrap_or(bits) ^ bits) & !LOG_ALL;
        if foreign != 0 {
            if !running {
                self.around.features = None;
                self.status &= !FEATURES_OK;
            }
            return Err(Refusal::Features(features::words(foreign)));
        }
        if running && changed != 0 {
            return Err(Refusal::Running(features::words(changed)));
        }
        self.around.features = Some(bits);
        self.device.events.log.negotiated(self.id, features::words(bits));
        if bits & VERSION_1 == 0 {
            let what = "the guest did not acknowledge VERSION_1, so its rings are not started: reset its driver";
            self.device.events.log.refused(self.id, what.to_owned());
        }
        if bits & PROTOCOL_FEATURES == 0 {
            // There are no requests to enable rings then.
            for ring in &mut self.rings {
                let _ = ring.set_enabled(1);
            }
        }
        self.update_log();
        self.start_all();
        Ok(None)
    }

    fn set_protocol(&mut self, bits: u64) -> Answer {
        // Bits that were not offered have no meaning: a front end may send what it knows.
        self.protocol = bits & self.device.protocol;
        Ok(None)
    }

    fn set_status(&mut self, status: u64) -> Answer {
        self.negotiated(protocol::STATUS, "STATUS")?;
        // The status is a byte.
        self.status = status as u8;
        if self.around.features.is_none() {
            self.status &= !FEATURES_OK;
        }
        Ok(None)
    }

    fn reset(&mut self, payload: &[u8]) -> Answer {
        self.negotiated(protocol::RESET_DEVICE, "RESET_DEVICE")?;
        empty(payload)?;
        self.rings.iter_mut().for_each(RingControl::reset);
        // Those of other rings come with them.
        (self.around.features, self.around.records, self.status) = (None, None, 0);
        Ok(None)
    }

    fn set_memory(&mut self, table: &MemoryTable, mut fds: Descriptors<'_>) -> Answer {
        fds.exactly(table.regions.len())?;
        let mut memory = GuestMemory::default();
        for region in &table.regions {
            memory.add(*region, fds.memory()?)?;
        }
        self.replace_memory(memory)
    }

    fn add_region(&mut self, single: &SingleRegion, mut fds: Descriptors<'_>) -> Answer {
        self.negotiated(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
        fds.exactly(1)?;
        let mut memory = self.around.memory.clone();
        memory.add(single.region, fds.memory()?)?;
        self.replace_memory(memory)
    }

    /// A descriptor may come, and is closed.
    fn remove_region(&mut self, single: &SingleRegion) -> Answer {
        self.negotiated(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
        let mut memory = self.around.memory.clone();
        memory.remove(single.region)?;
        self.replace_memory(memory)
    }

    /// Exchanges the memory. Rings that run stop, and start again where they stopped.
    fn replace_memory(&mut self, memory: GuestMemory) -> Answer {
        for ring in &mut self.rings {
            ring.suspend();
        }
        self.around.memory = memory;
        self.start_all();
        Ok(None)
    }

    /// Starts each ring that waits for nothing any more. One that can't be is tried again when more
    /// is known.
    fn start_all(&mut self) {
        for index in 0..self.rings.len() {
            let _ = self.start(index);
        }
    }

    fn start(&mut self, index: usize) -> Result<(), RingRefusal> {
        let started = self.rings.get_mut(index).map_or(Ok(()), |ring| ring.start(&self.around));
        if let Err(why) = &started {
            self.device.events.rings_refused.fetch_add(1, Relaxed);
            self.device.events.log.refused(self.id, format!("ring {index}: {why}"));
        }
        started
    }

    fn set_log_base(&mut self, log: Log, mut fds: Descriptors<'_>) -> Answer {
        self.negotiated(protocol::LOG_SHMFD, "LOG_SHMFD")?;
        fds.exactly(1)?;
        self.around.log = Some(Arc::new(PageLog::new(log, fds.memory()?)?));
        self.update_log();
        Ok(Some(Vec::new()))
    }

    fn update_log(&self) {
        self.rings.iter().for_each(|ring| ring.set_log(&self.around));
    }

    /// What records may be of, now.
    fn record_bounds(&self) -> Result<Bounds, Refusal> {
        self.negotiated(protocol::INFLIGHT_SHMFD, "INFLIGHT_SHMFD")?;
        if self.rings.iter().any(RingControl::is_running) {
            return Err(RecordError::Running.into());
        }
        Ok(Bounds { rings: self.rings.len(), most: self.device.max_size, format: self.around.format() })
    }

    /// Makes records for all rings, in place of others.
    fn make_records(&mut self, payload: &[u8]) -> Answer {
        let area = InFlightArea::from_padded(payload)?;
        let bounds = self.record_bounds()?;
        let records = self.around.records.insert(Records::create(area, bounds)?);
        let mut reply = records.area().to_bytes().to_vec();
        // With the padding of its front end.
        reply.resize(payload.len(), 0);
        Ok(Some(reply))
    }

    /// Takes the records of a back end before this one, or those that it made itself.
    fn set_records(&mut self, area: InFlightArea, mut fds: Descriptors<'_>) -> Answer {
        fds.exactly(1)?;
        let bounds = self.record_bounds()?;
        self.around.records = Some(Records::from_file(area, fds.memory()?, bounds)?);
        Ok(None)
    }

    fn send_rarp(&self, word: u64) -> Answer {
        self.negotiated(protocol::RARP, "RARP")?;
        let [a, b, c, d, e, f, ..] = word.to_ne_bytes();
        self.device.rarp.post([a, b, c, d, e, f]);
        self.device.slots.iter().for_each(|slot| slot.poke());
        Ok(None)
    }

    fn set_mtu(&self, mtu: u64) -> Answer {
        self.negotiated(protocol::NET_MTU, "NET_MTU")?;
        let most = self.device.mtu.map_or(u64::from(u16::MAX), u64::from);
        if (MIN_MTU..=most).contains(&mtu) { Ok(None) } else { Err(Refusal::Mtu(mtu)) }
    }

    fn get_config(&self, request: ConfigSpace) -> Answer {
        self.negotiated(protocol::CONFIG, "CONFIG")?;
        let space = features::config_space(self.rings.len() / 2, self.device.mtu);
        let range = request.offset as usize..request.offset as usize + request.bytes.len();
        let bytes = space.get(range).unwrap_or_default().to_vec();
        Ok(Some(ConfigSpace { bytes, ..request }.to_bytes()))
    }

    fn index(&self, ring: u32) -> Result<usize, Refusal> {
        let rings = self.rings.len();
        usize::try_from(ring).ok().filter(|index| *index < rings).ok_or(Refusal::Index { ring, rings })
    }

    /// Changes a ring, and starts it if that was the last that it needed.
    fn with_ring(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut RingControl, &Surroundings) -> Result<(), RingRefusal>,
    ) -> Answer {
        let ring = self.index(index)?;
        let changed = self.rings.get_mut(ring).map_or(Ok(()), |ring| change(ring, &self.around));
        changed.map_err(|why| Refusal::Ring { ring, why })?;
        match self.start(ring) {
            // The same front end would leave it out again; the link would go up and down for ever.
            Ok(()) | Err(RingRefusal::Legacy) => Ok(None),
            Err(why) => {
                self.rings.get_mut(ring).into_iter().for_each(RingControl::forget_kick);
                Err(Refusal::Ring { ring, why })
            }
        }
    }

    fn ring_state(
        &mut self,
        payload: &[u8],
        change: impl FnOnce(&mut RingControl, u32, &Surroundings) -> Result<(), RingRefusal>,
    ) -> Answer {
        let VringState { index, num } = VringState::from_bytes(payload)?;
        self.with_ring(index, |ring, around| change(ring, num, around))
    }

    fn ring_event(
        &mut self,
        payload: &[u8],
        mut fds: Descriptors<'_>,
        change: impl FnOnce(&mut RingControl, Option<towpath_sys::EventFd>) -> Result<(), RingRefusal>,
    ) -> Answer {
        let VringFd { index, has_fd } = VringFd::from_bytes(payload)?;
        let event = fds.event(has_fd)?;
        self.with_ring(index.into(), |ring, _| change(ring, event))
    }

    /// Stops a ring. Nothing of it is accessed when this is answered.
    fn get_base(&mut self, VringState { index, .. }: VringState) -> Answer {
        let ring = self.index(index)?;
        let num = self.rings.get_mut(ring).map_or(0, |ring| ring.stop(&self.around));
        Ok(Some(VringState { index, num }.to_bytes().to_vec()))
    }
}

fn empty(payload: &[u8]) -> Result<(), Refusal> {
    match payload.len() {
        0 => Ok(()),
        actual => Err(PayloadError::Size { expected: 0, actual }.into()),
    }
}
