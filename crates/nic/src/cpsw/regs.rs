//! Registers, from the K3 technical reference manuals (AM62x SPRUIV7, AM64x SPRUIM2, J784S4
//! SPRUJ52) and Linux' `am65-cpsw-nuss.c`, `k3-ringacc.c` and `k3-udma.h`.

use super::config::Config;
use super::soc::{Family, FreeRing, Granted};
use towpath_bus::{Bus, BusError, Mmio, Reg};

/// The switch; offsets from its base.
pub(super) mod switch {
    use towpath_bus::Reg;

    /// In-band status of the first MAC port's RGMII, a word a port: only if its PHY sends it.
    pub(crate) const RGMII_STATUS: Reg = Reg(0x30);
    pub(crate) const RGMII_LINK: u32 = 1 << 0;
    pub(crate) const RGMII_SPEED_SHIFT: u32 = 1;
    pub(crate) const RGMII_FULL_DUPLEX: u32 = 1 << 3;
    pub(crate) const CONTROL: Reg = Reg(0x2_0004);
    pub(crate) const STAT_PORT_EN: Reg = Reg(0x2_0014);
    pub(crate) const PTYPE: Reg = Reg(0x2_0018);
    pub(crate) const P0_CONTROL: Reg = Reg(0x2_1004);
    pub(crate) const P0_FLOW_ID_OFFSET: Reg = Reg(0x2_1008);
    /// Port VLAN of the host port; those of the MAC ports follow, a stride apart.
    pub(crate) const VLAN: Reg = Reg(0x2_1014);
    /// Of the MAC ports only, a stride apart: the FIFO of each priority.
    pub(crate) const TX_PRI_MAP: Reg = Reg(0x2_1018);
    pub(crate) const P0_PRI_CTL: Reg = Reg(0x2_101c);
    pub(crate) const P0_RX_PRI_MAP: Reg = Reg(0x2_1020);
    /// The host port's; those of the MAC ports follow, a stride apart.
    pub(crate) const P0_RX_MAXLEN: Reg = Reg(0x2_1024);
    /// Bytes from one port's registers to the next's.
    pub(crate) const STRIDE: u32 = 0x1000;

    /// CONTROL: VLAN aware, host port enabled, FCS removed towards the host, short frames from the
    /// host padded.
    pub(crate) const CONTROL_ON: u32 = 1 << 1 | 1 << 2 | 1 << 13 | 1 << 14;
    /// P0_CONTROL: the switch inserts checksums.
    pub(crate) const RX_CHECKSUM_EN: u32 = 1 << 0;
    /// P0_CONTROL: the priority of a frame's VLAN tag passes P0_RX_PRI_MAP.
    pub(crate) const RX_REMAP_VLAN: u32 = 1 << 16;
    /// P0_PRI_CTL: channels contend by turns, not by fixed priority.
    pub(crate) const ROUND_ROBIN: u32 = 1 << 8;
}

/// The MAC of a port (`cpsw_sl.c` in Linux); offsets of port 0, which has none. The MAC ports
/// follow, [`switch::STRIDE`] apart.
pub(super) mod mac {
    use towpath_bus::Reg;

    /// Source address of pause frames: bytes 4 and 5, then bytes 0 to 3.
    pub(crate) const SA_L: Reg = Reg(0x2_1308);
    pub(crate) const SA_H: Reg = Reg(0x2_130c);
    pub(crate) const CONTROL: Reg = Reg(0x2_1330);
    pub(crate) const FULL_DUPLEX: u32 = 1 << 0;
    pub(crate) const LOOPBACK: u32 = 1 << 1;
    pub(crate) const RX_FLOW_EN: u32 = 1 << 3;
    pub(crate) const TX_FLOW_EN: u32 = 1 << 4;
    pub(crate) const GMII_EN: u32 = 1 << 5;
    pub(crate) const GIG: u32 = 1 << 7;
    pub(crate) const CMD_IDLE: u32 = 1 << 11;
    /// RMII: 100 Mb/s.
    pub(crate) const IFCTL_A: u32 = 1 << 15;
    /// RGMII at 10 Mb/s, SGMII: the PHY decides on the clock.
    pub(crate) const EXT_EN: u32 = 1 << 18;
    /// All that follows from a link.
    pub(crate) const LINK: u32 = FULL_DUPLEX | LOOPBACK | RX_FLOW_EN | TX_FLOW_EN | GMII_EN | GIG | IFCTL_A | EXT_EN;

