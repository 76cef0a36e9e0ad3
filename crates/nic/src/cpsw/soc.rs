//! The SoCs: what is fixed in each, and the channels, flows and rings that firmware granted.
//!
//! | | AM62x | AM64x | J7200, J784S4 main | J784S4 MCU |
//! |---|---|---|---|---|
//! | DMA engine, address tag | PKTDMA, 15 | PKTDMA, 15 | UDMA, 0 | UDMA, 0 |
//! | threads to, from the switch | c600…, 4600 | c500…, 4500 | ca00…, 4a00 | f000…, 7000 |
//! | channels, flows, rings | fixed ([`Numbers`]) | fixed | as granted | as granted |
//!
//! Sources: `k3-psil-am62.c`, `k3-psil-am64.c`, `k3-psil-j7200.c`, `k3-psil-j784s4.c`, the device
//! trees `k3-*.dtsi`, and TI's TISCI descriptions of DMA and ring accelerator resources. On PKTDMA
//! the channels of the switch belong to it alone; of UDMA all users share the channels, so that
//! only firmware, or the kernel in its name, knows which are free.

use super::config::Config;
use super::error::CpswError;
use towpath_bus::tisci::{Range, Tisci};

/// The DMA engine between processor and switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// PKTDMA: two-sided rings inside the engine; the element at index `i` completes at index `i`.
    Pktdma,
    /// UDMA with a ring accelerator: submission and completion are separate rings.
    Udma,
}

/// Mode of the ring of free receive descriptors. PKTDMA has only [`Exposed`](FreeRing::Exposed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeRing {
    /// The driver stores elements to memory and writes doorbells: a burst costs one register write.
    Exposed,
    /// Each element is a register write of eight bytes.
    Message,
}

/// Device ids of system firmware (`ti,sci-dev-id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceIds {
    /// The DMA engine.
    pub dma: u16,
    /// The rings: PKTDMA itself, or the ring accelerator.
    pub rings: u16,
    /// The navigator around them, which pairs threads.
    pub navigator: u16,
}

/// The numbers of channels, flows and rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// First transmit channel.
    pub tx_channel: u16,
    /// Receive channel.
    pub rx_channel: u16,
    /// First receive flow.
    pub rx_flow: u16,
    /// PKTDMA: the ring of the first transmit channel, and the number of rings per channel. UDMA:
    /// the submission ring has the channel's number; completion rings are taken from this ring on.
    pub tx_ring: (u16, u16),
    /// PKTDMA: the ring of the first receive flow. UDMA: two rings a flow are taken from this ring
    /// on.
    pub rx_ring: u16,
}

/// The SoC around the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Soc {
    /// The name, for errors.
    pub name: &'static str,
    /// The DMA engine.
    pub family: Family,
    /// First PSI-L thread to the switch.
    pub tx_thread: u16,
    /// PSI-L thread from the switch.
    pub rx_thread: u16,
    /// PSI-L thread of channel 0 of the engine.
    pub psil_base: u16,
    /// Device ids.
    pub devices: DeviceIds,
    /// Where the numbers are fixed; otherwise they are the first that firmware grants.
    pub numbers: Option<Numbers>,
    /// Address space tag (ASEL) of every pointer.
    pub asel: u8,
    /// Mode of the rings of free receive descriptors.
    pub free_ring: FreeRing,
    /// A marker on a ring reports the end of a receive teardown.
    pub marks_rx_teardown: bool,
    /// Erratum i2329: transactions of the MDIO controller may hang, so that the driver writes the
    /// bits itself (Linux: `davinci_mdio.c:k3_mdio_socinfo`).
    pub manual_mdio: bool,
}

impl Soc {
    /// AM62x, CPSW3G. AM62Ax and AM62Px have the same threads, channels and flows.
    pub const AM62X: Soc = Soc {
        name: "am62x",
        family: Family::Pktdma,
        tx_thread: 0xc600,
        rx_thread: 0x4600,
        psil_base: 0x1000,
        devices: DeviceIds { dma: 30, rings: 30, navigator: 25 },
        numbers: Some(Numbers { tx_channel: 19, rx_channel: 19, rx_flow: 19, tx_ring: (19, 8), rx_ring: 118 }),
        asel: 15,
        free_ring: FreeRing::Exposed,
        marks_rx_teardown: true,
        manual_mdio: true,
    };

    /// AM64x, CPSW3G.
    pub const AM64X: Soc = Soc {
        name: "am64x",
        tx_thread: 0xc500,
        rx_thread: 0x4500,
        numbers: Some(Numbers { tx_channel: 16, rx_channel: 16, rx_flow: 16, tx_ring: (16, 8), rx_ring: 128 }),
        ..Soc::AM62X
    };

    /// J784S4, main domain: CPSW9G, free rings in message mode.
    pub const J784S4: Soc = Soc {
        name: "j784s4",
        family: Family::Udma,
        tx_thread: 0xca00,
        rx_thread: 0x4a00,
        psil_base: 0x1000,
        devices: DeviceIds { dma: 319, rings: 315, navigator: 280 },
        numbers: None,
        asel: 0,
        free_ring: FreeRing::Message,
        marks_rx_teardown: false,
        manual_mdio: false,
    };

