//! A connection to a back end: requests and replies.
//!
//! ```text
//!   open       SET_OWNER │ GET_FEATURES │ GET, SET_PROTOCOL_FEATURES │ GET_QUEUE_NUM
//!   negotiate  SET_VRING_CALL each │ SET_FEATURES │ SET_STATUS │ SET_MEM_TABLE
//!   set_queue  SET_VRING_NUM │ BASE │ ADDR │ KICK
//!   run        SET_VRING_ENABLE 1 each │ SET_STATUS DRIVER_OK
//!   stop       SET_VRING_ENABLE 0 each │ GET_VRING_BASE each
//! ```
//!
//! It is the order of DPDK's `virtio_user`, which back ends are tried with: a call descriptor comes
//! first, because some allocate a ring by it, and the kick descriptor last, because it starts one.

use super::super::features::{
    ACCESS_PLATFORM, CTRL_MAC_ADDR, CTRL_RX, CTRL_VLAN, CTRL_VQ, GUEST_ANNOUNCE, MAC, MTU, ORDER_PLATFORM, STATUS,
};
use super::super::transport::QueueSetup;
use super::Negotiated;
use super::memory::SharedRegion;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use towpath_bus::BusError;
use towpath_sys::EventFd;
use towpath_virtio::Base;
use towpath_virtio::vhost_user::{
    Channel, MemoryRegion, MemoryTable, Request, VringAddr, VringFd, VringState, protocol, read_u64,
};

/// Longest wait for a reply. A back end maps all memory before it acknowledges its table.
const PATIENCE: Duration = Duration::from_secs(5);
/// Features of the protocol that are used.
const PROTOCOL: u64 = protocol::MQ | protocol::REPLY_ACK | protocol::STATUS;
/// Features of what this transport does not have: a configuration space, a control queue, an IOMMU.
const ABSENT: u64 = MAC
    | STATUS
    | MTU
    | CTRL_VQ
    | CTRL_RX
    | CTRL_VLAN
    | CTRL_MAC_ADDR
    | GUEST_ANNOUNCE
    | ACCESS_PLATFORM
    | ORDER_PLATFORM
    | protocol::PROTOCOL_FEATURES
    | protocol::LOG_ALL;

/// ACKNOWLEDGE, DRIVER and FEATURES_OK; and with DRIVER_OK (virtio 1.2 §2.1).
const FEATURES_OK: u64 = 0xb;
const DRIVER_OK: u64 = 0xf;

/// A memory table that was sent and is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The request that the back end replies to.
    request: Request,
    version: u64,
    /// When it counts as silent.
    deadline: Instant,
}

/// What became of a memory table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) version: u64,
    pub(super) taken: bool,
}

/// A connection whose other side has answered.
pub(in super::super) struct Connection {
    channel: Channel,
    name: String,
    offered: u64,
    protocol: u64,
    pairs: u16,
    /// The version of the memory table that the back end has; `None` before it has any.
    acked: Option<u64>,
    /// A table that it has not acknowledged yet.
    pending: Option<Pending>,
    /// The rings that are set up.
    queues: Vec<u16>,
    /// This, and all memory, was sent to it.
    prepared: Option<Negotiated>,
    /// It was found by the search.
    is_found: bool,
}

impl Connection {
    /// Asks what the back end offers.
    pub(super) fn open(socket: OwnedFd, name: &str) -> Result<Connection, BusError> {
        let channel = Channel::new(socket);
        let (name, queues) = (name.to_owned(), Vec::new());
        let mut new = Connection {
            channel,
            name,
            offered: 0,
            protocol: 0,
            pairs: 1,
            acked: None,
            pending: None,
            queues,
            prepared: None,
            is_found: false,
        };
        new.send(Request::SetOwner, &[])?;
        new.offered = new.ask(Request::GetFeatures)?;
        if new.offered & protocol::PROTOCOL_FEATURES != 0 {
            new.protocol = new.ask(Request::GetProtocolFeatures)? & PROTOCOL;
            new.send(Request::SetProtocolFeatures, &new.protocol.to_ne_bytes())?;
        }
        if new.protocol & protocol::MQ != 0 {
            new.pairs = u16::try_from(new.ask(Request::GetQueueNum)?).unwrap_or(u16::MAX).max(1);
        }
        Ok(new)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.channel.as_fd().as_raw_fd()
    }

    /// The features that are offered, and that this transport can have.
    pub(super) fn features(&self) -> u64 {
        self.offered & !ABSENT
    }

