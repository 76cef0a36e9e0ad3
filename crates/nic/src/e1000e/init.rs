//! Bring-up and reset, step by step, in the order of the datasheet (82574 §4.6, "Software
//! Initialization Sequence").
//!
//! The same steps are right on silicon and on QEMU. QEMU's reset leaves some registers as they
//! were, so that the driver writes every register that it relies on.

use super::config::{Config, Pauses};
use super::filter::FilterTables;
use super::interrupts::InterruptMode;
use super::phy::{self, Mdic};
use super::regs::*;
use crate::common::ring::DescRing;
use std::time::Duration;
use towpath_bus::{Mmio, Timeout};

/// Sizes of receive buffers, with their bits in RCTL (§10.2.5.1: BSIZE, BSEX).
const BUFFER_SIZES: [(usize, u32); 7] = [
    (16384, rctl::SIZE_EXTENDED | 1 << rctl::SIZE_SHIFT),
    (8192, rctl::SIZE_EXTENDED | 2 << rctl::SIZE_SHIFT),
    (4096, rctl::SIZE_EXTENDED | 3 << rctl::SIZE_SHIFT),
    (2048, 0),
    (1024, 1 << rctl::SIZE_SHIFT),
    (512, 2 << rctl::SIZE_SHIFT),
    (256, 3 << rctl::SIZE_SHIFT),
];
/// The longest frame, without check sequence, that is received while RCTL.LPE is clear.
const SHORT_FRAME: usize = 1522;

/// The size of receive buffers for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferSize {
    bits: u32,
    /// Bytes that the device writes to one buffer, at most.
    pub(super) bytes: usize,
}

impl BufferSize {
    /// The size for buffers with `room` bytes. If the room is enough for a frame of ordinary size,
    /// the device may take the buffer for 2048 bytes: it refuses every frame that would use the
    /// rest.
    pub(super) fn for_room(room: usize, jumbo: bool) -> Option<BufferSize> {
        if !jumbo && (SHORT_FRAME..2048).contains(&room) {
            return Some(BufferSize { bits: 0, bytes: room });
        }
        let largest = BUFFER_SIZES.iter().find(|(size, _)| *size <= room);
        largest.map(|&(bytes, bits)| BufferSize { bits, bytes })
    }
}

/// A ring for the registers of the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingBase {
    iova: u64,
    len: u32,
}

impl From<&DescRing> for RingBase {
    fn from(ring: &DescRing) -> RingBase {
        RingBase { iova: ring.iova().get(), len: ring.len() }
    }
}

/// What the driver programs at the start and after every reset.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) rx: Vec<RingBase>,
    pub(super) tx: Vec<RingBase>,
    pub(super) buffer: BufferSize,
    /// Bytes of a buffer of the pool, headroom not included.
    pub(super) room: usize,
    /// The MTU that the packet buffer and the buffer size are for.
    pub(super) mtu: u16,
    /// The chip has a receive hash and two queues (not the 82583V).
    pub(super) rss: bool,
    pub(super) filters: FilterTables,
}

impl Layout {
    /// Whether the device is programmed for `config`'s MTU as it is for its own, or would be by
    /// [`long_frames`] alone: neither buffers nor packet buffer change.
    pub(super) fn fits(&self, config: &Config) -> bool {
        let now = Config { mtu: self.mtu, ..config.clone() };
        let buffer = BufferSize::for_room(self.room, config.is_jumbo());
        buffer == Some(self.buffer) && receive_kb(&now) == receive_kb(config)
    }

    /// Follows a new MTU. The device is being reset.
    pub(super) fn resize(&mut self, config: &Config) {
        self.mtu = config.mtu;
        self.buffer = BufferSize::for_room(self.room, config.is_jumbo()).unwrap_or(self.buffer);
    }
}

/// A pause that silicon needs.
pub(super) fn pause(config: &Config, time: Duration) {
    if config.pauses == Pauses::Silicon {
        std::thread::sleep(time);
    }
}

pub(super) const MS: Duration = Duration::from_millis(1);