    /// J7200, main domain: CPSW5G, exposed free rings.
    pub const J7200: Soc = Soc {
        name: "j7200",
        devices: DeviceIds { dma: 212, rings: 211, navigator: 199 },
        free_ring: FreeRing::Exposed,
        manual_mdio: true,
        ..Soc::J784S4
    };

    /// J784S4, MCU domain: CPSW2G.
    pub const J784S4_MCU: Soc = Soc {
        name: "j784s4-mcu",
        tx_thread: 0xf000,
        rx_thread: 0x7000,
        psil_base: 0x6000,
        devices: DeviceIds { dma: 329, rings: 328, navigator: 323 },
        ..Soc::J784S4
    };
}

/// Subtypes of resources (`ti,sci-rm-range-*` in the device trees).
mod subtype {
    /// PKTDMA: channels and flows of the switch.
    pub(super) const CPSW_TX_CHANNEL: u8 = 0x24;
    pub(super) const CPSW_TX_FLOW: u8 = 0x11;
    pub(super) const CPSW_RX_CHANNEL: u8 = 0x2b;
    pub(super) const CPSW_RX_FLOW: u8 = 0x2c;
    /// UDMA: channels of normal capacity, flows without a channel of their own.
    pub(super) const TX_CHANNEL: u8 = 0x0d;
    pub(super) const RX_CHANNEL: u8 = 0x0a;
    pub(super) const RX_FLOW: u8 = 0x00;
    /// General-purpose rings of the ring accelerator.
    pub(super) const RING: u8 = 0x01;
}

/// A SoC, and the numbers that its firmware granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) soc: Soc,
    pub(super) numbers: Numbers,
}

impl Granted {
    /// Asks firmware for the ranges of this host, and takes the numbers for `config` from them.
    ///
    /// # Errors
    /// [`CpswError::NotGranted`] names the first range that is too short, or that does not hold the
    /// numbers of the SoC.
    pub(super) fn ask(firmware: &dyn Tisci, config: &Config) -> Result<Granted, CpswError> {
        let soc = config.soc;
        let (channels, flows) = (u16::from(config.tx_channels), u16::from(config.rx_flows));
        let DeviceIds { dma, rings, .. } = soc.devices;
        // The first of two ranges: the second one is for hosts that lend resources.
        let granted = |device, subtype| firmware.ranges(device, subtype).map(|[first, _]| first);
        let need = |what, range: Range, start: Option<u16>, count: u16| {
            let start = start.unwrap_or(range.start);
            let refused = CpswError::NotGranted { soc: soc.name, what, start, count, range };
            if range.holds(start, count) { Ok(start) } else { Err(refused) }
        };
        let numbers = match soc.numbers {
            Some(numbers) => {
                let tx = granted(dma, subtype::CPSW_TX_CHANNEL)?;
                need("transmit channels", tx, Some(numbers.tx_channel), channels)?;
                let (first, each) = numbers.tx_ring;
                need("transmit flows", granted(dma, subtype::CPSW_TX_FLOW)?, Some(first), each * channels)?;
                let rx = granted(dma, subtype::CPSW_RX_CHANNEL)?;
                need("receive channels", rx, Some(numbers.rx_channel), 1)?;
                need("receive flows", granted(dma, subtype::CPSW_RX_FLOW)?, Some(numbers.rx_flow), flows)?;
                numbers
            }
            None => {
                let first = need("rings", granted(rings, subtype::RING)?, None, channels + 2 * flows)?;
                Numbers {
                    tx_channel: need("transmit channels", granted(dma, subtype::TX_CHANNEL)?, None, channels)?,
                    rx_channel: need("receive channels", granted(dma, subtype::RX_CHANNEL)?, None, 1)?,
                    rx_flow: need("receive flows", granted(dma, subtype::RX_FLOW)?, None, flows)?,
                    tx_ring: (first, 1),
                    rx_ring: first + channels,
                }
            }
        };
        Ok(Granted { soc, numbers })
    }

    /// The transmit channel for the switch's thread `number`.
    pub(super) fn tx_channel(&self, number: u16) -> u16 {
        self.numbers.tx_channel + number
    }

    /// The submission ring and the completion ring of the transmit channel for thread `number`.
    pub(super) fn tx_rings(&self, number: u16) -> (u16, u16) {
        let ring = self.numbers.tx_ring.0 + number * self.numbers.tx_ring.1;
        match self.soc.family {
            Family::Pktdma => (ring, ring),
            Family::Udma => (self.tx_channel(number), ring),
        }
    }

    /// The free ring and the completion ring of a flow.
    pub(super) fn rx_rings(&self, flow: u16) -> (u16, u16) {
        let first = self.numbers.rx_ring;
        match self.soc.family {
            Family::Pktdma => (first + flow, first + flow),
            Family::Udma => (first + 2 * flow, first + 2 * flow + 1),
        }
    }

    /// The threads of a transmit channel: from the engine to the switch.
    pub(super) fn tx_threads(&self, number: u16) -> (u16, u16) {
        (self.soc.psil_base + self.tx_channel(number), self.soc.tx_thread + number)
    }

    /// The threads of the receive channel: from the switch to the engine.
    pub(super) fn rx_threads(&self) -> (u16, u16) {
        (self.soc.rx_thread, 0x8000 | (self.soc.psil_base + self.numbers.rx_channel))
    }
}
