//! `vhost:PATH`: a virtual machine's network device, or that of any other vhost-user front end.
//!
//! ```text
//!   guest      TX ring ──► VhostRx ──► packet: pages of the guest, or a copy ──► egress
//!              RX ring ◄── VhostTx ◄── packet, copied into the guest's buffers
//!
//!   front end  messages ──► Server, Session ──► RingSlot::start, change, stop
//!
//!   vhost:/run/towpath/vm0.sock?mode=660,gid=100,queues=2,mtu=9000
//! ```
//!
//! | option | default | |
//! |---|---|---|
//! | `server` | `on` | `on`: the port listens; `off`: it connects, and tries again for ever |
//! | `mode`, `uid`, `gid` | `600`, own | permissions and owner of the listening socket's file |
//! | `queues` | `1` | most queue pairs, 1 to 8 |
//! | `queue-size` | `1024` | most descriptors of a ring, 64 to 4096 |
//! | `mtu` | | the MTU that the guest is given, 68 to 65535 |
//! | `csum`, `tso`, `uso` | `on` | partial checksums, TCP and UDP super-packets are offered |
//! | `mergeable` | `on` | packets for the guest may fill several buffers |
//! | `packed`, `in-order`, `event-idx`, `indirect` | `on` | features of the rings |
//!
//! | file | |
//! |---|---|
//! | `config` | [`Config`], and its URI |
//! | `features` | what the device offers, and the names of it; its configuration space |
//! | `server` | the control thread: it waits for a front end, and answers it |
//! | `session` | one front end: its requests, and their answers |
//! | `refusal` | why requests are refused, and connections end |
//! | `ring_control` | what it set of one ring; start and stop |
//! | `memory` | the guest's memory, in two address spaces |
//! | `dirty_log` | pages that the device wrote, for a migration |
//! | `in_flight_record` | the records of chains in flight |
//! | `rarp` | the announcement of a guest that was migrated |
//! | `descriptors` | descriptors from the front end: taken for what they must be, or closed |
//! | `stats` | events, and the log of connections |
//! | `ring` | `RingSlot`: one ring, between the control thread and a worker |
//! | `pages` | the guest's buffers that packets refer to |
//! | `rx` | [`VhostRx`]: the guest's transmit ring |
//! | `frame` | a chain of it, as a packet |
//! | `group` | chains that were taken ahead, with their frames prefetched |
//! | `tx` | [`VhostTx`]: the guest's receive ring |
//! | `events` | counts of all rings |
//!
//! **The front end** is QEMU, cloud-hypervisor, or DPDK's virtio-user; one at a time. It may leave
//! and come back, as may the port: all that the port keeps of a front end are counts. Its link is
//! up while it is connected.
//!
//! **Trust.** Neither the guest nor the process of the front end is trusted. Every word of a ring
//! is read once and bounded; so is every message, and each descriptor ends in one place or is
//! closed. What breaks a rule ends the ring or the connection, with a name. A guest whose memory is
//! truncated reads zeroes and is hung up on. What leaves is checked as what comes from any other
//! port.

mod config;
mod descriptors;
mod dirty_log;
mod events;
mod features;
mod frame;
mod group;
mod in_flight_record;
mod memory;
mod pages;
mod rarp;
mod refusal;
mod ring;
mod ring_control;
mod rx;
mod server;
mod session;
mod stats;
mod tx;

pub use config::{Config, KIND};
pub use rx::VhostRx;
pub use tx::VhostTx;

use crate::ended::Ended;
use rarp::Rarp;
use ring::{RingSlot, Way};
use server::{Endpoint, Server};
use session::DeviceParts;
use stats::{PortEvents, VhostControl};
use std::sync::Arc;
use towpath_packet::port::{
    Ability, Calls, Info, Layer, Needs, PathUse, Port, PortControl, PortError, Queues, Spacing, Start,
};
use towpath_packet::{Direction, Offloads};
use towpath_sys::Signaller;
use towpath_sys::unix_socket::{Access, Kind, ListenError, Listener};

