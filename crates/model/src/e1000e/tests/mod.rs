//! The device from the driver's side: registers, rings and frames without a driver.
//!
//! | module | what |
//! |---|---|
//! | `rx`, `tx` | reception and transmission |
//! | `strict` | every rule, violated |
//! | `faults` | injected faults |
//! | `threaded` | the device with a thread |

mod faults;
mod rx;
mod strict;
mod threaded;
mod tx;

use super::regs::*;
use super::*;
use crate::wire::{Plug, Wire, cable};
use std::sync::atomic::AtomicU64;
use towpath_bus::{Access, Bus, Dma, Irq, Mmio, Pci};
use towpath_packet::Region;

/// TCTL with transmission enabled, and the bits that silicon needs.
pub(super) const TCTL_ON: u32 = TCTL_RRTHRESH_RESET | TCTL_MULR | TCTL_EN;
pub(super) const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// Frames that the cable holds.
pub(super) const CABLE: usize = 1024;
/// Descriptors per ring.
pub(super) const RING: u32 = 16;
/// Bytes per buffer. Buffer `i` belongs to receive descriptor `i`; those after the ring's are for
/// transmission.
pub(super) const BUFFER: usize = 2048;

/// A device with its first queues configured, and the far end of its cable.
pub(super) struct Rig {
    pub(super) bus: ModelBus,
    pub(super) bar: ModelBar,
    pub(super) device: Device,
    pub(super) far: Plug,
    /// Receive ring, transmit ring, buffers.
    memory: Region,
    pub(super) iova: u64,
    pub(super) tail: u32,
}

pub(super) fn config() -> Config {
    Config { mac: MAC, strict: true, phy: PhyStart::Ready, ..Config::default() }
}

impl Rig {
    pub(super) fn new(config: Config) -> Rig {
        let mut rig = Rig::bare(config);
        rig.enable(RCTL_EN | RCTL_BAM | RCTL_SECRC, RFCTL_EXTEN);
        rig
    }

    /// Before the queues are enabled.
    pub(super) fn bare(config: Config) -> Rig {
        let (near, far) = cable(CABLE);
        Rig::on(config, near, far)
    }

    /// With a given wire.
    pub(super) fn on(config: Config, near: impl Wire, far: Plug) -> Rig {
        let bus = launch(config, near).unwrap();
        bus.set_master(true);
        let (bar, device) = (bus.bar(0, BAR_LEN).unwrap(), bus.device());
        let memory = bus.dma().alloc(64 * BUFFER + 8192).unwrap();
        // SAFETY: the region lives as long as the bus, whose drop stops the device.
        let iova = unsafe { bus.dma().map(memory.base(), memory.len(), Access::Both) }.unwrap().get();
        let rig = Rig { bus, bar, device, far, memory, iova, tail: 0 };
        rig.bar.w32(CTRL_EXT, CTRL_EXT_DRV_LOAD);
        rig.bar.w32(TDBAL + TARC, 0x403 | TARC_ONE);
        rig.bar.w32(TDBAL + DCTL, TXDCTL_BIT22);
        rig.bar.w32(TDBAL + QUEUE + DCTL, TXDCTL_BIT22);
        for (at, offset) in [(RDBAL, 0), (TDBAL, 4096)] {
            rig.bar.w32(at, (iova + offset) as u32);
            rig.bar.w32(at + BAH, ((iova + offset) >> 32) as u32);
            rig.bar.w32(at + LEN, RING * 16);
        }
        rig
    }

    pub(super) fn enable(&mut self, rctl: u32, rfctl: u32) {
        self.bar.w32(RFCTL, rfctl);
        self.bar.w32(RXCSUM, RXCSUM_IPOFLD | RXCSUM_TUOFLD);
        self.bar.w32(RCTL, rctl);
        self.bar.w32(TCTL, TCTL_ON | TCTL_PSP);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let at = self.memory.at(offset, 8).unwrap();
        // SAFETY: inside the region and aligned; descriptors are only accessed as atomic words.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    pub(super) fn rxd(&self, index: u32) -> [u64; 2] {
        let at = 16 * index as usize;
        let second = self.word(at + 8).load(Ordering::Acquire);
        [self.word(at).load(Ordering::Relaxed), second]
    }

    pub(super) fn set_rxd(&self, index: u32, words: [u64; 2]) {
        let at = 16 * index as usize;
        self.word(at).store(words[0], Ordering::Relaxed);
        self.word(at + 8).store(words[1], Ordering::Relaxed);
    }

    pub(super) fn txd(&self, index: u32) -> [u64; 2] {
        let at = 4096 + 16 * index as usize;
        [self.word(at).load(Ordering::Relaxed), self.word(at + 8).load(Ordering::Acquire)]
    }

    pub(super) fn set_txd(&self, index: u32, words: [u64; 2]) {
        let at = 4096 + 16 * index as usize;
        self.word(at).store(words[0], Ordering::Relaxed);
        self.word(at + 8).store(words[1], Ordering::Relaxed);
    }

    /// The IOVA of buffer `n`.
    pub(super) fn buffer(&self, n: usize) -> u64 {
        self.iova + 8192 + (n * BUFFER) as u64
    }

    pub(super) fn bytes(&self, n: usize, len: usize) -> Vec<u8> {
        let at = self.memory.at(8192 + n * BUFFER, len).unwrap();
        // SAFETY: inside the region; the device is stepped by this thread, so it is not running.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }.to_vec()
    }

    pub(super) fn fill(&self, n: usize, bytes: &[u8]) {
        let at = self.memory.at(8192 + n * BUFFER, bytes.len()).unwrap();
        // SAFETY: as in `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
    }

