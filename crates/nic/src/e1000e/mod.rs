//! Intel 82574L, 82574LA and 82583V (`e1000e` in Linux and QEMU), after the
//! [82574 GbE Controller Family Datasheet][datasheet].
//!
//! [datasheet]: https://www.intel.com/content/dam/doc/datasheet/82574l-gbe-controller-datasheet.pdf
//!
//! ```text
//!  E1000e::open ── reset, address, abilities ──► Info     start ── rings, buffers ──► queues
//!
//!  E1000eRx ─ RxRing: DescRing │ Slots │ DmaMapper ─┐         ┌─ Control     link, faults
//!                                                   ├─ Device ┤
//!  E1000eTx ─ TxRing: DescRing │ Slots │ DmaMapper ─┘         └─ ResetGroup  agreed reset, end
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `regs`, `descriptors` | the formats of the device |
//! | `init` | reset and bring-up, step by step |
//! | `interrupts` | kinds of interrupts, what a sleeping worker waits for |
//! | `phy` | the PHY: its semaphore, power, negotiation, flow control |
//! | `filter` | addresses, groups and VLANs in the device's registers, changed while it runs |
//! | `rx/`, `tx/` | a queue in each direction: its ring, what happens per packet, the port trait |
//! | `offload` | checksums, segmentation and VLAN tags |
//! | `device` | what queues share: status, statistics, reset, stop |
//! | `control` | the handle to a running port, and its fault counters |
//! | `dump` | the registers, for a report |
//! | `config` | options and their rules |
//! | `fake` | for tests: registers without behaviour |
//!
//! What the chips need beyond their datasheet, and the source of each rule: `docs/errata.md`.
//!
//! Invariants:
//!
//! * **Per packet** there is no register read, lock, allocation or system call. A burst costs one
//!   register write in each direction.
//! * **Every word of the device is checked.** The device names no buffer: the driver finds the
//!   buffer of a descriptor by position. A length is cut to the buffer, a frame ends after a
//!   bounded number of descriptors, and a descriptor is loaded once. Impossible values are counted
//!   by name in [`Faults`].
//! * **A mapping is live or absent.** A buffer goes to the packet's next owner by a copy, or after
//!   it was unmapped and [`sync_iotlb`](towpath_bus::DmaMapper::sync_iotlb) has flushed the IOTLB.
//! * **Recovery is bounded.** A device that does not send is reset. A lost link, whose frames the
//!   device never sends, is a reset as well, but no fault. A device that does not answer, or hangs
//!   again and again, has its function reset by the bus, and is given up if that does not help: its
//!   queues are [`State::Gone`](towpath_packet::port::State::Gone).
//! * **A device that is taken away is closed at once.** The request of the system, or registers and
//!   configuration space that no longer answer, end the port by name. The watchdog looks for both,
//!   and they wake a worker that waits for interrupts. After an error of the bus the function is
//!   reset first.
//! * **The end is orderly.** The last queue that is dropped stops the device. If the device is seen
//!   idle, buffers, rings and domain are freed in this order. Otherwise all that the device could
//!   reach is leaked and counted.

mod config;
mod control;
mod descriptors;
mod device;
mod dump;
#[cfg(test)]
mod fake;
mod filter;
mod init;
mod interrupts;
mod offload;
mod phy;
mod regs;
mod rx;
mod tx;

pub use crate::common::copybreak::{Copybreak, RxCounts};
pub use crate::common::error::OpenError;
pub use crate::common::filter::{Filter, Receive, VlanSet};
pub use crate::common::link::LinkStatus;
pub use crate::common::phy::FlowControl;
pub use config::{Config, ConfigError, InterruptMode, RingSize, TxCopybreak};
#[doc(hidden)]
pub use config::{Pauses, RecycleMode};
pub use control::{Control, Faults};
pub use dump::registers;
pub use rx::E1000eRx;
pub use tx::E1000eTx;