/// Why no packet moves: no ring was started.
const NO_GUEST: &str = "no guest drives the device";

/// The MTU of a guest that is given none.
const DEFAULT_MTU: u32 = 1500;

/// A port with a virtual machine behind it.
#[derive(Debug)]
pub struct VhostPort {
    info: Info,
    config: Config,
    endpoint: Endpoint,
    events: Arc<PortEvents>,
    signaller: Option<Arc<Signaller>>,
}

/// Opens the port. Front ends are answered once it is started.
///
/// # Errors
/// [`PortError::Os`] if the path cannot be bound, or other users can write to its directory. The
/// file of a killed process is replaced.
pub fn open(config: Config) -> Result<VhostPort, PortError> {
    let endpoint = if config.server {
        let access = Access { mode: config.mode, uid: config.uid, gid: config.gid };
        let listener = Listener::new(&config.path, Kind::Stream, access).map_err(|error| {
            let ListenError { step, source, hint, .. } = error;
            PortError::Os { port: config.port(), step: step.to_owned(), source, hint }
        })?;
        Endpoint::Listen(listener)
    } else {
        Endpoint::connect(&config)
    };
    let offloads = features::offloads(&config);
    let (signaller, calls) = signaller(&config);
    let mut abilities = abilities(&config, offloads);
    abilities.insert(8, calls);
    let info = Info::new(config.port(), Layer::Ethernet, config.mtu.map_or(DEFAULT_MTU, u32::from))
        .with_offloads(offloads, offloads)
        .with_max_queues(config.queues)
        .with_spacing(Spacing::Spread)
        .with_abilities(abilities);
    Ok(VhostPort { info, config, endpoint, events: Arc::default(), signaller })
}

/// What signals the counters of front ends. Another user's front end could hold a worker that
/// writes them. It costs more than a write, which serves for front ends of this user.
fn signaller(config: &Config) -> (Option<Arc<Signaller>>, Ability) {
    let ability = |on, why: String| Ability::new("aio", on, why);
    if config.admits_owner_alone() {
        return (None, ability(false, "front ends are of this user: calls are writes".to_owned()));
    }
    match Signaller::new() {
        Ok(signaller) => (Some(Arc::new(signaller)), ability(true, "calls wait for no front end".to_owned())),
        Err(error) => {
            let why = format!("io_setup: {error}: a front end can hold its worker for 100 ms");
            (None, ability(false, why).with_hint(Some("raise fs.aio-max-nr".to_owned())))
        }
    }
}

