//! Keeps a program in the kernel's table of XDP programs: attached to a device that nobody sees.

use std::fs::File;
use std::io;
use towpath_sys::bpf::{Hook, Link, Program};
use towpath_sys::netdev::Control;
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};

/// What keeps it there. Members are dropped in this order.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped")]
pub(super) struct Held {
    link: Link,
    tap: Option<File>,
    /// The namespace, which otherwise would end with the thread that made it.
    namespace: File,
}

impl Held {
    /// Attaches the program in a new namespace: to a tap, which runs programs by itself; where there is none, to the loopback,
    /// which costs the whole machine a look at each received packet.
    pub(super) fn new(program: &Program) -> io::Result<Held> {
        netns::scratch(|| {
            let namespace = File::open("/proc/thread-self/ns/net")?;
            let control = Control::new()?;
            if let Ok((link, tap)) = on_tap(program, &control) {
                return Ok(Held { link, tap: Some(tap), namespace });
            }
            let link = Link::attach(program, control.index("lo")?, Hook::Generic)?;
            Ok(Held { link, tap: None, namespace })
        })?
    }
}

fn on_tap(program: &Program, control: &Control) -> io::Result<(Link, File)> {
    let tap = tun::open()?;
    let name = tun::attach(&tap, "hold", Attach { ethernet: true, multi_queue: false })?;
    let link = Link::attach(program, control.index(&name)?, Hook::Native)?;
    Ok((link, tap))
}
