//! Probes the kernel's offloads for AF_PACKET sockets.
//!
//! One packet of each kind is sent through a tap without a reader, in a namespace of its own.
//! Without the right to make a namespace, all kinds count as supported until one is refused.

use crate::kernel::ability::{KernelOffloads, from_tun};
use crate::vnet::VnetHeader;
use std::fs::File;
use std::io;
use towpath_packet::Offloads;
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::Control;
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};
use towpath_tun::Kind;

/// Probes the offloads of transmitted packets. Received packets may have any offload.
pub(super) fn probe() -> KernelOffloads {
    let mut found = KernelOffloads { rx: Offloads::ALL, how: "accepted by the kernel", ..KernelOffloads::default() };
    match netns::scratch(scratch).and_then(|made| made) {
        Ok((_tap, socket)) => {
            for packet in towpath_tun::probe::packets(Kind::Tap, false) {
                let needs = from_tun(packet.needs);
                match socket.send(&packet.behind_header(VnetHeader::LEN)) {
                    Ok(()) => found.tx = found.tx.with(needs),
                    Err(error) => found.refused.push((needs, format!("tx {}: {error}", packet.name))),
                }
            }
            for (needs, _) in &found.refused {
                found.tx = found.tx.without(*needs);
            }
        }
        Err(_) => {
            found.tx = Offloads::ALL.without(Offloads::VLAN);
            found.how = "not tried, for want of a scratch interface: used until a packet is refused";
        }
    }
    found
}

/// A tap that is up, and a socket that sends through it.
fn scratch() -> io::Result<(File, Socket)> {
    let tap = tun::open()?;
    let name = tun::attach(&tap, "probe", Attach { ethernet: true, multi_queue: false, vnet_header: true })?;
    let control = Control::new()?;
    control.set_up(&name)?;
    let socket = Socket::new()?;
    socket.bind_tx(control.index(&name)?)?;
    Ok((tap, socket))
}