use crate::common::error::{StartError, bus_error, input, os_error};
use crate::common::memory::DeviceMemory;
use crate::common::ring::DescRing;
use crate::common::settings::Follow;
use config::TX_SLOT;
use control::FaultLog;
use device::Device;
use filter::FilterTables;
use init::{BufferSize, Layout, RingBase};
use interrupts::Interrupts;
use rx::{RxParts, RxRing};
use std::borrow::Cow;
use std::sync::{Arc, Weak};
use towpath_bus::{BusError, Dma, DmaPolicy, Domain, IrqKind, Pci};
use towpath_packet::port::{Ability, Info, Layer, Needs, Port, PortControl, PortError, Queues, Spacing, Start};
use towpath_packet::{Backing, Direction, Offloads, Region};
use tx::{TxParts, TxRing};

/// Intel's vendor ID, and the devices that this driver supports (82574 datasheet §9.2.2; 82583V
/// §9.2.2).
const INTEL: u32 = 0x8086;
const CHIPS: [(u32, Chip); 3] = [
    (0x10d3, Chip { name: "82574L", queues: 2 }),
    (0x10f6, Chip { name: "82574LA", queues: 2 }),
    (0x150c, Chip { name: "82583V", queues: 1 }),
];

/// Device and vendor ID of the devices that this driver supports: the first word of their
/// configuration space.
pub const DEVICES: [u32; CHIPS.len()] = [CHIPS[0].0 << 16 | INTEL, CHIPS[1].0 << 16 | INTEL, CHIPS[2].0 << 16 | INTEL];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chip {
    name: &'static str,
    queues: u16,
}

/// A device that was reset, and moves no packets before it is started.
pub struct E1000e<B: Pci> {
    opened: Opened<B>,
    info: Info,
    config: Config,
    chip: Chip,
    control: Control,
    needs: Needs,
}

/// The device and its registers. Unless the device was started, dropping this stops it.
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

impl<B: Pci> E1000e<B> {
    /// With what its bus needs of the kernel while the port runs.
    #[must_use]
    pub fn with_needs(self, needs: Needs) -> E1000e<B> {
        E1000e { needs, ..self }
    }

    /// Adds an ability of its bus.
    #[must_use]
    pub fn with_ability(mut self, ability: Ability) -> E1000e<B> {
        self.info.abilities.push(ability);
        self
    }

    /// Resets the device behind `bus` and reads its address. `name` becomes [`Info::name`].
    ///
    /// # Errors
    /// [`OpenError`]: an option breaks a rule, the driver does not support the device, the device
    /// does not answer, or the bus can't protect memory by the policy.
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
        let irq_kind = interrupts::choose(&bus, &config, config.queues)?;
        let at = |source| OpenError::Map { device: bus.name().to_owned(), source };
        Domain::new(bus.dma().clone(), config.policy).map_err(at)?;
        let reaches_heap = reaches_heap(&bus);
        let bar = bus.bar(0, regs::BAR_LEN)?;
        // §4.6.1: registers are decoded. Bus mastering is enabled only when the rings are
        // programmed: a device whose driver was killed may still use the old rings, at addresses
        // that have another meaning now.
        bus.set_master(false);
        let device = bus.name().to_owned();
        let opened = Opened { parts: Some((bus, bar.clone())), config: config.clone() };
        init::free_semaphore(&bar);
        init::reset(&bar, &config).map_err(|source| BusError::Timeout {
            device: device.clone(),
            step: "reset",
            source,
        })?;
        let status = regs::STATUS.read(&bar);
        if !init::answers(&bar, status) {
            return Err(BusError::device(device, format!("it does not answer: its status reads as {status:#x}")).into());
        }
        let mac = init::mac_address(&bar).ok_or_else(|| BusError::Device {
            device,
            what: "it has no Ethernet address (its NVM is empty or damaged)".to_owned(),
        })?;
        let control = Control::new(&config);
        control.set_device_mac(mac);
        let info = info(name, &config, chip, &control, reaches_heap, irq_kind);
        Ok(E1000e { opened, info, chip, control, config, needs: Needs::none() })
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.control.mac()
    }

    /// A handle that works from any thread while the port runs.
    pub fn control(&self) -> Control {
        self.control.clone()
    }
}

/// Whether the device can reach memory that the bus did not allocate, like a page of this process.
fn reaches_heap<B: Pci>(bus: &B) -> bool {
    Region::new(1, Backing::Anonymous).is_ok_and(|page| bus.dma().reaches(page.base(), page.len()))
}

