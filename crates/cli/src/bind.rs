//! `towpath bind` and `unbind`: bind a PCI function to `vfio-pci`, and restore its driver.

use crate::args::{Bind, Unbind};
use crate::output::outln;
use std::error::Error;
use std::process::ExitCode;
use towpath::bus::vfio::{self, Bdf, Finding};
use towpath::nic::{e1000e, virtio};

/// Binds all functions or none.
pub(crate) fn bind(args: &Bind) -> Result<ExitCode, Box<dyn Error>> {
    let devices = [&e1000e::DEVICES[..], &virtio::DEVICES].concat();
    let mut done: Vec<Bdf> = Vec::new();
    for &bdf in &args.bdfs {
        match vfio::bind(bdf, &devices, args.force) {
            Ok(bound) => {
                if bound.already {
                    outln!("{bdf}: vfio-pci has it already")?;
                } else {
                    done.push(bdf);
                    outln!("{bdf}: {} -> vfio-pci", bound.from.as_deref().unwrap_or("no driver"))?;
                }
                if let Some(aspm) = bound.aspm {
                    let bridge = aspm.bridge.map(|(bridge, _)| format!(", and at {bridge}")).unwrap_or_default();
                    outln!("{bdf}: power management of its link (ASPM) is switched off{bridge}, by an erratum")?;
                }
            }
            Err(error) => {
                for bdf in done {
                    match vfio::unbind(bdf, false) {
                        Ok(_) => outln!("{bdf}: given back")?,
                        Err(error) => eprintln!("towpath: {error}"),
                    }
                }
                // The findings usually explain the failure.
                print_findings(bdf);
                return Err(error.into());
            }
        }
    }
    // A bound function may still be unusable: print now what else is missing.
    args.bdfs.iter().for_each(|&bdf| print_findings(bdf));
    Ok(ExitCode::SUCCESS)
}

/// Prints what is missing besides the driver.
fn print_findings(bdf: Bdf) {
    let findings = vfio::inspect(bdf).findings;
    for finding in
        findings.iter().filter(|finding| !matches!(finding, Finding::Driver { .. } | Finding::NoDevice { .. }))
    {
        eprintln!("towpath: {bdf}: {finding}\n  to fix it: {}", finding.hint(bdf));
    }
}

/// Unbinds every function that it can; fails if one can't be unbound.
pub(crate) fn unbind(args: &Unbind) -> Result<ExitCode, Box<dyn Error>> {
    let mut failed = None;
    for &bdf in &args.bdfs {
        // What can't be opened here was not left running by a killed process of ours, and `unbind`
        // says itself what is in its way.
        let _ = towpath::e1000e::stop(bdf);
        let _ = towpath::virtio::stop(bdf);
        match vfio::unbind(bdf, args.force) {
            Ok(unbound) => {
                let interfaces = unbound.interfaces.iter().map(|i| format!(", as {i}")).collect::<String>();
                outln!("{bdf}: vfio-pci -> {}{interfaces}", unbound.to.as_deref().unwrap_or("no driver"))?;
            }
            Err(error) => {
                eprintln!("towpath: {error}");
                failed = Some(error);
            }
        }
    }
    Ok(if failed.is_some() { ExitCode::from(2) } else { ExitCode::SUCCESS })
}
