//! Configuration.

use super::mdio::MdioAccess;
use super::soc::{Family, FreeRing, Soc};
use crate::batching::BatchSize;
pub use crate::common::option::ConfigError;
use crate::common::option::within;
use crate::common::phy::FlowControl;
use towpath_bus::DmaPolicy;
use towpath_packet::setters;

/// How descriptors are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DescAlloc {
    /// From a stack of free indices with one owner.
    #[default]
    Recycled,
    /// From a bitmap that is searched, like `gen_pool` in Linux: for comparison in benches.
    GenPool,
}

/// Where the state of a link comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkSource {
    /// A PHY on the switch's management bus.
    #[default]
    Phy,
    /// The status that a PHY sends in band: RGMII between frames, SGMII while negotiating.
    InBand,
    /// Nothing: the link is up, at 1000 Mb/s in full duplex.
    Fixed,
    /// Nothing: the MAC returns each frame that it sends.
    Loopback,
}

/// The interface between MAC and PHY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interface {
    /// RGMII, of any delays.
    #[default]
    Rgmii,
    /// RMII: 10 and 100 Mb/s.
    Rmii,
    /// SGMII. Its SERDES must have been set up by the kernel.
    Sgmii,
}

setters! {
    /// Configuration of the device and all its ports. Each field has a setter of its name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Config {
        /// The SoC.
        pub soc: Soc,
        /// MAC ports, 1 to 8.
        pub ports: u8,
        /// Transmit channels, 1 to 8. With at least one per port, each port has channels of its
        /// own. With fewer, ports share them, and each may have only as many frames in flight as
        /// its FIFO takes, so that it does not delay the others; batches are small then.
        pub tx_channels: u8,
        /// Receive flows, 1 to 8. The user priority of a frame decides its flow; its port does not.
        pub rx_flows: u8,
        /// Elements of a transmit ring, 2 to 32768.
        pub tx_ring: u32,
        /// Descriptors of a transmit channel, 2 to 32768; a packet takes one for each of its
        /// chunks.
        pub tx_descriptors: u32,
        /// Descriptors, elements and buffers of a receive flow, 2 to 32768.
        pub rx_ring: u32,
        /// Longest frame in either direction, FCS included, 64 to 9604.
        pub max_len: u32,
        /// Buffers of a received frame, 1 to 16; the switch drops frames that they can't hold. With
        /// more than 1, PKTDMA gets chains of this length, and UDMA takes as many descriptors as it
        /// needs. UDMA does so only from rings in message mode: it pushes back descriptors that
        /// turn out to be too few, which an exposed ring does not support.
        pub rx_buffers: u8,
        /// Where the state of the links comes from.
        pub link: LinkSource,
        /// The interface between MACs and PHYs.
        pub interface: Interface,
        /// The PHYs' addresses on the management bus, 0 to 31, in the order of the ports.
        pub phys: [u8; 8],
        /// How the PHYs' registers are reached; `None` is manual where an erratum of the SoC
        /// demands it, automatic elsewhere.
        pub mdio: Option<MdioAccess>,
        /// The pause frames that ports ask for.
        pub flow_control: FlowControl,
        /// How the IOMMU protects packet memory from the device.
        pub policy: DmaPolicy,
        /// Batch size of each port at its start.
        pub batch: BatchSize,
        /// How descriptors are allocated.
        pub desc_alloc: DescAlloc,
        /// No batches, for comparison in benches: each packet is announced, popped and refilled
        /// alone.
        #[doc(hidden)]
        pub singly: bool,
    }
}

impl Default for Config {
    /// Two ports of an AM64x with a channel each, one flow, and rings of 516 and 500 elements as in
    /// Linux.
    fn default() -> Config {
        Config {
            soc: Soc::AM64X,
            ports: 2,
            tx_channels: 8,
            rx_flows: 1,
            tx_ring: 516,
            tx_descriptors: 500,
            rx_ring: 500,
            max_len: 2024,
            rx_buffers: 1,
            link: LinkSource::default(),
            interface: Interface::default(),
            phys: [0, 1, 2, 3, 4, 5, 6, 7],
            mdio: None,
            flow_control: FlowControl::default(),
            policy: DmaPolicy::default(),
            batch: BatchSize::default(),
            desc_alloc: DescAlloc::default(),
            singly: false,
        }
    }
}

impl Config {
    /// Checks the fields.
    ///
    /// # Errors
    /// [`ConfigError`] names the first option that is out of its range, its value and the rule.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("ports", self.ports.into(), 1..=8)?;
        within("channels", self.tx_channels.into(), 1..=8)?;
        within("flows", self.rx_flows.into(), 1..=8)?;
        within("tx", self.tx_ring.into(), 2..=32_768)?;
        within("descriptors", self.tx_descriptors.into(), 2..=32_768)?;
        within("rx", self.rx_ring.into(), 2..=32_768)?;
        within("frame", self.max_len.into(), 64..=9604)?;
        self.phys.iter().try_for_each(|&phy| within("phys", phy.into(), 0..=31))?;
        within("buffers", self.rx_buffers.into(), 1..=16)?;
        self.check_chain()
    }

    /// Checks that the rings can hand out chains of `rx_buffers`.
    fn check_chain(&self) -> Result<(), ConfigError> {
        let pushes_back = self.soc.family == Family::Udma && self.soc.free_ring == FreeRing::Exposed;
        let rule = match u32::from(self.rx_buffers) {
            0..=1 => return Ok(()),
            _ if pushes_back => "must be 1 where UDMA takes free descriptors from exposed rings",
            buffers if buffers > self.rx_ring => "must not be more than rx",
            _ => return Ok(()),
        };
        Err(ConfigError { option: "buffers", value: self.rx_buffers.to_string(), rule: rule.to_owned() })
    }

    /// How the PHYs' registers are reached.
    pub(super) fn mdio_access(&self) -> MdioAccess {
        let automatic = if self.soc.manual_mdio { MdioAccess::Manual } else { MdioAccess::Automatic };
        self.mdio.unwrap_or(automatic)
    }

    /// Bytes of the longest frame to send, without FCS.
    pub(super) fn max_frame(&self) -> usize {
        self.max_len as usize - 4
    }

    /// Transmit channels of each port; 0 if ports share channels.
    pub(super) fn channels_per_port(&self) -> u8 {
        self.tx_channels / self.ports.max(1)
    }
}
