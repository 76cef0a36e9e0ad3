//! Intel 82574L, 82574LA and 82583V (`e1000e` in Linux and QEMU), after the 82574 GbE Controller Family Datasheet.
//!
//! ```text
//!   E1000e::open ── reset, address, abilities ──► Info        start ── rings, buffers, enable ──► queues
//!
//!   E1000eRx ─ queue ─ RxCore: ring │ slots │ DmaMapper ─┐         ┌─ Control    copybreak, link, faults
//!                                                     ├─ Device ┤
//!   E1000eTx ─ queue ─ TxCore: ring │ slots │ DmaMapper ─┘         └─ reset that all queues agree on, end
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `regs`, `descriptors` | what the device understands |
//! | `init` | reset and bring-up, step by step |
//! | `rx`, `tx` | rings and buffers: what happens per packet |
//! | `offload`, `tag` | checksums, segmentation and VLAN tags in its terms |
//! | `queue` | the port traits, and what is looked at now and then (`watch`) |
//! | `device` | what queues share: reset, end |
//! | `memory`, `slots` | descriptors that both sides write, and what only we know of them |
//!
//! Invariants:
//!
//! * **Per packet** there is no register read, lock, allocation or system call; a burst costs one register write in each direction.
//! * **What the device says is bounded and looked up.** It names no buffer: the driver knows by position which one a descriptor has. A length
//!   is cut to the buffer, a frame ends after a bounded number of descriptors, and a descriptor is loaded once. What cannot be is counted
//!   by name in [`Faults`].
//! * **A mapping is live or absent.** A buffer goes to the packet's next owner after it was unmapped and the domain has
//!   [settled](towpath_bus::DmaMapper::sync_iotlb), or by a copy.
//! * **Recovery is bounded.** A device that does not send is reset; one that does not come back, or hangs again and again, is given
//!   up, and its queues say [`State::Gone`](towpath_packet::port::State::Gone).
//! * **The end is orderly.** The last queue that is dropped stops the device; when that was seen, buffers, rings and domain go, in this
//!   order. If it can't be seen, what the device could reach is leaked, and counted.

mod config;
mod control;
mod descriptors;
mod device;
#[cfg(test)]
mod fake;
mod init;
mod memory;
mod offload;
mod queue;
mod regs;
mod rx;
mod slots;
mod tag;
mod tx;
mod watch;

pub use config::{Config, ConfigError, Copybreak, Filter, RingSize};
#[doc(hidden)]
pub use config::{Pauses, RecycleMode};
pub use control::{Control, Faults, Link};
pub use queue::{E1000eRx, E1000eTx};
pub use rx::RxCounts;

use control::Log;
use device::Device;
use init::{BufferSize, Layout, Place};
use memory::{OwnPoolError, Ring};
use queue::RxMake;
use rx::{RxCore, RxParts};
use std::borrow::Cow;
use std::sync::Arc;
use towpath_bus::{BusError, Dma, DmaMapper, DmaPolicy, Domain, MapError, Pci};
use towpath_packet::port::{Ability, Info, Layer, Port, PortControl, PortError, Queues, Start};
use towpath_packet::{Backing, Cache, Direction, Floors, Offloads, Pool, PoolConfig, Region};
use tx::{TxCore, TxParts};

/// Intel's number, and the devices that this driver knows (82574 datasheet §9.2.2; 82583V §9.2.2).
const INTEL: u32 = 0x8086;
const CHIPS: [(u32, Chip); 3] = [
    (0x10d3, Chip { name: "82574L", queues: 2 }),
    (0x10f6, Chip { name: "82574LA", queues: 2 }),
    (0x150c, Chip { name: "82583V", queues: 1 }),
];

/// What the first word of a configuration space holds where this driver knows the device.
pub const DEVICES: [u32; CHIPS.len()] = [CHIPS[0].0 << 16 | INTEL, CHIPS[1].0 << 16 | INTEL, CHIPS[2].0 << 16 | INTEL];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chip {
    name: &'static str,
    queues: u16,
}

/// A device that was reset and looked at, but moves nothing yet.
pub struct E1000e<B: Pci> {
    opened: Opened<B>,
    info: Info,
    config: Config,
    chip: Chip,
    mac: [u8; 6],
    control: Control,
}

