//! Network devices of virtio, from the driver's side, after [virtio 1.2][spec] §5.1.
//!
//! [spec]: https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html
//!
//! ```text
//!  VirtioNet::open ── features, address ──► Info      start ── rings, buffers ──► queues
//!
//!  VirtioRx ─ RxRing: Driver │ slots │ DmaMapper ─┐         ┌─ Control     link, faults
//!                                                 ├─ Device ┤
//!  VirtioTx ─ TxRing: Driver │ slots │ DmaMapper ─┘         ├─ ResetGroup  agreed reset, end
//!                                                           └─ Transport ─┬─ PCI, over any bus
//!                                                                         ├─ vhost-user
//!                                                                         └─ vhost-net
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `transport` | [`Transport`]: what the driver needs of a device |
//! | `user/` | [`UserTransport`]: a back end in another process, by vhost-user |
//! | `vhost_net/` | [`VhostNetTransport`]: the kernel, between the rings and a tap |
//! | `pci/` | [`PciTransport`]: a PCI function, over any bus |
//! | `features` | feature bits, and what they mean for packets |
//! | `memory` | the memory of all rings |
//! | `rx/`, `tx/` | a queue in each direction: its ring, what happens per packet, the port trait |
//! | `command` | the control queue |
//! | `hashing` | the hash that spreads packets over queues, and comes with them |
//! | `device` | what queues share: condition, reset, stop |
//! | `control` | the handle to a running port, and its fault counters |
//! | `config` | options and their rules |
//!
//! Invariants:
//!
//! * **Per packet** there is no lock, allocation or system call. A burst costs one store that the
//!   device waits for, and a kick only if the device asks for it.
//! * **Every word of the device is checked.** Ids and lengths are bounded by
//!   [`towpath_virtio::Driver`]; a header is checked against its packet and against what was
//!   negotiated. Impossible values are counted by name.
//! * **Recovery is bounded.** A PCI device that breaks a ring, asks for a reset or does not send is
//!   reset, and given up after several resets without progress. A back end that breaks a ring loses
//!   its connection; the port looks for the next one from time to time.
//! * **The end is orderly.** The last queue that is dropped stops the device. If it is seen idle,
//!   buffers, rings and domain are freed in this order. Otherwise all that the device could reach
//!   is leaked and counted.

mod command;
mod config;
mod control;
mod device;
mod features;
mod hashing;
mod memory;
mod pci;
mod rx;
mod transport;
mod tx;
mod user;
mod vhost_net;

pub use crate::common::copybreak::{Copybreak, RxCounts};
pub use crate::common::error::OpenError;
pub use crate::common::filter::{Filter, Receive, VlanSet};
pub use config::{Config, ConfigError};
pub use control::{Control, Faults};
pub use pci::{DEVICES, PciConfig, PciTransport};
pub use rx::VirtioRx;
pub use transport::{Condition, Peer, QueueSetup, Transport};
pub use tx::VirtioTx;
pub use user::{UserConfig, UserDma, UserTransport};
pub use vhost_net::{Tap, VhostNetDma, VhostNetFiles, VhostNetTransport};

use crate::common::error::{StartError, bus_error, input, os_error};
use crate::common::memory::DeviceMemory;
use crate::common::settings::Follow;
use command::Commands;
use device::{Device, Setup};
use features::{CTRL_VQ, HASH_REPORT, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, RSS, VERSION_1};
use hashing::Hashing;
use memory::{QueueMemory, QueuePlan, RingMemory, RingsError};
use rx::{RxChains, RxParts, RxRing, RxRules};
use std::sync::{Arc, Weak};
use towpath_bus::{BusError, DmaPolicy, Domain};
use towpath_packet::port::{Ability, Edge, Info, Layer, Needs, Port, PortControl, PortError, Queues, Spacing, Start};
use towpath_packet::{Direction, Offloads};
use towpath_sys::Epoll;
use towpath_wire::ethernet::Mac;
use tx::{MAX_PIECES, TxParts, TxRing};

/// Where fields are in the device's configuration (virtio 1.2 §5.1.4).
const MAC_AT: usize = 0;
const PAIRS_AT: usize = 8;
const MTU_AT: usize = 10;
/// Entries of an indirect table.
const TABLE: u16 = MAX_PIECES as u16;

/// A device that was found, and moves no packets before it is started.
pub struct VirtioNet<T: Transport> {
    transport: T,
    info: Info,
    config: Config,
    control: Control,
    needs: Needs,
    edge: Option<Arc<dyn Edge>>,
}

