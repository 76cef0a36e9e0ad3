//! Taps whose packets the kernel moves: `tap:tp0?vhost=require`.
//!
//! ```text
//!   towpath_nic  virtio's driver ─ rings ─► vhost-net ─► queues of the tap
//!   towpath_ports::tun     made, configured and probed, as any tap; its link and its counters
//! ```

use crate::any::AnyPort;
use crate::pci::bus_error;
use towpath_bus::BusError;
use towpath_nic::virtio::{Condition, Config, OpenError, Tap, VhostNetFiles, VhostNetTransport, VirtioNet};
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, Calls, Needs, PortError, State};
use towpath_ports::tun::{self, Served, ServedTap, TunPort};
use towpath_ports::uri::{Uri, Want};

/// Bytes of the longest frame without super-packets, less its Ethernet header.
const MAX_MTU: u32 = 9216;

/// Opens a TAP or TUN port. Without vhost-net, which was preferred, the port moves packets itself.
pub(crate) fn open(uri: &Uri) -> Result<AnyPort, PortError> {
    let mut config = tun::Config::from_uri(uri)?;
    let want = std::mem::replace(&mut config.vhost, Want::Off);
    let port = tun::open(config)?;
    if want == Want::Off {
        return Ok(AnyPort::Tun(port));
    }
    match VhostNetFiles::open(port.queues()) {
        Ok(files) => served(uri, port, files).map(|port| AnyPort::TapVhost(Box::new(port))),
        Err(error) if want == Want::Require => Err(bus_error(uri, error)),
        Err(error) => {
            let hint = match &error {
                BusError::Os { hint, .. } => hint.clone(),
                _ => None,
            };
            Ok(AnyPort::Tun(port.with_ability(Ability::new(tun::VHOST, false, error.to_string()).with_hint(hint))))
        }
    }
}

fn served(uri: &Uri, port: TunPort, files: VhostNetFiles) -> Result<VirtioNet<VhostNetTransport>, PortError> {
    let Served { info, queues, edge, tap } = port.into_served();
    if info.mtu > MAX_MTU {
        let rule = format!("must be at most {MAX_MTU} with vhost");
        return Err(PortError::Option { port: info.name, option: "mtu".to_owned(), value: info.mtu.to_string(), rule });
    }
    let mut config = Config::default();
    // The MTU of the interface may be changed while the port runs.
    (config.queues, config.mtu) = (info.max_queues, MAX_MTU as u16);
    let interface = Interface { name: info.name.clone(), tap };
    let transport =
        VhostNetTransport::new(&info.name, files, queues, interface).map_err(|error| bus_error(uri, error))?;
    let port = VirtioNet::open(transport, &info.name, config);
    let port = port.map_err(|error: OpenError| error.at_port(&info.name))?;
    let needs = Needs::none().calls([Calls::Sockets, Calls::Interface, Calls::Tun, Calls::VhostNet]);
    Ok(port.with_needs(needs).with_edge(edge).with_info(|device| {
        let mut abilities = info.abilities;
        abilities.push(Ability::new(tun::VHOST, true, "the kernel moves the packets"));
        let shown = ["packed", "mergeable", "indirect", "event-idx", "in-order"];
        abilities.extend(device.abilities.iter().filter(|ability| shown.contains(&ability.name)).cloned());
        let mut all = device.with_abilities(abilities).with_interface(info.interface).with_netns(info.netns);
        all.mtu = info.mtu;
        all
    }))
}

/// The interface of a tap, as the driver of vhost-net needs it.
struct Interface {
    name: String,
    tap: ServedTap,
}

impl Interface {
    fn failed(&self, error: PortError) -> BusError {
        match error {
            PortError::Os { step, source, hint, .. } => BusError::Os { device: self.name.clone(), step, source, hint },
            other => BusError::device(&self.name, other.to_string()),
        }
    }
}

impl Tap for Interface {
    fn offloads(&self) -> (Offloads, Offloads) {
        self.tap.offloads()
    }

    fn set_rx_offloads(&self, set: Offloads) -> Result<(), BusError> {
        self.tap.set_rx_offloads(set).map_err(|error| self.failed(error))
    }

    fn run(&self) -> Result<(), BusError> {
        self.tap.run().map_err(|error| self.failed(error))
    }

    fn condition(&self) -> Condition {
        match self.tap.state() {
            State::Down(why) => Condition::Down(why),
            State::Gone(why) => Condition::Gone(why),
            _ => Condition::Up,
        }
    }
}
