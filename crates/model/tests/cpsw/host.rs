//! A host that does exactly what a test demands, without a driver between test and registers.

use towpath_bus::tisci::{RingConfig, RingMode, RxChannelConfig, RxFlowConfig, Tisci, TxChannelConfig};
use towpath_bus::{Bus, Coherent, DmaPolicy, Domain, Mmio};
use towpath_model::cpsw::{Config, Cpsw, CpswBus, Family, Firmware, Registers, Rule, Soc};
use towpath_model::iommu::ModelDma;
use towpath_model::wire::{Plug, cable};

pub(crate) const SIZE: u32 = 8;
/// Index of the first receive buffer in the buffer memory.
const BUFFERS: usize = 16;

/// One transmit channel and one receive flow, with rings of eight and descriptors of 128 bytes.
pub(crate) struct Host {
    pub(crate) model: Cpsw,
    pub(crate) firmware: Firmware,
    pub(crate) plug: Plug,
    rings: Registers,
    channels: Registers,
    rx_channels: Registers,
    pub(crate) windows: Registers,
    switch: Registers,
    pub(crate) slots: Coherent,
    completed: Coherent,
    pub(crate) free: Coherent,
    filled: Coherent,
    pub(crate) descriptors: Coherent,
    buffers: Coherent,
    pub(crate) soc: Soc,
    pub(crate) message: bool,
    /// The switch's first flow is the second one.
    second: bool,
    head: u32,
    free_head: u32,
    _domain: Domain<ModelDma>,
    _bus: CpswBus,
}

impl Host {
    pub(crate) fn new(soc: Soc, message: bool) -> Host {
        Host::with(Config::default().soc(soc).ports(1).lag(false), message)
    }

    pub(crate) fn with(config: Config, message: bool) -> Host {
        let soc = config.soc;
        let model = Cpsw::new(config).unwrap();
        let (near, plug) = cable(64);
        model.plug(1, near);
        let (bus, firmware) = (model.bus(), model.firmware());
        let domain = Domain::new(bus.dma().clone(), DmaPolicy::Persistent).unwrap();
        let memory = |len| Coherent::new(&domain, len).unwrap();
        let bar = |index| bus.bar(index, 0x1000).unwrap();
        let host = Host {
            rings: bar(1),
            channels: bar(2),
            rx_channels: bar(3),
            windows: bar(4),
            switch: bar(0),
            slots: memory(64),
            completed: memory(64),
            free: memory(64),
            filled: memory(64),
            descriptors: memory(128 * 32),
            buffers: memory(2048 * 32),
            model,
            firmware,
            plug,
            soc,
            message,
            second: false,
            head: 0,
            free_head: 0,
            _domain: domain,
            _bus: bus,
        };
        host.set_up();
        host
    }

    /// Writes the lookup engine's control register of a port.
    pub(crate) fn port_control(&self, port: u8, value: u32) {
        self.switch.w32(0x3_e040 + 4 * usize::from(port), value);
    }

    /// Writes a register of a MAC port's block.
    pub(crate) fn mac_register(&self, port: u8, at: usize, value: u32) {
        self.switch.w32(0x2_1000 + 0x1000 * usize::from(port) + at, value);
    }

    /// Reads a register of the switch.
    pub(crate) fn read(&self, at: usize) -> u32 {
        self.switch.r32(at)
    }

    /// Writes a register of the switch.
    pub(crate) fn write(&self, at: usize, value: u32) {
        self.switch.w32(at, value);
    }

    /// Writes the lookup engine's own control register.
    pub(crate) fn lookup_control(&self, value: u32) {
        self.switch.w32(0x3_e008, value);
    }

    pub(crate) fn pktdma(&self) -> bool {
        self.soc.family() == Family::Pktdma
    }

    pub(crate) fn asel(&self) -> u64 {
        if self.pktdma() { 15 << 48 } else { 0 }
    }

    fn channel(&self) -> u16 {
        if self.pktdma() { 16 } else { 20 }
    }

    fn rx_channel(&self) -> u16 {
        if self.pktdma() { 16 } else { 31 }
    }

    fn flow(&self) -> u16 {
        if self.pktdma() { 16 } else { 90 }
    }

    pub(crate) fn submit(&self) -> u16 {
        self.channel()
    }

    pub(crate) fn returns(&self) -> u16 {
        if self.pktdma() { 16 } else { 440 }
    }

    pub(crate) fn free_ring(&self) -> u16 {
        if self.pktdma() { 128 + u16::from(self.second) } else { 441 }
    }