/// The device and its registers; stopped when it is dropped, unless it was started.
struct Opened<B: Pci> {
    parts: Option<(B, B::Bar)>,
    config: Config,
}

impl<B: Pci> Drop for Opened<B> {
    fn drop(&mut self) {
        if let Some((bus, bar)) = &self.parts {
            device::stop(bus, bar, &self.config);
        }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option breaks a rule.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The bus, or the device, refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Memory can't be used as the policy asks.
    #[error("{device}: {source}")]
    Map {
        /// The device, as it was named.
        device: String,
        /// Why.
        source: MapError,
    },
}

impl<B: Pci> E1000e<B> {
    /// Resets the device behind `bus` and looks at it. `name` is the port's address, as [`Info::name`] will have it.
    ///
    /// # Errors
    /// [`OpenError`]: an option breaks a rule, the device is none of those that this driver knows, it does not answer, or the bus can't
    /// protect memory as the policy asks.
    pub fn open(bus: B, name: &str, config: Config) -> Result<E1000e<B>, OpenError> {
        config.check()?;
        let id = bus.config_r32(0);
        let chip = CHIPS.iter().find(|(device, _)| id == device << 16 | INTEL).map(|(_, chip)| *chip);
        let chip = chip.ok_or_else(|| BusError::Device {
            device: bus.name().to_owned(),
            what: format!("{:04x}:{:04x} is no 82574L, 82574LA or 82583V", id & 0xffff, id >> 16),
        })?;
        if config.queues > chip.queues {
            let rule = format!("must be at most {} on a {}", chip.queues, chip.name);
            return Err(ConfigError { option: "queues", value: config.queues.to_string(), rule }.into());
        }
        let at = |source| OpenError::Map { device: bus.name().to_owned(), source };
        Domain::new(bus.dma().clone(), config.policy).map_err(at)?;
        let reaches_us = reaches_us(&bus);
        let bar = bus.bar(0, regs::BAR_LEN)?;
        // §4.6.1: registers are decoded. Memory may be accessed only once the rings are ours: where a driver was killed the device
        // may still know its rings, and those addresses mean something else by now.
        bus.set_master(false);
        let device = bus.name().to_owned();
        let opened = Opened { parts: Some((bus, bar.clone())), config: config.clone() };
        init::reset(&bar, &config).map_err(|source| BusError::Timeout {
            device: device.clone(),
            step: "reset",
            source,
        })?;
        let mac = init::address(&bar).ok_or_else(|| BusError::Device {
            device,
            what: "it has no Ethernet address (its NVM is empty or damaged)".to_owned(),
        })?;
        let control = Control::new(&config);
        let info = info(name, &config, chip, control.copybreak(), reaches_us);
        Ok(E1000e { opened, info, chip, mac, control, config })
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// A handle that works while the port runs, from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }
}

/// Whether the device can reach memory that the bus did not give out, such as a page of this process.
fn reaches_us<B: Pci>(bus: &B) -> bool {
    Region::new(1, Backing::Anonymous).is_ok_and(|page| bus.dma().reaches(page.base(), page.len()))
}

fn offloads(config: &Config) -> Offloads {
    let add = |to: Offloads, on: bool, what| if on { to.with(what) } else { to };
    let csum = add(Offloads::NONE, config.csum, Offloads::CSUM);
    let tso = add(csum, config.csum && config.tso, Offloads::TSO4.with(Offloads::TSO6));
    add(tso, config.vlan, Offloads::VLAN)
}

fn info(name: &str, config: &Config, chip: Chip, copybreak: u32, reaches_us: bool) -> Info {
    let ability = |name, on, why: Cow<'static, str>| Ability::new(name, on, why);
    let chosen = |on: bool| if on { "by the device" } else { "switched off" };
    let protection = match config.policy {
        DmaPolicy::Persistent => "persistent: all packet memory is mapped",
        DmaPolicy::PerBuffer { flush: towpath_bus::Flush::Strict } => {
            "strict: a buffer is out of reach before it is read"
        }
        DmaPolicy::PerBuffer { .. } => "deferred: a buffer is out of reach some time after it was handed on",
    };
    let zero_copy = if reaches_us {
        "the device reads and writes packet memory"
    } else {
        "the device reaches only memory of its bus: a pool of its own, and a copy of every packet sent, unless packets lie there"
    };
    let wait = if config.interrupts { "MSI-X, unmasked when a queue is idle" } else { "queues are looked at" };
    let rx_offloads = if config.vlan { Offloads::VLAN } else { Offloads::NONE };
    let abilities = vec![
        ability("chip", true, chip.name.into()),
        ability("csum", config.csum, chosen(config.csum).into()),
        ability("tso", config.csum && config.tso, chosen(config.csum && config.tso).into()),
        ability("vlan", config.vlan, chosen(config.vlan).into()),
        ability("zerocopy", reaches_us, zero_copy.into()),
        // Choices, none of which is a lack.
        ability("policy", true, protection.into()),
        ability("copybreak", true, format!("frames below {copybreak} bytes are copied").into()),
        ability("interrupts", true, wait.into()),
    ];
    // A packet of more pieces than descriptors may have is linearized by a copy.
    Info::new(name, Layer::Ethernet, config.mtu.into())
        .with_offloads(offloads(config), rx_offloads)
        .with_max_queues(config.queues)
        .with_abilities(abilities)
}

/// The parts of a start, each of which may fail.
struct Starter<'a, B: Pci> {
    port: &'a str,
    config: &'a Config,
    domain: Domain<B::Dma>,
    pool: Pool,
    own: Option<Pool>,
}

impl<B: Pci> Starter<'_, B> {
    fn map_error(&self, source: MapError) -> PortError {
        PortError::Input { port: self.port.to_owned(), what: source.to_string() }
    }