    pub(crate) const STATUS: Reg = Reg(0x2_1334);
    /// Idle as a whole, towards the host, and in both directions: any of them suffices.
    pub(crate) const IDLE: u32 = 0xf << 28;
    pub(crate) const SOFT_RESET: Reg = Reg(0x2_1338);
    pub(crate) const RESET: u32 = 1;
}

/// The SGMII block of a port, 0x100 bytes each.
pub(super) mod sgmii {
    use towpath_bus::Reg;

    pub(crate) const STRIDE: u32 = 0x100;
    pub(crate) const STATUS: Reg = Reg(0x114);
    pub(crate) const LINK: u32 = 1 << 0;
}

/// The management bus of the PHYs (`davinci_mdio.c` in Linux).
pub(super) mod mdio {
    use towpath_bus::Reg;

    pub(crate) const CONTROL: Reg = Reg(0xf04);
    pub(crate) const ENABLE: u32 = 1 << 30;
    pub(crate) const MANUALIF: Reg = Reg(0xf30);
    pub(crate) const CLOCK: u32 = 1 << 2;
    pub(crate) const OUTPUT: u32 = 1 << 1;
    pub(crate) const DATA: u32 = 1 << 0;
    pub(crate) const POLL: Reg = Reg(0xf34);
    pub(crate) const MANUAL: u32 = 1 << 31;
    pub(crate) const USERACCESS0: Reg = Reg(0xf80);
    pub(crate) const GO: u32 = 1 << 31;
    pub(crate) const WRITE: u32 = 1 << 30;
    pub(crate) const ACK: u32 = 1 << 29;
    pub(crate) const REGISTER_SHIFT: u32 = 21;
    pub(crate) const PHY_SHIFT: u32 = 16;
}

/// The address lookup engine (`cpsw_ale.c` in Linux).
pub(super) mod ale {
    use towpath_bus::Reg;

    pub(crate) const CONTROL: Reg = Reg(0x3_e008);
    pub(crate) const ENABLE: u32 = 1 << 31;
    /// Deletes all entries.
    pub(crate) const CLEAR: u32 = 1 << 30;
    /// Frames of MAC ports go to the host, without a lookup.
    pub(crate) const BYPASS: u32 = 1 << 4;

    /// The host port's; those of the MAC ports follow, four bytes each.
    pub(crate) const PORT_CONTROL: Reg = Reg(0x3_e040);
    /// Port state: no frame passes.
    pub(crate) const DISABLED: u32 = 0;
    /// Port state: forwarding.
    pub(crate) const FORWARD: u32 = 3;
    pub(crate) const NO_LEARN: u32 = 1 << 4;
    pub(crate) const NO_SOURCE_UPDATE: u32 = 1 << 5;
    /// The port exchanges frames with the host only.
    pub(crate) const MAC_ONLY: u32 = 1 << 11;
    /// All frames of a MAC-only port pass, not only those to known addresses.
    pub(crate) const MAC_ONLY_COPY_ALL: u32 = 1 << 13;

    /// Thread, and with it the flow, of frames that no classifier matches.
    pub(crate) const DEFAULT_THREAD: Reg = Reg(0x3_e134);
    pub(crate) const DEFAULT_THREAD_ENABLE: u32 = 1 << 15;
}

/// Statistics, 0x200 bytes a port (`am65_cpsw_stats_regs` in Linux). The counters wrap.
pub(super) mod statistics {
    use towpath_bus::Reg;

    /// Good frames received by the host port; those of the MAC ports follow, a stride apart.
    pub(crate) const RX_GOOD: Reg = Reg(0x3_a000);
    /// Received pause frames, which count as good frames too, and end in the MAC.
    pub(crate) const RX_PAUSE: Reg = Reg(0x3_a00c);
    /// Received frames that the lookup dropped: for other stations, of other VLANs.
    pub(crate) const ALE_DROP: Reg = Reg(0x3_a028);
    /// Received frames for no port at all.
    pub(crate) const PORTMASK_DROP: Reg = Reg(0x3_a088);
    /// Good frames sent.
    pub(crate) const TX_GOOD: Reg = Reg(0x3_a034);
    /// Pause frames of the MAC, which count as good frames too.
    pub(crate) const TX_PAUSE: Reg = Reg(0x3_a040);