impl<T: Transport> VirtioNet<T> {
    /// With what its transport needs of the kernel while the port runs.
    #[must_use]
    pub fn with_needs(self, needs: Needs) -> VirtioNet<T> {
        VirtioNet { needs, ..self }
    }

    /// With counters of what is lost beyond its device.
    #[must_use]
    pub fn with_edge(self, edge: Arc<dyn Edge>) -> VirtioNet<T> {
        VirtioNet { edge: Some(edge), ..self }
    }

    /// With what is known of the port besides what its device offers.
    #[must_use]
    pub fn with_info(self, add: impl FnOnce(Info) -> Info) -> VirtioNet<T> {
        VirtioNet { info: add(self.info), ..self }
    }

    /// Reads what the device offers. `name` becomes [`Info::name`].
    ///
    /// # Errors
    /// [`OpenError`]: an option breaks a rule, the device does not offer what the configuration
    /// asks for, or the bus can't protect memory by the policy.
    pub fn open(transport: T, name: &str, config: Config) -> Result<VirtioNet<T>, OpenError> {
        config.check()?;
        let device = transport.name().to_owned();
        let offered = transport.offered();
        if offered & VERSION_1 == 0 {
            return Err(BusError::device(device, "it is a legacy device, of before virtio 1").into());
        }
        Domain::new(transport.dma().clone(), config.policy).map_err(|source| OpenError::Map { device, source })?;
        let missing = |option: &'static str, value: &str, rule: &str| ConfigError {
            option,
            value: value.to_owned(),
            rule: rule.to_owned(),
        };
        if config.packed && offered & RING_PACKED == 0 {
            return Err(missing("packed", "on", "the device does not offer it (VIRTIO_F_RING_PACKED)").into());
        }
        let bits = negotiable(&transport, &config, Offloads::ALL);
        if config.needs_control_queue() && bits & CTRL_VQ == 0 {
            let value = config.filter.get("receive");
            return Err(missing("receive", &value, "the device has no control queue: must be all").into());
        }
        let word = |at: usize, feature: u64| {
            let mut bytes = [0; 2];
            (bits & feature != 0 && transport.config(at, &mut bytes)).then(|| u16::from_le_bytes(bytes))
        };
        let pairs = if bits & features::MQ == 0 && T::PEER == Peer::Device { 1 } else { transport.pairs() };
        let pairs = word(PAIRS_AT, features::MQ).map_or(pairs, |most| most.min(pairs)).max(1);
        if config.queues > pairs {
            let rule = format!("must be at most {pairs}: the device has no more{}", T::MORE_PAIRS);
            return Err(ConfigError { option: "queues", value: config.queues.to_string(), rule }.into());
        }
        let mut config = config;
        config.mtu = word(MTU_AT, features::MTU).map_or(config.mtu, |mtu| mtu.clamp(68, config.mtu.max(68)));
        let mut mac = Mac::default();
        let known = bits & features::MAC != 0 && transport.config(MAC_AT, &mut mac);
        let spacing = if T::PEER == Peer::Device { Spacing::InPages } else { Spacing::Spread };
        let info = info(name, &config, bits, pairs).with_shared_memory(T::RECONNECTS).with_spacing(spacing);
        let control = Control::new(&config, known.then_some(mac), bits & CTRL_VQ != 0);
        Ok(VirtioNet { transport, info, config, control, needs: Needs::none(), edge: None })
    }

    /// Its Ethernet address, if it has one.
    pub fn mac(&self) -> Option<Mac> {
        self.control.mac()
    }

    /// A handle that works from any thread while the port runs.
    pub fn control(&self) -> Control {
        self.control.clone()
    }
}