fn offloads(config: &Config) -> Offloads {
    let add = |to: Offloads, on: bool, what| if on { to.with(what) } else { to };
    let csum = add(Offloads::NONE, config.csum, Offloads::CSUM);
    let tso = add(csum, config.csum && config.tso, Offloads::TSO4.with(Offloads::TSO6));
    add(tso, config.vlan, Offloads::VLAN)
}

fn info(
    name: &str,
    config: &Config,
    chip: Chip,
    control: &Control,
    reaches_heap: bool,
    irq_kind: Option<IrqKind>,
) -> Info {
    let ability = |name, on, why: Cow<'static, str>| Ability::new(name, on, why);
    let chosen = |on: bool| if on { "by the device" } else { "switched off" };
    let protection = match config.policy {
        DmaPolicy::Persistent => "persistent: all packet memory is mapped",
        DmaPolicy::PerBuffer { flush: towpath_bus::Flush::Strict } => {
            "strict: a buffer is out of reach before it is read"
        }
        DmaPolicy::PerBuffer { .. } => "deferred: a buffer is out of reach some time after it was delivered",
    };
    let zero_copy = if reaches_heap {
        "the device reads and writes packet memory"
    } else {
        "the device reaches only memory of its bus: a pool of its own, and a copy of every packet sent, unless packets lie there"
    };
    let wait = match irq_kind {
        Some(kind) => format!("{}, unmasked when a queue is idle", kind.name()),
        None => "queues are polled".to_owned(),
    };
    let pauses = match config.flow_control {
        FlowControl::Full => "full: pause frames are offered, to wait and to ask for it",
        FlowControl::Rx => "rx: the port waits if its partner asks for it",
        FlowControl::Tx => "tx: the port asks its partner to wait",
        FlowControl::Off => "off",
    };
    let copybreak = control.copybreak();
    let tx_copies = match control.tx_copybreak() {
        0 => "sent frames are not copied".into(),
        below => format!("frames below {below} bytes are copied to be sent, instead of mapped").into(),
    };
    let rx_offloads = if config.vlan { Offloads::VLAN } else { Offloads::NONE };
    let abilities = vec![
        ability("chip", true, chip.name.into()),
        ability("csum", config.csum, chosen(config.csum).into()),
        ability("tso", config.csum && config.tso, chosen(config.csum && config.tso).into()),
        ability("vlan", config.vlan, chosen(config.vlan).into()),
        ability("zerocopy", reaches_heap, zero_copy.into()),
        // Settings: each value is a complete ability.
        ability("policy", true, protection.into()),
        ability("copybreak", true, format!("frames below {copybreak} bytes are copied").into()),
        ability("tx-copybreak", true, tx_copies),
        ability("interrupts", true, wait.into()),
        ability("pause", true, pauses.into()),
    ];
    // A copy gathers packets with more pieces than the descriptors of a frame.
    Info::new(name, Layer::Ethernet, config.mtu.into())
        .with_offloads(offloads(config), rx_offloads)
        .with_max_queues(config.queues)
        .with_spacing(Spacing::InPages)
        .with_abilities(abilities)
}

/// Makes the rings of a port; each step may fail.
struct Starter<'a, B: Pci> {
    config: &'a Config,
    memory: DeviceMemory<B::Dma>,
}

