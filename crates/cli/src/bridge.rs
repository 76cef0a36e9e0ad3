//! `bridge`: ports joined by a learning bridge.

use crate::args::{Bridge as Args, Of};
use crate::commands::plan;
use crate::naming::{Named, position};
use crate::watch;
use std::error::Error;
use std::process::ExitCode;
use towpath::engine::bridge::{PortMode, StormLimits};
use towpath::{Bridge, BridgePort, Directions, Forward, Opener, Role, StartError};

/// Applies the values of an option to the ports that they name.
fn apply<X: Clone>(
    option: &'static str,
    values: &[Of<X>],
    named: &[Named],
    ports: &mut [BridgePort],
    set: impl Fn(&mut BridgePort, X),
) -> Result<(), StartError> {
    for Of { port, value } in values {
        set(&mut ports[position(named, option, port)?], value.clone());
    }
    Ok(())
}

/// `towpath bridge`.
pub(crate) fn bridge(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let named = Named::all(&args.ports)?;
    let (bridge, ports) = plan_of(args, &named)?;
    let mut opener = Opener::new();
    let opened = named.iter().map(|port| opener.open(&port.uri, Role::Both)).collect::<Result<Vec<_>, _>>()?;
    opener.check()?;
    watch::watch(bridge.prepare(ports.into_iter().zip(opened).collect())?, &args.run)
}

/// The bridge that the options describe, and its ports in the order of `named`.
pub(crate) fn plan_of(args: &Args, named: &[Named]) -> Result<(Bridge, Vec<BridgePort>), Box<dyn Error>> {
    if !args.run.lanes.is_empty() {
        let rule = "a bridge has no lanes: use more workers".into();
        return Err(StartError::Value { what: "lanes", value: format!("{:?}", args.run.lanes), rule }.into());
    }
    let mut ports = vec![BridgePort::default(); named.len()];
    apply("access", &args.access, named, &mut ports, |port, vlan| port.mode = PortMode::Access(vlan.0))?;
    apply("trunk", &args.trunk, named, &mut ports, |port, vlans| port.mode = PortMode::Trunk { vlans, native: None })?;
    apply("native", &args.native, named, &mut ports, |port, vlan| match &mut port.mode {
        PortMode::Trunk { native, .. } => *native = Some(vlan.0),
        mode => *mode = PortMode::Access(vlan.0),
    })?;
    apply("group", &args.group, named, &mut ports, |port, group| {
        port.group = u16::try_from(group.0).unwrap_or(u16::MAX);
    })?;
    apply("port-entries", &args.port_entries, named, &mut ports, |port, n| port.max_entries = Some(n.0))?;
    if let Some(pps) = args.storm {
        let pps = u32::try_from(pps).unwrap_or(u32::MAX);
        ports.iter_mut().for_each(|port| port.storm = StormLimits::all(pps));
    }
    let mut bridge = like(plan(&args.run, Directions::Both, true)?);
    bridge.vlans = !(args.access.is_empty() && args.trunk.is_empty() && args.native.is_empty());
    bridge.ageing = args.ageing;
    bridge.max_entries = usize::try_from(args.max_entries).unwrap_or(usize::MAX);
    Ok((bridge, ports))
}

/// A bridge with the options that all commands have.
fn like(plan: Forward) -> Bridge {
    let Forward { workers, cores, idle, egress_wait, drain, at_rx, gro, gso, count, pool, .. } = plan;
    let mut bridge = Bridge::default();
    (bridge.workers, bridge.cores, bridge.idle) = (workers, cores, idle);
    (bridge.egress_wait, bridge.drain, bridge.at_rx) = (egress_wait, drain, at_rx);
    (bridge.gro, bridge.gso, bridge.count, bridge.pool) = (gro, gso, count, pool);
    bridge
}
