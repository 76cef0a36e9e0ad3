//! The self-test: which kinds of packets does this kernel take from an AF_PACKET socket?
//!
//! One packet of each kind is sent through a tap that nobody reads, in a namespace that nobody sees. Where such a namespace
//! may not be made, all kinds are taken to work until one is refused.

use crate::kernel::ability::Found;
use crate::kernel::crafted;
use std::fs::File;
use std::io;
use towpath_packet::Offloads;
use towpath_sys::af_packet::Socket;
use towpath_sys::netdev::Control;
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};

/// Finds out what may be sent. What comes in cannot be chosen: it may be anything.
pub(super) fn probe() -> Found {
    let mut found = Found { rx: Offloads::ALL, how: "accepted by the kernel", ..Found::default() };
    match netns::scratch(scratch).and_then(|made| made) {
        Ok((_tap, socket)) => {
            for packet in crafted::each(true) {
                match socket.send(&packet.bytes) {
                    Ok(()) => found.tx = found.tx.with(packet.needs),
                    Err(error) => found.refused.push((packet.needs, format!("tx {}: {error}", packet.name))),
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
    let name = tun::attach(&tap, "probe", Attach { ethernet: true, multi_queue: false })?;
    let control = Control::new()?;
    control.set_up(&name)?;
    let socket = Socket::new()?;
    socket.bind_for_sending(control.index(&name)?)?;
    Ok((tap, socket))
}