fn info(name: &str, config: &Config, bits: u64, pairs: u16) -> Info {
    let ability = |name, on: bool| Ability::new(name, on, if on { "negotiated" } else { "off, or not offered" });
    let has = |bit: u64| bits & bit != 0;
    let abilities = vec![
        ability("packed", has(RING_PACKED)),
        ability("mergeable", has(MRG_RXBUF)),
        ability("indirect", has(INDIRECT_DESC)),
        ability("event-idx", has(features::EVENT_IDX)),
        ability("in-order", has(features::IN_ORDER)),
        ability("csum", has(features::CSUM)),
        ability("tso", has(features::HOST_TSO4)),
        ability("uso", has(features::HOST_USO)),
        ability("rss", has(RSS)),
        ability("hash-report", has(HASH_REPORT)),
        Ability::new("control-queue", has(CTRL_VQ), if has(CTRL_VQ) { "filters by the device" } else { "none" }),
        Ability::new("queues", true, format!("{pairs} pairs at most")),
        match config.copybreak().get() {
            0 => Ability::new("copybreak", false, "received frames are not copied"),
            below => Ability::new("copybreak", true, format!("frames below {below} bytes are copied")),
        },
        Ability::new(
            "policy",
            true,
            match config.policy {
                DmaPolicy::Persistent => "persistent: all packet memory is mapped",
                _ => "each buffer is mapped while the device has it",
            },
        ),
    ];
    Info::new(name, Layer::Ethernet, config.mtu.into())
        .with_offloads(features::tx_offloads(bits), features::rx_offloads(bits))
        .with_max_queues(config.queues)
        .with_abilities(abilities)
}

impl<T: Transport> Port for VirtioNet<T> {
    type Rx = VirtioRx<T>;
    type Tx = VirtioTx<T>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(self.control.clone()))
    }

    fn edge(&self) -> Option<Arc<dyn Edge>> {
        self.edge.clone()
    }

    fn needs(&self) -> Needs {
        self.needs.clone()
    }

    fn start(self, start: Start) -> Result<Queues<VirtioRx<T>, VirtioTx<T>>, PortError> {
        let VirtioNet { transport, info, config, control, .. } = self;
        let port = info.name.as_str();
        let failed = |error: StartError| error.at_port(port);
        let pairs = info.queues(start.queues)?;
        let config = Config { queues: pairs, ..config };
        let bits = negotiable(&transport, &config, start.accept);
        // A header lies in the headroom.
        let room = start.pool.chunk() - start.pool.headroom().saturating_sub(features::header(bits));
        let (bits, chains) = features::rx_chains(bits, room, ring_size(&transport, 0, &config));
        let domain = Domain::new(transport.dma().clone(), config.policy).map_err(|error| input(port, error))?;
        // Buffers for both rings, and as many on their way.
        let (ring, queues) = (usize::from(config.ring), usize::from(pairs));
        let chained = chains.map_or(0, |chains| chains.buffers * (chains.posted + 1));
        let memory = DeviceMemory::new(domain, start.pool, queues * (3 * ring + 512 + chained), queues * ring / 2);
        let memory = memory.map_err(failed)?;
        let rules = RxRules {
            mergeable: bits & MRG_RXBUF != 0,
            chains,
            offloads: features::rx_offloads(bits),
            max_frame: config.max_frame(),
            header: features::header(bits),
        };
        let needed = rules.header + if rules.mergeable || chains.is_some() { 64 } else { rules.max_frame };
        if room < needed {
            let rule = "use larger chunks, a smaller mtu, or mergeable=on";
            let what = format!("its buffers have room for {room} bytes, and {needed} are needed: {rule}");
            return Err(input(port, what));
        }
        let made = rings(&transport, &memory.domain, bits, pairs, chains, &config);
        let (ring_memory, queues) = made.map_err(|error| input(port, error))?;
        let control_index = 2 * if bits & features::MQ != 0 { max_pairs(&transport) } else { 1 };
        let (mut rx, mut tx, mut setups, mut commands) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (i, QueueMemory { driver, setup, headers, buffer }) in (0u16..).zip(queues) {
            let size = setup.size;
            if i == 2 * pairs {
                setups.push((control_index, setup));
                commands = Some(Commands::new(driver, control_index, buffer.0, buffer.1.get()));
                continue;
            }
            setups.push((i, setup));
            match headers {
                None => {
                    let parts = RxParts {
                        driver,
                        mapper: memory.mapper((chained as u32).max(size.into()), 0).map_err(failed)?,
                        cache: memory.cache(Direction::Rx).map_err(failed)?,
                        copy_cache: memory.copy_cache().map_err(failed)?,
                    };
                    rx.push((i, RxRing::new(parts, size, rules, i / 2, control.clone())));
                }
                Some(headers) => {
                    let parts = TxParts {
                        driver,
                        headers,
                        mapper: memory.mapper(2 * u32::from(size), 0).map_err(failed)?,
                        cache: memory.cache(Direction::Tx).map_err(failed)?,
                        out_of_reach: memory.out_of_reach().and_then(|pool| pool.region().cloned()),
                    };
                    let offloads = features::tx_offloads(bits);
                    tx.push((i, TxRing::new(parts, size, offloads, rules.header, rules.max_frame, control.clone())));
                }
            }
        }
        let waits = (0..pairs).map(|pair| wait_set(&transport, 2 * pair, &config)).collect::<Result<Vec<_>, _>>();
        let waits = waits.map_err(|source| os_error(port, "epoll", source))?;
        let (domain, own) = memory.into_parts();
        let filter = control.filter();
        let setup = Setup { features: bits, queues: setups, memory: ring_memory, commands, pairs, filter };
        // From here on the end of the queues stops the device.
        let device = Arc::new(Device::new(transport, config, control, domain, setup));
        let rx = rx.into_iter().zip(waits);
        let rx = rx.map(|((index, ring), wait)| VirtioRx::new(device.clone(), ring, index, wait, own.clone()));
        let offloads = features::tx_offloads(bits);
        let tx = tx.into_iter().map(|(index, ring)| VirtioTx::new(device.clone(), ring, index, offloads));
        let queues = Queues { rx: rx.collect(), tx: tx.collect() };
        device.program().map_err(|error| bus_error(port, error))?;
        let weak: Weak<Device<T>> = Arc::downgrade(&device);
        device.control.attach(weak);
        // Settings may have changed since they were read.
        device.follow();
        device.check();
        Ok(queues)
    }
}