    pub(crate) fn of_port(register: Reg, port: u8) -> Reg {
        register.nth(u32::from(port), 0x200)
    }
}

/// Real-time registers of a channel, 0x1000 bytes each.
pub(super) mod channel {
    use towpath_bus::Reg;

    pub(crate) const STRIDE: u32 = 0x1000;
    pub(crate) const CONTROL: Reg = Reg(0);
    /// Remote real-time enable.
    pub(crate) const PEER: Reg = Reg(0x220);
    pub(crate) const ENABLE: u32 = 1 << 31;
    pub(crate) const TEARDOWN: u32 = 1 << 30;
}

/// Real-time registers of a ring.
pub(super) mod ring {
    use towpath_bus::Reg;

    /// Doorbell and occupancy of a one-sided ring, or of the forward side of a two-sided one.
    pub(crate) const FORWARD: (Reg, Reg) = (Reg(0x10), Reg(0x18));
    /// The same of the side of a two-sided ring that holds its completions.
    pub(crate) const REVERSE: (Reg, Reg) = (Reg(0x1010), Reg(0x1018));
    pub(crate) const COUNT: u32 = (1 << 21) - 1;
    /// Read: teardown is complete. Written: acknowledges that.
    pub(crate) const TEARDOWN: u32 = 1 << 31;
}

/// FIFO window of a ring in message mode, for elements of eight bytes; 0x1000 bytes each.
pub(super) mod fifo {
    pub(crate) const STRIDE: usize = 0x1000;
    pub(crate) const POP_HEAD: usize = 0x1f8;
    pub(crate) const PUSH_TAIL: usize = 0x3f8;
}

/// The register regions of one device. Their numbers on the bus are: 0 switch, 1 rings, 2 transmit
/// channels, 3 receive channels, 4 FIFO windows of the rings.
#[derive(Debug, Clone)]
pub(super) struct Regions<M> {
    pub(super) switch: M,
    pub(super) rings: M,
    pub(super) tx: M,
    pub(super) rx: M,
    /// Only if the free rings are in message mode.
    pub(super) fifos: Option<M>,
    pub(super) ring_stride: u32,
}

impl<M> Regions<M> {
    pub(super) fn open<B: Bus<Bar = M>>(bus: &B, config: &Config, granted: &Granted) -> Result<Regions<M>, BusError>
    where
        M: Mmio,
    {
        let Granted { soc, numbers } = granted;
        let ring_stride = if soc.family == Family::Pktdma { 0x2000 } else { 0x1000 };
        let (channels, flows) = (u16::from(config.tx_channels), u16::from(config.rx_flows));
        let ((submit, sent), (free, filled)) = (granted.tx_rings(channels - 1), granted.rx_rings(flows - 1));
        let rings = usize::from(submit.max(sent).max(free).max(filled)) + 1;
        let messages = soc.free_ring == FreeRing::Message && soc.family == Family::Udma;
        let fifos = if messages { Some(bus.bar(4, (usize::from(free) + 1) * fifo::STRIDE)?) } else { None };
        if messages && !M::WIDE {
            let what = "this bus can't access a ring's window by eight bytes at once: use exposed rings";
            return Err(BusError::Device { device: bus.name().to_owned(), what: what.to_owned() });
        }
        Ok(Regions {
            switch: bus.bar(0, 0x4_0000)?,
            rings: bus.bar(1, rings * ring_stride as usize)?,
            tx: bus.bar(2, usize::from(numbers.tx_channel + channels) * channel::STRIDE as usize)?,
            rx: bus.bar(3, usize::from(numbers.rx_channel + 1) * channel::STRIDE as usize)?,
            fifos,
            ring_stride,
        })
    }
}

/// A register of channel `channel`.
pub(super) fn of_channel(register: Reg, channel: u16) -> Reg {
    register.nth(u32::from(channel), channel::STRIDE)
}