impl<B: Pci> Starter<'_, B> {
    fn rx(&self, queue: u16, buffer: BufferSize, log: FaultLog) -> Result<RxRing<B::Dma>, StartError> {
        let (memory, size) = (&self.memory, self.config.rx_ring.get());
        let parts = RxParts {
            ring: DescRing::new(&memory.domain, size)?,
            mapper: memory.mapper(size, 0)?,
            cache: memory.cache(Direction::Rx)?,
            copy_cache: memory.copy_cache()?,
            buffer_size: buffer.bytes,
        };
        Ok(RxRing::new(parts, self.config, queue as u8, log))
    }

    fn tx(&self, queues: u16, log: FaultLog) -> Result<TxRing<B::Dma>, StartError> {
        let memory = &self.memory;
        let descriptors = self.config.tx_ring.get();
        // Pieces of a packet that lie side by side are mapped as one.
        let mut mapper = memory.mapper(descriptors, tx::RUN)?;
        if self.config.has_bounce() {
            mapper.reserve_bounce(descriptors, TX_SLOT)?;
        }
        let parts = TxParts {
            ring: DescRing::new(&memory.domain, descriptors)?,
            mapper,
            cache: memory.cache(Direction::Tx)?,
            copy_all: memory.out_of_reach().is_some(),
            shares_context: queues > 1,
        };
        Ok(TxRing::new(parts, self.config, log))
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

    fn needs(&self) -> Needs {
        self.needs.clone()
    }

    fn start(self, start: Start) -> Result<Queues<E1000eRx<B>, E1000eTx<B>>, PortError> {
        let E1000e { mut opened, info, config, chip, control, .. } = self;
        let (config, mac) = control.current(&config);
        let port = info.name.as_str();
        let failed = |error: StartError| error.at_port(port);
        info.queues(start.queues)?;
        let closed = || input(port, "the device was closed");
        let (bus, bar) = opened.parts.as_ref().ok_or_else(closed)?;
        let domain = Domain::new(bus.dma().clone(), config.policy).map_err(|error| input(port, error))?;
        // Buffers for both rings, and as many on their way.
        let (rx, tx) = (config.rx_ring.get() as usize, config.tx_ring.get() as usize);
        let queues = usize::from(start.queues);
        let memory = DeviceMemory::new(domain, start.pool, queues * (2 * rx + tx + 512), queues * tx / 2);
        let starter = Starter::<B> { config: &config, memory: memory.map_err(failed)? };
        let room = starter.memory.room();
        let buffer = BufferSize::for_room(room, config.is_jumbo()).ok_or_else(|| {
            let rule = "the device's smallest is 256: use larger chunks";
            input(port, format!("its buffers have room for {room} bytes, and {rule}"))
        })?;
        let (mut rx, mut tx) = (Vec::new(), Vec::new());
        for queue in 0..start.queues {
            let (rx_log, tx_log) = (FaultLog::new(&control), FaultLog::new(&control));
            rx.push((starter.rx(queue, buffer, rx_log.clone()).map_err(failed)?, rx_log.counters));
            tx.push((starter.tx(start.queues, tx_log.clone()).map_err(failed)?, tx_log.counters));
        }
        let kind = interrupts::choose(bus, &config, start.queues).map_err(|e| OpenError::from(e).at_port(port))?;
        let interrupts = Interrupts::connect(bus, bar, &config, kind, start.queues).map_err(|e| bus_error(port, e))?;
        let waits = (0..u32::from(start.queues)).map(|queue| interrupts.wait_set(queue)).collect::<Result<Vec<_>, _>>();
        let mut waits = waits.map_err(|source| os_error(port, "epoll", source))?.into_iter();
        let layout = Layout {
            rx: rx.iter().map(|(ring, _)| RingBase::from(ring.descriptors())).collect(),
            tx: tx.iter().map(|(ring, _)| RingBase::from(ring.descriptors())).collect(),
            buffer,
            room,
            mtu: config.mtu,
            rss: chip.queues > 1,
            filters: FilterTables::new(&config.filter, mac, &init::firmware_addresses(bar)),
        };
        let (domain, own) = starter.memory.into_parts();
        // Before bus mastering: an error ends here, and the device accesses no memory.
        phy::bring_up(bar, &config).map_err(|error| input(port, error))?;
        // From here on the end of the queues stops the device.
        let (bus, bar) = opened.parts.take().ok_or_else(closed)?;
        let device = Arc::new(Device::new(bus, bar, domain, config.clone(), layout, control, interrupts));
        device.program();
        let weak: Weak<Device<B>> = Arc::downgrade(&device);
        device.control.attach(weak);
        // Settings may have changed since they were read.
        device.follow();
        device.check_link();
        let keep_tags = start.accept.has(Offloads::VLAN);
        let rx = (0..).zip(rx).map(|(number, (ring, counters))| {
            E1000eRx::new(device.clone(), ring, number, counters, keep_tags, waits.next().flatten(), own.clone())
        });
        let rx = rx.collect();
        let tx = (0..)
            .zip(tx)
            .map(|(number, (ring, counters))| E1000eTx::new(device.clone(), ring, number, counters, offloads(&config)));
        Ok(Queues { rx, tx: tx.collect() })
    }
}

impl<B: Pci> std::fmt::Debug for E1000e<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000e").field("info", &self.info).field("chip", &self.chip).finish()
    }
}

#[cfg(test)]
mod tests;
