//! A driver, its model, and the far ends of the model's wires.

use std::sync::Arc;
use std::time::Duration;
use towpath_bus::tisci::Tisci;
use towpath_model::cpsw::{self as model, Cpsw, CpswBus, Firmware};
use towpath_model::wire::{Plug, cable};
use towpath_nic::cpsw::{BatchSize, Config, Control, CpswRx, CpswTx, FreeRing, LinkSource, Soc, open};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Cache, Direction, Offloads, Packet, Pool, PoolConfig};

/// A DMA family, with the mode of its free rings and the address tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Pktdma,
    PktdmaUntagged,
    Udma,
    UdmaMessages,
}

impl Variant {
    pub(crate) const ALL: [Variant; 4] =
        [Variant::Pktdma, Variant::PktdmaUntagged, Variant::Udma, Variant::UdmaMessages];

    pub(crate) fn soc(self) -> Soc {
        match self {
            Variant::Pktdma => Soc::AM64X,
            Variant::PktdmaUntagged => Soc { asel: 0, ..Soc::AM64X },
            Variant::Udma => Soc::J7200,
            Variant::UdmaMessages => Soc::J784S4,
        }
    }

    pub(crate) fn model(self) -> model::Soc {
        match self {
            Variant::Pktdma | Variant::PktdmaUntagged => model::Soc::Am64x,
            Variant::Udma => model::Soc::J7200,
            Variant::UdmaMessages => model::Soc::J784s4,
        }
    }

    /// The rings of the first transmit channel and of the first flow, by TI's descriptions: each is
    /// its submission ring and its completion ring.
    pub(crate) fn rings(self) -> [(u16, u16); 2] {
        match self {
            Variant::Pktdma | Variant::PktdmaUntagged => [(16, 16), (128, 128)],
            // As the models of J7200 and J784S4 grant them, with one channel.
            Variant::Udma => [(10, 130), (131, 132)],
            Variant::UdmaMessages => [(20, 440), (441, 442)],
        }
    }

    /// Whether the driver can announce free descriptors by batches.
    pub(crate) fn exposed(self) -> bool {
        self.soc().free_ring == FreeRing::Exposed
    }
}

/// Frames in flight on a wire: more than any test sends.
const WIRE: usize = 1 << 15;

/// One started port.
pub(crate) struct StartedPort {
    pub(crate) rx: Vec<CpswRx<CpswBus>>,
    pub(crate) tx: Vec<CpswTx<CpswBus>>,
}

pub(crate) struct Rig {
    pub(crate) model: Cpsw,
    pub(crate) firmware: Arc<Firmware>,
    pub(crate) plugs: Vec<Plug>,
    pub(crate) pool: Pool,
    pub(crate) cache: Cache,
    pub(crate) config: Config,
    pub(crate) control: Control<CpswBus>,
    pub(crate) ports: Vec<StartedPort>,
    seed: u64,
}

/// The configuration of most tests: small rings, so that descriptors turn over.
pub(crate) fn config(variant: Variant, ports: u8) -> Config {
    Config::default()
        .soc(variant.soc())
        .ports(ports)
        .tx_channels(ports)
        .rx_flows(1)
        .tx_ring(16)
        .tx_descriptors(16)
        .rx_ring(16)
        .link(LinkSource::InBand)
        .batch(BatchSize::new(4).unwrap())
}

pub(crate) fn model_config(variant: Variant, ports: u8) -> model::Config {
    model::Config::default().soc(variant.model()).ports(ports).in_band_status(true)
}

pub(crate) fn pool(capacity: usize) -> Pool {
    Pool::new(PoolConfig::default().capacity(capacity).backing(Backing::Anonymous)).unwrap()
}

impl Rig {
    pub(crate) fn new(variant: Variant, ports: u8) -> Rig {
        Rig::with(config(variant, ports), model_config(variant, ports))
    }

    pub(crate) fn with(config: Config, model_config: model::Config) -> Rig {
        Rig::with_pool(config, model_config, pool(4096))
    }

    pub(crate) fn with_pool(config: Config, model_config: model::Config, pool: Pool) -> Rig {
        let model = Cpsw::new(model_config).unwrap();
        let firmware = Arc::new(model.firmware());
        let plugs = (1..=config.ports).map(|port| {
            let (near, far) = cable(WIRE);
            model.plug(port, near);
            far
        });
        let plugs = plugs.collect();
        let cache = pool.cache(Direction::Tx).unwrap();
        let (ports, control) = start(&model, &firmware, config, &pool);
        Rig { model, firmware, plugs, pool, cache, config, control, ports, seed: 1 }
    }

    /// Tears everything down. The device stays.
    pub(crate) fn stop(&mut self) {
        self.ports.clear();
    }

    /// Tears everything down while the device runs, and checks that nothing is missing.
    pub(crate) fn finish(&mut self) {
        self.model.set_steps_per_read(4);
        self.stop();
        self.assert_all_free();
    }

    /// Brings everything up again.
    pub(crate) fn restart(&mut self) {
        assert!(self.ports.is_empty());
        (self.ports, self.control) = start(&self.model, &self.firmware, self.config, &self.pool);
    }

    /// Runs random actions of the device.
    pub(crate) fn run(&mut self, steps: usize) -> usize {
        self.seed += 1;
        self.model.run(self.seed, steps)
    }

    pub(crate) fn packet(&mut self, bytes: &[u8]) -> Packet {
        Packet::copy_from(&mut self.cache, bytes).unwrap()
    }