    fn filled_ring(&self) -> u16 {
        if self.pktdma() { 128 } else { 442 }
    }

    /// Device ids of the DMA engine, the rings, and the navigator.
    pub(crate) fn ids(&self) -> (u16, u16, u16) {
        if self.pktdma() { (30, 30, 25) } else { (319, 315, 280) }
    }

    pub(crate) fn ring_config(&self, ring: u16, memory: &Coherent, mode: RingMode) -> RingConfig {
        let asel = if self.pktdma() { 15 } else { 0 };
        let ring = RingConfig::new(self.ids().1, ring).address(memory.iova().get()).count(SIZE);
        ring.mode(mode).asel(asel)
    }

    fn set_up(&self) {
        self.switch.w32(0x2_0004, 1 << 1 | 1 << 2 | 1 << 13 | 1 << 14);
        self.switch.w32(0x2_1004, 1);
        self.switch.w32(0x2_1008, self.flow().into());
        self.switch.w32(0x2_1024, 2024);
        self.switch.w32(0x3_e008, 1 << 31 | 1 << 4);
        (0..=self.model.config().ports).for_each(|port| self.port_control(port, 3));
        // Gigabit, full duplex.
        (1..=self.model.config().ports).for_each(|port| self.mac_register(port, 0x330, 1 << 7 | 1 << 5 | 1));
        let firmware = &self.firmware;
        let mode = if self.message { RingMode::Message } else { RingMode::Exposed };
        firmware.ring_config(&self.ring_config(self.submit(), &self.slots, RingMode::Exposed)).unwrap();
        firmware.ring_config(&self.ring_config(self.free_ring(), &self.free, mode)).unwrap();
        if !self.pktdma() {
            firmware.ring_config(&self.ring_config(440, &self.completed, RingMode::Exposed)).unwrap();
            firmware.ring_config(&self.ring_config(442, &self.filled, RingMode::Exposed)).unwrap();
        }
        firmware.tx_channel_config(&self.tx_channel()).unwrap();
        let (tx, rx) = if self.pktdma() { (0xc500, 0x4500) } else { (0xca00, 0x4a00) };
        let (dma, _, navigator) = self.ids();
        firmware.psil_pair(navigator, 0x1000 + self.channel(), tx).unwrap();
        self.control(1 << 31, 1 << 31);
        firmware.rx_flow_config(&self.rx_flow()).unwrap();
        let flows = (!self.pktdma()).then_some((self.flow(), 1));
        let asel = if self.pktdma() { 15 } else { 0 };
        let channel = self.rx_channel();
        let setup = RxChannelConfig::new(dma, channel).fetch_words(24).flows(flows).asel(asel);
        firmware.rx_channel_config(&setup).unwrap();
        firmware.psil_pair(navigator, rx, 0x9000 + channel).unwrap();
        let at = usize::from(channel) * 0x1000;
        self.rx_channels.w32(at, 1 << 31);
        self.rx_channels.w32(at + 0x220, 1 << 31);
    }

    /// What the transmit channel is set up with.
    pub(crate) fn tx_channel(&self) -> TxChannelConfig {
        let channel = TxChannelConfig::new(self.ids().0, self.channel()).fetch_words(24);
        channel.completion_ring(self.returns()).asel(if self.pktdma() { 15 } else { 0 })
    }

    /// What the receive flow is set up with.
    pub(crate) fn rx_flow(&self) -> RxFlowConfig {
        let flow = RxFlowConfig::new(self.ids().0, self.flow(), self.filled_ring(), self.free_ring());
        flow.einfo(true).psinfo(true).source_tag(true)
    }

    /// Enables the receive channel, or disables it.
    pub(crate) fn control_rx(&self, control: u32) {
        self.rx_channels.w32(usize::from(self.rx_channel()) * 0x1000, control);
    }

    /// Writes the control register of a transmit channel.
    pub(crate) fn control_channel(&self, channel: usize, control: u32) {
        self.channels.w32(channel * 0x1000, control);
    }

    /// Makes the flow behind the first the switch's first one, and enables the receive channel.
    pub(crate) fn use_second_flow(&mut self) {
        let flow = self.flow() + 1;
        if self.pktdma() {
            self.firmware.ring_config(&self.ring_config(129, &self.free, RingMode::Exposed)).unwrap();
        } else {
            let (device, channel) = (self.ids().0, self.rx_channel());
            let flows = Some((flow, 1));
            let setup = RxChannelConfig::new(device, channel).fetch_words(24).flows(flows);
            self.firmware.rx_channel_config(&setup).unwrap();
        }
        self.second = true;
        self.switch.w32(0x2_1008, flow.into());
        self.control_rx(1 << 31);
    }