    pub(super) fn pairs(&self) -> u16 {
        self.pairs
    }

    /// Whether the other side has closed, or sends what was not asked for.
    pub(super) fn is_lost(&mut self) -> bool {
        !matches!(self.channel.receive(), Ok(None))
    }

    fn failed(&self, request: Request, why: impl std::fmt::Display) -> BusError {
        BusError::device(&self.name, format!("{}: {why}", request.name()))
    }

    fn send(&self, request: Request, payload: &[u8]) -> Result<(), BusError> {
        self.send_with(request, payload, &[])
    }

    fn send_with(&self, request: Request, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), BusError> {
        self.channel.request(request, payload, fds, false).map_err(|error| self.failed(request, error))
    }

    /// Sends a request and waits for its reply.
    fn exchange(&mut self, request: Request, payload: &[u8]) -> Result<Vec<u8>, BusError> {
        self.send(request, payload)?;
        self.reply(request)
    }

    fn reply(&mut self, request: Request) -> Result<Vec<u8>, BusError> {
        if let Some(Pending { request, deadline, .. }) = self.pending.take() {
            // Replies come in order.
            self.channel.receive_reply(request, deadline).map_err(|error| self.failed(request, error))?;
        }
        let reply = self.channel.receive_reply(request, Instant::now() + PATIENCE);
        // Descriptors that come with it are closed.
        reply.map(|message| message.payload).map_err(|error| self.failed(request, error))
    }

    fn ask(&mut self, request: Request) -> Result<u64, BusError> {
        let reply = self.exchange(request, &[])?;
        read_u64(&reply).map_err(|error| self.failed(request, error))
    }

    /// Sends a request that has no reply of its own, and waits until it is done, if the back end
    /// can tell.
    fn finish(&mut self, request: Request, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), BusError> {
        let replied = self.send_to_finish(request, payload, fds)?;
        let reply = self.reply(replied)?;
        match read_u64(&reply) {
            Ok(0) => Ok(()),
            Ok(_) if replied != request => Ok(()),
            Ok(error) => Err(self.failed(request, format!("refused ({error})"))),
            Err(error) => Err(self.failed(request, error)),
        }
    }

    /// The first half of that: returns the request whose reply comes when this one is done.
    fn send_to_finish(
        &mut self,
        request: Request,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Request, BusError> {
        let acknowledges = self.protocol & protocol::REPLY_ACK != 0;
        self.channel.request(request, payload, fds, acknowledges).map_err(|error| self.failed(request, error))?;
        if acknowledges {
            return Ok(request);
        }
        // Requests are done in order.
        self.send(Request::GetFeatures, &[])?;
        Ok(Request::GetFeatures)
    }

    fn set_status(&mut self, status: u64) -> Result<(), BusError> {
        if self.protocol & protocol::STATUS == 0 {
            return Ok(());
        }
        self.finish(Request::SetStatus, &status.to_ne_bytes(), &[])
    }

    /// What was negotiated and all memory were sent already; the next call need not send them.
    pub(super) fn set_prepared(&mut self, negotiated: Negotiated) {
        (self.prepared, self.is_found) = (Some(negotiated), true);
    }

    /// Whether that was done for what was negotiated; once.
    pub(super) fn take_prepared(&mut self, negotiated: Negotiated) -> bool {
        self.prepared.take() == Some(negotiated)
    }

    /// Sets the call descriptors and the features.
    pub(super) fn negotiate(&mut self, negotiated: Negotiated, calls: &[EventFd]) -> Result<(), BusError> {
        let Negotiated { features, queues } = negotiated;
        if features & !self.features() != 0 {
            return Err(self.failed(Request::SetFeatures, "the back end offers less than the one before it"));
        }
        self.queues.clear();
        for (index, call) in (0..).zip(calls.iter().take(queues.into())) {
            let payload = VringFd { index, has_fd: true }.to_bytes();
            self.send_with(Request::SetVringCall, &payload, &[call.as_fd()])?;
        }
        let bits = features | (self.offered & protocol::PROTOCOL_FEATURES);
        self.send(Request::SetFeatures, &bits.to_ne_bytes())?;
        self.set_status(FEATURES_OK)
    }

    /// Names all memory that is shared, and waits until the back end has it.
    pub(super) fn set_memory(&mut self, regions: &[&SharedRegion], version: u64) -> Result<(), BusError> {
        let (table, fds) = table(regions);
        self.finish(Request::SetMemTable, &table, &fds)?;
        self.acked = Some(version);
        Ok(())
    }

    /// The same without a wait: the [answer](Connection::answer) comes later.
    pub(super) fn offer_memory(&mut self, regions: &[&SharedRegion], version: u64) -> Result<(), BusError> {
        let (table, fds) = table(regions);
        let request = self.send_to_finish(Request::SetMemTable, &table, &fds)?;
        self.pending = Some(Pending { request, version, deadline: Instant::now() + PATIENCE });
        Ok(())
    }

    /// What became of a table that was offered, if that is known now.
    ///
    /// # Errors
    /// [`BusError`]: the other side has closed, is silent, or sends what was not asked for.
    pub(super) fn answer(&mut self) -> Result<Option<Answer>, BusError> {
        let pending = self.pending;
        let request = pending.map_or(Request::GetFeatures, |pending| pending.request);
        let message = self.channel.receive().map_err(|error| self.failed(request, error))?;
        match (message, pending) {
            (None, Some(pending)) if Instant::now() >= pending.deadline => {
                Err(self.failed(request, "no reply in time"))
            }
            (None, _) => Ok(None),
            (Some(message), Some(Pending { version, .. }))
                if message.is_reply && message.number == request.number() =>
            {
                let word = read_u64(&message.payload).map_err(|error| self.failed(request, error))?;
                (self.pending, self.acked) = (None, Some(version));
                Ok(Some(Answer { version, taken: word == 0 || request != Request::SetMemTable }))
            }
            (Some(_), _) => Err(self.failed(request, "a message that was not asked for")),
        }
    }

    /// The version of the memory table that the back end has, if it has any.
    pub(super) fn acked(&self) -> Option<u64> {
        self.acked
    }

    /// Whether an answer is outstanding.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    pub(super) fn refuses_memory(&self) -> BusError {
        self.failed(Request::SetMemTable, "refused, without a new region")
    }

