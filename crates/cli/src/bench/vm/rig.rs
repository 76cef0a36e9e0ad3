//! A driver and a device on the same rings, in one thread.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use towpath::nic::virtio::{UserConfig, UserTransport, VirtioNet, VirtioRx, VirtioTx};
use towpath::packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath::packet::{Backing, Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath::ports::Ended;
use towpath::ports::vhost::{self, VhostRx, VhostTx};
use towpath::virtio::config_from_uri;

/// Steps of a turn: the driver sends, the device receives; the device sends, the driver receives.
pub(super) const STEPS: usize = 4;
/// Turns before the first that counts.
const WARM_UP: usize = 64;
/// Time in which the rings must run.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The queues of one side, and its buffers.
struct Side<R, T> {
    rx: R,
    tx: T,
    cache: Cache,
}

impl<R: RxQueue, T: TxQueue> Side<R, T> {
    fn start(port: impl Port<Rx = R, Tx = T>, backing: Backing) -> Result<Side<R, T>, Box<dyn Error>> {
        let pool = Pool::new(PoolConfig::default().backing(backing))?;
        let Queues { rx, tx } = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE })?;
        let (rx, tx) = rx.into_iter().zip(tx).next().ok_or("a port without queues")?;
        Ok(Side { rx, tx, cache: pool.cache(Direction::Tx)? })
    }

    /// Puts `n` copies of a frame into a batch.
    fn make(&mut self, frame: &[u8], n: usize, batch: &mut Batch) -> Result<(), Box<dyn Error>> {
        while batch.len() < n {
            let packet = Packet::copy_from(&mut self.cache, frame).ok_or("the pool is empty")?;
            batch.push(packet).map_err(|_| "the batch is full")?;
        }
        Ok(())
    }
}

/// A driver and a device.
pub(super) struct Rig {
    driver: Side<VirtioRx<UserTransport>, VirtioTx<UserTransport>>,
    device: Side<Ended<VhostRx>, Ended<VhostTx>>,
    frame: Vec<u8>,
    burst: usize,
    batch: Batch,
    /// What the device has received last are pages of the driver.
    pub(super) takes_pages: bool,
}

#[inline(always)]
fn send(tx: &mut impl TxQueue, batch: &mut Batch) -> usize {
    tx.reclaim();
    let sent = tx.tx(batch);
    tx.kick();
    sent
}

#[inline(always)]
fn receive(rx: &mut impl RxQueue, batch: &mut Batch) -> usize {
    rx.refill();
    rx.rx(batch)
}

#[inline(never)]
fn driver_tx(tx: &mut VirtioTx<UserTransport>, batch: &mut Batch) -> usize {
    send(tx, batch)
}

#[inline(never)]
fn driver_rx(rx: &mut VirtioRx<UserTransport>, batch: &mut Batch) -> usize {
    receive(rx, batch)
}

#[inline(never)]
fn device_tx(tx: &mut Ended<VhostTx>, batch: &mut Batch) -> usize {
    send(tx, batch)
}

#[inline(never)]
fn device_rx(rx: &mut Ended<VhostRx>, batch: &mut Batch) -> usize {
    receive(rx, batch)
}

/// A step that must move `n` packets; returns the time that it took.
fn timed(n: usize, step: impl FnOnce() -> usize) -> Result<Duration, String> {
    let begun = Instant::now();
    let moved = step();
    let took = begun.elapsed();
    if moved == n { Ok(took) } else { Err(format!("{moved} packets of a burst of {n} moved")) }
}

impl Rig {
    /// With `options` of the driver.
    pub(super) fn new(options: &str, size: u32, burst: usize) -> Result<Rig, Box<dyn Error>> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("towpath-bench-vm-{}-{number}", std::process::id()));
        // The device answers the driver once it is started.
        let device = Side::start(vhost::open(vhost::Config::new(&path))?, Backing::HugePreferred)?;
        let config = config_from_uri(&format!("virtio:user={}?{options}", path.display()).parse()?)?;
        let port = VirtioNet::open(UserTransport::open(UserConfig::new(path))?, "virtio:user", config)?;
        let driver = Side::start(port, Backing::Memfd)?;
        // To the broadcast address, with a local experimental ethertype (IEEE 802, 0x88b5).
        let mut frame = vec![7; size as usize];
        let header = [0xff; 6].into_iter().chain([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        frame.iter_mut().zip(header).for_each(|(byte, header)| *byte = header);
        let mut rig = Rig { driver, device, frame, burst, batch: Batch::new(), takes_pages: false };
        rig.begin()?;
        Ok(rig)
    }

    /// Waits until the rings run, and makes turns that are not timed.
    fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        let begun = Instant::now();
        // What is sent before the device has a ring is dropped, and so is what a turn leaves.
        while let Err(error) = self.turn() {
            if begun.elapsed() > TIMEOUT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
            let Rig { driver, device, batch, .. } = self;
            device.cache.free_bulk(batch);
            while receive(&mut driver.rx, batch) + receive(&mut device.rx, batch) > 0 {
                device.cache.free_bulk(batch);
            }
        }
        (0..WARM_UP).try_for_each(|_| self.turn().map(drop))
    }

    /// A burst each way; returns the times of the steps.
    pub(super) fn turn(&mut self) -> Result<[Duration; STEPS], Box<dyn Error>> {
        let Rig { driver, device, frame, burst, batch, takes_pages } = self;
        driver.make(frame, *burst, batch)?;
        let driver_sends = timed(*burst, || driver_tx(&mut driver.tx, batch))?;
        let device_receives = timed(*burst, || device_rx(&mut device.rx, batch))?;
        *takes_pages = batch.iter().any(|packet| packet.extbuf_regions().next().is_some());
        device.cache.free_bulk(batch);
        device.make(frame, *burst, batch)?;
        let device_sends = timed(*burst, || device_tx(&mut device.tx, batch))?;
        let driver_receives = timed(*burst, || driver_rx(&mut driver.rx, batch))?;
        driver.cache.free_bulk(batch);
        Ok([driver_sends, device_receives, device_sends, driver_receives])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::packet::Counters;

    #[test]
    fn every_burst_moves_whole_in_each_kind_of_ring_both_ways() {
        for options in ["packed=off", "packed=on", "packed=off,in-order=off,mergeable=off"] {
            for size in [64, 1500] {
                let mut rig = Rig::new(options, size, 32).unwrap();
                (0..100).for_each(|_| _ = rig.turn().unwrap());
                // The driver counts what the device has used, and the device has pages of it.
                assert_eq!(device_rx(&mut rig.device.rx, &mut rig.batch), 0);
                rig.driver.tx.reclaim();
                let packets = |counters: &Counters| counters.snapshot().packets;
                let sides = [
                    (packets(rig.driver.tx.counters()), packets(rig.device.rx.counters())),
                    (packets(rig.device.tx.counters()), packets(rig.driver.rx.counters())),
                ];
                for (sent, received) in sides {
                    assert!(sent >= 100 * 32 && sent == received, "{options} {size}: {sent}, {received}");
                }
            }
        }
    }
}
