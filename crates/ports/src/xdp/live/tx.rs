//! The transmit queue: gathers, runs the program, and asks the device what became of it.

use super::account::Account;
use super::program::LONGEST;
use super::{BATCH, Live};
use std::sync::Arc;
use towpath_packet::port::{Info, PortError, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, Direction, DropReason, Offloads, Pool};
use towpath_sys::netdev::Control;
use towpath_sys::netdev_genl::Device;

/// Shortest frame that the kernel makes: an Ethernet header.
const SHORTEST: usize = 14;
/// Bytes of an Ethernet header and two tags.
const LINK: usize = 14 + 8;
/// A transmit queue of an AF_XDP port with `tx=live`.
#[derive(Debug)]
pub struct LiveTx {
    live: Live,
    burst: usize,
    longest: usize,
    /// Frames were added since the last [`reclaim`](TxQueue::reclaim).
    fed: bool,
    account: Account,
    state: State,
    cache: Cache,
    counters: Arc<Counters>,
}

impl LiveTx {
    pub(in crate::xdp) fn new(
        live: Live,
        info: &Info,
        burst: u16,
        device: Device,
        (control, index): (Arc<Control>, i32),
        pool: &Pool,
    ) -> Result<LiveTx, PortError> {
        let failed = |source| PortError::Pool { port: info.name.clone(), source };
        Ok(LiveTx {
            live,
            burst: burst.into(),
            longest: (info.mtu as usize + LINK).min(LONGEST),
            fed: false,
            account: Account::new(device, control, index),
            state: State::Up,
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            counters: Arc::default(),
        })
    }

    /// Runs the program on what was gathered.
    fn flush(&mut self) {
        let Live { gathered, program, .. } = &mut self.live;
        let (frames, bytes) = (gathered.len(), gathered.bytes());
        if frames == 0 {
            return;
        }
        let begins = gathered.begin();
        let template = [0u8; LONGEST];
        let mut calls = 0;
        let mut error = None;
        let mut done = 0;
        while done < frames {
            calls += 1;
            let left = (frames - done) as u32;
            let result = program.run_live(&template[..begins.min(LONGEST)], left, left.min(BATCH));
            let now = gathered.done();
            match result {
                Err(e) if e.raw_os_error() != Some(libc::EINTR) => {
                    error = Some(e);
                    done = now;
                    break;
                }
                // Interrupted by a signal: the rest is run by another call.
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
        self.account.handed(done as u64, (bytes * done as u64).checked_div(frames as u64).unwrap_or(0));
        if self.account.is_due() {
            self.look();
        }
    }

    /// What became of what was sent?
    fn look(&mut self) {
        self.state = self.account.settle(&self.counters);
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
            self.cache.free_bulk(batch);
            return n;
        }
        let n = batch.len();
        for packet in batch.as_slice() {
            let bad = match packet.len() {
                _ if packet.wants_offload() => Some(DropReason::Offload),
                len if len < SHORTEST => Some(DropReason::Malformed),
                len if len > self.longest => Some(DropReason::TooLong),
                _ => None,
            };
            if let Some(reason) = bad {
                self.counters.dropped(reason, 1);
                continue;
            }
            if self.live.gathered.len() >= self.burst || !self.live.gathered.add(packet) {
                self.flush();
                // There is room now.
                self.live.gathered.add(packet);
            }
        }
        self.fed = n > 0;
        self.cache.free_bulk(batch);
        n
    }

    /// Sends what was gathered, once nothing has been added for a turn.
    fn reclaim(&mut self) -> usize {
        let held = self.live.gathered.len();
        if !std::mem::take(&mut self.fed) && held > 0 {
            self.flush();
            return held;
        }
        if (self.state != State::Up || !self.account.is_settled()) && self.account.is_due() {
            self.look();
        }
        0
    }

    fn close(&mut self) {
        self.flush();
        self.look();
    }

    fn offloads(&self) -> Offloads {
        Offloads::NONE
    }

    fn pending(&self) -> usize {
        self.live.gathered.len()
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
    /// What was gathered still leaves; and the device has the last word.
    fn drop(&mut self) {
        self.flush();
        self.look();
    }
}
