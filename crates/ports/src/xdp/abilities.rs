//! The report of the port's abilities: one line each, with the reason and a hint.

use super::config::Config;
use super::probe::{self, Probed};
use super::umem::MAX_LEN;
use crate::uri::Want;
use towpath_packet::port::{Ability, PortError};
use towpath_sys::host::kernel_version;
use towpath_sys::netdev_genl::Features;

/// One line for each ability; an error if a required one is missing.
pub(super) fn abilities(
    config: &Config,
    found: &Probed,
    features: Option<Features>,
    partial: bool,
    mtu: u32,
) -> Result<Vec<Ability>, PortError> {
    let (major, minor) = kernel_version();
    let with_version =
        |text: String| if text.contains("Linux") { format!("{text} (this is {major}.{minor})") } else { text };
    let mut list = Vec::new();
    let mut add = |name, want: Want, why: Result<String, String>, hint: Option<String>| {
        let on = why.is_ok();
        let why = with_version(why.unwrap_or_else(|why| why));
        if want == Want::Require && !on {
            return Err(PortError::Required { port: config.port(), ability: str::to_owned(name), why });
        }
        list.push(Ability::new(name, on, why).with_hint(hint.filter(|_| !on)));
        Ok(())
    };
    let ok = |why: &Option<String>, text: &str| why.clone().map_or_else(|| Ok(text.to_owned()), Err);
    let hint = |want: Want, name| (want == Want::Off).then(|| format!("{name}=prefer"));
    let native = ok(&found.not_native, "the program runs in the driver");
    // A port that only sends has no program that could be required somewhere.
    let native_want = if config.receives() { config.native } else { Want::Prefer };
    add("native", native_want, native, hint(native_want, "native"))?;
    let zero_copy = match (&found.not_zero_copy, features) {
        (Some(why), Some(features)) if features.native() && !features.zero_copy() => {
            Err(format!("{why}; its driver does not say that it can"))
        }
        (why, _) => ok(why, "the driver uses the buffers of this process"),
    };
    add("zerocopy", config.zero_copy, zero_copy, hint(config.zero_copy, "zerocopy"))?;
    let pieces = format!("packets in up to {} pieces", found.max_frags);
    let long = if mtu > MAX_LEN {
        format!(": of an MTU of {mtu}, no more than {} bytes pass", MAX_LEN)
    } else {
        String::new()
    };
    let frags = ok(&found.not_frags, &pieces).map_err(|why| why + &long);
    add("frags", config.frags, frags, hint(config.frags, "frags"))?;
    let csum = match &found.metadata {
        _ if config.csum == Want::Off => Err(probe::OFF.to_owned()),
        Err(why) => Err(why.clone()),
        Ok(_) if found.zero_copy() && !features.is_some_and(Features::tx_checksum) => {
            Err("the driver does not complete checksums of such frames".to_owned())
        }
        Ok(_) => Ok("partial checksums are sent, by metadata".to_owned()),
    };
    add("csum", config.csum, csum, hint(config.csum, "csum"))?;
    let stamps = match (timestamps(found, features), config.timestamps) {
        (Ok(clock), Want::Off) => Ok(format!("not asked for: timestamps=prefer gives {clock}")),
        (Err(why), Want::Off) => Ok(format!("none, and none possible: {why}")),
        (found, _) => found.map(str::to_owned),
    };
    add("timestamps", config.timestamps, stamps, None)?;
    let budget = found.budget.clone().map(|()| format!("up to {} frames a call", config.tx_budget));
    add("txbudget", Want::Prefer, budget, None)?;
    if partial {
        add("partial", Want::Prefer, Ok("what the peer's stack left to its device is recognised".to_owned()), None)?;
    }
    if let Some(btf) = &found.btf {
        add(
            "btf",
            Want::Prefer,
            btf.clone().map(|()| "xdpdump and bpftool know the program's function".to_owned()),
            None,
        )?;
    }
    add("selftest", Want::Prefer, Ok(found.tested.to_owned()), None)?;
    Ok(list)
}

/// The source of TX timestamps, or the reason why there are none.
pub(super) fn timestamps(found: &Probed, features: Option<Features>) -> Result<&'static str, String> {
    match &found.metadata {
        Err(why) => Err(why.clone()),
        Ok(_) if !found.zero_copy() => Ok("timestamps of the kernel, taken when the driver is through with a frame"),
        Ok(_) if features.is_some_and(Features::tx_timestamp) => Ok("timestamps of the device, by its own clock"),
        Ok(_) => Err("the driver takes none of such frames".to_owned()),
    }
}
