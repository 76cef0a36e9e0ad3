//! Two namespaces joined by a veth, and the ways from its far end to the far namespace's stack.

use super::kernel::Cpumap;
use super::mechanisms::OneByOne;
use crate::bench::netns::Namespace;
use serde::Serialize;
use std::error::Error;
use std::net::Ipv4Addr;
use std::process::Command;
use towpath::engine::gro_stage::GroMode;
use towpath::packet::PoolConfig;
use towpath::{AnyPort, Directions, Forward, Opener, Role, Running};
use towpath_sys::netdev::{Control, Offload};

/// Where the receiver listens.
pub(super) const TARGET: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
pub(super) const PORT: u16 = 9;

/// The interface at both ends.
const VETH: &str = "v0";
const NEAR_MAC: &str = "00:00:5e:00:53:01";
const FAR_MAC: &str = "00:00:5e:00:53:02";

/// A datapath from the veth to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Datapath {
    /// The kernel's NAPI and stack on the core that receives.
    Kernel,
    /// The kernel's cpumap.
    Cpumap,
    /// The same, whose GRO also merges for plain UDP sockets, as lists of packets (`rx-gro-list`).
    CpumapList,
    /// One worker does all.
    Worker,
    /// A worker receives, a lane on the other core does the rest.
    Lane,
    /// The same without arrays of packets and without bulk heads.
    LaneOneByOne,
}

impl Datapath {
    pub(super) const ALL: [Datapath; 6] = [
        Datapath::Kernel,
        Datapath::Cpumap,
        Datapath::CpumapList,
        Datapath::Worker,
        Datapath::Lane,
        Datapath::LaneOneByOne,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Datapath::Kernel => "kernel, no steering",
            Datapath::Cpumap => "kernel, cpumap",
            Datapath::CpumapList => "kernel, cpumap, rx-gro-list",
            Datapath::Worker => "towpath, no lane",
            Datapath::Lane => "towpath, lane",
            Datapath::LaneOneByOne => "towpath, lane, no arrays, no bulk (patch 3)",
        }
    }

    /// The datapath without steering that one with steering is compared with.
    pub(super) fn unsteered(self) -> Option<Datapath> {
        match self {
            Datapath::Kernel | Datapath::Worker => None,
            Datapath::Cpumap | Datapath::CpumapList => Some(Datapath::Kernel),
            Datapath::Lane | Datapath::LaneOneByOne => Some(Datapath::Worker),
        }
    }
}

/// The namespaces: threads on the first core and on the last one.
pub(super) struct Pair {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
}

/// What carries frames from the veth to the stack. Dropping it ends it.
pub(super) enum Carrier {
    Kernel,
    Cpumap { _map: Cpumap },
    Towpath(Box<Running>),
    OneByOne(OneByOne),
}

