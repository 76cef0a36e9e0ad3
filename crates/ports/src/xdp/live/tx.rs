//! The transmit queue of `tx=live`: gathers frames, runs the program, and reads the device's
//! counters.

use super::program::MAX_LEN;
use super::{BATCH, LiveProgram};
use crate::kernel::link::{down, gone};
use crate::xdp::tx::LINK_LEN;
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::{Info, PortError, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, DropReason, Offloads, Pool};
use towpath_sys::netdev::{Control, LinkState};
use towpath_sys::netdev_genl::Device;
use towpath_sys::rtnl::{Link, Statistics};
use towpath_wire::ethernet;

/// A transmit queue of an AF_XDP port with `tx=live`.
#[derive(Debug)]
pub struct LiveTx {
    live: LiveProgram,
    burst: usize,
    longest: usize,
    /// Frames were added since the last [`reclaim`](TxQueue::reclaim).
    fed: bool,
    account: TxAccount,
    state: State,
    cache: Cache,
    counters: Arc<Counters>,
}

impl LiveTx {
    pub(in crate::xdp) fn new(
        live: LiveProgram,
        info: &Info,
        burst: u16,
        account: TxAccount,
        pool: &Pool,
    ) -> Result<LiveTx, PortError> {
        let failed = |source| PortError::Pool { port: info.name.clone(), source };
        Ok(LiveTx {
            live,
            burst: burst.into(),
            longest: (info.mtu as usize + LINK_LEN).min(MAX_LEN),
            fed: false,
            account,
            state: State::Up,
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            counters: Arc::default(),
        })
    }

    /// Runs the program on the gathered frames.
    fn flush(&mut self) {
        let LiveProgram { frames: gathered, program, .. } = &mut self.live;
        let (frames, bytes) = (gathered.len(), gathered.bytes());
        if frames == 0 {
            return;
        }
        let begins = gathered.begin();
        let template = [0u8; MAX_LEN];
        let mut calls = 0;
        let mut error = None;
        let mut done = 0;
        while done < frames {
            calls += 1;
            let left = (frames - done) as u32;
            let result = program.run_live(&template[..begins.min(MAX_LEN)], left, left.min(BATCH));
            let now = gathered.done();
            match result {
                Err(e) if e.raw_os_error() != Some(libc::EINTR) => {
                    error = Some(e);
                    done = now;
                    break;
                }
                // A signal interrupted the call; another one runs the rest.
                _ if now > done || result.is_err() => done = now,
                _ => break,
            }
        }
        gathered.clear();
        self.counters.called(calls);
        let lost = (frames - done) as u64;
        if lost > 0 {
            self.counters.failed(1);
            self.counters.dropped(DropReason::Refused, lost);
            if let Some(error) = error {
                self.state = State::Down(format!("the kernel does not run the program: {error}").into());
            }
        }
        self.account.submitted(done as u64, (bytes * done as u64).checked_div(frames as u64).unwrap_or(0));
        if self.account.is_due() {
            self.update();
        }
    }

    /// Reads the device's counters and state.
    fn update(&mut self) {
        self.state = self.account.update(&self.counters);
    }
}

impl TxQueue for LiveTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let lost = match self.state {
            State::Up | State::Done => None,
            State::Down(_) => Some(DropReason::LinkDown),
            State::Gone(_) => Some(DropReason::PortGone),
        };
        if let Some(reason) = lost {
            let n = batch.len();
            self.counters.dropped(reason, n as u64);
            batch.iter().for_each(|packet| self.counters.show_dropped(reason, packet));
            self.cache.free_bulk(batch);
            return n;
        }
        let n = batch.len();
        for packet in batch.as_slice() {
            let bad = match packet.len() {
                _ if packet.wants_offload() => Some(DropReason::Offload),
                len if len < ethernet::HEADER_LEN => Some(DropReason::Malformed),
                len if len > self.longest => Some(DropReason::TooLong),
                _ => None,
            };
            if let Some(reason) = bad {
                self.counters.dropped_packet(reason, packet);
                continue;
            }
            if self.live.frames.len() >= self.burst || !self.live.frames.add(packet) {
                self.flush();
                // `flush` emptied the buffer.
                self.live.frames.add(packet);
            }
        }
        self.fed = n > 0;
        self.cache.free_bulk(batch);
        n
    }

    /// Sends the gathered frames, if the last turn added none.
    fn reclaim(&mut self) -> usize {
        let held = self.live.frames.len();
        if !std::mem::take(&mut self.fed) && held > 0 {
            self.flush();
            return held;
        }
        if (self.state != State::Up || !self.account.is_empty()) && self.account.is_due() {
            self.update();
        }
        0
    }

    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.flush();
        self.update();
        Ok(())
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn pending(&self) -> usize {
        self.live.frames.len()
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        Wake::Poll
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for LiveTx {
    /// Sends the gathered frames and counts them.
    fn drop(&mut self) {
        self.flush();
        self.update();
    }
}

/// Time between two reads of the device's counters.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// Frames that were submitted to a device. They are counted as sent or refused by the device's
/// counters, ten times a second.
#[derive(Debug)]
pub(in crate::xdp) struct TxAccount {
    device: Device,
    link: Link,
    last: Statistics,
    next: Instant,
    control: Arc<Control>,
    index: i32,
    frames: u64,
    bytes: u64,
}

impl TxAccount {
    /// An account with the interface `index` of the calling thread's namespace.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub(in crate::xdp) fn new(control: Arc<Control>, index: i32) -> io::Result<TxAccount> {
        let (device, link) = (Device::new(index)?, Link::new(index)?);
        let last = link.statistics().unwrap_or_default();
        Ok(TxAccount {
            device,
            link,
            last,
            next: Instant::now() + UPDATE_INTERVAL,
            control,
            index,
            frames: 0,
            bytes: 0,
        })
    }

    /// Adds submitted frames.
    pub(super) fn submitted(&mut self, frames: u64, bytes: u64) {
        self.frames += frames;
        self.bytes += bytes;
    }

    /// Whether the next update is due.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Whether all submitted frames are counted.
    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Counts the submitted frames as sent or refused; returns the device's state.
    #[cold]
    pub(super) fn update(&mut self, counters: &Counters) -> State {
        self.next = Instant::now() + UPDATE_INTERVAL;
        let accepts = self.device.features().is_ok_and(|f| f.ndo_xmit());
        let now = self.link.statistics().unwrap_or(self.last);
        let (sent, bytes) = (std::mem::take(&mut self.frames), std::mem::take(&mut self.bytes));
        let dropped = now.tx_dropped.saturating_sub(self.last.tx_dropped);
        let arrived = now.tx_packets.saturating_sub(self.last.tx_packets);
        self.last = now;
        // A device that stopped to accept frames does not count those that it refused.
        let refused = if accepts { dropped.min(sent) } else { sent.saturating_sub(arrived) };
        if refused > 0 {
            counters.dropped(DropReason::Refused, refused);
        }
        counters.moved(sent - refused, bytes.checked_div(sent).map_or(0, |mean| mean * (sent - refused)));
        match self.control.link_state(self.index) {
            LinkState::Absent => gone(),
            link @ (LinkState::Down | LinkState::NoCarrier) => down(link),
            LinkState::Up if !accepts => State::Down("the device takes no frames any more".into()),
            LinkState::Up => State::Up,
        }
    }
}
