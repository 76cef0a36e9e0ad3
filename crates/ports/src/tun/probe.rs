//! The self-test: what does this kernel really do?
//!
//! *Receiving* is a question of `TUNSETOFFLOAD`: it takes the bits or refuses them.
//!
//! *Sending* is tried out. One packet of each kind is written to an interface that is not up. The kernel examines the
//! virtio-net header first (`EINVAL` if it doesn't take that kind) and then drops the packet because the interface is
//! down (`EIO`), so that nobody ever sees it. When the port's own interface is up already, a scratch device takes its place;
//! where that may not be made either, all kinds are taken to work until a write is refused.

use super::config::Kind;
use super::device::{Device, bits};
use crate::kernel::ability::{Found, TSO};
use crate::kernel::crafted;
use std::fs::File;
use std::io::{self, Write};
use towpath_packet::Offloads;
use towpath_packet::port::PortError;
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};

/// Finds out what the kernel does in both directions.
pub(super) fn probe(device: &Device, queues: &[File], kind: Kind) -> Result<Found, PortError> {
    let Some(queue) = queues.first() else { return Ok(Found::default()) };
    let mut found = Found { how: "accepted by the kernel", ..Found::default() };
    receiving(queue, &mut found);
    if !device.is_up() {
        sending(queue, kind, &mut found);
    } else if let Ok(scratch) = scratch(kind) {
        sending(&scratch, kind, &mut found);
    } else {
        found.tx = Offloads::ALL.without(Offloads::VLAN);
        found.how = "not tried, because the interface is up already: used until a packet is refused";
    }
    Ok(found)
}

/// A device of the same kind that is never up, in a namespace that nobody sees.
fn scratch(kind: Kind) -> io::Result<File> {
    netns::scratch(|| {
        let queue = tun::open()?;
        tun::attach(&queue, "probe", Attach { ethernet: kind == Kind::Tap, multi_queue: false })?;
        Ok(queue)
    })?
}

fn receiving(queue: &File, found: &mut Found) {
    for set in [Offloads::CSUM, TSO, Offloads::USO] {
        match tun::set_offload(queue, bits(set.with(Offloads::CSUM))) {
            Ok(()) => found.rx = found.rx.with(set),
            Err(error) => found.refused.push((set, format!("rx (TUNSETOFFLOAD): {error}"))),
        }
    }
    // Until the port is started nothing is asked for.
    let _ = tun::set_offload(queue, 0);
}

fn sending(queue: &File, kind: Kind, found: &mut Found) {
    let mut queue = queue;
    for packet in crafted::each(kind == Kind::Tap) {
        match queue.write(&packet.bytes) {
            // An interface that someone set up meanwhile takes the packet: so be it.
            Ok(_) => found.tx = found.tx.with(packet.needs),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => found.tx = found.tx.with(packet.needs),
            Err(error) => found.refused.push((packet.needs, format!("tx {}: {error}", packet.name))),
        }
    }
    // What is refused for one version of IP is not to be had for the other.
    for (needs, _) in &found.refused {
        found.tx = found.tx.without(*needs);
    }
}