    fn cache(&self, pool: &Pool, direction: Direction) -> Result<Cache, PortError> {
        pool.cache(direction).map_err(|source| PortError::Pool { port: self.port.to_owned(), source })
    }

    /// A pool in the device's reach, for memory of the datapath that is not: buffers for both rings, and as many on their way.
    fn make_own(&mut self, queues: u16) -> Result<(), PortError> {
        let (rx, tx) = (self.config.rx_ring.get() as usize, self.config.tx_ring.get() as usize);
        let queues = usize::from(queues);
        let config = PoolConfig {
            capacity: queues * (2 * rx + tx + 512),
            chunk: self.pool.chunk(),
            headroom: self.pool.headroom(),
            floors: Floors { rx: 0, tx: queues * tx / 2 },
            ..PoolConfig::default()
        };
        let own = memory::own_pool(&self.domain, config).map_err(|error| match error {
            OwnPoolError::Map(source) => self.map_error(source),
            OwnPoolError::Pool(source) => PortError::Pool { port: self.port.to_owned(), source },
        })?;
        self.own = Some(own);
        Ok(())
    }

    /// Where the device's buffers come from.
    fn buffers(&self) -> &Pool {
        self.own.as_ref().unwrap_or(&self.pool)
    }

    fn mapper(&self, buffers: u32, bytes: usize) -> Result<DmaMapper<B::Dma>, PortError> {
        DmaMapper::new(&self.domain, buffers, bytes).map_err(|source| self.map_error(source))
    }

    fn rx(&self, queue: u16, buffer: BufferSize, log: Log) -> Result<RxCore<B::Dma>, PortError> {
        let buffers = self.buffers();
        let parts = RxParts {
            ring: Ring::new(&self.domain, self.config.rx_ring.get()).map_err(|source| self.map_error(source))?,
            mapper: self.mapper(self.config.rx_ring.get(), buffers.chunk())?,
            buffers: self.cache(buffers, Direction::Rx)?,
            copies: self.own.as_ref().map(|_| self.cache(&self.pool, Direction::Rx)).transpose()?,
            buffer_size: buffer.bytes,
        };
        Ok(RxCore::new(parts, self.config, queue as u8, log))
    }

    fn tx(&self, log: Log) -> Result<TxCore<B::Dma>, PortError> {
        let buffers = self.buffers();
        let parts = TxParts {
            ring: Ring::new(&self.domain, self.config.tx_ring.get()).map_err(|source| self.map_error(source))?,
            // Pieces of other ports' packets may be longer than chunks of this pool; the usual ones are not, and others are copied.
            mapper: self.mapper(self.config.tx_ring.get(), buffers.chunk().max(4096))?,
            cache: self.cache(buffers, Direction::Tx)?,
            copy_all: self.own.is_some(),
        };
        Ok(TxCore::new(parts, self.config, log))
    }
}

