//! The interface of a port, for [`Info`](towpath_packet::port::Info).

use towpath_packet::port::Interface;
use towpath_sys::netdev::Control;
use towpath_sys::rtnl::Link;

/// The interface of `link`, in the namespace of both; `None` if it was deleted meanwhile.
pub(crate) fn interface(control: &Control, link: &Link) -> Option<Interface> {
    let (mut interface, master) = one(control, link, link.index())?;
    interface.master = master.and_then(|index| one(control, link, index)).map(|(master, _)| Box::new(master));
    Some(interface)
}

/// An interface without its master, and the master's index.
fn one(control: &Control, link: &Link, index: i32) -> Option<(Interface, Option<i32>)> {
    let info_of = |index| link.info_of(index).ok().flatten();
    let info = info_of(index)?;
    let mut interface = Interface::new(info.name, u32::try_from(index).ok()?);
    interface.mac = info.mac;
    interface.driver = control.driver(&interface.name).unwrap_or_default();
    interface.queues = control.queues(&interface.name).ok();
    interface.active_slave = info.active_slave.and_then(info_of).map(|slave| slave.name);
    Some((interface, info.master))
}
