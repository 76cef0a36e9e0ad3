//! A port of any kind as the wire of a modelled device: `e1000e:model@tap:far`.

use crate::any::{AnyPort, AnyRx, AnyTx};
use std::os::fd::RawFd;
use towpath_model::wire::{MAX_FRAME, Wire};
use towpath_packet::port::{Layer, Port, PortError, Queues, RxQueue, Start, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// Most frames on the wire, both directions together.
const BUFFERS: usize = 2048;

/// The first queues of a port, run by the thread of the model.
pub(crate) struct PortWire {
    rx: AnyRx,
    tx: AnyTx,
    cache: Cache,
    /// Received from the port, waiting for the device; the last one is next.
    arrived: Batch,
    /// Sent by the device, waiting for the port.
    leaving: Batch,
}

impl PortWire {
    /// Starts the port.
    pub(crate) fn new(port: AnyPort) -> Result<PortWire, PortError> {
        let name = port.info().name.clone();
        if port.info().layer == Layer::Ip {
            let what = "it carries IP packets, and a wire Ethernet frames: use a tap".to_owned();
            return Err(PortError::Input { port: name, what });
        }
        let no_pool = |source| PortError::Pool { port: name.clone(), source };
        let config = PoolConfig::default().capacity(BUFFERS);
        let pool = Pool::new(config).map_err(no_pool)?;
        let cache = pool.cache(Direction::Tx).map_err(no_pool)?;
        // A wire carries whole frames with complete checksums.
        let Queues { rx, tx } = port.start(Start { pool, queues: 1, accept: Offloads::NONE })?;
        let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            return Err(PortError::Input { port: name, what: "it has no queues".to_owned() });
        };
        Ok(PortWire { rx, tx, cache, arrived: Batch::new(), leaving: Batch::new() })
    }

    fn flush(&mut self) -> bool {
        self.tx.reclaim();
        self.tx.tx(&mut self.leaving);
        self.tx.kick();
        self.leaving.is_empty()
    }
}

impl Wire for PortWire {
    fn send(&mut self, frame: &[u8]) -> bool {
        if !self.leaving.is_empty() && !self.flush() {
            return false;
        }
        let Some(packet) = Packet::copy_from(&mut self.cache, frame) else { return false };
        if self.leaving.push(packet).is_err() {
            return false;
        }
        self.flush();
        true
    }

    fn receive(&mut self, into: &mut Vec<u8>) -> bool {
        if self.arrived.is_empty() {
            self.rx.refill();
            self.rx.rx(&mut self.arrived);
            // Frames are taken from the end.
            self.arrived.as_mut_slice().reverse();
        }
        let Some(packet) = self.arrived.pop() else {
            if !self.leaving.is_empty() {
                self.flush();
            }
            return false;
        };
        into.resize(packet.len().min(MAX_FRAME), 0);
        packet.copy_to(0, into);
        self.cache.free(packet);
        true
    }

    fn carrier(&self) -> bool {
        !matches!(self.rx.state(), State::Down(_) | State::Gone(_))
    }

    fn wake(&mut self) -> Option<RawFd> {
        match self.rx.wake() {
            Wake::Fd(fd) | Wake::Readable(fd) => Some(fd),
            _ => None,
        }
    }
}
