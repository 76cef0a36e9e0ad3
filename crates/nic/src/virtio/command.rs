//! The control queue (virtio 1.2 §5.1.6.5): one command at a time, whose answer is waited for.
//!
//! ```text
//!   [ class │ command ] [ data ] ──► device ──► [ ack ]
//! ```

use super::config::Config;
use super::features::{CTRL_MAC_ADDR, CTRL_RX, CTRL_VLAN, MQ, RSS};
use super::hashing::Hashing;
use super::transport::Transport;
use crate::common::filter::{Filter, Receive, VlanSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use towpath_bus::BusError;
use towpath_virtio::{Area, Driver, RingWords, Segment};
use towpath_wire::ethernet::Mac;

/// Looks for an answer with short pauses behind them, then with long ones: a second or more. They
/// are counted and not timed, because a device in software answers nothing while its processor does
/// not run.
const LOOKS: [(u32, Duration); 2] = [(200, Duration::from_micros(50)), (200, Duration::from_millis(5))];
/// Bytes of the data of a command, at most.
pub(super) const DATA: usize = 4096;
/// Where the data and the answer lie, behind the command.
const DATA_AT: usize = 16;
const ACK_AT: usize = DATA_AT + DATA;
/// Bytes of the buffer.
pub(super) const BUFFER: usize = ACK_AT + 8;
/// Descriptors of the queue.
pub(super) const SIZE: u16 = 16;

/// The queue, and a buffer for a command.
pub(super) struct Commands {
    driver: Driver,
    index: u16,
    words: Area,
    addr: u64,
}

impl Commands {
    /// The queue `index`, with a buffer of [`BUFFER`] bytes at `addr`.
    pub(super) fn new(mut driver: Driver, index: u16, words: Area, addr: u64) -> Commands {
        driver.disable_calls();
        Commands { driver, index, words, addr }
    }

    /// The device was reset.
    pub(super) fn reset(&mut self) {
        self.driver.reset(|_| {});
        self.driver.disable_calls();
    }

    /// Writes bytes at a multiple of two.
    fn put(&self, at: usize, bytes: &[u8]) {
        for (i, pair) in bytes.chunks(2).enumerate() {
            let word =
                u16::from(pair.first().copied().unwrap_or(0)) | u16::from(pair.get(1).copied().unwrap_or(0)) << 8;
            self.words.store16(at / 2 + i, word, Relaxed);
        }
    }

    /// Sends a command; returns whether the device did it. One that does not answer in time gets no
    /// further command before it is reset.
    fn send<T: Transport>(&mut self, transport: &T, class: u8, command: u8, data: &[u8]) -> bool {
        if data.len() > DATA || self.driver.in_flight() > 0 {
            return false;
        }
        self.put(0, &[class, command]);
        self.put(DATA_AT, data);
        self.put(ACK_AT, &[0xff]);
        let at = |offset: usize| self.addr + offset as u64;
        let chain = [
            Segment::readable(at(0), 2),
            Segment::readable(at(DATA_AT), data.len() as u32),
            Segment::writable(at(ACK_AT), 1),
        ];
        let added = if data.is_empty() { self.driver.add(&[chain[0], chain[2]]) } else { self.driver.add(&chain) };
        if added.is_err() {
            return false;
        }
        if self.driver.publish() {
            transport.kick(self.index);
        }
        for (looks, pause) in LOOKS {
            for _ in 0..looks {
                match self.driver.next_used() {
                    Ok(None) => std::thread::sleep(pause),
                    Ok(Some(_)) => return self.is_done(),
                    Err(_) => return false,
                }
            }
        }
        matches!(self.driver.next_used(), Ok(Some(_))) && self.is_done()
    }

    /// Whether the device did the command that it has answered.
    fn is_done(&self) -> bool {
        self.words.load16(ACK_AT / 2, Relaxed) & 0xff == 0
    }

    /// Sets queues and hash; returns how many commands were refused.
    ///
    /// # Errors
    /// [`BusError`] if only the first pair of queues works.
    pub(super) fn configure<T: Transport>(
        &mut self,
        transport: &T,
        features: u64,
        pairs: u16,
        config: &Config,
    ) -> Result<u32, BusError> {
        let has = |bits: u64| features & bits != 0;
        let mut refused = 0;
        let mut send = |class, command, data: &[u8]| {
            let done = self.send(transport, class, command, data);
            refused += u32::from(!done);
            done
        };
        let hash = Hashing::find(transport, config.rss_key).and_then(|hashing| hashing.command(features, pairs));
        let hashes = hash.is_some_and(|(command, data)| send(4, command, &data));
        // Spreading packets over queues has enabled them already.
        if has(MQ) && pairs > 1 && !(hashes && has(RSS)) && !send(4, 0, &pairs.to_le_bytes()) {
            let what = format!("it refuses {pairs} pairs of queues (VIRTIO_NET_CTRL_MQ): queues=1 needs no command");
            return Err(BusError::device(transport.name(), what));
        }
        Ok(refused)
    }

    /// Lets the device receive what a filter says; returns how many commands were refused. `before`
    /// is the filter that the device has, if it was not reset. Frames that pass both are received
    /// during the change.
    pub(super) fn set_filter<T: Transport>(
        &mut self,
        transport: &T,
        features: u64,
        before: Option<&Filter>,
        filter: &Filter,
        device_mac: Option<Mac>,
    ) -> u32 {
        let has = |bits: u64| features & bits != 0;
        let mut refused = 0;
        let mut send = |class, command, data: &[u8]| refused += u32::from(!self.send(transport, class, command, data));
        let Filter { receive, mac, addresses, groups, vlans } = filter;
        let mac_before = before.map_or(device_mac, |before| before.mac.or(device_mac));
        if let Some(mac) = mac.or(device_mac).filter(|mac| has(CTRL_MAC_ADDR) && mac_before != Some(*mac)) {
            send(1, 1, &mac);
        }
        let vlans_before = before.and_then(|before| before.vlans.as_ref());
        // VLAN 0 means priority alone.
        let among = |vlans: Option<&VlanSet>, id| has(CTRL_VLAN) && vlans.is_some_and(|vlans| id == 0 || vlans.has(id));
        for id in (0..4095).filter(|&id| among(vlans.as_ref(), id) && !among(vlans_before, id)) {
            send(2, 0, &u16::to_le_bytes(id));
        }
        if has(CTRL_RX) {
            // First what lets more through, last what lets less through.
            let modes = [(0, *receive == Receive::All), (1, *receive == Receive::Multicast)];
            modes.iter().filter(|(_, on)| *on).for_each(|(mode, _)| send(0, *mode, &[1]));
            if *receive != Receive::All {
                send(1, 0, &tables(addresses, groups));
            }
            modes.iter().filter(|(_, on)| !*on).for_each(|(mode, _)| send(0, *mode, &[0]));
        }
        for id in (0..4095).filter(|&id| among(vlans_before, id) && !among(vlans.as_ref(), id)) {
            send(2, 1, &u16::to_le_bytes(id));
        }
        refused
    }

    /// The driver has seen the request for an announcement; its neighbours learn of the port by its
    /// next frame.
    pub(super) fn acknowledge_announce<T: Transport>(&mut self, transport: &T) {
        let _ = self.send(transport, 3, 0, &[]);
    }
}

/// The lists of unicast and of multicast addresses (§5.1.6.5.2).
fn tables(addresses: &[Mac], groups: &[Mac]) -> Vec<u8> {
    [addresses, groups]
        .into_iter()
        .flat_map(|list| {
            let n = (list.len() as u32).to_le_bytes();
            n.into_iter().chain(list.iter().flatten().copied()).collect::<Vec<_>>()
        })
        .collect()
}