/// The features to negotiate. A device that offers to hash packets, but has no room for the key, is
/// not asked for it. Without a command only a back end whose queues are set up one by one knows how
/// many are in use.
fn negotiable<T: Transport>(transport: &T, config: &Config, accept: Offloads) -> u64 {
    let bits = features::choose(transport.offered(), config, accept);
    let hashes = Hashing::find(transport, config.rss_key).is_some();
    let bits = if hashes { bits } else { bits & !(RSS | HASH_REPORT) };
    if bits & CTRL_VQ != 0 || T::PEER != Peer::Device { bits } else { bits & !features::MQ }
}

/// Pairs of queues that the device has: they decide where its control queue is.
fn max_pairs<T: Transport>(transport: &T) -> u16 {
    let mut bytes = [0; 2];
    if transport.config(PAIRS_AT, &mut bytes) { u16::from_le_bytes(bytes).max(1) } else { transport.pairs() }
}

/// The rings of all queues: those of pair k are 2k and 2k + 1, and the control queue is last.
fn rings<T: Transport>(
    transport: &T,
    domain: &Domain<T::Dma>,
    bits: u64,
    pairs: u16,
    chains: Option<RxChains>,
    config: &Config,
) -> Result<(RingMemory, Vec<QueueMemory>), RingsError> {
    let format = features::format(bits);
    let [rx, tx] = [0, 1].map(|queue| ring_size(transport, queue, config));
    let tables = |entries| if bits & INDIRECT_DESC != 0 { entries } else { 0 };
    let [rx_entries, entries] = [chains.map_or(0, RxChains::entries), TABLE].map(tables);
    let mut plans = Vec::new();
    for _ in 0..pairs {
        plans.push(QueuePlan { format, size: rx, entries: rx_entries, header: 0, buffer: 0 });
        plans.push(QueuePlan { format, size: tx, entries, header: features::header(bits), buffer: 0 });
    }
    if bits & CTRL_VQ != 0 {
        plans.push(QueuePlan { format, size: command::SIZE, entries: 0, header: 0, buffer: command::BUFFER });
    }
    RingMemory::new(domain, &plans, towpath_virtio::Features::from_bits(bits))
}

/// Descriptors of a queue: the largest power of two that the device and the configuration allow.
fn ring_size<T: Transport>(transport: &T, queue: u16, config: &Config) -> u16 {
    let most = transport.max_size(queue).min(config.ring);
    if most == 0 { 0 } else { 1 << most.ilog2() }
}

/// What the worker of a receive queue waits for; `None` if it polls.
fn wait_set<T: Transport>(transport: &T, queue: u16, config: &Config) -> std::io::Result<Option<Epoll>> {
    let Some(call) = transport.call(queue).filter(|_| config.interrupts) else { return Ok(None) };
    let set = Epoll::new()?;
    // Each signal counts once, so that none of them has to be read.
    set.add(call, true)?;
    if let Some(events) = transport.events() {
        set.add(events, true)?;
    }
    Ok(Some(set))
}

impl<T: Transport> std::fmt::Debug for VirtioNet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtioNet").field("info", &self.info).finish_non_exhaustive()
    }
}
