//! `towpath probe SCHEME:vfio=BDF`: what prevents the use of a PCI function, checked before it is
//! opened.

use crate::output::outln;
use serde::Serialize;
use std::error::Error;
use towpath::bus::vfio::{Bdf, BdfError, Inspection, inspect};

#[derive(Serialize)]
struct Report<'a> {
    port: &'a str,
    driver: Option<&'a str>,
    iommu_group: Option<u32>,
    iommufd: bool,
    findings: Vec<FindingReport>,
}

#[derive(Serialize)]
struct FindingReport {
    what: String,
    #[serde(rename = "mend")]
    hint: String,
    obstacle: bool,
}

/// The PCI function in a port's address, if there is one.
pub(crate) fn function(port: &str) -> Option<Result<Bdf, BdfError>> {
    let (_, rest) = port.split_once(":vfio=")?;
    Some(rest.split('?').next().unwrap_or(rest).parse())
}

/// Prints the findings; returns whether the device can be opened all the same.
pub(crate) fn print(port: &str, bdf: Bdf, json: bool) -> Result<bool, Box<dyn Error>> {
    let Inspection { driver, group, iommufd, findings, .. } = inspect(bdf);
    let openable = !findings.iter().any(|finding| finding.is_obstacle());
    if json {
        // Alone only where nothing else is printed about the port.
        if !openable {
            let findings = findings.iter().map(|finding| FindingReport {
                what: finding.to_string(),
                hint: finding.hint(bdf),
                obstacle: finding.is_obstacle(),
            });
            let driver = driver.as_deref();
            let report = Report { port, driver, iommu_group: group, iommufd, findings: findings.collect() };
            outln!("{}", serde_json::to_string(&report)?)?;
        }
        return Ok(openable);
    }
    outln!("{bdf}")?;
    let group = group.map_or("none".to_owned(), |group| group.to_string());
    let rows = [
        ("driver", driver.as_deref().unwrap_or("none")),
        ("IOMMU group", &group),
        ("iommufd", if iommufd { "yes" } else { "no" }),
    ];
    for (name, value) in rows {
        outln!("  {name:<13} {value}")?;
    }
    for finding in &findings {
        outln!("  {} {finding}", if finding.is_obstacle() { "OFF" } else { "!  " })?;
        outln!("      to fix it: {}", finding.hint(bdf))?;
    }
    if findings.is_empty() {
        outln!("  nothing is missing")?;
    }
    Ok(openable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_is_found_in_an_address_with_and_without_options() {
        let name = |port: &str| function(port).map(|bdf| bdf.unwrap().to_string());
        assert_eq!(name("e1000e:vfio=03:00.0").as_deref(), Some("0000:03:00.0"));
        assert_eq!(name("e1000e:vfio=0000:03:00.0?queues=2").as_deref(), Some("0000:03:00.0"));
        assert_eq!(name("tap:tp0"), None);
        assert!(function("e1000e:vfio=eth0").is_some_and(|bdf| bdf.is_err()));
    }
}
