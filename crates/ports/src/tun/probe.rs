//! Probes the kernel's offloads.
//!
//! *Receive:* `TUNSETOFFLOAD` accepts or refuses the bits.
//!
//! *Transmit:* one packet of each kind is written to an interface that is not up. The kernel first
//! checks the virtio-net header (`EINVAL` for an unsupported kind) and then drops the packet
//! because the interface is down (`EIO`), so that it is never delivered. If the port's interface is
//! up already, a scratch device takes its place. Without the right to make one, all kinds count as
//! supported until a write is refused.

use super::config::Kind;
use super::device::{TunDevice, bits};
use crate::kernel::ability::{KernelOffloads, TSO};
use crate::kernel::crafted;
use std::fs::File;
use std::io::{self, Write};
use towpath_packet::Offloads;
use towpath_packet::port::PortError;
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};

/// Probes both directions.
pub(super) fn probe(device: &TunDevice, queues: &[File], kind: Kind) -> Result<KernelOffloads, PortError> {
    let Some(queue) = queues.first() else { return Ok(KernelOffloads::default()) };
    let mut found = KernelOffloads { how: "accepted by the kernel", ..KernelOffloads::default() };
    probe_rx(queue, &mut found);
    if !device.is_up() {
        probe_tx(queue, kind, &mut found);
    } else if let Ok(scratch) = scratch(kind) {
        probe_tx(&scratch, kind, &mut found);
    } else {
        found.tx = Offloads::ALL.without(Offloads::VLAN);
        found.how = "not tried, because the interface is up already: used until a packet is refused";
    }
    Ok(found)
}

/// A device of the same kind that is never up, in a namespace of its own.
fn scratch(kind: Kind) -> io::Result<File> {
    netns::scratch(|| {
        let queue = tun::open()?;
        tun::attach(&queue, "probe", Attach { ethernet: kind == Kind::Tap, multi_queue: false, vnet_header: true })?;
        Ok(queue)
    })?
}

fn probe_rx(queue: &File, found: &mut KernelOffloads) {
    for set in [Offloads::CSUM, TSO, Offloads::USO] {
        match tun::set_offload(queue, bits(set.with(Offloads::CSUM))) {
            Ok(()) => found.rx = found.rx.with(set),
            Err(error) => found.refused.push((set, format!("rx (TUNSETOFFLOAD): {error}"))),
        }
    }
    // No offloads until the port starts.
    let _ = tun::set_offload(queue, 0);
}

fn probe_tx(queue: &File, kind: Kind, found: &mut KernelOffloads) {
    let mut queue = queue;
    for packet in crafted::each(kind == Kind::Tap) {
        match queue.write(&packet.bytes) {
            // The packet is delivered if the interface was set up in the meantime, which does no
            // harm.
            Ok(_) => found.tx = found.tx.with(packet.needs),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => found.tx = found.tx.with(packet.needs),
            Err(error) => found.refused.push((packet.needs, format!("tx {}: {error}", packet.name))),
        }
    }
    // A kind that is refused for one version of IP is not used for the other.
    for (needs, _) in &found.refused {
        found.tx = found.tx.without(*needs);
    }
}
