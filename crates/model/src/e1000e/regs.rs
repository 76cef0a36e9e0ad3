//! Registers of the 82574L by name: byte offsets in BAR 0, and their bits (82574 datasheet §10).

pub(crate) const BAR_LEN: usize = 128 << 10;

pub(crate) const CTRL: usize = 0x0000;
pub(crate) const CTRL_MASTER_DISABLE: u32 = 1 << 2;
pub(crate) const CTRL_SLU: u32 = 1 << 6;
pub(crate) const CTRL_RST: u32 = 1 << 26;
pub(crate) const CTRL_BIT29: u32 = 1 << 29;
pub(crate) const CTRL_VME: u32 = 1 << 30;
pub(crate) const CTRL_RFCE: u32 = 1 << 27;
pub(crate) const CTRL_TFCE: u32 = 1 << 28;
pub(crate) const CTRL_PHY_RST: u32 = 1 << 31;
pub(crate) const STATUS: usize = 0x0008;
pub(crate) const STATUS_FD: u32 = 1;
pub(crate) const STATUS_LU: u32 = 1 << 1;
pub(crate) const STATUS_SPEED: u32 = 3 << 6;
pub(crate) const STATUS_100: u32 = 1 << 6;
pub(crate) const STATUS_1000: u32 = 2 << 6;
pub(crate) const STATUS_PHYRA: u32 = 1 << 10;
pub(crate) const STATUS_MASTER: u32 = 1 << 19;
pub(crate) const EECD: usize = 0x0010;
pub(crate) const EECD_PRESENT_AND_READ: u32 = 0x300;
/// The NVM is a flash chip, and is updated autonomously.
pub(crate) const EECD_FLASH: u32 = 3 << 15;
pub(crate) const EECD_AUPDEN: u32 = 1 << 20;
pub(crate) const EERD: usize = 0x0014;
pub(crate) const CTRL_EXT: usize = 0x0018;
pub(crate) const CTRL_EXT_EE_RST: u32 = 1 << 13;
pub(crate) const CTRL_EXT_DRV_LOAD: u32 = 1 << 28;
pub(crate) const CTRL_EXT_EIAME: u32 = 1 << 24;
pub(crate) const CTRL_EXT_IAME: u32 = 1 << 27;
pub(crate) const CTRL_EXT_PBA_CLR: u32 = 1 << 31;
pub(crate) const MDIC: usize = 0x0020;
pub(crate) const FCAL: usize = 0x0028;
pub(crate) const FCRTH: usize = 0x2168;
pub(crate) const VET: usize = 0x0038;
pub(crate) const ICR: usize = 0x00c0;
pub(crate) const ICS: usize = 0x00c8;
pub(crate) const IMS: usize = 0x00d0;
pub(crate) const IMC: usize = 0x00d8;
pub(crate) const EIAC: usize = 0x00dc;
pub(crate) const IAM: usize = 0x00e0;
pub(crate) const IVAR: usize = 0x00e4;
pub(crate) const RCTL: usize = 0x0100;
pub(crate) const RCTL_EN: u32 = 1 << 1;
pub(crate) const RCTL_UPE: u32 = 1 << 3;
pub(crate) const RCTL_MPE: u32 = 1 << 4;
pub(crate) const RCTL_LPE: u32 = 1 << 5;
pub(crate) const RCTL_LBM: u32 = 3 << 6;
pub(crate) const RCTL_RDMTS: u32 = 3 << 8;
pub(crate) const RCTL_DTYP: u32 = 3 << 10;
pub(crate) const RCTL_BAM: u32 = 1 << 15;
pub(crate) const RCTL_BSIZE: u32 = 3 << 16;
pub(crate) const RCTL_VFE: u32 = 1 << 18;
pub(crate) const RCTL_CFIEN: u32 = 1 << 19;
pub(crate) const RCTL_BSEX: u32 = 1 << 25;
pub(crate) const RCTL_SECRC: u32 = 1 << 26;
pub(crate) const RCTL_FLXBUF: u32 = 0xf << 27;
pub(crate) const TCTL: usize = 0x0400;
pub(crate) const TCTL_EN: u32 = 1 << 1;
pub(crate) const TCTL_PSP: u32 = 1 << 3;
/// Several read requests of DMA at once, and the threshold for them.
pub(crate) const TCTL_MULR: u32 = 1 << 28;
pub(crate) const TCTL_RRTHRESH: u32 = 3 << 29;
pub(crate) const TCTL_RRTHRESH_RESET: u32 = 1 << 29;
pub(crate) const TIPG: usize = 0x0410;
/// The semaphore of PHY and NVM, which firmware uses as well.
pub(crate) const EXTCNF_CTRL: usize = 0x0f00;
pub(crate) const EXTCNF_SOFTWARE: u32 = 1 << 5;
pub(crate) const PBA: usize = 0x1000;
/// Receive queue 0; queue 1 is at an offset of [`QUEUE`].
pub(crate) const RDBAL: usize = 0x2800;
/// Transmit queue 0.
pub(crate) const TDBAL: usize = 0x3800;
pub(crate) const QUEUE: usize = 0x100;
pub(crate) const BAH: usize = 0x04;
pub(crate) const LEN: usize = 0x08;
pub(crate) const HEAD: usize = 0x10;
pub(crate) const TAIL: usize = 0x18;
pub(crate) const DELAY: usize = 0x20;
pub(crate) const DCTL: usize = 0x28;
pub(crate) const TXDCTL_BIT22: u32 = 1 << 22;
pub(crate) const TARC: usize = 0x40;
/// TARC: bits that must be 0, the bit that must be 1, and those for two queues.
pub(crate) const TARC_ZERO: u32 = 0xf << 27;
pub(crate) const TARC_ONE: u32 = 1 << 26;
pub(crate) const TARC_TWO_QUEUES: u32 = 7 << 23 | 1 << 7;
pub(crate) const STATS: usize = 0x4000;
pub(crate) const STATS_END: usize = 0x4128;
pub(crate) const RXCSUM: usize = 0x5000;
pub(crate) const RXCSUM_PCSS: u32 = 0xff;
pub(crate) const RXCSUM_IPOFLD: u32 = 1 << 8;
pub(crate) const RXCSUM_TUOFLD: u32 = 1 << 9;
pub(crate) const RXCSUM_PCSD: u32 = 1 << 13;
pub(crate) const RFCTL: usize = 0x5008;
pub(crate) const RFCTL_IPV6_DIS: u32 = 1 << 10;
pub(crate) const RFCTL_IPV6_XSUM_DIS: u32 = 1 << 11;
pub(crate) const RFCTL_EXTEN: u32 = 1 << 15;
pub(crate) const MTA: usize = 0x5200;
pub(crate) const RAL: usize = 0x5400;
pub(crate) const RAH: usize = 0x5404;
pub(crate) const RAH_AV: u32 = 1 << 31;
pub(crate) const VFTA: usize = 0x5600;
pub(crate) const MRQC: usize = 0x5818;
/// Management control: firmware receives frames of its own; what is copied to the host, and the
/// filters that decide.
pub(crate) const MANC: usize = 0x5820;
pub(crate) const MANC_RCV_TCO_EN: u32 = 1 << 17;
pub(crate) const MANC2H: usize = 0x5860;
pub(crate) const MDEF: std::ops::Range<usize> = 0x5890..0x58b0;
pub(crate) const SWSM: usize = 0x5b50;
pub(crate) const RETA: usize = 0x5c00;
pub(crate) const RSSRK: usize = 0x5c80;