    /// Posts `n` more receive buffers.
    pub(super) fn post(&mut self, n: u32) {
        for _ in 0..n {
            self.set_rxd(self.tail, [self.buffer(self.tail as usize), 0]);
            self.tail = (self.tail + 1) % RING;
        }
        self.bar.w32(RDBAL + TAIL, self.tail);
    }

    /// Receives a frame.
    pub(super) fn arrive(&mut self, frame: &[u8]) {
        assert!(self.far.send(frame));
        self.device.run_until_idle();
    }

    /// Status, length, VLAN of a receive descriptor in the extended format.
    pub(super) fn received(&self, index: u32) -> (u32, usize, u16) {
        let second = self.rxd(index)[1];
        (second as u32, (second >> 32 & 0xffff) as usize, (second >> 48) as u16)
    }

    /// Transmits these descriptors from ring index `at` on; returns the frames that left.
    pub(super) fn transmit(&mut self, at: u32, descriptors: &[[u64; 2]]) -> Vec<Vec<u8>> {
        for (i, words) in descriptors.iter().enumerate() {
            self.set_txd((at + i as u32) % RING, *words);
        }
        self.bar.w32(TDBAL + TAIL, (at + descriptors.len() as u32) % RING);
        self.device.run_until_idle();
        self.far.drain()
    }

    pub(super) fn clean(&self) {
        assert_eq!(self.device.violation(), None);
    }
}

/// A frame of `len` bytes to the device.
pub(super) fn frame(len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
    frame[..6].copy_from_slice(&MAC);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// An extended data descriptor for a buffer of `len` bytes.
pub(super) fn data(buffer: u64, len: usize, flags: u64) -> [u64; 2] {
    [buffer, len as u64 | txd::TYPE_DATA | txd::DEXT | flags]
}

#[test]
fn status_shows_the_link_after_negotiation() {
    let rig = Rig::bare(Config { negotiation: 3, ..config() });
    let reads: Vec<_> = (0..4).map(|_| rig.bar.r32(STATUS) & STATUS_LU).collect();
    assert_eq!(reads.last(), Some(&STATUS_LU));
    assert_eq!(reads[0], 0);
}

#[test]
fn a_lost_carrier_takes_the_link_down_and_interrupts() {
    let rig = Rig::new(config());
    let irqs = rig.bus.irqs(1).unwrap();
    rig.bar.w32(IVAR, 8 << 16);
    rig.bar.w32(IMS, cause::OTHER | cause::LSC);
    rig.device.turn();
    irqs[0].take();
    rig.far.set_carrier(false);
    rig.device.turn();
    assert_eq!((rig.bar.r32(STATUS) & STATUS_LU, irqs[0].take()), (0, 1));
    rig.clean();
}

#[test]
fn registers_answer_only_while_the_function_decodes_memory() {
    let rig = Rig::bare(config());
    assert_eq!(rig.bar.r32(PBA), 0x0014_0014);
    rig.bus.config_w32(4, 0);
    assert_eq!(rig.bar.r32(PBA), u32::MAX);
    rig.bar.w32(PBA, 8);
    rig.bus.set_master(true);
    assert_eq!(rig.bar.r32(PBA), 0x0014_0014);
}

#[test]
fn the_packet_buffers_transmit_part_is_the_rest_of_forty() {
    let rig = Rig::bare(config());
    rig.bar.w32(PBA, 32);
    assert_eq!(rig.bar.r32(PBA), 8 << 16 | 32);
}

#[test]
fn a_reset_stops_the_queues_and_clears_the_rings() {
    let mut rig = Rig::new(config());
    rig.post(8);
    rig.bar.w32(CTRL, CTRL_RST);
    assert_eq!((rig.bar.r32(RCTL), rig.bar.r32(RDBAL + TAIL), rig.bar.r32(RDBAL)), (0, 0, 0));
    rig.arrive(&frame(60));
    assert_eq!(rig.rxd(0), [rig.buffer(0), 0]);
    assert_eq!(rig.bar.r32(CTRL) & CTRL_RST, 0, "it clears itself");
}

#[test]
fn without_bus_mastering_nothing_moves() {
    let mut rig = Rig::new(config());
    rig.post(4);
    rig.bus.set_master(false);
    rig.arrive(&frame(60));
    rig.fill(20, &frame(60));
    assert!(rig.transmit(0, &[data(rig.buffer(20), 60, txd::EOP | txd::RS)]).is_empty());
    rig.bus.set_master(true);
    rig.device.run_until_idle();
    assert_eq!(rig.received(0).1, 60);
    assert_eq!(rig.far.drain().len(), 1);
}

#[test]
fn accesses_are_counted_by_class() {
    let mut rig = Rig::new(config());
    let before = rig.device.accesses();
    rig.post(1);
    rig.post(1);
    rig.bar.r32(STATUS);
    rig.bar.w32(FCAL, 0);
    let after = rig.device.accesses();
    assert_eq!((after.reads - before.reads, after.writes - before.writes, after.tails - before.tails), (1, 1, 2));
}

#[test]
fn a_closed_device_answers_nothing() {
    let rig = Rig::new(config());
    let (bar, device) = (rig.bar.clone(), rig.device.clone());
    drop(rig.bus);
    assert_eq!(bar.r32(STATUS), u32::MAX);
    assert_eq!(device.turn(), 0);
}

#[test]
fn reading_the_semaphore_acquires_it() {
    let rig = Rig::bare(config());
    assert_eq!((rig.bar.r32(SWSM), rig.bar.r32(SWSM)), (0, 1));
    rig.bar.w32(SWSM, 0);
    assert_eq!(rig.bar.r32(SWSM), 0);
}
