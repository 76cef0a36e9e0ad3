//! Registers of the 82574 and their bits (Intel 82574 GbE Controller Family Datasheet, chapter 10).
//!
//! Offsets are bytes into BAR 0. Registers of a queue have the offset of queue 0; those of queue 1
//! lie [`QUEUE`] bytes further. Only registers and bits that the driver uses have a name.

use towpath_bus::Reg;

/// Length of BAR 0 (§9.2.6).
pub(super) const BAR_LEN: usize = 128 << 10;
/// From a register of queue 0 to the same of queue 1.
pub(super) const QUEUE: u32 = 0x100;

/// Device Control (§10.2.2.1).
pub(super) const CTRL: Reg = Reg(0x0000);
pub(super) mod ctrl {
    /// The device starts no more accesses to memory.
    pub(crate) const MASTER_DISABLE: u32 = 1 << 2;
    /// The speed follows what autonegotiation found.
    pub(crate) const AUTO_SPEED: u32 = 1 << 5;
    /// Set link up: the MAC may use the link.
    pub(crate) const SET_LINK_UP: u32 = 1 << 6;
    pub(crate) const FORCE_SPEED: u32 = 1 << 11;
    pub(crate) const FORCE_DUPLEX: u32 = 1 << 12;
    /// Resets the MAC; clears itself.
    pub(crate) const RESET: u32 = 1 << 26;
    pub(crate) const RX_PAUSE: u32 = 1 << 27;
    pub(crate) const TX_PAUSE: u32 = 1 << 28;
    /// Must be written as zero (Linux: `e1000_initialize_hw_bits_82571`).
    pub(crate) const RESERVED: u32 = 1 << 29;
    /// VLAN tags are stripped on reception, and may be inserted on transmission.
    pub(crate) const VLAN: u32 = 1 << 30;
    pub(crate) const PHY_RESET: u32 = 1 << 31;
}

/// Device Status (§10.2.2.2).
pub(super) const STATUS: Reg = Reg(0x0008);
pub(super) mod status {
    pub(crate) const FULL_DUPLEX: u32 = 1 << 0;
    pub(crate) const LINK_UP: u32 = 1 << 1;
    /// The link partner has requested a pause.
    pub(crate) const TX_OFF: u32 = 1 << 4;
    /// 0 is 10 Mb/s, 1 is 100, 2 and 3 are 1000.
    pub(crate) const SPEED_SHIFT: u32 = 6;
    /// Clear when no access to memory is under way, and none will be started.
    pub(crate) const MASTER_ENABLE: u32 = 1 << 19;
}

/// EEPROM/Flash Control (§10.2.2.3).
pub(super) const EECD: Reg = Reg(0x0010);
/// The device has loaded the NVM after a reset.
pub(super) const EECD_AUTO_READ_DONE: u32 = 1 << 9;
/// The NVM is a flash chip, if both bits are set.
pub(super) const EECD_FLASH: u32 = 3 << 15;
/// The flash chip is updated autonomously.
pub(super) const EECD_AUTO_UPDATE: u32 = 1 << 20;

/// Reads a word of the NVM (§10.2.2.4).
pub(super) const EERD: Reg = Reg(0x0014);
pub(super) mod eerd {
    pub(crate) const START: u32 = 1 << 0;
    pub(crate) const DONE: u32 = 1 << 1;
    pub(crate) const ADDRESS_SHIFT: u32 = 2;
    pub(crate) const DATA_SHIFT: u32 = 16;
}

/// Extended Device Control (§10.2.2.5).
pub(super) const CTRL_EXT: Reg = Reg(0x0018);
pub(super) mod ctrl_ext {
    /// Reads the NVM again.
    pub(crate) const NVM_RESET: u32 = 1 << 13;
    /// Must be set on this device, and bit 23 must be clear (Linux:
    /// `e1000_initialize_hw_bits_82571`).
    pub(crate) const PHY_POWER_SET: u32 = 1 << 22;
    pub(crate) const PHY_POWER_CLEAR: u32 = 1 << 23;
    /// An MSI-X message masks its causes.
    pub(crate) const AUTO_MASK: u32 = 1 << 24;
    pub(crate) const ACK_AUTO_MASK: u32 = 1 << 27;
    /// A driver controls the device, not its management firmware.
    pub(crate) const DRIVER_LOADED: u32 = 1 << 28;
    /// Clears the pending bits of MSI-X.
    pub(crate) const CLEAR_PENDING: u32 = 1 << 31;
}