/// What is offered, and the commands of front ends that fit.
fn abilities(config: &Config, offloads: Offloads) -> Vec<Ability> {
    let Config { path, server, queues, queue_size, mtu, packed, .. } = config;
    let path = path.display();
    let switch = |name: &'static str, on: bool| {
        let why = if on { "offered to the guest" } else { "switched off by option" };
        Ability::new(name, on, why).with_hint((!on).then(|| format!("{name}=on")))
    };
    let (reconnect, device_mode, user_mode) =
        if *server { (",reconnect=1", "client", "") } else { (",server=on", "server", ",server=1") };
    let many = if *queues > 1 { format!(",mq=on,vectors={}", 2 * queues + 2) } else { String::new() };
    let ring = if *packed { ",packed=on" } else { "" };
    let host_mtu = mtu.map_or(String::new(), |mtu| format!(",host_mtu={mtu}"));
    // QEMU takes 256 to 1024.
    let size = (*queue_size).clamp(256, 1024);
    let qemu = format!(
        "qemu-system-x86_64 … -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \
         -chardev socket,id=vhost0,path={path}{reconnect} -netdev vhost-user,id=net0,chardev=vhost0,queues={queues} \
         -device virtio-net-pci,netdev=net0,rx_queue_size={size},tx_queue_size={size}{many}{ring}{host_mtu}"
    );
    let cloud = format!(
        "cloud-hypervisor … --memory size=1G,shared=on --net vhost_user=true,socket={path},num_queues={},\
         queue_size={size},vhost_mode={device_mode}",
        2 * queues
    );
    let testpmd = format!(
        "dpdk-testpmd --no-pci --single-file-segments \
         --vdev=net_virtio_user0,path={path},queues={queues}{user_mode} -- --rxq={queues} --txq={queues}"
    );
    vec![
        switch("csum", offloads.has(Offloads::CSUM)),
        switch("tso", config.csum && config.tso),
        switch("uso", config.csum && config.uso),
        switch("mergeable", config.mergeable),
        switch("packed", *packed),
        switch("in-order", config.in_order),
        switch("event-idx", config.event_idx),
        switch("indirect", config.indirect),
        Ability::new("qemu", true, qemu),
        Ability::new("cloud", true, cloud),
        Ability::new("testpmd", true, testpmd),
        Ability::new("firecracker", false, "its network devices are taps, not vhost-user").with_hint(Some(
            "a tap fc0 in its configuration, \"network-interfaces\": [{\"iface_id\": \"eth0\", \"host_dev_name\": \"fc0\"}], \
             and packet:fc0 in the place of this port"
                .to_owned(),
        )),
    ]
}

impl Port for VhostPort {
    type Rx = Ended<VhostRx>;
    type Tx = Ended<VhostTx>;

    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Option<Arc<dyn PortControl>> {
        Some(Arc::new(VhostControl(self.events.clone())))
    }

    fn needs(&self) -> Needs {
        let needs = Needs::none().calls([Calls::Sockets, Calls::Accept]);
        let needs = if self.signaller.is_some() { needs.calls([Calls::Aio]) } else { needs };
        match self.endpoint {
            Endpoint::Listen(_) => needs.directory_of(&self.config.path, PathUse::Remove),
            Endpoint::Connect { .. } => needs.calls([Calls::Connect]),
        }
    }

    fn start(self, start: Start) -> Result<Queues<Self::Rx, Self::Tx>, PortError> {
        let failed = |step: &str, source| {
            let hint = Some("raise the limit on open files".to_owned());
            PortError::Os { port: self.config.port(), step: step.to_owned(), source, hint }
        };
        let cache = |direction| {
            start.pool.cache(direction).map_err(|source| PortError::Pool { port: self.info.name.clone(), source })
        };
        let queues = self.info.queues(start.queues)?;
        let (offered, events) = (features::offered(&self.config, queues), self.events.clone());
        let rarp = Arc::<Rarp>::default();
        let (mut rx, mut tx, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        for queue in 0..queues {
            let slot = |way| {
                RingSlot::new(way, &events.rings, self.signaller.clone()).map_err(|error| failed("eventfd", error))
            };
            let (to_guest, from_guest) = (slot(Way::ToGuest)?, slot(Way::FromGuest)?);
            let queue_rx = VhostRx::new(from_guest.clone(), cache(Direction::Rx)?, queue);
            rx.push(if queue == 0 { queue_rx.with_announcements(rarp.clone()) } else { queue_rx });
            tx.push(VhostTx::new(to_guest.clone(), cache(Direction::Tx)?, offered));
            slots.extend([to_guest, from_guest]);
        }
        let device = DeviceParts {
            offered,
            protocol: features::protocol(&self.config),
            max_size: self.config.queue_size,
            mtu: self.config.mtu,
            slots,
            rarp,
            events,
            closer: Arc::default(),
        };
        let server = Server::new(self.endpoint, device, !self.config.admits_owner_alone());
        let thread = Arc::new(server.start().map_err(|error| failed("thread", error))?);
        Ok(Queues { rx: Ended::all(rx, &thread), tx: Ended::all(tx, &thread) })
    }
}

#[cfg(test)]
mod tests;