/// Stops reception, transmission and interrupts, and disables bus mastering (§5.2.3.3.1, §4.6.1).
/// Returns whether the device confirms that no access to memory is under way.
pub(super) fn quiesce<M: Mmio>(bar: &M, config: &Config) -> bool {
    IMC.write(bar, cause::ALL);
    EIAC.write(bar, 0);
    RCTL.write(bar, 0);
    TCTL.write(bar, tctl::PAD);
    let _ = STATUS.read(bar);
    // Gives frames that are under way time to end.
    pause(config, 10 * MS);
    CTRL.change(bar, ctrl::RESERVED, ctrl::MASTER_DISABLE);
    // Twice the longest time that was measured. A device that hangs never answers, and is reset all
    // the same.
    let status = STATUS.wait(bar, status::MASTER_ENABLE, 0, 80 * MS);
    status.is_ok_and(|word| answers(bar, word))
}

/// Whether a device is there, by its status: the registers of a device that is gone read as all
/// ones, or in QEMU as zeros, and those of a device that is there are never all zero.
pub(super) fn answers<M: Mmio>(bar: &M, status: u32) -> bool {
    status != u32::MAX && (status != 0 || CTRL.read(bar) != 0)
}

/// Resets the device (§4.2.1.6, §4.6.3), which forgets rings and filters.
///
/// # Errors
/// The device does not answer.
pub(super) fn reset<M: Mmio>(bar: &M, config: &Config) -> Result<(), Timeout> {
    quiesce(bar, config);
    // A reset without the semaphore is better than none.
    let owned = Mdic::acquire(bar, config);
    // Only a reset moves the packet buffer's pointers to its new split (§10.2.3.1); the split
    // itself survives.
    PBA.write(bar, receive_kb(config));
    CTRL.change(bar, ctrl::RESERVED, ctrl::RESET);
    drop(owned);
    // Registers must not be accessed for a microsecond.
    pause(config, MS);
    CTRL.wait(bar, ctrl::RESET, 0, 10 * MS)?;
    // A device without an NVM never reads one: its address filter has no address, which
    // `mac_address` checks.
    let _ = EECD.wait(bar, EECD_AUTO_READ_DONE, EECD_AUTO_READ_DONE, 10 * MS);
    // The PHY configures itself.
    pause(config, 25 * MS);
    // §4.6.3.1: masks interrupts again, and clears pending ones.
    IMC.write(bar, cause::ALL);
    let _ = ICR.read(bar);
    clear(bar);
    Ok(())
}

/// KB of the packet buffer for reception. Transmission has room for two of the longest frames, 8 KB
/// at least; reception has the rest.
fn receive_kb(config: &Config) -> u32 {
    PBA_TOTAL - (2 * (config.max_frame() as u32 + 12)).div_ceil(1024).max(8)
}

/// Writes zero to the registers that a reset should clear: not every implementation does.
fn clear<M: Mmio>(bar: &M) {
    for reg in [RCTL, TCTL, RFCTL, RXCSUM, MRQC, PSRCTL, IVAR, EIAC, IAM] {
        reg.write(bar, 0);
    }
    for queue in 0..2 {
        for reg in [RDH, RDT, RDTR, RADV, TDH, TDT, TIDV, TADV] {
            reg.nth(queue, QUEUE).write(bar, 0);
        }
    }
    CTRL_EXT.change(bar, ctrl_ext::AUTO_MASK | ctrl_ext::ACK_AUTO_MASK, 0);
    CTRL.change(bar, ctrl::MASTER_DISABLE | ctrl::RESERVED, 0);
}

/// The address that the device loads from its NVM into the first filter (§10.2.5.22, §10.2.5.23).
pub(super) fn mac_address<M: Mmio>(bar: &M) -> Option<[u8; 6]> {
    let (low, high) = (RAL.read(bar).to_le_bytes(), RAH.read(bar));
    let [e, f, ..] = high.to_le_bytes();
    let mac = [low[0], low[1], low[2], low[3], e, f];
    let valid = high != u32::MAX && high & RAH_VALID != 0 && mac != [0; 6] && mac[0] & 1 == 0;
    valid.then_some(mac)
}