    /// A packet of `pieces` chunks with the bytes.
    pub(crate) fn fragmented(&mut self, bytes: &[u8], pieces: usize) -> Packet {
        let size = bytes.len().div_ceil(pieces);
        let mut chunks = bytes.chunks(size);
        let mut packet = self.packet(chunks.next().unwrap());
        for chunk in chunks {
            let next = self.packet(chunk);
            packet.append(next).unwrap();
        }
        packet
    }

    /// Sends one packet through port `port`, 0 and up, as soon as it fits.
    pub(crate) fn send(&mut self, port: usize, packet: Packet) {
        let mut batch = Batch::new();
        batch.push(packet).unwrap();
        for _ in 0..100_000 {
            self.ports[port].tx[0].reclaim();
            if self.ports[port].tx[0].tx(&mut batch) == 1 {
                return;
            }
            self.run(8);
        }
        panic!("no room for a packet: {:?}", self.model.violation());
    }

    /// Lets port `port`, 0 and up, look at its link.
    pub(crate) fn check_link(&mut self, port: usize) {
        self.model.advance(Duration::from_secs(1));
        for _ in 0..1024 {
            self.ports[port].tx[0].reclaim();
        }
    }

    /// Polls port `port`, 0 and up, which receives nothing, until a second has gone by.
    pub(crate) fn polls_for_a_second(&mut self, port: usize) {
        self.model.advance(Duration::from_secs(1));
        for _ in 0..256 {
            assert_eq!(self.ports[port].rx[0].rx(&mut Batch::new()), 0);
        }
    }

    pub(crate) fn kick(&mut self) {
        for port in &mut self.ports {
            port.tx.iter_mut().for_each(TxQueue::kick);
        }
    }

    /// All frames that port `port`, 0 and up, has received.
    pub(crate) fn receive(&mut self, port: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut batch = Batch::new();
        for queue in &mut self.ports[port].rx {
            queue.refill();
            while queue.rx(&mut batch) > 0 {
                frames.extend(batch.iter().map(Packet::to_vec));
                self.cache.free_bulk(&mut batch);
                queue.refill();
            }
        }
        frames
    }

    /// Runs until nothing moves: all packets are announced, completed and reclaimed.
    pub(crate) fn settle(&mut self) {
        for _ in 0..4 {
            self.kick();
            self.model.settle();
            for port in &mut self.ports {
                for tx in &mut port.tx {
                    tx.reclaim();
                    tx.reclaim();
                }
            }
        }
    }

    /// Asserts that no rule was violated.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        if let Some(violation) = self.model.violation() {
            panic!("{violation}");
        }
        if let Some(violation) = self.model.iommu().violations().first() {
            panic!("{violation}");
        }
    }

    /// After the end: asserts that all channels stopped in order, all descriptors are free, and the
    /// device has nothing.
    #[track_caller]
    pub(crate) fn assert_all_free(&self) {
        assert!(self.ports.is_empty());
        for stop in self.control.stops() {
            assert!(stop.orderly, "{stop:?}");
            assert_eq!(stop.free, stop.descriptors, "{stop:?}");
            assert!(stop.refusals.is_empty(), "{stop:?}");
        }
        assert_eq!(self.model.owned_descriptors(), 0);
        assert_eq!(self.model.in_flight(), 0);
        self.assert_clean();
    }

    /// Asserts that all buffers are in the pool; consumes the rig.
    #[track_caller]
    pub(crate) fn assert_no_leak(self) {
        let pool = self.pool.clone();
        drop(self);
        let stats = pool.stats();
        assert_eq!(stats.free, stats.capacity, "buffers are missing");
    }
}

impl Drop for Rig {
    /// The device runs while the driver waits for it.
    fn drop(&mut self) {
        (1..=8).for_each(|port| self.model.stall(port, false));
        self.model.set_steps_per_read(4);
        self.ports.clear();
    }
}

fn start(model: &Cpsw, firmware: &Arc<Firmware>, config: Config, pool: &Pool) -> (Vec<StartedPort>, Control<CpswBus>) {
    let calls: Arc<dyn Tisci> = firmware.clone();
    let (ports, control) = open(model.bus(), calls, config).unwrap();
    let started = ports.into_iter().map(|port| {
        let queues = port.info().max_queues;
        let Queues { rx, tx } = port.start(Start { pool: pool.clone(), queues, accept: Offloads::ALL }).unwrap();
        StartedPort { rx, tx }
    });
    (started.collect(), control)
}

/// A frame that holds its port, its number, its length, and bytes that follow from port and number.
pub(crate) fn stamp(port: u8, number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(60)];
    frame[..6].fill(2);
    frame[6..12].fill(4 + port);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14] = port;
    frame[15..19].copy_from_slice(&number.to_be_bytes());
    let len = frame.len() as u32;
    frame[19..23].copy_from_slice(&len.to_be_bytes());
    let mut state = number.wrapping_mul(2_654_435_761) ^ u32::from(port);
    for byte in &mut frame[23..] {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    frame
}

/// Asserts that the frames are those of `port`, from number `first` on: none is missing, duplicate
/// or changed.
#[track_caller]
pub(crate) fn assert_stamps(frames: &[Vec<u8>], port: u8, first: u32) {
    for (number, frame) in (first..).zip(frames) {
        let len = u32::from_be_bytes(frame[19..23].try_into().unwrap()) as usize;
        let is = u32::from_be_bytes(frame[15..19].try_into().unwrap());
        assert_eq!((frame[14], is, frame.len()), (port, number, len), "frame {number} of port {port}");
        assert_eq!(frame, &stamp(port, number, len), "bytes of frame {number} of port {port}");
    }
}
