//! What is told of the port, an ability a line: whether it is there, why, and what would bring it.

use super::ask;
use super::config::Config;
use super::probe::{self, Found};
use super::umem::LONGEST;
use crate::uri::Want;
use towpath_packet::port::{Ability, PortError};
use towpath_sys::host::kernel_version;
use towpath_sys::netdev::Link;
use towpath_sys::netdev_genl::Features;

/// One line for each ability; an error if one that is required is missing.
pub(super) fn abilities(
    config: &Config,
    found: &Found,
    said: Option<Features>,
    notes: bool,
    mtu: u32,
) -> Result<Vec<Ability>, PortError> {
    let (major, minor) = kernel_version();
    let here = |text: String| if text.contains("Linux") { format!("{text} (this is {major}.{minor})") } else { text };
    let mut list = Vec::new();
    let mut add = |name, want: Want, why: Result<String, String>, mend: Option<String>| {
        let on = why.is_ok();
        let why = here(why.unwrap_or_else(|why| why));
        if want == Want::Require && !on {
            return Err(PortError::Required { port: config.port(), ability: str::to_owned(name), why });
        }
        list.push(Ability { name, on, why: why.into(), mend: mend.filter(|_| !on) });
        Ok(())
    };
    let ok = |why: &Option<String>, yes: &str| why.clone().map_or_else(|| Ok(yes.to_owned()), Err);
    let back = |want: Want, name| (want == Want::Off).then(|| format!("{name}=prefer"));
    let native = ok(&found.not_native, "the program runs in the driver");
    add("native", config.native, native, back(config.native, "native"))?;
    let zero_copy = match (&found.not_zero_copy, said) {
        (Some(why), Some(said)) if said.native() && !said.zero_copy() => {
            Err(format!("{why}; its driver does not say that it can"))
        }
        (why, _) => ok(why, "the driver uses the buffers of this process"),
    };
    add("zerocopy", config.zero_copy, zero_copy, back(config.zero_copy, "zerocopy"))?;
    let pieces = format!("packets in up to {} pieces", found.pieces);
    let long = if mtu > LONGEST {
        format!(": of an MTU of {mtu}, no more than {} bytes pass", LONGEST)
    } else {
        String::new()
    };
    let frags = ok(&found.not_frags, &pieces).map_err(|why| why + &long);
    add("frags", config.frags, frags, back(config.frags, "frags"))?;
    let csum = match &found.metadata {
        _ if config.csum == Want::Off => Err(probe::OFF.to_owned()),
        Err(why) => Err(why.clone()),
        Ok(_) if found.zero_copy() && !said.is_some_and(Features::checksums) => {
            Err("the driver does not complete checksums of such frames".to_owned())
        }
        Ok(_) => Ok("partial checksums are sent, by metadata".to_owned()),
    };
    add("csum", config.csum, csum, back(config.csum, "csum"))?;
    let stamps = match (timestamps(found, said), config.timestamps) {
        (Ok(clock), Want::Off) => Ok(format!("not asked for: timestamps=prefer gives {clock}")),
        (Err(why), Want::Off) => Ok(format!("none, and none to be had: {why}")),
        (had, _) => had.map(str::to_owned),
    };
    add("timestamps", config.timestamps, stamps, None)?;
    let budget = found.budget.clone().map(|()| format!("up to {} frames a call", config.tx_budget));
    add("txbudget", Want::Prefer, budget, None)?;
    if notes {
        add("partial", Want::Prefer, Ok("what the peer's stack left to its device is recognised".to_owned()), None)?;
    }
    add("selftest", Want::Prefer, Ok(found.tested.to_owned()), None)?;
    Ok(list)
}

/// Whose timestamps of sent frames there are, or why there are none.
pub(super) fn timestamps(found: &Found, said: Option<Features>) -> Result<&'static str, String> {
    match &found.metadata {
        Err(why) => Err(why.clone()),
        Ok(_) if !found.zero_copy() => Ok("timestamps of the kernel, taken when the driver is through with a frame"),
        Ok(_) if said.is_some_and(Features::timestamps) => Ok("timestamps of the device, by its own clock"),
        Ok(_) => Err("the driver takes none of such frames".to_owned()),
    }
}

/// Whether frames can pass at this moment. That they can't is no error: it may change.
pub(super) fn link(config: &Config, link: Link) -> Ability {
    let (name, ip) = (&config.interface, ask::ip(config));
    let (why, mend) = match link {
        Link::Up => ("up, with carrier", None),
        Link::NoCarrier => ("no carrier: the other end is not there, or not up", None),
        Link::Down | Link::Absent => ("the interface is not up", Some(format!("{ip} link set dev {name} up"))),
    };
    Ability { name: "link", on: link == Link::Up, why: why.into(), mend }
}