/// Interrupt causes, as in ICR, ICS, IMS and IMC.
pub(crate) mod cause {
    pub(crate) const TXDW: u32 = 1;
    pub(crate) const LSC: u32 = 1 << 2;
    pub(crate) const RXDMT0: u32 = 1 << 4;
    pub(crate) const RXO: u32 = 1 << 6;
    pub(crate) const RXT0: u32 = 1 << 7;
    pub(crate) const MDAC: u32 = 1 << 9;
    pub(crate) const RXQ0: u32 = 1 << 20;
    pub(crate) const TXQ0: u32 = 1 << 22;
    pub(crate) const OTHER: u32 = 1 << 24;
    pub(crate) const ASSERTED: u32 = 1 << 31;
}

/// Status and error bits of a receive descriptor, in the second word of the extended format.
pub(crate) mod rxd {
    pub(crate) const DD: u32 = 1;
    pub(crate) const EOP: u32 = 1 << 1;
    pub(crate) const IXSM: u32 = 1 << 2;
    pub(crate) const VP: u32 = 1 << 3;
    pub(crate) const UDPCS: u32 = 1 << 4;
    pub(crate) const TCPCS: u32 = 1 << 5;
    pub(crate) const IPCS: u32 = 1 << 6;
    pub(crate) const PIF: u32 = 1 << 7;
    pub(crate) const IPIDV: u32 = 1 << 9;
    pub(crate) const CE: u32 = 1 << 24;
    pub(crate) const SE: u32 = 1 << 25;
    pub(crate) const TCPE: u32 = 1 << 29;
    pub(crate) const IPE: u32 = 1 << 30;
    pub(crate) const RXE: u32 = 1 << 31;
    /// Packet types, from bit 16 on.
    pub(crate) const TYPE_IPV4: u32 = 1 << 16;
    pub(crate) const TYPE_IPV4_L4: u32 = 2 << 16;
    pub(crate) const TYPE_IPV6: u32 = 5 << 16;
    pub(crate) const TYPE_IPV6_L4: u32 = 6 << 16;
}

/// Bits in the second word of a transmit descriptor.
pub(crate) mod txd {
    /// Legacy: length 15:0, CSO 23:16, command 31:24, status 35:32, CSS 47:40, VLAN 63:48.
    pub(crate) const LEGACY_IC: u64 = 1 << 26;
    /// Extended: length 19:0, type 23:20, command 31:24, status 35:32, options 47:40, VLAN 63:48.
    pub(crate) const LEN: u64 = 0xf_ffff;
    pub(crate) const TYPE: u64 = 0xf << 20;
    pub(crate) const TYPE_DATA: u64 = 1 << 20;
    pub(crate) const EOP: u64 = 1 << 24;
    /// TCP, in a context.
    pub(crate) const TCP: u64 = 1 << 24;
    /// IPv4, in a context.
    pub(crate) const IPV4: u64 = 1 << 25;
    pub(crate) const TSE: u64 = 1 << 26;
    pub(crate) const RS: u64 = 1 << 27;
    pub(crate) const DEXT: u64 = 1 << 29;
    pub(crate) const VLE: u64 = 1 << 30;
    pub(crate) const DD: u64 = 1 << 32;
    pub(crate) const IXSM: u64 = 1 << 40;
    pub(crate) const TXSM: u64 = 1 << 41;
}