/// Programs reception and transmission after a reset. The rings are empty: no frame is received
/// before the tails are written.
pub(super) fn program<M: Mmio>(bar: &M, config: &Config, layout: &Layout) {
    general(bar, config);
    layout.filters.program(bar);
    statistics(bar);
    transmit(bar, layout);
    receive(bar, config, layout);
}

/// Device and link (§4.6.5, §4.6.7): the PHY negotiates, the MAC follows its speed. Pause frames are
/// off until the link is up and [`phy::settle`] knows what both ends agreed on.
fn general<M: Mmio>(bar: &M, config: &Config) {
    let clear = ctrl::FORCE_SPEED
        | ctrl::FORCE_DUPLEX
        | ctrl::RESET
        | ctrl::PHY_RESET
        | ctrl::MASTER_DISABLE
        | ctrl::RESERVED
        | ctrl::RX_PAUSE
        | ctrl::TX_PAUSE
        | ctrl::VLAN;
    let vlan = if config.vlan { ctrl::VLAN } else { 0 };
    CTRL.change(bar, clear, ctrl::SET_LINK_UP | ctrl::AUTO_SPEED | vlan);
    CTRL_EXT.change(bar, ctrl_ext::PHY_POWER_CLEAR, ctrl_ext::PHY_POWER_SET | ctrl_ext::DRIVER_LOADED);
    GCR.change(bar, 0, GCR_L1);
    GCR2.change(bar, 0, GCR2_COMPLETIONS);
    // Flow control (§4.6.5.1): address and type of IEEE 802.3 annex 31B, and a pause of 0.85 ms at
    // 1000 Mb/s. If the link is firmware's, so are the thresholds.
    FCAL.write(bar, 0x00c2_8001);
    FCAH.write(bar, 0x0100);
    FCT.write(bar, 0x8808);
    FCTTV.write(bar, 0x0680);
    pause_thresholds(bar, config);
    VET.write(bar, 0x8100);
}

/// When the port asks for a pause. If the link is firmware's, so are the thresholds.
fn pause_thresholds<M: Mmio>(bar: &M, config: &Config) {
    if !phy::is_firmwares(bar) {
        let (high, low) = phy::thresholds(config, receive_kb(config) << 10);
        FCRTL.write(bar, low);
        FCRTH.write(bar, high);
    }
}

/// Follows a new MTU while frames arrive, if the layout [fits](Layout::fits) it.
pub(super) fn long_frames<M: Mmio>(bar: &M, config: &Config) {
    RCTL.change(bar, rctl::LONG, if config.is_jumbo() { rctl::LONG } else { 0 });
    pause_thresholds(bar, config);
}

/// Clears the statistics by reading them (§4.6.8).
fn statistics<M: Mmio>(bar: &M) {
    for at in STATS.step_by(4) {
        let _ = bar.r32(at as usize);
    }
}

/// Transmission (§4.6.10).
fn transmit<M: Mmio>(bar: &M, layout: &Layout) {
    let of = |queue: u32| layout.tx.get(queue as usize);
    for queue in 0..2 {
        // By an erratum, TXDCTL of both queues must be the same, also if one is not used. Every
        // descriptor with RS is written back at once: no write-back threshold, no delay.
        TXDCTL.nth(queue, QUEUE).write(bar, DCTL_DESCRIPTORS | TXDCTL_ONE | TXDCTL_FETCH);
        if let Some(ring) = of(queue) {
            TDBAL.nth(queue, QUEUE).write(bar, ring.iova as u32);
            TDBAH.nth(queue, QUEUE).write(bar, (ring.iova >> 32) as u32);
            TDLEN.nth(queue, QUEUE).write(bar, ring.len * 16);
        }
        for reg in [TDH, TDT, TIDV, TADV] {
            reg.nth(queue, QUEUE).write(bar, 0);
        }
    }
    // TARC(0): clears bits 30:27, sets bit 26.
    TARC.change(bar, 0xf << 27, 1 << 26);
    TIPG.write(bar, TIPG_COPPER);
    TCTL.write(bar, tctl::ENABLE | tctl::PAD | tctl::COLLISIONS | tctl::RETRANSMIT);
}