impl<B: Pci> Port for E1000e<B> {
    type Rx = E1000eRx<B>;
    type Tx = E1000eTx<B>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(self.control.clone()))
    }

    fn start(self, start: Start) -> Result<Queues<E1000eRx<B>, E1000eTx<B>>, PortError> {
        let E1000e { mut opened, info, config, chip, mac, control } = self;
        let port = info.name.as_str();
        let input = |what: String| PortError::Input { port: port.to_owned(), what };
        info.queues(start.queues)?;
        let gone = || input("the device was closed".to_owned());
        let (bus, _) = opened.parts.as_ref().ok_or_else(gone)?;
        let domain = Domain::new(bus.dma().clone(), config.policy).map_err(|e| input(e.to_string()))?;
        let mut starter = Starter::<B> { port, config: &config, domain, pool: start.pool, own: None };
        let reached = match starter.pool.region() {
            Some(region) => match starter.domain.register(region) {
                Ok(()) => true,
                Err(MapError::Foreign) => false,
                Err(error) => return Err(input(error.to_string())),
            },
            None => false,
        };
        if !reached {
            starter.make_own(start.queues)?;
        }
        let room = starter.buffers().chunk() - starter.buffers().headroom();
        let buffer = BufferSize::for_room(room, config.is_jumbo()).ok_or_else(|| {
            input(format!(
                "its buffers have room for {room} bytes, and the device's smallest is 256: use larger chunks"
            ))
        })?;
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for queue in 0..start.queues {
            let (rx_log, tx_log) = (Log::new(&control), Log::new(&control));
            rx.push((starter.rx(queue, buffer, rx_log.clone())?, rx_log.counters));
            tx.push((starter.tx(tx_log.clone())?, tx_log.counters));
        }
        let vectors = if config.interrupts { start.queues } else { 0 };
        let irqs = bus.irqs(vectors).map_err(|e| bus_error(port, e))?;
        let layout = Layout {
            rx: rx.iter().map(|(core, _)| Place::from(core.ring())).collect(),
            tx: tx.iter().map(|(core, _)| Place::from(core.ring())).collect(),
            buffer,
            rss: chip.queues > 1,
            mac,
        };
        let Starter { domain, own, .. } = starter;
        // From here on the queues stop the device when they end.
        let (bus, bar) = opened.parts.take().ok_or_else(gone)?;
        bus.set_master(true);
        init::program(&bar, &config, &layout);
        let device = Arc::new(Device::new(bus, bar, domain, config.clone(), layout, control));
        device.look();
        let tags = start.accept.has(Offloads::VLAN);
        let mut irqs = irqs.into_iter();
        let rx = (0..).zip(rx).map(|(number, (core, counters))| {
            let make = RxMake { core, number, counters, tags, irq: irqs.next(), own_pool: own.clone() };
            E1000eRx::new(device.clone(), make)
        });
        let rx = rx.collect();
        let tx = (0..)
            .zip(tx)
            .map(|(number, (core, counters))| E1000eTx::new(device.clone(), core, number, counters, offloads(&config)));
        Ok(Queues { rx, tx: tx.collect() })
    }
}

impl<B: Pci> std::fmt::Debug for E1000e<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000e").field("info", &self.info).field("chip", &self.chip).finish()
    }
}

/// What a bus says, as a port says it.
fn bus_error(port: &str, error: BusError) -> PortError {
    let port = port.to_owned();
    match error {
        BusError::Os { step, source, hint, .. } => PortError::Os { port, step, source, hint },
        other => PortError::Input { port, what: other.to_string() },
    }
}

impl OpenError {
    /// The same as the port of that name says it.
    pub fn at_port(self, port: &str) -> PortError {
        match self {
            OpenError::Config(ConfigError { option, value, rule }) => {
                PortError::Option { port: port.to_owned(), option: option.to_owned(), value, rule }
            }
            OpenError::Bus(error) => bus_error(port, error),
            OpenError::Map { source, .. } => PortError::Input { port: port.to_owned(), what: source.to_string() },
        }
    }
}

#[cfg(test)]
mod tests;