    pub(super) fn set_queue(&mut self, queue: u16, setup: &QueueSetup, kick: &EventFd) -> Result<(), BusError> {
        let index = u32::from(queue);
        let state = |num: u32| VringState { index, num }.to_bytes();
        self.send(Request::SetVringNum, &state(setup.size.into()))?;
        self.send(Request::SetVringBase, &state(Base::start(setup.format).to_vring(setup.format)))?;
        let (desc, used, avail) = (setup.desc.get(), setup.device.get(), setup.driver.get());
        self.send(Request::SetVringAddr, &VringAddr { index, flags: 0, desc, used, avail, log: 0 }.to_bytes())?;
        let payload = VringFd { index: queue as u8, has_fd: true }.to_bytes();
        self.send_with(Request::SetVringKick, &payload, &[kick.as_fd()])?;
        self.queues.push(queue);
        Ok(())
    }

    fn enable(&mut self, on: bool) -> Result<(), BusError> {
        if self.offered & protocol::PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        self.queues.iter().try_for_each(|&queue| {
            let payload = VringState { index: queue.into(), num: on.into() }.to_bytes();
            self.send(Request::SetVringEnable, &payload)
        })
    }

    /// Enables all rings. Of a back end that was found by the search nothing is waited for: a
    /// worker runs it, and one that refuses hangs up.
    pub(super) fn run(&mut self) -> Result<(), BusError> {
        self.enable(true)?;
        match self.is_found {
            _ if self.protocol & protocol::STATUS == 0 => Ok(()),
            true => self.send(Request::SetStatus, &DRIVER_OK.to_ne_bytes()),
            false => self.set_status(DRIVER_OK),
        }
    }

    /// Stops all rings, and closes the connection. Returns whether the back end has confirmed that
    /// it accesses them no more, or is not there.
    pub(super) fn stop(&mut self) -> bool {
        let stopped = self.enable(false).and_then(|()| {
            std::mem::take(&mut self.queues).into_iter().try_for_each(|queue| {
                let payload = VringState { index: queue.into(), num: 0 }.to_bytes();
                self.exchange(Request::GetVringBase, &payload).map(drop)
            })
        });
        stopped.is_ok() || self.is_lost()
    }
}

/// A memory table, and the files of its regions.
fn table<'a>(regions: &[&'a SharedRegion]) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
    let region = |shared: &&SharedRegion| MemoryRegion {
        guest: shared.address,
        size: shared.len as u64,
        user: shared.address,
        offset: shared.offset,
    };
    let table = MemoryTable { regions: regions.iter().map(region).collect() };
    (table.to_bytes(), regions.iter().map(|shared| shared.file.as_fd()).collect())
}
