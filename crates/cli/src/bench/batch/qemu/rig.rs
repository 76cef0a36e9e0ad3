//! The driver, two devices in QEMU, and their cables.
//!
//! ```text
//!   transmit   stage, announce ──► QEMU moves each batch inside the register write
//!                              ──► until the last frame is reported │ socket emptied
//!   receive    frames into the cable ──► QEMU takes them one by one
//!                              ──► until the last frame is received, buffers returned
//! ```

use super::super::frames::{Protocol, frame};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::bus::qtest::{Accesses, Cable, Device, Machine, Netdev, QtestBus};
use towpath::nic::batching::BatchSize;
use towpath::nic::e1000e::{Config, Control, E1000e, E1000eRx, E1000eTx};
use towpath::packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath::packet::{Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// Most frames of a sample: the capacity of a cable.
const SAMPLE: usize = 128;
/// Time limit of the device for a sample.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Slots of the devices. The sender is on an empty hub unless a socket is asked for: a socket costs
/// QEMU a system call per frame beside the doorbell. The receiver is on a socket.
const SENDER: u8 = 4;
const RECEIVER: u8 = 5;
/// The tail registers (82574 datasheet §10.2.5.9, §10.2.6.6).
const RDT: Range<usize> = 0x2818..0x281c;
const TDT: Range<usize> = 0x3818..0x381c;

/// The cost of a number of frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) frames: usize,
    pub(super) ns: u64,
    pub(super) doorbells: u64,
    pub(super) reads: u64,
}

/// A device, its driver, and the counts of its registers.
struct Nic {
    rx: E1000eRx<QtestBus>,
    tx: E1000eTx<QtestBus>,
    control: Control,
    accesses: Arc<Accesses>,
}

impl Nic {
    fn new(bus: QtestBus, pool: &Pool) -> Result<Nic, Box<dyn Error>> {
        let accesses = bus.accesses(0).ok_or("the device has no registers")?;
        let port = E1000e::open(bus, "e1000e:qtest", Config::default())?;
        let control = port.control();
        let Queues { mut rx, mut tx } = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL })?;
        let (mut rx, tx) = rx.pop().zip(tx.pop()).ok_or("the port has no queues")?;
        rx.refill();
        let deadline = Instant::now() + TIMEOUT;
        while !control.link().up {
            if Instant::now() >= deadline {
                return Err(format!("QEMU's device has no link after {TIMEOUT:?}").into());
            }
            rx.rx(&mut Batch::<64>::new());
        }
        Ok(Nic { rx, tx, control, accesses })
    }
}

pub(super) struct Rig {
    // Drop order: the queues end while the machine lives.
    sender: Nic,
    receiver: Nic,
    cache: Cache,
    /// The other end of the sender's cable, if there is one.
    sent: Option<Cable>,
    cable: Cable,
    frame: Vec<u8>,
}

impl Rig {
    /// Starts a machine.
    ///
    /// # Errors
    /// A [`BusError`](towpath::bus::BusError) if there is no QEMU, or if it does not start.
    pub(super) fn new(size: usize, socket: bool) -> Result<Rig, Box<dyn Error>> {
        let (netdev, cable) = Netdev::cable()?;
        let (out, sent) = match socket {
            true => Netdev::cable().map(|(netdev, cable)| (netdev, Some(cable)))?,
            false => (Netdev::Hub(0), None),
        };
        let devices = [Device::e1000e(SENDER, out), Device::e1000e(RECEIVER, netdev)];
        let qemu = devices.into_iter().fold(Machine::default(), Machine::with).start()?;
        let pool = Pool::new(PoolConfig::default().capacity(2048))?;
        let cache = pool.cache(Direction::Tx)?;
        let (sender, receiver) = (Nic::new(qemu.open(SENDER)?, &pool)?, Nic::new(qemu.open(RECEIVER)?, &pool)?);
        let frame = frame(Protocol::Udp, size)?;
        Ok(Rig { sender, receiver, cache, sent, cable, frame })
    }

    /// Sends a burst of whole batches and waits until it has left.
    pub(super) fn transmit(&mut self, size: BatchSize) -> Result<Sample, Box<dyn Error>> {
        self.sender.control.batching().resize(size);
        let frames = whole_batches(size);
        let mut burst = self.burst(frames)?;
        let Nic { tx, accesses, .. } = &mut self.sender;
        let sample = count(accesses, TDT, frames, |deadline| {
            for batch in &mut burst {
                tx.reclaim();
                tx.tx(batch);
            }
            tx.kick();
            while tx.pending() > 0 && Instant::now() < deadline {
                tx.reclaim();
            }
            Ok(frames - tx.pending() - burst.iter().map(Batch::len).sum::<usize>())
        })?;
        if let Some(sent) = &self.sent {
            let mut arrived = vec![0; self.frame.len().max(60)];
            for _ in 0..frames {
                sent.receive(&mut arrived, TIMEOUT)?;
            }
        }
        Ok(sample)
    }

    /// Makes the same number of frames arrive and waits for them.
    pub(super) fn receive(&mut self, size: BatchSize) -> Result<Sample, Box<dyn Error>> {
        self.receiver.control.batching().resize(size);
        let frames = whole_batches(size);
        let (Nic { rx, accesses, .. }, cache) = (&mut self.receiver, &mut self.cache);
        count(accesses, RDT, frames, |deadline| {
            for _ in 0..frames {
                self.cable.send(&self.frame)?;
            }
            let (mut batch, mut received) = (Batch::<64>::new(), 0);
            while received < frames && Instant::now() < deadline {
                rx.refill();
                received += rx.rx(&mut batch);
                cache.free_bulk(&mut batch);
            }
            // Buffers that are not returned here would be counted with the next sample.
            rx.refill();
            Ok(received)
        })
    }

    fn burst(&mut self, frames: usize) -> Result<Vec<Batch>, Box<dyn Error>> {
        let mut burst = Vec::new();
        for begun in (0..frames).step_by(Batch::<64>::CAPACITY) {
            let mut batch = Batch::new();
            for _ in begun..frames.min(begun + Batch::<64>::CAPACITY) {
                let packet = Packet::copy_from(&mut self.cache, &self.frame).ok_or("the pool is dry")?;
                batch.push(packet).map_err(|_| "a batch is full")?;
            }
            burst.push(batch);
        }
        Ok(burst)
    }
}

/// Frames of a sample.
fn whole_batches(size: BatchSize) -> usize {
    let size = usize::from(size.get());
    SAMPLE / size * size
}

/// Times `timed`, which moves `frames` before a deadline, and counts its register accesses.
fn count(
    accesses: &Accesses,
    tail: Range<usize>,
    frames: usize,
    timed: impl FnOnce(Instant) -> Result<usize, Box<dyn Error>>,
) -> Result<Sample, Box<dyn Error>> {
    let before = [accesses.of(tail.clone()), accesses.total()];
    let begun = Instant::now();
    let moved = timed(begun + TIMEOUT)?;
    let ns = begun.elapsed().as_nanos() as u64;
    if moved < frames {
        return Err(format!("QEMU's device moved {moved} of {frames} frames in {TIMEOUT:?}").into());
    }
    let [tails, all] = [accesses.of(tail) - before[0], accesses.total() - before[1]];
    Ok(Sample { frames, ns, doorbells: tails.writes, reads: all.reads })
}