/// MDI Control: access to the registers of the PHY (§10.2.2.7).
pub(super) const MDIC: Reg = Reg(0x0020);
pub(super) mod mdic {
    pub(crate) const REGISTER_SHIFT: u32 = 16;
    /// The PHY has address 1.
    pub(crate) const PHY: u32 = 1 << 21;
    pub(crate) const REGISTER: u32 = 31 << REGISTER_SHIFT;
    pub(crate) const WRITE: u32 = 1 << 26;
    pub(crate) const READ: u32 = 2 << 26;
    pub(crate) const READY: u32 = 1 << 28;
    pub(crate) const ERROR: u32 = 1 << 30;
}

/// Flow control: the address, type and time of pause frames (§10.2.2.8 to §10.2.2.12), and the
/// thresholds (§10.2.5.3).
pub(super) const FCAL: Reg = Reg(0x0028);
pub(super) const FCAH: Reg = Reg(0x002c);
pub(super) const FCT: Reg = Reg(0x0030);
pub(super) const FCTTV: Reg = Reg(0x0170);
pub(super) const FCRTL: Reg = Reg(0x2160);
pub(super) const FCRTH: Reg = Reg(0x2168);
/// FCRTL: the end of a pause is announced.
pub(super) const FCRTL_ENABLE: u32 = 1 << 31;

/// Type of the VLAN tags that are stripped and inserted (§10.2.2.9).
pub(super) const VET: Reg = Reg(0x0038);

/// Interrupts (§10.2.4): cause, throttling, set, unmask, mask; auto-mask; for MSI-X auto-clear,
/// vectors, throttling.
pub(super) const ICR: Reg = Reg(0x00c0);
/// In units of 256 ns; not for MSI-X.
pub(super) const ITR: Reg = Reg(0x00c4);
pub(super) const ICS: Reg = Reg(0x00c8);
pub(super) const IMS: Reg = Reg(0x00d0);
pub(super) const IMC: Reg = Reg(0x00d8);
pub(super) const EIAC: Reg = Reg(0x00dc);
pub(super) const IAM: Reg = Reg(0x00e0);
pub(super) const IVAR: Reg = Reg(0x00e4);
/// Of vector 0; the next follow every four bytes. In units of 256 ns.
pub(super) const EITR: Reg = Reg(0x00e8);
pub(super) mod cause {
    /// Frames in receive queue 0; queue 1 has the next bit.
    pub(crate) const RX_QUEUE_0: u32 = 1 << 20;
    pub(crate) const RX_QUEUES: u32 = 3 << 20;
    /// The link has gone up or down.
    pub(crate) const LINK: u32 = 1 << 2;
    /// Few descriptors are left.
    pub(crate) const RX_FEW: u32 = 1 << 4;
    /// Frames were lost without a descriptor.
    pub(crate) const OVERRUN: u32 = 1 << 6;
    /// Frames of any queue (RXT0); not for MSI-X.
    pub(crate) const RX_TIMER: u32 = 1 << 7;
    /// With MSI-X: causes that are no queue's.
    pub(crate) const OTHER: u32 = 1 << 24;
    /// An interrupt was asserted.
    pub(crate) const ASSERTED: u32 = 1 << 31;
    pub(crate) const ALL: u32 = u32::MAX;
}
/// A nibble of IVAR is in use.
pub(super) const IVAR_VALID: u32 = 8;
/// The nibble of OTHER.
pub(super) const IVAR_OTHER_SHIFT: u32 = 16;

/// Receive Control (§10.2.5.1).
pub(super) const RCTL: Reg = Reg(0x0100);
pub(super) mod rctl {
    pub(crate) const ENABLE: u32 = 1 << 1;
    /// Unicast frames for any address.
    pub(crate) const UNICAST_ALL: u32 = 1 << 3;
    /// Multicast frames for any group.
    pub(crate) const MULTICAST_ALL: u32 = 1 << 4;
    /// Frames longer than 1522 bytes.
    pub(crate) const LONG: u32 = 1 << 5;
    pub(crate) const BROADCAST: u32 = 1 << 15;
    /// Tagged frames are received if the VLAN table has their VLAN.
    pub(crate) const VLAN_FILTER: u32 = 1 << 18;
    /// Sizes of 16384, 8192 and 4096 bytes instead of 1024, 512 and 256.
    pub(crate) const SIZE_EXTENDED: u32 = 1 << 25;
    pub(crate) const SIZE_SHIFT: u32 = 16;
    /// The check sequence is not written to memory.
    pub(crate) const STRIP_CRC: u32 = 1 << 26;
}
/// Packet split, not used (§10.2.5.2).
pub(super) const PSRCTL: Reg = Reg(0x2170);