    /// The source tag of a descriptor.
    pub(crate) fn source_tag(&self, index: usize) -> u32 {
        self.descriptors.load32(128 * index + 0xc) >> 16
    }

    /// Writes the control and peer registers of the transmit channel.
    pub(crate) fn control(&self, control: u32, peer: u32) {
        let at = usize::from(self.channel()) * 0x1000;
        self.channels.w32(at + 0x220, peer);
        self.channels.w32(at, control);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.channels.r32(usize::from(self.channel()) * 0x1000) & 1 << 31 != 0
    }

    fn ring_register(&self, ring: u16, register: usize) -> usize {
        usize::from(ring) * if self.pktdma() { 0x2000 } else { 0x1000 } + register
    }

    /// Writes a word to a doorbell.
    pub(crate) fn doorbell(&self, ring: u16, value: u32) {
        self.rings.w32(self.ring_register(ring, 0x10), value);
    }

    /// Writes a word to the doorbell of completions.
    pub(crate) fn reverse_doorbell(&self, value: u32) {
        let register = if self.pktdma() { 0x1010 } else { 0x10 };
        self.rings.w32(self.ring_register(self.returns(), register), value);
    }

    /// The occupancy of completions, with the teardown flag.
    pub(crate) fn completions(&self) -> u32 {
        let register = if self.pktdma() { 0x1018 } else { 0x18 };
        self.rings.r32(self.ring_register(self.returns(), register))
    }

    pub(crate) fn completion(&self, slot: usize) -> u64 {
        self.completed.load64(slot * 8)
    }

    pub(crate) fn occupancy(&self, ring: u16) -> u32 {
        self.rings.r32(self.ring_register(ring, 0x18))
    }

    pub(crate) fn element(&self, index: usize) -> u64 {
        self.asel() | (self.descriptors.iova().get() + 128 * index as u64)
    }

    fn store(&self, index: usize, pair: usize, low: u32, high: u32) {
        self.descriptors.store64(128 * index + 8 * pair, u64::from(low) | u64::from(high) << 32);
    }

    /// Builds a packet of 100 bytes for port 1 in one descriptor.
    pub(crate) fn build(&self, index: usize) {
        let buffer = self.asel() | (self.buffers.iova().get() + 2048 * index as u64);
        self.store(index, 0, 1 << 30 | 1 << 29 | 4 << 22 | 100, 0x3fff);
        self.store(index, 1, 7 << 27 | u32::from(self.returns()), 1);
        self.descriptors.store64(128 * index + 0x10, 0);
        self.descriptors.store64(128 * index + 0x18, buffer);
        self.store(index, 4, 100, 100);
        self.descriptors.store64(128 * index + 0x28, buffer);
        self.store(index, 8, 0, 0);
        self.store(index, 9, 0, 0);
    }

    /// Stores an element in the next slot without a doorbell.
    pub(crate) fn stage(&mut self, element: u64) {
        self.slots.store64(8 * self.head as usize, element);
        self.head = (self.head + 1) % SIZE;
    }

    /// Builds, stages and announces a packet.
    pub(crate) fn send(&mut self, index: usize) {
        self.build(index);
        self.stage(self.element(index));
        self.doorbell(self.submit(), 1);
    }

    /// Posts a free descriptor, in the mode of the ring.
    pub(crate) fn post(&mut self, index: usize) {
        self.build(index);
        let buffer = self.asel() | (self.buffers.iova().get() + 2048 * (BUFFERS + index % 16) as u64);
        self.descriptors.store64(128 * index + 0x18, buffer);
        self.store(index, 4, 2048, 2048);
        self.descriptors.store64(128 * index + 0x28, buffer);
        let element = self.element(index);
        if self.message {
            self.windows.w64(usize::from(self.free_ring()) * 0x1000 + 0x3f8, element);
        } else {
            self.free.store64(8 * self.free_head as usize, element);
            self.free_head = (self.free_head + 1) % SIZE;
            self.doorbell(self.free_ring(), 1);
        }
    }

    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        if let Some(violation) = self.model.violation() {
            panic!("{violation}");
        }
    }

    /// Asserts that this is the first rule that was violated.
    #[track_caller]
    pub(crate) fn assert_violated(&self, rule: Rule) {
        let violation = self.model.violation().unwrap_or_else(|| panic!("{rule} was not reported"));
        assert_eq!(violation.rule, rule, "{violation}");
    }
}
