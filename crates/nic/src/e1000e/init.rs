//! Bring-up and reset, step by step, in the order of the datasheet (82574 §4.6, "Software
//! Initialization Sequence").
//!
//! The same steps are right on silicon and on QEMU. QEMU's reset leaves some registers as they
//! were, so that the driver writes every register that it relies on.

use super::config::{Config, InterruptMode, MS};
use super::filter::{FilterTables, OTHERS, write_address};
use super::phy::{self, Mdic};
use super::regs::*;
use crate::common::ring::DescRing;
use towpath_bus::{Mmio, Timeout};
use towpath_wire::ethernet::Mac;

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
/// The longest frame that is received while RCTL.LPE is clear: with its check sequence on silicon
/// (§7.1.1.4), without it on QEMU.
const SHORT_FRAME: usize = 1522;
/// Bytes of the check sequence.
const FCS: usize = 4;

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

    /// The bit of RCTL for frames that exceed [`SHORT_FRAME`] on the wire, with both tags. The
    /// device has no limit for them but 16 KB, so that the buffer needs room for all of the size
    /// that the device takes it for. The driver's limit is the longest frame of the MTU.
    fn long(self, config: &Config) -> u32 {
        let whole = BUFFER_SIZES.iter().any(|&(size, bits)| (size, bits) == (self.bytes, self.bits));
        if whole && config.max_frame() + FCS > SHORT_FRAME { rctl::LONG } else { 0 }
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

/// Stops reception, transmission and interrupts, and disables bus mastering (§5.2.3.3.1, §4.6.1).
/// Returns whether the device confirms that no access to memory is under way.
pub(super) fn quiesce<M: Mmio>(bar: &M, config: &Config) -> bool {
    IMC.write(bar, cause::ALL);
    EIAC.write(bar, 0);
    // A reset follows: an erratum forbids to enable reception again without one (Linux:
    // `FLAG2_NO_DISABLE_RX`).
    RCTL.write(bar, 0);
    TCTL.change(bar, tctl::ENABLE, tctl::PAD);
    let _ = STATUS.read(bar);
    // Gives frames that are under way time to end.
    config.pauses.wait(10 * MS);
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

/// Resets the device (§4.2.1.6, §4.6.3), which clears rings and filters.
///
/// # Errors
/// The device does not answer.
pub(super) fn reset<M: Mmio>(bar: &M, config: &Config) -> Result<(), Timeout> {
    quiesce(bar, config);
    let firmwares = firmware_addresses(bar);
    // A reset without the semaphore is better than none.
    let owned = Mdic::acquire(bar, config);
    // Only a reset moves the packet buffer's pointers to its new split (§10.2.3.1); the split
    // itself survives.
    PBA.write(bar, receive_kb(config));
    CTRL.change(bar, ctrl::RESERVED, ctrl::RESET);
    drop(owned);
    // Registers must not be accessed for a microsecond.
    config.pauses.wait(MS);
    CTRL.wait(bar, ctrl::RESET, 0, 10 * MS)?;
    let flash = EECD.read(bar) & EECD_FLASH == EECD_FLASH;
    if flash {
        // A flash chip is read again only by this (Linux: `e1000_reset_hw_82571`).
        CTRL_EXT.change(bar, 0, ctrl_ext::NVM_RESET);
    }
    // A device without an NVM never reads one: its address filter has no address, which
    // `mac_address` checks.
    let _ = EECD.wait(bar, EECD_AUTO_READ_DONE, EECD_AUTO_READ_DONE, 10 * MS);
    if flash {
        // By an erratum it must not be updated autonomously (Linux: `e1000_init_nvm_params_82571`).
        EECD.change(bar, EECD_AUTO_UPDATE, 0);
    }
    // The PHY configures itself.
    config.pauses.wait(25 * MS);
    // §4.6.3.1: masks interrupts again, and clears pending ones.
    IMC.write(bar, cause::ALL);
    let _ = ICR.read(bar);
    clear(bar);
    for (n, mac) in firmwares {
        write_address(bar, n, Some(mac));
    }
    Ok(())
}

/// Frees the semaphore that a boot agent leaves taken, before PHY and NVM are accessed (Linux:
/// `e1000_init_mac_params_82571`).
pub(super) fn free_semaphore<M: Mmio>(bar: &M) {
    SWSM.change(bar, SWSM_PORTS, 0);
}

/// Takes the device from its firmware, or gives it back (§10.2.2.5; Linux: `e1000e_get_hw_control`,
/// `e1000e_release_hw_control`).
pub(super) fn set_driver_loaded<M: Mmio>(bar: &M, loaded: bool) {
    CTRL_EXT.change(bar, ctrl_ext::DRIVER_LOADED, if loaded { ctrl_ext::DRIVER_LOADED } else { 0 });
}

/// The entries of the address filter that a management controller receives by. They are left alone
/// (Linux clears them), and written again after a reset. Without such a controller they are none.
pub(super) fn firmware_addresses<M: Mmio>(bar: &M) -> Vec<(u32, Mac)> {
    if MANC.read(bar) & MANC_RECEIVES == 0 {
        return Vec::new();
    }
    (1..=OTHERS as u32).filter_map(|n| Some((n, address(bar, n)?))).collect()
}

/// KB of the packet buffer for reception. Transmission has room for two of the longest frames, 8 KB
/// at least; reception has the rest.
fn receive_kb(config: &Config) -> u32 {
    PBA_TOTAL - (2 * (config.max_frame() as u32 + 12)).div_ceil(1024).max(8)
}

/// Writes zero to the registers that a reset should clear: not every implementation does.
fn clear<M: Mmio>(bar: &M) {
    for reg in [RCTL, RFCTL, RXCSUM, MRQC, PSRCTL, IVAR, EIAC, IAM] {
        reg.write(bar, 0);
    }
    for queue in 0..2 {
        for reg in [RDH, RDT, RDTR, RADV, TDH, TDT, TIDV, TADV] {
            reg.nth(queue, QUEUE).write(bar, 0);
        }
    }
    // Bits of DMA stay as they are after reset.
    TCTL.change(bar, tctl::ENABLE, 0);
    CTRL_EXT.change(bar, ctrl_ext::AUTO_MASK | ctrl_ext::ACK_AUTO_MASK, 0);
    CTRL.change(bar, ctrl::MASTER_DISABLE | ctrl::RESERVED, 0);
}

/// The address that the device loads from its NVM into the first filter (§10.2.5.22, §10.2.5.23).
pub(super) fn mac_address<M: Mmio>(bar: &M) -> Option<Mac> {
    address(bar, 0).filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0)
}

/// A valid entry of the address filter.
fn address<M: Mmio>(bar: &M, n: u32) -> Option<Mac> {
    let (low, high) = (RAL.nth(n, 8).read(bar).to_le_bytes(), RAH.nth(n, 8).read(bar));
    let [e, f, ..] = high.to_le_bytes();
    let valid = high != u32::MAX && high & RAH_VALID != 0;
    valid.then_some([low[0], low[1], low[2], low[3], e, f])
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

/// Device and link (§4.6.5, §4.6.7): the PHY negotiates, the MAC follows its speed. Pause frames
/// are off until the link is up and [`phy::settle`] has what both ends agreed on.
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
    set_driver_loaded(bar, true);
    CTRL_EXT.change(bar, ctrl_ext::PHY_POWER_CLEAR, ctrl_ext::PHY_POWER_SET);
    WUC.write(bar, 0);
    AIT.write(bar, 0);
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
pub(super) fn long_frames<M: Mmio>(bar: &M, config: &Config, layout: &Layout) {
    RCTL.change(bar, rctl::LONG, layout.buffer.long(config));
    pause_thresholds(bar, config);
}

/// Clears the statistics by reading them (§4.6.8).
fn statistics<M: Mmio>(bar: &M) {
    for at in STATS.step_by(4) {
        let _ = bar.r32(at as usize);
    }
}

/// Transmission (§4.6.10), up to the bit that enables it: see [`enable_transmit`].
fn transmit<M: Mmio>(bar: &M, layout: &Layout) {
    let of = |queue: u32| layout.tx.get(queue as usize);
    for queue in 0..2 {
        // By an erratum, TXDCTL of both queues must be the same, also if one is not used (Linux:
        // `e1000_configure_tx`). Every descriptor with RS is written back at once: no write-back
        // threshold, no delay.
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
    let two = if layout.tx.len() > 1 { tarc::TWO_QUEUES } else { 0 };
    let arbitration = TARC.read(bar) & !tarc::CLEAR | tarc::SET | two;
    TARC.write(bar, arbitration);
    if two != 0 {
        TARC.nth(1, QUEUE).write(bar, arbitration);
    }
    TIPG.write(bar, TIPG_COPPER);
    // The threshold of read requests (bits 30:29) stays as it is after reset (Linux:
    // `e1000_configure_tx`). Without MULR there is one read at a time (FreeBSD:
    // `em_initialize_transmit_unit`).
    let set = tctl::PAD | tctl::COLLISIONS | tctl::RETRANSMIT | tctl::MULTIPLE_READS;
    TCTL.change(bar, tctl::COLLISION_BITS, set);
}

/// Enables transmission. It is off until the link is up, so that nothing is sent into it before
/// (Linux: `e1000_watchdog_task`).
pub(super) fn enable_transmit<M: Mmio>(bar: &M) {
    TCTL.change(bar, 0, tctl::ENABLE);
}

/// Has the device write back descriptors that wait for more to fill their block. One write may be
/// lost, so that it is written twice (Linux: `e1000e_flush_descriptors`).
pub(super) fn flush_write_backs<M: Mmio>(bar: &M, queue: u32) {
    for _ in 0..2 {
        TIDV.nth(queue, QUEUE).write(bar, FLUSH_PARTIAL);
        let _ = STATUS.read(bar);
    }
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
    let long = layout.buffer.long(config);
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
    fn long_frames_are_received_only_into_buffers_that_hold_whatever_the_device_may_write() {
        let takes = |room, mtu| {
            let config = Config { mtu, ..Config::default() };
            BufferSize::for_room(room, config.is_jumbo()).unwrap().long(&config) != 0
        };
        assert!(!takes(1920, 1500), "two tags, in a buffer that the device takes for 2048 bytes");
        assert!(takes(2048, 1500) && takes(3968, 1500) && takes(1920, 1501) && takes(1024, 1500));
        assert!(!takes(2048, 1496), "the frame is short with both tags and its check sequence");
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
