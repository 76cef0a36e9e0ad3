//! The offloads of a port: configured, found in the kernel, reported.

use crate::uri::Want;
use std::borrow::Cow;
use towpath_packet::Offloads;
use towpath_packet::port::{Ability, PortError};
use towpath_tun as tun;

/// The configuration of each kind of offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wants {
    /// Partial and verified checksums, in both directions.
    pub csum: Want,
    /// TCP super-packets, in both directions. Needs `csum`.
    pub tso: Want,
    /// UDP super-packets, in both directions. Needs `csum`.
    pub uso: Want,
}

/// The offloads of a TUN/TAP device, and the same of a port.
const OF_A_TUN: [(tun::TunOffloads, Offloads); 5] = [
    (tun::TunOffloads::CSUM, Offloads::CSUM),
    (tun::TunOffloads::TSO4, Offloads::TSO4),
    (tun::TunOffloads::TSO6, Offloads::TSO6),
    (tun::TunOffloads::TSO_ECN, Offloads::TSO_ECN),
    (tun::TunOffloads::USO, Offloads::USO),
];

/// The offloads of a port that are `set` of a TUN/TAP device.
pub(crate) fn from_tun(set: tun::TunOffloads) -> Offloads {
    OF_A_TUN.iter().filter(|(one, _)| set.has(*one)).fold(Offloads::NONE, |all, &(_, one)| all.with(one))
}

/// The offloads of a TUN/TAP device that are `set` of a port: none without checksums.
pub(crate) fn to_tun(set: Offloads) -> tun::TunOffloads {
    let all = OF_A_TUN.iter().filter(|&&(_, one)| set.has(one));
    all.fold(tun::TunOffloads::NONE, |all, &(one, _)| all.with(one)).consistent()
}

/// TCP super-packets of every kind.
pub(crate) const TSO: Offloads = Offloads::TSO4.with(Offloads::TSO6).with(Offloads::TSO_ECN);

impl Wants {
    /// Takes the three options.
    pub(crate) fn from_options(options: &mut crate::uri::Options) -> Result<Wants, PortError> {
        Ok(Wants {
            csum: options.want("csum")?.unwrap_or_default(),
            tso: options.want("tso")?.unwrap_or_default(),
            uso: options.want("uso")?.unwrap_or_default(),
        })
    }

    /// The permitted offloads. Segmentation computes checksums, so it needs `csum`.
    pub(crate) fn allowed(self) -> Offloads {
        let pick = |want, set| if want == Want::Off { Offloads::NONE } else { set };
        match self.csum {
            Want::Off => Offloads::NONE,
            _ => Offloads::CSUM.with(pick(self.tso, TSO)).with(pick(self.uso, Offloads::USO)),
        }
    }
}

/// The kernel's offloads in each direction, and its refusals.
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelOffloads {
    /// Of packets that it hands over.
    pub(crate) rx: Offloads,
    /// Of packets that it accepts.
    pub(crate) tx: Offloads,
    /// Refusals: the offload and the error.
    pub(crate) refused: Vec<(Offloads, String)>,
    /// The method of the probe, for the report.
    pub(crate) how: &'static str,
}

impl From<&tun::Report> for KernelOffloads {
    fn from(report: &tun::Report) -> KernelOffloads {
        let refused = report.refused.iter().map(|(set, why)| (from_tun(*set), why.clone())).collect();
        KernelOffloads { rx: from_tun(report.rx), tx: from_tun(report.tx), refused, how: report.how }
    }
}

/// One line for each kind of offload; an error if a required one is missing.
pub(crate) fn report(port: &str, wants: Wants, found: &KernelOffloads) -> Result<Vec<Ability>, PortError> {
    let kinds = [("csum", wants.csum, Offloads::CSUM), ("tso", wants.tso, TSO), ("uso", wants.uso, Offloads::USO)];
    let mut abilities = Vec::new();
    for (name, want, set) in kinds {
        let (on, why, hint) = if want == Want::Off {
            (false, Cow::Borrowed("switched off by option"), Some(format!("{name}=prefer")))
        } else if wants.csum == Want::Off {
            let why = "needs csum, which is switched off by option";
            (false, Cow::Borrowed(why), Some("csum=prefer".to_owned()))
        } else if found.rx.has(set) && found.tx.has(set) {
            (true, Cow::Borrowed(found.how), None)
        } else {
            let refused: Vec<_> = found.refused.iter().filter(|(about, _)| !about.and(set).is_none()).collect();
            let refused: Vec<_> = refused.into_iter().map(|(_, error)| error.as_str()).collect();
            (false, Cow::Owned(format!("the kernel refuses: {}", refused.join(", "))), None)
        };
        if want == Want::Require && !on {
            return Err(PortError::Required { port: port.to_owned(), ability: name.to_owned(), why: why.into_owned() });
        }
        abilities.push(Ability::new(name, on, why).with_hint(hint));
    }
    Ok(abilities)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tx: Offloads) -> KernelOffloads {
        let refused = vec![(Offloads::USO, "tx uso4: Invalid argument".to_owned())];
        KernelOffloads { rx: Offloads::ALL, tx, refused, how: "accepted by the kernel" }
    }

    #[test]
    fn a_missing_ability_is_reported_with_the_error_of_the_kernel() {
        let list = report("tap:a", Wants::default(), &found(Offloads::ALL.without(Offloads::USO))).unwrap();
        let on: Vec<_> = list.iter().map(|a| (a.name, a.on)).collect();
        assert_eq!(on, [("csum", true), ("tso", true), ("uso", false)]);
        assert!(list[2].why.contains("tx uso4: Invalid argument"));
    }

    #[test]
    fn a_missing_ability_that_is_required_is_an_error() {
        let wants = Wants { uso: Want::Require, ..Wants::default() };
        let error = report("tap:a", wants, &found(Offloads::CSUM)).unwrap_err().to_string();
        assert_eq!(error, "tap:a: uso=require: the kernel refuses: tx uso4: Invalid argument");
        let wants = Wants { csum: Want::Off, tso: Want::Require, ..Wants::default() };
        let error = report("tap:a", wants, &found(Offloads::ALL)).unwrap_err().to_string();
        assert_eq!(error, "tap:a: tso=require: needs csum, which is switched off by option");
    }

    #[test]
    fn a_device_has_the_same_offloads_as_its_port() {
        assert_eq!(to_tun(Offloads::TSO4.with(Offloads::USO)).bits(), 0, "nothing without checksums");
        assert_eq!(to_tun(Offloads::CSUM.with(Offloads::USO)).bits(), 0x61);
        assert_eq!(to_tun(Offloads::ALL).bits(), 0x6f);
        assert_eq!(from_tun(to_tun(Offloads::ALL)), Offloads::ALL.without(Offloads::VLAN));
    }

    #[test]
    fn nothing_is_segmented_without_checksums() {
        assert!(Wants { csum: Want::Off, ..Wants::default() }.allowed().is_none());
        assert_eq!(Wants { tso: Want::Off, ..Wants::default() }.allowed(), Offloads::CSUM.with(Offloads::USO));
    }
}