/// Reception (§4.6.9). RFCTL comes before RCTL.EN, which fixes the format of descriptors.
fn receive<M: Mmio>(bar: &M, config: &Config, layout: &Layout) {
    RFCTL.write(
        bar,
        rfctl::EXTENDED | if config.interrupts == InterruptMode::Off { 0 } else { rfctl::NO_ACK_INTERRUPT },
    );
    for (queue, ring) in (0..).zip(&layout.rx) {
        RDBAL.nth(queue, QUEUE).write(bar, ring.iova as u32);
        RDBAH.nth(queue, QUEUE).write(bar, (ring.iova >> 32) as u32);
        RDLEN.nth(queue, QUEUE).write(bar, ring.len * 16);
        for reg in [RDH, RDT, RDTR, RADV] {
            reg.nth(queue, QUEUE).write(bar, 0);
        }
        RXDCTL.nth(queue, QUEUE).write(bar, DCTL_DESCRIPTORS | RXDCTL_BLOCKS);
    }
    let hash = if layout.rss { rxcsum::HASH } else { 0 };
    let check = if config.csum { rxcsum::IP | rxcsum::TCP_UDP } else { 0 };
    RXCSUM.write(bar, check | hash);
    if layout.rss {
        rss(bar, &config.rss_key, layout.rx.len() as u32);
    }
    let long = if config.is_jumbo() { rctl::LONG } else { 0 };
    let control = rctl::BROADCAST | rctl::STRIP_CRC | layout.buffer.bits | layout.filters.control() | long;
    RCTL.write(bar, control);
    RCTL.write(bar, control | rctl::ENABLE);
}

/// Receive side scaling (§7.1.10): the low seven bits of the hash choose an entry of the
/// indirection table, whose bit 7 is the queue.
fn rss<M: Mmio>(bar: &M, key: &[u8; 40], queues: u32) {
    let (words, _) = key.as_chunks::<4>();
    for (i, word) in (0..).zip(words) {
        RSSRK.nth(i, 4).write(bar, u32::from_le_bytes(*word));
    }
    let entries = if queues > 1 { u32::from_le_bytes([0, 0x80, 0, 0x80]) } else { 0 };
    for i in 0..32 {
        RETA.nth(i, 4).write(bar, entries);
    }
    MRQC.write(bar, mrqc::ENABLE | mrqc::TCP4 | mrqc::IP4 | mrqc::IP6 | mrqc::TCP6);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_never_smaller_than_what_the_device_may_write() {
        for room in 256..20_000 {
            let size = BufferSize::for_room(room, true).unwrap();
            assert!(size.bytes <= room && size.bytes * 2 > room.min(16384), "{room} {size:?}");
        }
        assert_eq!(BufferSize::for_room(255, false), None);
    }

    #[test]
    fn an_ordinary_frame_takes_one_buffer_of_the_default_pool() {
        let size = BufferSize::for_room(1920, false).unwrap();
        assert_eq!((size.bits, size.bytes), (0, 1920));
        assert_eq!(BufferSize::for_room(1920, true).unwrap().bytes, 1024, "a long one may use every byte of a buffer");
    }

    #[test]
    fn both_parts_of_the_packet_buffer_have_room_for_the_longest_frame() {
        assert_eq!(receive_kb(&Config::default()), 32);
        for mtu in 68..=9216 {
            let config = Config { mtu, ..Config::default() };
            let (rx, frame) = (receive_kb(&config) as usize * 1024, config.max_frame() + 4);
            assert!(rx >= frame && (PBA_TOTAL as usize * 1024 - rx) >= 2 * frame, "{mtu}: {rx}");
        }
    }
}