/// Receive ring of queue 0: base, length in bytes, head, tail, delays (§10.2.5.5 to §10.2.5.11).
pub(super) const RDBAL: Reg = Reg(0x2800);
pub(super) const RDBAH: Reg = Reg(0x2804);
pub(super) const RDLEN: Reg = Reg(0x2808);
pub(super) const RDH: Reg = Reg(0x2810);
pub(super) const RDT: Reg = Reg(0x2818);
pub(super) const RDTR: Reg = Reg(0x2820);
pub(super) const RXDCTL: Reg = Reg(0x2828);
pub(super) const RADV: Reg = Reg(0x282c);

/// Receive Checksum Control (§10.2.5.15).
pub(super) const RXCSUM: Reg = Reg(0x5000);
pub(super) mod rxcsum {
    pub(crate) const IP: u32 = 1 << 8;
    pub(crate) const TCP_UDP: u32 = 1 << 9;
    /// The descriptor has the RSS hash, not a packet checksum.
    pub(crate) const HASH: u32 = 1 << 13;
}

/// Receive Filter Control (§10.2.5.14).
pub(super) const RFCTL: Reg = Reg(0x5008);
pub(super) mod rfctl {
    /// No interrupts for TCP acknowledgments, which come without a reason with MSI-X.
    pub(crate) const NO_ACK_INTERRUPT: u32 = 1 << 12;
    /// Extended write-back of receive descriptors.
    pub(crate) const EXTENDED: u32 = 1 << 15;
}

/// Receive side scaling: control, table (32 words of four entries), key (10 words) (§10.2.5.18 to
/// §10.2.5.20).
pub(super) const MRQC: Reg = Reg(0x5818);
pub(super) const RETA: Reg = Reg(0x5c00);
pub(super) const RSSRK: Reg = Reg(0x5c80);
pub(super) mod mrqc {
    pub(crate) const ENABLE: u32 = 1;
    pub(crate) const TCP4: u32 = 1 << 16;
    pub(crate) const IP4: u32 = 1 << 17;
    pub(crate) const IP6: u32 = 1 << 20;
    /// With and without extension headers: implementations differ in which of the two bits they
    /// use.
    pub(crate) const TCP6: u32 = 1 << 18 | 1 << 21;
}

/// Transmit Control (§10.2.6.1).
pub(super) const TCTL: Reg = Reg(0x0400);
pub(super) mod tctl {
    pub(crate) const ENABLE: u32 = 1 << 1;
    /// Short frames are padded to 64 bytes.
    pub(crate) const PAD: u32 = 1 << 3;
    /// 15 attempts, and a collision distance of 63 bytes for full duplex, by IEEE 802.3.
    pub(crate) const COLLISIONS: u32 = 15 << 4 | 63 << 12;
    pub(crate) const COLLISION_BITS: u32 = 0xff << 4 | 0x3ff << 12;
    /// Retransmit after a late collision.
    pub(crate) const RETRANSMIT: u32 = 1 << 24;
    /// Several read requests at once.
    pub(crate) const MULTIPLE_READS: u32 = 1 << 28;
}
/// Adaptive gaps between frames, for half duplex; off.
pub(super) const AIT: Reg = Reg(0x0458);
/// Gap between frames (§10.2.6.2), and its value for copper.
pub(super) const TIPG: Reg = Reg(0x0410);
pub(super) const TIPG_COPPER: u32 = 8 | 8 << 10 | 6 << 20;

/// Transmit ring of queue 0: base, length in bytes, head, tail, delays (§10.2.6.4 to §10.2.6.11).
pub(super) const TDBAL: Reg = Reg(0x3800);
pub(super) const TDBAH: Reg = Reg(0x3804);
pub(super) const TDLEN: Reg = Reg(0x3808);
pub(super) const TDH: Reg = Reg(0x3810);
pub(super) const TDT: Reg = Reg(0x3818);
pub(super) const TIDV: Reg = Reg(0x3820);
pub(super) const TXDCTL: Reg = Reg(0x3828);
pub(super) const TADV: Reg = Reg(0x382c);
/// Arbitration between the queues (§10.2.6.12).
pub(super) const TARC: Reg = Reg(0x3840);
pub(super) mod tarc {
    /// By an erratum, these bits are clear and this one is set (Linux:
    /// `e1000_initialize_hw_bits_82571`).
    pub(crate) const CLEAR: u32 = 0xf << 27;
    pub(crate) const SET: u32 = 1 << 26;
    /// By an erratum of two queues, these are set in both registers (FreeBSD:
    /// `em_initialize_transmit_unit`).
    pub(crate) const TWO_QUEUES: u32 = 7 << 23 | 1 << 7;
}
/// Writes back descriptors that wait for more to fill their block (RDTR.FPD, TIDV.FPD).
pub(super) const FLUSH_PARTIAL: u32 = 1 << 31;

