//! `towpath probe`: abilities of a port on this machine, why some are off, and the command that
//! enables them.

use crate::args::Probe;
use crate::findings;
use crate::output::outln;
use crate::sandbox::Possible;
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use towpath::packet::port::{Calls, Capability, Info, Interface, Layer, Needs, Port, TxLinear};
use towpath::sandbox::Machine;
use towpath::wire::ethernet::MacText;
use towpath::{Opener, Role, Uri};

#[derive(Serialize)]
struct Report<'a> {
    port: &'a str,
    layer: &'static str,
    mtu: u32,
    queues: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<InterfaceReport<'a>>,
    tx_linear: String,
    max_chunks: u16,
    receives: String,
    sends: String,
    abilities: Vec<AbilityReport<'a>>,
    /// What the port uses of the kernel once it is started.
    needs: NeedsReport,
    /// What this machine could enforce.
    sandbox: Possible,
}

/// The interface of the kernel behind the port.
#[derive(Serialize)]
struct InterfaceReport<'a> {
    name: &'a str,
    index: u32,
    mac: Option<String>,
    driver: &'a str,
    queues: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_slave: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    master: Option<Box<InterfaceReport<'a>>>,
}

impl<'a> InterfaceReport<'a> {
    fn new(interface: &'a Interface) -> InterfaceReport<'a> {
        InterfaceReport {
            name: &interface.name,
            index: interface.index,
            mac: interface.mac.map(|mac| MacText(mac).to_string()),
            driver: &interface.driver,
            queues: interface.queues,
            active_slave: interface.active_slave.as_deref(),
            master: interface.master.as_deref().map(|master| Box::new(InterfaceReport::new(master))),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}, index {}", self.name, self.index);
        let parts = [
            self.mac.clone(),
            Some(self.driver).filter(|driver| !driver.is_empty()).map(|driver| format!("driver {driver}")),
            self.queues.map(|n| if n == 1 { "one queue".to_owned() } else { format!("{n} queues") }),
            self.active_slave.map(|slave| format!("sends by {slave}")),
            self.master.as_ref().map(|master| format!("part of {}", master.text())),
        ];
        parts.into_iter().flatten().for_each(|part| text += &format!(", {part}"));
        text
    }
}

#[derive(Serialize)]
struct NeedsReport {
    capabilities: Vec<&'static str>,
    calls: Vec<&'static str>,
    paths: Vec<String>,
}

impl NeedsReport {
    fn new(needs: &Needs) -> NeedsReport {
        NeedsReport {
            capabilities: needs.capabilities().map(Capability::name).collect(),
            calls: needs.groups().map(Calls::name).collect(),
            paths: needs.paths().map(|(path, _)| path.display().to_string()).collect(),
        }
    }

    fn text(&self) -> String {
        let names = [self.capabilities.join(" "), self.calls.join(" "), self.paths.join(" ")];
        let some: Vec<_> = names.into_iter().filter(|names| !names.is_empty()).collect();
        if some.is_empty() { "nothing".to_owned() } else { some.join("; ") }
    }
}

#[derive(Serialize)]
struct AbilityReport<'a> {
    name: &'a str,
    on: bool,
    why: &'a str,
    #[serde(rename = "mend")]
    hint: Option<&'a str>,
}

fn report<'a>(info: &'a Info, needs: &Needs, machine: &Machine) -> Report<'a> {
    Report {
        port: &info.name,
        layer: match info.layer {
            Layer::Ethernet => "ethernet",
            Layer::Ip => "ip",
            Layer::Any => "any",
        },
        mtu: info.mtu,
        queues: info.max_queues,
        interface: info.interface.as_ref().map(InterfaceReport::new),
        tx_linear: match info.tx_layout.linear {
            TxLinear::None => "nothing".into(),
            TxLinear::Header(n) => format!("the first {n} bytes"),
            TxLinear::Whole => "the whole packet".into(),
        },
        max_chunks: info.max_chunks,
        receives: info.rx_offloads.to_string(),
        sends: info.tx_offloads.to_string(),
        abilities: info
            .abilities
            .iter()
            .map(|a| AbilityReport { name: a.name, on: a.on, why: &a.why, hint: a.hint.as_deref().filter(|_| !a.on) })
            .collect(),
        needs: NeedsReport::new(needs),
        sandbox: Possible::new(machine),
    }
}

fn pieces(most: u16) -> String {
    if most == 1 { "one piece".to_owned() } else { format!("up to {most} pieces") }
}

pub(crate) fn probe(args: &Probe) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(bdf) = findings::function(&args.port)
        && !findings::print(&args.port, bdf?, args.json)?
    {
        return Ok(ExitCode::from(2));
    }
    let uri: Uri = args.port.parse()?;
    // A file goes one way, and one that is opened to be written is emptied.
    let role = if uri.scheme() == "pcap" { Role::Ingress } else { Role::Both };
    let port = Opener::new().open(&uri, role)?;
    let machine = Machine::probe();
    let report = report(port.info(), &port.needs(), &machine);
    if args.json {
        outln!("{}", serde_json::to_string(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{}", report.port)?;
    if let Some(interface) = &report.interface {
        outln!("  {:<13} {}", "interface", interface.text())?;
    }
    let rows = [
        ("layer", report.layer.to_owned()),
        ("mtu", report.mtu.to_string()),
        ("queues", format!("up to {}", report.queues)),
        ("hands over", report.receives.clone()),
        ("takes", report.sends.clone()),
        ("needs linear", format!("{}, in {}", report.tx_linear, pieces(report.max_chunks))),
        ("keeps", report.needs.text()),
        ("sandbox", report.sandbox.text()),
        ("options", format!("towpath help {}:", uri.scheme())),
    ];
    for (name, value) in rows {
        outln!("  {name:<13} {value}")?;
    }
    let width = report.abilities.iter().map(|a| a.name.len()).max().unwrap_or(0);
    for ability in &report.abilities {
        outln!("  {} {:width$}  {}", if ability.on { "on " } else { "OFF" }, ability.name, ability.why)?;
        if let Some(hint) = ability.hint {
            outln!("      {:width$}  to fix it: {hint}", "")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