impl Carrier {
    /// Ends it.
    ///
    /// # Errors
    /// A balance that does not add up, a worker that failed.
    pub(super) fn stop(self) -> Result<(), Box<dyn Error>> {
        match self {
            Carrier::Kernel | Carrier::Cpumap { .. } => Ok(()),
            Carrier::OneByOne(threads) => threads.stop(),
            Carrier::Towpath(running) => {
                let summary = running.stop();
                match summary.failed.first() {
                    Some(failed) => Err(failed.clone().into()),
                    None if summary.reading.balance().in_flight() != 0 || summary.buffers_away > 0 => {
                        Err("the balance does not add up".into())
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

impl Pair {
    /// Makes the namespaces and the veth. The near end sends frames as a wire has them: segmented,
    /// with complete checksums.
    pub(super) fn new([first, last]: [usize; 2]) -> Result<Pair, Box<dyn Error>> {
        let (near, far) = (Namespace::new(Some(first))?, Namespace::new(Some(last))?);
        for end in [&near, &far] {
            end.run(quiet)?;
        }
        let thread = far.run(nix::unistd::gettid)?;
        near.run(move || {
            ip(&format!(
                "link add {VETH} address {NEAR_MAC} type veth peer name {VETH} address {FAR_MAC} netns {thread}"
            ))?;
            let control = Control::new().map_err(|error| error.to_string())?;
            for offload in [Offload::Tso, Offload::Gso, Offload::TxChecksum] {
                let done = control.set_offload(VETH, offload, false);
                done.map_err(|error| format!("{offload:?} of a veth can't be switched off: {error}"))?;
            }
            ip(&format!("addr add 198.18.0.1/16 dev {VETH}"))?;
            ip(&format!("link set {VETH} up"))
        })??;
        far.run(|| {
            ip("link set lo up")?;
            ip(&format!("link set {VETH} up"))?;
            ip(&format!("route add 198.18.0.0/16 dev {VETH}"))?;
            ip(&format!("neigh add 198.18.0.1 lladdr {NEAR_MAC} dev {VETH}"))
        })??;
        near.run(|| {
            ip(&format!("route add 198.19.0.0/16 dev {VETH}"))?;
            ip(&format!("neigh add {TARGET} lladdr {FAR_MAC} dev {VETH}"))
        })??;
        Ok(Pair { near, far })
    }

    /// Starts a datapath from the veth to the stack, with a queue of `queue` frames between the
    /// cores.
    pub(super) fn open(
        &self,
        datapath: Datapath,
        gro: bool,
        queue: u32,
        cores: [usize; 2],
    ) -> Result<Carrier, Box<dyn Error>> {
        let [first, last] = cores;
        match datapath {
            Datapath::Kernel | Datapath::Cpumap | Datapath::CpumapList => {
                let carrier = self.far.run(move || -> Result<Carrier, String> {
                    ip(&format!("addr add {TARGET}/32 dev {VETH}"))?;
                    let carrier = match datapath {
                        Datapath::Cpumap | Datapath::CpumapList => {
                            Carrier::Cpumap { _map: Cpumap::attach(VETH, last, queue)? }
                        }
                        _ => Carrier::Kernel,
                    };
                    // A program switches GRO of a veth on, so the setting comes after it.
                    set_gro(gro)?;
                    if datapath == Datapath::CpumapList {
                        run("ethtool", &format!("-K {VETH} rx-gro-list on"))?;
                    }
                    Ok(carrier)
                })??;
                Ok(carrier)
            }
            Datapath::Worker | Datapath::Lane => {
                let (veth, tap) = self.ports(queue)?;
                let mut plan = Forward::default();
                (plan.directions, plan.cores) = (Directions::OneWay, vec![first]);
                plan.gro.mode = if gro { GroMode::On } else { GroMode::Off };
                plan.steering.ring = queue as usize;
                plan.pool = pool(queue);
                if datapath == Datapath::Lane {
                    plan.lanes = vec![last];
                }
                Ok(Carrier::Towpath(Box::new(plan.start(veth, tap)?)))
            }
            Datapath::LaneOneByOne => {
                let (veth, tap) = self.ports(queue)?;
                Ok(Carrier::OneByOne(OneByOne::start(veth, tap, gro, queue, cores)?))
            }
        }
    }

    /// The veth by AF_XDP, and the tap that has the receiver's address.
    fn ports(&self, queue: u32) -> Result<(AnyPort, AnyPort), Box<dyn Error>> {
        let path = self.far.path();
        let mut opener = Opener::new();
        let veth = opener.open(&format!("xdp:{VETH}?netns={path},ring={queue}").parse()?, Role::Ingress)?;
        let tap = format!("tap:t%d?netns={path},addr={TARGET}/32,mac={FAR_MAC}");
        Ok((veth, opener.open(&tap.parse()?, Role::Egress)?))
    }
}

/// Buffers for the FILL ring, of which a port takes up to a quarter of the pool, and for the lane.
pub(super) fn pool(queue: u32) -> PoolConfig {
    PoolConfig::default().capacity(5 * queue as usize)
}

/// Switches GRO of the veth in this thread's namespace, and looks whether it is.
fn set_gro(on: bool) -> Result<(), String> {
    let set = || {
        let control = Control::new()?;
        control.set_offload(VETH, Offload::Gro, on)?;
        control.offload(VETH, Offload::Gro)
    };
    match set() {
        Ok(now) if now == on => Ok(()),
        Ok(_) => Err(format!("GRO of the veth can't be switched {}", if on { "on" } else { "off" })),
        Err(error) => Err(format!("ethtool's GRO of the veth: {error}")),
    }
}

/// Keeps this thread's namespace free of packets of its own, and lets answers leave by another
/// interface than questions came by.
fn quiet() {
    for (name, value) in [
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
    ] {
        // A kernel without IPv6 has no such setting, and nothing to keep quiet.
        let _ = std::fs::write(format!("/proc/sys/net/{name}"), value);
    }
}

/// Whether `rx-gro-list` can be switched.
pub(super) fn has_ethtool() -> bool {
    run("ethtool", "--version").is_ok()
}

/// Runs `ip` in the namespace of this thread.
fn ip(arguments: &str) -> Result<(), String> {
    run("ip", arguments)
}

/// Runs a program in the namespace of this thread.
fn run(program: &str, arguments: &str) -> Result<(), String> {
    let done = Command::new(program).args(arguments.split_whitespace()).output();
    let done = done.map_err(|error| format!("{program} does not run: {error}"))?;
    let stderr = || String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() { Ok(()) } else { Err(format!("{program} {arguments}: {}", stderr())) }
}