/// Descriptor control (RXDCTL, TXDCTL): thresholds count descriptors, not cache lines.
pub(super) const DCTL_DESCRIPTORS: u32 = 1 << 24;
/// TXDCTL: must be set (Linux: `e1000_initialize_hw_bits_82571`).
pub(super) const TXDCTL_ONE: u32 = 1 << 22;
/// Fetches descriptors if fewer than 31 are on the chip and at least one waits.
pub(super) const TXDCTL_FETCH: u32 = 0x1f | 1 << 8;
/// Fetches descriptors if fewer than 32 are on the chip and at least four wait; writes back each
/// one. There are no timers: a larger block would hold back the end of a burst.
pub(super) const RXDCTL_BLOCKS: u32 = 0x20 | 4 << 8 | 1 << 16;

/// Packet buffer: KB for reception; the rest of 40 KB is for transmission (§10.2.3.1).
pub(super) const PBA: Reg = Reg(0x1000);
pub(super) const PBA_TOTAL: u32 = 40;

/// Address filter: 16 addresses in pairs of words (§10.2.5.22), multicast hash table (128 words),
/// VLAN table (128 words).
pub(super) const RAL: Reg = Reg(0x5400);
pub(super) const RAH: Reg = Reg(0x5404);
pub(super) const RAH_VALID: u32 = 1 << 31;
pub(super) const MTA: Reg = Reg(0x5200);
pub(super) const VFTA: Reg = Reg(0x5600);

/// The semaphore of PHY and NVM, shared with firmware (§10.2.2.14).
pub(super) const EXTCNF_CTRL: Reg = Reg(0x0f00);
pub(super) const EXTCNF_SOFTWARE: u32 = 1 << 5;
/// PHY OEM bits: "low power link up" while the device has power (Linux:
/// `e1000_set_d0_lplu_state_82574`).
pub(super) const POEMB: Reg = Reg(0x0f10);
pub(super) const POEMB_LOW_POWER_D0: u32 = 1 << 1;
/// Management control (§10.2.8.1): a management controller receives frames from the port; firmware
/// has blocked resets of the PHY.
pub(super) const MANC: Reg = Reg(0x5820);
pub(super) const MANC_RECEIVES: u32 = 1 << 17;
pub(super) const MANC_BLOCK_PHY_RESET: u32 = 1 << 18;
/// Wake-up control (§10.2.9.1).
pub(super) const WUC: Reg = Reg(0x5800);
/// Software semaphore (§10.2.2.12): of the ports of a chip. A boot agent leaves it taken.
pub(super) const SWSM: Reg = Reg(0x5b50);
pub(super) const SWSM_PORTS: u32 = 1;
/// PCI Express control (§10.2.3.4): link state L1 without L0s, and the erratum of lost completions
/// (Linux: `e1000_init_hw_82571`, `e1000_initialize_hw_bits_82571`).
pub(super) const GCR: Reg = Reg(0x5b00);
pub(super) const GCR_L1: u32 = 1 << 22 | 1 << 27;
pub(super) const GCR2: Reg = Reg(0x5b64);
pub(super) const GCR2_COMPLETIONS: u32 = 1;

/// Statistics (§10.2.7), cleared by reading: from the first to the last.
pub(super) const STATS: std::ops::RangeInclusive<u32> = 0x4000..=0x4124;
/// Frames that the chip had no room for.
pub(super) const MPC: Reg = Reg(0x4010);
/// Damaged frames: CRC, alignment, receive errors, carrier extension, too short, too long (Linux:
/// `e1000e_get_stats64`). Errors of symbols and sequence are none of a frame, and grow without a
/// link.
pub(super) const RX_ERRORS: [Reg; 6] = [Reg(0x4000), Reg(0x4004), Reg(0x400c), Reg(0x403c), Reg(0x40a4), Reg(0x40ac)];
/// Frames that could not be sent: excessive and late collisions. They have a meaning in half duplex
/// only.
pub(super) const TX_ERRORS: [Reg; 2] = [Reg(0x4018), Reg(0x4020)];
